"""Environments of the library verifiers: what they sample is trained on, with their own rewards, and their failures
are no rewards. `make verifiers` runs this where the library is installed."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from outdo import train
from outdo.errors import OutdoError, RecipeError, TaskError
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.rollout.local import LocalEngine
from outdo.serve.agents import AgentSampler, agent_of
from outdo.tasks.mixture import task_of
from outdo.tasks.task import Task, find_task
from outdo.types import Engine, Group, SampleParams, Trajectory
from support.api_server import CALL, saying, with_tools
from support.basics import ROOT
from support.scripted_engine import ScriptedEngine

INSTALLED = importlib.util.find_spec("verifiers") is not None
needs_verifiers = pytest.mark.skipif(not INSTALLED, reason="the library verifiers is not installed: make verifiers")

SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 4

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "13":
            raise ValueError("unlucky")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 3)


class SumConfig(vf.TasksetConfig):
    largest: int = 9
    system: str | None = None


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for a in range(self.config.largest + 1):
            for b in range(self.config.largest + 1):
                data = SumData(prompt=f"{a}+{b}", answer=str(a + b), system_prompt=self.config.system)
                yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
"""
# The model may call a tool, which counts its calls in the state of the answer.
TOOLS = '''
import verifiers.v1 as vf


class Calls(vf.State):
    num: int = 0


class Adder(vf.Toolset[vf.KIND, Calls]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Adds two numbers."""
        self.state.num += 1
        return str(a + b)


class Base:
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.KIND())]


class ToolTask(OF_TASK vf.Task[vf.TaskData, Calls, vf.TaskConfig]):
    @vf.reward
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.num)


class ToolTaskset(OF_SET vf.Taskset[ToolTask, vf.TasksetConfig]):
    def load(self):
        return [ToolTask(vf.TaskData(prompt=f"{a}+30"), self.config.task) for a in range(40)]


__all__ = ["ToolTaskset"]

if __name__ == "__main__":
    Adder.run()
'''
# An environment of its own, which answers each answer of the model, and grades it at the end.
GAME = """
import itertools

import verifiers.v1 as vf


class Task(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    times: int = 1


class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        for _ in range(self.config.times):
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                for hint in ("more", "less"):
                    if not segment.terminated:
                        segment = await interaction.turn(hint)
            interaction.trace.record_reward("won", float(segment.last_reply == "42"), 2.0)


class Games(vf.Taskset[Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield Task(vf.TaskData(prompt=f"game {i}", system_prompt="Play."), self.config.task)


__all__ = ["Game", "Games"]
"""
TWO = """
import verifiers.v1 as vf

from vf_sums import SumTaskset


class TwoConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()


class Two(vf.Env[TwoConfig]):
    async def run(self, task, agents):
        await agents.solver.run(task)


class Tasks(SumTaskset):
    pass


__all__ = ["Two", "Tasks"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasksets")
    shared = TOOLS.replace("KIND", "SharedToolsetConfig").replace("OF_TASK ", "").replace("OF_SET", "Base,")
    own = TOOLS.replace("KIND", "ToolsetConfig").replace("OF_TASK", "Base,").replace("OF_SET ", "")
    for name, text in {"sums": SUMS, "shared": shared, "own": own, "game": GAME, "two": TWO}.items():
        (folder / f"vf_{name}.py").write_text(text)
    return folder


@pytest.fixture
def found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Finds the task of a file by its name."""
    monkeypatch.chdir(folder)
    yield lambda name, **args: find_task(f"verifiers:vf_{name}.py", args)


def played(policy: Policy, engine: Engine, task: Task, prompts: int = 1, n: int = 1, **keys: Any) -> list[Group]:
    params = SampleParams(keys.pop("max_completion_length", 200))
    play = agent_of(Recipe(**keys), own=task.agent)
    assert play
    drawn = list(islice(task.prompts("train", 0), prompts))
    groups = AgentSampler(engine, policy.renderer, play).sample(drawn, n, params, 0)
    return sorted(groups, key=lambda group: group.prompt.text)


def only(groups: list[Group]) -> Trajectory:
    ((answer,),) = [group.trajectories for group in groups]
    assert answer.episode
    return answer


def spelled(policy: Policy, answer: Trajectory) -> list[tuple[str, bool]]:
    return [(policy.renderer.spell(segment.token_ids), segment.trained) for segment in answer.segments]


@pytest.mark.skipif(INSTALLED, reason="the library verifiers is installed")
def test_without_the_library() -> None:
    with pytest.raises(TaskError, match=re.escape("pip install 'outdo[verifiers]'")):
        find_task("verifiers:gsm8k")


