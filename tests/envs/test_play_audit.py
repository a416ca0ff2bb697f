"""Environments are audited by play: those of the built-in tasks, and some that are not fit."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from outdo.envs.audit import audit_by_play, audit_task, play
from outdo.envs.environment import Observation
from outdo.envs.factory import find_environment
from outdo.errors import GraderError
from outdo.rewards import command
from outdo.rewards.audit import Audit
from outdo.tasks.task import TASKS
from outdo.types import Message, Prompt
from support.basics import prompt_of
from support.play import assistant

PROMPTS = [prompt_of("Say yes.", "yes"), prompt_of("Say no.", "no")]


class Plain:
    """Pays 1 for the answer and 0 for another."""

    tools = ()

    def reset(self, prompt: Prompt) -> Any:
        self.answer = prompt.answer
        return prompt.messages

    def step(self, message: Message) -> Observation:
        return Observation(reward=self.paid(str(message["content"])), done=True)

    def paid(self, text: str) -> float | None:
        return float(text == self.answer)

    def close(self) -> None: ...


class Generous(Plain):
    def paid(self, text: str) -> float:
        return float(self.answer in text or not text)


class Stingy(Plain):
    def paid(self, text: str) -> float:
        return 0.5


class Moody(Plain):
    def paid(self, text: str) -> float:
        return random.random() / 10 + float(text == self.answer)


class Mute(Plain):
    def paid(self, text: str) -> None:
        return None


class Fragile(Plain):
    def paid(self, text: str) -> float:
        if not text:
            raise ZeroDivisionError("no text")
        return float(text == self.answer)


class Endless(Plain):
    async def step(self, message: Message) -> Observation:  # type: ignore[override]
        is_right = message["content"] == self.answer
        return Observation([{"role": "user", "content": "Again."}], 1.0 if is_right else None, is_right)


def solution(prompt: Prompt) -> list[Message]:
    return assistant(prompt.answer)


def outcomes(result: Audit) -> list[str]:
    return [check.outcome for check in result.checks[:4]]


@pytest.mark.parametrize("name", ["guess", "grid", "shop", pytest.param("repair", marks=pytest.mark.sandbox)])
def test_built_in_environments_are_fit(name: str) -> None:
    prompts = list(itertools.islice(TASKS[name].prompts("train", 0), 2))
    result = audit_task(TASKS[name], prompts)
    assert result.fit and outcomes(result) == ["passed"] * 4 and result.num_prompts == 2


def test_solutions_are_paid_through_the_adapter() -> None:
    """As training plays them: TRL's kind gets its calls as messages."""
    for name in ("guess", "grid", "shop"):
        make, task = find_environment(name), TASKS[name]
        assert task.solution
        for prompt in itertools.islice(task.prompts("train", 1), 30):
            messages = task.solution(prompt)
            played = play(make, prompt, messages)
            assert (played.reward, played.broken) == (1.0, "")
            assert [dict(m) for m in played.replies] == [dict(m) for m in messages if m["role"] != "assistant"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Plain, ["passed"] * 4),
        (Generous, ["passed", "failed", "passed", "passed"]),
        (Stingy, ["failed", "failed", "passed", "passed"]),
        (Moody, ["passed", "passed", "failed", "passed"]),
        (Fragile, ["passed", "passed", "passed", "failed"]),
        (Endless, ["passed"] * 4),
    ],
)
def test_what_is_wrong_is_found(kind: Any, expected: list[str]) -> None:
    result = audit_by_play(lambda prompt: kind(), PROMPTS, solution)
    assert outcomes(result) == expected and result.fit == (expected == ["passed"] * 4)
    assert audit_by_play(lambda prompt: kind(), PROMPTS, None).checks[0].outcome == "unknown"


def test_an_environment_that_never_pays() -> None:
    with pytest.raises(GraderError, match=r"not one of \d+ plays came to an end; .* gave no reward"):
        audit_by_play(lambda prompt: Mute(), PROMPTS, solution)


def test_a_task_without_an_environment() -> None:
    with pytest.raises(GraderError, match="names none"):
        audit_task(TASKS["arithmetic"], PROMPTS)


def test_the_command(capsys: Any) -> None:
    assert command.audit("guess", command.Options([]), 3, {"max_guesses": 6}, audit_task) == 0
    assert capsys.readouterr().out.endswith("fit to train on\n")
    with pytest.raises(GraderError, match="no example"):
        command.audit(None, command.Options(["environment"]), 3, {}, audit_task)
