"""The tool `search`: BM25 over passages of a user's text files, or over the rows of a .jsonl.

    score(q, d) = Σ idf(t) · tf(t, d) · (k1 + 1) / (tf(t, d) + k1 · (1 - b + b · |d| / mean |d|))
    idf(t) = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

over the different words t of a query, with N passages of which n(t) have the word. Words are runs of letters and
digits, in lower case. An index is built once for each process.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from outdo.envs.calls import CallError
from outdo.envs.environment import Tool
from outdo.envs.tools import tool_of
from outdo.errors import ToolError, did_you_mean, no_such_file

K1, B = 1.5, 0.75
ENDINGS = (".txt", ".md")
TEXT_COLUMNS = ("text", "passage", "content", "contents", "body", "document")
TITLE_COLUMNS = ("title", "name", "id", "_id", "docid")
PASSAGE_CHARS = 1_200  # at which a file's passage ends; a longer paragraph is cut
MAX_RESULTS = 10
MAX_QUERY_CHARS = 1_000
MAX_BYTES = 2 << 30  # of all files
_WORD = re.compile(r"[^\W_]+")
_PARAGRAPH = re.compile(r"\n\s*\n")


class Passage(NamedTuple):
    title: str
    text: str


class Index:
    """Passages, and for each word those that have it with what it adds to their score."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        counts = [Counter(words(f"{one.title} {one.text}")) for one in passages]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
        norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
        places: dict[str, list[int]] = defaultdict(list)
        frequencies: dict[str, list[int]] = defaultdict(list)
        for place, count in enumerate(counts):
            for word, frequency in count.items():
                places[word].append(place)
                frequencies[word].append(frequency)
        self._postings: dict[str, tuple[Any, Any]] = {}  # the places of passages, and what the word adds to their score
        for word, where in places.items():
            idf = math.log(1 + (len(passages) - len(where) + 0.5) / (len(where) + 0.5))
            rows, tf = np.array(where, dtype=np.int32), np.array(frequencies[word], dtype=np.float64)
            self._postings[word] = rows, idf * tf * (K1 + 1) / (tf + norms[rows])

    def search(self, query: str, k: int) -> list[tuple[float, Passage]]:
        """The best passages with their scores, the first of equal ones first; none that has no word of the query."""
        scores = np.zeros(len(self.passages))
        for word in self._postings.keys() & words(query):
            rows, weights = self._postings[word]
            scores[rows] += weights
        best = np.argsort(-scores, kind="stable")[:k]
        return [(float(scores[place]), self.passages[place]) for place in best if scores[place] > 0]


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def make_search_tool(path: str, column: str = "", title: str = "") -> Tool:
    """The tool over that folder or file. Raises ToolError."""
    if not path:
        raise ToolError("tools: search needs a folder of texts or a .jsonl: search:docs/, or {search: {path: docs/}}")
    place = Path(path).expanduser()
    index = _index(place.resolve(), column, title)

    def search(query: str, k: int = 3) -> str:
        """Searches a collection of texts for passages that have the words of a query.

        Args:
            query: The words to look for
            k: How many passages to return, at most 10

        Returns:
            The best passages, each after its title
        """
        if len(query) > MAX_QUERY_CHARS:
            raise CallError(f"the query has {len(query):,} characters: at most {MAX_QUERY_CHARS:,}")
        if not 1 <= k <= MAX_RESULTS:
            raise CallError(f"k={k}: from 1 to {MAX_RESULTS} passages")
        results = [passage for _, passage in index.search(query, k)]
        listed = [f"[{rank}] {one.title}\n{one.text}" for rank, one in enumerate(results, 1)]
        return "\n\n".join(listed) or "No passage has any of these words."

    return tool_of(search)


@cache
def _index(path: Path, column: str, title: str) -> Index:
    if path.is_dir():
        if column or title:
            raise ToolError(f"tools: search in {path}: only a .jsonl has columns, not a folder")
        passages = list(_passages_of_folder(path))
    elif path.suffix == ".jsonl" and path.is_file():
        passages = list(_passages_of_rows(path, column, title))
    elif path.exists():
        raise ToolError(f"tools: search in {path}: give a folder with {' or '.join(ENDINGS)} files, or a .jsonl")
    else:
        raise ToolError(f"tools: search in {path}: {no_such_file(path)}")
    if not passages:
        raise ToolError(f"tools: search in {path}: there is no text: a folder needs {' or '.join(ENDINGS)} files")
    return Index(passages)


def _passages_of_folder(folder: Path) -> Iterator[Passage]:
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    _refuse_size(folder, sum(path.stat().st_size for path in files))
    for path in files:
        title = str(path.relative_to(folder))
        for text in _passages(_read(path)):
            yield Passage(title, text)


def _refuse_size(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise ToolError(f"tools: search in {path}: {size / 2**30:.1f} GB of text, at most {MAX_BYTES >> 30} GB")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise ToolError(f"tools: search: cannot read {path}: {error}") from error


def _passages(text: str) -> Iterator[str]:
    """Paragraphs, put together up to the length of a passage."""
    passage = ""
    for paragraph in filter(None, (part.strip() for part in _PARAGRAPH.split(text))):
        if passage and len(passage) + len(paragraph) + 2 > PASSAGE_CHARS:
            yield passage
            passage = ""
        passage = f"{passage}\n\n{paragraph}" if passage else paragraph
        while len(passage) > PASSAGE_CHARS:
            end = passage.rfind(" ", PASSAGE_CHARS // 2, PASSAGE_CHARS)
            end = end if end > 0 else PASSAGE_CHARS
            yield passage[:end]
            passage = passage[end:].lstrip()
    if passage:
        yield passage


def _passages_of_rows(path: Path, column: str, title: str) -> Iterator[Passage]:
    _refuse_size(path, path.stat().st_size)
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"tools: search in {path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ToolError(f"{where}: a row must be an object with a text, not a {type(row).__name__}")
        text_column = _column(row, column, TEXT_COLUMNS, where)
        if not text_column:
            raise ToolError(f"{where}: which column is the text? Give column: NAME, one of {', '.join(row)}")
        if not isinstance(row[text_column], str):
            raise ToolError(f"{where}: the text is a {type(row[text_column]).__name__}")
        yield Passage(str(row.get(_column(row, title, TITLE_COLUMNS, where), f"row {number}")), row[text_column])


def _column(row: Mapping[str, Any], given: str, usual: Sequence[str], where: str) -> str:
    """The given column, or the first of the usual ones; empty where there is none. Raises ToolError."""
    if given and given not in row:
        raise ToolError(f"{where}: no column {given!r}{did_you_mean(given, row)}: it has {', '.join(row)}")
    return given or next((name for name in usual if name in row), "")
