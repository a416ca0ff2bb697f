"""Tools and environments through TRL's own loop of calls, with a chat template that it knows; what the model says is
scripted, since none here has learnt to call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outdo import Callback, train
from outdo.errors import OutdoError
from outdo.metrics.measure import Metrics
from outdo.types import Group
from support.chat_templates import family_tokenizer

pytest.importorskip("trl")

ROWS = [{"prompt": f"count to {n}", "answer": str(n)} for n in range(1, 9)]
KEYS: dict[str, Any] = {
    **{"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "eval_size": 2, "eval_samples": 0},
    **{"max_completion_length": 400, "device": "cpu", "reward_audit": False, "max_turns": 3, "backend": "trl"},
    **{"eval_strategy": "no", "doctor": "quiet", "log_tokens": 1},
}


def model() -> dict[str, Any]:
    """A random model with the template of Qwen3, as TRL has it."""
    tokenizer = family_tokenizer("chatml")
    tokenizer.chat_template = resources.files("trl").joinpath("chat_templates", "qwen3.jinja").read_text()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=len(tokenizer), max_position_embeddings=2048))
    made.config.eos_token_id = made.generation_config.eos_token_id = tokenizer.eos_token_id
    return {"model": made, "processing_class": tokenizer}


class Counter:
    """An environment as TRL's users write one."""

    made: ClassVar[list[Counter]] = []

    def reset(self, **columns: Any) -> str | None:
        self.count, self.goal = 0, int(columns["answer"])
        Counter.made.append(self)
        if self.goal == 8:
            raise RuntimeError("eight is not to be counted to")
        return " (use increment)"

    def increment(self, step: int) -> int:
        """
        Adds to the count.

        Args:
            step: How much to add.
        """
        if step > 5:
            raise ValueError("too large a step")
        self.count += step
        return self.count


def counted(environments: list[Counter], **columns: Any) -> list[float]:
    return [float(environment.count) for environment in environments]


class Keep(Callback):
    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.metrics: list[Metrics] = []

    def on_step(self, run: Any, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self.groups += groups
        self.metrics.append(dict(metrics))


def scripted(monkeypatch: pytest.MonkeyPatch, turns: Sequence[Sequence[str]]) -> None:
    """What the model says: for each turn, the texts of a batch's answers, over and over."""
    from trl import GRPOTrainer

    count = 0

    def say(trainer: Any, prompt_ids: list[list[int]], *args: Any, **more: Any) -> tuple[list[list[int]], None]:
        nonlocal count
        texts = turns[count % len(turns)]
        count += 1
        tokenizer = trainer.processing_class
        end = [tokenizer.eos_token_id]
        return [
            tokenizer.encode(texts[i % len(texts)], add_special_tokens=False) + end for i in range(len(prompt_ids))
        ], None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", say)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_an_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its object is each answer's own, what it answers is masked, and a reset that raises breaks one answer alone."""
    keep = Keep()
    scripted(monkeypatch, [[call("increment", step=2), call("increment", step=9)], ["so it is"]])
    train(
        **model(), **KEYS, train_dataset=ROWS, eval_dataset=ROWS[:2], environment_factory=Counter,
        reward_funcs=[counted], callbacks=[keep], output_dir=str(tmp_path / "run"), broken_limit=1.0,
    )  # fmt: skip
    assert len(keep.groups) == 4
    for group in keep.groups:
        first, second = group.trajectories
        if group.prompt.answer == "8":
            assert all(grade.verdict == "broken" for grade in group.grades) and set(group.advantages) == {0.0}
            continue
        assert [grade.reward for grade in group.grades] == [2.0, 0.0]
        assert [segment.trained for segment in first.segments] == [True, False, True]
        assert first.text == "so it is" and first.episode and first.episode.num_calls == 1
        assert first.episode.environment is not second.episode.environment
        assert "too large a step" in str(second.episode.messages)
        assert group.advantages[0] == pytest.approx(0.7071, abs=1e-3)  # by the sample's spread
        assert all(logprob < 0 for logprob in first.logprobs) and len(first.logprobs) == first.num_tokens
    assert all(metrics["tokens"] for metrics in keep.metrics)


def test_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep = Keep()
    script = [[call("calculator", expression="6*7"), call("calculator", expresion="6*7")], ["<answer>42</answer>"]]
    scripted(monkeypatch, script)
    train(
        **model(), **KEYS, train_dataset=[{"prompt": f"6*7, {i}", "answer": "42"} for i in range(8)],
        eval_dataset=ROWS[:2], tools=["calculator"], reward_funcs=["numeric"], callbacks=[keep],
        output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    right, wrong = keep.groups[0].trajectories
    said = [message["content"] for message in right.episode.messages if message["role"] == "tool"]
    assert said == ["42"]
    assert "expression" in str(wrong.episode.messages[1]["content"])  # the message names the argument
    rows = [json.loads(line) for line in next((tmp_path / "run" / "groups").iterdir()).read_text().splitlines()]
    assert any(turn["role"] == "tool" for turn in rows[0]["completions"][0]["turns"])


def test_a_template_that_shows_no_tools(tmp_path: Path) -> None:
    with pytest.raises(OutdoError, match="template"):
        train(
            model_name_or_path="tiny", task="arithmetic", tools=["calculator"], **{**KEYS, "max_completion_length": 16},
            output_dir=str(tmp_path / "run"),
        )  # fmt: skip


def test_a_game_is_refused(tmp_path: Path) -> None:
    """It answers what the model says, by `step`, and TRL knows methods only."""
    with pytest.raises(OutdoError, match="methods are tools"):
        train(model_name_or_path="tiny", task="guess", **KEYS, output_dir=str(tmp_path / "run"))
