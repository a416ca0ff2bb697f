"""`outdo serve`: a model behind OpenAI's interface."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from outdo.cli.app import app
from outdo.errors import RecipeError

if TYPE_CHECKING:
    from outdo.web.sockets import Bound


@app.command()
def serve(
    model: Annotated[str, Argument(help="A Hugging Face folder, a hub name, or a run.")],
    host: Annotated[str, Option(help="Address to listen on; one that is not local gets a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; the next free one if it is taken. 0: any.")] = 8000,
    token: Annotated[
        str | None, Option(help="Require this token as the API key; default: a random one where needed.")
    ] = None,
    name: Annotated[
        str | None, Option(help="The model's name in requests; default: as the hub or its folder has it.")
    ] = None,
    rows: Annotated[
        int | None, Option(min=1, help="Answers generated side by side; default: 256 on a GPU, 8 on a CPU.")
    ] = None,
    context: Annotated[
        int | None, Option(min=16, help="The most tokens of a prompt and its answer; default: the model's.")
    ] = None,
    max_tokens: Annotated[
        int, Option(min=1, help="The most tokens of an answer, where a request names no limit.")
    ] = 2048,
    tool_format: Annotated[
        str, Option(help="How the model writes calls of tools; default: as its chat template does.")
    ] = "auto",
    dtype: Annotated[str | None, Option(help="float32 or bfloat16; default: bfloat16 on a GPU.")] = None,
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    verbose: Annotated[bool, Option("--verbose", "-v", help="Print a line for each request.")] = False,
) -> None:
    """Serve a model over HTTP as OpenAI's API: chat, completions, streaming, tools, log-probabilities.

    \b
      outdo serve runs/NAME
      outdo serve ./model --port 9000 -v
      outdo serve Qwen/Qwen2.5-0.5B-Instruct --host 0.0.0.0
    """
    from outdo.serve.server import EXTRA
    from outdo.web.sockets import bind, check_token, require

    require(*EXTRA)
    check_token(token)
    if dtype not in (None, "float32", "bfloat16"):
        raise RecipeError(f"--dtype {dtype}: use float32 or bfloat16")
    bound = bind(host, port, token)  # first: loading takes a while
    if port not in (0, bound.port):
        _warn(f"port {port} is taken")
    limits = {"rows": rows, "context": context, "max_answer": max_tokens}
    _run(bound, model, name, {"dtype": dtype, "device": device}, tool_format, {**limits, "verbose": verbose})


def _run(
    bound: Bound, model: str, name: str | None, load: dict[str, Any], tool_format: str, options: dict[str, Any]
) -> None:
    """Loads the model and serves it until it is interrupted."""
    from outdo.cli.keys import name_model
    from outdo.models.load import load_policy, pick_device
    from outdo.models.tool_formats import FORMATS
    from outdo.serve.server import serve as run_server
    from outdo.serve.start import name_of, open_api

    if tool_format not in ("auto", *FORMATS):
        raise RecipeError(f"--tool-format {tool_format}: use auto or one of {', '.join(FORMATS)}")
    found = name_model(model)
    dtype = load["dtype"] or ("bfloat16" if pick_device(load["device"]).type == "cuda" else "float32")
    policy = load_policy(found, dtype=dtype, device=load["device"])
    options["notify"] = _print if options.pop("verbose") else None
    form = FORMATS.get(tool_format)
    with open_api(policy, name or name_of(found), tool_format=form, warn=_warn, **options) as api:
        print(f"outdo serve: {api.model} at {bound.origin}/v1  (stop with Ctrl-C)")
        if not policy.renderer.has_template:
            _warn("the tokenizer has no chat template: a chat's messages are joined, and roles are not marked")
        _print(_example(bound.origin, bound.token))
        run_server(api, bound)


def _example(origin: str, token: str | None) -> str:
    """A line for a shell."""
    body = json.dumps({"messages": [{"role": "user", "content": "12+30"}], "max_tokens": 64})
    key = f" -H 'Authorization: Bearer {token}'" if token else ""
    return f"curl {origin}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def _print(line: str) -> None:
    print(line, flush=True)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
