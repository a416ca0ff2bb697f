"""`outdo grade`, `outdo graders` and `outdo audit` in real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def graded(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


GOOD = "<think>2+2</think><answer>4</answer>"


def test_grade_and_summary(outdo: Outdo, tmp_path: Path) -> None:
    rows = [
        {"completion": GOOD, "answer": "4"},
        {"completion": [{"role": "assistant", "content": "#### 5"}], "answer": "4"},
        {"completion": GOOD, "answer": "four"},
    ]
    done = outdo(
        "grade", "--reward", "numeric,format", "--weights", "1.0,0.1", str(written(tmp_path / "a.jsonl", *rows))
    )
    assert done.returncode == 0, done.stderr
    first, second, third = graded(done.stdout)
    assert first == {"reward": 1.1, "verdict": "right", "parts": {"numeric": 1.0, "format": 1.0}, "reason": ""}
    assert (second["reward"], second["verdict"]) == (0.0, "wrong") and "'5'" in str(second["reason"])
    assert (third["reward"], third["verdict"]) == (None, "broken") and "four" in str(third["reason"])
    assert "3 answers" in done.stderr and "1 right, 1 wrong, 1 broken" in done.stderr


def test_invalid_lines(outdo: Outdo, tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.jsonl", "not json", {"completion": GOOD, "answer": "4"}, [1], {"answer": "4"}, {"completion": 5}
    )
    done = outdo("grade", "--reward", "numeric", str(file), "--out", "out.jsonl")
    assert done.returncode == 1 and done.stdout == ""
    verdicts = [row["verdict"] for row in graded((tmp_path / "out.jsonl").read_text())]
    assert verdicts == ["broken", "right", "broken", "broken", "broken"]
    assert "line 1: not JSON" in done.stderr
    written_first = (tmp_path / "out.jsonl").read_bytes()
    for options, status in ((["--out", "out.jsonl"], 2), (["--out", "."], 2), (["--out", "out.jsonl", "--force"], 1)):
        assert outdo("grade", "--reward", "exact", str(file), *options).returncode == status, options
        assert ((tmp_path / "out.jsonl").read_bytes() == written_first) == (status == 2), options


@pytest.mark.parametrize(
    ("options", "rows", "part"),
    [
        (["--reward", "numerc"], [{"completion": "x", "answer": "4"}], "did you mean 'numeric'"),
        (["--reward", "numeric"], [{"completion": "x"}], "could be judged"),
        (["--reward", "json_schema"], [{"completion": "x"}], "needs schema"),
        (["--reward", "numeric,length"], [{"completion": "x", "answer": "4"}], "needs completion_ids"),
        (["--reward", "numeric", "--weights", "1,2"], [{"completion": "x", "answer": "4"}], "one each"),
        (["--reward", "numeric", "--weights", "much"], [{"completion": "x", "answer": "4"}], "--weights much"),
        ([], [{"completion": "x", "answer": "4"}], "--reward is missing"),
        (["--reward", "numeric"], [], "nothing to grade"),
        (["--reward", "missing.json"], [{"completion": "x"}], "missing.json"),
    ],
)
def test_errors(outdo: Outdo, tmp_path: Path, options: list[str], rows: list[object], part: str) -> None:
    done = outdo("grade", *options, str(written(tmp_path / "a.jsonl", *rows)))
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr


def test_no_such_file(outdo: Outdo) -> None:
    done = outdo("grade", "--reward", "numeric", "nowhere.jsonl")
    assert done.returncode == 2 and "nowhere.jsonl: No such file" in done.stderr


def test_tokenizer(outdo: Outdo, tmp_path: Path) -> None:
    rows = [{"completion": "#### 4" + "0" * n, "answer": "4" + "0" * n} for n in (0, 50)]
    options = [
        "--reward",
        "numeric,overlong",
        "--max-completion-length",
        "20",
        str(written(tmp_path / "a.jsonl", *rows)),
    ]
    done = outdo("grade", *options, "--tokenizer", "tiny")
    assert [row["reward"] for row in graded(done.stdout)] == [1.0, 0.0], done.stderr
    done = outdo("grade", *options, "--tokenizer", "./nowhere")
    assert done.returncode == 2 and "tokenizer ./nowhere cannot be loaded" in done.stderr


def test_siblings(outdo: Outdo, tmp_path: Path) -> None:
    rows = [
        {"completion": GOOD, "answer": "4", "completion_ids": [1] * length, "group": group}
        for length, group in ((10, "a"), (30, "a"), (20, "a"), (10, None))
    ]
    done = outdo("grade", "--reward", "numeric,length", "--weights", "0,1", str(written(tmp_path / "a.jsonl", *rows)))
    assert done.returncode == 0, done.stderr
    assert [row["reward"] for row in graded(done.stdout)] == [0.5, -0.5, 0.0, 0.0]


def test_prints_of_a_reward(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "def loud(completions, **columns):\n    print('noise')\n    return [1.0] * len(completions)\n"
    )
    done = outdo("grade", "--reward", "loud.py:loud", str(written(tmp_path / "a.jsonl", {"completion": "x"})))
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0]
    assert "noise" in done.stderr


def test_function_and_grader_json(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\ndef mine(completions, level):\n"
        "    if 'hang' in completions: time.sleep(99)\n    return [x / 10 for x in level]\n"
    )
    spec = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.gold}}", "operation": "eq"}
    written(tmp_path / "grader.json", spec)
    rows = [{"completion": text, "level": 10, "gold": "a"} for text in ("a", "hang", "b")]
    file = str(written(tmp_path / "a.jsonl", *rows))
    done = outdo("grade", "--reward", "mine.py:mine", "--timeout", "1", file)
    assert [row["verdict"] for row in graded(done.stdout)] == ["right", "wrong", "right"], done.stderr
    done = outdo("grade", "--reward", "grader.json", file)
    assert [row["reward"] for row in graded(done.stdout)] == [1.0, 0.0, 0.0], done.stderr
    done = outdo("grade", "--reward", "mine.py:mine,grader.json", "--gate", "grader.json", file, "--timeout", "1")
    assert [row["reward"] for row in graded(done.stdout)] == [2.0, 0.0, 0.0], done.stderr


def test_invalid_grader_file(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(
        '{\n "type": "multi",\n "graders": {"a": {"type": "string_check", "input": "x",\n'
        '   "reference": "y", "operation": "equals"}},\n "calculate_output": "a +"\n}\n'
    )
    for options in (["--validate", "bad.json"], ["--reward", "bad.json", "rows.jsonl"]):
        done = outdo("grade", *options)
        assert done.returncode == 2 and "graders.a.operation" in done.stderr and "did you mean 'eq'" in done.stderr
        assert "bad.json, line 4" in done.stderr and "calculate_output" in done.stderr
    written(tmp_path / "good.json", {"type": "string_check", "input": "x", "reference": "y", "operation": "eq"})
    done = outdo("grade", "--validate", "good.json")
    assert done.returncode == 0 and "good" in done.stdout


def test_graders(outdo: Outdo) -> None:
    from outdo.rewards.registry import GRADERS

    done = outdo("graders")
    assert done.returncode == 0
    for name, grader in GRADERS.items():
        assert f"\n{name}\n" in f"\n{done.stdout}" and grader.pays.split()[0] in done.stdout


def test_audit(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("audit", "arithmetic", "-n", "3")
    assert done.returncode == 0 and done.stdout.endswith("fit to train on\n"), done.stderr
    assert "p50" in done.stdout and "p99" in done.stdout
    done = outdo("audit", "guess", "-n", "2")  # by play
    assert done.returncode == 0 and done.stdout.endswith("fit to train on\n"), done.stderr
    (tmp_path / "mine.py").write_text("def generous(completions, **columns): return [1.0] * len(completions)\n")
    written(tmp_path / "p.jsonl", *({"prompt": f"{i}?", "answer": str(i)} for i in range(30)))
    done = outdo("audit", "--reward", "mine.py:generous", "--data", "p.jsonl")
    assert done.returncode == 1 and "not fit to train on" in done.stdout and "an empty answer" in done.stdout
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(3)\n")  # which is a guard's halt, in training
    done = outdo("audit", "--reward", "ends.py:f", "--data", "p.jsonl")
    assert done.returncode == 2 and "sys.exit" in done.stderr and "Traceback" not in done.stderr
    done = outdo("audit")
    assert done.returncode == 2 and "outdo audit arithmetic" in done.stderr


def test_training_refuses_an_unfit_reward(outdo: Outdo, tmp_path: Path) -> None:
    from support.basics import QUICK

    (tmp_path / "mine.py").write_text("def generous(completions, **columns): return [1.0] * len(completions)\n")
    written(tmp_path / "p.jsonl", *({"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(30)))
    options = ["train", *QUICK, "sft_steps=0", "task_args={}", "dataset_name=p.jsonl", "reward_funcs=mine.py:generous"]
    done = outdo(*options, "output_dir=run")
    assert done.returncode == 2 and "not fit to train on" in done.stderr and "reward_audit=false" in done.stderr
    assert not (tmp_path / "run").exists()
    done = outdo(*options, "output_dir=run", "reward_audit=false")
    assert done.returncode == 0, done.stderr


def test_broken_grader_halts(outdo: Outdo, tmp_path: Path) -> None:
    from support.basics import QUICK

    (tmp_path / "mine.py").write_text(
        "def mine(completions, **columns):\n"
        "    if len(completions) > 2: raise OSError('the judge has gone')\n    return [0.5] * len(completions)\n"
        "def alone(completions, **columns):\n"
        "    raise OSError('gone')\n"
    )
    done = outdo("train", *QUICK, "reward_funcs=mine.py:mine", "output_dir=salvaged")
    assert done.returncode == 0, done.stderr  # one by one it can judge them
    alone = ("train", *QUICK, "reward_funcs=mine.py:alone")
    assert "be judged" in outdo(*alone).stderr  # the audit
    done = outdo(*alone, "output_dir=run", "reward_audit=false")
    assert done.returncode == 3 and "be judged" in done.stderr and "gone" in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"
