"""The noise and the choice: chi-square tests with fixed seeds, cuts by hand, and nothing that depends on the batch."""

import math

import pytest
import torch
from torch.testing import assert_close

from outdo.rollout.sampling import MAX_SUPPORT, pick, uniforms
from outdo.seeds import seed_of
from outdo.types import SampleParams

GRAIN = 2.0**-24
# The 99.9% points of chi-square, by degrees of freedom (printed tables).
CHI_SQUARE = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 7: 24.322, 15: 37.697, 99: 148.230}


def params(**options):
    return SampleParams(max_completion_length=1, **options)


def chi_square(counts, probabilities):
    counts, expected = torch.as_tensor(counts).double(), torch.tensor(probabilities).double() * sum(counts)
    kept = expected > 0
    assert counts[~kept].sum() == 0, "something of probability 0 was drawn"
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum().item()
    return statistic, CHI_SQUARE[int(kept.sum()) - 1]


def hashed(n, name="noise"):
    return torch.tensor([seed_of(name, i) for i in range(n)])


def splitmix64(seed, position):
    """The published generator in Python's whole numbers: the output after position + 1 steps."""
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [splitmix64(1234567, i) for i in range(4)] == published
    for position, value in enumerate(published):
        assert uniforms(torch.tensor([1234567]), position).item() == pytest.approx(value / 2**64, abs=GRAIN)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), *hashed(50).tolist()]
    for position in (0, 1, 77, 10**6):
        expected = [splitmix64(seed % 2**64, position) / 2**64 for seed in seeds]
        assert uniforms(torch.tensor(seeds), position).tolist() == pytest.approx(expected, abs=GRAIN)


def test_noise_range():
    seeds = hashed(2000)
    noise = torch.cat([uniforms(seeds, position) for position in range(100)])
    assert noise.dtype == torch.float32
    assert noise.min().item() >= 0.0
    assert noise.max().item() < 1.0
    assert_close(noise.double() * 2**24, (noise.double() * 2**24).round(), rtol=0, atol=0)
    assert len(noise.unique()) > 0.98 * len(noise)


@pytest.mark.parametrize(
    "seeds", [hashed(1000), torch.arange(1000), torch.arange(1000) * 2**32], ids=["hash", "0..", "wide"]
)
def test_noise_uniform(seeds):
    noise = torch.stack([uniforms(seeds, position) for position in range(100)])
    for sample in (noise.flatten(), noise[0], noise[57], noise[:, 3]):
        statistic, limit = chi_square(torch.histc(sample, 16, 0, 1).tolist(), [1 / 16] * 16)
        assert statistic < limit


@pytest.mark.parametrize("seeds", [hashed(20_000), torch.arange(20_000)], ids=["hash", "0.."])
def test_noise_independent(seeds):
    here, next_position = uniforms(seeds, 5), uniforms(seeds, 6)
    pairs = {"position": (here, next_position), "seed": (here[:-1], here[1:]), "far": (here, uniforms(seeds, 4000))}
    for a, b in pairs.values():
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 4 / math.sqrt(len(a))
        cells = (a * 10).long() * 10 + (b * 10).long()
        statistic, limit = chi_square(torch.bincount(cells, minlength=100).tolist(), [0.01] * 100)
        assert statistic < limit


