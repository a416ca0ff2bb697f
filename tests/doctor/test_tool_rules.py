"""Rules for tools, environments and turns: simulated runs of two makes, single histories, and real ones."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outdo import Observation, train
from outdo.doctor.answers import summarize_answers
from outdo.doctor.finding import Finding
from outdo.doctor.history import Answers, History, from_rows
from outdo.doctor.read import read_history
from outdo.doctor.rules import NOTES, RULES, diagnose
from outdo.runs.reader import read_metrics
from support import tool_curves, tool_world
from support.basics import ROOT

Diagnosed = dict[tuple[str, int], Finding]
FINE = {"healthy", "too_early"}
CODES = {*tool_curves.FAILURES}


def diagnosed(history: Callable[[str, int], History], kinds: Iterable[str], seeds: range) -> Diagnosed:
    return {(kind, seed): diagnose(history(kind, seed))[0] for kind in kinds for seed in seeds}


def mistakes(source: Any, failing: range, healthy: range) -> tuple[float, float, list[str]]:
    """The share of failures that are not named first, of healthy runs that are alarmed, and both by name. Of calls that
    fail until they are given up, either may be named."""
    named = diagnosed(source.history, source.FAILURES, failing)
    both = {key for key, one in named.items() if key[0].partition(" ")[0] in one.also and "because" in key[0]}
    wrong = [(key, one.code) for key, one in named.items() if one.code != key[0].partition(" ")[0] and key not in both]
    alarms = [(k, f.code) for k, f in diagnosed(source.history, source.HEALTHY, healthy).items() if f.code not in FINE]
    counts = len(named), len(source.HEALTHY) * len(healthy)
    return len(wrong) / counts[0], len(alarms) / counts[1], [f"{key}: {code}" for key, code in wrong + alarms]


def test_every_rule_is_simulated() -> None:
    assert {kind.partition(" ")[0] for kind in tool_world.FAILURES} == CODES <= {*RULES}
    assert "unneeded_tools" in NOTES


def test_curves() -> None:
    """Seeds that the rules were not fitted to."""
    missed, alarms, said = mistakes(tool_curves, range(7000, 7020), range(7000, 7020))
    assert missed <= 0.03 and alarms <= 0.02, said


def test_simulated_policies() -> None:
    """The same for runs that are played turn by turn, whose signals are measured from their answers."""
    missed, alarms, said = mistakes(tool_world, range(7000, 7002), range(7000, 7002))
    assert missed <= 0.06 and alarms <= 0.03, said


@pytest.mark.slow
def test_many_runs() -> None:
    missed, alarms, said = mistakes(tool_curves, range(20_000, 20_100), range(20_000, 20_100))
    assert missed <= 0.02 and alarms <= 0.01, said
    missed, alarms, said = mistakes(tool_world, range(20_000, 20_040), range(20_000, 20_040))
    assert missed <= 0.04 and alarms <= 0.01, said


def test_healthy_at_every_step() -> None:
    """A finding of two looks in a row is reported in training."""
    looks, alarms = 0, []
    for kind in tool_curves.HEALTHY.keys() - {"spikes"}:
        history, before = tool_curves.history(kind, 8001), set[str]()
        for n in range(10, min(len(history), 200), 5):
            codes = {finding.code for finding in diagnose(history.until(n)) if finding.severity != "info"}
            alarms += [f"{kind} at {n}: {code}" for code in codes & before & CODES]
            looks, before = looks + 1, codes
    assert looks > 100 and len(alarms) <= 0.02 * looks, alarms


def run(n: int = 60, recipe: Any = None, answers: Answers | None = None, **curves: Any) -> History:
    """A run on which little happens, but for these."""
    rng = np.random.default_rng(n)
    usual = {"reward_mean": 0.4, "success_rate": 0.4, "entropy_mean": 0.5, "kl_mean": 0.02, "informative": 0.6}
    usual |= {"turns_mean": 3.0, "tool_users": 0.8, "tool_calls_mean": 1.5, "tool_calls_failed": 0.1, "looping": 0.01}
    usual |= {"out_of_turns": 0.02, "env_broken": 0.0, "time/step": 20.0, "time/wait": 2.0}
    columns = {name: curve * np.ones(n) * (1 + rng.normal(0, 0.02, n)) for name, curve in {**usual, **curves}.items()}
    return History(tuple(range(1, n + 1)), columns, recipe=recipe or {}, answers=answers or Answers())


def only(history: History) -> Finding:
    (finding,) = diagnose(history)
    return finding


def line(*levels: float, n: int = 60) -> Any:
    return np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(levels)), levels)


def test_nothing_wrong() -> None:
    assert only(run()).code == "healthy"


KINDS = {
    "malformed": ({"tool_format": "hermes", "sft_steps": 0}, "tool_format=auto"),
    "unknown": ({"tool_format": "hermes", "sft_steps": 100}, "sft_steps=600"),
    "arguments": ({"sft_steps": 0}, "sft_steps=500"),
    "timeout": ({"tool_timeout": 2.0}, "tool_timeout=6"),
    "raised": ({"tool_timeout": 2.0}, ""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_failing_calls(kind: str) -> None:
    recipe, change = KINDS[kind]
    kinds = {f"tool_calls_failed/{name}": 0.7 if name == kind else 0.05 for name in KINDS}
    failing = run(recipe=recipe, answers=Answers(error="Error: no such tool"), tool_calls_failed=0.8, **kinds)
    finding = only(failing)
    assert finding.code == "failing_calls" and finding.severity == "warning"
    assert finding.evidence[1].signal == f"tool_calls_failed/{kind}"
    assert "Error: no such tool" in finding.evidence[-1].describe()
    assert (finding.change.pair() if finding.change else "") == change
    assert only(run(recipe=recipe, tool_calls_failed=0.97, **kinds)).severity == "critical"
    assert only(run(tool_calls_failed=line(0.9, 0.3, 0.2), **kinds)).code == "healthy"
    assert only(run(tool_calls_failed=0.8, tool_calls_mean=0.01, **kinds)).code == "healthy"  # three calls in all


@pytest.mark.parametrize(
    ("kind", "recipe", "key"),
    [
        ("malformed", {"tool_format": "marks"}, "sft_steps"),  # a model without a template writes no other
        ("raised", {"tools": ["calculator", {"python": {"seconds": 2}}, "search:docs"]}, "sft_steps"),
        ("raised", {"tools": ["calculator", "my_tools.py:ratio"]}, None),
    ],
)
def test_who_is_at_fault(kind: str, recipe: dict[str, Any], key: str | None) -> None:
    change = only(run(recipe=recipe, tool_calls_failed=0.8, **{f"tool_calls_failed/{kind}": 0.8})).change
    assert (change and change.key) == key


def test_first_steps_show_what_is_obvious() -> None:
    assert only(run(10, tool_calls_failed=0.7)).code == "too_early"
    assert only(run(10, tool_calls_failed=0.98)).code == "failing_calls"


def test_unused() -> None:
    finding = only(run(tool_users=0.0, tool_calls_mean=0.0, recipe={"sft_steps": 0}))
    assert finding.code == "unused_tools" and finding.change and finding.change.pair() == "sft_steps=500"
    wrong = run(tool_users=0.0, success_rate=0.0, reward_mean=0.0, informative=0.0, all_wrong=1.0)
    assert [(one.code, one.also) for one in diagnose(wrong)] == [("unused_tools", ("dead_all_wrong", "no_signal"))]
    cut = only(run(tool_users=0.0, truncated=0.9, recipe={"max_completion_length": 64}))
    assert cut.code == "truncation" and cut.also == ("unused_tools",)  # cut off before a call could be made
    up = line(0.3, 0.7)
    assert [one.code for one in diagnose(run(tool_users=0.0, success_rate=up, reward_mean=up))] == [
        *("healthy", "unneeded_tools")
    ]
    assert only(run(tool_users=0.02)).code == "healthy"  # rarely is not never: it can be strengthened


def test_of_other_trainers() -> None:
    rng = np.random.default_rng(0)
    row = {"reward": 0.4, "kl": 0.02, "entropy": 0.5, "completions/mean_length": 100.0}
    trl = [{"step": i, **{k: v * (1 + rng.normal(0, 0.02)) for k, v in row.items()}} for i in range(40)]
    calls = {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0}
    assert diagnose(from_rows([one | calls for one in trl]))[0].code == "unused_tools"
    finding = diagnose(from_rows([one | {**calls, "tools/call_frequency": 2.0} for one in trl]))[0]
    assert finding.code == "healthy"
    failed = {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.95}
    finding = diagnose(from_rows([one | failed for one in trl]))[0]
    assert finding.code == "failing_calls" and finding.change and finding.change.key == "sft_steps"


GIVEN_UP = line(0.8, 0.8, 0.0, 0.0, 0.0)


def test_abandoned() -> None:
    fell = line(0.6, 0.6, 0.35, 0.35, 0.35)
    run_ = run(tool_users=GIVEN_UP, success_rate=fell, reward_mean=fell, tool_advantage=0.3)
    finding = only(run_)
    assert finding.code == "abandoned_tools" and 18 <= finding.step <= 28 and finding.change
    assert finding.change.key == "sft_steps"
    lost = finding.evidence[1]
    assert lost.before == pytest.approx(0.6, abs=0.05) and lost.after == pytest.approx(0.35, abs=0.03)
    cut = replace(run_, columns={**run_.columns, "truncated": line(0.5, 0.5, 0.05, 0.05, 0.05)})
    change = only(replace(cut, recipe={"max_completion_length": 100})).change
    assert change and change.pair() == "max_completion_length=200"
    for success in (line(0.4, 0.8), line(0.4, 0.4)):  # it does as well without
        codes = [one.code for one in diagnose(run(tool_users=GIVEN_UP, success_rate=success, reward_mean=success))]
        assert codes == ["healthy", "unneeded_tools"]


def test_abandoned_because_they_failed() -> None:
    calls = {"tool_users": GIVEN_UP, "tool_calls_mean": 2 * GIVEN_UP}
    failed = np.where(GIVEN_UP > 0.01, 0.9, np.nan)
    finding = only(run(tool_calls_failed=failed, **calls))
    assert finding.code == "abandoned_tools"
    assert any(one.signal == "tool_calls_failed" for one in finding.evidence)
    rises = line(0.4, 0.4, 0.5, 0.6, 0.7)  # and it still learns
    codes = [
        one.code for one in diagnose(run(tool_calls_failed=failed, success_rate=rises, reward_mean=rises, **calls))
    ]
    assert codes == ["healthy", "unneeded_tools"]


def test_abandoned_with_the_policy() -> None:
    """Where the policy came apart, that is the cause."""
    fell = line(0.6, 0.6, 0.2, 0.1, 0.1)
    gone = run(tool_users=GIVEN_UP, success_rate=fell, reward_mean=fell, kl_mean=line(0.01, 0.2, 1.0, 1.5, 2.0))
    finding = only(gone)
    assert finding.code == "kl_blowup" and "abandoned_tools" in finding.also


def test_loops() -> None:
    stuck = {"looping": 0.4, "out_of_turns": 0.45, "truncated": 0.3}
    finding = only(run(recipe={"mask_truncated_completions": True}, **stuck))
    assert finding.code == "call_loops" and {*finding.also} == {"out_of_turns", "truncation"}
    assert finding.change and finding.change.pair() == "mask_truncated_completions=false"
    for recipe, key in (({"temperature": 0.6}, "temperature"), ({"temperature": 1.0}, "sft_steps")):
        change = only(run(recipe=recipe, **stuck)).change
        assert change and change.key == key
    assert only(run(looping=line(0.5, 0.2, 0.05, 0.02), out_of_turns=line(0.5, 0.2, 0.05, 0.02))).code == "healthy"


def test_out_of_turns() -> None:
    for recipe, change in (
        ({"max_turns": 16, "max_tool_calling_iterations": 4}, "max_tool_calling_iterations=8"),
        ({"max_turns": 4, "max_tool_calling_iterations": 9}, "max_turns=8"),
        ({"max_turns": 4, "max_tool_calling_iterations": None}, "max_turns=8"),
    ):
        finding = only(run(out_of_turns=0.5, recipe=recipe))
        assert finding.code == "out_of_turns" and finding.change and finding.change.pair() == change
    solved = {"success_rate": 0.95, "reward_mean": 0.95}
    assert only(run(out_of_turns=0.3, **solved)).code == "healthy"  # right all the same


def test_given_away() -> None:
    finding = only(run(given_away=line(0.0, 0.5, 0.9, 0.95), copied=0.9))
    assert finding.code == "given_away" and 20 <= finding.step <= 35
    assert only(run(given_away=0.0, copied=line(0.1, 1.0))).code == "healthy"  # a calculator's last result


def test_copies_are_evidence_of_hacking() -> None:
    up = line(0.4, 0.9)
    finding = only(run(reward_mean=up, success_rate=0.4, copied=line(0.1, 0.9)))
    assert finding.code == "reward_hacking"
    assert any(one.signal == "copied" and "text of a tool" in one.note for one in finding.evidence)
    assert only(run(reward_mean=up, success_rate=up, copied=line(0.1, 0.9))).code == "healthy"


def test_broken_environment() -> None:
    reason = Answers(broken="the environment failed: OSError: gone")
    finding = only(run(env_broken=0.3, grader_broken=0.3, answers=reason))
    assert finding.code == "broken_environment" and finding.also == ("broken_grader",) and not finding.change
    assert finding.severity == "critical" and "OSError" in finding.evidence[-1].describe()
    codes = [one.code for one in diagnose(run(env_broken=0.08, grader_broken=0.5))]
    assert {*codes} == {"broken_environment", "broken_grader"}  # most were broken by something else
    once = np.where(np.arange(60) == 57, 0.9, 0.0)
    assert only(run(env_broken=once)).code == "healthy"
    assert only(run(4, env_broken=0.5)).code == "broken_environment"


def test_slow_environment() -> None:
    slow = {"time/wait": 15.0, "time/step": 20.0}
    recipe = {"tool_timeout": 10.0, "per_device_train_batch_size": 32}
    finding = only(run(recipe=recipe, env_wait_mean=0.9, **slow))  # 0.3 s a turn, and a few of 10
    assert finding.code == "slow_environment" and finding.change and finding.change.pair() == "tool_timeout=1"
    change = only(run(recipe=recipe, env_wait_mean=14.0, **slow)).change  # all are slow
    assert change and change.pair() == "per_device_train_batch_size=64"
    assert only(run(**{"time/wait": 0.8, "time/step": 1.0})).code == "healthy"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_real_games_are_healthy(seed: int) -> None:
    """Guessing, 110 steps: answers of several turns that learn to win."""
    with (ROOT / "docs" / "results" / "guess" / f"seed{seed}-metrics.csv").open() as file:
        history = from_rows(list(csv.DictReader(file)), recipe={"kl_limit": None})
    assert history.has("turns_mean")
    for n in range(20, len(history) + 1, 5):
        assert not {finding.code for finding in diagnose(history.until(n))} & CODES


class Fragile:
    """Fails in every other game; the others are never over, and say the same to whatever is said."""

    made = 0

    def reset(self, prompt: Any) -> Any:
        Fragile.made += 1
        self.fails = Fragile.made % 2
        return prompt.messages

    def step(self, message: Any) -> Observation:
        if self.fails:
            raise OSError("the server is gone")
        return Observation([{"role": "user", "content": "again"}], reward=0.0)


def test_a_real_run(tmp_path: Path) -> None:
    """From what environments do to what the doctor says of the run's folder."""
    keys = {"max_turns": 2, "max_completion_length": 48, "max_steps": 4, "sft_steps": 30, "sft_batch_size": 8}
    keys |= {"num_generations": 4, "per_device_train_batch_size": 8, "eval_size": 4, "eval_samples": 0}
    given = {
        "environment_factory": Fragile,
        "reward_funcs": ["environment"],
        "broken_limit": 1.0,
    }
    folder = train(dataset_name="arithmetic", output_dir=tmp_path / "run", **keys, **given).folder
    finding = diagnose(read_history(folder))[0]
    assert finding.code == "broken_environment" and "broken_grader" in finding.also
    assert "OSError: the server is gone" in finding.evidence[-1].describe()
    rows = list(read_metrics(folder, []))
    assert all(row["env_broken"] == 0.5 and 0 <= row["time/wait"] < row["time/step"] for row in rows)
    assert all(row["out_of_turns"] + row["truncated"] == 0.5 for row in rows)


def test_answers_of_several_turns() -> None:
    """The most common error; and two answers are the same only if all that was said is."""
    failed = {"role": "tool", "content": "Error: no such city", "failed": True}

    def answer(said: str, verdict: str) -> dict[str, Any]:
        turns = [{"role": "assistant", "content": said}, failed, {"role": "assistant", "content": "done"}]
        reward = float(verdict == "right")
        kept = {"text": "done", "num_tokens": 5, "finish": "stop", "reason": ""}
        return {**kept, "reward": reward, "verdict": verdict, "turns": turns}

    def rows(*answers: dict[str, Any]) -> list[dict[str, Any]]:
        messages = [{"role": "user", "content": "?"}]
        return [{"step": i, "prompt_id": "a", "messages": messages, "completions": answers} for i in range(9)]

    found = summarize_answers(rows(answer("left", "right"), answer("right", "wrong")))
    assert found.differing == 0 and found.error == "Error: no such city"
    assert summarize_answers(rows(answer("left", "right"), answer("left", "wrong"))).differing == 1
