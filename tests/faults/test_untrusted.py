"""Models and data of strangers: nothing of theirs is executed, and nothing is written outside the run's folder."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from outdo.errors import ModelError, OutdoError
from outdo.models.load import load_encoder, load_policy, save_policy
from outdo.types import Prompt
from support.harness import SHORT, Bench

PROMPT = Prompt("p", ({"role": "user", "content": "1+1"},), "2", {})


class Malicious:
    """Unpickled, it makes a folder by the name that it was given."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, such as anyone may hand on."""
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "model")
    return tmp_path / "model"


def edit(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def trained(bench: Bench, folder: Path) -> tuple[int, str]:
    """The command line's word on a model: its status, and what it said."""
    bench.said()
    status = bench.start("train", *SHORT, f"model_name_or_path={folder}", "resume=never", "sft_steps=0").wait()
    return status, bench.said()


@pytest.mark.parametrize("how", ["pickle", "torch", "shards"])
def test_weights_that_are_a_pickle_are_refused_and_not_opened(bench: Bench, folder: Path, how: str) -> None:
    marker = folder.parent / "executed"
    (folder / "model.safetensors").unlink()
    path = folder / ("pytorch_model-00001-of-00001.bin" if how == "shards" else "pytorch_model.bin")
    if how == "pickle":
        path.write_bytes(pickle.dumps(Malicious(marker)))
    else:
        torch.save({"lm_head.weight": Malicious(marker)}, path)
    if how == "shards":
        index = {"metadata": {}, "weight_map": {"lm_head.weight": path.name}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(str(folder), device="cpu")
    status, said = trained(bench, folder)
    assert status == 2 and "cannot be loaded" in said and "Traceback" not in said
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malicious(marker)))
    assert marker.exists()  # it would have been


def test_a_model_folders_own_code_is_not_run(bench: Bench, folder: Path) -> None:
    marker = folder.parent / "executed"
    (folder / "modeling_evil.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Evil: pass\n")
    own = {name: "modeling_evil.Evil" for name in ("AutoConfig", "AutoModelForCausalLM")}
    edit(folder / "config.json", model_type="evil", architectures=["Evil"], auto_map=own)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(str(folder), device="cpu")
    status, said = trained(bench, folder)
    assert status == 2 and "cannot be loaded" in said and "Traceback" not in said
    assert not marker.exists()


def test_a_known_models_and_tokenizers_own_code_is_passed_over(folder: Path) -> None:
    """Where transformers knows the class itself, it takes its own."""
    marker = folder.parent / "executed"
    (folder / "modeling_evil.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Evil: pass\n")
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "modeling_evil.Evil"]})
    for load in (lambda: load_policy(str(folder), device="cpu"), lambda: load_encoder(str(folder))):
        with suppress(ModelError):
            load()
        assert not marker.exists()


ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}{{ cycler.__init__.__globals__.os.mkdir('executed') }}",
    "builtins": "{{ messages.__init__.__globals__['__builtins__']['__import__']('os').mkdir('executed') }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "changes": "{{ messages.append(1) }}",
    "syntax": "{% for %}",
    "unknown": "{{ nothing.here }}",
    "raises": "{{ raise_exception('not for you') }}",
    "division": "{{ 1 / 0 }}",
    "type": "{{ messages + 1 }}",
    "include": "{% include '/etc/passwd' %}",
}


def with_template(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("name", ESCAPES)
def test_a_chat_template_cannot_leave_its_sandbox_and_its_error_is_in_words(folder: Path, name: str) -> None:
    policy = load_policy(str(with_template(folder, ESCAPES[name])), device="cpu")
    with pytest.raises(OutdoError, match="chat template"):
        policy.renderer.encode(PROMPT)
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["classes", "range", "syntax"])
def test_a_run_with_such_a_template_ends_in_words(bench: Bench, folder: Path, name: str) -> None:
    status, said = trained(bench, with_template(folder, ESCAPES[name]))
    assert status == 2 and "chat template" in said
    assert "Traceback" not in said and "This error was not expected" not in said


def test_names_in_data_are_no_paths(bench: Bench) -> None:
    """Whatever a prompt is called, and whatever its columns hold, files are written in the run's folder only."""
    home = bench.folder / "names"
    (home / "inside").mkdir(parents=True)
    paths = [
        "../../x",
        "/x",
        "..",
        "a/b",
        "\0",
        "groups/../../../x",
        "~",
        "$HOME",
        "%s{0}",
        "metrics.jsonl",
        "\n",
        "é" * 300,
    ]
    lines = [
        {"id": f"{path}{i // len(paths) or ''}", "prompt": f"{i}+{i}", "answer": path, "path": path, "split": split}
        for i, (path, split) in enumerate(zip(paths * 2, ["train"] * 12 + ["test"] * 12, strict=True))
    ]
    (home / "inside" / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["dataset_name=names/inside/data.jsonl", "sft_steps=0", "max_steps=2", "reward_funcs=exact"]
    more = [
        "reward_weights=[]",
        "output_dir=names/inside/run",
        "reward_audit=false",
        "resume=never",
        "broken_limit=1",
        "save_steps=1",
    ]
    before = {path for path in bench.folder.rglob("*")}
    assert bench.start("train", *SHORT, *words, *more).wait() == 0, bench.said()
    new = {path for path in bench.folder.rglob("*")} - before - {bench.log}
    run = home / "inside" / "run"
    assert new and all(path == run or run in path.parents for path in new)
    assert not Path("/x").exists()
