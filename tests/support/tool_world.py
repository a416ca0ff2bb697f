"""Simulated runs with tools, for the doctor: a policy that decides whether to call, how well, and when to stop.

Each step plays P prompts, G answers each, turn by turn: the answers are real `Episode`s, and all signals are measured
from them by the run's own code. The update moves each decision's logit by the advantages of the answers that made it.
A failure is a wrong setting of the world. Knows no threshold, and shares no code with other simulators.

    python tests/support/tool_world.py 0 60      # 60 runs of each kind, from seed 0
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outdo.doctor.history import History, from_rows
from outdo.doctor.rules import diagnose
from outdo.metrics.measure import Clock, measure
from outdo.types import Episode, Finish, Grade, Group, Message, Prompt, Segment, Trajectory

DECISIONS = ("call", "valid", "stop", "alone", "aided")


@dataclass(frozen=True)
class World:
    """The settings of one run. What is decided, and the skills with and without a tool's result, are logits."""

    steps: int = 60
    prompts: int = 8
    answers: int = 6
    call: float = 1.0
    valid: float = 1.0
    stop: float = 2.0
    alone: float = -2.0
    aided: float = 0.0
    rates: dict[str, float] = field(default_factory=lambda: dict.fromkeys(DECISIONS, 0.5))
    kind: str = "arguments"  # of failures
    cost: float = 0.0  # of a call, in reward
    turns: int = 6  # at most
    needed: int = 1  # results that an answer needs
    tools: int = 1
    moves: bool = False  # results are all alike, and may repeat
    leak: bool = False  # the result is the gold, whatever is asked
    sums: bool = False  # the last call's result is the gold, because it was asked for just that
    judged: bool = True  # whether it is known which calls fail
    broken: float = 0.0
    wait: float = 0.05  # share of the step's time
    wide: float = 1.0  # spread of difficulty
    forget: float = 0.0  # of the logit of calls, at each step


def simulate(world: World, rng: np.random.Generator) -> list[dict[str, Any]]:
    w, rows = world, []
    policy = {name: getattr(w, name) for name in DECISIONS}
    total = 0.0
    for step in range(w.steps):
        groups, choices = [], []
        for prompt in range(w.prompts):
            gold, hard = str(int(rng.integers(10, 10**6))), rng.normal(0, w.wide)
            played = [_play(w, policy, gold, hard, rng) for _ in range(w.answers)]
            task = Prompt(f"{step}-{prompt}", ({"role": "user", "content": gold},), gold)
            groups.append(Group(task, (1,), tuple(one[0] for one in played), tuple(one[1] for one in played)))
            choices.append([one[2] for one in played])
        total += _learn(w, policy, groups, choices)
        policy["call"] -= w.forget
        kl = 0.002 + 0.04 * (1 - np.exp(-total / 4))
        clock = Clock()
        stats = {"kl": kl * np.exp(rng.normal(0, 0.1)), "grad_norm": 0.2 * np.exp(rng.normal(0, 0.2)), "loss": 0.01}
        row = {**measure(groups, groups, stats, clock), "step": step + 1}
        seconds = 20.0 * np.exp(rng.normal(0, 0.1))
        share = min(w.wait * np.exp(rng.normal(0, 0.1)), 0.98)
        row |= {"time/step": seconds, "time/wait": seconds * share, "env_wait_mean": share * seconds / 3}
        rows.append(row)
    return rows


