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

MAX_TURNS, MAX_CALLS, MAX_ARGUMENTS, MAX_PIECES, MAX_NAME = 256, 64, 64, 256, 200
TURN_COLUMNS = ("turns", "start", "calls", "failed_calls", "env_reward")
MAX_SHORT = 64  # turns of an answer that is kept short: of more, the first and the last
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


class PlayedRecord(Record):
    """What an answer of several turns has beside its text; empty for an answer that is one text."""

    turns: list[TurnRecord]
    start: list[TurnRecord]  # what the model was shown first, where that is not the prompt
    num_inserted: int
    num_calls: int
    num_failed_calls: int
    judged: str  # what rewards judge, where that is not the text of the model's last turn


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


def short_turn_rows(answer: Trajectory, max_chars: int) -> JsonRow:
    """The same, with about twice so many characters at most, and without the numbers of segments: for an answer that is
    not learned from. The model's last turn, which is judged, has half of them."""
    columns = turn_rows(answer)
    columns.pop("segments", None)
    for name in {"turns", "start"} & columns.keys():
        rows = columns[name]
        rows = rows if len(rows) <= MAX_SHORT else [*rows[: MAX_SHORT // 2], *rows[-MAX_SHORT // 2 :]]
        last = max((place for place, row in enumerate(rows) if row.get("role") == "assistant"), default=-1)
        share = max_chars // max(len(rows), 1)
        columns[name] = [_short_row(row, max_chars if place == last else share) for place, row in enumerate(rows)]
    return columns


def _short_row(row: JsonRow, limit: int) -> JsonRow:
    """A turn with so many characters in its content, and in all its calls together."""
    content, calls = row.get("content"), dicts_in(row.get("tool_calls"))[:MAX_CALLS]
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)
    is_short = len(text) <= limit
    names = ("num_tokens", "num_inserted", "failed", *(["inserted"] if is_short else []))
    num_values = sum(len(as_dict(call.get("arguments"))) + 1 for call in calls)
    short = [_short_call(call, limit // num_values) for call in calls]
    return {
        "role": row.get("role"),
        "content": text if is_short else _cut(text, limit),
        **({"name": as_text(row["name"], MAX_NAME)} if "name" in row else {}),
        **({"tool_calls": short} if short else {}),
        **{name: row[name] for name in names if name in row},
    }


def _short_call(call: JsonRow, limit: int) -> JsonRow:
    if "error" in call:
        return {"error": _cut(as_text(call["error"]), limit)}
    arguments = list(as_dict(call.get("arguments")).items())[:MAX_ARGUMENTS]
    return {
        "name": as_text(call.get("name"), MAX_NAME),
        "arguments": {as_text(name, MAX_NAME): _short_value(value, limit) for name, value in arguments},
    }


def _short_value(value: Any, limit: int) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= limit else _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    """Its start and its end."""
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    return f"{text[:head]} … ({len(text) - limit:,} characters cut) … {text[len(text) - (limit - head) :]}"


def played(answer: JsonRow, text: str, max_chars: int) -> tuple[dict[str, Any], bool]:
    """The fields of a PlayedRecord from an answer as it was recorded, and whether any text was cut. `text` is what was
    judged."""
    (turns, turns_cut), (start, start_cut) = (turn_records(answer, max_chars, name) for name in ("turns", "start"))
    fields = {
        "turns": turns,
        "start": start,
        "num_inserted": sum(turn.num_inserted or 0 for turn in turns),
        "num_calls": as_int(answer.get("calls")) or 0,
        "num_failed_calls": as_int(answer.get("failed_calls")) or 0,
        "judged": _judged(text, turns, turns_cut)[:max_chars],
    }
    return fields, turns_cut or start_cut


def _judged(text: str, turns: Sequence[TurnRecord], is_cut: bool) -> str:
    """An agent may return another answer than the model's last words."""
    last = next((turn for turn in reversed(turns) if turn.role == "assistant"), None)
    if last is None or last.calls:
        return ""
    said = "".join(piece.text for piece in last.pieces)
    is_same = text.startswith(said) if is_cut else text.strip() == said.strip()
    return "" if is_same else text


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
        name=as_text(row.get("name"), MAX_NAME) if role == "tool" else "",
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
        name=as_text(row.get("name"), MAX_NAME),
        arguments=[_argument(name, value, limit) for name, value in list(arguments.items())[:MAX_ARGUMENTS]],
        error=limit.take(as_text(row.get("error"))),
    )


def _argument(name: str, value: Any, limit: _Limit) -> ArgumentRecord:
    is_text = isinstance(value, str)
    text = limit.take(value if is_text else json.dumps(value, ensure_ascii=False))
    return ArgumentRecord(name=as_text(name, MAX_NAME), value=text, is_text=is_text)


def describe_turns(answer: PlayedRecord, num_tokens: int | None) -> str:
    """Its turns, calls and tokens in words; empty for an answer that is one text."""
    if not answer.turns:
        return ""
    number = sum(turn.role == "assistant" for turn in answer.turns)
    failed = f", {answer.num_failed_calls} failed" if answer.num_failed_calls else ""
    inserted = f" + {answer.num_inserted:,} inserted" if answer.num_inserted else ""
    calls = number_of(answer.num_calls, "call") + failed if answer.num_calls else ""
    return " · ".join(filter(None, [number_of(number, "turn"), calls, f"{num_tokens or 0:,} tokens{inserted}"]))


def number_of(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
