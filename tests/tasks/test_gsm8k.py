"""GSM8K from a generated folder; and the published files, if they are next to the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outdo.errors import TaskError
from outdo.tasks.task import find_task
from support.basics import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "gsm8k"


def made(folder: Path, train: int = 200, test: int = 7) -> Path:
    for name, count in (("train", train), ("test", test)):
        rows = [
            {"question": f"{name}: what is {i} + 1?", "answer": f"It is {i}+1=<<{i}+1={i + 1}>>.\n#### {i + 1:,}"}
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_splits_are_a_partition(tmp_path: Path) -> None:
    task = find_task("gsm8k", {"data_dir": str(made(tmp_path))})
    texts = {split: {prompt.text for prompt in task.prompts(split, 0)} for split in ("train", "dev", "test")}
    assert not texts["train"] & texts["dev"] and len(texts["train"] | texts["dev"]) == 200
    assert 2 <= len(texts["dev"]) <= 25 and len(texts["test"]) == 7
    assert {p.text for p in task.prompts("dev", 5)} == texts["dev"]
    assert [p.id for p in task.prompts("train", 1)] != [p.id for p in task.prompts("train", 2)]


def test_demonstrations(tmp_path: Path) -> None:
    task = find_task("gsm8k", {"data_dir": str(made(tmp_path, train=2000))})
    prompt, text = next(task.demonstrations(0))
    assert "<<" not in text and text.endswith(f"#### {prompt.answer}")
    assert prompt.answer == f"{int(prompt.text.split()[3]) + 1:,}"


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "not JSON"), ("[]", "`question` and `answer`"), ('{"question": "x", "answer": "7"}', "`#### N`")],
)
def test_bad_files(tmp_path: Path, line: str, message: str) -> None:
    made(tmp_path)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TaskError, match=f"train.jsonl, line 201.*{message}"):
        find_task("gsm8k", {"data_dir": str(tmp_path)})


def test_no_folder() -> None:
    with pytest.raises(TaskError, match="data_dir"):
        find_task("gsm8k")
    with pytest.raises(TaskError, match="cannot be read"):
        find_task("gsm8k", {"data_dir": "nowhere"})


@pytest.mark.skipif(not PUBLISHED.exists(), reason="GSM8K is not beside the repository")
def test_published_files() -> None:
    task = find_task("gsm8k", {"data_dir": str(PUBLISHED)})
    found = {split: list(task.prompts(split, 0)) for split in ("train", "dev", "test")}
    assert len(found["train"]) + len(found["dev"]) == 7473 and len(found["test"]) == 1319
    assert all("<<" not in prompt.meta["solution"] for prompt in found["train"])
