"""`outdo eval`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from outdo.cli.app import app
from outdo.errors import RecipeError, RunError
from outdo.runs.outputs import refuse_file

if TYPE_CHECKING:
    from outdo.evals.report import Result
    from outdo.evals.retention import Retention


@app.command("eval")
def evaluate(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(help="Hugging Face folders, hub names, or runs; one or more.")],
    task: Annotated[
        str | None,
        typer.Option(help="Tasks' names, .jsonl files, or file.py:function; with commas. A run's default is its own."),
    ] = None,
    split: Annotated[str, typer.Option(help="test, dev, ood or train, or all of data; several with commas.")] = "test",
    size: Annotated[str, typer.Option("--size", "-n", help="Problems; all (or 0): the whole split.")] = "200",
    samples: Annotated[int, typer.Option(min=0, help="Sampled answers to each, for pass@k; 0: greedy only.")] = 10,
    k: Annotated[str, typer.Option("--k", help="The k's of pass@k, with commas; default: 1, and 8 or 10.")] = "",
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the samples.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the samples.")] = 1.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Tokens.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends an answer; may be given again.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Put before every problem.")] = None,
    reward: Annotated[str | None, typer.Option(help="Judge by this reward instead of the task's own.")] = None,
    task_arg: Annotated[
        list[str] | None, typer.Option("--task-arg", help="key=value for the tasks, TASK.key=value for one.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Compare with this model; default: the first.")] = None,
    retention: Annotated[
        bool, typer.Option("--retention", help="Also score texts that the base finds likely: what was forgotten?")
    ] = False,
    text: Annotated[Path | None, typer.Option(help="For --retention, instead of texts that the base writes.")] = None,
    also: Annotated[str, typer.Option(help="Further tasks, to see what training cost there; with commas.")] = "",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep each answer with its verdict, as JSONL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON.")] = False,
) -> None:
    """Measure models on held-out problems: success, pass@k, and whether two of them differ.

    A run is asked what it was trained on, as it was, where nothing else is said; other models arithmetic.

    \b
      outdo eval runs/NAME
      outdo eval ./before ./after --task gsm8k --task-arg data_dir=./gsm8k --size all --samples 8 --k 1,8
      outdo eval ./model --task problems.jsonl --reward numeric --out answers.jsonl
      outdo eval runs/NAME --base ./before --retention --also countdown
    """
    if task is None:
        return evaluate(context, **_with_task(context))
    from outdo.evals import suite as evaluating
    from outdo.recipe.parse import parse_overrides

    if retention and base is None and len(models) < 2:
        raise RecipeError("--retention compares with the model as it was: name it with --base")
    if text and not retention:
        raise RecipeError("--text is what --retention is measured on: give both")
    if dtype not in ("float32", "bfloat16"):
        raise RecipeError(f"--dtype {dtype}: use float32 or bfloat16")
    names = list(dict.fromkeys([base, *models] if base else models))
    ks = tuple(sorted({_whole("--k", part) for part in _listed(k)}))
    settings = evaluating.Settings(
        *(_size(size), samples, ks, temperature, top_p, max_completion_length, tuple(stop or ())),
        *(dtype, device, seed),
    )
    asked = evaluating.quizzes(
        *(_named("--task", f"{task},{also}"), _named("--split", split), settings.size),
        task_args=parse_overrides(task_arg or []),
        reward=reward,
        system_prompt=system_prompt,
    )
    for line in evaluating.weights_of(names):
        print(line, file=sys.stderr)
    if out:
        refuse_file(out, over=force)
    results, kept = _ask(names, asked, settings, evaluating.Keepsake(text, seed) if retention else None)
    if out:
        _write(out, results)
    if as_json:
        from outdo.evals.report import as_json as dump

        about: dict[str, Any] = {"size": settings.size, "samples": samples, "temperature": temperature, "top_p": top_p}
        about |= {"max_completion_length": max_completion_length, "dtype": dtype, "seed": seed}
        print(dump(results, kept, about))
    else:
        _show(results, kept, f"{samples} samples at temperature {temperature:g}" if samples else "greedy only", text)


def _with_task(context: typer.Context) -> dict[str, Any]:
    """The options given, and for those that were not what the run goes by that is asked."""
    from outdo.cli.asking import words_of_run

    sources = {key: context.get_parameter_source(key) for key in context.params}
    given = {key: context.params[key] for key, source in sources.items() if source and source.name != "DEFAULT"}
    words = words_of_run([*filter(None, [given.get("base")]), *given["models"]])
    if words:
        print(f"asked as the run was: outdo eval {shlex.join(words)}", file=sys.stderr)
    usual = context.command.make_context("eval", words or ["model", "--task", "arithmetic"]).params
    return usual | given


def _ask(names: Sequence[str], asked: Any, settings: Any, keepsake: Any) -> tuple[list[Result], list[Retention]]:
    """One model after the other; the first is what the others are compared with."""
    from outdo.cli.progress import counting
    from outdo.evals import suite as evaluating

    results: list[Result] = []
    kept: list[Retention] = []
    for name in names:

        def work(policy: Any, name: str = name) -> None:
            results.extend(evaluating.examine(name, policy, asked, settings, counting))
            if keepsake and name == names[0]:
                keepsake.set_base(name, policy, counting)
            elif keepsake:
                kept.append(keepsake.measure(name, policy, counting))

        evaluating.with_model(name, settings, work)
    return results, kept


def _show(results: Sequence[Result], kept: Sequence[Retention], how: str, text: Path | None) -> None:
    from outdo.evals.report import differences, retention_table, rounds, short_names, table, tall_table
    from outdo.training.console import print_whole, width_of

    console = Console(highlight=False)
    names = short_names(list(dict.fromkeys(r.model for r in results)))
    for group in rounds(results):
        of = f"{group[0].task} {group[0].split}, {group[0].evaluation.n} problems, {how}"
        console.print(of, markup=False, soft_wrap=True)
        wide = table(group, names)
        print_whole(console, wide if width_of(wide) <= console.width else tall_table(group, names))
        if len(group) > 1:
            print_whole(console, differences(group, names))
        for line in (line for r in group for line in _remarks(r, names[r.model])):
            console.print(line, markup=False, soft_wrap=True)
        console.print()
    if kept:
        whose = f"of {text}" if text else f"that {names[kept[0].base]} wrote to everyday questions"
        console.print(f"retention, on {kept[0].tokens:,} tokens {whose}", markup=False, soft_wrap=True)
        print_whole(console, retention_table(kept, names))


def _remarks(result: Result, name: str) -> Iterator[str]:
    if result.evaluation.unjudged:
        yield f"{name}: {result.evaluation.unjudged}"
    if result.evaluation.too_long:
        yield f"{name}: {result.evaluation.too_long:,} problems are too long for it, and were not asked"
    if result.cut > 0.05:
        yield f"{name}: {result.cut:.0%} of greedy answers were cut at the limit"


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _named(option: str, words: str) -> list[str]:
    found = list(dict.fromkeys(_listed(words)))
    if not found:
        raise RecipeError(f"{option} is empty: name one, or several with commas")
    return found


def _whole(name: str, word: str) -> int:
    if not word.isdecimal():
        raise RecipeError(f"{name} {word}: expected a whole number")
    return int(word)


def _size(word: str) -> int:
    return 0 if word == "all" else _whole("--size", word)


def _write(path: Path, results: Sequence[Result]) -> None:
    from outdo.evals.report import answer_lines

    try:
        with path.open("w", encoding="utf-8") as file:
            for result in results:
                file.writelines(line + "\n" for line in answer_lines(result))
    except OSError as error:
        raise RunError(f"--out {path}: cannot be written: {error.strerror or error}") from error
