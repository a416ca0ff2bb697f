"""Recipes and run folders that were tampered with: an error in words, never a traceback, never a run out of nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outdo.errors import OutdoError
from outdo.recipe.foreign import SYNONYMS
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs.manifest import read_manifest
from outdo.runs.writer import RunWriter
from outdo.training import resuming

KEYS = [*Recipe.model_fields, *SYNONYMS]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 300),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TAMPERED = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), VALUES, max_size=6)
CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def recipe_or_words(keys: dict[str, Any]) -> None:
    try:
        recipe = load_recipe(None, keys)
    except OutdoError as error:
        assert str(error).strip()
        return
    assert recipe.answers_per_step % recipe.num_generations == 0
    assert load_recipe(None, recipe.model_dump()) == recipe


def yaml_or_words(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_recipe(path)
    except OutdoError as error:
        assert str(error).strip()


def folder_or_words(data: bytes, stopped: Path) -> None:
    """A run.json of any bytes: it is gone on with only where it is a run's."""
    (stopped / "run.json").write_bytes(data)
    try:
        manifest = read_manifest(stopped)
        recipe = load_recipe(None, manifest.recipe)
        run = RunWriter.reopen(stopped)
        try:
            resuming.check(run, recipe, "data", {"mine.py": "1"}, {"outdo": "1"}, force=False)
            resuming.newest(run)
        finally:
            run.close()
    except OutdoError as error:
        assert str(error).strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "run", load_recipe().model_dump(mode="json"), {}).close()
    return tmp_path


def mutated(text: bytes) -> st.SearchStrategy[bytes]:
    """The text with a few bytes changed, cut out or put in."""
    edits = st.tuples(st.integers(0, len(text) - 1), st.integers(0, 8), st.binary(max_size=6))

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        out = text
        for place, gone, new in changes:
            out = out[:place] + new + out[place + gone :]
        return out

    return st.lists(edits, min_size=1, max_size=4).map(apply)


def run_all(count: int, folder: Path) -> None:
    options = settings(max_examples=count, deadline=None, suppress_health_check=CHECKS, derandomize=True, database=None)
    options(given(TAMPERED)(recipe_or_words))()
    text = yaml.safe_dump(load_recipe().model_dump(mode="json")).encode()
    as_text = mutated(text).map(lambda data: data.decode("utf-8", "replace"))
    options(given(as_text)(lambda text: yaml_or_words(text, folder / "recipe.yaml")))()
    whole = (folder / "run" / "run.json").read_bytes()
    values = TAMPERED.map(lambda keys: {"status": "running", "recipe": {**json.loads(whole)["recipe"], **keys}})
    as_json = values.map(lambda value: json.dumps(value, default=str).encode())
    options(given(mutated(whole) | as_json)(lambda data: folder_or_words(data, folder / "run")))()


def test_a_few_hundred_mutations(folder: Path) -> None:
    run_all(200, folder)


@pytest.mark.slow
def test_ten_thousand_mutations(folder: Path) -> None:
    run_all(3400, folder)
