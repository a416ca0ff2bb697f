"""`outdo chat`."""

from __future__ import annotations

import secrets
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from outdo.cli.app import app
from outdo.cli.keys import given_options, read_keys, refuse_both, split_models
from outdo.errors import ModelError, RecipeError, TaskError

if TYPE_CHECKING:
    from outdo.rollout.chat import Conversation, Reply

HELP = "/reset clears the conversation, /quit or Ctrl-D exits, Ctrl-C stops an answer; \\ at a line's end continues it"
OPTION_KEYS = {  # option -> the recipe's key
    "system": "system_prompt",
    **{name: name for name in ("temperature", "top_p", "max_completion_length", "seed", "dtype", "device")},
}
TOOL_KEYS = (
    *("tools", "environment_factory", "environment_args", "max_turns", "max_tool_calling_iterations"),
    *("tool_timeout", "tool_format"),
)
KEYS = ("top_k", "min_p", "stop", *OPTION_KEYS.values(), *TOOL_KEYS)


@app.command()
def chat(
    context: Context,
    words: Annotated[
        list[str],
        Argument(
            metavar="MODEL [key=value …]", help="A Hugging Face folder, a hub name, or a run; and keys of a recipe."
        ),
    ],
    prompt: Annotated[
        str | None, Option("--prompt", "-p", help="Answer this and exit; -: read standard input.")
    ] = None,
    system: Annotated[str | None, Option(help="A system prompt.")] = None,
    tools: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Tools that the model may call: calculator, python, search:FOLDER, file.py:function. A .json file: "
            "schemas that it is shown.",
        ),
    ] = None,
    temperature: Annotated[float, Option(min=0.0, help="0: greedy.")] = 0.7,
    top_p: Annotated[float, Option(min=0.0, max=1.0, help="Nucleus sampling; 1: all tokens.")] = 1.0,
    max_completion_length: Annotated[int, Option(min=1, help="The most tokens of an answer.")] = 512,
    seed: Annotated[int | None, Option(min=0, help="Makes answers reproducible; default: random.")] = None,
    dtype: Annotated[str, Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Chat with a model. Answers are shown while they are generated.

    \b
      outdo chat runs/NAME
      outdo chat runs/NAME -p "12+30" --temperature 0
      cat question.txt | outdo chat ./model --system "Answer in one sentence."
      outdo chat Qwen/Qwen3-0.6B --tools calculator,python
    """
    from outdo.models.load import load_policy
    from outdo.recipe.parse import parse_overrides
    from outdo.rollout.chat import Conversation
    from outdo.rollout.play import play_of
    from outdo.types import SampleParams

    (model,), pairs = split_models(words, most=1)
    keys = parse_overrides(pairs)
    refuse_both(keys, given_options(context), OPTION_KEYS | {"tools": "tools"})
    schemas: list[Any] = []
    if tools and tools.endswith(".json"):
        schemas = _schemas(Path(tools))
    elif tools:
        keys["tools"] = tools
    values = {key: context.params[option] for option, key in OPTION_KEYS.items()}
    if keys.get("temperature") == 0:  # greedy, which a recipe does not have
        values["temperature"] = keys.pop("temperature")
    recipe, given = read_keys(keys, KEYS)
    values |= {key: getattr(recipe, key) for key in given - set(TOOL_KEYS)}
    if values["dtype"] not in ("float32", "bfloat16"):
        raise RecipeError(f"--dtype {dtype}: use float32 or bfloat16")
    system, seed = values.pop("system_prompt"), values.pop("seed")
    model_options = {"dtype": values.pop("dtype"), "device": values.pop("device")}
    try:
        params = SampleParams(**{**values, "stop": tuple(values.get("stop", ()))})
    except ValueError as error:
        raise RecipeError(str(error)) from None
    play = play_of(recipe)
    text = _single_prompt(prompt)
    policy = load_policy(model, **model_options)
    talk = Conversation(policy, params, system, secrets.randbits(62) if seed is None else seed, schemas, play)
    if text is not None:
        reply = _answer(talk, text)
        raise Exit(130 if reply.finish == "interrupted" else 0)
    _converse(talk, model)


def _schemas(path: Path) -> list[Any]:
    from outdo.tasks.files import read_json

    tools = read_json(path)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RecipeError(f"--tools {path}: must be a list of JSON schemas, one for each function")
    return tools


def _single_prompt(prompt: str | None) -> str | None:
    """The prompt given by -p, or by standard input where that is not a terminal; None: a conversation."""
    if prompt in (None, "-") and sys.stdin is None:
        raise RecipeError("standard input is closed: give the prompt with -p")
    if prompt is None and sys.stdin.isatty():
        return None
    try:
        text = sys.stdin.read().strip() if prompt in (None, "-") else str(prompt)
        text.encode()  # a shell may pass invalid bytes, too
    except UnicodeError:
        raise RecipeError("the prompt is not valid UTF-8 text") from None
    if not text.strip():
        raise RecipeError("the prompt is empty: nothing to answer")
    return text


def _converse(talk: Conversation, model: str) -> None:
    with suppress(ImportError):
        import readline  # line editing and history

        readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
    print(f"{model}: {HELP}")
    if not talk.has_template:
        print("The tokenizer has no chat template: the model continues your text, and roles are not marked")
    interrupted = False
    while (text := _message(interrupted)) not in (None, "/quit", "/exit"):
        assert text is not None
        interrupted = _turn(talk, text)


def _message(interrupted: bool) -> str | None:
    """The next message; None to exit. A second interrupt in a row exits, too."""
    while True:
        try:
            return _read().strip()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("" if interrupted else "\n(Ctrl-C again or Ctrl-D exits)")
            if interrupted:
                return None
            interrupted = True


def _turn(talk: Conversation, text: str) -> bool:
    """Runs a command or answers a message; True where it was interrupted."""
    from outdo.untrusted.terminal import printable

    if text == "/reset":
        talk.reset()
        print("(conversation cleared)")
    elif text.startswith("/") and text[1:].isascii() and text[1:].isalpha():
        print(f"{text} is not a command. {HELP}")
    elif text:
        try:
            return _answer(talk, text).finish == "interrupted"
        except (TaskError, ModelError) as error:
            print(f"({printable(str(error))})")
        except KeyboardInterrupt:  # before its first token
            print()
            return True
    return False


def _answer(talk: Conversation, text: str) -> Reply:
    """Shows the answer on standard output; calls, their results and remarks on standard error."""
    from outdo.untrusted.terminal import printable

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    def note(line: str) -> None:
        print(line, end="", file=sys.stderr, flush=True)

    reply = talk.ask(text, show, note)
    print(flush=True)
    if reply.broken:
        print(f"({printable(reply.broken)})", file=sys.stderr)
    if reply.forgotten:
        turns = "turn was" if reply.forgotten == 1 else f"{reply.forgotten} turns were"
        print(f"(the context is full: the oldest {turns} dropped)", file=sys.stderr)
    if reply.out_of_turns:
        print("(out of turns: max_turns= and max_tool_calling_iterations= allow more)", file=sys.stderr)
    elif reply.finish == "length":
        limit = talk.params.max_completion_length
        print(f"(cut at {limit} tokens: --max-completion-length allows more)", file=sys.stderr)
    elif reply.finish == "interrupted":
        print("(stopped)", file=sys.stderr)
    return reply


def _read() -> str:
    """A message: a line, or several that were pasted together or end in a backslash."""
    lines = [input("> ")]
    while True:
        if lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input("… "))
        elif _has_input():
            lines.append(input())
        else:
            return "\n".join(lines)


def _has_input() -> bool:
    """Whether more lines are waiting: then they were pasted, not typed."""
    return bool(select.select([sys.stdin], [], [], 0.05)[0])
