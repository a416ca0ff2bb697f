"""`outdo serve` as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from outdo.models.load import load_policy, save_policy
from outdo.web.sockets import bind

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/v1")


def test_serves_until_ctrl_c(tmp_path: Path) -> None:
    """On a taken port, with a token: the printed line works, a stream ends with the server."""
    save_policy(load_policy("tiny", device="cpu", seed=1), tmp_path / "my-model")
    with bind(port=0).sock as taken:
        port = taken.getsockname()[1]
        words = ["serve", "my-model", "--port", str(port), "-v", "--token", "a-long-token", "--rows", "4"]
        server = subprocess.Popen(
            [sys.executable, "-m", "outdo", *words], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            found = ADDRESS.search(server.stdout.readline())
            curl = server.stdout.readline()
            assert found and int(found[1]) > port
            client = openai.OpenAI(base_url=found[0], api_key="a-long-token", max_retries=0)
            assert [model.id for model in client.models.list()] == ["my-model"]
            key, kind, body = re.findall(r"'(.*?)'", curl)
            assert curl.startswith(f"curl {found[0]}/chat/completions ")
            headers = dict(header.split(": ") for header in (key, kind))
            request = urllib.request.Request(f"{found[0]}/chat/completions", body.encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                tokens = json.load(reply)["usage"]["completion_tokens"]
            line = server.stdout.readline()
            assert re.fullmatch(rf"chat: 7 \+ {tokens} tokens, (stop|length), [\d.]+ s\n", line), line
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="my-model", messages=[])
            assert server.stdout.readline().startswith("400: messages")
            stream = client.chat.completions.create(
                model="my-model", messages=[{"role": "user", "content": "x"}], n=32, max_tokens=400, stream=True
            )
            next(stream)
            threading.Timer(0.2, server.send_signal, [signal.SIGINT]).start()
            with pytest.raises(openai.APIError, match="stopped"):
                list(stream)
            _, err = server.communicate(timeout=20)
            assert server.returncode == 0 and err == f"port {port} is taken\n"
        finally:
            server.kill()


def test_bad_input(outdo: Outdo) -> None:
    for words, part in (
        (("nowhere/model",), "nowhere/model"),
        (("tiny", "--token", "a b"), "--token"),
        (("tiny", "--port", "70000"), "--port"),
        (("tiny", "--rows", "0"), "--rows"),
        (("tiny", "--dtype", "int8"), "float32 or bfloat16"),
        (("tiny", "--host", "no.such.host.invalid"), "--host"),
        (("tiny", "--device", "gpu"), "device=gpu"),
    ):
        done = outdo("serve", *words)
        assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
