"""Held-out problems that are trained on: counts against a comparison of all pairs, and time."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from outdo.recipe.load import load_recipe
from outdo.tasks import overlap as module
from outdo.tasks.mixture import task_of
from outdo.tasks.overlap import compare_texts, describe_data, find_overlap
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


def test_counts_match_all_pairs() -> None:
    rng = random.Random(0)
    trained = texts(150, 1)
    held_out = [slightly_changed(text, rng) for text in trained[:80]] + texts(40, 2)
    found = compare_texts(held_out, trained)
    exact = [text for text in held_out if text in trained]
    runs = [module._ngrams(tuple(text.split())) for text in trained]
    changed = [module._ngrams(tuple(text.split())) for text in held_out if text not in trained]
    near = [mine for mine in changed if any(len(mine & other) >= 0.8 * len(mine | other) for other in runs)]
    assert (found.exact, found.near) == (len(exact), len(near))
    assert 10 < len(exact) < 40 and len(near) >= 10


def test_case_and_punctuation_are_ignored() -> None:
    found = compare_texts(["What is  2 + 3?", "What is 9 + 3?"], ["what is 2, 3"])
    assert (found.exact, found.near) == (1, 0)
    assert "1 are also trained on" in found.describe() and "What is  2 + 3?" in found.describe()


def test_short_texts() -> None:
    assert compare_texts(["a", "b"], ["a", "c"]).exact == 1
    assert compare_texts([], ["a"]).describe().startswith("none of 1 prompts is held out")


def test_data_sets_only(tmp_path: Path) -> None:
    assert find_overlap(find_task("arithmetic")) is None and describe_data(find_task("arithmetic")) == []
    long = "a farmer has twelve hens and each of them lays two eggs on every day of the week but one"
    rows = [{"prompt": f"{long}. How many?", "split": "train"}, {"prompt": f"{long}, how many", "split": "test"}]
    rows += [{"prompt": f"{long}. How many eggs?", "split": "test"}, {"prompt": "else", "split": "test"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find_overlap(find_task(str(tmp_path / "a.jsonl")))
    assert found and (found.num_held_out, found.num_trained, found.exact, found.near) == (3, 1, 1, 1)
    assert describe_data(find_task(str(tmp_path / "a.jsonl")))[0] == "data      1 train, 3 test"


def test_mixture(tmp_path: Path) -> None:
    for name, split in (("a", "train"), ("b", "test")):
        rows = [{"prompt": "the same", "split": split}, {"prompt": f"only {name}", "split": split}]
        rows.append({"prompt": f"more of {name}", "split": "train"})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [{"dataset_name": str(tmp_path / f"{name}.jsonl"), "name": name} for name in "ab"]
    task = task_of(load_recipe(None, {"dataset_mixture": [*files, {"dataset_name": "arithmetic"}]}))
    found = find_overlap(task)
    assert found and (found.num_held_out, found.num_trained, found.exact) == (2, 4, 1)
    assert describe_data(task)[:2] == ["data      a: 3 train", "data      b: 1 train, 2 test"]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="GSM8K is not beside the repository")
def test_gsm8k_is_quick_and_clean() -> None:
    task = find_task("gsm8k", {"data_dir": str(PUBLISHED)})
    start = time.process_time()
    found = find_overlap(task)
    assert time.process_time() - start < 3.0
    assert found and (found.num_held_out, found.exact, found.near) == (1319, 0, 0)
