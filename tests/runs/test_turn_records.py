"""What a run keeps of answers of several turns, and what viewers read from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from outdo.envs.environment import Observation
from outdo.envs.factory import find_environment
from outdo.envs.toolbox import with_tools as tools_for
from outdo.envs.tools import find_tools
from outdo.models.load import Policy
from outdo.models.tool_formats import HERMES, MARKS
from outdo.recipe.schema import Recipe
from outdo.rollout.episodes import EpisodeSampler
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.runs.groups import AnswerRecord, group_record, tokens_of
from outdo.runs.reader import JsonRow, read_rows
from outdo.runs.writer import RunWriter
from outdo.serve.agents import AgentSampler, agent_of
from outdo.types import Grade, Group, Origin, Request, SampleParams
from support.api_server import saying, with_tools
from support.basics import prompt_of
from support.folders import numbers
from support.scripted_engine import ScriptedEngine

PARAMS = SampleParams(400)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': arguments})}\n</tool_call>"


def recorded(group: Group, folder: Path, policy: Policy | None = None) -> JsonRow:
    """The group's row in a run's folder; with the tokens of its answers where there is a policy to spell them."""
    count = len(group.trajectories)
    graded = Group(group.prompt, group.prompt_ids, group.trajectories, (Grade(1.0, "right"),) * count, (0.0,) * count)
    spelled = [
        [(piece, None, None) for piece in policy.renderer.pieces(a.token_ids)] for a in group.trajectories if policy
    ]
    run = RunWriter.create(folder, {}, {"kind": "grpo"})
    run.record_step(1, numbers(1), [graded], [spelled] if policy else [])
    run.close()
    (row,) = read_rows(next((folder / "groups").glob("*.jsonl")), [])
    return row


def said(answer: AnswerRecord) -> list[tuple[str, list[tuple[str, bool]], int | None, int | None]]:
    return [
        (turn.role, [(piece.text, piece.trained) for piece in turn.pieces], turn.num_tokens, turn.num_inserted)
        for turn in answer.turns
    ]


def test_calls_and_results(policy: Policy, tmp_path: Path) -> None:
    """Two calls at once, one of which fails; each turn has the tokens that it is made of."""
    first = "Well. " + call(a=12, b=30) + call(a=1)
    engine = saying(with_tools(policy), first, "It is 42")
    sampler = EpisodeSampler(engine, policy.renderer, HERMES, tools_for(find_tools([add])), 4)
    (group,) = sampler.sample([prompt_of("12+30", "42")], 1, PARAMS, 0)
    row = recorded(group, tmp_path / "run", policy)
    (answer,) = group_record(row).answers
    model, good, bad, _ = answer.turns
    assert said(answer) == [
        ("assistant", [("Well.", True)], len(first) + 1, 0),
        ("tool", [("42", False)], 0, good.num_inserted),
        ("tool", [(bad.pieces[0].text, False)], 0, 0),
        ("assistant", [("It is 42", True)], 9, 0),
    ]
    assert [(one.name, [(a.name, a.value, a.is_text) for a in one.arguments]) for one in model.calls] == [
        ("add", [("a", "12", False), ("b", "30", False)]),
        ("add", [("a", "1", False)]),
    ]
    assert (good.name, good.failed, bad.failed) == ("add", False, True) and "'b' is missing" in bad.pieces[0].text
    assert (answer.num_calls, answer.num_failed_calls, answer.length) == (2, 1, len(first) + 10)
    assert good.tokens
    assert tokens_between(row, *good.tokens) == f"<|user|>= 42<|user|>= {bad.pieces[0].text}<|assistant|>"
    assert answer.num_inserted == good.num_inserted == good.tokens[1] - good.tokens[0] and bad.tokens is None
    assert not answer.judged and not answer.cut and not answer.start


def test_results_in_the_models_own_turn(policy: Policy, tmp_path: Path) -> None:
    """A result is apart from what the model wrote, though the model wrote the same before."""
    texts = ["24>> 48/2 = <<48/2=", " and <<1/0=", "24"]
    rows = policy.renderer.encode_texts(texts)
    rows[-1].append(policy.eos_ids[0])
    turns = iter(rows)

    def script(request: Request, i: int) -> tuple[int, ...]:
        return tuple(next(turns))

    make = tools_for(find_tools(["calculator"]))
    (group,) = EpisodeSampler(ScriptedEngine(script), policy.renderer, MARKS, make, 4).sample(
        [prompt_of("48/2", "24")], 1, PARAMS, 0
    )
    row = recorded(group, tmp_path / "run")
    (answer,) = group_record(row).answers
    pieces = [(texts[0], True), ("24>>", False), (texts[1], True), ("error>>", False), ("24", True)]
    written = sum(map(len, texts)) + 1
    assert said(answer) == [("assistant", pieces, written, 11)]
    assert (answer.num_inserted, answer.length, answer.num_failed_calls) == (11, written, 1)
    assert row["completions"][0]["turns"][0]["segments"] == [0, 1, 2, 3, 4]


class Dialogue:
    """Says three things at once, and then ends with a message that the model does not see."""

    tools = ()

    def reset(self, prompt: Any) -> Any:
        self.count = 0
        return [*prompt.messages, {"role": "user", "content": "Begin."}]

    def step(self, message: Any) -> Observation:
        self.count += 1
        messages = [{"role": "user", "content": text} for text in ("a", "bc", "d")[: 3 if self.count == 1 else 1]]
        return Observation(messages, done=self.count == 2, reward=0.5)

    def close(self) -> None: ...


def test_messages_that_come_together(policy: Policy, tmp_path: Path) -> None:
    engine = saying(policy, "one", "two")
    make = find_environment(Dialogue)
    (group,) = EpisodeSampler(engine, policy.renderer, HERMES, make, 4).sample([prompt_of("x")], 1, PARAMS, 0)
    (answer,) = group_record(recorded(group, tmp_path / "run")).answers
    assert [turn.pieces[0].text for turn in answer.start] == ["x", "Begin."]
    counted = [(turn.role, turn.num_tokens, turn.num_inserted, turn.tokens) for turn in answer.turns]
    assert counted == [
        ("assistant", 4, 0, (0, 4)),
        ("user", 0, 8, (4, 12)),
        ("user", 0, 0, None),
        ("user", 0, 0, None),
        ("assistant", 4, 0, (12, 16)),
        ("user", 0, 0, None),
    ]


async def with_an_aside(client: Any, prompt: Any) -> str:
    """The aside comes between two turns of the conversation, and begins a branch."""
    messages = list(prompt.messages)
    first = await client.chat.completions.create(messages=messages)
    await client.chat.completions.create(messages=[{"role": "user", "content": "judge"}])
    messages += [first.choices[0].message, {"role": "user", "content": "sure?"}]
    await client.chat.completions.create(messages=messages)
    return "mine"


def test_branches_of_an_agent(policy: Policy, tmp_path: Path) -> None:
    play = agent_of(Recipe(), with_an_aside)
    assert play
    sampler = AgentSampler(saying(policy, "41", "hm", "no"), policy.renderer, play)
    (group,) = sampler.sample([prompt_of("0+1")], 1, PARAMS, 0)
    row = recorded(group, tmp_path / "run", policy)
    (answer,) = group_record(row).answers
    tokens = "".join(token.text for token in tokens_of(row, 0) or ())
    spelled = [turn.tokens and tokens_between(row, *turn.tokens) for turn in answer.turns]
    assert tokens == "41<|end|><|user|>sure?<|assistant|>no<|end|>hm<|end|>"
    assert spelled == ["41<|end|>", None, "hm<|end|>", "<|user|>sure?<|assistant|>", "no<|end|>"]
    assert [turn.num_prompt for turn in answer.turns] == [None, None, len("judge") + 2, None, None]
    assert answer.judged == "mine", "an agent may return another text than its last message"


def tokens_between(row: JsonRow, start: int, end: int) -> str:
    return "".join(token.text for token in (tokens_of(row, 0) or ())[start:end])


def test_one_turn_and_older_folders(tmp_path: Path) -> None:
    """An answer of one text has no turns; one of an older run has its messages, without what was not recorded."""
    old = {"text": "b", "turns": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "?"}]}
    one, two = group_record({"completions": [{"text": "a"}, old]}).answers
    assert one.turns == [] and one.judged == "" and not one.num_inserted
    assert said(two) == [("assistant", [("a", True)], None, None), ("user", [("?", False)], None, None)]
    assert [(turn.failed, turn.tokens) for turn in two.turns] == [(False, None)] * 2 and two.judged == "b"


def test_values_of_any_kind() -> None:
    """Rows of strangers: of other types, beyond their ends, and longer than anybody reads."""
    turns = [
        {"role": 3, "content": {"a": [float("nan")]}, "segments": ["x", -1, 99, 0], "num_tokens": "many"},
        {"role": "assistant", "content": "abc", "inserted": [[2, 1], [1, 2], [0, 3], "x", [2, 99]], "failed": 1},
        {"role": "assistant", "tool_calls": [1, {}, {"name": 5, "arguments": '{"a'}, {"error": "\ud800"}]},
        {"role": "tool", "content": "x" * 5000, "failed": True},
    ]
    row = {"completions": [{"turns": [7, *turns], "segments": [[True, 4, 9], 5, [], ["y"]]}]}
    (answer,) = group_record(row, 2000).answers
    odd, cut, calls, result = answer.turns
    assert (odd.role, odd.pieces[0].text, odd.num_prompt, odd.tokens) == ("3", '{"a": [null]}', 9, (0, 4))
    assert [(piece.text, piece.trained) for piece in cut.pieces] == [("a", True), ("b", False), ("c", True)]
    assert [(one.name, [a.value for a in one.arguments]) for one in calls.calls] == [("", []), ("5", ['{"a']), ("", [])]
    assert len(result.pieces[0].text) == 2000 and answer.cut and result.failed and not cut.failed
    many = {"completions": [{"turns": [{"role": "tool", "content": "y" * 1900}] * 1000}]}
    (answer,) = group_record(many, 2000).answers
    assert answer.cut and sum(len(piece.text) for turn in answer.turns for piece in turn.pieces) == 16_000


def test_pending_rollouts_keep_them(policy: Policy, tmp_path: Path) -> None:
    engine = saying(with_tools(policy), call(a=1, b=2), "3")
    sampler = EpisodeSampler(engine, policy.renderer, HERMES, tools_for(find_tools([add])), 4)
    groups = list(sampler.sample([prompt_of("1+2")], 1, PARAMS, 0))
    write_rounds(tmp_path / "pending", [groups])
    ((again,),) = read_rounds(tmp_path / "pending")
    before, after = (one.trajectories[0].episode for one in (groups[0], again))
    assert before and after and after.origins == before.origins
    assert after.origins == (Origin((0,)), Origin((1,)), Origin((2,))) and after == replace(before, environment=None)
