"""`outdo sft` and `outdo harvest` in real processes: what they leave behind, and that a stop loses nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from outdo.models.load import load_policy
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import find_rewards
from outdo.runs.reader import read_rows
from outdo.training.harvest import DECIDING_KEYS, demonstrations, harvest, select_answers, tally_of
from outdo.training.stages import prefixed
from outdo.types import Grade, Group, Prompt, SampleParams, Trajectory
from support.basics import prompt_of
from support.harness import Forks
from support.samplers import local_sampler

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown(folder: Path, count: int = 30) -> None:
    """Data to imitate, and a recipe that does; one row in ten is held out."""
    data = [{"prompt": f"{i}?", "completion": f"<answer>{i % 3}</answer>", "answer": str(i % 3)} for i in range(count)]
    (folder / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    keys = "model_name_or_path: tiny\ndataset_name: shown.jsonl\nmax_completion_length: 24\neval_samples: 0\n"
    keys += "sft: {epochs: 4, batch_size: 4, learning_rate: 3.0e-3}\ndevice: cpu\n"
    (folder / "recipe.yaml").write_text(keys)


def start(forks: Forks, folder: Path, *words: str, faults: list[dict[str, object]]) -> int:
    return forks.start(words, folder, folder / "log", folder / "log", faults).wait()


def test_sft_without_a_verifier(outdo: Outdo, tmp_path: Path) -> None:
    shown(tmp_path)
    done = outdo("sft", "recipe.yaml", "output_dir=run", "weight_decay=0.01")
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    assert recipe["sft_epochs"] == 4 and recipe["sft_weight_decay"] == 0.01 and recipe["weight_decay"] == 0.0
    found = rows(tmp_path / "run" / "sft.jsonl")
    updates = [row["step"] for row in found if "loss" in row]
    assert updates == list(range(1, len(updates) + 1)) and len(updates) in range(
        24, 31
    )  # 27 or so rows in fours, four times
    first, last = (row["held_out_loss"] for row in found if "held_out_loss" in row)
    assert last < first / 2 and "held-out loss" in done.stdout  # type: ignore[operator]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    again = outdo("sft", "--resume", "run")
    assert again.returncode == 0 and "nothing to do" in again.stdout


def test_sft_resumed_is_identical(outdo: Outdo, forks: Forks, tmp_path: Path) -> None:
    shown(tmp_path)
    words = ("sft", "recipe.yaml", "epochs=2", "reward_funcs=numeric")
    assert outdo(*words, "output_dir=steady").returncode == 0
    stopped = {"point": "imitate", "nth": 5, "action": "term"}
    assert start(forks, tmp_path, *words, "output_dir=run", faults=[stopped]) == 143
    assert (tmp_path / "run" / "checkpoints" / "step-000005").is_dir()
    killed = {"point": "imitate", "nth": 4, "action": "kill"}
    assert start(forks, tmp_path, "sft", "--resume", "run", faults=[killed]) == -9
    data = (tmp_path / "shown.jsonl").read_text()
    (tmp_path / "shown.jsonl").write_text(data.replace("<answer>1", "<answer>5"))
    other = outdo("sft", "--resume", "run")
    assert other.returncode == 2 and "other examples" in other.stderr
    (tmp_path / "shown.jsonl").write_text(data)
    done = outdo("train", "--resume", "run")  # a run knows its kind
    assert done.returncode == 0 and "resumed after step 5" in done.stdout, done.stderr
    for name in ("sft.jsonl", "evals.jsonl", "model/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "steady" / name).read_bytes(), name


def test_sft_keys_of_trl() -> None:
    given = {"max_steps": 5, "per_device_train_batch_size": 4, "num_train_epochs": 2, "epochs": 1, "dataset_name": "a"}
    assert prefixed("sft", given) == {"sft_steps": 5, "sft_batch_size": 4, "sft_epochs": 1, "dataset_name": "a"}
    assert prefixed("grpo", {"max_steps": 5}) == {"max_steps": 5}


def test_bad_input(outdo: Outdo, tmp_path: Path) -> None:
    shown(tmp_path)
    for words, part in (
        (["epoch=2"], "did you mean"),
        (["steps=3", "epochs=2"], "sft_steps and sft_epochs set the same thing"),
        (["sft_dataset_name=none.jsonl"], "none.jsonl"),
        (["sft_dataset_name=shown.jsonl", "sft_columns.completion=text"], "text"),
    ):
        done = outdo("sft", "recipe.yaml", "output_dir=run", *words)
        assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    assert not (tmp_path / "run").exists()


def test_harvest_picks_answers() -> None:
    prompt = prompt_of("1+1", "2", level=3)
    finished = [
        ("2", "stop"),
        ("it is  2", "stop"),
        ("it is 2", "stop"),
        ("3", "stop"),
        ("2 and more", "length"),
        ("two: 2", "stop"),
    ]
    answers = tuple(Trajectory.single((1,), (0.0,), text, finish, 0) for text, finish in finished)  # type: ignore[arg-type]
    right = Grade(1.0, "right")
    group = Group(prompt, (1,), answers, (right, right, right, Grade(0.0, "wrong"), right, Grade(None, "broken")))
    row = select_answers(group, keep=2)
    assert row["kept"] == ["2", "it is  2"]
    assert (row["right"], row["truncated"], row["duplicates"], row["broken"], row["sampled"]) == (4, 1, 1, 1, 6)
    assert select_answers(group, keep=1)["kept"] == ["2"]
    (shown_row,) = demonstrations(prompt, ["2"])
    assert shown_row == {"prompt": "1+1", "answer": "2", "completion": "2", "level": 3, "split": "train"}
    assert "1 prompts, 100.0% solved; 4 of 6 right, 2 kept, 1 duplicates dropped" in str(tally_of(row))


def test_harvest_settings_cover_sampling() -> None:
    by_format = {"stop_ids"}  # of tool_format
    sampling = {field.name for field in fields(SampleParams)} - by_format
    assert sampling <= set(DECIDING_KEYS) <= set(Recipe.model_fields)


def test_teacher_answers_come_first(tmp_path: Path) -> None:
    prompts = [prompt_of("1+1", "2"), prompt_of("1+2", "3")]
    policy = load_policy("tiny", device="cpu")
    params, out = SampleParams(4), tmp_path / "shown.jsonl"
    always = find_rewards(["always"], [], "always", 4, {"always": lambda completions, **_: [1.0] * len(completions)})

    def teacher(prompt: Prompt) -> str | None:
        return "two" if prompt.answer == "2" else None

    sampler = local_sampler(policy)
    tally = harvest(prompts, sampler, always, params, out, {}, samples=2, keep=1, seed=0, demonstrate=teacher)
    texts = {row["answer"]: row["completion"] for row in reversed(list(read_rows(out)))}
    assert texts["2"] == "two" and texts.get("3") != "two"
    assert len(list(read_rows(out))) == tally.kept + 1


@pytest.mark.slow
def test_harvest_resumed_is_identical(outdo: Outdo, forks: Forks, tmp_path: Path) -> None:
    shown(tmp_path)
    assert outdo("sft", "recipe.yaml", "output_dir=run", "epochs=12").returncode == 0
    words = ["harvest", "run", "--task", "shown.jsonl", "--reward", "numeric", "--samples", "6", "--size", "20"]
    words += ["--keep", "2", "--max-completion-length", "24"]
    killed = {"point": "pick", "nth": 9, "action": "kill"}
    assert start(forks, tmp_path, *words, "--out", "a.jsonl", faults=[killed]) == -9
    assert not (tmp_path / "a.jsonl").exists()
    before = (tmp_path / "a.prompts.jsonl").read_text()
    with (tmp_path / "a.prompts.jsonl").open("a") as file:
        file.write('{"prompt_id": "cut sho')  # as a crash may leave it
    for name in ("a.jsonl", "b.jsonl"):
        done = outdo(*words, "--out", name)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.prompts.jsonl").read_text().startswith(before) and len(before.splitlines()) > 1
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()  # as one that was not stopped
    kept = rows(tmp_path / "a.jsonl")
    assert kept and all(f"<answer>{row['answer']}</answer>" in str(row["completion"]) for row in kept)
    texts = [(row["prompt"], " ".join(str(row["completion"]).split())) for row in kept]
    assert len(set(texts)) == len(texts) and max(map([p for p, _ in texts].count, dict(texts))) <= 2
    per_prompt = rows(tmp_path / "a.prompts.jsonl")[1:]
    assert len(per_prompt) == 20 and sum(len(row["kept"]) for row in per_prompt) == len(kept)  # type: ignore[arg-type]
    assert all(row["sampled"] == 6 for row in per_prompt) and "20 prompts" in done.stdout
    other = outdo(*words, "--out", "a.jsonl", "--temperature", "0.5")
    assert other.returncode == 2 and "temperature was 1.0 and is 0.5" in other.stderr
    again = outdo("sft", "recipe.yaml", "sft_dataset_name=a.jsonl", "reward_funcs=numeric", "epochs=1", "output_dir=s")
    assert again.returncode == 0 and "SFT on a.jsonl" in again.stdout, again.stderr
