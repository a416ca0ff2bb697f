"""Answers that other trainers wrote, a file for each step, as the groups of a run."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.runs.foreign.names import SUCCESS
from outdo.runs.reader import JsonRow
from outdo.runs.safe_open import open_regular
from outdo.runs.values import as_dict, as_float, as_text, dicts_in, json_safe, parse_rows

MAX_FILE_BYTES = 128 << 20
MAX_DECODED_BYTES = 512 << 20  # of a parquet file
MAX_ANSWERS = 20_000  # of a file
MAX_COLUMNS = 200
MAX_CHARS = 200_000  # of a text
SAFE_PYARROW = (14, 0, 1)  # earlier ones could be made to unpickle
PROMPTS, TEXTS = ("prompt", "input"), ("completion", "output")
GOLDS, REWARDS = ("answer", "gts", "ground_truth", "solution", "target"), ("reward", "score")
NO_PART = {*PROMPTS, *TEXTS, *GOLDS, *REWARDS, "step", "advantage", "example_id", "id", "index", "seed"}
IS_SUCCESS = re.compile(rf"(?:{SUCCESS}|acc)", re.IGNORECASE)


class Unreadable(ValueError):
    """Says why a file of answers cannot be read."""


def read_answers(root: Path, path: Path) -> list[JsonRow]:
    """The answers of a file as they are. Raises Unreadable."""
    try:
        with open_regular(root, path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_FILE_BYTES:
                raise Unreadable(f"{path.name} has {size >> 20} MB; at most {MAX_FILE_BYTES >> 20} MB are read")
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror or error}") from None
    if path.suffix == ".parquet":
        return _parquet(path.name, data)
    rows, _ = parse_rows(data[: data.rfind(b"\n") + 1].split(b"\n"))
    return rows[:MAX_ANSWERS]


def _parquet(name: str, data: bytes) -> list[JsonRow]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unreadable("completions need pyarrow to be read: pip install pyarrow") from None
    if tuple(int(part) for part in pyarrow.__version__.split(".")[:3] if part.isdecimal()) < SAFE_PYARROW:
        raise Unreadable("completions are read with pyarrow 14.0.1 or newer only: pip install -U pyarrow")
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(data))
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        if file.metadata.num_columns > MAX_COLUMNS or sum(g.total_byte_size for g in groups) > MAX_DECODED_BYTES:
            raise Unreadable(f"{name} is too large when decoded, and is not read")
        rows: list[JsonRow] = []
        for batch in file.iter_batches(batch_size=1000):
            rows += batch.to_pylist()
            if len(rows) >= MAX_ANSWERS:
                break
        return rows[:MAX_ANSWERS]
    except Unreadable:
        raise
    except Exception as error:  # whatever pyarrow makes of a corrupt file
        raise Unreadable(f"{name} cannot be read: {str(error).splitlines()[0] if str(error) else 'corrupt'}") from None


def groups_of(answers: Sequence[JsonRow], step: int, weights: Mapping[str, float] | None) -> list[JsonRow]:
    """A row for each prompt, as a run writes them. What was not recorded is null. `weights` of the parts of the reward;
    None where they are unknown, so that an answer's reward is."""
    parts = _part_names(answers)
    success = next((name for name in parts if IS_SUCCESS.fullmatch(name) and _is_binary(answers, name)), None)
    by_prompt: dict[str, list[JsonRow]] = {}
    for answer in answers:
        by_prompt.setdefault(json.dumps(_first(answer, PROMPTS), default=str), []).append(answer)
    return [
        {
            "step": step,
            "prompt_id": f"p-{hashlib.blake2b(key.encode(errors='replace'), digest_size=6).hexdigest()}",
            "messages": _messages(_first(group[0], PROMPTS)),
            "answer": json_safe(_first(group[0], GOLDS)),
            "version": None,
            "completions": [_completion(answer, parts, success, weights) for answer in group],
        }
        for key, group in by_prompt.items()
    ]


