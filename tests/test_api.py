"""Whole runs in process: determinism, guards, a user's own parts, and input that cannot work."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

import outdo
from outdo import api
from outdo.api import train
from outdo.errors import BrokenGraders, GraderError, ModelError, NumericsError, OutdoError, RecipeError, TaskError
from outdo.runs.reader import read_rows
from outdo.training.console import PlainLines
from outdo.types import Grade, Prompt

MEASURED = ("tokens_per_s", "memory")  # of the machine, not of the run

QUICK = {
    "sft_steps": 3,
    "sft_batch_size": 8,
    "max_steps": 3,
    "eval_size": 4,
    "eval_samples": 0,
    "per_device_train_batch_size": 16,
    "max_completion_length": 12,
    "device": "cpu",
}


def quiet() -> PlainLines:
    return PlainLines(Console(file=io.StringIO()))


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k not in MEASURED} for row in rows]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    runs = [
        train(reporter=quiet(), output_dir=str(tmp_path / name), seed=seed, **QUICK)
        for name, seed in (("a", 4), ("b", 4), ("c", 5))
    ]
    a, b, c = (metrics(run.folder) for run in runs)
    assert a == b and a != c
    texts = [(run.folder / "groups" / "steps-000000.jsonl").read_text() for run in runs]
    assert texts[0] == texts[1] != texts[2]
    weights = [(run.model / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1] != weights[2]


def test_a_users_own_task_and_reward_objects(tmp_path: Path) -> None:
    @outdo.task(rewards=["exact"])
    def shout(split: str, seed: int) -> Iterator[Prompt]:
        for i in range(40):
            if outdo.belongs(i, split):
                yield Prompt(f"s{i}", ({"role": "user", "content": f"say {i}"},), "HEY", {"level": i})

    seen: list[int] = []

    def loud(completions: list[str], level: list[int]) -> list[float]:
        seen.extend(level)
        return [sum(c.isupper() for c in text) / 10 for text in completions]

    result = train(
        task=shout, reward_funcs=[loud], reporter=quiet(), output_dir=str(tmp_path / "r"), **{**QUICK, "sft_steps": 0}
    )
    rows = metrics(result.folder)
    assert "reward/loud" in rows[0] and "reward/exact" in rows[0]  # success is still measured by the task's verifier
    assert rows[0]["reward_mean"] == pytest.approx(rows[0]["reward/loud"])
    assert set(seen) <= {i for i in range(40)} and seen
    assert [e.split for e in result.after] == ["test"]


def test_kl_past_its_limit_halts_and_keeps_the_model(tmp_path: Path) -> None:
    keys = {
        **QUICK,
        "max_steps": 30,
        "learning_rate": 0.01,
        "beta": 1e-4,
        "kl_limit": 0.05,
        "lr_scheduler_type": "constant",
    }
    with pytest.raises(NumericsError, match=r"past kl_limit=0\.05"):
        train(reporter=quiet(), output_dir=str(tmp_path / "r"), reward_funcs=[by_length], **keys)
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    assert manifest["status"] == "stopped" and "kl_limit" in manifest["why"]
    assert (tmp_path / "r" / "model" / "model.safetensors").exists()
    assert 3 <= len(metrics(tmp_path / "r")) < 30


def by_length(completions: list[str], **columns: object) -> list[float]:
    return [len(text) / 100 for text in completions]


def test_the_first_group_of_a_step_keeps_its_tokens(tmp_path: Path) -> None:
    for asked in (1, 0):
        result = train(output_dir=str(tmp_path / str(asked)), log_tokens=asked, reporter=quiet(), **QUICK)
        rows = list(read_rows(result.folder / "groups" / "steps-000000.jsonl"))
        first = [row for row in rows if row["step"] == 1]
        kept = [["tokens" in answer for answer in row["completions"]] for row in first]
        assert [all(of_group) for of_group in kept] == [True] * asked + [False] * (len(first) - asked)
        for answer in first[0]["completions"] if asked else ():
            whole = "".join(text for text, _, _ in answer["tokens"])
            assert re.sub(r"<\|\w+\|>", "", whole) == answer["text"]  # which is without the special tokens
            assert len(answer["tokens"]) == answer["num_tokens"]
            assert all(logprob <= 0 < ratio for _, logprob, ratio in answer["tokens"])


def test_dynamic_sampling_refills_within_its_budget(tmp_path: Path) -> None:
    def never(completions: list[str], **columns: object) -> list[float]:
        return [0.0] * len(completions)

    keys = {**QUICK, "dynamic_sampling": True, "max_resample": 3.0, "num_generations": 4, "max_steps": 1}
    for reward, sampled in ((never, 16), (by_length, 4)):
        result = train(reporter=quiet(), reward_funcs=[reward], output_dir=str(tmp_path / reward.__name__), **keys)
        (row,) = metrics(result.folder)
        answers = row["tokens"] / row["len_mean"]
        assert round(answers) == sampled * 4
        kept = (result.folder / "groups" / "steps-000000.jsonl").read_text().splitlines()
        assert len(kept) == 4


def test_answers_that_make_the_grader_raise_do_not_halt(tmp_path: Path) -> None:
    def picky(completions: list[str], **columns: object) -> list[float]:
        if any(len(text) % 2 for text in completions):
            raise RuntimeError("odd")
        return [1.0] * len(completions)

    keys = {**QUICK, "reward_funcs": [picky], "reporter": quiet(), "broken_limit": 0.0, "reward_audit": False}
    rows = metrics(train(output_dir=str(tmp_path / "r"), **keys).folder)
    assert all(row["grader_broken"] == 0 and 0 < row["reward_mean"] < 1 for row in rows)


def test_some_answers_that_cannot_be_judged_are_counted_not_fatal(tmp_path: Path) -> None:
    def picky(completions: list[str], **columns: object) -> list[Grade]:
        broken = Grade(None, "broken", reason="odd")
        return [broken if len(text) % 2 else Grade(1.0, "right") for text in completions]

    keys = {**QUICK, "reward_funcs": [picky], "reporter": quiet()}
    result = train(output_dir=str(tmp_path / "r"), broken_limit=1.0, reward_audit=False, **keys)
    shares = [row["grader_broken"] for row in metrics(result.folder)]
    assert all(0 < share < 1 for share in shares)
    with pytest.raises(BrokenGraders, match="broken_limit=0"):
        train(output_dir=str(tmp_path / "halts"), broken_limit=0.0, reward_audit=False, **keys)
    assert json.loads((tmp_path / "halts" / "run.json").read_text())["status"] == "stopped"


def test_a_mix_of_rewards_and_a_gate_train(tmp_path: Path) -> None:
    keys = {**QUICK, "reward_funcs": ["numeric", "format", "tag_count"], "reward_weights": [1.0, 0.1, 0.05]}
    mixed = metrics(train(reporter=quiet(), output_dir=str(tmp_path / "mix"), **keys).folder)
    for row in mixed:
        total = row["reward/numeric"] + 0.1 * row["reward/format"] + 0.05 * row["reward/tag_count"]
        assert row["reward_mean"] == pytest.approx(total, abs=1e-6)
    gated = train(reporter=quiet(), output_dir=str(tmp_path / "gate"), reward_gate="numeric", **keys)
    paid = [
        (grade["parts"]["numeric"], grade["reward"])
        for line in (gated.folder / "groups" / "steps-000000.jsonl").read_text().splitlines()
        for grade in json.loads(line)["completions"]
    ]
    assert all(reward == 0.0 for numeric, reward in paid if numeric == 0.0)


@pytest.mark.parametrize("keys", [{"loss_type": name} for name in ("bnpo", "dapo", "dr_grpo", "gspo", "cispo")] + [
    {"advantage_estimator": "rloo"},
    {"advantage_estimator": "reinforce_plus_plus"},
    {"advantage_estimator": "maxrl"},
    {"multi_objective_aggregation": "normalize_then_sum"},
    *({"loss_type": name, "num_iterations": 2} for name in ("sapo", "vespo", "gmpo", "dppo", "clip_cov", "kl_cov")),
    {"loss_type": "luspo", "importance_sampling_level": "sequence", "delta": 4.0},
    {"top_entropy_quantile": 0.2, "off_policy_mask_threshold": 0.1},
    {"beta": 0.1, "use_bias_correction_kl": True, "num_iterations": 2},
    {"beta": 0.1, "kl_in_reward": True},
    {"entropy_coef": 0.01},
    {"importance_sampling_cap": 2.0},
    {"num_iterations": 2, "steps_per_generation": 2},
    {"mask_truncated_completions": True},
    {"top_p": 0.9, "top_k": 20, "temperature": 0.8},
    {"sampler": "hf"},
    {"curriculum_steps": 1, "curriculum_args": {"digits": 1}},
    {"eval_steps": 1},
])  # fmt: skip
def test_every_variant_runs(tmp_path: Path, keys: dict[str, object]) -> None:
    base = {**QUICK, "max_steps": 2, "sft_steps": 0, "reward_funcs": [by_length], "num_generations": 4}
    result = train(reporter=quiet(), output_dir=str(tmp_path / "r"), **{**base, **keys})
    rows = metrics(result.folder)
    assert (
        len(rows) == 2
        and rows[0]["grad_norm"] >= 0
        and (rows[0]["grad_norm"] > 0 or "mask_truncated_completions" in keys)
    )


def test_input_that_cannot_work_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with pytest.raises(ModelError, match=r"no config\.json"):
        train(reporter=quiet(), output_dir=str(folder), model_name_or_path=str(tmp_path))
    with pytest.raises(ModelError, match="does not exist"):
        train(reporter=quiet(), output_dir=str(folder), model_name_or_path="./nowhere")
    with pytest.raises(GraderError, match="'numeric'"):
        train(reporter=quiet(), output_dir=str(folder), reward_funcs=["numerik"])
    with pytest.raises(GraderError, match="no such file"):
        train(reporter=quiet(), output_dir=str(folder), reward_funcs=["nowhere.py:f"])
    with pytest.raises(TaskError, match="'arithmetic'"):
        train(reporter=quiet(), output_dir=str(folder), dataset_name="aritmetic")
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n' * 3 + '{"prompt": "2+2", "answer": 4}\n')
    with pytest.raises(RecipeError, match=r"no demonstrations[^$]*outdo train dataset_name=.*smollm2"):
        train(
            reporter=quiet(), output_dir=str(folder), dataset_name=str(tmp_path / "p.jsonl"), reward_funcs=["numeric"]
        )
    assert not folder.exists()


def test_a_model_folder_whose_weights_are_broken(tmp_path: Path) -> None:
    result = train(reporter=quiet(), output_dir=str(tmp_path / "r"), **{**QUICK, "max_steps": 1, "sft_steps": 0})
    (result.model / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="cannot be loaded"):
        outdo.evaluate(result.model, size=2, samples=0)


def test_evaluate_agrees_with_the_run(tmp_path: Path) -> None:
    result = train(reporter=quiet(), output_dir=str(tmp_path / "r"), **{**QUICK, "sft_steps": 40, "max_steps": 1})
    found = outdo.evaluate(result.model, "arithmetic", size=4, samples=0, max_completion_length=12)
    assert found.success_rate == result.after[0].success_rate and found.n == 4


def test_a_run_is_evaluated_by_the_function_that_it_was_trained_with(tmp_path: Path) -> None:
    def numeric(completions: list[str], **columns: object) -> list[float]:  # not the built-in one
        return [1.0] * len(completions)

    def accuracy_reward(completions: list[str], **columns: object) -> list[float]:  # which is `math`, as a name
        return [0.5] * len(completions)

    data = tmp_path / "p.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"say {i}", "answer": "no"}) + "\n" for i in range(40)))
    keys = {**QUICK, "sft_steps": 0, "max_steps": 1, "reward_audit": False}
    result = train(task=str(data), reward_funcs=numeric, reporter=quiet(), output_dir=str(tmp_path / "r"), **keys)
    assert result.after[0].success_rate == 1.0
    both = {"reward_funcs": [numeric, accuracy_reward], "reward_weights": [0.0, 1.0]}
    other = train(task=str(data), reporter=quiet(), output_dir=str(tmp_path / "two"), **both, **keys)
    assert metrics(other.folder)[0]["reward_mean"] == metrics(other.folder)[0]["reward/accuracy_reward"] == 0.5
    told: list[str] = []
    reporter = quiet()
    reporter.note = told.append  # type: ignore[method-assign]
    train(resume=other.folder, reward_funcs=both["reward_funcs"], reporter=reporter)
    assert not any("math" in words for words in told) and any("nothing to do" in words for words in told)
    asked = {"size": 4, "samples": 0, "max_completion_length": 12}
    for reward in (numeric, [numeric]):
        assert outdo.evaluate(result.model, str(data), reward=reward, **asked).success_rate == 1.0
    assert outdo.evaluate(result.model, str(data), reward="exact", **asked).success_rate == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: train({"max_steps": 2}), r"the recipe is a dict.*train\(max_steps=2\)"),
        (lambda: train(reward_funcs=3), "reward_funcs=3: expected names, functions"),
        (lambda: train(reward_funcs=[by_length, 3]), "expected names, functions"),
        (lambda: train(reward_funcs="numerik,format"), "unknown name 'numerik'"),
        (lambda: train(task=by_length), r"neither a task nor the name of one.*@outdo\.task"),
        (lambda: train(task="a.jsonl", dataset_name="b.jsonl"), "both set dataset_name"),
        (lambda: outdo.evaluate("tiny", task=None), "neither a task nor the name of one"),
        (lambda: outdo.evaluate("tiny", task=3), "neither a task nor the name of one"),
        (lambda: outdo.evaluate("tiny", size="four"), "size='four': expected an integer"),
        (lambda: outdo.evaluate("tiny", size=-1), "must be 0 or more"),
        (lambda: outdo.evaluate("tiny", temperature="hot"), "temperature='hot': expected a number"),
        (lambda: outdo.evaluate("tiny", ks=["one"]), "expected integers"),
        (lambda: outdo.evaluate("tiny", stop="x"), "stop='x': expected a list"),
        (lambda: outdo.evaluate("tiny", dtype="float99"), "not one of float32, bfloat16"),
        (lambda: outdo.evaluate("tiny", task_args="digits=3"), "task_args='digits=3': expected a mapping"),
        (lambda: outdo.evaluate("tiny", reward=3), "reward=3: expected names, functions"),
        (lambda: outdo.evaluate("tiny", reward=["exact", "math"]), "reward has 2 rewards"),
        (lambda: outdo.evaluate("tiny", columns={}), r"it takes task_args, reward, system_prompt, size.*'columns': …"),
    ],
)
def test_likely_mistakes_are_told_in_a_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(OutdoError, match=words):
        call()


@pytest.mark.parametrize("function", [api.train, api.sft, api.harvest])
def test_what_runs_take_is_told_by_name(function: Callable[..., object]) -> None:
    """To `help` and to an editor, though it is written down once."""
    told = inspect.signature(function)
    assert list(told.parameters) == [
        "recipe",
        "task",
        "reward_funcs",
        "callbacks",
        "tools",
        "environment_factory",
        "agent",
        "reporter",
        "resume",
        "force",
        "trust",
        "keys",
    ]
    assert told.parameters["recipe"].annotation == "str | Path | Recipe | None" and told.return_annotation == "Result"
    assert function.__name__ in ("train", "sft", "harvest") and function.__doc__
    with pytest.raises(TypeError, match=f"{function.__name__}.*1 positional"):
        function(None, None)
    with pytest.raises(RecipeError, match="did you mean 'max_steps'"):
        function(max_step=3)


def test_public_names() -> None:
    from outdo import GRPOTrainer, evaluate, group_advantages, grpo_loss, k3_kl, pass_at_k
    from outdo.metrics import estimate

    assert estimate.pass_at_k is pass_at_k and callable(evaluate) and callable(GRPOTrainer)
    assert callable(group_advantages) and callable(grpo_loss) and callable(k3_kl)
    with pytest.raises(AttributeError):
        outdo.nothing  # noqa: B018


def test_errors_are_there_without_asking_for_them_first() -> None:
    code = "import outdo; print(outdo.errors.OutdoError.__name__, 'train' in outdo.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OutdoError True\n"
