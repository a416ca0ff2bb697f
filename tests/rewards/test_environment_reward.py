"""What was played: the reward `environment`, broken episodes, and functions that take episodes or environments."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from outdo.errors import GraderError
from outdo.rewards.audit import audit, refuse_unfit
from outdo.rewards.choose import dense_rewards
from outdo.rewards.compose import Rewards, find_rewards, grade, grade_all
from outdo.tasks.task import TASKS
from outdo.types import Episode, Grade, Group, Prompt, Segment, Trajectory
from support.basics import prompt_of


class Counter:
    """A user's environment."""

    def __init__(self, count: int = 0) -> None:
        self.count, self.lock = count, threading.Lock()  # a lock cannot leave the process


def episode(reward: float | None, *texts: str, broken: str = "", environment: Any = None) -> Episode:
    roles = ("assistant", "user")
    messages = tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(texts or ("5", "higher", "7")))
    return Episode(messages, len(messages) // 2 + 1, reward=reward, broken=broken, environment=environment)


def group_of(*episodes: Episode | None, conversational: bool = False, **meta: object) -> Group:
    prompt = replace(prompt_of("1-9", "7", **meta), conversational=conversational)
    segments = Segment((5,), (-0.5,)), Segment((9, 9), trained=False), Segment((7,), (-0.5,))
    return Group(prompt, (1,), tuple(Trajectory(segments, "7", "stop", episode=one) for one in episodes))


def built_in(**options: Any) -> Rewards:
    return find_rewards(["environment"], [], "environment", **options)


def own(function: Any, *more: str, truth: str = "f") -> Rewards:
    return find_rewards(["f", *more], [], truth, own={"f": function})


def test_pays_what_the_environment_paid() -> None:
    graded = grade(group_of(*map(episode, (1.0, 0.0, 0.25, -2.0, 1.5))), built_in()).grades
    assert [(g.reward, g.verdict) for g in graded] == [
        (1.0, "right"), (0.0, "wrong"), (0.25, "wrong"), (-2.0, "wrong"), (1.5, "right"),
    ]  # fmt: skip
    assert graded[2].parts == {"environment": 0.25}
    graded = grade(group_of(episode(0.25), episode(0.2)), built_in(pass_threshold=0.25)).grades
    assert [g.verdict for g in graded] == ["right", "wrong"]
    assert grade(group_of(episode(np.float32(1.0)), episode(True)), built_in()).rewards == [1.0, 1.0]  # type: ignore[arg-type]


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), "1", 10**400])
def test_no_valid_reward_is_broken(reward: Any) -> None:
    broken, fine = grade(group_of(episode(reward), episode(1.0)), built_in()).grades
    assert (broken.reward, broken.verdict) == (None, "broken") and "environment" in broken.reason
    assert fine.reward == 1.0


def test_an_answer_that_was_cut_off_gets_the_worst() -> None:
    """A limit on tokens or turns ended it before the environment paid: no way to escape a bad reward."""

    def cut(group: Group, *places: int) -> Group:
        answers = [replace(one, finish="length" if i in places else "stop") for i, one in enumerate(group.trajectories)]
        return replace(group, trajectories=tuple(answers))

    graded = grade(cut(group_of(episode(None), episode(0.5), episode(0.5)), 0, 1), built_in()).grades
    assert [(g.reward, g.verdict) for g in graded] == [(0.0, "wrong"), (0.5, "wrong"), (0.5, "wrong")]
    assert grade(cut(group_of(episode(None), episode(-3.0)), 0), built_in()).rewards == [-3.0, -3.0]
    assert grade(cut(group_of(episode(None), episode(None)), 0), built_in()).rewards == [0.0, None]


def test_an_answer_that_was_not_played_is_broken() -> None:
    for group in (group_of(None, None), group_of(None, episode(1.0))):
        first = grade(group, built_in()).grades[0]
        assert first.verdict == "broken" and "environment_factory" in first.reason
    assert grade(group_of(None, episode(1.0)), built_in()).rewards == [None, 1.0]


def test_no_reward_sees_a_broken_episode() -> None:
    seen = []

    def look(completions: list[str], episodes: list[Episode]) -> list[float]:
        seen.append(len(completions))
        return [one.num_turns + len(completions) / 10 for one in episodes]

    group = group_of(episode(1.0), episode(1.0, broken="reset raised OSError"), episode(None, "7"))
    graded = grade(group, own(look, "numeric", truth="numeric")).grades
    assert seen == [2] and [g.reward for g in graded] == [2.2, None, 1.2]
    assert graded[1] == Grade(None, "broken", {"f": None, "numeric": None}, "reset raised OSError")
    all_broken = group_of(*[episode(1.0, broken=reason) for reason in ("a", "b")])
    assert [g.reason for g in grade(all_broken, own(look)).grades] == ["a", "b"] and seen == [2]
    together = replace(own(look), batch="step")
    groups = [group_of(episode(1.0, broken="x")), replace(group, prompt=prompt_of("other")), all_broken]
    assert [g.rewards for g in grade_all(groups, together)] == [[None], [2.2, None, 1.2], [None, None]]


def test_text_rewards_see_the_last_turn() -> None:
    prompt = prompt_of("?", "42")
    played = Trajectory((Segment((1,), (-0.1,)),), "<answer>42</answer>", "stop", episode=episode(0.0))
    (graded,) = grade(Group(prompt, (1,), (played,)), find_rewards(["numeric"], [], "numeric")).grades
    assert graded.reward == 1.0


