"""Several tasks by weight: how often each comes, who judges it, what is evaluated; and the curriculum by pass rate."""

from __future__ import annotations

import io
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outdo import train
from outdo.errors import GraderError, RecipeError, TaskError
from outdo.recipe.load import load_recipe
from outdo.rewards.choose import rewards_of, truth_of
from outdo.rewards.compose import grade
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.lengths import epochs_to_steps
from outdo.tasks.mixture import task_of
from outdo.tasks.task import Task, find_task
from outdo.training.console import PlainLines
from outdo.types import PART, Grade, Group, Prompt, Trajectory
from support.basics import prompt_of
from support.harness import Bench, same

MIXTURE = [
    {"dataset_name": "arithmetic", "weight": 3, "task_args": {"digits": 1}, "name": "sums"},
    {"dataset_name": "countdown"},
]


def mixture(*entries: dict[str, Any], **keys: Any) -> Task:
    return task_of(load_recipe(None, {"dataset_mixture": list(entries) or MIXTURE, **keys}))


def answered(prompt: Prompt, *texts: str) -> Group:
    return Group(prompt, (0,), tuple(Trajectory.single((1,), (0.0,), text, "stop", 0) for text in texts))


def test_weights() -> None:
    task = mixture()
    drawn = list(itertools.islice(task.prompts("train", 0), 2000))
    counts = Counter(prompt.meta[PART] for prompt in drawn)
    assert counts["sums"] / 2000 == pytest.approx(0.75, abs=0.04) and counts["countdown"] == 2000 - counts["sums"]
    assert drawn[:50] == list(itertools.islice(task.prompts("train", 0), 50))
    assert drawn[:50] != list(itertools.islice(task.prompts("train", 1), 50))
    assert task.splits == ("train", "test/sums", "ood/sums", "test/countdown", "ood/countdown")
    assert {p.meta[PART] for p in itertools.islice(task.prompts("test/countdown", 0), 20)} == {"countdown"}
    for prompt, text in itertools.islice(task.demonstrations(0), 30):
        assert ("<think>" in text) == (prompt.meta[PART] == "sums")  # each has its own teacher


def test_rewards_by_part() -> None:
    task = mixture()
    rewards = rewards_of(load_recipe(None, {"dataset_mixture": MIXTURE}), task, {})
    drawn = {p.meta[PART]: p for p in itertools.islice(task.prompts("train", 0), 50)}
    sums, plan = drawn["sums"], drawn["countdown"]
    right = f"<answer>{sums.answer}</answer>", f"<answer>{plan.meta['solution']}</answer>"
    for prompt, text, other in ((sums, *right), (plan, *reversed(right))):
        graded = grade(answered(prompt, text, other), rewards).grades
        assert [g.verdict for g in graded] == ["right", "wrong"]
        assert set(graded[0].parts) == {"numeric" if prompt is sums else "countdown"}


