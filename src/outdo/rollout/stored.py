"""Rollouts on disk, so that a run that stopped between sampling and learning does not sample them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from outdo.types import Episode, Group, Origin, Prompt, Segment, Trajectory


def write_rounds(path: Path, rounds: Sequence[Sequence[Group]]) -> None:
    """Writes a line per group. Of the prompt only the id is stored; floats are restored bit for bit."""
    with path.open("w", encoding="utf-8") as file:
        for number, groups in enumerate(rounds):
            for group in groups:
                file.write(json.dumps({"round": number, **_row(group)}) + "\n")


def read_rounds(path: Path) -> list[list[Group]]:
    """The rounds, with prompts that have only an id."""
    rounds: list[list[Group]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["round"] == len(rounds):
            rounds.append([])
        rounds[-1].append(_group(row))
    return rounds


def _row(group: Group) -> dict[str, Any]:
    answers = [_answer_row(one) for one in group.trajectories]
    return {"prompt_id": group.prompt.id, "prompt_ids": group.prompt_ids, "trajectories": answers}


def _answer_row(one: Trajectory) -> dict[str, Any]:
    row: dict[str, Any] = {"segments": [_segment_row(segment) for segment in one.segments], "text": one.text}
    if one.episode:  # without the user's object, which no file holds
        row["episode"] = {f.name: getattr(one.episode, f.name) for f in fields(Episode) if f.name != "environment"}
    return {**row, "finish": one.finish}


def _segment_row(segment: Segment) -> list[Any]:
    """Its fields; the last one only where it is set."""
    values = list(vars(segment).values())
    return values if segment.prompt_ids is not None else values[:-1]


def _group(row: dict[str, Any]) -> Group:
    answers = row.get("trajectories") or map(_version_1, row["completions"])
    return Group(Prompt(row["prompt_id"], ()), tuple(row["prompt_ids"]), tuple(map(_trajectory, answers)))


def _trajectory(row: dict[str, Any]) -> Trajectory:
    given = row.get("episode")
    episode = None
    if given:
        origins = tuple(Origin(tuple(a), tuple(map(tuple, b)), failed) for a, b, failed in given.get("origins", ()))
        messages, start = tuple(given["messages"]), tuple(given.get("start", ()))
        episode = Episode(**{**given, "messages": messages, "start": start, "origins": origins})
    return Trajectory(tuple(map(_segment, row["segments"])), row["text"], row["finish"], episode=episode)


def _segment(values: list[Any]) -> Segment:
    token_ids, logprobs, version, support, trained, *prompt_ids = values
    first = tuple(prompt_ids[0]) if prompt_ids else None
    return Segment(tuple(token_ids), tuple(logprobs), version, tuple(map(tuple, support)), trained, first)


def _version_1(answer: list[Any]) -> dict[str, Any]:
    """An answer as version 0.1 stored it."""
    token_ids, logprobs, text, finish, version, support = answer
    return {"segments": [[token_ids, logprobs, version, support, True]], "text": text, "finish": finish}
