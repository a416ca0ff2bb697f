"""Answers before and after: the same prompts at the run's first and last steps, where they were sampled twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outdo.runs.groups import AnswerRecord, GroupRecord, load_groups
from outdo.runs.index import GroupFile, Location
from outdo.runs.run_reader import RunReader

MAX_PROMPTS = 6
MAX_CHARS = 1200  # of a text
MAX_GROUPS = 64  # of a step


@dataclass(frozen=True)
class Example:
    """One prompt early and late; a prompt that was sampled once has one of them."""

    before: GroupRecord | None
    after: GroupRecord | None


def find_examples(reader: RunReader) -> list[Example]:
    """A few. Only the first and the last group file are read, however many there are."""
    paths = reader.groups.paths()
    if not paths:
        return []
    first, last = (reader.groups.file(step, paths[step]) for step in (min(paths), max(paths)))
    pairs = [load_groups(reader.root, pair, MAX_CHARS)[0] for pair in _repeated_prompts(first, last)]
    examples = [Example(*pair) for pair in pairs if len(pair) == 2]
    if len(examples) >= MAX_PROMPTS // 2:
        return examples
    room = (MAX_PROMPTS - len(examples)) // 2
    shown = {example.before.prompt_id for example in examples if example.before}
    early, late = (
        [group for group in _step_groups(reader, file, index) if group.prompt_id not in shown][:room]
        for file, index in ((first, 0), (last, -1))
    )
    is_one_step = bool(early and late) and early[0].step == late[0].step
    late = [] if is_one_step else late
    return [*examples, *(Example(group, None) for group in early), *(Example(None, group) for group in late)]


def _repeated_prompts(first: GroupFile, last: GroupFile) -> list[tuple[Location, Location]]:
    """The same prompt early and late: its earliest group in the first file, its latest in the last."""
    early, late = dict(reversed(_keyed(first))), dict(_keyed(last))
    pairs = [(early[key], late[key]) for key in early if key in late and late[key].step > early[key].step]
    return sorted(pairs, key=lambda pair: (pair[0].step - pair[1].step, pair[0].offset))[:MAX_PROMPTS]


def _keyed(file: GroupFile) -> list[tuple[int, Location]]:
    return list(zip(file.columns()[1].tolist(), file.locations(), strict=True))


def _step_groups(reader: RunReader, file: GroupFile, index: int) -> list[GroupRecord]:
    """Groups of a file's first or last step, the largest spread first."""
    locations = file.locations()
    if not locations:
        return []
    groups, _ = load_groups(reader.root, file.at(locations[index].step)[:MAX_GROUPS], MAX_CHARS)
    return sorted(groups, key=lambda group: -(group.spread or 0.0))


def pick_answers(answers: Sequence[AnswerRecord]) -> list[AnswerRecord]:
    """A right one and a wrong one where there are both, else the first; a broken one where there is no other."""
    first = [[answer for answer in answers if answer.verdict == verdict][:1] for verdict in ("right", "wrong")]
    return [answer for answers in first for answer in answers] or list(answers[:1])
