"""Adapters: what the optimizer moves, what PEFT makes of the files, going on, and what does not fit."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outdo import api
from outdo.errors import ModelError, RecipeError
from outdo.learn.learner import LocalLearner
from outdo.learn.logprobs import token_logprobs
from outdo.learn.packing import forward, pack
from outdo.models import stack
from outdo.models.load import Policy, load_policy, save_adapter, save_policy
from outdo.models.lora import Lora, factor_gradients
from outdo.recipe.load import load_recipe
from outdo.runs.reader import read_rows
from outdo.types import Batch, Sample
from support.basics import prompt_of

LORA = Lora(r=4, alpha=8.0, seed=1)
PROMPTS = [prompt_of(text) for text in ("1+1", "what is 12+345?")]
ROWS = [
    Sample(0, (9, 11, 4), (-1.0, -2.0, -0.5), 1.0),
    Sample(0, (12, 4), (-3.0, -1.0), -1.0),
    Sample(1, (20, 21), (-4.0, -4.0), 0.5),
]
IDS = torch.arange(5, 40)[None]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with the tiny model, drawn anew."""
    save_policy(load_policy("tiny", device="cpu", seed=5), tmp_path / "base")
    return tmp_path / "base"


def moved(policy: Policy) -> Policy:
    """With an adapter that changes something."""
    assert policy.adapter
    generator = torch.Generator().manual_seed(7)
    for factor in policy.adapter.pairs[1::2]:
        factor.data.copy_(torch.randn(factor.shape, generator=generator) * 0.05)
    policy.adapter.publish()
    return policy


def logits(model: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("targets", [("all-linear",), ("q_proj", "v_proj"), ("down_proj",)])
def test_factor_gradients(base: Path, targets: tuple[str, ...]) -> None:
    """Through the layers written out, against PEFT's own modules and autograd."""
    peft = pytest.importorskip("peft")
    policy = moved(load_policy(str(base), device="cpu", lora=Lora(4, 8.0, targets)))
    assert policy.adapter and policy.stack
    prompts = [policy.renderer.encode(prompt) for prompt in PROMPTS]
    packed = pack(prompts, ROWS, policy.device)
    weight = torch.linspace(-1.0, 1.0, len(packed.targets_M))
    chosen, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
    (chosen @ weight).backward()
    assert all(p.grad is None for p in policy.model.parameters()), "no gradient of a whole weight is kept"
    assert not any(p.requires_grad for p in policy.model.parameters()), "nor computed"
    save_adapter(policy, base.parent / "a")
    model = AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(model, base.parent / "a", is_trainable=True)
    plain = []
    for row in ROWS:
        prompt = prompts[row.prompt]
        out = theirs(input_ids=torch.tensor([[*prompt, *row.token_ids]]), use_cache=False).logits[0]
        picked = out[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(row.token_ids)[:, None])
        plain.append(picked[:, 0])
    torch.testing.assert_close(chosen, torch.cat(plain), atol=1e-4, rtol=1e-4)
    (torch.cat(plain) @ weight).backward()
    expected = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    assert set(expected) == set(policy.adapter.keys)
    for key, factor in zip(policy.adapter.keys, policy.adapter.pairs, strict=True):
        ours = factor.grad
        assert ours is not None and float((ours - expected[key]).norm() / expected[key].norm()) < 1e-3, key


def test_update_moves_factors(base: Path) -> None:
    policy = load_policy(str(base), device="cpu", lora=LORA)
    adapter = policy.adapter
    assert adapter
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    recipe = load_recipe(None, {"learning_rate": 0.01, "beta": 0.1, "per_device_train_batch_size": 8})
    learner = LocalLearner(policy, recipe)
    batch = Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0)
    first = learner.update(batch, 0)
    assert first["kl"] == 0 and first["grad_norm"] > 0, "the reference is the adapter switched off: the same at first"
    assert learner.update(batch, 1)["kl"] > 0
    changed = {name for name, p in policy.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"{name}.weight" for name in adapter.names} and len(changed) == 4 * 7
    for name, a, b in zip(adapter.names, adapter.pairs[::2], adapter.pairs[1::2], strict=True):
        expected = before[f"{name}.weight"] + 2.0 * b @ a
        torch.testing.assert_close(policy.model.get_submodule(name).weight, expected, atol=1e-6, rtol=1e-5)
    states = [learner.optimizer.state[p] for p in adapter.pairs]
    assert len(learner.optimizer.state) == len(states) == 2 * len(adapter.names), "nothing else has any"


