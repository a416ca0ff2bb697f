"""Models of several families, made on the spot, loaded as strangers' folders are; and those that must be refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from outdo import api
from outdo.errors import ModelError
from outdo.learn.learner import LocalLearner
from outdo.learn.logprobs import token_logprobs
from outdo.learn.packing import forward, pack
from outdo.learn.plain import plain_logprobs
from outdo.models.load import load_policy, pick_device, save_policy
from outdo.models.tiny import tiny_tokenizer
from outdo.recipe.load import load_recipe
from outdo.training.console import PlainLines
from outdo.types import Sample, SampleParams
from support.basics import prompt_of
from support.families import make
from support.samplers import hf_sampler, local_sampler

FAMILIES = [
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "head_dim": 16}),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    ("Qwen2", {}),
    ("Qwen3", {}),
    ("Mistral", {"sliding_window": None}),
    ("Mistral", {"sliding_window": 8}),
    ("Gemma", {}),
    ("Gemma2", {"head_dim": 8, "sliding_window": 8}),
    ("Gemma3", {"head_dim": 8, "sliding_window": 8, "num_hidden_layers": 6}),
    ("SmolLM3", {"num_hidden_layers": 4}),
    ("Granite", {"residual_multiplier": 0.5}),
]
PROMPTS = [prompt_of(text) for text in ("1+1", "what is 12+345?", "9")]


@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_families(tmp_path: Path, family: str, more: dict[str, Any]) -> None:
    policy = load_policy(str(make(tmp_path, family, **more)), device="cpu")
    params = SampleParams(12, temperature=0.0)
    ours = {g.prompt.id: g.trajectories[0] for g in local_sampler(policy).sample(PROMPTS, 1, params, 0)}
    theirs = {g.prompt.id: g.trajectories[0] for g in hf_sampler(policy).sample(PROMPTS, 1, params, 0)}
    for key, mine in ours.items():
        assert mine.token_ids == theirs[key].token_ids
        torch.testing.assert_close(
            torch.tensor(mine.logprobs), torch.tensor(theirs[key].logprobs), atol=1e-4, rtol=1e-4
        )
    rows = [Sample(i, c.token_ids, c.logprobs, 1.0) for i, c in enumerate(ours.values())]
    packed = pack([policy.renderer.encode(prompt_of(key)) for key in ours], rows, policy.device)
    forward(policy, packed).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.model.base_model.parameters())


def test_written_out_models(tmp_path: Path) -> None:
    """Those whose layers only look like Llama's are found out by their logits, and run by their own modules."""
    stacks = {}
    for family, more in (("Llama", {}), ("Qwen3", {}), ("Gemma", {}), ("Granite", {"residual_multiplier": 0.5})):
        stacks[family] = load_policy(str(make(tmp_path / family, family, **more)), device="cpu").stack is not None
    assert stacks == {"Llama": True, "Qwen3": True, "Gemma": False, "Granite": False}


def test_frozen_copy(tmp_path: Path) -> None:
    """The reference of a model that only looks written out must not be."""
    policy = load_policy(str(make(tmp_path, "Granite", residual_multiplier=0.5)), device="cpu")
    learner = LocalLearner(policy, load_recipe(None, {"beta": 0.1}))
    assert policy.stack is None and learner.reference is not None and learner.reference.policy.stack is None


# Logits that are scaled after the head; position by a bias of its own; rotary attention of its own.
STRANGERS = [
    ("Granite", {"logits_scaling": 8.0}),
    ("Bloom", {"n_layer": 2, "n_head": 4}),
    ("Falcon", {"alibi": False, "new_decoder_architecture": False}),
]


@pytest.mark.parametrize(("family", "more"), STRANGERS)
def test_plain_models(tmp_path: Path, family: str, more: dict[str, Any]) -> None:
    policy = load_policy(str(make(tmp_path, family, **more)), device="cpu")
    assert policy.plain and policy.stack is None
    prompts = [policy.renderer.encode(prompt) for prompt in PROMPTS]
    answers = [(0, (5, 9, 11, 4)), (0, (7, 4)), (1, (8,)), (1, tuple(range(6, 26))), (2, (12, 13, 14))]
    rows = [Sample(p, ids, (0.0,) * len(ids), 1.0) for p, ids in answers]
    packed = pack(prompts, rows, policy.device)
    policy.model.eval()
    chosen, entropy = plain_logprobs(policy, packed, 0.7)
    alone, alone_entropy = [], []
    for p, ids in answers:
        logits = policy.model(input_ids=torch.tensor([[*prompts[p], *ids]]), use_cache=False).logits[0]
        logp = (logits[len(prompts[p]) - 1 : -1] / 0.7).log_softmax(-1)
        alone.append(logp.gather(-1, torch.tensor(ids)[:, None])[:, 0])
        alone_entropy.append(-(logp.exp() * logp).sum(-1))
    torch.testing.assert_close(chosen, torch.cat(alone), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.cat(alone_entropy), atol=1e-4, rtol=1e-5)
    weight = torch.linspace(-1.0, 1.0, len(chosen))
    (chosen @ weight).backward()
    ours = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    (torch.cat(alone) @ weight).backward()
    for name, parameter in policy.model.named_parameters():
        if parameter.grad is not None:
            assert (ours[name] - parameter.grad).norm() < 1e-4 * parameter.grad.norm().clamp(min=0.1), name


