"""The names of the files in a run's folder. No module outside `outdo.runs` knows them.

run.json        the manifest: recipe as resolved, versions, device, status and why
metrics.jsonl   a row per step
evals.jsonl     a row per evaluation
sft.jsonl       a row per update of supervised training
findings.jsonl  what the doctor reported, and when
groups/         the answers themselves, a file per hundred steps
held_out/       the held-out problems, and the greedy answer to each, a file per evaluation (`held_out.py`)
checkpoints/    what the run resumes from, each complete or absent (`checkpoint.py`)
before-N/       rows and checkpoints from before the run was restarted
halted-step-N.jsonl   the answers of a step whose update failed
demonstrations.jsonl  what a harvest kept
reference/      the weights that KL is measured from
start/, data/   the model and the rows of a run that was given them as objects of Python
model/          the result, a Hugging Face folder; with use_peft also adapter/, in PEFT's format
config.json, …  links to the files of model/, so that transformers loads the run's folder too
report.html     the run as one page
judge/          the scores of a judge model, where the run has one
"""

from __future__ import annotations

from pathlib import Path

MANIFEST = "run.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
SFT = "sft.jsonl"
FINDINGS = "findings.jsonl"
ROW_FILES = (METRICS, EVALS, SFT, FINDINGS)
GROUPS = "groups"
HELD_OUT = "held_out"
PROBLEMS = "problems.jsonl"  # of held_out/
CHECKPOINTS = "checkpoints"
REFERENCE = "reference"
MODEL = "model"
ADAPTER = "adapter"
REPORT = "report.html"
JUDGE = "judge"  # the scores of a judge model, so that none is paid for twice
DEMONSTRATIONS = "demonstrations.jsonl"  # of a harvest
START, DATA = "start", "data"  # what was given as objects
SUBFOLDERS = frozenset(
    {GROUPS, HELD_OUT, CHECKPOINTS, REFERENCE, MODEL, ADAPTER, START, DATA, JUDGE}
)  # that hold no other run
LOCK = ".lock"
STEPS_PER_FILE = 100  # of groups/


def group_file(folder: Path, step: int) -> Path:
    return folder / GROUPS / f"steps-{step // STEPS_PER_FILE * STEPS_PER_FILE:06d}.jsonl"


def group_files(folder: Path) -> list[Path]:
    """Every file of groups, in the order of their steps."""
    return sorted((folder / GROUPS).glob("*.jsonl"))


def start_folder(folder: Path) -> Path:
    return folder / START


def data_folder(folder: Path) -> Path:
    return folder / DATA


def answer_file(folder: Path, step: int) -> Path:
    """The answers of the evaluation after so many steps."""
    return folder / HELD_OUT / f"step-{step:06d}.jsonl"


def held_out_files(folder: Path) -> list[Path]:
    """The file of problems, and every file of answers in the order of their steps."""
    return sorted((folder / HELD_OUT).glob("*.jsonl"))


def report_path(folder: Path) -> Path:
    return folder / REPORT


def row_path(folder: Path, kind: str) -> Path:
    """Where a run of that kind has its numbers: those of a supervised run are in a file of their own."""
    return folder / (SFT if kind == "sft" else METRICS)