def _completion(
    answer: JsonRow, parts: Sequence[str], success: str | None, weights: Mapping[str, float] | None
) -> JsonRow:
    values = {name: _number(_part(answer, name)) for name in parts}
    given = _number(_first(answer, REWARDS))
    right = values.get(success or "")
    return {
        "text": _text(_first(answer, TEXTS)),
        "num_tokens": None,
        "finish": "",
        "reward": given if given is not None else weighted(values, weights),
        "verdict": "" if right is None else "right" if right == 1 else "wrong",
        "parts": values,
        "reason": "",
        "advantage": _number(answer.get("advantage")),
    }


def weighted(values: Mapping[str, float | None], weights: Mapping[str, float] | None) -> float | None:
    """The sum of the parts by their weights, without those that a reward function left out; None: unknown."""
    known = [weight * value for name, weight in (weights or {}).items() if (value := values.get(name)) is not None]
    return math.fsum(known) if known else None


def _part_names(answers: Sequence[JsonRow]) -> list[str]:
    """Columns of numbers: the parts of the reward."""
    names = dict.fromkeys(name for answer in answers[:50] for name in answer if isinstance(name, str))
    names |= dict.fromkeys(name for answer in answers[:50] for name in as_dict(answer.get("metrics")))
    kept = [name for name in names if name not in NO_PART and not name.startswith("__")]
    return [name for name in kept if any(_number(_part(answer, name)) is not None for answer in answers)][:MAX_COLUMNS]


def _part(answer: JsonRow, name: str) -> Any:
    return answer.get(name, as_dict(answer.get("metrics")).get(name))


def _is_binary(answers: Sequence[JsonRow], name: str) -> bool:
    """Whether every answer has 0 or 1 there: then it says whether the answer is right."""
    return all(_number(_part(answer, name)) in (0.0, 1.0) for answer in answers)


def step_values(groups: Sequence[JsonRow]) -> dict[str, float]:
    """What the groups of a step say of it, under our names."""
    out: dict[str, float] = {}
    completions = [answer for group in groups for answer in group["completions"]]
    if rewards := [answer["reward"] for answer in completions if answer["reward"] is not None]:
        out["reward_mean"], out["reward_std"] = statistics.fmean(rewards), statistics.pstdev(rewards)
        spreads = [{a["reward"] for a in group["completions"] if a["reward"] is not None} for group in groups]
        out["informative"] = statistics.fmean(len(spread) > 1 for spread in spreads)
    for name in dict.fromkeys(name for answer in completions for name in answer["parts"]):
        values = [value for a in completions if (value := a["parts"].get(name)) is not None]
        out |= {f"reward/{name}": statistics.fmean(values)} if values else {}
    return out | success_values(groups)


def have_means(groups: Sequence[JsonRow], means: Mapping[str, float]) -> bool:
    """Whether the parts of the reward have these means."""
    own = step_values(groups)
    pairs = [(own.get(f"reward/{name}", math.nan), mean) for name, mean in means.items()]
    return all(math.isclose(value, mean, rel_tol=1e-3, abs_tol=1e-6) for value, mean in pairs)


def success_values(groups: Sequence[JsonRow]) -> dict[str, float]:
    """The success rate, where every answer has a verdict."""
    verdicts = [answer["verdict"] for group in groups for answer in group["completions"]]
    if not verdicts or not all(verdicts):
        return {}
    return {"success_rate": statistics.fmean(verdict == "right" for verdict in verdicts)}


def _first(row: JsonRow, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else as_float(value)


def _messages(prompt: Any) -> list[JsonRow]:
    """A prompt as messages: those of a chat, or one of the user."""
    if messages := dicts_in(prompt):
        return [{"role": as_text(m.get("role"), 40), "content": _text(m.get("content"))} for m in messages]
    return [{"role": "user", "content": _text(prompt)}]


def _text(value: Any) -> str:
    """A text; of messages the contents of the assistant, of several blocks the texts."""
    if isinstance(value, list):
        blocks = dicts_in(value)
        own = [block for block in blocks if block.get("role") in ("assistant", None)] or blocks
        return "\n\n".join(_text(block.get("content", block.get("text"))) for block in own)[:MAX_CHARS]
    return as_text(value, MAX_CHARS)


def lines_of(groups: Sequence[JsonRow]) -> Iterator[str]:
    """As a run's files have them."""
    return (json.dumps(json_safe(group), ensure_ascii=False) + "\n" for group in groups)
