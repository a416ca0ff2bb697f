"""`outdo harvest`: a model's own right answers, as demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from outdo.cli.app import app
from outdo.cli.keys import given_options, read_keys, refuse_both, split_models
from outdo.cli.train import exit_on_signal
from outdo.errors import RecipeError
from outdo.runs.outputs import refuse_file
from outdo.untrusted.terminal import PrintableConsole

SAME_NAME = ("temperature", "top_p", "max_completion_length", "system_prompt", "dtype", "device", "seed")
OPTION_KEYS = {  # option -> the recipe's key
    **{"task": "dataset_name", "task_arg": "task_args", "reward": "reward_funcs"},
    **{name: f"harvest_{name}" for name in ("samples", "size", "keep", "teacher")},
    **{name: name for name in SAME_NAME},
}
KEYS = (  # of a recipe, that decide a harvest
    *("dataset_mixture", "columns", "dataset_config", "dataset_train_split", "dataset_test_split", "max_prompt_length"),
    *("top_k", "min_p", "stop", "sampler", "rollout_rows", "rollout_memory", "load_in_4bit", "use_peft"),
    *("reward_weights", "reward_gate", "reward_timeout", *OPTION_KEYS.values()),
)


@app.command()
def harvest(
    context: Context,
    words: Annotated[
        list[str],
        Argument(metavar="MODEL [key=value …]", help="A model's folder or name, or a run; and keys of a recipe."),
    ],
    task: Annotated[str, Option(help="A task's name, a .jsonl file, or file.py:function.")] = "arithmetic",
    samples: Annotated[int, Option(min=1, help="Answers per prompt.")] = 8,
    size: Annotated[int, Option("--size", "-n", min=0, help="Prompts; 0: all of a finite task.")] = 1000,
    keep: Annotated[int, Option(min=1, help="Distinct right answers to keep per prompt, at most.")] = 4,
    teacher: Annotated[bool, Option("--teacher", help="Add the task's own demonstrations.")] = False,
    out: Annotated[Path, Option("--out", "-o", help="JSON Lines.")] = Path("demonstrations.jsonl"),
    temperature: Annotated[float, Option(min=0.01)] = 1.0,
    top_p: Annotated[float, Option(min=0.01, max=1.0)] = 1.0,
    max_completion_length: Annotated[int, Option(min=1, help="Tokens; truncated answers are dropped.")] = 256,
    split: Annotated[str, Option(help="Of the task.")] = "train",
    reward: Annotated[str | None, Option(help="Judge by this reward instead of the task's own.")] = None,
    task_arg: Annotated[list[str] | None, Option("--task-arg", help="key=value for the task.")] = None,
    system_prompt: Annotated[str | None, Option(help="Put before every prompt.")] = None,
    dtype: Annotated[str, Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, Option(min=0, help="Of the samples.")] = 0,
) -> None:
    """Rejection sampling: sample many answers and keep the distinct right ones, as demonstrations for SFT.

    The same command resumes a harvest that was stopped. Settings may also be given by the recipe's keys: top_k=50.

    \b
      outdo harvest runs/NAME --task arithmetic --task-arg ops=+ --samples 16 --out right.jsonl
      outdo sft model_name_or_path=./model sft_dataset_name=right.jsonl epochs=2
    """
    from outdo.parallel.world import joined
    from outdo.recipe.parse import parse_overrides
    from outdo.training.console import make_reporter
    from outdo.training.context import make_context
    from outdo.training.harvest import harvest_to
    from outdo.training.stages import prefixed

    refuse_file(out, over=True)  # a file that is not this harvest's is refused where it is opened
    (model,), pairs = split_models(words, most=1)
    options = given_options(context)
    keys = prefixed("harvest", parse_overrides(pairs))
    refuse_both(keys, options, OPTION_KEYS)
    keys |= {OPTION_KEYS[name]: value for name, value in options.items() if name in OPTION_KEYS}
    if task_arg:
        keys["task_args"] = parse_overrides(task_arg)
    recipe, _ = read_keys(keys, KEYS)
    recipe = recipe.model_copy(update={"model_name_or_path": model})
    run = make_context(recipe, kind="harvest", reporter=make_reporter(PrintableConsole()))
    if not recipe.harvest_size and not run.task.finite:
        raise RecipeError(f"--size 0: task {recipe.dataset_name} generates problems endlessly; give a number")
    with exit_on_signal("run the same command to resume"), joined(recipe.parallel_timeout, recipe.device):
        harvest_to(run, out, split)