def _play(w: World, policy: dict[str, float], gold: str, hard: float, rng: np.random.Generator) -> Any:
    """The answer, its grade, and how often each decision was taken, either way."""
    if rng.random() < w.broken:
        episode = Episode((), 0, num_tools=w.tools, broken="the environment failed: OSError: gone")
        return _trajectory(episode, "", "stop"), Grade(None, "broken"), []
    chosen: list[tuple[str, bool]] = []
    decide = lambda name: bool(rng.random() < _sigmoid(policy[name]))  # noqa: E731
    messages: list[Message] = []
    failures: Counter[str] = Counter()
    results = calls = 0
    ended = not w.tools
    if w.tools:
        chosen.append(("call", decide("call")))
        ended = not chosen[0][1]
    while not ended and calls < w.turns:
        calls += 1
        chosen.append(("valid", decide("valid")))
        asked = _asked(w, gold, results)
        works = chosen[-1][1]
        reply = ("Error: no such thing" if not works else _result(w, gold, results)) or "ok"
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"name": "find", "arguments": asked}]})
        messages.append({"role": "tool", "name": "find", "content": reply})
        failures[w.kind] += not works
        advances = works
        if works and results + 1 >= w.needed:
            chosen.append(("stop", decide("stop")))
            ended = chosen[-1][1]
            advances = results < w.needed
        results += advances
    aided = results >= w.needed and bool(w.tools)
    skill = "aided" if aided else "alone"
    right = ended and bool(rng.random() < _sigmoid(policy[skill] - hard))
    chosen.append((skill, right))
    text = (gold if right else str(int(rng.integers(10, 10**6)))) if ended else ""
    if ended:
        messages.append({"role": "assistant", "content": text})
    counts = {"num_calls": calls, "failures": {k: n for k, n in failures.items() if n}, "num_tools": w.tools}
    failed = failures.total() if w.judged else None
    episode = Episode(
        tuple(messages), calls + ended, num_failed_calls=failed, out_of_turns=not ended, wait_seconds=0.2, **counts
    )
    reward = float(right) - w.cost * calls
    grade = Grade(reward, "right" if right else "wrong")
    return _trajectory(episode, text, "stop" if ended else "length"), grade, chosen


def _asked(w: World, gold: str, results: int) -> dict[str, Any]:
    if w.leak or w.moves:
        return {"what": "it"}
    return {"sum": f"{gold}+0", "part": min(results, w.needed - 1)}


def _result(w: World, gold: str, results: int) -> str:
    if w.moves:
        return "ok"
    return gold if w.leak or w.sums else f"see page {min(results, w.needed - 1)} of {gold}0"


def _trajectory(episode: Episode, text: str, finish: Finish) -> Trajectory:
    ids = tuple(zlib.crc32(repr(message).encode()) for message in episode.messages) or (0,)
    environment = Segment((2,) * (1 + 4 * episode.num_calls), trained=False)
    return Trajectory((Segment(ids, (-0.5,) * len(ids)), environment), text, finish, episode=episode)


def _learn(w: World, policy: dict[str, float], groups: list[Group], choices: list[list[Any]]) -> float:
    """Moves the decisions by the advantages. Returns how far."""
    gradient: Counter[str] = Counter()
    for group, chosen in zip(groups, choices, strict=True):
        paid = [grade.reward for grade in group.grades if grade.reward is not None]
        if len(paid) < 2 or np.std(paid) == 0:
            continue
        for grade, decisions in zip(group.grades, chosen, strict=True):
            advantage = 0.0 if grade.reward is None else (grade.reward - np.mean(paid)) / (np.std(paid) + 1e-4)
            for name, yes in decisions:
                gradient[name] += advantage * (float(yes) - _sigmoid(policy[name]))
    moved = 0.0
    for name in DECISIONS:
        change = w.rates[name] * gradient[name] / (w.prompts * w.answers)
        policy[name] += change
        moved += abs(change)
    return moved


def _sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


# --- the kinds of runs


def _slow(w: World, *names: str) -> dict[str, float]:
    """No such decision is learned."""
    return {name: 0.0 if name in names else rate for name, rate in w.rates.items()}


