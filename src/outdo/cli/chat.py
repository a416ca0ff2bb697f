"""`outdo chat`."""

from __future__ import annotations

import secrets
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from outdo.cli.app import app
from outdo.cli.keys import given_options, read_keys, refuse_both, split_models
from outdo.errors import ModelError, RecipeError, TaskError

if TYPE_CHECKING:
    from outdo.rollout.chat import Conversation, Reply

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer; \\ at a line's end goes on"
OPTION_KEYS = {  # option -> the recipe's key
    "system": "system_prompt",
    **{name: name for name in ("temperature", "top_p", "max_completion_length", "seed", "dtype", "device")},
}
KEYS = ("top_k", "min_p", "stop", *OPTION_KEYS.values())


@app.command()
def chat(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [key=value …]", help="A Hugging Face folder, a hub name, or a run; and keys of a recipe."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Answer this and end; -: standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token.")] = 0.7,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the likeliest tokens, this share.")] = 1.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="The same again; default: another each time.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Talk with a model. Answers are shown as they are written.

    \b
      outdo chat runs/NAME
      outdo chat runs/NAME -p "12+30" --temperature 0
      cat question.txt | outdo chat ./model --system "Answer in one sentence."
    """
    from outdo.models.load import load_policy
    from outdo.recipe.parse import parse_overrides
    from outdo.rollout.chat import Conversation
    from outdo.types import SampleParams

    (model,), pairs = split_models(words, most=1)
    keys = parse_overrides(pairs)
    refuse_both(keys, given_options(context), OPTION_KEYS)
    values = {key: context.params[option] for option, key in OPTION_KEYS.items()}
    if keys.get("temperature") == 0:  # greedy, which a recipe does not have
        values["temperature"] = keys.pop("temperature")
    recipe, given = read_keys(keys, KEYS)
    values |= {key: getattr(recipe, key) for key in given}
    if values["dtype"] not in ("float32", "bfloat16"):
        raise RecipeError(f"--dtype {dtype}: use float32 or bfloat16")
    system, seed = values.pop("system_prompt"), values.pop("seed")
    model_options = {"dtype": values.pop("dtype"), "device": values.pop("device")}
    try:
        params = SampleParams(**{**values, "stop": tuple(values.get("stop", ()))})
    except ValueError as error:
        raise RecipeError(str(error)) from None
    once = _asked(prompt)
    policy = load_policy(model, **model_options)
    talk = Conversation(policy, params, system, secrets.randbits(62) if seed is None else seed)
    if once is not None:
        reply = _answer(talk, once)
        raise typer.Exit(130 if reply.finish == "interrupted" else 0)
    _converse(talk, model)


def _asked(prompt: str | None) -> str | None:
    """What is asked by -p, or by standard input where that is no terminal; None: there is a conversation."""
    if prompt in (None, "-") and sys.stdin is None:
        raise RecipeError("standard input is closed, so there is nobody to talk with: ask with -p")
    if prompt is None and sys.stdin.isatty():
        return None
    try:
        text = sys.stdin.read().strip() if prompt in (None, "-") else str(prompt)
        text.encode()  # what a shell handed over may be no text either
    except UnicodeError:
        raise RecipeError("the prompt is not text in UTF-8: there is nothing to answer") from None
    if not text.strip():
        raise RecipeError("there is nothing to answer: the prompt is empty")
    return text


def _converse(talk: Conversation, model: str) -> None:
    with suppress(ImportError):
        import readline  # lines can be edited, and come back with the arrow keys

        readline.parse_and_bind("set enable-bracketed-paste on")  # what is pasted is one message, whatever its lines
    print(f"{model}: {HELP}")
    if not talk.has_template:
        print("Its tokenizer has no chat template: it goes on with your text, and does not know who said what")
    interrupted = False
    while (text := _message(interrupted)) not in (None, "/quit", "/exit"):
        assert text is not None
        interrupted = _turn(talk, text)


def _message(interrupted: bool) -> str | None:
    """The next thing said; None to leave. An interrupt right after an interrupt leaves too."""
    while True:
        try:
            return _read().strip()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("" if interrupted else "\n(Ctrl-C again or Ctrl-D leaves)")
            if interrupted:
                return None
            interrupted = True


def _turn(talk: Conversation, text: str) -> bool:
    """Does what was said; True where it was interrupted."""
    from outdo.rollout.chat import printable

    if text == "/reset":
        talk.reset()
        print("(forgotten)")
    elif text.startswith("/") and text[1:].isascii() and text[1:].isalpha():
        print(f"{text} is no command here. {HELP}")
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
    """Shows the answer on standard output, and what there is to say of it on standard error."""

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    reply = talk.ask(text, show)
    print(flush=True)
    if reply.forgotten:
        oldest = "oldest turn is" if reply.forgotten == 1 else f"{reply.forgotten} oldest turns are"
        print(f"(the context is full: the {oldest} forgotten)", file=sys.stderr)
    if reply.finish == "length":
        limit = talk.params.max_completion_length
        print(f"(cut at {limit} tokens: --max-completion-length allows more)", file=sys.stderr)
    elif reply.finish == "interrupted":
        print("(stopped)", file=sys.stderr)
    return reply


def _read() -> str:
    """A message: a line, or several that were pasted at once or end in a backslash."""
    lines = [input("> ")]
    while True:
        if lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input("… "))
        elif _waiting():
            lines.append(input())
        else:
            return "\n".join(lines)


def _waiting() -> bool:
    """Whether more lines are there already: nobody types so fast."""
    return bool(select.select([sys.stdin], [], [], 0.05)[0])
