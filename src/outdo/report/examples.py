"""Answers before and after: the same prompts at the run's first and last steps, where they were asked twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outdo.dash.answers import read_groups
from outdo.dash.blocks import Block, Place
from outdo.dash.book import Book
from outdo.dash.shapes import Answer, Group

PROMPTS = 6
LENGTH = 1200  # characters of a text


@dataclass(frozen=True)
class Example:
    """One prompt, early and late; of different prompts one side is empty."""

    before: Group | None
    after: Group | None


def examples(book: Book) -> list[Example]:
    """A few. Only the first and the last file of groups/ are looked at, however many there are."""
    files = book.index.files()
    if not files:
        return []
    first, last = (book.index.block(at, files[at]) for at in (min(files), max(files)))
    found = [Example(*_both(book, *pair)) for pair in _asked_twice(first, last)]
    found = [one for one in found if one.before and one.after]
    if len(found) >= PROMPTS // 2:
        return found
    room = (PROMPTS - len(found)) // 2
    shown = {one.before.prompt_id for one in found if one.before}
    early, late = (
        [group for group in _of_step(book, block, which) if group.prompt_id not in shown][:room]
        for block, which in ((first, 0), (last, -1))
    )
    is_one_step = bool(early and late) and early[0].step == late[0].step
    return [
        *found,
        *(Example(group, None) for group in early),
        *(Example(None, group) for group in late if not is_one_step),
    ]


def _asked_twice(first: Block, last: Block) -> list[tuple[Place, Place]]:
    """Where the same prompt stands early and late: the earliest in the one, the latest in the other."""
    early, late = dict(reversed(_keyed(first))), dict(_keyed(last))
    both = [(early[key], late[key]) for key in early if key in late]
    both = [(a, b) for a, b in both if b.step > a.step]
    return sorted(both, key=lambda pair: (pair[0].step - pair[1].step, pair[0].offset))[:PROMPTS]


def _keyed(block: Block) -> list[tuple[int, Place]]:
    return list(zip(block.columns()[1].tolist(), block.places(), strict=True))


def _both(book: Book, *places: Place) -> tuple[Group | None, Group | None]:
    groups, _ = read_groups(book.root, places, LENGTH)
    return (groups[0], groups[1]) if len(groups) == 2 else (None, None)


def _of_step(book: Book, block: Block, which: int) -> list[Group]:
    """Groups of a file's first or last step, those with spread first."""
    places = block.places()
    if not places:
        return []
    groups, _ = read_groups(book.root, block.at(places[which].step)[:64], LENGTH)
    return sorted(groups, key=lambda group: -(group.spread or 0.0))


def telling(answers: Sequence[Answer]) -> list[Answer]:
    """A right one and a wrong one where there are both, else the first; broken ones where there is no other."""
    kinds = [[answer for answer in answers if answer.verdict == verdict][:1] for verdict in ("right", "wrong")]
    return [answer for kind in kinds for answer in kind] or list(answers[:1])
