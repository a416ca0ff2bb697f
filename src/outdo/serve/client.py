"""The client that an agent gets in this process: `await client.chat.completions.create(…)`, as OpenAI's async client
has it, without HTTP. Replies have OpenAI's attribute names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from outdo.serve.api import Api

OPTIONAL = ("tool_calls", "function_call", "refusal", "content", "role", "logprobs", "usage", "reasoning_content")
OF_TRANSPORT = ("timeout", "extra_headers", "extra_query")  # of a call; they mean nothing here


class ApiObject:
    """JSON with attributes. It may be sent back as a message."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.__dict__.update({name: _wrapped(value) for name, value in data.items()})
        self._data = dict(data)

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONAL:
            return None
        raise AttributeError(f"the reply has no {name!r}; it has {', '.join(self._data)}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"ApiObject({self._data!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiObject) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON; options are those of pydantic's method, and have no effect."""
        return self._data

    to_dict = dict = model_dump


def _wrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ApiObject(value)
    return [_wrapped(each) for each in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """As JSON has it: replies, also those of OpenAI's own client, become what they hold."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return plain(value.model_dump()) if hasattr(value, "model_dump") else value


class Stream:
    """The chunks of a reply."""

    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[ApiObject]:
        return self

    async def __anext__(self) -> ApiObject:
        return ApiObject(await anext(self._chunks))

    async def close(self) -> None:
        await self._chunks.aclose()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class _Endpoint:
    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    async def create(self, **fields: Any) -> Any:
        """A reply, or with `stream=True` a Stream. Raises ApiError. `model` may be left out: there is one."""
        body = {**fields, **(fields.get("extra_body") or {}), "model": None}
        body = {name: value for name, value in body.items() if name not in ("extra_body", *OF_TRANSPORT)}
        body = {name: value for name, value in body.items() if type(value).__name__ not in ("NotGiven", "Omit")}
        answered = await getattr(self._client.api, self._name)(plain(body), self._client.session)
        return ApiObject(answered) if isinstance(answered, dict) else Stream(answered)


class _Chat:
    def __init__(self, client: Client) -> None:
        self.completions = _Endpoint(client, "chat")


class _Models:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> ApiObject:
        return ApiObject(self._client.api.models())

    async def retrieve(self, model: str) -> ApiObject:
        return ApiObject(self._client.api.describe(model))


class Client:
    """Of one agent. With a `session`, the recorder that the Api has keeps what is sampled."""

    def __init__(self, api: Api, session: str | None = None) -> None:
        self.api, self.session = api, session
        self.chat, self.completions, self.models = _Chat(self), _Endpoint(self, "complete"), _Models(self)
