"""`outdo export`: whatever a model is, one folder that plain transformers loads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outdo import api
from outdo.errors import ModelError
from outdo.models.export import CONVERTER, export_model
from outdo.models.load import load_policy, save_adapter, save_policy
from outdo.models.lora import Lora

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_policy(load_policy("tiny", device="cpu", seed=5), tmp_path / "base")
    return tmp_path / "base"


def test_adapter_merged(model: Path, tmp_path: Path) -> None:
    policy = load_policy(str(model), device="cpu", lora=Lora(4, 8.0))
    assert policy.adapter
    policy.adapter.pairs[1].data.add_(0.5)
    policy.adapter.publish()
    save_adapter(policy, tmp_path / "adapter")
    assert export_model(str(tmp_path / "adapter"), tmp_path / "out") == [tmp_path / "out"]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for name, value in policy.model.state_dict().items():
        assert torch.equal(plain[name], value), name
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_run_and_checkpoint(outdo: Command, tmp_path: Path, model: Path) -> None:
    rewards = tmp_path / "vary.py"
    rewards.write_text("def vary(completions, **c):\n    return [sum(map(ord, t)) % 7 for t in completions]\n")
    run = tmp_path / "run"
    api.train(
        None,
        model_name_or_path=str(model),
        use_peft=True,
        reward_funcs=[f"{rewards}:vary"],
        reward_audit=False,
        learning_rate=0.01,
        max_steps=2,
        eval_size=2,
        eval_samples=0,
        per_device_train_batch_size=8,
        max_completion_length=6,
        output_dir=str(run),
    )
    trained = AutoModelForCausalLM.from_pretrained(run / "model").state_dict()
    done = outdo("export", "run", "--out", "one")
    assert done.returncode == 0 and done.stdout.strip() == "one", done.stderr
    for source, out in ((run / "checkpoints" / "step-000002", "two"), (run / "adapter", "three")):
        export_model(str(source), tmp_path / out)
    for out in ("one", "two", "three"):
        found = AutoModelForCausalLM.from_pretrained(tmp_path / out).state_dict()
        assert all(torch.equal(found[name], value) for name, value in trained.items()), out
    first = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert any(not torch.equal(first[name], value) for name, value in trained.items())


def test_nothing_overwritten(model: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ModelError, match="already exists"):
        export_model(str(model), tmp_path / "full")
    with pytest.raises(ModelError, match="does not exist"):
        export_model(str(tmp_path / "nothing"), tmp_path / "out")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine" and not (tmp_path / "out").exists()


def test_gguf_without_converter(outdo: Command, model: Path, tmp_path: Path) -> None:
    done = outdo("export", "base", "--out", "out", "--gguf", "m.gguf")
    assert done.returncode == 2 and CONVERTER in done.stderr and "--outfile m.gguf" in done.stderr
    assert not (tmp_path / "out").exists(), "said before any work"


def test_gguf_converter_runs(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / CONVERTER
    script.parent.mkdir()
    script.write_text('#!/bin/sh\ntest -f "$1/model.safetensors" && test "$2" = --outfile && echo made > "$3"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    assert export_model(str(model), tmp_path / "out", tmp_path / "m.gguf")[1].read_text() == "made\n"
    script.write_text("#!/bin/sh\necho this model is unknown >&2; exit 1\n")
    with pytest.raises(ModelError, match=r"was written, but .*: this model is unknown"):
        export_model(str(model), tmp_path / "other", tmp_path / "n.gguf")
