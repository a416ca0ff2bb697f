"""An answer of several turns in a report: bubbles of what the model wrote, and of what it was answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from outdo.report.html import Raw, el
from outdo.runs.turns import ArgumentRecord, CallRecord, PlayedRecord, TurnRecord, number_of

INLINE = 60  # characters of an argument that is shown in its call's line


def legend() -> Raw:
    own = el("span", el("i", class_="own"), "the model's own tokens: trained on")
    context = el("span", el("i", class_="context"), "inserted by tools and the environment: no gradient")
    return el("p", own, context, class_="turns-legend dim")


def turns(answer: PlayedRecord, is_cut: bool = False) -> Raw:
    shown = [_own(some[0]) if some[0].role == "assistant" else _context(some) for some in _blocks(answer.turns)]
    start = [el("p", "begins with", class_="dim"), _context(answer.start)] if answer.start else None
    judged = [el("p", "judged", class_="dim"), el("pre", answer.judged, dir="auto")] if answer.judged else None
    return el("div", start, shown, judged, el("p", "… (cut)", class_="dim") if is_cut else None, class_="turns")


def _blocks(turns: Sequence[TurnRecord]) -> list[list[TurnRecord]]:
    """Each turn of the model alone, and the messages between two of them together."""
    blocks: list[list[TurnRecord]] = []
    for own, found in groupby(turns, lambda turn: turn.role == "assistant"):
        some = list(found)
        blocks += [[turn] for turn in some] if own else [some]
    return blocks


def _own(turn: TurnRecord) -> Raw:
    said = [piece.text if piece.trained else el("span", piece.text, class_="inserted") for piece in turn.pieces]
    tokens = "" if turn.num_tokens is None else number_of(turn.num_tokens, "token")
    inserted = f" + {turn.num_inserted:,} inserted" if turn.num_inserted else ""
    prompt = "" if turn.num_prompt is None else f"from a prompt of its own, {number_of(turn.num_prompt, 'token')}; "
    return el(
        "div",
        _head("model", prompt + tokens + inserted),
        el("pre", said, dir="auto") if said else None,
        [_call(call) for call in turn.calls],
        el("p", "(nothing)", class_="dim") if not said and not turn.calls else None,
        class_="own",
    )


def _context(turns: Sequence[TurnRecord]) -> Raw:
    """Messages that came together have their tokens together, too: they are counted with the first."""
    together = " together" if len(turns) > 1 else ""
    tokens = number_of(turns[0].num_inserted, "token") + together if turns[0].num_inserted else ""
    rows: list[Raw] = []
    for turn in turns:
        name = (turn.name or "tool") if turn.role == "tool" else turn.role
        failed = el("b", "✗ failed", class_="failed") if turn.failed else None
        text = "".join(piece.text for piece in turn.pieces)
        rows += [_head(name, "" if rows else tokens, failed), el("pre", text, dir="auto")]
    return el("div", rows, class_="context")


def _head(name: str, fact: str, mark: Raw | None = None) -> Raw:
    return el("p", el("span", el("b", name), " ", mark), el("span", fact), class_="who")


def _call(call: CallRecord) -> Raw:
    """name(key=value, …); a long value, such as a program, is a block of its own."""
    if call.error:
        return el("div", el("b", "✗ not readable", class_="failed"), el("pre", call.error, dir="auto"), class_="call")
    long = [one for one in call.arguments if _is_long(one)]
    short = [f"{one.name}={_quoted(one)}" for one in call.arguments if not _is_long(one)]
    line = ", ".join([*short, "…"] if long else short)
    blocks = [[el("p", one.name, class_="dim"), el("pre", one.value, dir="auto")] for one in long]
    return el("div", el("pre", el("b", call.name), f"({line})", dir="auto"), blocks, class_="call")


def _is_long(argument: ArgumentRecord) -> bool:
    return len(argument.value) > INLINE or "\n" in argument.value


def _quoted(argument: ArgumentRecord) -> str:
    return json.dumps(argument.value, ensure_ascii=False) if argument.is_text else argument.value
