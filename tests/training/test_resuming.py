"""What may change in the middle of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from outdo.api import train
from outdo.errors import RecipeError
from outdo.recipe.load import load_recipe
from outdo.rewards.compose import find_rewards
from outdo.training.console import PlainLines
from outdo.training.resume import changes, find_unfinished, reward_files


def changed(keys: dict[str, object], **base: object) -> list[str]:
    old, new = load_recipe(None, base), load_recipe(None, {**base, **keys})
    return [words.partition(" ")[0] for words in changes(old.model_dump(mode="json"), new.model_dump(mode="json"))]


def test_only_what_may_not_change_is_among_the_reasons() -> None:
    steady = {"lr_scheduler_type": "constant"}
    assert changed({"max_steps": 2}, **steady) == []
    assert changed({"max_steps": 2, "sft_steps": 3, "eval_size": 4}, **steady) == ["sft_steps"]
    assert sorted(changed({"max_steps": 2, "sft_steps": 3}, lr_scheduler_type="linear")) == ["max_steps", "sft_steps"]


def test_only_files_of_a_users_own_rewards_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def f(completions): return [0.0] * len(completions)\n")
    (tmp_path / "packaged.py").write_text("def g(completions): return [0.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"h": lambda completions: [0.0]}
    names = ["mine.py:f", "packaged:g", "h", "exact", "outdo.drills.rewards:digits"]
    found = reward_files(find_rewards(names, [], "exact", own=own))
    assert found.keys() == {"mine.py", "packaged.py"} and len(set(found.values())) == 2
    assert reward_files(find_rewards(["exact"], [], "exact", audit="mine.py:f")) == {}, "it is only looked at"
    (tmp_path / "mine.py").write_text("def f(completions): return [1.0] * len(completions)\n")
    again = reward_files(find_rewards(names, [], "exact", own=own))
    assert again["mine.py"] != found["mine.py"] and again["packaged.py"] == found["packaged.py"]


def test_a_reward_that_was_edited_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reward = tmp_path / "mine.py"
    reward.write_text("def f(completions): return [len(c) / 100 for c in completions]\n")
    told: list[str] = []
    reporter = PlainLines(Console(file=io.StringIO()))
    monkeypatch.setattr(reporter, "note", told.append)
    keys = {"reward_funcs": ["mine.py:f"], "max_steps": 1, "sft_steps": 0, "eval_size": 2, "eval_samples": 0}
    steady = {"lr_scheduler_type": "constant", "max_completion_length": 8, "save_steps": 1, "device": "cpu"}
    run = train(reporter=reporter, **keys, **steady).folder
    reward.write_text("def f(completions): return [len(c) / 50 for c in completions]\n")
    with pytest.raises(RecipeError, match=r"reward file mine\.py has changed.*--force"):
        train(resume=run, reporter=reporter, max_steps=2)
    train(resume=run, reporter=reporter, max_steps=2, force=True)
    assert "changed since: the reward file mine.py has changed" in told
    told.clear()
    train(resume=run, reporter=reporter, max_steps=3)  # as it went on, so it may
    assert not any("changed since" in words for words in told)
    manifest = json.loads((run / "run.json").read_text())
    assert manifest.pop("reward_files").keys() == {"mine.py"}
    reward.write_text("def f(completions): return [len(c) / 25 for c in completions]\n")
    (run / "run.json").write_text(json.dumps(manifest))  # as runs were before
    train(resume=run, reporter=reporter, max_steps=4)


def test_auto_starts_anew_where_a_reward_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(None, {"reward_funcs": ["mine.py:f"]})
    manifest = {"status": "stopped", "recipe": recipe.model_dump(mode="json"), "reward_files": {"mine.py": "a"}}
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text(json.dumps(manifest))
    found = find_unfinished(recipe, "", "grpo", {"mine.py": "a"})
    assert found and found[0] == Path("runs/one")
    assert find_unfinished(recipe, "", "grpo", {"mine.py": "b"}) is None
