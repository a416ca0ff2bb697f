"""The local engine against transformers' generate, and against itself in other layouts."""

from __future__ import annotations

import pytest
import torch

from outdo.errors import TaskError
from outdo.learn.learner import LocalLearner
from outdo.models.load import Policy
from outdo.recipe.load import load_recipe
from outdo.types import Group, SampleParams
from support.basics import prompt_of
from support.samplers import ending_with, hf_sampler, local_sampler

PROMPTS = [prompt_of(text) for text in ("1+1", "12+345", "what is 7-2?", "9", "10-10", "1234567890+1")]


def by_prompt(groups: list[Group]) -> dict[str, list[tuple[int, ...]]]:
    return {g.prompt.id: [c.token_ids for c in g.trajectories] for g in groups}


def plain_logprobs(policy: Policy, group: Group, index: int, temperature: float) -> torch.Tensor:
    """Log-probabilities of one answer by an ordinary forward of the model, alone and unpadded."""
    answer = group.trajectories[index].token_ids
    ids = torch.tensor([[*group.prompt_ids, *answer]])
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0]
    policy.model.set_attn_implementation("outdo")
    logprobs = (logits[len(group.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(answer)[:, None])[:, 0]


def test_greedy_tokens_equal_those_of_generate(policy: Policy) -> None:
    params = SampleParams(24, temperature=0.0)
    ours = by_prompt(list(local_sampler(policy).sample(PROMPTS, 1, params, 0)))
    theirs = by_prompt(list(hf_sampler(policy).sample(PROMPTS, 1, params, 0)))
    assert ours == theirs


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_logprobs_equal_a_plain_forward(policy: Policy, temperature: float) -> None:
    params = SampleParams(20, temperature)
    for group in local_sampler(policy).sample(PROMPTS, 3, params, 1):
        for i, completion in enumerate(group.trajectories):
            expected = plain_logprobs(policy, group, i, temperature)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=1e-5)


def test_layout_changes_nothing(policy: Policy) -> None:
    params = SampleParams(16)
    together = by_prompt(list(local_sampler(policy, rows=512).sample(PROMPTS, 4, params, 5)))
    alone = by_prompt(list(local_sampler(policy, rows=4).sample(PROMPTS[::-1], 4, params, 5)))
    assert together == alone
    fewer = by_prompt(list(local_sampler(policy).sample(PROMPTS[:2], 2, params, 5)))
    assert all(fewer[key] == together[key][:2] for key in fewer)
    other = by_prompt(list(local_sampler(policy).sample(PROMPTS, 4, params, 6)))
    assert other != together


def test_siblings_differ(policy: Policy) -> None:
    (group,) = local_sampler(policy).sample(PROMPTS[:1], 8, SampleParams(16), 0)
    assert len({c.token_ids for c in group.trajectories}) == 8


def test_eos_ends_and_is_kept(policy: Policy) -> None:
    ends = tuple(range(40, 70))
    sampler = local_sampler(ending_with(policy, *ends))
    groups = list(sampler.sample(PROMPTS, 8, SampleParams(30), 3))
    answers = [c for g in groups for c in g.trajectories]
    assert {c.finish for c in answers} == {"stop", "length"} or all(c.finish == "stop" for c in answers)
    for answer in answers:
        assert not set(answer.token_ids[:-1]) & set(ends)
        assert (answer.token_ids[-1] in ends) == (answer.finish == "stop")
        assert answer.finish == "stop" or len(answer.token_ids) == 30
    for group in groups:  # rows that stayed on are not disturbed by those that left
        for i, completion in enumerate(group.trajectories):
            torch.testing.assert_close(
                torch.tensor(completion.logprobs), plain_logprobs(policy, group, i, 1.0), atol=1e-5, rtol=1e-5
            )


def test_versions_travel(policy: Policy) -> None:
    sampler = local_sampler(policy)
    sampler.update(LocalLearner(policy, load_recipe()), version=7)
    (group,) = sampler.sample(PROMPTS[:1], 2, SampleParams(2), 0)
    assert [c.version for c in group.trajectories] == [7, 7]


def test_long_prompt_named(policy: Policy) -> None:
    with pytest.raises(TaskError, match="does not fit the model's 512"):
        list(local_sampler(policy).sample([prompt_of("1" * 600)], 2, SampleParams(8), 0))


def test_one_new_token(policy: Policy) -> None:
    (group,) = local_sampler(policy).sample(PROMPTS[:1], 3, SampleParams(1), 0)
    assert [len(c.token_ids) for c in group.trajectories] == [1, 1, 1]
