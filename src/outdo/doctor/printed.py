"""Rows from what a trainer printed: verl's lines, transformers' dictionaries, and the step blocks of scripts."""

from __future__ import annotations

import re

from outdo.runs.reader import JsonRow

VERL_LINE = re.compile(r"\bstep:(\d+) - (.+)")  # verl: step:3 - actor/entropy:0.51 - critic/score/mean:np.float64(0.4)
WRAPPED = re.compile(r"(?:np\.\w+|tensor)\(([^(),]+)[^()]*\)")
PAIRS = re.compile(r"\{('[^{}\n]+)\}")  # transformers: {'loss': '0.01', 'reward': '0.4'}, among progress bars
PAIR = re.compile(r"'([^']+)': '?(-?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf))\b")

# Step 10: reward=0.3, kl=0.02    step 10 | reward 0.3 | …    [Step 10/200] Reward: 0.3    iter 10 - loss: 0.1
STEP = re.compile(
    r"\b(?:(?:global|train|training)[ _]?)?(?:step|iter|iteration|update)s?\b[ \t]*[:=#]?[ \t]*(\d+)"
    r"(?:[ \t]*/[ \t]*\d+)?",
    re.IGNORECASE,
)
NUMBER = r"([-+]?(?:\d+(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf))\b(%?)"
NAME = r"([A-Za-z][\w/@.-]*(?:[ \t][A-Za-z][\w/@.-]*){0,3})"
ASSIGNED = re.compile(rf"{NAME}[\"']?[ \t]*[:=][ \t]*{NUMBER}", re.IGNORECASE)
SPACED = re.compile(rf"{NAME}[ \t]+{NUMBER}", re.IGNORECASE)


def printed_rows(text: str) -> list[JsonRow]:
    """verl's lines, or the dictionaries that transformers and TRL print; else empty."""
    rows = [_verl_row(match) for match in map(VERL_LINE.search, text.split("\n")) if match]
    return rows or [row for match in PAIRS.finditer(text) if (row := dict(PAIR.findall(match[1])))]


def _verl_row(match: re.Match[str]) -> JsonRow:
    row: JsonRow = {"step": match[1]}
    for pair in match[2].split(" - "):
        name, _, value = pair.rpartition(":")
        row[name] = WRAPPED.sub(r"\1", value.strip())
    return row


def step_blocks(text: str) -> list[JsonRow]:
    """A row for each line that names a step, with the numbers on it and on the lines below it up to the next step.

    Lines below count where they are no more than `name: value`, so that prose is not read.
    """
    rows: list[JsonRow] = []
    for line in WRAPPED.sub(r"\1", text).split("\n"):
        if match := STEP.search(line):
            rows.append({"step": match[1], **_pairs(line[match.end() :])})
        elif rows:
            rest = line.strip(" \t\r-*•|>")
            whole = ASSIGNED.match(rest)
            if whole and (whole.end() == len(rest) or len(_pairs(rest)) > 1 or rest[whole.end()] in " \t(,|"):
                rows[-1] |= {name: value for name, value in _pairs(rest).items() if name.lower() != "step"}
    return [row for row in rows if len(row) > 1]


def _pairs(text: str) -> JsonRow:
    """`name: value` and `name=value`; where a text has none, `name value`. A percentage becomes a share."""
    found = ASSIGNED.findall(text) or SPACED.findall(text)
    return {
        name.strip(): str(float(value.replace(",", "")) / 100) if percent else value.replace(",", "")
        for name, value, percent in found
    }
