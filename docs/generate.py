"""Writes docs/recipes.md and docs/graders.md from the code, so that the two cannot differ: `make docs`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from outdo import config
from outdo.grade.registry import GRADERS

HERE = Path(__file__).parent
FIELD = re.compile(r"    (\w+): (.+?) = (.+?)(?:  # (.*))?$")
SECTION = re.compile(r"    # --- (.+)$")

HEAD = """# Recipes

A recipe is a flat YAML file of `key: value`; `key=value` on the command line goes over it; anything unknown is refused
with the nearest name. Names are TRL's where TRL has one.

```bash
outdo train --dry-run recipes/arithmetic.yaml num_generations=16
outdo train recipes/variant_dapo.yaml seed=1
```
"""


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
            shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else f"{default}"
            lines.append(f"| `{found[1]}` | `{shown or '-'}` | {explained(found[1], found[4] or '')} |")
    return lines


def explained(key: str, comment: str) -> str:
    choices = re.match(r"typing.Literal\[(.*)\]", str(config.Recipe.model_fields[key].annotation))
    listed = ", ".join(word.strip().strip("'") for word in choices[1].split(",")) if choices else ""
    return "; ".join(part for part in (comment.replace("|", "\\|"), listed) if part)


def synonyms() -> list[str]:
    lines = ["", "## Other names for the same knob", "", "| you may know it as | here |", "| --- | --- |"]
    lines += [f"| `{other}` | `{key}` |" for other, key in config.SYNONYMS.items()]
    lines += ["", "Keys of other trainers that have no counterpart:", "", "| key | instead |", "| --- | --- |"]
    return lines + [f"| `{key}` | {hint} |" for key, hint in config.INSTEAD.items()]


def page() -> str:
    return HEAD + "\n".join([*rows(), *synonyms()]) + "\n"


GRADERS_HEAD = """# Graders

What is built in, as `outdo graders` prints it. How they run, and your own, is in [rewards.md](rewards.md).
"""


def graders_page() -> str:
    lines = [GRADERS_HEAD, "| name | pays | needs | refuses |", "| --- | --- | --- | --- |"]
    for name, grader in GRADERS.items():
        cells = (f"`{name}`", grader.pays, ", ".join(f"`{need}`" for need in grader.needs), grader.refuses)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "recipes.md").write_text(page())
    (HERE / "graders.md").write_text(graders_page())
