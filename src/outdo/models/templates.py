"""Chat templates come with a model and are a stranger's code: they are rendered in another process (`template_worker`),
which is ended where one takes too long or too much. A template of outdo's own needs none."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outdo.errors import ModelError
from outdo.models.tiny import TEMPLATE as OWN

MAX_TEMPLATE = 1 << 20  # characters
WAIT = 60.0  # seconds for one request: its CPU time is limited in the process itself
MAX_REPLY = 256 << 20  # bytes
BATCH, BATCH_CHARS = 256, 8_000_000  # prompts, and their characters, in one request
MAX_PROCESSES = 4  # the oldest is ended
Conversation = Mapping[str, Any]  # messages, tools, add_generation_prompt, special tokens


class TemplateFails(Exception):
    """On the conversation of that index."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class TemplateProcess:
    """One template in its process. After a failure that ended the process, every call fails with that reason."""

    def __init__(self, template: str) -> None:
        self.problem = ""
        self.lock = threading.Lock()
        command = [sys.executable, "-P", "-m", "outdo.models.template_worker"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd="/", bufsize=0, **pipes)
        self.syntax = self._ask(template).get("error", "")

    def render(self, conversations: Sequence[Conversation]) -> list[str]:
        """Raises TemplateFails."""
        texts: list[str] = []
        with self.lock:
            for part in _batches(conversations):
                if self.problem or self.syntax:
                    raise TemplateFails(len(texts), self.problem or self.syntax)
                reply = self._ask(part)
                if "texts" not in reply:
                    raise TemplateFails(len(texts) + int(reply.get("failed", 0)), str(reply.get("error")))
                texts += reply["texts"]
        return texts

    def _ask(self, request: Any) -> dict[str, Any]:
        data = json.dumps(request, default=_placeholder).encode() + b"\n"
        reply = self._exchange(data)
        if not reply.endswith(b"\n"):
            self.problem = self.problem or self._end()
            return {"error": self.problem}
        return dict(json.loads(reply))

    def _exchange(self, data: bytes) -> bytes:
        """Writes and reads at once, so that neither side waits for the other. Incomplete where the process ended."""
        assert self.process.stdin and self.process.stdout
        ends, reply, deadline = (self.process.stdin.fileno(), self.process.stdout.fileno()), bytearray(), WAIT
        os.set_blocking(ends[0], False)
        deadline += time.monotonic()
        rest = memoryview(data)
        while not reply.endswith(b"\n") and len(reply) < MAX_REPLY:
            wanted = [ends[0]] if rest else []
            readable, writable, _ = select.select([ends[1]], wanted, [], max(0.0, deadline - time.monotonic()))
            if not readable and not writable:
                self.problem = f"it does not end within {WAIT:.0f} seconds"
                break
            try:
                if writable:
                    rest = rest[os.write(ends[0], rest[: 1 << 16]) :]
            except OSError:
                break
            if readable:
                piece = os.read(ends[1], 1 << 20)
                if not piece:
                    break
                reply += piece
        return bytes(reply)

    def _end(self) -> str:
        """Ends the process; the reason for which it had ended before."""
        try:
            status = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.close()
            return "its output has no end"
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return "it takes more than 10 seconds"
        return "it takes more than 1 GB of memory, or nests too deeply"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            pipe.close()


def _batches(conversations: Sequence[Conversation]) -> Iterator[list[Conversation]]:
    part: list[Conversation] = []
    size = 0
    for one in conversations:
        part.append(one)
        size += sum(len(message.get("content") or "") for message in one["messages"])
        if len(part) == BATCH or size > BATCH_CHARS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _placeholder(value: Any) -> str:
    """For what is no plain value, as transformers has it."""
    return f"<{type(value).__name__}>"


_processes: dict[tuple[int, str], TemplateProcess] = {}
_lock = threading.Lock()


def render_template(tokenizer: Any, conversations: Sequence[Conversation]) -> list[str]:
    """The texts of conversations. Raises TemplateFails, and ModelError where the template is too long to be one."""
    if tokenizer.chat_template == OWN:
        return [_render_own(tokenizer, index, one) for index, one in enumerate(conversations)]
    given = {**tokenizer.special_tokens_map, "tools": None, "documents": None, "add_generation_prompt": False}
    texts = [""] * len(conversations)
    by_template: dict[str, list[int]] = {}  # a model may have another one for tools
    for index, one in enumerate(conversations):
        by_template.setdefault(tokenizer.get_chat_template(None, one.get("tools")), []).append(index)
    for template, indices in by_template.items():
        if len(template) > MAX_TEMPLATE:
            raise ModelError(f"the model's chat template has {len(template):,} characters; at most {MAX_TEMPLATE:,}")
        try:
            rendered = _process(template).render([{**given, **conversations[index]} for index in indices])
        except TemplateFails as error:
            raise TemplateFails(indices[error.index], str(error)) from None
        for index, text in zip(indices, rendered, strict=True):
            texts[index] = text
    return texts


def render_each(tokenizer: Any, conversations: Sequence[Conversation]) -> list[str | TemplateFails]:
    """As render_template, with the failure in place of the text of each conversation that fails."""
    texts: list[str | TemplateFails] = []
    while len(texts) < len(conversations):
        rest = conversations[len(texts) :]
        try:
            texts += render_template(tokenizer, rest)
        except TemplateFails as error:
            texts += [*render_each(tokenizer, rest[: error.index]), error]
    return texts


def _render_own(tokenizer: Any, index: int, conversation: Conversation) -> str:
    more = {key: value for key, value in conversation.items() if key != "messages"}
    try:
        return tokenizer.apply_chat_template(conversation["messages"], **more, tokenize=False)
    except Exception as error:
        raise TemplateFails(index, f"{type(error).__name__}: {error}") from error


def _process(template: str) -> TemplateProcess:
    """The process of a template; a forked process has its own."""
    key = os.getpid(), template
    with _lock:
        if key not in _processes:
            own = [each for each in _processes if each[0] == key[0]]
            for oldest in own[: len(own) - MAX_PROCESSES + 1]:
                _processes.pop(oldest).close()
            _processes[key] = TemplateProcess(template)
        return _processes[key]


@atexit.register
def _close_all() -> None:
    for (pid, _), process in _processes.items():
        if pid == os.getpid():
            process.close()
