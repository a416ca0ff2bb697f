"""The command line in real processes: what it prints, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from outdo.cli import main
from outdo.cli.app import app
from outdo.cli.eval_command import eval_commands
from outdo.cli.train import _report
from outdo.evals.held_out import Evaluation
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.training.context import Result, StageResult
from support.basics import QUICK

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bad_keys(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("train", "num_generatoins=8")
    assert done.returncode == 2 and "did you mean 'num_generations'" in done.stderr
    done = outdo("train", "num_generations=7", "per_device_train_batch_size=128")
    assert done.returncode == 2 and "num_generations=7" in done.stderr and "128 answers" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()


def test_dry_run(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("train", "--dry-run", "num_generations=4", "kl_coef=0.2")
    assert done.returncode == 0, done.stderr
    assert "kl_coef is beta here" in done.stdout
    assert "learning_rate 0.0002 linear, beta 0.2, in the warm-up 0.002 cosine" in done.stdout
    assert "32 prompts x 4 answers = 128 answers" in done.stdout and "memory" in done.stdout and "runs/" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_dry_run_refuses_bad_input(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"prompt": "{i}+{i}", "answer": {2 * i}}}\n' for i in range(20)))
    (tmp_path / "b.jsonl").write_text("".join(f'{{"prompt": "{i}+{i}", "result": {2 * i}}}\n' for i in range(20)))
    numeric = ("reward_funcs=numeric", "sft_steps=0")
    row = '{"prompt": "1+1", "answer": 2}\n'
    (tmp_path / "c.jsonl").write_text(row * 20 + '{"prompt": "7+7"}\n{"prompt": "8+8", "answer": NaN}\n')
    (tmp_path / "r.py").write_text("def always(completions, **columns):\n    return [1.0 for _ in completions]\n")
    for words, part in (
        (("dataset_name=a.jsonl", *numeric, "max_prompt_length=1"), "train prompts are longer than 1 tokens"),
        (("max_prompt_length=1",), "prompts in a row are longer than 1 tokens"),
        (("max_completion_length=512",), "leaves no room for a prompt"),
        (
            ("dataset_name=b.jsonl", *numeric),
            "numeric needs the column `answer`, which b.jsonl lacks: it has prompt, result.",
        ),
        (("dataset_name=c.jsonl", *numeric), "2 of 22 prompts of c.jsonl lack it"),
        (("dataset_name=a.jsonl", "reward_funcs=r.py:always", "sft_steps=0"), "always is not fit to train on"),
        (("stages=[{stage: grpo, dataset_name: b.jsonl, reward_funcs: [numeric]}]",), "column `answer`"),
        (("eval_split=dev",), "has no split 'dev'"),
        (("dataset_name=a.jsonl", "sft_steps=0"), "no verifier of its own"),
        (("dataset_name=a.jsonl", "reward_funcs=numeric"), "has no demonstrations"),
        (("reward_funcs=numerik",), "did you mean 'numeric'"),
    ):
        done = outdo("train", "--dry-run", *words)
        assert not (tmp_path / "runs").exists() and done.returncode == 2 and part in done.stderr, (
            done.stdout + done.stderr
        )
    done = outdo(
        "train", "--dry-run", "dataset_mixture=[{dataset_name: arithmetic, weight: 3}, {dataset_name: countdown}]"
    )
    assert "75% arithmetic and 25% countdown" in done.stdout, done.stderr
    assert "runs/mixture-" in done.stdout, "as the run will call it"


def test_help(outdo: Outdo) -> None:
    done = outdo("--help")
    assert done.returncode == 0 and "outdo train recipes/arithmetic.yaml seed=1" in done.stdout
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert re.search(rf"^  {name} +\S.*", done.stdout, re.MULTILINE), name
    assert "..." not in done.stdout.partition("Options:")[2], "every command is told of in a whole sentence"
    assert outdo("train", "--nonsense").returncode == 2
    assert outdo("--version").stdout == f"outdo {version('outdo')}\n"
    assert "docs/recipes.md" in outdo("train", "--help").stdout
    assert "task_args digits: int = 2, ops: str = '+-'" in outdo("tasks").stdout
    code = "import sys, outdo.cli; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_eval_command_is_quoted() -> None:
    recipe = Recipe(dataset_name="my data.jsonl", columns={"prompt": "question"}, reward_funcs=["numeric", "format"])
    words = "outdo eval run/model --task 'my data.jsonl' --reward numeric --task-arg columns.prompt=question"
    assert eval_commands(recipe, Path("run/model"), ["test", "ood"]) == [words]
    recipe = Recipe(task_args={"ops": "+", "ask": "What is {a} {op} {b}?"}, reward_funcs=["numeric"])
    words = "outdo eval run/model --task arithmetic --task-arg ops=+ --task-arg 'ask=What is {a} {op} {b}?'"
    assert eval_commands(recipe, Path("run/model"), ["test", "ood"]) == [words]


def test_eval_commands_of_a_mixture() -> None:
    sums: dict[str, Any] = {"dataset_name": "arithmetic", "task_args": {"ops": "+", "digits": 3}, "name": "sums"}
    long = {"max_completion_length": 256}
    both = load_recipe(None, {"dataset_mixture": [sums, {"dataset_name": "countdown"}], **long})
    words = "outdo eval m --task arithmetic,countdown --task-arg arithmetic.ops=+ --task-arg arithmetic.digits=3"
    assert eval_commands(both, Path("m"), ["test/sums", "test/countdown"]) == [words]
    own = {"dataset_name": "a.jsonl", "columns": {"prompt": "q"}, "reward_funcs": ["exact"], "dataset_test_split": "v"}
    split = load_recipe(
        None, {"dataset_mixture": [sums, own, {"dataset_name": "gym:x", "task_args": {"a": "3"}}], **long}
    )
    assert eval_commands(split, Path("m"), ["test/sums", "test/a.jsonl", "test/gym:x"]) == [
        "outdo eval m --task arithmetic --task-arg ops=+ --task-arg digits=3",
        "outdo eval m --task a.jsonl --reward exact --task-arg columns.prompt=q --task-arg dataset_test_split=v",
        "outdo eval m --task gym:x --task-arg 'a=\"3\"'",
    ]


def test_eval_command_has_the_run_s_settings() -> None:
    keys: dict[str, Any] = {
        "dataset_name": "p.jsonl",
        "reward_funcs": ["format", "mine.py:plain"],
        "stop": ["\n", "Q:"],
    }
    recipe = Recipe(**keys, system_prompt="Be brief", max_completion_length=12, temperature=0.7)
    words = "outdo eval m --task p.jsonl --reward mine.py:plain --system-prompt 'Be brief' --max-completion-length 12"
    assert eval_commands(recipe, Path("m"), ["test"]) == [f"{words} --temperature 0.7 --stop '\n' --stop Q:"]
    assert eval_commands(Recipe(), Path("m"), ["dev"]) == ["outdo eval m --task arithmetic --split dev"]
    assert eval_commands(recipe, Path("m"), []) == [], "nothing is held out"
    for name in ("openai/gsm8k", "reasoning_gym/x", "outdo.drills.tasks:few_sums"):  # their own verifiers decide
        judged = Recipe(dataset_name=name, reward_funcs=["mine.py:plain"])
        assert eval_commands(judged, Path("m"), ["test"]) == [f"outdo eval m --task {name}"]
    own = {"dataset_name": "countdown", "system_prompt": "Count"}
    parts = [{"dataset_name": "arithmetic"}, own, {"dataset_name": "gsm8k"}, {"dataset_name": "a.jsonl"}]
    mixed = Recipe(dataset_mixture=parts, reward_funcs=["exact"], system_prompt="Think")
    assert eval_commands(mixed, Path("m"), ["test/arithmetic", "test/countdown", "dev/gsm8k"]) == [
        "outdo eval m --task arithmetic --system-prompt Think",
        "outdo eval m --task countdown --system-prompt Count",
        "outdo eval m --task gsm8k --split dev --system-prompt Think",
    ]


def test_nothing_held_out(outdo: Outdo, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i} + 1", "answer": str(i + 1), "completion": str(i + 1), "split": "train"} for i in (1, 2)]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = (*QUICK, "dataset_name=two.jsonl", "reward_funcs=exact", "device=cpu")
    for command, next_ in (("train", "next      outdo plot train\n"), ("sft", "numbers   sft/sft.jsonl\n")):
        done = outdo(command, *keys, f"output_dir={command}")
        assert done.returncode == 0, done.stderr
        assert "held-out problems" not in done.stdout and "outdo eval" not in done.stdout, done.stdout
        assert next_ in done.stdout


def test_run_end_to_end(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("train", *QUICK, "output_dir=run")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "held out" in done.stdout
    assert "outdo eval run/model --task arithmetic --task-arg ops=+" in done.stdout
    assert "answers   test: 0 gained" in done.stdout and "device-seconds" in done.stdout
    run = tmp_path / "run"
    manifest = json.loads((run / "run.json").read_text())
    assert (
        manifest["status"] == "done"
        and manifest["recipe"]["num_generations"] == 8
        and manifest["num_parameters"] > 10**6
    )
    metrics = rows(run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    wanted = set(SIGNALS.split())
    assert not wanted - set(metrics[0])
    assert [(row["step"], row["split"]) for row in rows(run / "evals.jsonl")] == [
        (0, "test"), (0, "ood"), (2, "test"), (2, "ood"),
    ]  # fmt: skip
    groups = rows(run / "groups" / "steps-000000.jsonl")
    assert len(groups) == 4 and all(len(group["completions"]) == 8 for group in groups)  # type: ignore[arg-type]

    answered = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=run, capture_output=True, text=True, timeout=120, check=False
    )
    assert answered.returncode == 0, answered.stderr
    assert "tokens 8" in answered.stdout

    measured = outdo(
        "eval", "run/model", "--task", "arithmetic", "-n", "5", "--samples", "2", "--max-completion-length", "8"
    )
    assert measured.returncode == 0, measured.stderr
    assert "5 problems" in measured.stdout and "pass@1" in measured.stdout

    again = outdo("train", *QUICK, "output_dir=run")
    assert again.returncode == 2 and "already holds a run" in again.stderr

    drawn = outdo("plot", "run")
    assert drawn.returncode == 0 and (run / "curves.png").read_bytes().startswith(b"\x89PNG")


SIGNALS = """reward_mean reward_std reward/numeric success_rate kl_mean entropy_mean clipfrac adv_mean adv_std
group_diversity informative all_right all_wrong len_mean reasoning_tokens_mean truncated grader_broken mismatch_kl
grad_norm lr tokens_per_s memory time/rollout time/grade time/update time/save time/step"""

# A stranger's process: transformers alone, no outdo.
PLAIN = """
import sys; sys.modules["outdo"] = None
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained("model"), AutoTokenizer.from_pretrained("model")
chat = [{"role": "user", "content": "12+34"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
out = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
print("tokens", out.shape[1] - inputs["input_ids"].shape[1], repr(tokenizer.decode(out[0])))
"""


def test_interrupt_at_startup() -> None:
    code = """
import sys
stop, sys.argv[1:] = sys.argv[1], ["tasks"]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == stop:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from outdo.cli import main
main()
"""
    for module in ("outdo.cli.sweep", "outdo.host", "outdo.tasks.task"):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) == (130, ""), module


@pytest.mark.parametrize(
    ("words", "errors", "status"),
    [
        ("tasks", subprocess.PIPE, 141),  # rich prints it
        ("compare --help", subprocess.PIPE, 141),  # typer does
        ("doctor log.jsonl --json", subprocess.PIPE, 141),  # and `print`, which waits for the end
        ("nonsense", subprocess.STDOUT, 141),
        ("train nonsense=1", subprocess.STDOUT, 2),
    ],
)
def test_reader_gone(tmp_path: Path, words: str, errors: int, status: int) -> None:
    log = "".join(json.dumps({"step": i, "reward": 0.4, "kl": 0.02 * i}) + "\n" for i in range(40))
    (tmp_path / "log.jsonl").write_text(log)
    reads, writes = os.pipe()
    os.close(reads)
    command, env = [sys.executable, "-m", "outdo", *words.split()], {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=writes, stderr=errors, check=False)
    os.close(writes)
    assert done.returncode == status and not done.stderr


def test_other_broken_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> None:
        try:
            raise BrokenPipeError(32, "a worker's pipe")
        except BrokenPipeError:
            sys.exit(1)  # as typer does

    monkeypatch.setattr("outdo.cli.app", breaks)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1 and "failed: BrokenPipeError: [Errno 32] a worker's pipe" in capsys.readouterr().err


def test_next_commands_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/two words")
    found = [Evaluation("test", 1, 1.0, 0.2, 1.0)]
    _report(Result(folder, folder / "model", [], found, load_recipe()), Console())
    shown = capsys.readouterr().out
    assert "outdo eval 'runs/two words/model' " in shown and "outdo plot 'runs/two words'\n" in shown


def test_stages_of_different_tasks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each stage is listed with its own task, and the next command is of the last one that was evaluated."""
    stages = []
    for name, task, rates in (
        ("01-sft", "arithmetic", (0.1, 0.2)),
        ("02-grpo", "countdown", (0.3, 0.4)),
        ("03-harvest", "gsm8k", ()),
    ):
        evals = [Evaluation("test", 4, rate, 0.0, 1.0) for rate in rates]
        stages.append(StageResult(name, load_recipe(None, {"task": task}), evals[:1], evals[1:]))
    result = Result(tmp_path, tmp_path / "model", [], stages[1].after, load_recipe(), tuple(stages))
    _report(result, Console(width=300))
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert ["01-sft", "arithmetic", "test", "(4)", "0.100", "[0.00,", "1.00]", "0.200", "[0.00,", "1.00]", "–"] in rows
    assert ["02-grpo", "countdown", "test", "(4)", "0.300", "[0.00,", "1.00]", "0.400", "[0.00,", "1.00]", "–"] in rows
    assert ["03-harvest", "gsm8k", "–", "–", "–", "–"] in rows
    assert f"outdo eval {tmp_path}/model --task countdown" in shown and "--task arithmetic" not in shown


def test_interrupt_saves_the_run(tmp_path: Path) -> None:
    keys = [*QUICK, "max_steps=100000", "output_dir=run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "outdo", "train", *keys],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in errors and "finished work is saved" in errors
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["status"] == "stopped" and "SIGINT after step" in manifest["why"]
    assert len(rows(metrics)) >= 3 and (tmp_path / "run" / "model" / "model.safetensors").stat().st_size > 10**6


def test_bad_output_dir(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = outdo("train", *QUICK, "output_dir=file/run")
    assert done.returncode == 2 and "cannot write file/run: Not a directory; set output_dir elsewhere" in done.stderr


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("raise KeyError('gold')", "KeyError: 'gold'"),
        ("return [1.0]", "returned 1 values for 2 completions"),
        ("return [float('nan')] * len(completions)", "returned nan"),
        ("return ['yes'] * len(completions)", "returned 'yes'"),
        ("return 1.0", "returned a float"),
    ],
)
def test_bad_reward_function(outdo: Outdo, tmp_path: Path, body: str, part: str) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(completions, **columns):\n    {body}\n")
    done = outdo("train", *QUICK, "reward_funcs=mine.py:mine", "output_dir=run")
    assert done.returncode == 2 and part in done.stderr and "mine" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