def test_draw_ignores_neighbours():
    seeds, logits = hashed(64), torch.randn(64, 30, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    how = params(temperature=0.9, top_p=0.9, top_k=20)
    tokens, logprobs, _ = pick(logits, uniforms(seeds, 3), how)
    assert torch.equal(uniforms(seeds[order], 3), uniforms(seeds, 3)[order])
    shuffled = pick(logits[order], uniforms(seeds[order], 3), how)
    assert torch.equal(shuffled[0], tokens[order])
    assert_close(shuffled[1], logprobs[order])
    for i in (0, 40):
        assert pick(logits[i : i + 1], uniforms(seeds[i : i + 1], 3), how)[0].item() == tokens[i].item()


def test_inverse_cdf():
    logits = torch.tensor([0.2, 0.3, 0.5]).log()
    for noise, token in ((0.0, 0), (0.19, 0), (0.21, 1), (0.49, 1), (0.51, 2), (1 - GRAIN, 2)):
        chosen, logprob, _ = pick(logits[None], torch.tensor([noise]), params())
        assert chosen.item() == token
        assert logprob.item() == pytest.approx(logits[token].item(), abs=1e-6)


PROBABILITIES = [0.4, 0.02, 0.25, 0.0, 0.08, 0.15, 0.03, 0.07]


def frequencies(n, **options):
    logits = torch.tensor(PROBABILITIES).log() * options.get("temperature", 1.0) + 3.0
    tokens, *_ = pick(logits.expand(n, -1), uniforms(hashed(n, "frequencies"), 0), params(**options))
    return torch.bincount(tokens, minlength=8).tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies(temperature):
    """The logits are multiplied by the temperature first, so that the same probabilities must come out."""
    counts = frequencies(20_000, temperature=temperature)
    kept = [i for i, p in enumerate(PROBABILITIES) if p]
    assert counts[3] == 0
    expected = [20_000 * PROBABILITIES[i] for i in kept]
    statistic = sum((counts[i] - e) ** 2 / e for i, e in zip(kept, expected, strict=True))
    assert statistic < 22.458  # 6 degrees of freedom


@pytest.mark.parametrize(
    ("options", "support"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 2, 5]),
        ({"top_k": 100}, [0, 1, 2, 4, 5, 6, 7]),
        ({"top_p": 0.3}, [0]),
        ({"top_p": 0.6}, [0, 2]),
        ({"top_p": 0.7}, [0, 2, 5]),
        ({"top_p": 0.85}, [0, 2, 4, 5]),
        ({"top_p": 1e-6}, [0]),
        # of .4 .25 .15, that is .5 .3125 .1875 of what top_k left: .49 is reached by the first alone
        ({"top_k": 3, "top_p": 0.49}, [0]),
        ({"top_k": 3, "top_p": 0.6}, [0, 2]),
        ({"top_k": 2, "top_p": 0.99}, [0, 2]),
    ],
)
def test_truncation(options, support):
    counts = frequencies(20_000, **options)
    assert [token for token, count in enumerate(counts) if count] == support
    total = sum(PROBABILITIES[token] for token in support)
    for token in support:
        share = PROBABILITIES[token] / total
        assert abs(counts[token] / 20_000 - share) <= 4 * math.sqrt(share * (1 - share) / 20_000)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_truncated_logprobs(temperature):
    logits = torch.tensor([[2.0, -1.0, 1.0, 0.0]])
    total = math.exp(2.0 / temperature) + math.exp(1.0 / temperature)
    for noise, token in ((0.01, 0), (0.99, 2)):
        found, logprob, support = pick(logits, torch.tensor([noise]), params(temperature=temperature, top_k=2))
        assert found.item() == token and support.tolist() == [[0, 2]]
        assert logprob.item() == pytest.approx(logits[0, token].item() / temperature - math.log(total), abs=1e-6)


def test_min_p():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    _, _, support = pick(logits, torch.tensor([0.5]), params(min_p=0.29))
    assert support.tolist() == [[0, 1, 2, -1]]
    _, _, support = pick(logits, torch.tensor([0.5]), params(min_p=0.31, top_p=0.999))
    assert support.tolist() == [[0, 1, -1, -1]]


def test_max_support():
    logits = torch.zeros(1, 1000)
    _, logprob, support = pick(logits, torch.tensor([0.5]), params(top_p=0.9))
    assert support.shape == (1, MAX_SUPPORT) and logprob.item() == pytest.approx(-math.log(MAX_SUPPORT), abs=1e-5)


def test_greedy():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 4.9]])
    for noise in (0.0, 0.5, 1 - GRAIN):
        tokens, logprobs, _ = pick(logits, torch.full((2,), noise), params(temperature=0.0, top_p=0.5, top_k=1))
        assert tokens.tolist() == [1, 0]
        assert_close(logprobs, torch.stack([logits.log_softmax(-1)[0, 1], logits.log_softmax(-1)[1, 0]]))


@pytest.mark.parametrize("noise", [0.0, 0.5, 1 - GRAIN])
def test_zero_probability_never_drawn(noise):
    banned = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    assert pick(banned, torch.tensor([noise]), params())[0].item() in (1, 3)
    assert pick(banned, torch.tensor([noise]), params(top_k=4, top_p=0.99))[0].item() in (1, 3)


def test_large_vocabulary_bfloat16():
    """Cumulated rounding must not push the last draw past the end, nor bias the halves."""
    n, vocabulary = 256, 50_000
    logits = torch.zeros(n, vocabulary, dtype=torch.bfloat16)
    tokens, logprobs, _ = pick(logits, uniforms(hashed(n), 9), params())
    assert tokens.max().item() < vocabulary
    assert_close(logprobs, torch.full((n,), -math.log(vocabulary)))
    statistic, limit = chi_square(torch.histc(tokens.float(), 8, 0, vocabulary).tolist(), [1 / 8] * 8)
    assert statistic < limit
    last = pick(logits[:1], torch.tensor([1 - GRAIN]), params())[0].item()
    assert last >= vocabulary - 10
