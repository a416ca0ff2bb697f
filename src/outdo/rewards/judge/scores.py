"""The scores that a judge has given, in memory and, where there is a folder, in a database in it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

from outdo.rewards.judge.prompt import VERSION, Question, Rubric

Score = tuple[float, str]  # and the judge's reason
NAME = "scores.sqlite"


def key_of(url: str, model: str, rubric: Rubric, question: Question) -> str:
    """A hash of everything that the score depends on."""
    content = [VERSION, url, model, *astuple(rubric), *astuple(question)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Scores:
    """Safe to use from several threads, and by several processes at a time. A database that cannot be used costs calls,
    not the run: it is reported once."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder).expanduser() / NAME if folder else None
        self._memory: dict[str, Score] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Score | None:
        if key not in self._memory and self.path and self.path.exists():
            rows = self._run("SELECT score, reason FROM scores WHERE key = ?", (key,))
            if rows:
                self._memory[key] = (float(rows[0][0]), str(rows[0][1]))
        return self._memory.get(key)

    def put(self, key: str, score: Score) -> None:
        self._memory[key] = score
        if self.path:
            self._run("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", (key, *score))

    def _run(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self.path is None:
                return []
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
                    database.execute(
                        "CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, score REAL, reason TEXT)"
                    )
                    return database.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as error:
                print(f"llm_judge: {self.path} cannot be used ({error}): scores are kept in memory", file=sys.stderr)
                self.path = None
                return []
