"""The answers to held-out problems: the greedy one to each problem at each evaluation, and how many sampled ones were
right.

`held_out/problems.jsonl` has each problem once, `held_out/step-N.jsonl` the answers after N steps; a row of answers
names its problem by a key, the hash of its id, prompt and gold answer. So two evaluations, of one run or of two, are
compared on the same problems. A long answer keeps its start and its end, and says where and how much was cut.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.runs import layout
from outdo.runs.reader import JsonRow, Skipped, read_rows
from outdo.runs.run_reader import RowFile
from outdo.runs.safe_open import file_stamp
from outdo.runs.turns import TURN_COLUMNS, short_turn_rows
from outdo.runs.values import as_float, as_int, as_list, as_text, dicts_in
from outdo.types import Group, Message

MAX_CHARS, MIN_CHARS = 4000, 400  # of an answer
MAX_EVAL_CHARS = 8_000_000  # of all answers of an evaluation: with more than 2,000 problems each answer has less
MAX_PROMPT_CHARS = 8000  # of a message
MAX_GOLD_CHARS = 2000  # of a gold answer, as JSON
MAX_REASON_CHARS = 300
Cut = tuple[int, int]  # where characters were removed from a text, and how many; (0, 0): it is complete


@dataclass(frozen=True)
class HeldOutAnswer:
    """A problem, the greedy answer to it, and how many of the sampled answers were right."""

    id: str
    messages: tuple[Message, ...]
    gold: Any
    key: str  # a hash of the three
    text: str
    cut: Cut
    num_tokens: int
    finish: str
    reward: float | None  # None: broken
    verdict: str
    reason: str = ""
    sampled: int = 0  # answers that could be judged
    right: int = 0
    played: JsonRow = field(default_factory=dict)  # the turns of an answer that has several, cut to the same length

    @property
    def prompt(self) -> str:
        return str(self.messages[-1].get("content", "")) if self.messages else ""

    def problem_row(self, split: str) -> JsonRow:
        return {"split": split, "key": self.key, "id": self.id, "messages": list(self.messages), "answer": self.gold}

    def row(self, step: int, split: str) -> JsonRow:
        return {
            "step": step,
            "split": split,
            "key": self.key,
            "text": self.text,
            **({"cut": list(self.cut)} if self.cut[1] else {}),
            "num_tokens": self.num_tokens,
            "finish": self.finish,
            "reward": None if self.reward is None else float(f"{self.reward:.6g}"),
            "verdict": self.verdict,
            **({"reason": self.reason} if self.reason else {}),
            **({"sampled": self.sampled, "right": self.right} if self.sampled else {}),
            **self.played,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> HeldOutAnswer:
        """From a row of `read_answers`, of whatever content."""
        text = as_text(row.get("text"))
        return cls(
            id=as_text(row.get("id")),
            messages=tuple(dicts_in(row.get("messages"))),
            gold=row.get("answer"),
            key=as_text(row.get("key"), 100),
            text=text,
            cut=read_cut(row, text),
            num_tokens=as_int(row.get("num_tokens")) or 0,
            finish=as_text(row.get("finish"), 40),
            reward=as_float(row.get("reward")),
            verdict=as_text(row.get("verdict"), 40),
            reason=as_text(row.get("reason"), MAX_REASON_CHARS),
            sampled=as_int(row.get("sampled")) or 0,
            right=as_int(row.get("right")) or 0,
            played={name: row[name] for name in TURN_COLUMNS if name in row},
        )


def held_out_answers(greedy: Sequence[Group], sampled: Sequence[Group]) -> tuple[HeldOutAnswer, ...]:
    """What a run keeps of an evaluation."""
    limit = max(MIN_CHARS, min(MAX_CHARS, MAX_EVAL_CHARS // max(1, len(greedy))))
    verdicts = {group.prompt.id: [grade.verdict for grade in group.grades] for group in sampled}
    groups = sorted(greedy, key=lambda group: group.prompt.id)
    return tuple(_answer(group, verdicts.get(group.prompt.id, []), limit) for group in groups)


def _answer(group: Group, sampled: Sequence[str], limit: int) -> HeldOutAnswer:
    prompt, trajectory, grade = group.prompt, group.trajectories[0], group.grades[0]
    text, cut = shortened(trajectory.text, limit)
    gold = json.dumps(prompt.answer, default=str, sort_keys=True)
    content = json.dumps([prompt.id, [dict(message) for message in prompt.messages]], default=str) + gold
    return HeldOutAnswer(
        id=prompt.id,
        messages=tuple(_message(message) for message in prompt.messages),
        gold=prompt.answer if len(gold) <= MAX_GOLD_CHARS else f"{gold[:MAX_GOLD_CHARS]} …",
        key=hashlib.blake2b(content.encode(errors="replace"), digest_size=8).hexdigest(),
        text=text,
        cut=cut,
        num_tokens=trajectory.num_tokens,
        finish=trajectory.finish,
        reward=grade.reward,
        verdict=grade.verdict,
        reason=grade.reason[:MAX_REASON_CHARS],
        sampled=sum(verdict != "broken" for verdict in sampled),
        right=sum(verdict == "right" for verdict in sampled),
        played=short_turn_rows(trajectory, limit),
    )


def _message(message: Message) -> Message:
    """With a long content cut: the problem must be recognised, not asked again."""
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= MAX_PROMPT_CHARS:
        return dict(message)
    text, cut = shortened(content, MAX_PROMPT_CHARS)
    return {**message, "content": with_mark(text, cut)}


def shortened(text: str, limit: int) -> tuple[str, Cut]:
    """The start and the end of a text, where an answer usually is, and what was removed between them."""
    if len(text) <= limit:
        return text, (0, 0)
    head = limit * 3 // 4
    return text[:head] + text[len(text) - (limit - head) :], (head, len(text) - limit)


def with_mark(text: str, cut: Cut) -> str:
    """The text with a mark where it was cut."""
    at, removed = cut
    return f"{text[:at]} … ({removed:,} characters cut) … {text[at:]}" if removed else text


def read_cut(row: Mapping[str, Any], text: str) -> Cut:
    at, removed, *_ = [*(as_int(each) or 0 for each in as_list(row.get("cut"))), 0, 0]
    return (at, removed) if 0 <= at <= len(text) and removed > 0 else (0, 0)


def read_answers(
    folder: Path, step: int | None = None, split: str | None = None, skipped: Skipped | None = None
) -> Iterator[JsonRow]:
    """The held-out answers of a run, an answer a row with its problem (`id`, `prompt`, `messages`, `answer`), in the
    order of the evaluations; of one `step` or one `split` where given. 0 is before the first step."""
    folder = Path(folder)
    problems = by_key(read_rows(folder / layout.HELD_OUT / layout.PROBLEMS, skipped))
    for path in layout.held_out_files(folder):
        if path.name == layout.PROBLEMS or (step is not None and path != layout.answer_file(folder, step)):
            continue
        for row in read_rows(path, skipped):
            if split in (None, row.get("split")):
                yield with_problem(row, problems)


def has_answers(folder: Path, step: int) -> bool:
    """Whether answers were kept after so many steps. A file that was cut back to nothing has none."""
    stamp = file_stamp(layout.answer_file(folder, step))
    return stamp is not None and stamp[1] > 0


def load_answers(root: Path, folder: Path, step: int, split: str) -> tuple[list[JsonRow], list[str]]:
    """The same rows of one evaluation for viewers, which read untrusted folders: no file outside the root, not more
    than a bound. Also what could not be read."""
    problem_file = RowFile(root, folder / layout.HELD_OUT / layout.PROBLEMS)
    answer_file = RowFile(root, layout.answer_file(folder, step))
    problems = by_key(problem_file.all())
    rows = [with_problem(row, problems) for row in answer_file.all() if row.get("split") == split]
    return rows, [*problem_file.problems(), *answer_file.problems()]


Problems = dict[tuple[str, str], JsonRow]


def by_key(rows: Iterable[JsonRow]) -> Problems:
    return {(as_text(row.get("split")), as_text(row.get("key"))): row for row in rows}


def with_problem(row: JsonRow, problems: Problems) -> JsonRow:
    """An answer with the problem that it belongs to; without a prompt where that was lost."""
    problem = problems.get((as_text(row.get("split")), as_text(row.get("key"))), {})
    messages = dicts_in(problem.get("messages"))
    prompt = as_text(messages[-1].get("content")) if messages else ""
    named = {"id": as_text(problem.get("id")), "prompt": prompt, "messages": messages, "answer": problem.get("answer")}
    return {**row, **named}
