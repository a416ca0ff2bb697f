"""What a model finds likely, against transformers' own forward; and what retention says of a model that was changed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outdo.errors import ModelError, TaskError
from outdo.evals.retention import QUESTIONS, RetentionTexts, windows
from outdo.learn.score import log_likelihoods
from outdo.models.load import Policy, load_policy


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "outdo.evals.retention.ANSWER_TOKENS", 24
    )  # of the base's answers: what is tested holds for any


TEXTS = [((9, 8), (20, 21, 22)), ((5,), (6,)), (tuple(range(5, 30)), tuple(range(30, 60)))]


@pytest.mark.parametrize("plain", [False, True])
def test_likelihood_against_forward(policy: Policy, plain: bool) -> None:
    if plain:
        policy.model.set_attn_implementation("eager")
    found = log_likelihoods(replace(policy, plain=plain), TEXTS)
    policy.model.set_attn_implementation("eager")
    for (given, scored), ours in zip(TEXTS, found, strict=True):
        ids = torch.tensor([[*given, *scored]])
        with torch.no_grad():
            logp = policy.model(input_ids=ids).logits[0].log_softmax(-1)
        theirs = sum(float(logp[len(given) + i - 1, token]) for i, token in enumerate(scored))
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_windows() -> None:
    ids = list(range(1000))
    parts = windows(ids, (), 512)
    assert len(parts) >= 16 and [token for given, scored in parts for token in (*given, *scored)] == ids
    led = windows(ids, (7,), 512)
    assert [token for _, scored in led for token in scored] == ids and all(given == (7,) for given, _ in led)
    assert max(len(g) + len(s) for g, s in windows(list(range(40_000)), (7,), 64)) == 64
    assert windows([1], (), 64) == []


def changed(policy: Policy, by: float) -> Policy:
    other = load_policy("tiny", device="cpu", seed=3)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * by)
    return other


def test_retention_by_size_of_change(policy: Policy) -> None:
    texts = RetentionTexts()
    texts.set_base("base", policy)
    assert len(texts.texts) == len(QUESTIONS)
    same, little, much = (texts.measure("m", p) for p in (policy, changed(policy, 0.01), changed(policy, 0.1)))
    assert same.change.value == pytest.approx(0.0, abs=1e-6) and same.perplexity == pytest.approx(same.base_perplexity)
    assert 0 > little.change.value > much.change.value and not much.change.is_noise
    assert math.log(much.base_perplexity / much.perplexity) == pytest.approx(much.change.value)
    again = RetentionTexts()
    again.set_base("base", policy)
    assert again.texts == texts.texts  # by a fixed seed


def test_user_text(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("It was a dark and stormy night.\n" * 40)
    texts = RetentionTexts(path)
    texts.set_base("base", policy)
    found = texts.measure("m", changed(policy, 0.1))
    assert found.texts >= 16 and found.tokens == 32 * 40 - found.texts  # the first of each stretch is given
    path.write_text("x")
    with pytest.raises(TaskError, match="nothing to score"):
        RetentionTexts(path).set_base("base", policy)
    with pytest.raises(TaskError, match="cannot read"):
        RetentionTexts(tmp_path / "nowhere")


def test_other_tokenizer_is_refused(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("<think>some text</think>" * 9)
    for texts in (RetentionTexts(), RetentionTexts(path)):
        texts.set_base("base", policy)
        other = load_policy("tiny", device="cpu")
        vocab = other.renderer.tokenizer.backend_tokenizer
        other.renderer.tokenizer._tokenizer = type(vocab).from_str(vocab.to_str().replace('"e":', '"§":'))
        with pytest.raises(ModelError, match="another tokenizer than base"):
            texts.measure("m", other)
