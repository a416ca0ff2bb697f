"""Renders a chat template, which is a stranger's code, in a process of its own with little memory and time.

A program: it reads a request a line and answers with a line, both JSON. The first is the template. It imports jinja2
alone, so that it starts at once and has nothing to lose; the environment is that of transformers.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 1 << 30  # bytes of address space
SECONDS = 10  # of CPU time, for one request
MAX_CHARS = 8_000_000  # of a rendered prompt
MAX_ERROR = 300
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning


class _Generation(Extension):
    """The block that marks an answer's tokens."""

    tags = {"generation"}  # noqa: RUF012 as the base class has it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    def __call__(self, *args: Any, **keys: Any) -> dict[Any, Any]:
        return dict(*args, **keys)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """Without names that lead to Python's internals."""

    def __init__(*args: Any, **keys: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **keys)
        for name in values:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have {name!r:.60}")


def _raise(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False):  # type: ignore[no-untyped-def]
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def compile_template(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now, "dict": _Dict(), "namespace": _Namespace}
    return environment.from_string(source)


def render(template: jinja2.Template, request: dict[str, Any]) -> str:
    """One conversation. Raises whatever the template does."""
    messages = [_with_reasoning(message) for message in request["messages"]]
    pieces, size = [], 0
    for piece in template.generate(**{**request, "messages": messages}):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARS:
            raise ValueError(f"it renders more than {MAX_CHARS:,} characters")
    return "".join(pieces)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def answer(template: jinja2.Template, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The texts, or the first request that fails and why."""
    texts = []
    for index, request in enumerate(requests):
        try:
            texts.append(render(template, request))
        except Exception as error:
            return {"failed": index, "error": f"{type(error).__name__}: {error}"[:MAX_ERROR]}
    return {"texts": texts}


def allow_seconds() -> None:
    """From now on; then the process is ended."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS + 1, hard))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends this process
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template: jinja2.Template | None = None
    for line in sys.stdin:
        allow_seconds()
        request = json.loads(line)
        if template is None:
            try:
                template = compile_template(request)
                reply: dict[str, Any] = {}
            except Exception as error:
                reply = {"failed": 0, "error": f"{type(error).__name__}: {error}"[:MAX_ERROR]}
        else:
            reply = answer(template, request)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
