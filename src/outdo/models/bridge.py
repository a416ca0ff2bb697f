"""From one turn of the model to the next, token by token: what it sampled is never encoded again.

After an answer come the environment's messages. Their tokens are the difference that the chat template adds to the
conversation, found by rendering it with marks in place of words (`turn_frame`). Where the template rewrites
earlier turns, as Qwen3's removes earlier thoughts, there is no such difference: the next turn then has a prompt of its
own, encoded anew. New contents are a stranger's text: special tokens in them are text (`literal_text`).

The result differs from the finished conversation encoded at once in what the model wrote in its own way (a call's white
space), and where the tokenizer would have merged the end of a prompt with the begin of its answer.

Without a chat template, a new message is its content in lines of its own, "\\n" + content + "\\n".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from outdo.errors import ModelError
from outdo.models.call_syntax import END_THINK, THINK, Call
from outdo.models.literal_text import LiteralEncoder, Mixed, interleaved
from outdo.models.message_form import Form, Shown, probe_form, template_messages
from outdo.models.renderer import TOOLS, Renderer, encode_prompts, takes_tools
from outdo.models.templates import Conversation, TemplateFails, render_each
from outdo.models.tool_formats import NONE, ToolFormat, choose_format, fit_types
from outdo.models.turn_frame import Disguised, Frame, Shape, Shapes, cut, frame_of
from outdo.types import Message, Prompt

MAX_SHAPES = 4096  # that are kept
MAX_INSERTED = 65_536  # texts whose tokens are kept
_NO_TEMPLATE = Form(False, empty="")
_STRUCTURE = ("role", "name", "tool_call_id")  # of a message: nothing in them can be a special token
_UNSAFE = "the environment's message cannot be encoded without special tokens"


class TurnEnd(NamedTuple):
    """A turn of the model, and what the environment answers."""

    messages: Sequence[Message]  # before the answer, as an environment has them
    answer: Message  # as `read` gives it
    ended: bool  # its tokens end with one that ends an answer
    new: Sequence[Message]


@dataclass(frozen=True)
class Extension:
    """The environment's tokens, to append to those that were sampled. With `prompt_ids`, the template rewrites earlier
    turns: these are then all that the next turn is sampled from. With `problem`, the template fails."""

    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    problem: str = ""


Cut = tuple[str, str] | TemplateFails | None  # the token that ends an answer, and the text after it; see `cut`
Pair = tuple[list[Shown], Disguised, list[Disguised]]  # before an answer, the answer, and the new messages


@dataclass(eq=False)
class _Talk:
    """A conversation at the end of a turn, as the template gets it."""

    before: list[Shown]
    answer: Shown
    new: list[Shown]
    ended: bool
    shape: Shape | None


class Bridge:
    """Of one model and the schemas of the tools that its environments have. Without tools, no text is read as a call,
    unless a format is given."""

    def __init__(
        self, renderer: Renderer, tools: Sequence[Mapping[str, Any]] = (), tool_format: ToolFormat | None = None
    ) -> None:
        self.renderer, self.tokenizer = renderer, renderer.tokenizer
        self.tools = [dict(tool) for tool in tools] if takes_tools(self.tokenizer) else []
        self.form = probe_form(self.tokenizer)[0] if renderer.has_template else _NO_TEMPLATE
        self.tool_format = tool_format or (choose_format(self.tokenizer) if tools else NONE)
        self._parameters = {one["function"]["name"]: one["function"].get("parameters") or {} for one in tools}
        self._encoder = LiteralEncoder(self.tokenizer)
        self._kept = frozenset((THINK, END_THINK, *self.tool_format.special))  # of special tokens, in an answer's text
        unread = {i for i in self._encoder.special if self._encoder.control.get(i) not in self._kept}
        self._unread = unread | set(renderer.eos_ids)
        template = self.tokenizer.get_chat_template(None, self.tools or None) if renderer.has_template else ""
        self._lock = threading.Lock()
        self._frames: dict[Shape | None, Frame | None] = {}  # None: the template rewrites earlier turns
        self._irregular: set[Shape | None] = set()  # shapes whose conversations have no frame in common
        self._once: set[Shape | None] = set()
        self._inserted: dict[str, tuple[int, ...]] = {}
        spelled = [self.tokenizer.decode([i], skip_special_tokens=False) for i in renderer.eos_ids]
        self._ends = [text for text in dict.fromkeys(spelled) if text.strip()]
        self._shapes = Shapes(template, {*self._ends, *self._encoder.special_spellings})
        encoded = self._encoder.encode_all(self._ends, [False] * len(self._ends))
        self._single = {text for text, ids in zip(self._ends, encoded, strict=True) if len(ids) == 1}

    def start(self, messages: Sequence[Message], id: str = "") -> tuple[int, ...]:
        """The first turn's prompt, as Renderer.encode has it."""
        return self.start_all([Prompt(id, tuple(messages))])[0]

    def start_all(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Many at once. Raises ModelError and TaskError, which name the prompt."""
        meta = {TOOLS: self.tools} if self.tools else {}
        shown = [template_messages(prompt.messages, self.form, self.tool_format) for prompt in prompts]
        return encode_prompts(
            self.tokenizer, [Prompt(one.id, tuple(each), meta=meta) for one, each in zip(prompts, shown, strict=True)]
        )

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt of a conversation that others hold, from its start. What came after its first answer is a
        stranger's text. Raises ModelError and TaskError."""
        shown = template_messages(messages, self.form, self.tool_format)
        at = next((i for i, message in enumerate(shown) if message["role"] == "assistant"), len(shown))
        if at == len(shown) or not self.renderer.has_template:
            return self.start(messages)
        (extension,) = self._encode_anew([_Talk(shown[:at], shown[at], shown[at + 1 :], True, None)])
        if extension.prompt_ids is None:
            raise ModelError(extension.problem)
        return extension.prompt_ids

    def read(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """The message that the model wrote, for an environment: its content, and its calls where it made any."""
        return self.read_text(self.text(token_ids))

    def text(self, token_ids: Sequence[int]) -> str:
        """What the model wrote, with the special tokens of calls and thoughts, and no others."""
        return self.tokenizer.decode([i for i in token_ids if i not in self._unread], skip_special_tokens=False)

    def read_text(self, text: str) -> dict[str, Any]:
        content, calls = self.tool_format.parse(text)
        if not self.tool_format.is_typed:
            calls = [self._typed(call) for call in calls]
        return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}

    def _typed(self, call: Call) -> Call:
        schema = self._parameters.get(call.get("name", ""))
        return call if schema is None else {**call, "arguments": fit_types(call["arguments"], schema)}

    def insert_all(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens of texts that continue the model's own, as the result of a calculator's mark does."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._inserted]:
            if len(self._inserted) > MAX_INSERTED:
                self._inserted, new = {}, list(dict.fromkeys(texts))
            rows = self._encoder.encode_all([self._encoder.guarded(text) for text in new], [True] * len(new))
            self._inserted |= {text: tuple(row) for text, row in zip(new, rows, strict=True)}
        return [self._inserted[text] for text in texts]

    def extend_all(self, turns: Sequence[TurnEnd]) -> list[Extension]:
        """What follows each of the turns. Templates are rendered for all at once, and only where no frame is known."""
        if not self.renderer.has_template:
            return self._encode([self._lines(turn) for turn in turns])
        talks = [self._talk(turn) for turn in turns]
        with self._lock:
            mixed = self._continuations(talks)
        appended = iter(self._encode([each for each in mixed if isinstance(each, Mixed)]))
        anew = iter(self._encode_anew([talk for talk, each in zip(talks, mixed, strict=True) if each is None]))
        return [
            _failed(each) if isinstance(each, TemplateFails) else next(anew if each is None else appended)
            for each in mixed
        ]

    def _talk(self, turn: TurnEnd) -> _Talk:
        messages = (*turn.messages, turn.answer, *turn.new)
        shown = template_messages(messages, self.form, self.tool_format)
        answers = [i for i, message in enumerate(shown) if message["role"] == "assistant"]
        at = answers[sum(message["role"] == "assistant" for message in turn.messages)]
        before, answer, new = shown[:at], shown[at], shown[at + 1 :]
        return _Talk(before, answer, new, turn.ended, self._shapes.of(before, answer, new))

    def _lines(self, turn: TurnEnd) -> Mixed:
        """Without a chat template."""
        contents = [one["content"] for one in template_messages(turn.new, self.form, self.tool_format)]
        return Mixed(("\n",) * (len(contents) + 1) if contents else ("",), tuple(contents), continued=True)

    def _continuations(self, talks: Sequence[_Talk]) -> list[Mixed | TemplateFails | None]:
        """What to append: by a frame where a shape has one. It is looked for when the shape occurs a second time."""
        if len(self._frames) + len(self._once) > MAX_SHAPES:
            self._frames, self._irregular, self._once = {}, set(), set()
        counts = Counter(talk.shape for talk in talks)
        unknown = {talk.shape: talk for talk in talks if talk.shape not in self._frames and self._is_regular(talk)}
        repeated = {shape: talk for shape, talk in unknown.items() if counts[shape] > 1 or shape in self._once}
        self._once |= unknown.keys() - repeated.keys()
        self._find_frames(list(repeated.values()))
        by_frame = [talk.shape in self._frames for talk in talks]
        cuts = iter(self._cuts([self._real(talk) for talk, has in zip(talks, by_frame, strict=True) if not has]))
        return [
            self._framed(self._frames[talk.shape], talk) if has else self._rendered(next(cuts), talk)
            for talk, has in zip(talks, by_frame, strict=True)
        ]

    def _is_regular(self, talk: _Talk) -> bool:
        return talk.shape is not None and talk.shape not in self._irregular

    def _find_frames(self, talks: Sequence[_Talk]) -> None:
        """A frame is kept if it gives what the template does for the conversation itself."""
        disguised = [self._disguised(talk) for talk in talks]
        cuts = self._cuts([*disguised, *map(self._real, talks)])
        for talk, pair, tail, real in zip(talks, disguised, cuts, cuts[len(talks) :], strict=False):
            frame = frame_of(tail, pair[2]) if isinstance(tail, tuple) else None
            if frame is None:
                holds = tail is None and real is None
            else:
                contents = [self._encoder.guarded(text) for text in frame.contents(talk.new)]
                holds = real == (frame.end, "".join(interleaved(frame.texts, contents)))
            if holds:
                self._frames[talk.shape] = frame
            else:
                self._irregular.add(talk.shape)

    def _disguised(self, talk: _Talk) -> Pair:
        """All words replaced by marks."""
        numbers = count()
        before = [self._shapes.disguise(message, numbers).message for message in talk.before]
        answer = self._shapes.disguise(talk.answer, numbers)
        return before, answer, [self._shapes.disguise_new(message, numbers) for message in talk.new]

    def _real(self, talk: _Talk) -> Pair:
        """The conversation itself; the answer's words are replaced, to find where it ends."""
        messages = self._guarded(talk)
        at = len(talk.before)
        new = [Disguised(message, ()) for message in messages[at + 1 :]]
        return messages[:at], self._shapes.disguise(talk.answer, count()), new

    def _cuts(self, pairs: Sequence[Pair]) -> list[Cut]:
        """Each conversation is rendered before its answer, and with all that follows."""
        talks = [
            talk
            for before, answer, new in pairs
            for talk in (before, [*before, answer.message, *(one.message for one in new)])
        ]
        texts = render_each(self.tokenizer, [self._conversation(talk) for talk in talks])
        cuts: list[Cut] = []
        for (_, answer, new), before, after in zip(pairs, texts[::2], texts[1::2], strict=True):
            if isinstance(before, TemplateFails):
                cuts.append(before)
            elif isinstance(after, TemplateFails):
                cuts.append(after)
            else:
                first = next((one.marks[0] for one in new if one.marks), None)
                cuts.append(cut(before, after, answer, first, self._ends))
        return cuts

    def _framed(self, frame: Frame | None, talk: _Talk) -> Mixed | None:
        if frame is None:
            return None
        return self._mixed(frame.end, frame.texts, frame.contents(talk.new), talk.ended)

    def _rendered(self, tail: Cut, talk: _Talk) -> Mixed | TemplateFails | None:
        return self._mixed(tail[0], (tail[1],), (), talk.ended) if isinstance(tail, tuple) else tail

    def _mixed(self, end: str, texts: Sequence[str], contents: Sequence[str], ended: bool) -> Mixed:
        """The token that ends the answer is encoded with the rest and then dropped if it was sampled, since it decides
        how the text after it is encoded."""
        if ended and end not in self._single:
            end = ""
        texts = (end + texts[0], *texts[1:])
        return Mixed(texts, tuple(contents), continued=end not in self._single, skip=int(ended and bool(end)))

    def _encode(self, mixed: Sequence[Mixed]) -> list[Extension]:
        rows = self._encoder.encode_mixed(mixed)
        return [Extension(problem=_UNSAFE) if row is None else Extension(tuple(row)) for row in rows]

    def _encode_anew(self, talks: Sequence[_Talk]) -> list[Extension]:
        """The conversations as the template shows them now."""
        texts = render_each(self.tokenizer, [self._conversation(self._guarded(talk)) for talk in talks])
        rendered = [text for text in texts if isinstance(text, str)]
        rows = iter(self._encoder.encode_all(rendered, [False] * len(rendered)))
        return [
            _failed(text) if isinstance(text, TemplateFails) else Extension(prompt_ids=tuple(next(rows)))
            for text in texts
        ]

    def _conversation(self, messages: Sequence[Shown]) -> Conversation:
        return {"messages": messages, "tools": self.tools or None, "add_generation_prompt": True}

    def _guarded(self, talk: _Talk) -> list[Shown]:
        """With the encoder's marks in all that came after the prompt. What spells a token of a call or of thoughts is
        one again in an answer."""
        messages = [*talk.before, talk.answer, *talk.new]
        first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        return [*messages[:first], *map(self._guarded_message, messages[first:])]

    def _guarded_message(self, message: Shown) -> Shown:
        keep = self._kept if message["role"] == "assistant" else None
        guarded = {key: self._guarded_value(value, keep) for key, value in message.items() if key not in _STRUCTURE}
        return {**message, **guarded}

    def _guarded_value(self, value: Any, keep: frozenset[str] | None) -> Any:
        if isinstance(value, str):
            return self._encoder.guarded(value, keep)
        if isinstance(value, Mapping):
            return {self._guarded_value(key, keep): self._guarded_value(each, keep) for key, each in value.items()}
        return [self._guarded_value(each, keep) for each in value] if isinstance(value, (list, tuple)) else value


def _failed(error: TemplateFails) -> Extension:
    return Extension(problem=f"the model's chat template fails: {error!s:.300}")
