"""Generates recipes.md, graders.md, playbook.md, and tables in runs.md, backends.md and foreign.md: `make docs`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from outdo.bridges import keys
from outdo.doctor import playbook
from outdo.metrics.catalogue import as_table
from outdo.recipe import foreign
from outdo.recipe.reward_names import ALIASES
from outdo.recipe.schema import REGISTRIES, Recipe, registered_names
from outdo.rewards.registry import GRADERS
from outdo.runs.foreign import names

HERE = Path(__file__).parent
FIELD = re.compile(r"    (\w+): (.+?) = (.+?)(?:  # (.*))?$")
SECTION = re.compile(r"    # --- (.+)$")
NOTE = re.compile(r"    # (.+)$")  # above a field: the first part of its comment

HEAD = """# Recipes

A recipe is a flat YAML file of `key: value` lines; `key=value` on the command line overrides it, and so does `--key
value`, as in TRL's commands (`--learning_rate 1e-5`, `--reward_funcs numeric format`, `--use_peft`). An unknown key
is refused with the nearest name. Keys have TRL's names where TRL has one. The text after `=` is used as typed,
including `#` and colons; put a text that looks like a number in quotes of its own (`run_name='"12"'`).

```bash
outdo train --dry-run recipes/arithmetic.yaml num_generations=16
outdo train recipes/variant_dapo.yaml seed=1
outdo train --config recipes/variant_dapo.yaml --learning_rate 1e-4 --max_steps 2 --sft_steps 5 --eval_size 4
```

The defaults depend on the command:

| command | defaults |
| --- | --- |
| `outdo train`, with or without keys, for the tiny model | [recipes/arithmetic.yaml](../recipes/arithmetic.yaml) |
| `outdo train model_name_or_path=…`, any other model | the tables below |
| `outdo train RECIPE.yaml` | the tables below, whatever the model |

Where no batch is set and `num_generations` does not divide the default, the nearest `per_device_train_batch_size`
that it divides is chosen and reported. A function, `file.py:function` or `module:function`, is searched in the
working folder first, and then beside the recipe.

The tables' defaults are conservative: 8 answers to one prompt per step, and a learning rate of 1e-6. Set
`per_device_train_batch_size` and `learning_rate` for your model; `--dry-run` shows the values that a run would use.
"""

OTHER_TRAINERS = """YAML files of TRL and open-r1 run unchanged. Each of their keys is one of ours, translated to one
of ours, ignored because it does not affect training here, or refused with what to use instead. The run reports what
was translated, and what was ignored and why. `bf16: true` becomes `dtype: bfloat16`, `dataset_prompt_column` becomes
`columns.prompt`, `lr_scheduler_kwargs` sets `min_lr_rate`, `max_steps: -1` leaves the length to `num_train_epochs`,
and `eval_strategy: "no"` becomes `eval_steps: 0` and `epoch` becomes `eval_epochs: 1`; `eval_steps` and `save_steps`
below 1 are shares of `max_steps`, and `max_grad_norm: 0` does not clip.

Keys that are not in the file have our defaults, which are not always theirs, and the run says so: `loss_type` is
`grpo` here and `dapo` in TRL; `lr_scheduler_type` is `constant` here and `linear` in transformers; `adv_std` is
`population` here, and TRL divides by the sample's standard deviation (`adv_std: sample`), plus the same `adv_eps` of
1e-4; where `beta` is above 0, `use_bias_correction_kl` is false here and true in TRL. With the same keys the numbers
are the same: [results/trl_numbers.md](results/trl_numbers.md).