Settings = Callable[[World, np.random.Generator], World]
HEALTHY: dict[str, Settings] = {
    "learns to call": lambda w, r: replace(w, call=r.uniform(-2.0, -1.0)),
    "learns to call well": lambda w, r: replace(w, call=2.0, valid=r.uniform(-1.5, -0.5), kind="malformed"),
    "a few calls fail": lambda w, r: replace(w, valid=r.uniform(0.5, 1.5), rates=_slow(w, "valid"), kind="raised"),
    "learns to stop": lambda w, r: replace(w, stop=r.uniform(-1.0, 0.0)),
    "does as well without": lambda w, r: replace(
        w, call=0.5, aided=-0.5, alone=-0.5, cost=r.uniform(0.05, 0.2), rates={**w.rates, "alone": 1.0}
    ),
    "never calls, and learns": lambda w, r: replace(w, call=-12.0, alone=-0.5, rates={**w.rates, "alone": 1.0}),
    "calculates": lambda w, r: replace(w, sums=True, aided=1.0),
    "moves": lambda w, r: replace(w, moves=True, needed=4, turns=9, call=3.0, valid=3.0),
    "many turns": lambda w, r: replace(w, needed=3, turns=8, valid=2.0),
    "a game": lambda w, r: replace(w, tools=0, alone=-1.0, rates={**w.rates, "alone": 1.0}),
    "an agent": lambda w, r: replace(w, judged=False),
    "at a plateau": lambda w, r: replace(w, call=2.0, valid=2.0, aided=0.5, rates=_slow(w, *DECISIONS[1:])),
}
FAILURES: dict[str, Settings] = {
    "unused_tools": lambda w, r: replace(w, call=r.uniform(-14, -9), rates=_slow(w, "alone")),
    "abandoned_tools": lambda w, r: replace(
        w, call=1.5, aided=r.uniform(0, 1), alone=-3.0, forget=12 / w.steps, rates=_slow(w, "alone", "aided")
    ),
    "abandoned_tools because they fail": lambda w, r: replace(
        w, call=0.5, valid=-3.0, alone=-0.8, aided=-2.0, rates={**_slow(w, *DECISIONS[1:]), "call": 3.0}
    ),
    "failing_calls": lambda w, r: replace(
        w,
        call=r.uniform(1, 3),
        valid=r.uniform(-4, -1.2),
        kind=str(r.choice(["malformed", "unknown", "arguments", "raised", "timeout"])),
        rates=_slow(w, "call", "valid"),
    ),
    "call_loops": lambda w, r: replace(w, stop=r.uniform(-4, -1.8), rates=_slow(w, "stop", "call"), call=2.0),
    "out_of_turns": lambda w, r: replace(
        w, needed=4, turns=4, valid=r.uniform(0.5, 1.8), call=3.0, stop=4.0, rates=_slow(w, "call", "valid")
    ),
    "given_away": lambda w, r: replace(w, leak=True, aided=2.0, call=r.uniform(0, 2)),
    "broken_environment": lambda w, r: replace(w, broken=r.uniform(0.1, 0.4)),
    "slow_environment": lambda w, r: replace(w, wait=r.uniform(0.6, 0.95)),
}


def history(kind: str, seed: int, steps: int = 0) -> History:
    """One run of a kind, of 40 to 120 steps."""
    r = np.random.default_rng([seed, zlib.crc32(kind.encode()), 5])
    base = World(
        steps=steps or int(r.choice([40, 60, 120])),
        prompts=int(r.choice([6, 8, 12])),
        aided=r.uniform(-0.5, 0.8),
        alone=r.uniform(-3.0, -1.5),
        wait=r.uniform(0.0, 0.3),
        wide=r.uniform(0.6, 1.4),
    )
    base = replace(base, rates={name: rate * 60 / base.steps for name, rate in base.rates.items()})
    world = {**HEALTHY, **FAILURES}[kind](base, r)
    return from_rows(simulate(world, r), recipe={"max_turns": world.turns, "tool_timeout": 10.0, "sft_steps": 0})


def _named(kind: str, seed: int) -> str:
    """The first finding; of calls that failed until they were given up, either of the two."""
    first = diagnose(history(kind, seed))[0]
    both = "because" in kind and first.code == "failing_calls" and "abandoned_tools" in first.also
    return "abandoned_tools" if both else first.code


def judge(seeds: range) -> tuple[float, float, list[str]]:
    """The share of failing runs whose first finding is the cause, of false alarms, and the mistakes by name."""
    named = {(kind, seed): _named(kind, seed) for kind in (*FAILURES, *HEALTHY) for seed in seeds}
    failing = {(kind, seed): code for (kind, seed), code in named.items() if kind in FAILURES}
    wrong = [f"{kind} {seed}: {code}" for (kind, seed), code in failing.items() if code != kind.partition(" ")[0]]
    fine = {"healthy", "too_early"}
    alarms = [f"{kind} {seed}: {code}" for (kind, seed), code in named.items() if kind in HEALTHY and code not in fine]
    return 1 - len(wrong) / (len(FAILURES) * len(seeds)), len(alarms) / (len(HEALTHY) * len(seeds)), wrong + alarms


if __name__ == "__main__":
    first, count = (int(word) for word in (*sys.argv[1:3], *("0", "20")[len(sys.argv) - 1 :]))
    share, false_alarms, mistakes = judge(range(first, first + count))
    print(f"{count} of each kind from seed {first}: {share:.1%} named rightly, {false_alarms:.1%} false alarms")
    print(*mistakes, Counter(line.rpartition(" ")[0].rpartition(" ")[0] for line in mistakes), sep="\n")
