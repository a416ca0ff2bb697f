"""Supervised training: the loss is that of the answers alone, batches are as asked for, and a stop loses nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from learn.test_memory import Short
from outdo.errors import NumericsError, TaskError
from outdo.learn.sft import EncodedExample, SFTLearner, encode, run_sft_updates
from outdo.models.load import Policy, load_policy, save_policy
from outdo.models.lora import Lora
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.tasks.demonstrations import Demonstration, Demonstrations, find_demonstrations
from outdo.tasks.task import find_task
from support.basics import prompt_of
from support.batches import assert_same

EXAMPLES: list[Demonstration] = [
    (prompt_of("1+1"), "<answer>2</answer>"),
    (prompt_of("12+34"), "<think>2+4=6 1+3=4</think><answer>46</answer>"),
    (prompt_of("say nothing"), ""),
    (prompt_of("9+9"), "18"),
]


def recipe(**keys: Any) -> Recipe:
    base = {"sft_steps": 4, "sft_batch_size": 2, "sft_learning_rate": 1e-3, "max_grad_norm": 1e9}
    return load_recipe(None, {**base, **keys})


def encoded_examples(policy: Policy, **keys: Any) -> list[EncodedExample]:
    return list(encode(policy, iter(EXAMPLES), **{"max_length": None, **keys}))


def gradients_of(learner: SFTLearner, batch: Sequence[EncodedExample]) -> list[torch.Tensor]:
    caught: list[torch.Tensor] = []
    learner.optimizer.step = lambda *a: caught.extend(w.grad.clone() for w in learner.masters.weights)  # type: ignore
    learner.update(batch)
    return caught


def test_gradient_of_answer_and_end_token(policy: Policy) -> None:
    ours = gradients_of(SFTLearner(policy, recipe(), 1), encoded_examples(policy))
    policy.model.set_attn_implementation("eager")
    logprobs = []
    for prompt, text in EXAMPLES:
        asked = list(policy.renderer.encode(prompt))
        answer = [*policy.renderer.tokenizer(text, add_special_tokens=False)["input_ids"], policy.eos_ids[0]]
        logits = policy.model(input_ids=torch.tensor([asked + answer]), use_cache=False).logits[0, len(asked) - 1 : -1]
        logprobs.append(logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None]).flatten())
    policy.model.zero_grad()
    loss = -torch.cat(logprobs).mean()
    loss.backward()
    assert_same(ours, [p.grad for p in policy.model.parameters()])  # type: ignore[misc]


def test_micro_batches_leave_gradients_unchanged(policy: Policy) -> None:
    batch = encoded_examples(policy)
    whole = gradients_of(SFTLearner(policy, recipe(), 1), batch)
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    for tokens in (1, 30):
        parts = gradients_of(SFTLearner(policy, recipe(tokens_per_micro_batch=tokens), 1), batch)
        for a, b in zip(whole, parts, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_running_out_of_memory_changes_no_gradient(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encoded_examples(policy)
    whole = gradients_of(SFTLearner(policy, recipe(), 1), batch)
    short = Short(monkeypatch, 1, "forward")
    learner = SFTLearner(policy, recipe(), 1)
    assert_same(whole, gradients_of(learner, batch))
    assert short.failed > 0 and learner.tokens_at_once < 100


def test_max_length_truncates_or_skips(policy: Policy) -> None:
    whole = encoded_examples(policy)
    assert [one.index for one in whole] == [0, 1, 2, 3] and all(
        one.answer_ids[-1] == policy.eos_ids[0] for one in whole
    )
    longest = max(len(one.prompt_ids) for one in whole)
    cut = encoded_examples(policy, max_length=longest)
    assert [one.index for one in cut] == [0, 1, 3]  # the longest prompt leaves no room
    assert all(len(one.prompt_ids) + len(one.answer_ids) <= longest for one in cut)
    assert cut[1].answer_ids == whole[1].answer_ids[: len(cut[1].answer_ids)]
    nothing = Demonstrations("short", 4, 2, lambda: iter(EXAMPLES))
    with pytest.raises(TaskError, match="raise sft_max_length"):
        run_sft_updates(SFTLearner(policy, recipe(sft_max_length=2), 2), nothing, lambda rows: None)


def file_of(path: Path, count: int) -> str:
    rows = [{"prompt": f"{i}+0", "answer": str(i), "completion": f"it is {i}", "split": "train"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_epochs_show_each_example_once_and_end_exactly(tmp_path: Path) -> None:
    task = find_task(file_of(tmp_path / "d.jsonl", 10))
    keys = {"sft_steps": 0, "sft_epochs": 2.5, "sft_batch_size": 4}
    found = find_demonstrations(recipe(**keys), task)
    assert found and (found.num_examples, found.steps) == (25, 7)
    seen = [text for _, text in found.examples()]
    everything = sorted(f"it is {i}" for i in range(10))
    assert sorted(seen[:10]) == sorted(seen[10:20]) == everything and seen[:10] != seen[10:20]
    assert len(seen) == 25 and len(set(seen[20:])) == 5
    again, other = (find_demonstrations(recipe(**keys, seed=seed), task) for seed in (0, 1))
    assert again and [text for _, text in again.examples()] == seen
    assert other and [text for _, text in other.examples()] != seen
    assert [text for _, text in found.examples(skip=18)] == seen[18:]


def test_epochs_of_a_task_without_end_and_of_data_without_answers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outdo.tasks.demonstrations.MAX_FINITE", 1000)
    (tmp_path / "d.jsonl").write_text('{"prompt": "1+1", "answer": 2, "split": "train"}\n')
    with pytest.raises(TaskError, match="no demonstrations"):
        find_demonstrations(recipe(sft_dataset_name=str(tmp_path / "d.jsonl")), find_task("arithmetic"))
    with pytest.raises(TaskError, match=r"endlessly.*sft_steps"):
        find_demonstrations(recipe(sft_steps=0, sft_epochs=1), find_task("countdown"))


def test_a_system_prompt_goes_before_data_of_another_name_once(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "q"}]
    rows = [
        {"messages": [*own, {"role": "assistant", "content": "a"}], "split": "train"},
        {"prompt": "p", "completion": "c", "split": "train"},
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"sft_dataset_name": str(tmp_path / "d.jsonl"), "sft_steps": 0, "sft_epochs": 1, "system_prompt": "be brief"}
    found = find_demonstrations(recipe(**keys), find_task("arithmetic"))
    assert found
    shown = {text: [m["content"] for m in prompt.messages] for prompt, text in found.examples()}
    assert shown == {"a": ["mine", "q"], "c": ["be brief", "p"]}


def test_loss_falls_and_rate_follows_the_schedule(policy: Policy) -> None:
    lessons = Demonstrations("four", 60, 4, lambda: iter(EXAMPLES * 15))
    learner = SFTLearner(policy, recipe(sft_learning_rate=3e-3), lessons.steps)
    before, _ = learner.loss_on(encoded_examples(policy))
    rows: list[dict[str, Any]] = []
    run_sft_updates(learner, lessons, rows.extend)
    after, tokens = learner.loss_on(encoded_examples(policy))
    assert after < before / 4 and tokens == sum(len(one.answer_ids) for one in encoded_examples(policy))
    assert [row["step"] for row in rows] == list(range(1, 16)) and rows[0]["loss"] == pytest.approx(before, rel=1e-4)
    assert rows[0]["lr"] == pytest.approx(3e-3) and rows[7]["lr"] == pytest.approx(
        3e-3 / 2 * (1 + math.cos(math.pi * 6 / 14))
    )


def test_losses_read_in_batches_are_the_same(policy: Policy) -> None:
    def run(max_unread: int) -> tuple[list[Any], list[int]]:
        learner, rows = SFTLearner(load_policy("tiny", device="cpu", seed=3), recipe(), 5), []
        learner.max_unread = max_unread
        sizes: list[int] = []
        run_sft_updates(
            learner,
            Demonstrations("four", 10, 2, lambda: iter(EXAMPLES * 3)),
            lambda r: (rows.extend(r), sizes.append(len(r))),
        )  # type: ignore[func-returns-value]
        return rows, sizes

    (one_by_one, ones), (batched, some) = run(1), run(3)
    assert one_by_one == batched and ones == [1, 1, 1, 1, 1, 0] and some == [0, 0, 3, 0, 0, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_bit_equal(dtype: str) -> None:
    lessons = Demonstrations("four", 11, 2, lambda: iter(EXAMPLES * 3))

    def fresh() -> SFTLearner:
        return SFTLearner(
            load_policy("tiny", dtype=dtype, device="cpu", seed=3), recipe(sft_weight_decay=0.1), lessons.steps
        )

    class Stop(Exception): ...

    steady, first, second = fresh(), fresh(), fresh()
    run_sft_updates(steady, lessons, lambda rows: None)

    def stop_at_three() -> None:
        if first.done == 3:
            raise Stop

    with pytest.raises(Stop):
        run_sft_updates(first, lessons, lambda rows: None, stop_at_three)
    assert first.taken == 6
    second.policy.model.load_state_dict(first.policy.model.state_dict())
    second.load_state(*first.state())
    run_sft_updates(second, lessons, lambda rows: None)
    assert second.done == steady.done == 6
    for a, b in zip(steady.masters.weights, second.masters.weights, strict=True):
        assert torch.equal(a, b)


def test_non_finite_gradient_is_skipped_then_halts(policy: Policy) -> None:
    learner, batch = SFTLearner(policy, recipe(), 9), encoded_examples(policy)
    learner.update(batch)
    learner.read()
    before = [p.detach().clone() for p in policy.model.parameters()]
    hook = policy.model.get_input_embeddings().weight.register_hook(lambda grad: grad * math.nan)
    learner.update(batch)
    learner.read()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    learner.update(batch)
    learner.update(batch)
    with pytest.raises(NumericsError, match="sft_learning_rate"):
        learner.read()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    hook.remove()
    learner.update(batch)
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_only_the_adapter_is_trained(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path / "base")
    adapted = load_policy(str(tmp_path / "base"), device="cpu", lora=Lora(r=4, alpha=8.0))
    assert adapted.adapter
    layers = {f"{name}.weight" for name in adapted.adapter.names}
    frozen = {name: p.detach().clone() for name, p in adapted.model.named_parameters() if name not in layers}
    lessons = Demonstrations("four", 60, 4, lambda: iter(EXAMPLES * 15))
    learner = SFTLearner(adapted, recipe(sft_learning_rate=2e-2), lessons.steps)
    before, _ = learner.loss_on(encoded_examples(adapted))
    run_sft_updates(learner, lessons, lambda rows: None)
    after, _ = learner.loss_on(encoded_examples(adapted))
    assert after < before * 0.8
    now = dict(adapted.model.named_parameters())
    assert frozen and all(torch.equal(value, now[name]) for name, value in frozen.items())
    assert sum(w.numel() for w in learner.masters.weights) == adapted.adapter.facts["parameters"]
