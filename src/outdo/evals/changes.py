"""Which held-out answers changed between two evaluations, of one run or of two: gained, lost, right in both or neither.

A problem is gained where the first greedy answer was wrong and the second is right. Partial credit does not count:
right is what the verifier says; the rewards are shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from outdo.errors import RunError
from outdo.metrics.estimate import mcnemar
from outdo.runs.held_out import has_answers, load_answers, read_cut
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import JsonRow, read_evals
from outdo.runs.run_reader import RunReader
from outdo.runs.turns import PlayedRecord, played
from outdo.runs.values import PartialRecord, Record, as_dict, as_float, as_int, as_list, as_text, dicts_in, json_safe

Kind = Literal["gained", "lost", "both", "neither", "unjudged"]
KINDS: dict[Kind, str] = {
    "gained": "gained",
    "lost": "lost",
    "both": "right in both",
    "neither": "right in neither",
    "unjudged": "could not be judged",
}
REWARD_KEYS = ("reward_funcs", "reward_weights", "reward_gate", "reward_args")  # decide what an answer is paid
MAX_CHARS, MAX_MESSAGES = 20_000, 64  # of an untrusted folder; a run keeps less
NOISE = 0.05  # a p-value from here on may be chance


class SideRecord(PlayedRecord):
    """One greedy answer. `cut` characters are missing at `cut_at`; of `sampled` answers, `right` were right."""

    text: str
    cut_at: int
    cut: int
    num_tokens: int | None
    finish: str
    reward: float | None
    verdict: str
    reason: str
    sampled: int
    right: int


class ChangeRecord(Record):
    """One problem with both answers to it."""

    id: str
    prompt: str
    messages: list[dict[str, Any]]
    answer: Any
    kind: Kind
    before: SideRecord
    after: SideRecord


class Point(Record):
    """One evaluation of a split: the run's name, and the number of steps done."""

    run: str
    step: int


class Changes(PartialRecord):
    """Two evaluations of a split on the problems that both have. `p_value` is McNemar's, exact: how likely so uneven a
    split into gained and lost is by chance. It is null where the two were graded differently."""

    split: str
    before: Point
    after: Point
    counts: dict[Kind, int]
    p_value: float | None
    only_one: int  # problems that one of the two did not have
    notes: list[str]  # what is not comparable, and why
    changes: list[ChangeRecord]

    def of(self, kind: Kind) -> list[ChangeRecord]:
        return [change for change in self.changes if change.kind == kind]

    @property
    def n(self) -> int:
        return sum(self.counts.values())

    def describe(self) -> str:
        """The counts in a line."""
        counts = ", ".join(f"{n:,} {KINDS[kind]}" for kind, n in self.counts.items() if n or kind != "unjudged")
        return f"{counts}; {self.describe_test()}"

    def describe_test(self) -> str:
        """Whether gained and lost differ by more than chance."""
        if self.p_value is None:
            return "not comparable"
        if not self.counts["gained"] + self.counts["lost"]:
            return "no change"
        value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        return f"{'may be chance' if self.p_value >= NOISE else 'more than chance'} ({value})"


def compare_answers(first: str | Path, second: str | Path | None = None, split: str | None = None) -> Changes:
    """The answers of a run before training and after; or, of two runs, after the training of each. `split` is the first
    that was evaluated where it is not given. Raises RunError where a run kept no answers."""
    folders = [Path(folder) for folder in (first, second or first)]
    evals = [list(read_evals(folder, [])) for folder in folders]
    for folder, rows in zip(folders, evals, strict=True):
        read_manifest(folder)
        if not evaluations(folder, rows):
            raise RunError(f"{folder} has no held-out answers: it was not evaluated, or by an older version of outdo")
    known = [evaluations(folder, rows) for folder, rows in zip(folders, evals, strict=True)]
    split = split or next(iter(known[0]))
    missing = next((folder for folder, splits in zip(folders, known, strict=True) if split not in splits), None)
    if missing is not None:
        raise RunError(f"{missing} has no held-out answers of the split {split!r}; it has {', '.join(known[0])}")
    steps = [known[0][split][0] if second is None else known[0][split][-1], known[1][split][-1]]
    return changes_between(folders, [str(folder) for folder in folders], steps, split)


def evaluations(folder: Path, evals: Sequence[JsonRow]) -> dict[str, list[int]]:
    """The steps at which each split was evaluated and its answers kept, splits in the order of their evaluation."""
    steps: dict[str, list[int]] = {}
    for row in evals:
        step, split = as_int(row.get("step")), row.get("split")
        if step is None or not isinstance(split, str) or step in steps.get(split, []):
            continue
        if has_answers(folder, step):
            steps.setdefault(split, []).append(step)
    return {split: sorted(each) for split, each in steps.items()}


