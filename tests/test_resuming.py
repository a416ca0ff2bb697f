"""What may change in the middle of a run."""

from __future__ import annotations

from outdo.config import load_recipe
from outdo.resuming import changes


def changed(keys: dict[str, object], **base: object) -> list[str]:
    old, new = load_recipe(None, base), load_recipe(None, {**base, **keys})
    return [words.partition(" ")[0] for words in changes(old.model_dump(mode="json"), new.model_dump(mode="json"))]


def test_only_what_may_not_change_is_among_the_reasons() -> None:
    steady = {"lr_scheduler_type": "constant"}
    assert changed({"max_steps": 2}, **steady) == []
    assert changed({"max_steps": 2, "sft_steps": 3, "eval_size": 4}, **steady) == ["sft_steps"]
    assert sorted(changed({"max_steps": 2, "sft_steps": 3}, lr_scheduler_type="linear")) == ["max_steps", "sft_steps"]
