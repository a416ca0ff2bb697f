"""Chat templates are rendered elsewhere, as transformers would; one that takes too much is ended. Weight indexes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import ModelError, TaskError
from outdo.models import templates
from outdo.models.load import load_policy, save_policy
from outdo.models.sources import find_source
from outdo.models.tiny import tiny_tokenizer
from outdo.types import Prompt
from outdo.untrusted.parse import MAX_PROMPT_CHARS

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 < 2 & 'é'\n"},
    {"role": "assistant", "content": "yes", "reasoning": "because"},
    {"role": "user", "content": "why?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
SAME = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}  {% set ns = namespace(n=0) %}"
    "{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + 1 %}{{ loop.index }}"
    "{{ m | tojson }}{% endfor %}{{ ns.n }}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "{% generation %}{{ m.content | trim | upper }}{% endgeneration %}"
    "{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "{{ bos_token }}{{ dict(a=1) }}{{ messages[0]['content'][:3] }}{{ messages | length }}"
    "{{ documents }}{{ tools is none }}",
    "{% macro say(x) %}[{{ x }}]{% endmacro %}{% for m in messages %}{{ say(m.role) }}{% endfor %}"
    "{{ strftime_now('%Y') }}",
)


def test_as_transformers_renders() -> None:
    tokenizer = tiny_tokenizer()
    for template in SAME:
        tokenizer.chat_template = template
        for tools in (None, TOOLS):
            for ends in (False, True):
                given: dict[str, Any] = {"tools": tools, "add_generation_prompt": ends}
                theirs = tokenizer.apply_chat_template(TALK, tokenize=False, **given)
                assert templates.render_template(tokenizer, [{"messages": TALK, **given}] * 3) == [theirs] * 3, template


def test_many_conversations_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "BATCH", 7)
    monkeypatch.setattr(templates, "BATCH_CHARS", 50)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{{ raise_exception('no') if messages[0].content == '77' }}"
    talks = [{"messages": [{"role": "user", "content": str(i)}]} for i in range(60)]
    assert templates.render_template(tokenizer, talks) == [str(i) for i in range(60)]
    bad = [*talks, {"messages": [{"role": "user", "content": "77"}]}]
    with pytest.raises(templates.TemplateFails, match="no") as caught:
        templates.render_template(tokenizer, bad)
    assert caught.value.index == 60


EATERS = {
    "product": "{{ 'a' * 10**10 }}",
    "gigabyte": "{{ 'a' * 10**9 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "join": "{{ range(99999) | join('a' * 99999) }}",
    "doubling": "{% set ns = namespace(a='aaaa') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "center": "{{ 'a' | center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "format": "{{ '%10000000000d' % 1 }}",
    "list": "{{ [0] * 10**10 }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "only on this": "{% if messages[0].content != '?' %}{{ 'a' * 10**10 }}{% endif %}",
    "large": "x" * 2_000_000,
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("name", EATERS)
def test_templates_that_eat(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from outdo.models.renderer import Renderer

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = EATERS[name]
    start = time.monotonic()
    renderer = Renderer.of("m", tokenizer, None, 512)
    with pytest.raises(ModelError, match="chat template"):
        renderer.encode(Prompt("p", ({"role": "user", "content": "1+1"},), "2"))
    first = time.monotonic() - start
    with pytest.raises(ModelError):  # it is not tried for long again
        renderer.encode(Prompt("p", ({"role": "user", "content": "1+1"},), "2"))
    assert time.monotonic() - start < 2 * first + 60


def test_long_prompts(policy: Any) -> None:
    with pytest.raises(TaskError, match="characters"):
        policy.renderer.encode(Prompt("p" * 10**6, ({"role": "user", "content": "a" * (MAX_PROMPT_CHARS + 1)},), "2"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m") / "model"
    save_policy(load_policy("tiny", device="cpu"), folder)
    return folder


def index_of(*files: str) -> str:
    return json.dumps({"metadata": {}, "weight_map": {f"w{i}": file for i, file in enumerate(files)}})


UNSAFE: dict[str, tuple[str, str]] = {
    "pickle": ("model.safetensors.index.json", index_of("model.safetensors", "x.bin")),
    "renamed": ("model.safetensors.index.json", index_of("x.pt")),
    "no suffix": ("model.safetensors.index.json", index_of("weights")),
    "parent": ("model.safetensors.index.json", index_of("../x.safetensors")),
    "absolute": ("model.safetensors.index.json", index_of("/etc/x.safetensors")),
    "inner": ("model.safetensors.index.json", index_of("a/../../x.safetensors")),
    "of pickles, outside": ("pytorch_model.bin.index.json", index_of("../x.bin")),
    "variant": ("model.fp16.safetensors.index.json", index_of("x.bin")),
    "number": ("model.safetensors.index.json", '{"weight_map": {"a": 1}}'),
    "list": ("model.safetensors.index.json", '{"weight_map": ["a"]}'),
    "none": ("model.safetensors.index.json", "{}"),
    "deep": ("model.safetensors.index.json", "[" * 9999),
    "explicit": ("config.json", '{"transformers_weights": "adapter_model.bin"}'),
    "explicit outside": ("config.json", '{"transformers_weights": "../x.safetensors"}'),
    "kernel": ("config.json", '{"attn_implementation": "someone/kernel"}'),
    "inner kernel": ("config.json", '{"text_config": {"_attn_implementation": "someone/kernel:f"}}'),
    "digits": ("tokenizer_config.json", '{"model_max_length": ' + "9" * 100_000 + "}"),
    "deep config": ("config.json", '{"a":' * 5000 + "1" + "}" * 5000),
    "adapter": ("adapter_config.json", '{"base_model_name_or_path": "x"}'),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_folders(model: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    find_source(str(folder))
    file, text = UNSAFE[name]
    (folder / file).write_text(text)
    with pytest.raises(ModelError):
        find_source(str(folder))


def test_safe_folders(model: Path, tmp_path: Path) -> None:
    """A sound index, and PyTorch's beside the safetensors, as many models have it; a link to the hub's cache."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    (folder / "pytorch_model.bin.index.json").write_text(index_of("pytorch_model-00001-of-00001.bin"))
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert load_policy(str(folder), device="cpu").num_parameters > 0