@needs_verifiers
def test_tasks_become_prompts(found: Any) -> None:
    task = found("sums", taskset={"largest": 19, "system": "Add."})
    train_, test = list(task.prompts("train", 0)), list(task.prompts("test", 0))
    assert len(train_) + len(test) == 400 and 20 < len(test) < 60
    assert not {one.id for one in train_} & {one.id for one in test}
    assert [one.id for one in train_] == [one.id for one in task.prompts("train", 0)]
    assert [one.id for one in train_] != [one.id for one in task.prompts("train", 1)]
    first = train_[0]
    a, b = first.text.split("+")
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == "Add." and first.answer == str(int(a) + int(b))
    json.dumps(first.meta)
    assert task.finite and task.rewards == ("environment",)


@needs_verifiers
def test_held_out_tasks_of_their_own(found: Any) -> None:
    task = found("sums", taskset={"largest": 2}, test={"taskset": {"largest": 1}})
    assert sorted(one.text for one in task.prompts("test", 0)) == ["0+0", "0+1", "1+0", "1+1"]
    assert len(list(task.prompts("train", 0))) == 9


@needs_verifiers
def test_endless_tasks(found: Any) -> None:
    task = found("game")
    drawn = {split: {one.text for one in islice(task.prompts(split, 0), 20)} for split in ("train", "test")}
    assert not task.finite and not drawn["train"] & drawn["test"]


@needs_verifiers
@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("vf_sums.py", {"taskset": {"larges": 3}}, "larges"),
        ("vf_sums.py", {"taskset": 3}, "task_args.taskset"),
        ("vf_sums.py", {"agent": {"harness": {"id": "no-such"}}}, "no-such"),
        ("vf_sum.py", {}, "vf_sums.py"),
        ("no-such-taskset", {}, "no-such-taskset"),
        ("vf_two.py", {}, "solver, judge"),
    ],
)
def test_what_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, args: Any, words: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(TaskError, match=re.escape(words)):
        find_task(f"verifiers:{name}", args)


@needs_verifiers
def test_one_turn(policy: Policy, found: Any) -> None:
    """Rewards are the environment's, by their weights; tokens are those of the engine."""
    task = found("sums", taskset={"system": "Add."})
    (prompt,) = islice(task.prompts("train", 0), 1)
    answers = [prompt.answer, "200"]
    engine = saying(policy, *answers)
    (group,) = played(policy, engine, task, n=2)
    assert policy.renderer.spell(group.prompt_ids) == f"<|user|>Add.<|user|>{prompt.text}<|assistant|>"
    assert [spelled(policy, one) for one in group.trajectories] == [[(f"{text}<|end|>", True)] for text in answers]
    assert {one.logprobs for one in group.trajectories} == {(-0.5,) * len(one.token_ids) for one in group.trajectories}
    episodes = [one.episode for one in group.trajectories]
    assert [one.reward for one in episodes if one and not one.broken] == [1.25, 0.0]
    assert {one.finish for one in group.trajectories} == {"stop"}


@needs_verifiers
def test_the_system_prompt_of_a_recipe(policy: Policy, found: Any) -> None:
    task = find_task("verifiers:vf_sums.py", {}, system_prompt="Count.")
    (group,) = played(policy, saying(policy, "1"), task)
    assert policy.renderer.spell(group.prompt_ids).startswith("<|user|>Count.<|user|>")


@needs_verifiers
def test_failures_are_no_rewards(policy: Policy, found: Any) -> None:
    """One whose scoring raises is broken, with the reason; its siblings are not."""
    (group,) = played(policy, saying(policy, "13", "1", "2"), found("sums"), n=3)
    broken = [one.episode.broken for one in group.trajectories if one.episode]
    assert sorted(map(bool, broken)) == [False, False, True]
    assert "TaskError" in max(broken) and "unlucky" in max(broken)
    assert [one.episode.reward for one in group.trajectories if one.episode and one.episode.broken] == [None]


@needs_verifiers
def test_a_limit_ends_an_answer(policy: Policy, found: Any) -> None:
    """It is cut off, and scored with what there is."""
    answer = only(played(policy, ScriptedEngine(lambda request, i: (5,) * 99), found("sums"), max_completion_length=9))
    assert len(answer.token_ids) == 9 and answer.finish == "length" and answer.episode
    assert answer.episode.reward == 0.0 and not answer.episode.broken


@needs_verifiers
def test_tools_and_their_state(policy: Policy, found: Any) -> None:
    """A toolset for all answers. Both turns are one text; the tool's result is context only."""
    with_tools(policy)
    task = found("shared")
    engine = saying(policy, f"Well.{CALL}", "It is 42")
    answer = only(played(policy, engine, task))
    assert answer.episode and not answer.episode.broken and answer.episode.reward == 1.0
    (call, called), (result, given), (said, last) = spelled(policy, answer)
    assert call == f"Well.{CALL}<|end|>" and said == "It is 42<|end|>" and "= 42" in result
    assert (called, given, last) == (True, False, True) and len(answer.branches) == 1
    assert [request.follows != "" for request in engine.requests] == [False, True]
    assert answer.episode.num_calls == 1 and answer.text == "It is 42"

    answer = only(played(policy, saying(policy, CALL), task, max_turns=3, max_completion_length=900))
    assert answer.episode and answer.episode.num_turns == 3 and answer.finish == "length"
    assert answer.episode.reward == 3.0 and not answer.episode.broken


