"""The application that commands register with."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

# The order and headings of `outdo --help`; a command that is not listed comes last.
SECTIONS = {
    "Train": ("train", "sft", "harvest", "sweep", "convert"),
    "Inspect runs": ("dash", "doctor", "drill", "compare", "report", "plot"),
    "Use a model": ("eval", "chat", "serve", "export", "push"),
    "Tasks and rewards": ("tasks", "graders", "grade", "audit"),
}


class Sections(TyperGroup):
    """Lists commands under headings, each with its full first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = [name for names in SECTIONS.values() for name in names]
        rest = tuple(name for name in self.list_commands(ctx) if name not in named)
        for head, names in {**SECTIONS, "More": rest}.items():
            commands = [(name.ljust(max(map(len, named))), self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(limit=200)) for name, command in commands if command]
            if rows:
                with formatter.section(head):
                    formatter.write_dl(rows)


class OptionalCount(TyperCommand):
    """A command whose option --answers may leave its number out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = zip(args, [*args[1:], ""], strict=True)
        lacks = [word == "--answers" and not following.isdecimal() for word, following in pairs]
        args = [f"{word}=5" if lack else word for word, lack in zip(args, lacks, strict=True)]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Sections,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Trains language models with GRPO on verifiable rewards.

\b
  outdo train
  outdo train recipes/arithmetic.yaml seed=1
  outdo train --dry-run num_generations=16
  outdo train dataset_name=my.jsonl reward_funcs=rewards.py:score model_name_or_path=./model
  outdo eval runs/NAME
  outdo chat runs/NAME
  outdo serve runs/NAME

`outdo COMMAND --help` has more examples.
""",
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"outdo {version('outdo')}")
        raise typer.Exit


@app.callback()
def outdo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...
