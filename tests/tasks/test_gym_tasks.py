"""reasoning-gym's generators as tasks: all of them, with splits and seeds that never meet, the same in every run."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest

from outdo.errors import TaskError
from outdo.rewards.gym import reasoning_gym
from outdo.tasks import gym
from outdo.tasks.task import find_task, held_out

pytest.importorskip("reasoning_gym")

ALONE = {"composite"}  # has no problems of its own


def ids(name: str, split: str, seed: int, count: int, **options: Any) -> set[str]:
    return {p.id for p in itertools.islice(gym.prompts(split, seed, name=name, **options), count)}


def test_every_generator_yields_prompts() -> None:
    names = [name for name in gym.generators() if name not in ALONE]
    assert len(names) >= 105
    for name in names:
        p = next(gym.prompts("train", 0, name=name))
        assert p.text.endswith(gym.ASK) and p.meta["gym"]["name"] == name
        assert p.meta["gym"]["entry"]["question"].strip() in p.text
        assert (p.answer is None) == (name in gym.NO_GOLD), name
        assert p.answer is None or isinstance(p.answer, str)


@pytest.mark.parametrize(
    "name", ["chain_sum", "coin_flip", "aiw", pytest.param("tower_of_hanoi", marks=pytest.mark.slow)]
)
def test_held_out_problems_are_never_trained_on(name: str) -> None:
    tested = {p.id for p in held_out(find_task(f"reasoning_gym/{name}"), "test", 25)}
    assert len(tested) >= 3
    trained = set().union(*(ids(name, "train", seed, 150) for seed in range(3)))
    assert len(trained) >= 30 and not tested & trained


def test_neighbouring_seeds_share_nothing() -> None:
    first, second = (ids("rotate_matrix", "train", seed, 60) for seed in (0, 1))
    assert len(first) == len(second) == 60 and not first & second
    assert ids("rotate_matrix", "train", 0, 60) == first


def test_a_split_without_problems_ends() -> None:
    few = {"min_trials": 2, "max_trials": 2}  # six questions in all, and none of them is held out
    assert len(ids("coin_flip", "train", 0, 60, **few)) == 6
    assert next(gym.prompts("test", 0, name="coin_flip", **few), None) is None
    with pytest.raises(TaskError, match="no prompts in split 'test'"):
        next(find_task("reasoning_gym/coin_flip", few).prompts("test", 0))


@pytest.mark.slow
def test_every_run_has_the_same_problems() -> None:
    """These draw from sets, whose order changes with the hash seed of the process."""
    names = ("isomorphic_strings", "ransom_note", "polynomial_multiplication", "codeio")
    here = [sorted(ids(name, "train", 3, 4)) for name in names]
    code = f"from test_gym_tasks import ids; print([sorted(ids(name, 'train', 3, 4)) for name in {names}])"
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(here)


def test_options_reach_the_generator() -> None:
    p = next(find_task("reasoning_gym/chain_sum", {"min_terms": 2, "max_terms": 2}).prompts("train", 0))
    assert p.meta["gym"]["options"] == {"min_terms": 2, "max_terms": 2}
    assert p.meta["gym"]["entry"]["metadata"]["num_terms"] == 2
    options = {"operations": ["+"], "operations_weights": [1.0]}  # as YAML has them: no tuples
    p = next(gym.prompts("train", 0, name="complex_arithmetic", **options))
    assert p.meta["gym"]["entry"]["metadata"]["operation"] == "+"


def test_a_composite_asks_its_parts() -> None:
    parts = [{"name": "chain_sum", "config": {"max_terms": 3}}, {"name": "gcd", "weight": 2}]
    seen = {
        p.meta["gym"]["name"] for p in itertools.islice(gym.prompts("train", 0, name="composite", datasets=parts), 20)
    }
    assert seen == {"chain_sum", "gcd"}
    for datasets, part in (([], "at least one"), ([{"weight": 1}], "name, weight"), ([{"name": "gdc"}], "'gdc'")):
        with pytest.raises(TaskError, match=part):
            gym.checked("composite", {"datasets": datasets})


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("chain_sums", {}, "did you mean reasoning_gym/chain_sum"),
        ("chain_sum", {"min_term": 3}, "did you mean 'min_terms'"),
        ("chain_sum", {"seed": 3}, "no option 'seed'"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "refuses"),
        ("chain_sum", {"min_terms": "many"}, "refuses"),
        ("", {}, "no generator"),
    ],
)
def test_what_it_does_not_know(name: str, options: dict[str, Any], part: str) -> None:
    with pytest.raises(TaskError, match=part):
        find_task(f"reasoning_gym/{name}", options)


@pytest.mark.parametrize("name", ["number_sorting", "graph_color", "word_sorting"])
def test_what_is_imitated_gets_full_marks(name: str) -> None:
    shown = list(itertools.islice(find_task(f"reasoning_gym/{name}").demonstrations(0), 3))
    prompts = [prompt for prompt, _ in shown]
    columns = {"gym": [p.meta["gym"] for p in prompts], "answer": [p.answer for p in prompts]}
    grades = reasoning_gym([text for _, text in shown], prompts=[p.text for p in prompts], **columns)
    assert [grade.verdict for grade in grades] == ["right"] * 3


def test_where_no_answer_is_given_there_is_nothing_to_imitate() -> None:
    with pytest.raises(TaskError, match="not one of its training prompts has an answer to imitate"):
        next(find_task("reasoning_gym/rush_hour").demonstrations(0))


def test_a_generator_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "SECONDS", 0.001)
    with pytest.raises(TaskError, match=r"arc_agi made none of 8 problems in a row: timed out after 0.001 s"):
        next(gym.prompts("train", 0, name="arc_agi"))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    gym.generators.cache_clear()
    try:
        with pytest.raises(TaskError, match=r"pip install 'outdo\[gym\]'"):
            find_task("reasoning_gym/chain_sum")
    finally:
        gym.generators.cache_clear()
