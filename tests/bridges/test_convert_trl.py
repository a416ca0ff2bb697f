"""Scripts for TRL, run by TRL: what it sampled is graded and trained on here, too, and all numbers must be the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from outdo.algo.prepare import prepare, with_advantages
from outdo.bridges.convert import convert
from outdo.learn.learner import LocalLearner
from outdo.learn.sft import SFTLearner, run_sft_updates
from outdo.models.load import Policy, load_policy, save_policy
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import grade_all
from outdo.tasks.demonstrations import find_demonstrations
from outdo.tasks.mixture import task_of
from outdo.types import Group, Prompt, Trajectory

pytest.importorskip("trl")

SHORT = ["max_steps=1", "sft_steps=0", "eval_size=4", "max_completion_length=12", "per_device_train_batch_size=16"]
SAME = [*SHORT, "num_generations=4", "adv_std=sample", "lr_scheduler_type=constant", "seed=3", "save_strategy=no"]
OWN = '''
def digits(completions, answer, **columns):
    """A digit of the answer pays a tenth, and its length a little."""
    assert all(isinstance(one, str) for one in (*completions, *answer))
    return [0.1 * sum(c in gold for c in text) + 0.01 * len(text) for text, gold in zip(completions, answer)]
'''


def run_script(folder: Path) -> dict[str, Any]:
    """The script in a process of its own; what the trainer saw."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env.pop("PYTHONPATH", None)
    recorder = Path(__file__).with_name("recorded.py")
    done = subprocess.run(
        [sys.executable, str(recorder)], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "recorded.json").read_text())


def groups_of(step: dict[str, Any], recipe: Recipe, policy: Policy, prompts: list[Prompt]) -> list[Group]:
    """The answers that TRL sampled, as ours."""
    texts = policy.renderer.decode_answers(step["completion_ids"])
    answers = []
    for ids, text in zip(step["completion_ids"], texts, strict=True):
        finish = "stop" if ids[-1] in policy.renderer.eos_ids else "length"
        answers.append(Trajectory.single(tuple(ids), (0.0,) * len(ids), text, finish, 0))  # type: ignore[arg-type]
    size = recipe.num_generations
    return [
        Group(prompt, tuple(step["prompt_ids"][size * i]), tuple(answers[size * i : size * (i + 1)]))
        for i, prompt in enumerate(prompts)
    ]


def trained_here(
    folder: Path, recipe: Recipe, recorded: dict[str, Any]
) -> tuple[Policy, list[Group], dict[str, float]]:
    """One step of ours on the answers that TRL sampled, from the same weights."""
    task = task_of(recipe)
    policy = load_policy(recorded["start"], device="cpu", dtype=recipe.dtype)
    rows = [json.loads(line) for line in (folder / "train.jsonl").open()]
    rows = rows[: recipe.prompts_per_step]
    step = recorded["steps"][0]
    assert step["prompts"] == [row["prompt"] for row in rows for _ in range(recipe.num_generations)]
    prompts = [Prompt(str(i), tuple(row["prompt"]), row["answer"]) for i, row in enumerate(rows)]
    groups = groups_of(step, recipe, policy, prompts)
    assert [policy.renderer.encode(prompt) for prompt in prompts] == [group.prompt_ids for group in groups]
    groups = grade_all(groups, rewards_of(recipe, task, {}))
    groups = with_advantages(groups, "grpo", recipe.scale_rewards, None, recipe.adv_eps, recipe.adv_std)
    learner = LocalLearner(policy, recipe)
    scored = learner.logprobs(groups)
    groups = [
        Group(
            g.prompt,
            g.prompt_ids,
            tuple(_with(t, lp) for t, lp in zip(g.trajectories, of, strict=True)),
            g.grades,
            g.advantages,
        )
        for g, of in zip(groups, scored, strict=True)
    ]
    return policy, groups, learner.update(prepare(groups, recipe.mask_truncated_completions), 0)


def _with(answer: Trajectory, logprobs: list[float]) -> Trajectory:
    return Trajectory.single(answer.token_ids, tuple(logprobs), answer.text, answer.finish, 0)


