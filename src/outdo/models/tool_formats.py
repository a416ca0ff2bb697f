"""The formats in which models write calls of tools, and which one a chat template belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.errors import ModelError
from outdo.models import call_syntax as syntax
from outdo.models.call_syntax import (
    ARGS_TAG,
    CALCULATOR,
    CLOSE_TAG,
    ID_TAG,
    MISTRAL_TAG,
    OPEN_TAG,
    PYTHON_TAG,
    Parsed,
)
from outdo.models.message_form import PROBE_CALL, probe_form, shows_tools
from outdo.untrusted.parse import parse_json_at


@dataclass(frozen=True)
class ToolFormat:
    """`parse` reads a turn's text, `render_call` writes a call as the model would."""

    name: str
    parse: Callable[[str], Parsed]
    render_call: Callable[[str, Mapping[str, Any]], str]
    special: tuple[str, ...] = ()  # tokens of a call that a tokenizer may count as special: they are kept in the text
    stop_tokens: re.Pattern[str] | None = None  # a turn ends with a token of such text
    is_typed: bool = True  # False: every argument is read as text, and `fit_types` makes it what the schema wants
    inline: bool = False  # a call is part of the model's text, and the result continues it; no message answers it

    def stop_ids(self, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
        """Tokens that end a turn so that a call can be answered, beside those that end an answer."""
        if self.stop_tokens is None:
            return ()
        vocab = tokenizer.get_vocab().items()
        found = [(tokenizer.decode([i]), i) for token, i in vocab if "=" in token and token[0] != "\u2581"]  # a space
        return tuple(sorted(i for text, i in found if self.stop_tokens.fullmatch(text)))


_TAGS = (OPEN_TAG, CLOSE_TAG)
HERMES = ToolFormat("hermes", syntax.parse_hermes, syntax.render_hermes, _TAGS)
QWEN_XML = ToolFormat("qwen_xml", syntax.parse_xml, syntax.render_xml, _TAGS, is_typed=False)
LLAMA = ToolFormat("llama", syntax.parse_llama, syntax.render_llama, (PYTHON_TAG,))
MISTRAL = ToolFormat("mistral", syntax.parse_mistral, syntax.render_mistral, (MISTRAL_TAG, ARGS_TAG, ID_TAG))
_MARK_ENDS = re.compile(r"[0-9.)%]*=")
MARKS = ToolFormat("marks", syntax.parse_marks, syntax.render_mark, stop_tokens=_MARK_ENDS, inline=True)
FORMATS = {one.name: one for one in (HERMES, QWEN_XML, LLAMA, MISTRAL, MARKS)}
NONE = ToolFormat("none", lambda text: (text, []), syntax.render_hermes)  # where there are no tools
_SIGNS = {"<function=": QWEN_XML, OPEN_TAG: HERMES, MISTRAL_TAG: MISTRAL, PYTHON_TAG: LLAMA}  # of a template's text


def choose_format(tokenizer: PreTrainedTokenizerBase) -> ToolFormat:
    """The format that reads back a call as the chat template itself writes it; for a template that writes none, the one
    that its text mentions, else hermes; without a template, the marks. Raises ModelError for an unknown format."""
    if not tokenizer.chat_template:
        return MARKS
    form, shown = probe_form(tokenizer)
    tokens = [str(one) for one in tokenizer.added_tokens_decoder.values() if one.special]
    for one in (QWEN_XML, HERMES, MISTRAL, LLAMA):
        text = shown
        for token in tokens:
            text = text if token in one.special else text.replace(token, "")
        if one.parse(text)[1] == [PROBE_CALL]:
            return one
    if form.shows_calls:
        raise ModelError(
            f"the model's chat template writes tool calls in an unknown way ({shown.strip()!r:.100}): set tool_format "
            f"to the one of {', '.join(FORMATS)} that the model is to learn, or use another model"
        )
    template = str(tokenizer.chat_template)
    return next((one for sign, one in _SIGNS.items() if sign in template), HERMES)


def format_of(name: str, tokenizer: PreTrainedTokenizerBase) -> ToolFormat:
    """The format of that name; `auto`: the one of the chat template."""
    return choose_format(tokenizer) if name == "auto" else FORMATS[name]


def refuse_without_tools(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str], tool_format: ToolFormat | None = None
) -> None:
    """Raises ModelError where a model would not learn of the tools of these names, and so could never call them."""
    if not names:
        return
    tool_format = tool_format or choose_format(tokenizer)
    if tool_format.inline:
        if others := [name for name in names if name != CALCULATOR]:
            why = "" if tokenizer.chat_template else "the model has no chat template, so that "
            raise ModelError(
                f"tools: {why}calls are written as marks, <<48/2=, and those call {CALCULATOR} alone, not "
                f"{', '.join(others)}: remove them, or use a model whose chat template shows tools"
            )
    elif not shows_tools(tokenizer):
        raise ModelError(
            "tools: the model's chat template has no place for them, so that the model would not know of "
            f"{', '.join(names)}: use a model whose template shows tools (Qwen2.5 or Qwen3, Llama 3.1, SmolLM3, "
            f"Mistral), or for {CALCULATOR} alone set tool_format: marks"
        )


def fit_types(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that were read as text, as the function's JSON schema wants them; text where it does not fit."""
    properties = schema.get("properties")
    return {
        key: _fit(value, properties.get(key)) if isinstance(properties, Mapping) else value
        for key, value in arguments.items()
    }


def _fit(value: Any, schema: Any) -> Any:
    if not isinstance(value, str) or not isinstance(schema, Mapping):
        return value
    options = [schema, *(one for key in ("anyOf", "oneOf") for one in schema.get(key) or () if isinstance(one, dict))]
    kinds = [option.get("type") for option in options]
    kinds = [kind for each in kinds for kind in (each if isinstance(each, list) else [each])]
    for kind in ("integer", "number", "boolean", "null", "array", "object"):
        if kind in kinds:
            try:
                found, end = parse_json_at(text := value.strip().lower() if kind == "boolean" else value.strip(), 0)
            except ValueError:
                continue
            if end == len(text) and type(found) in _KINDS[kind]:
                return found
    return value


_KINDS = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