`deepspeed` (a path or a mapping), `fsdp` and `fsdp_config` become `parallel_sharding`, `parallel_offload` and keys for
clipping, precision, batch and optimizer; [parallel.md](parallel.md#configurations-of-other-launchers) has the table."""


def key_tables() -> list[str]:
    """A table for each section of the recipe's class."""
    lines: list[str] = []
    note = ""
    for line in inspect.getsource(Recipe).splitlines():
        if section := SECTION.match(line):
            lines += [
                "",
                f"## {section[1][0].upper()}{section[1][1:]}",
                "",
                "| key | default | |",
                "| --- | --- | --- |",
            ]
        elif above := NOTE.match(line):
            note = above[1]
        elif (field := FIELD.match(line)) and field[1] in Recipe.model_fields:
            default = format_value(Recipe.model_fields[field[1]].get_default())
            parts = (note, (field[4] or "").replace("|", "\\|"), ", ".join(choices(field[1])))
            lines.append(f"| `{field[1]}` | `{default or '-'}` | {'; '.join(part for part in parts if part)} |")
            note = ""
    return lines


def choices(key: str) -> tuple[str, ...]:
    """The names that a key may have; empty where any value of its type will do."""
    if key in REGISTRIES:
        return registered_names(key)
    annotation = Recipe.model_fields[key].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def other_trainers() -> list[str]:
    """Other trainers' keys: translated, ignored or refused."""
    lines = ["", "## Files of other trainers", "", OTHER_TRAINERS, "", "| other name | here |", "| --- | --- |"]
    lines += [f"| `{other}` | `{key}` |" for other, key in foreign.SYNONYMS.items()]
    lines += [f"| the reward `{other}` | `{name}` |" for other, name in ALIASES.items()]
    lines += ["", "Ignored, because they do not affect training here:", "", "| key | reason |", "| --- | --- |"]
    ignored = {**foreign.IGNORED, **{f"{prefix}…": why for prefix, why in foreign.IGNORED_PREFIXES.items()}}
    lines += [f"| `{key}` | {why} |" for key, why in sorted(ignored.items())]
    lines += ["", "Refused unless they have this value:", "", "| key | value | instead |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | `{format_value(only)}` | {hint} |" for key, (only, hint) in foreign.ONLY.items()]
    lines += ["", "Refused:", "", "| key | instead |", "| --- | --- |"]
    return lines + [f"| `{key}` | {hint} |" for key, hint in foreign.INSTEAD.items()]


def format_value(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def page() -> str:
    return HEAD + "\n".join([*key_tables(), *other_trainers()]) + "\n"


GRADERS_HEAD = """# Graders

The built-in graders, as `outdo graders` prints them. See [rewards.md](rewards.md) for how they run and for your own.
"""


def graders_page() -> str:
    lines = [GRADERS_HEAD, "| name | pays | needs | rejects |", "| --- | --- | --- | --- |"]
    for name, grader in GRADERS.items():
        cells = (f"`{name}`", grader.pays, ", ".join(f"`{need}`" for need in grader.needs), grader.rejects)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def with_names(text: str) -> str:
    """foreign.md with the table of names at its end."""
    return f"{text.partition('| outdo | other trainers |')[0]}{names.as_table()}"


def with_signals(text: str) -> str:
    """runs.md with the catalogue's table under its heading."""
    head, rest = text.split("## The signals\n\n", 1)
    after = rest.split("\n## ", 1)[1]
    return f"{head}## The signals\n\n{as_table()}\n## {after}"


def with_backend_keys(text: str) -> str:
    """backends.md with the tables of keys under their headings."""
    defaults = Recipe.model_fields
    refused = [
        f"| `{key}` | {', '.join(map(_quoted, values))} | {why} |" for key, (values, why) in keys.ONLY.items() if why
    ]
    different = [f"| `{key}` | {why.format(**WORDS)} |" for key, (_, why) in keys.DIFFERENT.items()]
    passed = [f"`{key}`" for key in (*keys.SAME, *keys.TRANSLATED) if key in defaults]
    parts = {
        "Refused unless they have this value": ["| key | value | why |", "| --- | --- | --- |", *refused],
        "Named with both meanings": ["| key | |", "| --- | --- |", *different],
        "Passed on": [", ".join(passed) + "."],
    }
    for heading, lines in parts.items():
        before, rest = text.split(f"### {heading}\n", 1)
        level, after = ("### ", rest.split("\n### ", 1)[1]) if "\n### " in rest else ("## ", rest.split("\n## ", 1)[1])
        text = f"{before}### {heading}\n\n" + "\n".join(lines) + f"\n\n{level}{after}"
    return text


def _quoted(value: object) -> str:
    return f"`{format_value(value) or repr('')}`"


WORDS = {"name": "TRL", "updates": "those of all batches", "answers": "as many"}

if __name__ == "__main__":
    (HERE / "recipes.md").write_text(page())
    (HERE / "graders.md").write_text(graders_page())
    (HERE / "playbook.md").write_text(playbook.page())
    (HERE / "backends.md").write_text(with_backend_keys((HERE / "backends.md").read_text()))
    (HERE / "runs.md").write_text(with_signals((HERE / "runs.md").read_text()))
    (HERE / "foreign.md").write_text(with_names((HERE / "foreign.md").read_text()))