@needs_verifiers
def test_tools_of_each_answer(policy: Policy, found: Any) -> None:
    answer = only(played(with_tools(policy), saying(policy, CALL, "It is 42"), found("own")))
    assert answer.episode and answer.episode.reward == 1.0 and len(answer.branches) == 1


@needs_verifiers
def test_a_stop_of_the_task(policy: Policy, found: Any, folder: Path) -> None:
    """It ends the answer, which is scored, and not cut off."""
    text = (folder / "vf_shared.py").read_text()
    stop = "    @vf.stop\n    async def done(self, trace: vf.Trace) -> bool:\n        return trace.state.num >= 2\n\n"
    (folder / "vf_stopped.py").write_text(text.replace("    @vf.reward\n", f"{stop}    @vf.reward\n"))
    answer = only(played(with_tools(policy), saying(policy, CALL), found("stopped"), max_completion_length=900))
    assert answer.episode and answer.episode.num_turns == 2 and answer.finish == "stop"
    assert answer.episode.reward == 2.0 and not answer.episode.broken


@needs_verifiers
def test_an_environment_of_its_own(policy: Policy, found: Any) -> None:
    """Its turns continue the text that was sampled."""
    engine = saying(policy, "40", "41", "42")
    answer = only(played(policy, engine, found("game")))
    assert answer.episode and answer.episode.reward == 2.0 and answer.episode.num_turns == 3
    assert spelled(policy, answer) == [
        ("40<|end|>", True),
        ("<|user|>more<|assistant|>", False),
        ("41<|end|>", True),
        ("<|user|>less<|assistant|>", False),
        ("42<|end|>", True),
    ]
    answer = only(played(policy, saying(policy, "42"), found("game", times=2), max_completion_length=900))
    assert answer.episode and "player 2 times" in answer.episode.broken


@needs_verifiers
def test_another_agent_with_a_model_of_its_own(policy: Policy, found: Any) -> None:
    judge = {"client": {"type": "eval", "base_url": "http://127.0.0.1:9/v1"}, "model": "judge"}
    answer = only(played(policy, saying(policy, "200"), found("two", judge=judge)))
    assert answer.episode and answer.episode.reward == 0.0


@needs_verifiers
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
@pytest.mark.slow
def test_a_harness_that_is_a_program(policy: Policy, found: Any) -> None:
    """verifiers' own chat loop, which streams over HTTP."""
    task = found("sums", agent={"harness": {"id": "null"}, "runtime": {"type": "subprocess"}})
    answer = only(played(policy, saying(policy, "200"), task))
    assert spelled(policy, answer) == [("200<|end|>", True)] and answer.episode
    assert answer.episode.reward == 0.0 and not answer.episode.broken


@needs_verifiers
def test_mixtures(found: Any) -> None:
    entries = [{"dataset_name": f"verifiers:vf_{name}.py", "name": name} for name in ("sums", "game")]
    task = task_of(Recipe(dataset_mixture=entries))
    assert task.agent == "verifiers"
    assert {one.meta["verifiers"]["name"] for one in islice(task.prompts("train", 0), 30)} == {
        "vf_sums.py",
        "vf_game.py",
    }
    with pytest.raises(RecipeError, match="sums is played"):
        task_of(Recipe(dataset_mixture=[entries[0], {"dataset_name": "arithmetic"}]))


@needs_verifiers
def test_many_at_once(policy: Policy, found: Any) -> None:
    groups = played(policy, LocalEngine(policy), found("sums"), prompts=16, n=16, max_completion_length=6)
    episodes = [one.episode for group in groups for one in group.trajectories]
    assert len(episodes) == 256 and not any(one.broken for one in episodes if one)


@needs_verifiers
def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the taskset of the documentation. The learner's log-probabilities are the sampler's, so that what is trained
    on is what was sampled."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "verifiers.md").read_text()
    (name, text) = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / name).write_text(text)
    keys: dict[str, Any] = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 16, "eval_size": 4}
    keys |= {"eval_samples": 0, "sft_steps": 0, "max_completion_length": 8, "device": "cpu", "seed": 1}
    result = train(dataset_name=f"verifiers:{name}", output_dir=tmp_path / "run", **keys)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(abs(row["mismatch_kl"]) < 1e-9 and row["turns_mean"] == 1.0 for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows) and all(not row.get("broken") for row in rows)
    groups = [json.loads(line) for line in next((tmp_path / "run" / "groups").iterdir()).read_text().splitlines()]
    assert groups and result.after
    with pytest.raises(OutdoError, match="agent and tools"):
        train(dataset_name=f"verifiers:{name}", tools=["calculator"], output_dir=tmp_path / "other", **keys)
