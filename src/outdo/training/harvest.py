"""Rejection sampling: many answers to each prompt, and of the right ones the distinct ones, as demonstrations.

    FILE.jsonl           the demonstrations: `prompt` or `messages`, `answer`, `completion`, and further columns
    FILE.prompts.jsonl   a row for each prompt that is done: how many answers were right, and those that are kept

The second is written as prompts are done, so that a harvest that was stopped goes on. An answer that was cut at its
limit is not kept, right or not: it would teach not to end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outdo.errors import BrokenGraders, RecipeError
from outdo.rewards.compose import Rewards, graded
from outdo.runs.files import disk_errors
from outdo.runs.reader import read_rows
from outdo.types import Group, Prompt, SampleParams, Sampler

ANSWERS_AT_ONCE = 8192  # in one call of the sampler


@dataclass(frozen=True)
class Tally:
    """What came of a harvest, in answers unless said."""

    prompts: int = 0
    solved: int = 0  # prompts with a right answer
    sampled: int = 0
    right: int = 0
    truncated: int = 0  # right, but cut at the limit
    duplicates: int = 0  # right, and the same but for spaces as one before
    kept: int = 0
    broken: int = 0  # could not be judged

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        share = self.solved / max(self.prompts, 1)
        told = f"{self.prompts} prompts, {share:.1%} solved; {self.right} of {self.sampled} right, {self.kept} kept"
        left = {"duplicates dropped": self.duplicates, "cut at the limit": self.truncated, "not judged": self.broken}
        return told + "".join(f", {count} {words}" for words, count in left.items() if count)


Told = Callable[[Tally], None]


def harvest(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    out: Path,
    settings: Mapping[str, Any],
    *,
    samples: int,
    keep: int,
    seed: int,
    teacher: Callable[[Prompt], str | None] | None = None,
    told: Told = lambda tally: None,
) -> Tally:
    """Writes `out`, going on where an earlier call with the same `settings` was stopped. `told` hears of each prompt.
    A `teacher`'s answer stands before a prompt's own.

    Raises RecipeError where the file is another harvest's.
    """
    journal = _open(out, {**settings, "samples": samples, "keep": keep, "seed": seed})
    done = {row["prompt_id"]: row for row in read_rows(journal) if "prompt_id" in row}
    tally = sum((tally_of(done[p.id]) for p in prompts if p.id in done), Tally())
    left = [prompt for prompt in prompts if prompt.id not in done]
    size = max(1, ANSWERS_AT_ONCE // samples)
    with disk_errors(journal), journal.open("a", encoding="utf-8") as file:
        for part in (left[i : i + size] for i in range(0, len(left), size)):
            for group in graded(sampler.sample(part, samples, params, seed), rewards):
                row = picked(group, keep)
                file.write(json.dumps(row) + "\n")
                file.flush()
                done[group.prompt.id] = row
                tally += tally_of(row)
                told(tally)
            if tally.broken == tally.sampled:
                raise BrokenGraders(f"not one of {tally.sampled} answers could be judged; `outdo audit` says why")
    taught = {p.id: [text] for p in prompts if teacher and (text := teacher(p)) is not None}
    _write(out, (row for p in prompts for row in demonstrations(p, [*taught.get(p.id, []), *done[p.id]["kept"]])))
    return tally


def picked(group: Group, keep: int) -> dict[str, Any]:
    """What becomes of one prompt's answers: of those that are right and came to their end, the first `keep` texts."""
    right = [c for c, g in zip(group.trajectories, group.grades, strict=True) if g.verdict == "right"]
    ended = [c for c in right if c.finish == "stop"]
    distinct: dict[str, str] = {}
    for completion in ended:
        distinct.setdefault(" ".join(completion.text.split()), completion.text)
    return {
        "prompt_id": group.prompt.id,
        "sampled": len(group.trajectories),
        "right": len(right),
        "truncated": len(right) - len(ended),
        "duplicates": len(ended) - len(distinct),
        "broken": sum(g.verdict == "broken" for g in group.grades),
        "kept": list(distinct.values())[:keep],
    }


def tally_of(row: Mapping[str, Any]) -> Tally:
    same = {name: row[name] for name in ("sampled", "right", "truncated", "duplicates", "broken")}
    return Tally(prompts=1, solved=int(row["right"] > 0), kept=len(row["kept"]), **same)


def demonstrations(prompt: Prompt, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows that `dataset_name` and `sft_dataset_name` read. All are for training, whatever their hash says."""
    alone = len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user"
    asked = {"prompt": prompt.text} if alone else {"messages": [dict(message) for message in prompt.messages]}
    for text in texts:
        yield {**prompt.meta, **asked, "answer": prompt.answer, "completion": text, "split": "train"}


def _open(out: Path, settings: Mapping[str, Any]) -> Path:
    """The journal, with the settings as its first row; without a row that was cut short."""
    journal = out.with_name(out.stem + ".prompts.jsonl")
    wanted = json.loads(json.dumps(settings, default=str))
    with disk_errors(journal, "name another place with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        whole = journal.read_bytes().rpartition(b"\n")[0] if journal.exists() else b""
        if not whole:
            if out.exists():
                raise RecipeError(f"{out} is there already, and no harvest: move it away, or choose another file")
            journal.write_text(json.dumps({"settings": wanted}) + "\n", encoding="utf-8")
            return journal
        os.truncate(journal, len(whole) + 1)
    had = next(read_rows(journal)).get("settings", {})
    changed = [f"{key} was {had.get(key)!r} and is {now!r}" for key, now in wanted.items() if had.get(key) != now]
    if changed:
        raise RecipeError(f"{out} is another harvest: {'; '.join(changed)}. Choose another file, or remove {journal}")
    return journal


def _write(out: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Whole or not at all: written beside, then renamed."""
    aside = out.with_name(f".writing-{out.name}")
    with disk_errors(out):
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, default=str) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, out)