def test_plain_model_trains(tmp_path: Path) -> None:
    folder = make(tmp_path / "granite", "Granite", logits_scaling=8.0)
    said = io.StringIO()
    result = api.train(
        model_name_or_path=str(folder),
        max_steps=2,
        max_completion_length=8,
        num_generations=4,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        importance_sampling="never",
        sft_steps=1,
        sft_batch_size=2,
        beta=0.01,
        top_p=0.9,
        eval_size=2,
        eval_samples=1,
        device="cpu",
        output_dir=str(tmp_path / "run"),
        reward_funcs=[_length],
        reporter=PlainLines(Console(file=said, width=200)),
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert all(row["mismatch_kl"] < 1e-8 and row["grad_norm"] > 0 for row in rows)
    slow = "GraniteForCausalLM: outdo's own attention does not give its logits; using transformers' generate"
    assert said.getvalue().count(slow) == 1
    before, after = (load_policy(str(where), device="cpu").model for where in (folder, result.model))
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert any(moved)
    assert api.evaluate(result.model, size=2, samples=1, max_completion_length=4, device="cpu").n == 2


def _length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_gradients_equal_plain_forward(tmp_path: Path, family: str, more: dict[str, Any]) -> None:
    """Packed, with shared prompts and a backward written out, against transformers' own modules one row at a time."""
    policy = load_policy(str(make(tmp_path, family, **more)), device="cpu")
    prompts = [policy.renderer.encode(prompt) for prompt in PROMPTS]
    answers = [(0, (5, 9, 11, 4)), (0, (7, 4)), (1, (8,)), (1, tuple(range(6, 26))), (2, (12, 13, 14))]
    rows = [Sample(p, ids, (0.0,) * len(ids), 1.0) for p, ids in answers]
    weight = torch.linspace(-1.0, 1.0, sum(len(ids) for _, ids in answers))
    packed = pack(prompts, rows, policy.device)
    for recompute in (False, True):
        policy.model.zero_grad()
        chosen, _ = token_logprobs(
            forward(policy, packed, recompute), policy.head, packed.targets_M, 1.0, None, policy.cap
        )
        (chosen @ weight).backward()
        ours = {name: p.grad.clone() for name, p in policy.model.named_parameters()}  # type: ignore[union-attr]
        policy.model.zero_grad()
        policy.model.set_attn_implementation("eager")
        plain = []
        for p, ids in answers:
            logits = policy.model(input_ids=torch.tensor([[*prompts[p], *ids]]), use_cache=False).logits[0]
            at = slice(len(prompts[p]) - 1, -1)
            plain.append(logits[at].log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0])
        policy.model.set_attn_implementation("outdo")
        torch.testing.assert_close(chosen, torch.cat(plain), atol=1e-5, rtol=1e-5)
        (torch.cat(plain) @ weight).backward()
        for name, parameter in policy.model.named_parameters():
            assert parameter.grad is not None
            assert (ours[name] - parameter.grad).norm() < 1e-5 * parameter.grad.norm().clamp(min=0.1), name


def test_save_and_load(tmp_path: Path) -> None:
    policy = load_policy("tiny", device="cpu", seed=9)
    save_policy(policy, tmp_path / "m")
    again = load_policy(str(tmp_path / "m"), device="cpu")
    assert again.eos_ids == policy.eos_ids and again.pad_id == policy.pad_id
    assert again.renderer.encode(PROMPTS[1]) == policy.renderer.encode(PROMPTS[1])
    for a, b in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_tiny_model() -> None:
    policy = load_policy("tiny", device="cpu")
    assert 0.9e6 < policy.num_parameters < 1.2e6
    text = "<think>7+6=13 8+5+1=14</think><answer>143</answer>\n~ {x}"
    ids = tuple(policy.renderer.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert policy.renderer.decode(ids) == text and len(ids) == len(text) - sum(
        len(t) - 1 for t in ("<think>", "</think>", "<answer>", "</answer>")
    )


def test_no_template_no_pad(tmp_path: Path) -> None:
    folder = make(tmp_path, "Llama")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.pad_token = None
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    policy = load_policy(str(folder), device="cpu")
    assert policy.eos_ids == (4,) and policy.pad_id == 1, "<unk>, and not the end"
    groups = list(local_sampler(policy).sample(PROMPTS, 2, SampleParams(6), 0))
    assert len(groups) == 3


def test_hub_name_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    with pytest.raises(ModelError, match="no network"):
        load_policy("nobody/nothing", device="cpu")


def test_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="device=cpu"):
        load_policy("tiny", device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpu_step(dtype: str) -> None:
    policy = load_policy("tiny", device="cuda", dtype=dtype)
    groups = list(local_sampler(policy).sample(PROMPTS, 4, SampleParams(12), 0))
    rows = [
        Sample(i, c.token_ids, c.logprobs, (-1.0) ** j)
        for i, g in enumerate(groups)
        for j, c in enumerate(g.trajectories)
    ]
    from outdo.types import Batch

    batch = Batch(tuple(g.prompt_ids for g in groups), tuple(rows), 0)
    recipe = load_recipe(None, {"per_device_train_batch_size": 12, "num_generations": 4, "beta": 0.01})
    stats = LocalLearner(policy, recipe).update(batch, 0)
    assert stats["mismatch_kl"] < (1e-6 if dtype == "float32" else 1e-2) and stats["grad_norm"] > 0


def test_named_gpu_becomes_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and streams go to the current device, whatever their tensors say."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert pick_device("cuda:1") == torch.device("cuda:1") and current == [torch.device("cuda:1")]
    with pytest.raises(ModelError, match="this machine has 2 GPUs"):
        pick_device("cuda:2")
