"""The reference engine: log-probabilities are of what it sampled from, and answers end as the local engine's do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outdo.errors import TaskError
from outdo.models.load import Policy
from outdo.types import Group, SampleParams, Trajectory
from support.basics import prompt_of
from support.samplers import ending_with, hf_sampler, local_sampler

PROMPTS = [prompt_of(text) for text in ("1+1", "what is 7-2?")]


def plain_logits(policy: Policy, group: Group, answer: Trajectory) -> torch.Tensor:
    ids = torch.tensor([[*group.prompt_ids, *answer.token_ids]])
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(group.prompt_ids) - 1 : -1]
    policy.model.set_attn_implementation("outdo")
    return logits


@pytest.mark.parametrize(
    "cut", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.3}, {"top_k": 20, "top_p": 0.9, "min_p": 0.05}], ids=str
)
def test_logprobs_of_the_sampled_distribution(policy: Policy, cut: dict[str, float]) -> None:
    params = SampleParams(10, temperature=0.7, **cut)  # type: ignore[arg-type]
    sizes = set()
    for group in hf_sampler(policy).sample(PROMPTS, 3, params, 0):
        for answer in group.trajectories:
            logits = plain_logits(policy, group, answer) / 0.7
            every = tuple(range(logits.shape[-1]))
            support = answer.support if cut else (every,) * len(answer.token_ids)
            assert bool(answer.support) == bool(cut)
            sizes |= {len(kept) for kept in support}
            expected = [
                logits[t, list(kept)].log_softmax(-1)[kept.index(token)]
                for t, (token, kept) in enumerate(zip(answer.token_ids, support, strict=True))
            ]
            torch.testing.assert_close(torch.tensor(answer.logprobs), torch.stack(expected), atol=1e-5, rtol=1e-5)
            if cut:  # the same tokens as the local sampler would leave, likeliest first
                assert all(
                    list(kept) == logits[t].topk(len(kept)).indices.tolist() for t, kept in enumerate(answer.support)
                )
    assert sizes == {5} if cut == {"top_k": 5} else sizes


def test_same_support_as_local(policy: Policy) -> None:
    params = SampleParams(1, temperature=0.7, top_k=40, top_p=0.8, min_p=0.01)
    (ours,) = local_sampler(policy).sample(PROMPTS[:1], 2, params, 0)
    (theirs,) = hf_sampler(policy).sample(PROMPTS[:1], 2, params, 0)
    assert {c.support for c in ours.trajectories} == {c.support for c in theirs.trajectories}


def test_stop_texts_as_local(policy: Policy) -> None:
    """Greedy, so that both write the same."""
    ending = ending_with(policy, 40, 41)
    greedy = SampleParams(24, temperature=0.0)
    texts = [g.trajectories[0] for g in hf_sampler(ending).sample(PROMPTS, 1, greedy, 0)]
    stop = (texts[0].text[7:9], texts[1].text[-1:])
    params = replace(greedy, stop=stop)
    ours = {g.prompt.id: g.trajectories for g in local_sampler(ending).sample(PROMPTS, 1, params, 0)}
    theirs = {g.prompt.id: g.trajectories for g in hf_sampler(ending).sample(PROMPTS, 1, params, 0)}
    for key, (mine,) in ours.items():
        (other,) = theirs[key]
        assert (mine.token_ids, mine.text, mine.finish) == (other.token_ids, other.text, other.finish)
        assert mine.finish == "stop" and len(other.logprobs) == len(other.token_ids) <= 24
    assert min(len(c.token_ids) for (c,) in theirs.values()) < 24


def test_own_generation_config_is_ignored(policy: Policy) -> None:
    """Many models come with a repetition penalty, which the learner's log-probabilities do not include."""
    greedy = SampleParams(24, temperature=0.0)
    before = [g.trajectories[0].token_ids for g in hf_sampler(policy).sample(PROMPTS, 1, greedy, 0)]
    policy.model.generation_config.repetition_penalty = 1.8
    policy.model.generation_config.min_new_tokens = 24
    assert [g.trajectories[0].token_ids for g in hf_sampler(policy).sample(PROMPTS, 1, greedy, 0)] == before
    assert policy.model.generation_config.repetition_penalty == 1.8, "it is the model's own, and saved with it"


def test_stop_text_special_token(policy: Policy) -> None:
    params, special = SampleParams(40, temperature=3.0), policy.renderer.tokenizer.convert_ids_to_tokens(2)
    assert special in policy.renderer.tokenizer.all_special_tokens and special not in policy.renderer.decode((2, 40))
    for sampler in (local_sampler(policy), hf_sampler(policy)):
        whole = [c for g in sampler.sample(PROMPTS, 16, params, 1) for c in g.trajectories]
        assert any(2 in c.token_ids[:-1] for c in whole), "else there is nothing to stop at"
        cut = [c for g in sampler.sample(PROMPTS, 16, replace(params, stop=(special,)), 1) for c in g.trajectories]
        assert all(2 not in c.token_ids[:-1] for c in cut)
        assert all(c.finish == "stop" for c in cut if c.token_ids[-1] == 2)


def test_long_prompt_named(policy: Policy) -> None:
    with pytest.raises(TaskError, match="does not fit the model's 512"):
        list(hf_sampler(policy).sample([prompt_of("1" * 600)], 2, SampleParams(8), 0))
