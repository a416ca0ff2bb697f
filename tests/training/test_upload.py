"""A run uploads its model when it is done, and a hub that fails costs no run. The hub is a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from outdo import train
from outdo.errors import ModelError
from outdo.models.hub import UploadError, push_model
from outdo.runs.manifest import read_manifest
from support.fakes import QuietReporter
from support.hub import Hub, serve_hub

SMALL: dict[str, Any] = {
    **{"sft_steps": 0, "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4, "eval_split": "test"},
    **{"max_completion_length": 6, "eval_size": 2, "eval_samples": 0, "device": "cpu", "doctor": "quiet"},
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        yield hub


def test_upload_and_a_hub_that_refuses(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, folder = QuietReporter(), tmp_path / "sums"
    keys = {"push_to_hub": True, "hub_private_repo": True, "hub_model_id": "lab/sums", "output_dir": str(folder)}
    hub.refuse = 403
    result = train(reporter=reporter, **keys, **SMALL)
    assert read_manifest(folder).status == "done" and read_manifest(folder).pushed is None
    assert any("HF_TOKEN" in line for line in reporter.lines)
    assert any(f"outdo push {folder} lab/sums" in line for line in reporter.lines)

    hub.refuse = 0
    assert push_model(str(folder), "lab/sums", private=True) == f"{hub.endpoint}/lab/sums"
    files = hub.files["lab/sums", "main"]
    assert files == {path.name: path.read_bytes() for path in result.model.iterdir()}
    assert hub.private["lab/sums"] and hub.tokens == {"Bearer hf_test"}
    push_model(str(folder / "checkpoints" / "step-000001"), "mine", revision="v2")
    assert {"model.safetensors", "config.json"} <= hub.files["me/mine", "v2"].keys()
    assert not {"optimizer.safetensors", "state.json"} & hub.files["me/mine", "v2"].keys()

    with pytest.raises(ModelError, match="name of a repository"):
        push_model(str(folder), "not a name")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UploadError, match="HF_TOKEN"):
        push_model(str(folder), "lab/sums")


def test_a_run_uploads_its_model_by_its_folders_name(tmp_path: Path, hub: Hub) -> None:
    result = train(reporter=QuietReporter(), push_to_hub=True, output_dir=str(tmp_path / "sums"), **SMALL)
    assert read_manifest(result.folder).pushed == f"{hub.endpoint}/me/sums"
    weights = (result.model / "model.safetensors").read_bytes()
    assert hub.files["me/sums", "main"]["model.safetensors"] == weights