def test_completions_are_all_messages_of_the_episode() -> None:
    seen: list[Any] = []

    def look(completions: Any, **columns: Any) -> list[float]:
        seen.append((completions, sorted(columns)))
        return [0.0] * len(completions)

    calls = [{"name": "add", "arguments": {"a": 1}}]
    messages = (
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
        {"role": "user", "content": "Thanks."},
    )
    played = Episode(messages, 2, reward=1.0, environment=Counter())
    grade(group_of(played, None, conversational=True), own(look))
    grade(group_of(played, conversational=False), own(look))
    assert seen[0][0] == [[dict(m) for m in messages], [{"role": "assistant", "content": "7"}]]
    assert seen[1][0] == ["7"]
    assert not {"episodes", "environments", "episode"} & {*seen[0][1], *seen[1][1]}  # only for who names them


def test_environments_as_in_trl() -> None:
    def counts(completions: Any, environments: list[Counter], **columns: Any) -> list[float]:
        assert "episodes" not in columns
        return [float(environment.count) for environment in environments]

    group = group_of(episode(None, environment=Counter(3)), episode(None, environment=Counter(1)))
    assert grade(group, own(counts)).rewards == [3.0, 1.0]
    groups = [group, replace(group, prompt=prompt_of("other"))]
    assert [g.rewards for g in grade_all(groups, replace(own(counts), batch="step"))] == [[3.0, 1.0]] * 2


def test_async_and_single_forms() -> None:
    async def waits(completions: Any, environments: list[Counter]) -> list[float]:
        return [float(environment.count) for environment in environments]

    def one(completion: str, episode: Episode) -> float:
        return episode.environment.count + float(completion)

    group = group_of(episode(None, environment=Counter(3)), episode(None, environment=Counter(1)))
    assert grade(group, own(waits)).rewards == [3.0, 1.0]
    assert grade(group, own(one)).rewards == [10.0, 8.0]


def test_a_named_function_that_takes_objects_runs_here(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import os\n"
        "def pid(completions, **columns): return [float(os.getpid())] * len(completions)\n"
        "def pid_here(completions, environments): return [os.getpid() + e.count for e in environments]\n"
    )
    group = group_of(episode(None, environment=Counter(1)), episode(None, environment=Counter(2)))
    apart = find_rewards([f"{path}:pid"], [], f"{path}:pid")
    here = find_rewards([f"{path}:pid_here"], [], f"{path}:pid_here")
    assert here.parts[0].source and here.parts[0].where == "thread"
    assert grade(group, here).rewards == [os.getpid() + 1, os.getpid() + 2]
    assert grade(group, apart).rewards[0] not in (None, os.getpid())


def test_a_function_that_fails_on_one_episode() -> None:
    def fails(completions: Any, episodes: list[Episode]) -> list[float]:
        return [1 / len(one.messages[0]["content"]) for one in episodes]

    group = group_of(episode(1.0, "ab", "c", "d"), episode(1.0, "", "c", "e"))
    other = replace(group, trajectories=(group.trajectories[0], replace(group.trajectories[1], text="8")))
    fine, bad = grade(other, own(fails)).grades
    assert fine.reward == 0.5 and bad.verdict in ("wrong", "broken") and bad.reward in (None, 0.0)


def test_columns_of_these_names_without_an_environment() -> None:
    """A data set may have a column `episode`, such as one of films."""

    def look(completions: Any, episode: list[int], **columns: Any) -> list[float]:
        return [float(n + len(columns["environments"][0])) for n in episode]

    prompt = prompt_of("?", episode=3, environments="ab")
    played = Trajectory.single((1,), (-0.1,), "7", "stop", 0)
    assert grade(Group(prompt, (1,), (played,)), own(look)).rewards == [5.0]


def test_missing_episodes_are_named() -> None:
    def needs(completions: Any, environments: Any) -> list[float]:
        return [0.0] * len(completions)

    with pytest.raises(GraderError, match="needs environments"):
        grade(group_of(None), own(needs))


def test_audit_says_that_it_is_judged_by_play() -> None:
    task = TASKS["guess"]
    prompts = [next(task.prompts("train", 0))]
    result = audit(built_in(), prompts)
    assert not result.failures and not result.fit and "by play" in result.checks[0].detail
    assert refuse_unfit(built_in(), lambda: task.prompts("train", 0)) == ""
    assert dense_rewards(built_in(), right=True) == ["environment"]


def test_audit_beside_a_verifier() -> None:
    """Where the task's own verifier decides success, it is audited, without what the environment pays."""
    prompts = [*islice(TASKS["arithmetic"].prompts("train", 0), 2)]
    both = find_rewards(["environment"], [], "numeric", 32)
    assert audit(both, prompts, short=True).fit
    assert refuse_unfit(both, lambda: TASKS["arithmetic"].prompts("train", 0)) == ""


def test_games_name_their_environment_and_reward() -> None:
    for name in ("guess", "grid", "shop", "repair"):
        assert TASKS[name].environment == name and TASKS[name].rewards == ("environment",) and TASKS[name].solution
        prompt, shown = next(TASKS[name].demonstrations(0))
        assert isinstance(prompt, Prompt) and not isinstance(shown, str) and shown[-1]["role"] == "assistant"
    assert not TASKS["arithmetic"].environment
