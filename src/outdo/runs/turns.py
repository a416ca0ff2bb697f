"""The turns of an answer: what a run keeps of them, and what viewers show.

A turn is a message after the prompt: the model's, a tool's, an environment's. A message of the model is made of tokens
that are trained on, and of those that an environment inserted into it; all others are inserted. The tokens of messages
that came together are counted with the first of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from outdo.runs.reader import JsonRow
from outdo.runs.values import Record, as_dict, as_int, as_list, as_text, dicts_in, json_safe
from outdo.types import Origin, Segment, Trajectory

MAX_TURNS, MAX_CALLS, MAX_ARGUMENTS, MAX_PIECES = 256, 64, 64, 256
SHARE = 8  # of the characters of a text: those of all turns of an answer


class ArgumentRecord(Record):
    name: str
    value: str  # a text as it is, anything else as JSON
    is_text: bool


class CallRecord(Record):
    """A call of a tool; with `error` where it could not be read."""

    name: str
    arguments: list[ArgumentRecord]
    error: str


class PieceRecord(Record):
    """A part of a turn's text."""

    text: str
    trained: bool  # the model's own; else an environment's


class TurnRecord(Record):
    """One message. A field that was not recorded is null."""

    role: str
    name: str  # of the tool
    pieces: list[PieceRecord]
    calls: list[CallRecord]
    failed: bool  # an error message in place of a call's result
    num_tokens: int | None  # that the model wrote
    num_inserted: int | None
    num_prompt: int | None  # of a prompt of its own, from which the model's turn was sampled
    tokens: tuple[int, int] | None  # from where to where it is, in the answer's recorded tokens


def turn_rows(answer: Trajectory) -> JsonRow:
    """The columns of an answer that was played; none where it is one text."""
    episode, segments = answer.episode, answer.segments
    columns: JsonRow = {}
    if episode or len(segments) > 1:
        columns["segments"] = [_segment_row(segment) for segment in segments]
    if episode:
        origins = episode.origins if len(episode.origins) == len(episode.messages) else [None] * len(episode.messages)
        turns = zip(episode.messages, origins, strict=True)
        columns["turns"] = [
            {**message, **(_origin_row(origin, segments) if origin else {})} for message, origin in turns
        ]
        if episode.start:
            columns["start"] = [dict(message) for message in episode.start]
        columns |= {"calls": episode.num_calls, "failed_calls": episode.num_failed_calls, "env_reward": episode.reward}
    return columns


def _segment_row(segment: Segment) -> list[Any]:
    """Whether it is trained on, its tokens, and those of its own prompt."""
    own = [] if segment.prompt_ids is None else [len(segment.prompt_ids)]
    return [segment.trained, len(segment.token_ids), *own]


def _origin_row(origin: Origin, segments: Sequence[Segment]) -> JsonRow:
    own = [segments[place] for place in origin.segments]
    return {
        "num_tokens": sum(len(segment.token_ids) for segment in own if segment.trained),
        "num_inserted": sum(len(segment.token_ids) for segment in own if not segment.trained),
        "segments": list(origin.segments),
        **({"inserted": [list(span) for span in origin.inserted]} if origin.inserted else {}),
        **({"failed": True} if origin.failed else {}),
    }


def turn_records(answer: JsonRow, max_chars: int, column: str = "turns") -> tuple[list[TurnRecord], bool]:
    """The turns of an answer as it was recorded, and whether any were cut. Values of the wrong type are dropped."""
    rows = dicts_in(answer.get(column))
    segments = [each if isinstance(each, list) else [] for each in as_list(answer.get("segments"))]
    room, records = SHARE * max_chars, list[TurnRecord]()
    cut = len(rows) > MAX_TURNS
    for row in rows[:MAX_TURNS]:
        limit = _Limit(min(max_chars, room))
        records.append(_turn(row, segments, limit))
        room -= limit.used
        cut = cut or limit.cut
    return records, cut


class _Limit:
    """How many characters may still be taken."""

    def __init__(self, room: int) -> None:
        self.room, self.used, self.cut = max(room, 0), 0, False

    def take(self, text: str) -> str:
        taken = text[: self.room]
        self.room -= len(taken)
        self.used += len(taken)
        self.cut = self.cut or len(taken) < len(text)
        return taken


def _turn(row: JsonRow, segments: Sequence[Sequence[Any]], limit: _Limit) -> TurnRecord:
    role = as_text(row.get("role"), 40)
    places = [place for place in map(as_int, as_list(row.get("segments"))) if place is not None]
    places = [place for place in places if 0 <= place < len(segments)]
    prompts = [as_int(segments[place][2]) for place in places if len(segments[place]) > 2]
    starts = list(accumulate((_size(segment) for segment in segments), initial=0))
    calls = [_call(call, limit) for call in dicts_in(row.get("tool_calls"))[:MAX_CALLS]]
    return TurnRecord(
        role=role,
        name=as_text(row.get("name"), 200) if role == "tool" else "",
        pieces=_pieces(row, role == "assistant", limit),
        calls=calls,
        failed=row.get("failed") is True,
        num_tokens=as_int(row.get("num_tokens")),
        num_inserted=as_int(row.get("num_inserted")),
        num_prompt=prompts[0] if prompts else None,
        tokens=(starts[min(places)], starts[max(places) + 1]) if places else None,
    )


def _size(segment: Sequence[Any]) -> int:
    return max(as_int(segment[1]) or 0, 0) if len(segment) > 1 else 0


def _pieces(row: JsonRow, is_models: bool, limit: _Limit) -> list[PieceRecord]:
    """The text, with what was inserted into it apart."""
    content = row.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(json_safe(content))
    cuts, position = [(0, is_models)], 0
    for span in as_list(row.get("inserted"))[:MAX_PIECES] if is_models else ():
        begin, end, *_ = [*(as_int(place) or 0 for place in as_list(span)), 0, 0]
        if position <= begin < end <= len(text):
            cuts += [(begin, False), (end, True)]
            position = end
    ends = [place for place, _ in cuts[1:]] + [len(text)]
    parts = [(text[begin:end], trained) for (begin, trained), end in zip(cuts, ends, strict=True) if begin < end]
    return [PieceRecord(text=limit.take(as_text(part)), trained=trained) for part, trained in parts]


def _call(row: JsonRow, limit: _Limit) -> CallRecord:
    row = as_dict(row.get("function")) or row
    given = json_safe(row.get("arguments"))
    arguments = given if isinstance(given, dict) else {} if given is None else {"": given}
    return CallRecord(
        name=as_text(row.get("name"), 200),
        arguments=[_argument(name, value, limit) for name, value in list(arguments.items())[:MAX_ARGUMENTS]],
        error=limit.take(as_text(row.get("error"))),
    )


def _argument(name: str, value: Any, limit: _Limit) -> ArgumentRecord:
    is_text = isinstance(value, str)
    text = limit.take(value if is_text else json.dumps(value, ensure_ascii=False))
    return ArgumentRecord(name=as_text(name, 200), value=text, is_text=is_text)
