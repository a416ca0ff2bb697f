"""Held-out problems that are trained on: counted against every pair compared, and in time."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from outdo.recipe.load import load_recipe
from outdo.tasks import overlap as module
from outdo.tasks.mixture import task_of
from outdo.tasks.overlap import find_overlap, overlap, told
from outdo.tasks.task import find_task
from support.basics import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "gsm8k"
WORDS = [f"w{i}" for i in range(60)]


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 40))) for _ in range(count)]


def slightly_changed(text: str, rng: random.Random) -> str:
    words = text.split()
    for _ in range(rng.randint(0, 3)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return " ".join(words)


def test_the_counts_are_those_of_comparing_all_pairs() -> None:
    rng = random.Random(0)
    trained = texts(150, 1)
    held_out = [slightly_changed(text, rng) for text in trained[:80]] + texts(40, 2)
    found = overlap(held_out, trained)
    exact = [text for text in held_out if text in trained]
    runs = [module._runs(tuple(text.split())) for text in trained]
    changed = [module._runs(tuple(text.split())) for text in held_out if text not in trained]
    near = [mine for mine in changed if any(len(mine & other) >= 0.8 * len(mine | other) for other in runs)]
    assert (found.exact, found.near) == (len(exact), len(near))
    assert 10 < len(exact) < 40 and len(near) >= 10


def test_case_and_signs_make_no_difference_and_other_numbers_do() -> None:
    found = overlap(["What is  2 + 3?", "What is 9 + 3?"], ["what is 2, 3"])
    assert (found.exact, found.near) == (1, 0)
    assert "1 are also trained on" in found.words() and "held-out success counts them" in found.words()
    assert "What is  2 + 3?" in found.words()


def test_short_texts_and_nothing() -> None:
    assert overlap(["a", "b"], ["a", "c"]).exact == 1
    assert overlap([], ["a"]).words() == "nothing is held out of 1 prompts, so that success cannot be measured"


def test_only_data_that_have_an_end_are_looked_at(tmp_path: Path) -> None:
    assert find_overlap(find_task("arithmetic")) is None and told(find_task("arithmetic")) == []
    long = "a farmer has twelve hens and each of them lays two eggs on every day of the week but one"
    rows = [{"prompt": f"{long}. How many?", "split": "train"}, {"prompt": f"{long}, how many", "split": "test"}]
    rows += [{"prompt": f"{long}. How many eggs?", "split": "test"}, {"prompt": "else", "split": "test"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find_overlap(find_task(str(tmp_path / "a.jsonl")))
    assert found and (found.num_held_out, found.num_trained, found.exact, found.near) == (3, 1, 1, 1)
    assert told(find_task(str(tmp_path / "a.jsonl")))[0] == "data      1 train, 3 test"


def test_a_mixture_s_data_are_looked_at_together(tmp_path: Path) -> None:
    for name, split in (("a", "train"), ("b", "test")):
        rows = [{"prompt": "the same", "split": split}, {"prompt": f"only {name}", "split": split}]
        rows.append({"prompt": f"more of {name}", "split": "train"})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [{"dataset_name": str(tmp_path / f"{name}.jsonl"), "name": name} for name in "ab"]
    task = task_of(load_recipe(None, {"dataset_mixture": [*files, {"dataset_name": "arithmetic"}]}))
    found = find_overlap(task)
    assert found and (found.num_held_out, found.num_trained, found.exact) == (2, 4, 1)
    assert told(task)[:2] == ["data      a: 3 train", "data      b: 1 train, 2 test"]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="GSM8K is not beside the repository")
def test_gsm8k_in_little_time_and_apart() -> None:
    task = find_task("gsm8k", {"data_dir": str(PUBLISHED)})
    start = time.process_time()
    found = find_overlap(task)
    assert time.process_time() - start < 3.0
    assert found and (found.num_held_out, found.exact, found.near) == (1319, 0, 0)
