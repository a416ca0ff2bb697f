"""Writes recipes.md, graders.md, playbook.md and the table in runs.md from the code: `make docs`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from outdo.doctor import words
from outdo.metrics.catalogue import as_table
from outdo.recipe import foreign
from outdo.recipe import schema as config
from outdo.rewards.registry import GRADERS

HERE = Path(__file__).parent
FIELD = re.compile(r"    (\w+): (.+?) = (.+?)(?:  # (.*))?$")
SECTION = re.compile(r"    # --- (.+)$")

HEAD = """# Recipes

A recipe is a flat YAML file of `key: value`; `key=value` on the command line goes over it; anything unknown is refused
with the nearest name. Names are TRL's where TRL has one. What stands after `=` is taken as it was typed, with its `#`
and colons; a text that looks like a number is put in quotes of its own (`run_name='"12"'`).

```bash
outdo train --dry-run recipes/arithmetic.yaml num_generations=16
outdo train recipes/variant_dapo.yaml seed=1
```

What you leave out has a default, and which one depends on how the run is named:

| | what is left out is as in |
| --- | --- |
| `outdo train`, with keys or without, for the tiny model | [recipes/arithmetic.yaml](../recipes/arithmetic.yaml) |
| `outdo train model_name_or_path=…`, any other model | the tables below |
| `outdo train RECIPE.yaml` | the tables below, whatever the model |

The tables' defaults are careful and small: a step of 8 answers to one prompt, at a rate of 1e-6. Set
`per_device_train_batch_size` and `learning_rate` for your model; `--dry-run` shows what holds.
"""

ALIKE = """The YAML that users of TRL and open-r1 have runs as it is. Every key of it is one of ours, or says the same
in another form, or decides nothing that is learnt here, or is refused with what to use instead. What was understood is
said once. `bf16: true` is `dtype: bfloat16`, `dataset_prompt_column` is `columns.prompt`, `lr_scheduler_kwargs` gives
`min_lr_rate`, `max_steps: -1` leaves the length to `num_train_epochs`, and `eval_strategy: "no"` is `eval_steps: 0`.

What a file leaves out has our default, which is not always theirs: `loss_type` is `grpo` here and `dapo` in TRL,
`lr_scheduler_type` is `constant` here and `linear` in transformers."""


def rows() -> list[str]:
    """A table for each section of the recipe's class."""
    lines: list[str] = []
    for line in inspect.getsource(config.Recipe).splitlines():
        if section := SECTION.match(line):
            lines += [
                "",
                f"## {section[1][0].upper()}{section[1][1:]}",
                "",
                "| key | default | |",
                "| --- | --- | --- |",
            ]
        elif (found := FIELD.match(line)) and found[1] in config.Recipe.model_fields:
            default = config.Recipe.model_fields[found[1]].get_default()
            lines.append(f"| `{found[1]}` | `{shown(default) or '-'}` | {explained(found[1], found[4] or '')} |")
    return lines


def explained(key: str, comment: str) -> str:
    choices = re.match(r"typing.Literal\[(.*)\]", str(config.Recipe.model_fields[key].annotation))
    listed = ", ".join(word.strip().strip("'") for word in choices[1].split(",")) if choices else ""
    return "; ".join(part for part in (comment.replace("|", "\\|"), listed) if part)


def synonyms() -> list[str]:
    """What other trainers' keys come to: ours, nothing, or a refusal."""
    lines = ["", "## Files of other trainers", "", ALIKE, "", "| you may know it as | here |", "| --- | --- |"]
    lines += [f"| `{other}` | `{key}` |" for other, key in foreign.SYNONYMS.items()]
    lines += [f"| the reward `{other}` | `{name}` |" for other, name in foreign.REWARDS.items()]
    lines += ["", "Passed over, because they decide nothing that is learnt:", "", "| key | why |", "| --- | --- |"]
    idle = {**foreign.IDLE, **{f"{prefix}…": why for prefix, why in foreign.IDLE_PREFIXES.items()}}
    lines += [f"| `{key}` | {why} |" for key, why in sorted(idle.items())]
    lines += ["", "Refused where they ask for anything else:", "", "| key | value | instead |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | `{shown(only)}` | {hint} |" for key, (only, hint) in foreign.ONLY.items()]
    lines += ["", "Refused:", "", "| key | instead |", "| --- | --- |"]
    return lines + [f"| `{key}` | {hint} |" for key, hint in foreign.INSTEAD.items()]


def shown(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def page() -> str:
    return HEAD + "\n".join([*rows(), *synonyms()]) + "\n"


GRADERS_HEAD = """# Graders

The built-in graders, as `outdo graders` prints them. See [rewards.md](rewards.md) for how they run and for your own.
"""


def graders_page() -> str:
    lines = [GRADERS_HEAD, "| name | pays | needs | rejects |", "| --- | --- | --- | --- |"]
    for name, grader in GRADERS.items():
        cells = (f"`{name}`", grader.pays, ", ".join(f"`{need}`" for need in grader.needs), grader.rejects)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def with_signals(text: str) -> str:
    """runs.md with the catalogue's table under its heading."""
    head, rest = text.split("## The signals\n\n", 1)
    after = rest.split("\n## ", 1)[1]
    return f"{head}## The signals\n\n{as_table()}\n## {after}"


if __name__ == "__main__":
    (HERE / "recipes.md").write_text(page())
    (HERE / "graders.md").write_text(graders_page())
    (HERE / "playbook.md").write_text(words.page())
    (HERE / "runs.md").write_text(with_signals((HERE / "runs.md").read_text()))