@pytest.mark.parametrize(
    "keys",
    [
        ["loss_type=grpo", "beta=0.3"],
        ["loss_type=dapo", "epsilon_high=0.28", "gradient_accumulation_steps=2"],
        ["loss_type=bnpo", "scale_rewards=batch"],
        ["loss_type=dr_grpo", "scale_rewards=none", "beta=0.05"],
        ["loss_type=cispo", "temperature=0.8"],
        ["loss_type=gspo", "epsilon=0.001", "beta=0.1"],
    ],
    ids=lambda keys: keys[0].partition("=")[2],
)
def test_the_first_step_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmed_up: Path, keys: list[str]
) -> None:
    """Two updates on the same answers: rewards, advantages, loss, gradient norm, KL and the weights after them.

    By plain gradient descent: Adam turns the rounding of the smallest gradients into steps of full size.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = [
        *SAME,
        *(f"model_name_or_path={warmed_up}", "optim=sgd", "learning_rate=0.1", "num_iterations=2"),
        "reward_funcs=numeric,own.py:digits,length",
        "reward_weights=[1,0.5,0.2]",
        *keys,
    ]
    recipe = load_recipe(None, words)
    convert(recipe, "trl", tmp_path / "out")
    recorded = run_script(tmp_path / "out")
    policy, groups, stats = trained_here(tmp_path / "out", recipe, recorded)
    grades = [grade for group in groups for grade in group.grades]
    step, logs = recorded["steps"][0], recorded["logs"]
    assert len(logs) == 2
    assert [list(grade.parts.values()) for grade in grades] == [pytest.approx(row, abs=1e-6) for row in step["rewards"]]
    assert [a for group in groups for a in group.advantages] == pytest.approx(step["advantages"], abs=1e-5)
    assert len({round(a, 3) for a in step["advantages"]}) > 4  # there is something to learn
    assert stats["loss"] == pytest.approx(sum(row["loss"] for row in logs) / len(logs), rel=1e-5, abs=1e-6)
    assert stats["grad_norm"] == pytest.approx(sum(row["grad_norm"] for row in logs) / len(logs), rel=1e-4)
    if recipe.beta:
        assert stats["kl"] == pytest.approx(sum(row["kl"] for row in logs) / len(logs), rel=1e-3)
    assert weights_differ(tmp_path / "out" / "arithmetic", policy) < 2e-6
    assert weights_differ(warmed_up, policy) > 1e-4


@pytest.fixture(scope="module")
def warmed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never answers with padding: for that token, the embedding of transformers passes no gradient on."""
    recipe = load_recipe(None, [*SAME, "sft_steps=120"])
    policy, found = load_policy("tiny", device="cpu"), find_demonstrations(recipe, task_of(recipe))
    assert found
    run_sft_updates(SFTLearner(policy, recipe, 120), found, lambda rows: None)
    folder = tmp_path_factory.mktemp("models") / "warmed-up"
    save_policy(policy, folder)
    return folder


def weights_differ(folder: Path, policy: Policy) -> float:
    """The most that a weight of a saved model differs from a policy's."""
    ours = dict(policy.model.named_parameters())
    return max(
        float((ours[name] - weight).abs().max()) for name, weight in load_file(folder / "model.safetensors").items()
    )


def test_the_warm_up_is_ours(tmp_path: Path) -> None:
    """The same examples in the same order, with the same rates: nearly the same weights."""
    recipe = load_recipe(None, [*SAME, "sft_steps=5", "sft_warmup_ratio=0", "sft_lr_scheduler_type=linear"])
    convert(recipe, "trl", tmp_path / "out")
    run_script(tmp_path / "out")
    policy = load_policy("tiny", device="cpu", seed=3)
    assert weights_differ(tmp_path / "out" / "model", policy) == 0
    learner = SFTLearner(policy, recipe, 5)
    found = find_demonstrations(recipe, task_of(recipe))
    assert found
    run_sft_updates(learner, found, lambda rows: None)
    theirs, ours = load_file(tmp_path / "out" / "sft" / "model.safetensors"), dict(policy.model.named_parameters())
    apart = sum(int(((ours[name] - weight).abs() > 1e-4).sum()) for name, weight in theirs.items())  # of 2e-3 a step
    assert apart < 1e-3 * sum(weight.numel() for weight in theirs.values())
