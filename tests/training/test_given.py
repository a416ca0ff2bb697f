"""Models and data that are objects of Python: trained as given, and kept so that the run's folder stands alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from outdo import Callback, Prompt, evaluate, sft, train
from outdo.errors import ModelError, RecipeError, TaskError
from outdo.models.load import load_policy
from outdo.models.tiny import tiny_model, tiny_tokenizer
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_metrics
from outdo.tasks.objects import as_files, given_data
from outdo.tasks.sources import Source, read
from outdo.tasks.task import find_task
from support.fakes import QuietReporter

SMALL: dict[str, Any] = {
    **{"sft_steps": 0, "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "save_steps": 1},
    **{"max_completion_length": 6, "eval_size": 2, "eval_samples": 0, "device": "cpu", "kl_limit": None},
    **{"reward_funcs": "numeric,overlong", "learning_rate": 1e-3, "doctor": "quiet"},
}
ROWS = [{"prompt": f"{i}+{i}", "answer": 2 * i, "source": "made"} for i in range(20)]
TEST = [{"prompt": f"{i}+1", "answer": i + 1} for i in range(4)]


def run(folder: Path, **keys: Any) -> Any:
    return train(reporter=QuietReporter(), output_dir=str(folder), **{**SMALL, **keys})


def as_frame(rows: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def as_dataset(rows: Any) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def as_prompts(rows: Any) -> list[Prompt]:
    return [
        Prompt(row["prompt"], ({"role": "user", "content": row["prompt"]},), row["answer"], {"source": row["source"]})
        for row in rows
    ]


def as_columns(rows: Any) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("form", [list, tuple, iter, as_frame, as_dataset, as_columns, as_prompts])
def test_every_form_gives_the_same_rows(form: Callable[[Any], Any], tmp_path: Path) -> None:
    ((name, text),) = as_files(given_data(form(ROWS))).items()
    (tmp_path / name).write_text(text)
    task = find_task(str(tmp_path / name))
    texts = {prompt.text: (prompt.answer, prompt.meta["source"]) for prompt in task.prompts("all", 0)}
    assert texts == {row["prompt"]: (row["answer"], "made") for row in ROWS}


def test_splits_and_values(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict({"train": as_dataset(ROWS), "test": as_dataset(TEST)})
    assert as_files(given_data(both)) == as_files(given_data(ROWS, TEST))
    odd = {"prompt": "p", "answer": np.int64(3), "at": date(2026, 1, 2), "gone": float("nan"), "v": torch.tensor([1.5])}
    (tmp_path / "odd.jsonl").write_text(as_files(given_data([odd]))["rows.jsonl"])
    (line,) = read(Source(str(tmp_path / "odd.jsonl")))[""]
    assert line.row == {"prompt": "p", "answer": 3, "at": "2026-01-02", "gone": None, "v": [1.5]}
    assert as_frame([{"prompt": "a", "x": 1}, {"prompt": "b"}]).pipe(given_data)[""][1].row["x"] is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "no rows"),
        (["2+2"], "row 1"),
        (7, "int"),
        ([{"prompt": "a", "image": b"png"}], "column 'image'"),
        ({"prompt": ["a"], "answer": []}, "different lengths"),
        ([{"question": "a"}], "columns.prompt"),
    ],
)
def test_refused_data(data: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=words):
        run(tmp_path, train_dataset=data)


def test_a_run_on_rows_stands_alone(tmp_path: Path) -> None:
    """Interrupted and resumed by its folder alone, it ends as one on the same rows in files."""

    class Stop(Callback):
        def on_step_end(self, run: Any, done: int) -> None:
            if done == 1:
                raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(folder, train_dataset=ROWS, eval_dataset=TEST, callbacks=[Stop()])
    assert read_manifest(folder).recipe["dataset_name"] == str(folder / "data")
    with pytest.raises(RecipeError, match="data set has changed"):
        train(resume=folder, train_dataset=ROWS[:9], eval_dataset=TEST, reporter=QuietReporter())
    resumed = train(resume=folder, reporter=QuietReporter())
    assert resumed.after[0].n == 2 and read_manifest(folder).status == "done"

    (tmp_path / "files").mkdir()
    for name, rows in (("train", ROWS), ("test", TEST)):
        (tmp_path / "files" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = run(tmp_path / "other", dataset_name=str(tmp_path / "files"))
    assert (files.model / "model.safetensors").read_bytes() == (resumed.model / "model.safetensors").read_bytes()
    judged = evaluate(resumed.model, TEST, reward="numeric", samples=0, max_completion_length=6, device="cpu")
    assert judged.n == 4


def loaded() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer()
    return tiny_model(tokenizer, 5), tokenizer


@pytest.mark.parametrize("adapter", [False, True])
def test_a_loaded_model_is_trained_in_place(tmp_path: Path, adapter: bool) -> None:
    model, tokenizer = loaded()
    model.train()
    attention, first = model.config._attn_implementation, {k: v.clone() for k, v in model.state_dict().items()}
    keys = {"train_dataset": ROWS, "use_peft": adapter, "max_steps": 2}
    result = run(tmp_path / "run", model=model, processing_class=tokenizer, **keys)
    saved = AutoModelForCausalLM.from_pretrained(result.model)
    after = model.state_dict()
    assert any(not torch.equal(first[name], after[name]) for name in first)
    assert all(torch.equal(after[name], value) for name, value in saved.state_dict().items())
    assert model.config._attn_implementation == attention and model.training
    start = load_policy(str(tmp_path / "run" / "start"), device="cpu").model.state_dict()
    assert all(torch.equal(first[name], value) for name, value in start.items())

    # The same from the start's folder, and resumed from the run's alone.
    again = run(tmp_path / "again", model=str(tmp_path / "run" / "start"), **keys)
    assert (again.model / "model.safetensors").read_bytes() == (result.model / "model.safetensors").read_bytes()
    longer = train(resume=tmp_path / "run", max_steps=3, reporter=QuietReporter())
    assert len(list(read_metrics(longer.folder))) == 3 and read_manifest(longer.folder).resumed == [2]
    with pytest.raises(RecipeError, match="leave the model out"):
        train(resume=tmp_path / "run", model=model, tokenizer=tokenizer)


def test_a_loaded_model_is_evaluated() -> None:
    model, tokenizer = loaded()
    before = model.config._attn_implementation
    keys = {"reward": "numeric", "samples": 0, "max_completion_length": 6}
    assert evaluate(model, TEST, processing_class=tokenizer, **keys).n == 4
    assert evaluate(model, "arithmetic", tokenizer=tokenizer, size=3, **keys).n == 3
    assert model.config._attn_implementation == before and model.training


def test_sft_on_rows(tmp_path: Path) -> None:
    model, tokenizer = loaded()
    rows = [{**row, "completion": str(row["answer"])} for row in ROWS]
    keys = {**SMALL, "sft_steps": 2, "sft_batch_size": 4, "output_dir": str(tmp_path / "run")}
    assert sft(model=model, tokenizer=tokenizer, train_dataset=rows, reporter=QuietReporter(), **keys).model.is_dir()


def test_refused_objects(tmp_path: Path) -> None:
    model, tokenizer = loaded()
    for keys, error, words in (
        ({"model": 7}, ModelError, "int"),
        ({"model": model}, ModelError, "processing_class"),
        ({"tokenizer": tokenizer}, RecipeError, "no loaded model"),
        ({"eval_dataset": TEST}, RecipeError, "train_dataset"),
        ({"train_dataset": ROWS, "dataset_name": "arithmetic"}, RecipeError, "both set the data"),
        ({"model": model, "tokenizer": tokenizer, "stages": [{"stage": "sft"}]}, RecipeError, "save it"),
    ):
        with pytest.raises(error, match=words):
            run(tmp_path / "run", **keys)
    assert not (tmp_path / "run").exists()
