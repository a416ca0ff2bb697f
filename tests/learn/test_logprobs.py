"""Chunked log-probabilities and entropies against the whole softmax in double precision, values and gradients."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from outdo.learn import logprobs as module
from outdo.learn.logprobs import token_logprobs

TOKENS, HIDDEN, VOCABULARY = 13, 7, 19


def made(bias=True, dtype=torch.float32, seed=0, spread=1.0):
    torch.manual_seed(seed)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=bias)
    with torch.no_grad():
        head.weight.mul_(spread * 3)
    hidden = torch.randn(TOKENS, HIDDEN)
    targets = torch.randint(VOCABULARY, (TOKENS,))
    targets[:3] = 5  # several tokens of one kind add up in one row of the weight's gradient
    return hidden.to(dtype).requires_grad_(True), head.to(dtype), targets


def whole(hidden, head, targets, temperature):
    """The same by the whole softmax in double precision; gradients come back in double."""
    parts = {"hidden": hidden, "weight": head.weight, "bias": head.bias}
    parts = {k: v.detach().double().requires_grad_(True) for k, v in parts.items() if v is not None}
    logits = parts["hidden"] @ parts["weight"].T / temperature
    if "bias" in parts:
        logits = logits + parts["bias"] / temperature
    probs = logits.softmax(-1)
    chosen = torch.stack([probs[i, t].log() for i, t in enumerate(targets.tolist())])
    entropy = -torch.special.xlogy(probs, probs).sum(-1)
    return chosen, entropy, parts


def weighing(seed=9):
    torch.manual_seed(seed)
    return torch.randn(TOKENS), torch.randn(TOKENS)


def gradients(hidden, head):
    found = {"hidden": hidden.grad, "weight": head.weight.grad}
    return found if head.bias is None else {**found, "bias": head.bias.grad}


@pytest.mark.parametrize("chunk", [1, VOCABULARY, 4 * VOCABULARY + 3, TOKENS * VOCABULARY, 2**22])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_equal_a_full_softmax(monkeypatch, chunk, temperature, bias):
    monkeypatch.setattr(module, "CHUNK", chunk)
    hidden, head, targets = made(bias)
    by_chosen, by_entropy = weighing()
    chosen, entropy = token_logprobs(hidden, head, targets, temperature)
    expected_chosen, expected_entropy, parts = whole(hidden, head, targets, temperature)
    assert_close(chosen.double(), expected_chosen, rtol=1e-5, atol=1e-5)
    assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=1e-5)
    assert chosen.dtype == entropy.dtype == torch.float32
    (chosen @ by_chosen + entropy @ by_entropy).backward()
    (expected_chosen @ by_chosen.double() + expected_entropy @ by_entropy.double()).backward()
    for name, gradient in gradients(hidden, head).items():
        assert_close(gradient.double(), parts[name].grad, rtol=2e-5, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("which", ["chosen", "entropy"])
def test_the_gradient_of_either_output_alone(monkeypatch, which):
    monkeypatch.setattr(module, "CHUNK", 3 * VOCABULARY)
    hidden, head, targets = made(seed=4)
    weights = weighing()[0]
    ours = dict(zip(("chosen", "entropy"), token_logprobs(hidden, head, targets, 0.8), strict=True))
    *theirs, parts = whole(hidden, head, targets, 0.8)
    (ours[which] @ weights).backward()
    (theirs[which == "entropy"] @ weights.double()).backward()
    for name, gradient in gradients(hidden, head).items():
        assert_close(gradient.double(), parts[name].grad, rtol=2e-5, atol=2e-5)


def test_the_gradient_equals_finite_differences():
    """Moves single numbers of hidden and weight: independent of every formula for a gradient."""
    hidden, head, targets = made(seed=2)
    by_chosen, by_entropy = weighing()
    chosen, entropy = token_logprobs(hidden, head, targets, 1.3)
    (chosen @ by_chosen + entropy @ by_entropy).backward()

    def value(**moved):
        parts = {"hidden": hidden, "weight": head.weight, "bias": head.bias}
        x = {k: moved.get(k, v.detach().double()) for k, v in parts.items()}
        logprobs = ((x["hidden"] @ x["weight"].T + x["bias"]) / 1.3).log_softmax(-1)
        rows = torch.arange(TOKENS)
        return logprobs[rows, targets] @ by_chosen.double() - (logprobs.exp() * logprobs).sum(-1) @ by_entropy.double()

    for name, at in (("hidden", (0, 3)), ("hidden", (12, 6)), ("weight", (5, 2)), ("weight", (18, 0)), ("bias", (5,))):
        base = {"hidden": hidden, "weight": head.weight, "bias": head.bias}[name].detach().double()
        step = torch.zeros_like(base)
        step[at] = 1e-5
        slope = (value(**{name: base + step}) - value(**{name: base - step})).item() / 2e-5
        assert gradients(hidden, head)[name][at].item() == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_a_uniform_head_by_hand():
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    nn.init.zeros_(head.weight)
    chosen, entropy = token_logprobs(torch.randn(2, HIDDEN), head, torch.tensor([0, 18]), 0.5)
    assert chosen.tolist() == pytest.approx([-math.log(VOCABULARY)] * 2)
    assert entropy.tolist() == pytest.approx([math.log(VOCABULARY)] * 2)


def test_temperature_divides_the_bias_too():
    head = nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.0]]))
        head.bias.copy_(torch.tensor([0.0, 2.0]))
    chosen, _ = token_logprobs(torch.tensor([[4.0]]), head, torch.tensor([0]), 2.0)  # logits 2 and 1
    assert chosen.item() == pytest.approx(-math.log1p(math.exp(-1)))


def test_large_logits_stay_finite():
    hidden, head, targets = made(spread=1e3)
    chosen, entropy = token_logprobs(hidden, head, targets, 0.1)
    (chosen.sum() + entropy.sum()).backward()
    assert bool(chosen.isfinite().all())
    assert bool(entropy.isfinite().all())
    assert bool((entropy >= -1e-6).all())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(hidden, head).values())


def test_bfloat16_weights_are_summed_in_float32(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2 * VOCABULARY)
    hidden, head, targets = made(dtype=torch.bfloat16)
    chosen, entropy = token_logprobs(hidden, head, targets, 1.0)
    expected_chosen, expected_entropy, parts = whole(hidden, head, targets, 1.0)
    assert chosen.dtype == torch.float32
    assert_close(chosen.double(), expected_chosen, rtol=0.02, atol=0.05)
    assert_close(entropy.double(), expected_entropy, rtol=0.02, atol=0.05)
    (chosen.sum() + entropy.sum()).backward()
    (expected_chosen.sum() + expected_entropy.sum()).backward()
    for name, gradient in gradients(hidden, head).items():
        assert gradient.dtype == torch.bfloat16
        assert_close(gradient.double(), parts[name].grad, rtol=0.05, atol=0.15)


def test_gradients_of_many_chunks_do_not_stall_in_bfloat16(monkeypatch):
    """Halves added one by one stop growing at 128 in bfloat16; 2,000 of them are 1,000."""
    monkeypatch.setattr(module, "CHUNK", 2)
    head = nn.Linear(1, 2, dtype=torch.bfloat16)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    hidden = torch.ones(2000, 1, dtype=torch.bfloat16)
    token_logprobs(hidden, head, torch.zeros(2000, dtype=torch.long), 1.0)[0].sum().backward()
    assert head.weight.grad.flatten().tolist() == [1000.0, -1000.0]
    assert head.bias.grad.tolist() == [1000.0, -1000.0]


def test_no_tokens_at_all():
    hidden, head, _ = made()
    chosen, entropy = token_logprobs(hidden[:0], head, torch.zeros(0, dtype=torch.long), 1.0)
    (chosen.sum() + entropy.sum()).backward()
    assert chosen.shape == entropy.shape == (0,)
    assert head.weight.grad.abs().max().item() == 0.0


def test_never_more_logits_at_once_than_the_chunk(monkeypatch):
    widths = []
    real = module.head_logits

    def watched(hidden, *rest):
        widths.append(len(hidden))
        return real(hidden, *rest)

    monkeypatch.setattr(module, "CHUNK", 4 * VOCABULARY + 3)
    monkeypatch.setattr(module, "head_logits", watched)
    hidden, head, targets = made()
    token_logprobs(hidden, head, targets, 1.0)[0].sum().backward()
    assert widths == [4, 4, 4, 1] * 2
    monkeypatch.setattr(module, "CHUNK", TOKENS * VOCABULARY)
    token_logprobs(hidden, head, targets, 1.0)[0].sum().backward()
    assert widths[8:] == [TOKENS]  # one chunk is kept, and not computed again


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("chunk", [4 * VOCABULARY, 2**22])
def test_support_and_capped_logits(monkeypatch, chunk, cap):
    monkeypatch.setattr(module, "CHUNK", chunk)
    hidden, head, targets = made()
    support = torch.full((TOKENS, 4), -1)
    support[:, 0] = targets
    support[::2, 1] = (targets[::2] + 3) % VOCABULARY
    support[::3, 2] = (targets[::3] + 7) % VOCABULARY
    by_chosen, by_entropy = weighing()
    chosen, entropy = token_logprobs(hidden, head, targets, 0.8, support, cap)
    (chosen @ by_chosen + entropy @ by_entropy).backward()
    ours = {name: gradient.clone() for name, gradient in gradients(hidden, head).items()}
    hidden.grad = head.weight.grad = head.bias.grad = None
    logits = head(hidden)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    left = torch.zeros(TOKENS, VOCABULARY, dtype=torch.bool)
    for row, ids in enumerate(support.tolist()):
        left[row, [i for i in ids if i >= 0]] = True
    logp = (logits / 0.8).masked_fill(~left, -torch.inf).log_softmax(-1)
    expected = logp.gather(-1, targets[:, None])[:, 0]
    expected_entropy = -torch.where(left, logp.exp() * logp.masked_fill(~left, 0.0), 0.0).sum(-1)
    assert_close(chosen, expected, rtol=1e-5, atol=1e-5)
    assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-5)
    (expected @ by_chosen + expected_entropy @ by_entropy).backward()
    for name, gradient in gradients(hidden, head).items():
        assert_close(ours[name], gradient, rtol=2e-5, atol=2e-5)