def changes_between(
    folders: Sequence[Path], names: Sequence[str], steps: Sequence[int], split: str, roots: Sequence[Path] | None = None
) -> Changes:
    """The answers in two folders after so many steps each. No file outside the folders' `roots` is read."""
    roots = roots or [folder.resolve() for folder in folders]
    sides, problems = [], list[str]()
    for root, folder, step in zip(roots, folders, steps, strict=True):
        rows, unread = load_answers(root, folder, step, split)
        sides.append({as_text(row.get("key"), 100): row for row in rows})
        problems += unread
    before, after = sides
    shared = [key for key in before if key in after]
    changes = [_change(before[key], after[key]) for key in shared]
    counts = {kind: sum(change.kind == kind for change in changes) for kind in get_args(Kind)}
    readers = [RunReader(root, folder) for root, folder in zip(roots, folders, strict=True)]
    evals = [_eval_row(reader.evals.all(), step, split) for reader, step in zip(readers, steps, strict=True)]
    comparable, notes = compare_grading([reader.manifest()[0] for reader in readers], evals)
    points = [Point(run=name, step=step) for name, step in zip(names, steps, strict=True)]
    return Changes(
        split=split,
        before=points[0],
        after=points[1],
        counts=counts,
        p_value=mcnemar(counts["gained"], counts["lost"]) if comparable else None,
        only_one=len(before) + len(after) - 2 * len(shared),
        notes=notes,
        changes=changes,
        trouble=list(dict.fromkeys(problems)),
    )


def _eval_row(rows: Sequence[JsonRow], step: int, split: str) -> JsonRow:
    return next((row for row in rows if row.get("step") == step and row.get("split") == split), {})


def compare_grading(manifests: Sequence[Mapping[str, Any]], evals: Sequence[JsonRow]) -> tuple[bool, list[str]]:
    """Whether success means the same in two evaluations, by their runs' manifests and their rows, and what differs."""
    files = [as_dict(manifest.get("reward_files")) for manifest in manifests]
    changed = [name for name in files[0] if name in files[1] and files[0][name] != files[1][name]]
    if changed:
        return False, [f"not comparable: the reward file {as_text(changed[0], 200)} differs between the two runs"]
    recipes = [as_dict(manifest.get("recipe")) for manifest in manifests]
    judges = [_judge(row, recipe) for row, recipe in zip(evals, recipes, strict=True)]
    if judges[0] != judges[1]:
        return False, [
            f"not comparable: success is judged by {judges[0]} in the first and by {judges[1]} in the second"
        ]
    if any(recipes[0].get(key) != recipes[1].get(key) for key in REWARD_KEYS):
        return True, ["the rewards differ between the two runs: compare success, not the reward"]
    return True, []


def _judge(row: JsonRow, recipe: Mapping[str, Any]) -> str:
    """What decides success. Rows of older versions do not say: there it is the first reward, or the task's own."""
    if judge := as_text(row.get("judge"), 200):
        threshold = as_float(row.get("pass_threshold"))
        return judge if threshold is None else f"{judge} from {threshold:g} on"
    names = as_list(recipe.get("reward_funcs"))
    return as_text(names[0], 200) if names else f"the verifier of {as_text(recipe.get('dataset_name'), 200)}"


def _change(before: JsonRow, after: JsonRow) -> ChangeRecord:
    verdicts = before.get("verdict"), after.get("verdict")
    was, now = (verdict == "right" for verdict in verdicts)
    kind: Kind = "both" if was and now else "gained" if now else "lost" if was else "neither"
    if not all(verdict in ("right", "wrong") for verdict in verdicts):
        kind = "unjudged"
    return ChangeRecord(
        id=as_text(after.get("id")),
        prompt=as_text(after.get("prompt"), MAX_CHARS),
        messages=[_message(message) for message in dicts_in(after.get("messages"))[:MAX_MESSAGES]],
        answer=json_safe(after.get("answer")),
        kind=kind,
        before=_side(before),
        after=_side(after),
    )


def _message(message: JsonRow) -> JsonRow:
    content = message.get("content")
    return {**json_safe(message), "content": as_text(content, MAX_CHARS) if isinstance(content, str) else ""}


def _side(row: JsonRow) -> SideRecord:
    text = as_text(row.get("text"), MAX_CHARS)
    at, removed = read_cut(row, text)
    return SideRecord(
        text=text,
        cut_at=at,
        cut=removed,
        num_tokens=as_int(row.get("num_tokens")),
        finish=as_text(row.get("finish"), 40),
        reward=as_float(row.get("reward")),
        verdict=as_text(row.get("verdict"), 40),
        reason=as_text(row.get("reason"), 300),
        sampled=as_int(row.get("sampled")) or 0,
        right=as_int(row.get("right")) or 0,
        **played(row, "" if removed else text, MAX_CHARS)[0],
    )
