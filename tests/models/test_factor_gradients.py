"""The gradients of an adapter's factors, which never form that of a weight, against that gradient projected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from outdo.learn.packing import pack
from outdo.learn.plain import answer_logprobs
from outdo.models.load import Policy, load_policy, loaded_model, policy_of
from outdo.models.lora import ALL, Lora
from outdo.models.tiny import tiny_tokenizer
from outdo.types import Sample

PROMPTS = [(5, 6, 7, 8), (9, 10, 11)]
ROWS = [
    Sample(0, (9, 11, 4), (-1.0, -2.0, -0.5), 1.0),
    Sample(0, (12, 4), (-3.0, -1.0), -1.0),
    Sample(1, (20, 21), (-4.0, -4.0), 0.5),
]
SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}
FAMILIES = {  # class: its config; whether its layers are written out
    "Llama": (GROUPED, True),
    "Qwen2": (GROUPED, True),  # with a bias on queries, keys and values
    "Qwen3": (GROUPED, True),  # with norms of queries and keys
    "Gemma": (GROUPED, False),
    "GPTNeoX": (SIZES, False),
    "Phi": (SIZES, False),
}


def folder_of(tmp_path: Path, family: str, **more: Any) -> Path:
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    ends = {"pad_token_id": 0, "eos_token_id": 4, "bos_token_id": 4, "max_position_embeddings": 64}
    keys = {**FAMILIES[family][0], "vocab_size": len(tokenizer), **ends, **more}
    config = getattr(transformers, f"{family}Config")(**keys)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.1)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def loss_of(policy: Policy, recompute: bool) -> torch.Tensor:
    packed = pack(PROMPTS, ROWS, policy.device)
    logprobs_BT, entropy_BT = answer_logprobs(policy, packed, 1.0, recompute)
    weights_BT = torch.linspace(-1.0, 1.0, logprobs_BT.numel(), device=policy.device).view_as(logprobs_BT)
    return ((logprobs_BT + 0.1 * entropy_BT) * weights_BT * packed.mask_BT).sum()


def check(
    base: Path, targets: tuple[str, ...], recompute: bool = False, dtype: str = "float32", device: str = "cpu"
) -> Policy:
    policy = load_policy(str(base), device=device, dtype=dtype, lora=Lora(4, 8.0, targets))
    adapter = policy.adapter
    assert adapter
    generator = torch.Generator().manual_seed(7)
    for factor in adapter.pairs[1::2]:
        factor.data.copy_(torch.randn(factor.shape, generator=generator) * 0.05)
    adapter.publish()
    whole = load_policy(str(base), device=device, dtype=dtype)
    whole.model.load_state_dict(policy.model.state_dict())
    for one in (policy, whole):
        if recompute and not one.stack:
            one.model.gradient_checkpointing_enable({"use_reentrant": False})
        one.set_training(True)
        loss_of(one, recompute).backward()
    for i, name in enumerate(adapter.names):
        (a, b), grad = adapter.pairs[2 * i : 2 * i + 2], whole.model.get_parameter(f"{name}.weight").grad
        assert grad is not None and a.grad is not None and b.grad is not None
        for ours, expected in ((a.grad, b.T @ grad.float()), (b.grad, grad.float() @ a.T)):
            scaled = adapter.scale * expected.detach()
            error = float((ours - scaled).norm() / scaled.norm())
            assert error < (1e-5 if dtype == "float32" else 0.03), (name, error)
    return policy


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path: Path, family: str, recompute: bool) -> None:
    policy = check(folder_of(tmp_path, family), (ALL,), recompute)
    assert bool(policy.stack) == FAMILIES[family][1] and not policy.plain
    assert not any(p.requires_grad for p in policy.model.parameters()), "no gradient of a weight is computed"


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("k_proj",), ("up_proj", "o_proj"), ("down_proj",)])
def test_targets(tmp_path: Path, targets: tuple[str, ...]) -> None:
    policy = check(folder_of(tmp_path, "Qwen2"), targets)
    assert policy.adapter and len(policy.adapter.names) == 2 * len(targets)


@pytest.mark.parametrize("family", ["Llama", "Gemma"])
def test_head(tmp_path: Path, family: str) -> None:
    """Its product is computed in chunks, and the gradient of its weight is projected."""
    policy = check(folder_of(tmp_path, family, tie_word_embeddings=False), ("lm_head", "q_proj"))
    assert [name for name, p in policy.model.named_parameters() if p.requires_grad] == ["lm_head.weight"]


def test_plain(tmp_path: Path) -> None:
    """A class that supports no attention of ours runs by its own forward."""
    policy = check(folder_of(tmp_path, "Gemma"), (ALL,))
    assert not policy.stack
    base = tmp_path / "base"
    other = load_policy(str(base), device="cpu", lora=Lora(4, 8.0))
    object.__setattr__(other, "plain", True)
    other.model.set_attn_implementation("eager")
    assert policy.adapter and other.adapter
    for mine, theirs in zip(other.adapter.pairs, policy.adapter.pairs, strict=True):
        mine.data.copy_(theirs)
    other.adapter.publish()
    loss_of(other, False).backward()
    for mine, theirs in zip(other.adapter.pairs, policy.adapter.pairs, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-3)


def test_weight_that_no_layer_multiplies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a class uses a weight without calling its layer, a hook on the layer would see nothing."""
    mlp = transformers.models.gemma.modeling_gemma.GemmaMLP

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.linear(x, self.gate_proj.weight)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x))

    monkeypatch.setattr(mlp, "forward", forward)
    policy = check(folder_of(tmp_path, "Gemma"), (ALL,))
    frozen = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert frozen == [f"model.layers.{i}.mlp.gate_proj.weight" for i in range(2)]


def test_given_model_is_trainable_afterwards(tmp_path: Path) -> None:
    """By its own forward, and without gradients of factors that are gone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder_of(tmp_path, "Gemma"))
    model.model.norm.requires_grad_(False)
    given = loaded_model(model, tiny_tokenizer())
    with given.as_given():
        policy = policy_of(given, tmp_path, dtype="float32", device="cpu", lora=Lora(4, 8.0))
        loss_of(policy, False).backward()
        assert not any(p.requires_grad for p in model.parameters())
    del policy
    model(input_ids=torch.arange(6)[None], use_cache=False).logits.square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == ["model.norm.weight"]


@pytest.mark.parametrize("family", ["Qwen2", "Gemma"])
def test_bfloat16(tmp_path: Path, family: str) -> None:
    check(folder_of(tmp_path, family), (ALL,), dtype="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Gemma"])
@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_on_a_gpu(tmp_path: Path, family: str, recompute: bool) -> None:
    check(folder_of(tmp_path, family), (ALL,), recompute, dtype="bfloat16", device="cuda")
