"""The promise of the README: `outdo train` alone learns. A few minutes on two cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.slow
def test_the_default_run_learns(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "outdo", "train", "output_dir=run"]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    before, after = (row for row in rows if row["split"] == "test")
    assert 0.15 <= before["success_rate"] <= 0.6
    assert after["success_rate"] >= 0.9
    assert after["pass@1"] >= before["pass@1"] + 0.3
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    late = metrics[-20:]
    assert sorted(row["kl_mean"] for row in late)[10] < 0.1
    assert sorted(row["entropy_mean"] for row in late)[10] > 0.005
    assert max(row["mismatch_kl"] for row in metrics) < 1e-6

    folder = tmp_path / "run" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "87+56"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    answer = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.startswith("<think>") and answer.endswith("</answer>")