def test_data_in_a_mixture_needs_a_reward(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"q": f"q{i}", "answer": "yes"}) + "\n" for i in range(40)))
    data: dict[str, Any] = {"dataset_name": str(tmp_path / "a.jsonl"), "columns": {"prompt": "q"}, "name": "file"}
    recipe = load_recipe(None, {"dataset_mixture": [{"dataset_name": "arithmetic"}, data]})
    with pytest.raises(RecipeError, match="no verifier of its own"):
        rewards_of(recipe, task_of(recipe), {})
    recipe = load_recipe(
        None, {"dataset_mixture": [{"dataset_name": "arithmetic"}, {**data, "reward_funcs": ["exact"]}]}
    )
    rewards = rewards_of(recipe, task_of(recipe), {})
    assert {name: part.truth for name, part in rewards.by_part.items()} == {"arithmetic": "numeric", "file": "exact"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"dataset_nam": "arithmetic"}], "entry 1: .*did you mean 'dataset_name'"),
        ([{"dataset_name": "arithmetic"}, {"dataset_name": "countdown", "weight": 0}], "entry 2: weight"),
        ([{"dataset_name": "countdown"}, {"dataset_name": "countdown"}], "'countdown' twice"),
    ],
)
def test_bad_mixtures(entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        mixture(*entries)


@pytest.mark.parametrize(
    "override",
    ["dataset_name=gsm8k", "dataset_name=arithmetic", "task_args.digits=3", "columns.prompt=q", "dataset_config=main"],
)
def test_single_task_keys_beside_a_mixture(override: str, tmp_path: Path) -> None:
    pair = "dataset_mixture=[{dataset_name: arithmetic}, {dataset_name: countdown}]"
    key = override.partition("=")[0].partition(".")[0]
    with pytest.raises(RecipeError, match=f"command line: {key}=.*would be ignored beside dataset_mixture"):
        load_recipe(None, [pair, override])
    file = tmp_path / "mixed.yaml"
    file.write_text("dataset_mixture: [{dataset_name: arithmetic}, {dataset_name: countdown}]\n")
    with pytest.raises(RecipeError, match=f"command line: {key}="):
        load_recipe(file, [override])
    with pytest.raises(RecipeError, match=f"command line: {key}="):
        load_recipe(None, [override], base_of=load_recipe(file).model_dump())
    assert load_recipe(file, [override, "dataset_mixture=[]"]).dataset_mixture == []
    file.write_text(file.read_text() + "dataset_name: countdown\n")
    with pytest.raises(RecipeError, match=r"mixed.yaml: dataset_name='countdown' would be ignored"):
        load_recipe(file)
    assert load_recipe(file, [pair]).dataset_name == "mixture", "the override replaces the file's task"


def test_mixture_replaces_the_default_task(tmp_path: Path) -> None:
    recipe = load_recipe(None, {"dataset_mixture": MIXTURE})
    assert (recipe.dataset_name, recipe.task_args) == ("mixture", {})
    dumped = recipe.model_dump(mode="json")
    assert load_recipe(None, {}, base_of=dumped).model_dump(mode="json") == dumped, (
        "a run is resumed with its own recipe"
    )
    (tmp_path / "dumped.yaml").write_text(json.dumps(dumped))
    assert load_recipe(tmp_path / "dumped.yaml") == recipe
    old = {**dumped, "dataset_name": "arithmetic", "task_args": {"ops": "+"}}  # as runs had it before
    assert load_recipe(None, {"seed": 1}, base_of=old).task_args == {"ops": "+"}


def test_other_refusals() -> None:
    with pytest.raises(RecipeError, match="dataset_mixture is a list here"):
        load_recipe(None, {"dataset_mixture": {"datasets": [{"id": "a/b", "weight": 0.5}]}})
    with pytest.raises(RecipeError, match="curriculum_steps needs a single task"):
        mixture(curriculum_steps=1, curriculum_args={"digits": 1})
    with pytest.raises(TaskError, match="endlessly"):
        epochs_to_steps(load_recipe(None, {"dataset_mixture": MIXTURE, "num_train_epochs": 1}), mixture())


def test_truth_of() -> None:
    data = Task("data", lambda split, seed: iter(()), ())
    assert truth_of(data, ["format", "tag_count", "math"]) == "math"
    assert truth_of(data, ["format", "tag_count"]) == "format"
    assert truth_of(data, ["length", "rewards.py:mine"]) == "rewards.py:mine"
    assert truth_of(find_task("arithmetic"), ["format"]) == "numeric"
    assert truth_of(data, ["length", "math"], own={"length"}) == "length", "a user's own judges, whatever its name"
    with pytest.raises(GraderError, match="give it another name"):
        truth_of(find_task("arithmetic"), ["numeric"], own={"numeric"})


def test_run_evaluates_every_part(tmp_path: Path) -> None:
    keys = {"eval_size": 2, "eval_samples": 0, "max_steps": 1, "sft_steps": 0, "max_completion_length": 8}
    result = train(
        reporter=PlainLines(Console(file=io.StringIO())),
        output_dir=str(tmp_path / "run"),
        dataset_mixture=MIXTURE,
        eval_split=["test/sums", "test/countdown"],
        per_device_train_batch_size=8,
        num_generations=2,
        **keys,
    )
    assert [e.split for e in result.after] == ["test/sums", "test/countdown"]
    groups = [json.loads(line) for line in (result.folder / "groups" / "steps-000000.jsonl").open()]
    assert {tuple(c["parts"]) for group in groups for c in group["completions"]} <= {("numeric",), ("countdown",)}


# --- the curriculum by pass rate


def forty(split: str, seed: int) -> Iterator[Prompt]:
    prompts = [prompt_of(f"p{i}") for i in range(40)]
    random.Random(seed).shuffle(prompts)
    yield from prompts


def tried(prompt: Prompt) -> Group:
    """The first half is always right or never, the rest half of the time."""
    number = int(prompt.text[1:])
    right = [number < 10] * 8 if number < 20 else [True, False] * 4
    grades = tuple(Grade(float(r), "right" if r else "wrong") for r in right)
    return Group(prompt, (0,), (), grades)


def test_pass_rate_prefers_informative_prompts() -> None:
    for wanted, (low, high) in ((True, (0.7, 0.9)), (False, (0.45, 0.55))):
        recipe = load_recipe(None, {"curriculum_pass_rate": wanted})
        curriculum = Curriculum(Task("forty", forty, ("exact",), finite=True), recipe)
        drawn: list[Prompt] = []
        for _ in range(200):
            step = curriculum.draw(8)
            assert len({p.id for p in step}) == 8
            curriculum.observe(0.5, [tried(p) for p in step])
            drawn += step
        assert low < sum(int(p.text[1:]) >= 20 for p in drawn) / len(drawn) < high
        assert len({p.text for p in drawn[800:]}) == 40


def test_broken_groups_leave_the_pass_rate() -> None:
    curriculum = Curriculum(
        Task("forty", forty, ("exact",), finite=True), load_recipe(None, {"curriculum_pass_rate": True})
    )
    (prompt,) = curriculum.draw(1)
    curriculum.observe(0.5, [tried(prompt)])
    known = curriculum.state()["rates"]
    broken = tuple(replace(grade, reward=None, verdict="broken") for grade in tried(prompt).grades)
    curriculum.observe(0.5, [replace(tried(prompt), grades=broken)])
    assert curriculum.state()["rates"] == known != {}


def test_pass_rates_resume_exactly() -> None:
    def run(stop: int | None) -> list[str]:
        recipe = load_recipe(None, {"curriculum_pass_rate": True})
        task = Task("forty", forty, ("exact",), finite=True)
        curriculum, drawn = Curriculum(task, recipe), []
        for step in range(40):
            if step == stop:
                state = json.loads(json.dumps(curriculum.state()))
                curriculum = Curriculum(task, recipe)
                curriculum.load_state(state)
            prompts = curriculum.draw(8)
            curriculum.observe(0.5, [tried(p) for p in prompts])
            drawn += [p.id for p in prompts]
        return drawn

    assert run(17) == run(None)


@pytest.mark.slow
def test_mixture_resumes_exactly(bench: Bench) -> None:
    rows = [{"prompt": f"{i}+{i}", "answer": 2 * i} for i in range(8)]
    (bench.folder / "few.jsonl").write_text("".join(json.dumps({**row, "split": "train"}) + "\n" for row in rows))
    entries = '[{"dataset_name": "few.jsonl", "weight": 3}, {"dataset_name": "arithmetic", "task_args": {"digits": 1}}]'
    keys = (f"dataset_mixture={entries}", "curriculum_pass_rate=true", "temperature_end=0.6", "reward_audit=false")
    assert bench.train("mixed", *keys, faults=[{"point": "update", "nth": 4, "action": "kill"}]) == -9, bench.said()
    assert bench.start("train", "--resume", str(bench.folder / "mixed")).wait() == 0, bench.said()
    assert bench.train("mixed-steady", *keys) == 0
    same(bench.folder / "mixed", bench.folder / "mixed-steady")
