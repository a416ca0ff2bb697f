"""The bodies of requests, validated: OpenAI's fields, and those of its likes that the engine has (`top_k`, `min_p`,
`return_token_ids`). A field that asks for what is not there is refused in words; one that changes nothing that is
sampled is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outdo.rollout.sampling import MAX_SUPPORT
from outdo.serve.errors import ApiError, clean
from outdo.serve.fields import Fields, refuse, shown
from outdo.serve.messages import read_messages, read_tools
from outdo.types import Message, SampleParams

GREEDY = 1e-3  # temperatures below it: their quotients would overflow
MAX_TOKENS = 1 << 24
MAX_N, MAX_PROMPTS, MAX_ANSWERS = 128, 1024, 1024
MAX_STOPS, MAX_STOP_CHARS = 16, 1000
COMPLETION_TOKENS = 16  # of /v1/completions where max_tokens is left out, as in OpenAI's

COMMON = (
    *("model", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "max_tokens", "stream", "stream_options"),
    *("logprobs", "return_token_ids"),
)
CHAT = (*COMMON, "messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "top_logprobs")
COMPLETION = (*COMMON, "prompt")
IGNORED = (  # they change nothing that is sampled
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "skip_special_tokens"),
)
NEUTRAL: dict[str, Any] = {  # the one value that is supported
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "best_of": 1,
    "echo": False,
    "suffix": "",
}
WHY = {
    "response_format": "an answer cannot be constrained to a form: describe it in the prompt, and check the answer",
    "top_logprobs": "only the log-probability of the sampled token itself is kept: leave it out",
    "best_of": "ask for n answers and choose one",
    "echo": "join the prompt and the text yourself",
}
REFUSED = (
    *("audio", "functions", "function_call", "prediction", "web_search_options", "reasoning_effort", "verbosity"),
    "moderation",
)


@dataclass(frozen=True)
class Sampling:
    """How the answers to each prompt are wanted. `max_tokens` None: as many as there is room for, within limits."""

    params: SampleParams  # its max_completion_length is set when the prompt's length is known
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = None
    stream: bool = False
    with_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0  # 1 only where the choice is greedy, and the sampled token the likeliest
    token_ids: bool = False


@dataclass(frozen=True)
class ChatRequest:
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    sampling: Sampling
    model: str | None = None
    one_call: bool = False


@dataclass(frozen=True)
class CompletionRequest:
    prompts: tuple[str | tuple[int, ...], ...]
    sampling: Sampling
    model: str | None = None


def read_chat(body: Any) -> ChatRequest:
    """Raises ApiError."""
    fields = _fields(body, CHAT)
    messages = read_messages(fields.get("messages"))
    tools = read_tools(fields.get("tools"), fields.get("tool_choice"))
    limits = [fields.integer(name, 1, MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens")]
    given = {limit for limit in limits if limit is not None}
    if len(given) > 1:
        raise ApiError("max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
    logprobs, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 20) or 0
    if top and not logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    sampling = _sampling(fields, next(iter(given), None), logprobs, top)
    one_call = not fields.flag("parallel_tool_calls", True)
    return ChatRequest(messages, tools, sampling, _model(fields), one_call)


def read_completion(body: Any) -> CompletionRequest:
    """Raises ApiError."""
    fields = _fields(body, COMPLETION)
    prompts = _prompts(fields.get("prompt"))
    limit = fields.integer("max_tokens", 1, MAX_TOKENS) or COMPLETION_TOKENS
    top = fields.integer("logprobs", 0, 20)
    sampling = _sampling(fields, limit, top is not None, top or 0)
    if len(prompts) * sampling.n > MAX_ANSWERS:
        raise ApiError(f"{len(prompts)} prompts with n={sampling.n}: at most {MAX_ANSWERS:,} answers", param="n")
    return CompletionRequest(prompts, sampling, _model(fields))


def _fields(body: Any, known: tuple[str, ...]) -> Fields:
    if not isinstance(body, Mapping):
        raise ApiError(f"the request must be a JSON object, and is {shown(body)}")
    fields = Fields(body)
    for name in REFUSED:
        if fields.get(name) is not None:
            raise ApiError(f"{name} is not supported: leave it out", param=name)
    for name, value in NEUTRAL.items():
        given = fields.get(name)
        if given is not None and given != value:
            reason = WHY.get(name, "leave it out")
            raise ApiError(f"{name}: only {_json(value)} is supported; {reason}", param=name)
    fields.refuse_unknown({*known, *IGNORED, *NEUTRAL, *REFUSED})
    return fields


def _json(value: Any) -> str:
    return {"{}": "{}", "": '""'}.get(str(value)) or str(value).replace("'", '"').replace("False", "false")


def _sampling(fields: Fields, limit: int | None, logprobs: bool, top: int) -> Sampling:
    temperature = fields.number("temperature", 1.0, 0, 2)
    top_k = fields.integer("top_k", -1, MAX_SUPPORT) or 0
    params = SampleParams(
        1,
        temperature if temperature >= GREEDY else 0.0,
        fields.number("top_p", 1.0, 0, 1, above=True),
        max(top_k, 0),  # -1: none, as vLLM has it
        fields.number("min_p", 0.0, 0, 1),
        _stop(fields.get("stop")),
    )
    if top > 1 or (top and params.temperature > 0):
        raise ApiError(f"top_logprobs={top}: {WHY['top_logprobs']}", param="top_logprobs")
    seed = fields.integer("seed", -(1 << 63), (1 << 63) - 1)
    stream, options = fields.flag("stream"), fields.get("stream_options")
    if options is not None and (not stream or not isinstance(options, Mapping)):
        raise ApiError("stream_options: an object, and only with stream: true", param="stream_options")
    usage = Fields(options or {}).flag("include_usage")
    n = fields.integer("n", 1, MAX_N) or 1
    token_ids = fields.flag("return_token_ids")
    return Sampling(params, n, seed, limit, stream, usage, logprobs, top, token_ids)


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given
    if stops is None:
        return ()
    if not isinstance(stops, (list, tuple)) or not all(isinstance(one, str) for one in stops):
        refuse("stop", "text, or a list of texts", given)
    if len(stops) > MAX_STOPS or not all(0 < len(one) <= MAX_STOP_CHARS for one in stops):
        raise ApiError(f"stop: at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS:,} characters", param="stop")
    return tuple(dict.fromkeys(map(clean, stops)))


def _prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """Texts, or token ids."""
    if isinstance(given, str) or _is_ids(given):
        given = [given]
    if not isinstance(given, (list, tuple)) or not 0 < len(given) <= MAX_PROMPTS:
        refuse("prompt", f"text, token ids, or a list of 1 to {MAX_PROMPTS:,} of either", given)
    prompts = []
    for index, one in enumerate(given):
        if not isinstance(one, str) and not _is_ids(one):
            refuse(f"prompt[{index}]", "text, or a list of token ids", one)
        prompts.append(clean(one) if isinstance(one, str) else tuple(one))
    return tuple(prompts)


def _is_ids(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(one) is int for one in value)


def _model(fields: Fields) -> str | None:
    model = fields.get("model")
    return model if model is None or isinstance(model, str) else refuse("model", "a model's name", model)
