"""`make lint`: words that this project does not use, since nobody searches for them.

Phrases are looked for in the sources, the docs and the recipes; names of functions and classes in the sources alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PHRASES = {
    r"\bgo(?:es|ne|ing)? on with\b": "resume",
    r"\b(?:is|are) no numbers?\b(?! of)": "non-finite, NaN or infinite",
    r"\bof no (?:consequence|account)\b": "ignored, because …",
    r"\bpassed over\b": "skipped",
    r"\btold to stop\b": "interrupted",
    r"\bbeg(?:un|ins?) again\b": "restarted",
    r"\bis there already\b": "already exists",
    r"\bput (?:it |them )?back where\b": "restore",
    r"\bundivided\b": "uninterruptible",
    r"\b(?:the )?careless teacher imitates\b": "SFT",
}
NAMES = {
    "told": "describe, notify or report",
    "tell": "notify or report",
    "say": "notify or report",
    "asked": "what was requested",
    "Keeper": "TrainingRun",
    "Imitator": "SFTLearner",
    "Lessons": "Demonstrations",
    "Deck": "DecodeState",
    "Glance": "DonePoll",
    "Book": "RunReader",
    "Shelf": "RunCache",
    "DashDesk": "ApiState",
    "Quiz": "EvalSplit",
}


def phrases(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, better in PHRASES.items():
            if match := re.search(pattern, line, re.IGNORECASE):
                yield f"{path.relative_to(ROOT)}:{number}: {match.group(0)!r}: write {better!r}"


def names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name.strip("_") in NAMES:
            better = NAMES[node.name.strip("_")]
            yield f"{path.relative_to(ROOT)}:{node.lineno}: a name {node.name!r}: name it after {better!r}"


def main() -> int:
    sources = sorted((ROOT / "src").rglob("*.py"))
    texts = [*sources, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts += sorted((ROOT / "recipes").glob("*.yaml"))
    problems = [problem for path in texts for problem in phrases(path)]
    problems += [problem for path in sources for problem in names(path)]
    print("\n".join(problems) or "words: ok")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
