"""`outdo eval`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from outdo.cli.app import app
from outdo.cli.keys import given_options, read_keys, refuse_both, split_models
from outdo.errors import RecipeError, RunError
from outdo.runs.outputs import refuse_file
from outdo.untrusted.terminal import PrintableConsole

if TYPE_CHECKING:
    from outdo.evals.from_recipe import EvalPlan
    from outdo.evals.report import EvalResult
    from outdo.evals.retention import Retention, RetentionTexts
    from outdo.evals.suite import EvalSplit

SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "max_completion_length", "stop", "pass_threshold", "system_prompt"),
    "dtype",
)
OPTION_KEYS = {  # option -> the recipe's key
    **{"task": "dataset_name", "split": "eval_split", "size": "eval_size", "samples": "eval_samples", "k": "eval_ks"},
    **{"reward": "reward_funcs", **{name: name for name in (*SAME_NAME, "device", "seed")}},
}


@app.command("eval")
def evaluate(
    context: Context,
    words: Annotated[
        list[str],
        Argument(
            metavar="MODEL… [key=value …]",
            help="One or more models (Hugging Face folders, hub names, runs), and keys of a recipe.",
        ),
    ],
    task: Annotated[
        str | None,
        Option(help="Task names, .jsonl files or file.py:function; comma-separated. Default: the run's own."),
    ] = None,
    split: Annotated[str, Option(help="test, dev, ood, train, or all for data; comma-separated.")] = "test",
    size: Annotated[str, Option("--size", "-n", help="Problems per split; all (or 0): every one.")] = "200",
    samples: Annotated[int, Option(min=0, help="Samples per problem, for pass@k; 0: greedy only.")] = 10,
    k: Annotated[str, Option("--k", help="The k's of pass@k, comma-separated; default: 1, and 8 or 10.")] = "",
    temperature: Annotated[float, Option(min=0.01, help="Of the samples.")] = 1.0,
    top_p: Annotated[float, Option(min=0.0, max=1.0, help="Of the samples.")] = 1.0,
    top_k: Annotated[int, Option(min=0, help="Of the samples; 0: no limit.")] = 0,
    min_p: Annotated[float, Option(min=0.0, max=1.0, help="Of the samples; 0: no limit.")] = 0.0,
    max_completion_length: Annotated[int, Option(min=1, help="Tokens per answer.")] = 256,
    stop: Annotated[list[str] | None, Option(help="A text that ends an answer; repeatable.")] = None,
    system_prompt: Annotated[str | None, Option(help="Put before every problem.")] = None,
    reward: Annotated[str | None, Option(help="Judge by this reward instead of the task's own.")] = None,
    pass_threshold: Annotated[
        float | None, Option(help="Reward from which an answer is a success; default: 1, or the grader's own.")
    ] = None,
    task_arg: Annotated[
        list[str] | None, Option("--task-arg", help="key=value for every task, TASK.key=value for one.")
    ] = None,
    base: Annotated[str | None, Option(help="Compare with this model; default: the first.")] = None,
    retention: Annotated[
        bool, Option("--retention", help="Also score texts that the base model finds likely: forgetting.")
    ] = False,
    text: Annotated[
        Path | None, Option(help="For --retention: score this file instead of texts by the base model.")
    ] = None,
    also: Annotated[str, Option(help="Further tasks, to see what training cost there; comma-separated.")] = "",
    dtype: Annotated[str, Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, Option(help="Of the samples.")] = 0,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write each answer with its verdict, as JSON Lines.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing --out file.")] = False,
    trust: Annotated[bool, Option("--trust", help="Evaluate another user's run with the code that it names.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Evaluate models on held-out problems: success, pass@k, and whether two models differ.

    A run is evaluated on its own task with its own settings unless you name others; any other model on arithmetic.
    Settings may also be given by the recipe's keys: temperature=0.7 eval_samples=8 task_args.digits=3.

    \b
      outdo eval runs/NAME
      outdo eval runs/NAME top_p=0.95 eval_size=500
      outdo eval ./before ./after --task gsm8k --task-arg data_dir=./gsm8k --size all --samples 8 --k 1,8
      outdo eval ./model --task problems.jsonl --reward numeric --out answers.jsonl
      outdo eval runs/NAME --base ./before --retention --also countdown
    """
    from outdo.evals.loading import checkpoint_notes
    from outdo.evals.retention import RetentionTexts
    from outdo.evals.settings import describe_sampling
    from outdo.parallel.world import joined

    models, pairs = split_models(words)
    if retention and base is None and len(models) < 2:
        raise RecipeError("--retention compares with the model before training: name it with --base")
    if text and not retention:
        raise RecipeError("--text is the text that --retention scores: give both")
    names = list(dict.fromkeys([base, *models] if base else models))
    plan = _plan(names, pairs, given_options(context))
    settings = plan.settings
    suite = plan.suite(_split_list(also))
    for line in checkpoint_notes(names):
        print(line, file=sys.stderr)
    if out:
        refuse_file(out, over=force)
    with joined(device=settings.device) as world:
        results, retained = _evaluate(names, suite, plan, RetentionTexts(text, settings.seed) if retention else None)
    if out and world.is_first:
        _write(out, results)
    if as_json:
        from outdo.evals.report import as_json as dump

        hidden = ("ks", "stop", "device")
        print(dump(results, retained, {name: value for name, value in asdict(settings).items() if name not in hidden}))
    else:
        _show(results, retained, describe_sampling(settings), text)
    for line in _warnings(results, suite):
        print(line, file=sys.stderr)


