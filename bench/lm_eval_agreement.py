"""GSM8K by outdo and by lm-evaluation-harness, one model, one setting: `python -m bench.lm_eval_agreement MODEL …`.

Both get the problem alone, by the model's own chat template, and decode greedily to the same length. The harness runs
in an environment of its own, on a task written here: its own strict match (`#### N`) and its own score. Its answers
are graded by outdo as well, so that a difference in grading is told from one in decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers import venv
from outdo.cli.progress import progress_bar
from outdo.evals.loading import run_with_model
from outdo.evals.report import EvalResult
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import EvalSplit, evaluate_model
from outdo.host import share_cores
from outdo.metrics.estimate import paired_difference, wilson
from outdo.models.load import Policy, save_policy
from outdo.rewards.answer import gsm8k
from outdo.tasks.task import find_task, held_out
from outdo.types import Prompt

TASK = "outdo_gsm8k"
WRITTEN = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
num_fewshot: 0
generation_kwargs:
  until: []
  do_sample: false
  temperature: 0.0
  max_gen_toks: {length}
filter_list:
  - name: strict-match
    filter:
      - function: regex
        regex_pattern: "#### (\\\\-?[0-9\\\\.\\\\,]+)"
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
metadata:
  version: 1.0
"""


def main() -> None:
    args = _arguments().parse_args()
    share_cores()
    python = args.python or venv.python_with("lm_eval[hf]")
    found = machine.facts()
    print(machine.line(found), flush=True)
    settings = EvalSettings(
        samples=0, max_completion_length=args.max_completion_length, dtype=args.dtype, device=args.device
    )
    prompts = _problems(args.data_dir, args.limit, args.system_prompt)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"

        def ours(policy: Policy) -> EvalResult:
            save_policy(policy, model)
            suite = [EvalSplit("gsm8k", "test", prompts, "gsm8k")]
            return evaluate_model(args.model, policy, suite, settings, progress_bar)[0]

        start = time.monotonic()
        result = run_with_model(args.model, settings, ours)
        seconds = {"outdo": time.monotonic() - start}
        start = time.monotonic()
        theirs = _harness(python, model, Path(folder), args)
        seconds["lm-eval"] = time.monotonic() - start
    report = compared(result, theirs, prompts) | {"seconds": seconds, "machine": found, "settings": _told(args)}
    print("\n".join(lines(report)))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def compared(result: EvalResult, theirs: dict[int, dict[str, Any]], prompts: list[Prompt]) -> dict[str, Any]:
    """Both scores, and where they part: `graded` is outdo's word on the harness's own texts."""
    texts = {group.prompt.id: group.trajectories[0].text for group in result.answers.greedy}
    right = result.answers.success_by_problem()
    rows = []
    for at, prompt in enumerate(prompts):
        text = theirs[at]["text"]
        graded = gsm8k([text], [prompt.answer], [prompt.messages])[0].verdict == "right"
        same = text.strip() == texts[prompt.id].strip()
        rows.append((right[prompt.id], float(theirs[at]["right"]), float(graded), same))
    ours, harness, graded, same = (list(column) for column in zip(*rows, strict=True))
    gap = paired_difference(ours, harness)
    return {
        "problems": len(rows),
        "outdo": _share(ours),
        "lm-eval": _share(harness),
        "difference": {"value": gap.value, "low": gap.low, "high": gap.high, "noise": gap.is_noise},
        "agree": sum(a == b for a, b in zip(ours, harness, strict=True)),
        "same_text": sum(same),
        "graded_alike": sum(a == b for a, b in zip(harness, graded, strict=True)),
    }


def lines(report: dict[str, Any]) -> list[str]:
    n, gap = report["problems"], report["difference"]
    told = []
    for side in ("outdo", "lm-eval"):
        s = report[side]
        seconds = report["seconds"][side]
        told.append(f"{side:8} {s['share']:.4f} [{s['low']:.4f}, {s['high']:.4f}]  {s['right']}/{n}  {seconds:.0f} s")
    verdict = "agree within the interval" if gap["noise"] else "DIFFER beyond the interval"
    told.append(f"outdo less lm-eval: {gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]: they {verdict}")
    told.append(f"the same verdict on {report['agree']} of {n} problems; the same text on {report['same_text']}")
    told.append(f"of lm-eval's own texts, outdo's grader says the same as its strict match on {report['graded_alike']}")
    return told


def _share(values: list[float]) -> dict[str, float | int]:
    right = int(sum(values))
    low, high = wilson(right, len(values))
    return {"right": right, "share": right / len(values), "low": low, "high": high}


def _problems(data_dir: Path, limit: int, system_prompt: str | None) -> list[Prompt]:
    """In the file's order, which is that of the harness."""
    task = find_task("gsm8k", {"data_dir": str(data_dir)}, system_prompt)
    found = sorted(held_out(task, "test", 0), key=lambda prompt: int(re.sub(r"\D+", "", prompt.id) or 0))
    return found[: limit or None]


def _harness(python: Path, model: Path, folder: Path, args: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """By problem, the harness's text and whether its strict match calls it right."""
    file = (args.data_dir / "test.jsonl").resolve()
    (folder / "tasks").mkdir()
    written = WRITTEN.format(task=TASK, file=file, length=args.max_completion_length)
    (folder / "tasks" / f"{TASK}.yaml").write_text(written)
    words = [
        *(str(python), "-m", "lm_eval", "run", "--model", "hf", "--tasks", TASK, "--apply_chat_template"),
        *("--model_args", f"pretrained={model},dtype={args.dtype}", "--include_path", str(folder / "tasks")),
        *("--device", args.device, "--batch_size", str(args.batch_size), "--num_fewshot", "0", "--log_samples"),
        *("--output_path", str(folder / "out")),
        *(("--limit", str(args.limit)) if args.limit else ()),
        *(("--system_instruction", args.system_prompt) if args.system_prompt else ()),
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    print("lm-evaluation-harness …", flush=True)
    done = subprocess.run(
        words, env={**os.environ, **quiet}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise SystemExit(f"lm_eval failed:\n{done.stdout.decode(errors='replace')[-4000:]}")
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    rows = map(json.loads, samples.read_text().splitlines())
    return {row["doc_id"]: {"right": row["exact_match"] == 1.0, "text": row["resps"][0][0]} for row in rows}


def _told(args: argparse.Namespace) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items() if key != "json"}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.lm_eval_agreement", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="anything that `outdo eval` takes")
    parser.add_argument("--data-dir", type=Path, required=True, help="the folder with GSM8K's test.jsonl")
    parser.add_argument("--limit", type=int, default=0, help="the first so many problems (default: all 1,319)")
    parser.add_argument("--max-completion-length", type=int, default=256)
    parser.add_argument("--system-prompt", help="for both")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch-size", type=int, default=16, help="the harness's (default 16)")
    parser.add_argument("--python", type=Path, help="a Python that has lm_eval, instead of making one under .bench/")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