def test_measuring_kl_changes_no_factor(base: Path) -> None:
    """With beta 0, to the model without its adapter, which is exactly as before afterwards."""
    ends = []
    for every in (0, 1):
        policy = load_policy(str(base), device="cpu", lora=LORA)
        keys = {"learning_rate": 0.01, "beta": 0.0, "kl_steps": every, "per_device_train_batch_size": 8}
        learner = LocalLearner(policy, load_recipe(None, keys))
        batch = Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0)
        stats = [learner.update(batch, step) for step in range(3)]
        assert [("kl" in one) for one in stats] == [bool(every)] * 3
        ends.append([p.detach().clone() for p in policy.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_micro_batches_change_no_gradient(base: Path) -> None:
    norms = []
    for tokens in (10_000, 4):
        policy = moved(load_policy(str(base), device="cpu", lora=LORA))
        recipe = load_recipe(None, {"tokens_per_micro_batch": tokens, "per_device_train_batch_size": 8})
        batch = Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0)
        norms.append(LocalLearner(policy, recipe).update(batch, 0)["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_memory_is_freed(base: Path) -> None:
    """As between two stages: their weights would not both fit."""
    policy = load_policy(str(base), device="cpu", lora=LORA)
    learner = LocalLearner(policy, load_recipe(None, {"beta": 0.1}))
    learner.update(Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0), 0)
    assert policy.adapter
    weights = [weakref.ref(tensor) for tensor in (policy.adapter.own[0], policy.adapter.base[0])]
    del policy, learner
    gc.collect()
    assert [weight() for weight in weights] == [None, None]


def test_oom_in_a_backward(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the layers that were done are dropped."""
    failures: list[str] = []
    count = 0

    def short(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count % 10 == 0 and failures:
            raise torch.OutOfMemoryError(failures.pop())
        return factor_gradients(*args)

    monkeypatch.setattr(stack, "factor_gradients", short)
    norms = []
    for how_often in (0, 1):
        failures[:] = ["in the third layer"] * how_often
        policy = moved(load_policy(str(base), device="cpu", lora=LORA))
        batch = Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0)
        recipe = load_recipe(None, {"per_device_train_batch_size": 8})
        norms.append(LocalLearner(policy, recipe).update(batch, 0)["grad_norm"])
    assert not failures and norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_reference(base: Path) -> None:
    """After a warm-up that is not the adapter switched off, but the adapter as it was."""
    policy = moved(load_policy(str(base), device="cpu", lora=LORA))
    learner = LocalLearner(policy, load_recipe(None, {"beta": 0.1}))
    began = logits(policy.model)
    moved_on = [p.data.add_(0.02) for p in policy.adapter.pairs]  # type: ignore[union-attr]
    policy.adapter.publish()  # type: ignore[union-attr]
    now = logits(policy.model)
    assert moved_on and not torch.allclose(began, now, atol=1e-3) and learner.reference
    with learner.reference.activated() as first:
        torch.testing.assert_close(logits(first.model), began, atol=1e-6, rtol=1e-6)
    assert torch.equal(logits(policy.model), now)


def test_peft_and_transformers_load_it(base: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    policy = moved(load_policy(str(base), device="cpu", lora=LORA))
    save_policy(policy, tmp_path / "merged")
    save_adapter(policy, tmp_path / "adapter")
    ours = logits(policy.model)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), ours, atol=1e-6, rtol=0)
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    torch.testing.assert_close(logits(theirs.base_model.model), ours, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(AutoModelForCausalLM.from_pretrained(base)), ours, atol=1e-2)
    # and back: what PEFT wrote is read here, merged, or to be trained further
    theirs.save_pretrained(tmp_path / "peft")
    again = load_policy(str(tmp_path / "peft"), device="cpu")
    assert again.adapter is None and again.source.base is not None
    torch.testing.assert_close(logits(again.model), ours, atol=1e-5, rtol=0)
    further = load_policy(str(tmp_path / "peft"), device="cpu", lora=Lora(r=99))
    assert further.adapter and policy.adapter and further.adapter.r == 4
    for a, b in zip(further.adapter.pairs, policy.adapter.pairs, strict=True):
        assert torch.equal(a, b)


QUICK = {
    "use_peft": True,
    "lora_r": 4,
    "sft_steps": 2,
    "sft_learning_rate": 1e-2,
    "max_steps": 4,
    "learning_rate": 1e-3,
    "beta": 0.05,
    "save_steps": 2,
    "eval_size": 2,
    "eval_samples": 0,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8,
    "reward_audit": False,
    "device": "cpu",
}


def test_resume_equals_uninterrupted(base: Path, tmp_path: Path) -> None:
    keys = {**QUICK, "model_name_or_path": str(base), "reward_funcs": [f"{_rewards(tmp_path)}:vary"]}
    whole = api.train(None, output_dir=str(tmp_path / "whole"), **keys)
    half = tmp_path / "half"
    api.train(None, output_dir=str(half), **{**keys, "max_steps": 2})
    api.train(resume=half, max_steps=4)
    steps = [list(read_rows(folder / "metrics.jsonl")) for folder in (whole.folder, half)]
    losses = [[row["loss"] for row in rows] for rows in steps]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    distances = [[row["kl_mean"] for row in rows] for rows in steps]
    assert distances[0] == distances[1] and distances[0][0] < 1e-6 < distances[0][3], "from where the warm-up ended"
    for file in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
        one, other = load_file(whole.folder / file), load_file(half / file)
        assert all(torch.equal(one[key], other[key]) for key in one), file
    facts = json.loads((whole.folder / "run.json").read_text())
    assert facts["adapter"]["r"] == 4 and facts["adapter"]["layers"] == 28
    checkpoint = sorted((half / "checkpoints").iterdir())[-1]
    assert (checkpoint / "adapter_config.json").is_file() and not (checkpoint / "model.safetensors").exists()
    off = load_policy(str(base), device="cpu").model.state_dict()
    on = load_file(whole.folder / "model" / "model.safetensors")
    assert any(not torch.equal(on[key], off[key]) for key in on), "it learnt something"


def _rewards(folder: Path) -> Path:
    path = folder / "rewards.py"
    path.write_text("def vary(completions, **columns):\n    return [(sum(map(ord, t)) % 7) / 7 for t in completions]\n")
    return path


def test_adapter_of_another_model(base: Path, tmp_path: Path) -> None:
    save_adapter(load_policy(str(base), device="cpu", lora=LORA), tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    key = next(key for key in tensors if "q_proj.lora_A" in key)
    save_file({**tensors, key: torch.zeros(4, 64)}, tmp_path / "a" / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"another model: for model.layers.0.self_attn.q_proj .*4, 64.*128, 128"):
        load_policy(str(tmp_path / "a"), device="cpu")
    strange = {"base_model.model.nobody.lora_A.weight": torch.zeros(4, 4)}
    save_file(strange, tmp_path / "a" / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="no layer nobody"):
        load_policy(str(tmp_path / "a"), device="cpu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "only plain LoRA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias=all"),
        ({"r": None}, "not a readable adapter"),
    ],
)
def test_unsupported_adapters(base: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    save_adapter(load_policy(str(base), device="cpu", lora=LORA), tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=said):
        load_policy(str(tmp_path / "a"), device="cpu")


def test_bad_targets(base: Path) -> None:
    with pytest.raises(ModelError, match="named query; there are down_proj, gate_proj"):
        load_policy(str(base), device="cpu", lora=Lora(targets=("query",)))
    with pytest.raises(ModelError, match="shares its weight"):
        load_policy(str(base), device="cpu", lora=Lora(targets=("lm_head",)))
    with pytest.raises(ModelError, match="needs a pretrained model"):
        load_policy("tiny", device="cpu", lora=LORA)
    for keys, said in (({"lora_dropout": 0.1}, "only 0"), ({"load_in_4bit": True}, "set use_peft=true")):
        with pytest.raises(RecipeError, match=said):
            load_recipe(None, keys)
    assert load_recipe(None, {"lora_target_modules": "q_proj,v_proj"}).lora_target_modules == ["q_proj", "v_proj"]


def test_four_bit_packages(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.models.quantized.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"bitsandbytes and peft and accelerate: pip install 'outdo\[qlora\]'"):
        load_policy(str(base), device="cpu", lora=Lora(four_bit=True))


def test_four_bit_training(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    policy = load_policy(str(base), device="cpu", lora=Lora(4, 8.0, four_bit=True))
    assert policy.stack is None and policy.adapter
    assert policy.model.model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.uint8
    learner = LocalLearner(policy, load_recipe(None, {"learning_rate": 0.01, "beta": 0.1}))
    batch = Batch(tuple(policy.renderer.encode(prompt) for prompt in PROMPTS), tuple(ROWS), version=0)
    assert learner.update(batch, 0)["kl"] == pytest.approx(0.0, abs=1e-6)
    assert learner.update(batch, 1)["kl"] > 1e-6
    assert len(learner.optimizer.state) == len(policy.adapter.pairs) == 2 * 28
    save_policy(policy, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.float32 and not hasattr(merged.config, "quantization_config")
    torch.testing.assert_close(logits(merged), logits(policy.model), atol=2e-2, rtol=2e-2)
    save_policy(policy, tmp_path / "adapter", dict(learner.weights()))
    again = load_policy(str(tmp_path / "adapter"), device="cpu", lora=Lora(four_bit=True))
    assert again.adapter and all(
        torch.equal(a, b) for a, b in zip(again.adapter.pairs, policy.adapter.pairs, strict=True)
    )