def _plan(models: Sequence[str], pairs: Sequence[str], options: Mapping[str, Any]) -> EvalPlan:
    """The plan of the first model that a run trained, or the default one, with the keys and options over it."""
    from outdo.evals.from_recipe import KEYS, EvalPlan, merge_task_args, override_plan
    from outdo.recipe.parse import parse_overrides

    for word in options.get("task_arg") or []:
        name = word.partition("=")[0]
        if {name, f"task_args.{name}"} & {pair.partition("=")[0] for pair in pairs}:
            raise RecipeError(f"--task-arg {name} and {name}= set the same: give one of them")
    keys = parse_overrides(pairs)
    refuse_both(keys, options, OPTION_KEYS)
    for name, value in options.items():
        if name in OPTION_KEYS:
            keys[OPTION_KEYS[name]] = PARSERS[name](value) if name in PARSERS else value
    recipe, given = read_keys(keys, KEYS)
    trust = bool(options.get("trust"))
    plan = override_plan(_plan_of_run(models, recipe, given, trust) or EvalPlan(), recipe, given)
    task_args = parse_overrides(options.get("task_arg") or [])
    return replace(plan, task_args=merge_task_args(plan.task_args, task_args, plan.tasks))


def _plan_of_run(models: Sequence[str], overrides: Any, given: set[str], trust: bool) -> EvalPlan | None:
    """How the first of these models that is a run's was evaluated in training. None where there is no run.

    A task that the run was not trained on gets the run's settings and, where it has no verifier of its own, the run's
    reward. Raises RecipeError for a run of several tasks, and for one with code that is not named: to name its folder
    is not to trust it.
    """
    from outdo.cli.eval_command import format_eval_command
    from outdo.evals.from_recipe import (
        evaluated_splits,
        narrow_plans,
        plan_of_other_task,
        plans_from_recipe,
        recipe_of_model,
        split_tasks,
        trained_tasks,
    )

    model, recipe = next(((m, r) for m in models if (r := recipe_of_model(Path(m)))), ("", None))
    if recipe is None:
        return None
    if "eval_sampling" in given:
        recipe = recipe.model_copy(update={"eval_sampling": overrides.eval_sampling})
    tasks = split_tasks(overrides.dataset_name) if "dataset_name" in given else ()
    if tasks and not set(tasks) <= set(trained_tasks(recipe)):
        plan = plan_of_other_task(recipe, tasks, "reward_funcs" in given)
        if not trust:
            _refuse_code(model, recipe, overrides, given | (set() if plan.reward else {"reward_funcs"}))
        print(f"with the run's settings: {format_eval_command(plan, model)}", file=sys.stderr)
        return plan
    if not trust:
        _refuse_code(model, recipe, overrides, given)
    plans = narrow_plans(plans_from_recipe(recipe, evaluated_splits(recipe)), tasks)
    if "reward_funcs" in given:
        plans = [replace(plan, reward=next(iter(overrides.reward_funcs), None)) for plan in plans]
    commands = [format_eval_command(plan, model) for plan in plans]
    if len(plans) > 1:
        raise RecipeError("\n  ".join([f"{model} was trained on several tasks; use one of these:", *commands]))
    print(f"evaluated as the run was: {commands[0]}", file=sys.stderr)
    return plans[0]


