"""The one-file example stands alone, computes what the library computes, and runs as its docstring says."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.testing import assert_close

from outdo import group_advantages, grpo_loss, k3_kl
from outdo.doctor.read import read_history

PATH = Path(__file__).resolve().parents[2] / "examples" / "one_file.py"
CATALOGUED = (
    *("reward_mean", "success_rate", "kl_mean", "entropy_mean", "clipfrac", "informative", "adv_std"),
    *("group_diversity", "len_mean", "loss", "grad_norm", "lr", "beta"),
)
TINY = ("--warmup", "2", "--prompts", "2", "--group-size", "2")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


one_file = load()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PATH), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def random_batch(seed: int, rows: int = 12, width: int = 9) -> dict[str, torch.Tensor]:
    """Log-probabilities far enough apart that both clips hold somewhere, and answers of every length from 1 on."""
    rng = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(rows, width, generator=rng, dtype=torch.float64)

    new = noise() - 2
    lengths = torch.randint(1, width + 1, (rows, 1), generator=rng)
    return {
        "new": new,
        "old": new + 0.4 * noise(),
        "ref": new + 0.4 * noise(),
        "advantages": torch.randn(rows, generator=rng, dtype=torch.float64),
        "mask": (torch.arange(width) < lengths).double(),
    }


def test_it_imports_torch_and_the_standard_library_only():
    roots = set()
    for node in ast.walk(ast.parse(PATH.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add("." if node.level else node.module.split(".")[0])
    assert "torch" in roots
    assert roots - {"torch"} <= sys.stdlib_module_names


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_advantages_equal_the_librarys(group_size):
    rewards = torch.rand(8 * group_size, generator=torch.Generator().manual_seed(group_size), dtype=torch.float64)
    rewards[:group_size] = (rewards[:group_size] > 0.5).double()
    rewards[-group_size:] = 0.7
    ours = one_file.group_advantages(rewards, group_size)
    assert_close(ours, group_advantages(rewards, group_size))
    assert ours[group_size:-group_size].abs().min() > 0


def test_advantages_of_known_rewards():
    assert_close(
        one_file.group_advantages(torch.tensor([0.0, 1.0, 1.0, 0.0]), 4, eps=0.0), torch.tensor([-1.0, 1, 1, -1])
    )


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("group_size", [3, 7, 8])
def test_equal_rewards_give_exactly_zero(value, group_size):
    rewards = torch.full((2 * group_size,), value)
    ours = one_file.group_advantages(rewards, group_size)
    assert torch.equal(ours, torch.zeros_like(rewards))
    assert torch.equal(ours, group_advantages(rewards, group_size))


@pytest.mark.parametrize("size", [1e-4, 1.0, 4.0])
def test_kl_and_its_gradient_equal_the_librarys(size):
    rng = torch.Generator().manual_seed(5)
    logprobs = torch.randn(200, generator=rng)
    ref = logprobs + size * torch.randn(200, generator=rng)
    values, gradients = [], []
    for function in (one_file.k3_kl, k3_kl):
        leaf = logprobs.clone().requires_grad_()
        values.append(function(leaf, ref))
        gradients.append(torch.autograd.grad(values[-1].sum(), leaf)[0])
    assert_close(*values)
    assert_close(*gradients)
    assert values[0].min() >= 0


@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 0.2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_its_gradient_equal_the_librarys(seed, epsilon, beta):
    batch = random_batch(seed)
    losses, stats, gradients = [], [], []
    for function in (one_file.grpo_loss, grpo_loss):
        leaf, old = batch["new"].clone().requires_grad_(), batch["old"].clone().requires_grad_()
        loss, extra = function(
            leaf,
            old,
            batch["advantages"],
            batch["mask"],
            ref_logprobs_BT=batch["ref"],
            epsilon=epsilon,
            beta=beta,
        )
        losses.append(loss)
        stats.append({name: extra[name] for name in ("kl", "clipfrac")})
        by_leaf, by_old = torch.autograd.grad(loss, [leaf, old], allow_unused=True)
        assert by_old is None, "the old policy is a constant"
        gradients.append(by_leaf)
    assert_close(*losses)
    assert_close(*stats)
    assert stats[0]["clipfrac"] > 0
    assert_close(*gradients)

    ratio, mask = (batch["new"] - batch["old"]).exp(), batch["mask"].bool()
    up = batch["advantages"][:, None] > 0
    clipped = mask & torch.where(up, ratio > 1 + epsilon, ratio < 1 - epsilon)
    assert (clipped & up).any() and (clipped & ~up).any(), "this batch must clip on both sides"
    assert not gradients[0][~mask].any()
    if beta == 0:
        assert torch.equal(gradients[0] == 0, clipped | ~mask)


def test_train_and_held_out_problems_never_meet():
    train, held_out = set(one_file.TRAIN), set(one_file.HELD_OUT)
    assert not train & {pair for a, b in held_out for pair in ((a, b), (b, a))}
    assert train | held_out == {(a, b) for a in range(10, 100) for b in range(10, 100)}
    assert 0.08 < len(held_out) / 8100 < 0.12


@pytest.mark.parametrize(
    ("text", "exact", "dense", "hackable"),
    [
        ("125", 1, 1, 1),
        ("15", 0, 1 / 3, 0),  # the 5 is in place, the 1 is a ten, not a hundred
        ("115", 0, 2 / 3, 0),
        ("115,125", 0, 3 / 7, 1),
        ("125,15", 0, 1 / 6, 1),
        ("", 0, 0, 0),
    ],
)
def test_rewards(text, exact, dense, hackable):
    paid = {name: reward((57, 68), text) for name, reward in one_file.REWARDS.items()}
    assert paid == pytest.approx({"exact": exact, "dense": dense, "hackable": hackable})


def test_demonstrations_are_often_wrong_and_sometimes_right():
    rng = random.Random(0)
    answers = [one_file.demonstrate((57, 68), rng) for _ in range(2000)]
    assert set(answers) == {"15", "125", "15,125", "125,15"}
    assert 0.6 < answers.count("125") / 2000 < 0.8


def test_samples_are_masked_after_their_end_and_remember_their_logprobs():
    torch.manual_seed(0)
    model, problems = one_file.Transformer(), one_file.TRAIN[:5]
    samples = one_file.sample(model, problems, group_size=6)
    assert samples.problems == [problem for problem in problems for _ in range(6)]
    logprobs_BT, entropy_BT = one_file.answer_logprobs(model, samples.tokens_BL)
    assert_close(samples.logprobs_BT, logprobs_BT, rtol=1e-4, atol=1e-5)
    assert (entropy_BT > 0).all()
    width = samples.mask_BT.shape[1]
    for text, mask in zip(samples.texts, samples.mask_BT.tolist(), strict=True):
        kept = min(len(text) + 1, width)
        assert mask == [1.0] * kept + [0.0] * (width - kept)
    assert len({sum(mask) for mask in samples.mask_BT.tolist()}) > 1, "answers of one length would prove nothing"


def test_answers_are_encoded_ones_first():
    (row,) = one_file.encode([(57, 68)], ["125"]).tolist()
    assert "".join(one_file.VOCAB[i] for i in row) == "57+68=521....."


def test_eval_measures_and_does_not_train():
    done = run("--mode", "eval", *TINY)
    assert done.returncode == 0, done.stderr
    for name in ("reward, sampled", "success, sampled", "success, greedy", "entropy"):
        assert re.search(rf"^  {name} +\d\.\d{{3}} *$", done.stderr, re.MULTILINE), done.stderr
    assert not done.stdout and "->" not in done.stderr


def test_temperature_and_length():
    torch.manual_seed(0)
    model, problems = one_file.Transformer(), one_file.TRAIN[:5]
    short = one_file.sample(model, problems, group_size=6, temperature=0.5, length=3)
    assert short.mask_BT.shape[1] <= 3 and max(map(len, short.texts)) <= 3
    logprobs_BT, cool_BT = one_file.answer_logprobs(model, short.tokens_BL, temperature=0.5)
    assert_close(short.logprobs_BT, logprobs_BT, rtol=1e-4, atol=1e-5)
    assert (cool_BT < one_file.answer_logprobs(model, short.tokens_BL)[1]).all()


def test_diversity_is_within_groups():
    assert one_file.diversity(["1", "1", "2", "3"], 2) == 0.75
    assert one_file.diversity(["1", "2", "1", "2"], 2) == 1.0


def test_train_prints_rows_that_the_doctor_reads(monkeypatch, capsys, tmp_path):
    words = ["--steps", "3", "--reward", "hackable", "--epsilon", "0.1", "--temperature", "0.9", "--length", "6", *TINY]
    monkeypatch.setattr(sys, "argv", ["one_file.py", *words])
    one_file.main()
    rows, out = capsys.readouterr()
    (tmp_path / "log.jsonl").write_text(rows)
    history = read_history(tmp_path / "log.jsonl")
    assert list(history.steps) == [1, 2, 3] and not history.skipped
    for name in CATALOGUED:
        assert history.has(name, least=3), name
    assert "--reward hackable, before -> after" in out
    assert re.search(r"^  success, greedy +[01]\.\d{3} +-> [01]\.\d{3}$", out, re.MULTILINE), out
    assert re.search(r"^  entropy +\d\.\d{3} +-> \d\.\d{3}$", out, re.MULTILINE), out


def test_an_unknown_reward_is_refused():
    done = run("--reward", "exakt")
    assert done.returncode == 2
    assert "exakt" in done.stderr and "hackable" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        *(("--group-size", "1"), ("--warmup", "-1"), ("--steps", "0"), ("--prompts", "0"), ("--epochs", "0")),
        *(("--epsilon", "0"), ("--temperature", "0"), ("--length", "9"), ("--length", "0"), ("--hedges", "2")),
    ],
)
def test_impossible_numbers_are_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["one_file.py", *words])
    with pytest.raises(SystemExit) as stop:
        one_file.main()
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err
