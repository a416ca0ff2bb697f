"""What a request is refused with, in OpenAI's JSON form."""

from __future__ import annotations

import json
from typing import Any

from outdo.errors import OutdoError

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(OutdoError):
    """A request that cannot be answered. `param` is the field at fault, `code` a word for programs."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        param = None if self.param is None else clean(self.param)
        return {"error": {"message": clean(str(self)), "type": kind, "param": param, "code": self.code}}


def clean(text: str) -> str:
    """Half of a surrogate pair, which JSON can write and no tokenizer can read, becomes a question mark."""
    return text.encode(errors="replace").decode()


def error_json(status: int, message: str) -> bytes:
    return json.dumps(ApiError(message, status=status).body).encode()