def _refuse_code(model: str, recipe: Any, overrides: Any, given: set[str]) -> None:
    """Raises RecipeError for code of the run that the user has not named, nor another function of the same file, nor
    run there before."""
    from outdo.evals.from_recipe import code_names, judge_settings, run_of_model
    from outdo.recipe.trust import code_refs, is_known

    folder = run_of_model(Path(model))
    if folder and is_known(folder, code_refs(recipe.model_dump(mode="json"))):
        return
    again = judge_settings(overrides) if "reward_args" in given else {}
    if missing := {key: value for key, value in judge_settings(recipe).items() if key not in again}:
        words = " ".join(f"{key}={value}" for key, value in missing.items())
        raise RecipeError(f"{model} sends answers to a judge: if you trust its address and key, add {words} or --trust")
    named = [overrides.dataset_name] if "dataset_name" in given else []
    named += overrides.reward_funcs if "reward_funcs" in given else []
    files = {Path(name.partition(":")[0]).resolve() for name in named}
    options = {"dataset_name": "--task", "reward_funcs": "--reward"}
    code = {
        name: option
        for key, option in options.items()
        for name in code_names(recipe, without=given | (options.keys() - {key}))
        if Path(name.partition(":")[0]).resolve() not in files
    }
    if code:
        add = " ".join(f"{option} {name}" for name, option in code.items())
        raise RecipeError(f"{model} was trained with code, {', '.join(code)}: if you trust it, add {add}; or --trust")


def _evaluate(
    names: Sequence[str], suite: Sequence[EvalSplit], plan: EvalPlan, texts: RetentionTexts | None
) -> tuple[list[EvalResult], list[Retention]]:
    """One model after the other; the others are compared with the first."""
    from outdo.cli.progress import progress_bar
    from outdo.evals.loading import run_with_model
    from outdo.evals.suite import evaluate_model

    results: list[EvalResult] = []
    retained: list[Retention] = []
    for name in names:

        def work(policy: Any, name: str = name) -> None:
            results.extend(evaluate_model(name, policy, suite, plan.settings, progress_bar))
            if texts and name == names[0]:
                texts.set_base(name, policy, progress_bar)
            elif texts:
                retained.append(texts.measure(name, policy, progress_bar))

        run_with_model(name, plan.settings, work)
    return results, retained


def _show(results: Sequence[EvalResult], retained: Sequence[Retention], sampling: str, text: Path | None) -> None:
    from outdo.evals.report import by_split, differences, narrow_table, retention_table, short_names, table
    from outdo.training.console import print_whole, width_of

    console = PrintableConsole()
    names = short_names(list(dict.fromkeys(r.model for r in results)))
    for group in by_split(results):
        title = f"{group[0].task} {group[0].split}, {group[0].evaluation.n} problems, {sampling}"
        console.print(title, markup=False, soft_wrap=True)
        wide = table(group, names)
        print_whole(console, wide if width_of(wide) <= console.width else narrow_table(group, names))
        if len(group) > 1:
            print_whole(console, differences(group, names))
        for line in (line for r in group for line in _remarks(r, names[r.model])):
            console.print(line, markup=False, soft_wrap=True)
        console.print()
    if retained:
        source = f"of {text}" if text else f"that {names[retained[0].base]} wrote to everyday questions"
        console.print(f"retention, on {retained[0].tokens:,} tokens {source}", markup=False, soft_wrap=True)
        print_whole(console, retention_table(retained, names))


def _warnings(results: Sequence[EvalResult], suite: Sequence[EvalSplit]) -> list[str]:
    """Each once, however many models it holds for."""
    from outdo.evals.remarks import few_problems, unreachable_success

    prompts = {(part.task, part.split): part.prompts for part in suite}
    lines = [few_problems([result.evaluation]) for result in results]
    for result in results:
        if result.answers.rewards:
            given = result.evaluation, result.answers.rewards, prompts[result.task, result.split]
            lines.append(unreachable_success(*given))
    return list(dict.fromkeys(filter(None, lines)))


def _remarks(result: EvalResult, name: str) -> Iterator[str]:
    if result.evaluation.unjudged:
        yield f"{name}: {result.evaluation.unjudged}"
    if result.evaluation.too_long:
        yield f"{name}: skipped {result.evaluation.too_long:,} problems that are too long for its context"
    if result.cut > 0.05:
        yield f"{name}: {result.cut:.0%} of greedy answers were cut at max_completion_length"


def _split_list(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _splits(text: str) -> list[str]:
    if not (splits := _split_list(text)):
        raise RecipeError("--split is empty: name one, or several separated by commas")
    return splits


def _integer(option: str, word: str) -> int:
    if not word.isdecimal():
        raise RecipeError(f"{option} {word}: expected an integer")
    return int(word)


PARSERS: dict[str, Callable[[str], Any]] = {
    "size": lambda word: 0 if word == "all" else _integer("--size", word),
    "k": lambda text: sorted({_integer("--k", word) for word in _split_list(text)}),
    "split": _splits,
    "reward": lambda name: [name],
}


def _write(path: Path, results: Sequence[EvalResult]) -> None:
    from outdo.evals.report import answer_lines

    try:
        with path.open("w", encoding="utf-8") as file:
            for result in results:
                file.writelines(line + "\n" for line in answer_lines(result))
    except OSError as error:
        raise RunError(f"cannot write --out {path}: {error.strerror or error}") from error
