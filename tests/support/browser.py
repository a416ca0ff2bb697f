"""A real browser before a real `outdo dash`: runs to show, the server's process, and pages that must stay well.

A page is well when it printed no error, ran nothing that a run says, and broke no rule of the content policy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from support.harness import SHORT, Forks

LOOKED_FOR = ("chromium", "chromium-browser", "google-chrome")
WAIT = 30_000  # milliseconds: the machine may be busy
VIEWS = {
    "runs": "#/runs",
    "run": "#/run?run=one",
    "overlay": "#/run?run=one&run=two",
    "groups": "#/groups?run=one&step=2",
    "improved": "#/groups?run=one&show=improved",
    "answers": "#/answers?run=one",
    "answers of two": "#/answers?run=one&other=two&split=ood",
    "findings": "#/findings?run=one",
    "resources": "#/resources?run=one",
    "recipe": "#/recipe?run=one",
    "compare": "#/compare?run=one&run=two",
    "sweep": "#/sweep?sweep=swept",
}
HOSTILE = {
    "script": "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'><b>bold</b>",
    "terminal": "\x1b[31mred\x1b[0m and a bell \x07",
    "turned": "abc \u202egnp.exe\u202c \u2066left\u2069",
    "long": "0123456789" * 100_000,
}
WATCH = """
window.broken = [];
document.addEventListener("securitypolicyviolation", (event) => window.broken.push(event.violatedDirective));
"""


def chromium() -> str:
    """Where it is. Skips where there is none, except where that must not be."""
    found = next((path for name in LOOKED_FOR if (path := shutil.which(name))), None)
    if found is None:
        words = "there is no chromium: apt-get install chromium (make browser)"
        if os.environ.get("OUTDO_NEEDS_BROWSER"):
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests of a file. No longer: its loop would be in the way of tests that have their own."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def dash(root: Path, *words: str) -> Iterator[str]:
    """Starts `outdo dash` on a folder of runs; the address that it prints."""
    command = [sys.executable, "-m", "outdo", "dash", str(root), "--port", "0", "--no-open", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: Queue[str] = Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True).start()
    try:
        yield _address(lines)
    finally:
        process.terminate()
        process.wait(10)


def _address(lines: Queue[str]) -> str:
    said = ""
    while True:
        try:
            said += lines.get(timeout=60)
        except Empty:
            raise AssertionError(f"outdo dash printed no address: {said}") from None
        if found := re.search(r"http://\S+", said):
            return found.group()


def make_runs(root: Path, forks: Forks) -> None:
    """Two runs that were trained, one of them again with hostile answers, and a sweep of copies."""
    for name, *words in (("one", "seed=0"), ("two", "seed=1", "beta=0.05")):
        done = forks.run(["train", *SHORT, *words, f"output_dir={root / name}"], root)
        assert done.returncode == 0, done.stderr[-2000:]
    shutil.copytree(root / "one", root / "hostile")
    _make_hostile(root / "hostile")
    _make_sweep(root)


def _make_hostile(folder: Path) -> None:
    (path,) = (folder / "groups").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[:1]:
        row["prompt_id"] = row["messages"][-1]["content"] = HOSTILE["script"] + HOSTILE["turned"]
        for answer, text in zip(row["completions"], HOSTILE.values(), strict=False):
            answer |= {"text": text, "reason": HOSTILE["script"], "finish": HOSTILE["script"], "tokens": None}
            answer["parts"] = {HOSTILE["script"]: 1.0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (folder / "held_out").glob("step-*.jsonl"):
        held_out = [json.loads(line) for line in path.read_text().splitlines()]
        for answer, text in zip(held_out, HOSTILE.values(), strict=False):
            answer |= {
                "text": text,
                "reason": HOSTILE["script"],
                "finish": HOSTILE["script"],
                "verdict": HOSTILE["script"],
            }
        path.write_text("".join(json.dumps(row) + "\n" for row in held_out))
    path = folder / "held_out" / "problems.jsonl"
    problems = [json.loads(line) for line in path.read_text().splitlines()]
    for row in problems:
        row |= {
            "answer": HOSTILE["script"],
            "messages": [{"role": HOSTILE["script"], "content": HOSTILE["script"]}] * 2,
        }
    path.write_text("".join(json.dumps(row) + "\n" for row in problems))
    manifest = json.loads((folder / "run.json").read_text())
    manifest |= {"why": HOSTILE["script"] + HOSTILE["terminal"], "device": HOSTILE["script"]}
    manifest["recipe"]["dataset_name"] = HOSTILE["script"]
    (folder / "run.json").write_text(json.dumps(manifest))


def _make_sweep(root: Path) -> None:
    cells: list[dict[str, Any]] = []
    for i, (size, beta) in enumerate([(4, 0.0), (4, 0.05), (8, 0.0), (8, 0.05)]):
        name = f"g{size}-b{beta}"
        shutil.copytree(root / "one", root / "swept" / f"cell-{name}", ignore=shutil.ignore_patterns("model", "check*"))
        figures = {"success_rate": 0.5 + i / 10, "low": 0.4, "high": 0.9, "kl_mean": 0.01 * i, "entropy_mean": 0.1}
        keys = {"num_generations": size, "beta": beta, "seed": 0}
        cells.append({"name": name, "setting": f"num_generations={size} beta={beta}", "keys": keys, "status": "done"})
        cells[-1] |= {"folder": f"cell-{name}", "why": "", **figures}
    told = {"title": "Two keys", "varied": ["num_generations", "beta"], "default": cells[0]["setting"], "cells": cells}
    told["pick"] = {"setting": cells[3]["setting"], "why": "it is the best by far"}
    (root / "swept" / "sweep.json").write_text(json.dumps(told))


def until(page: Any, expression: str) -> None:
    """Waits for a JavaScript expression to hold. Playwright's own way needs eval, which the page's policy forbids."""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never so: {expression}; the page says {page.inner_text('main')[:500]}"
        page.wait_for_timeout(30)


class Watched:
    """Pages of one browser, and all that went wrong in them."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser, self.address = browser, address
        self.wrong: list[str] = []
        self.pages: list[Any] = []

    def open(self, view: str = "", width: int = 1280, **options: Any) -> Any:
        page = self.browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(WAIT)
        page.add_init_script(WATCH)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.wrong.append("a dialog opened"), dialog.dismiss()))
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.goto(self.address + view)
        self.pages.append(page)
        return page

    def check(self, expected: Sequence[str] = ()) -> None:
        """Raises AssertionError where a page is not well; `expected` are parts of errors that belong to the test."""
        for page in self.pages:
            assert page.evaluate("window.harmed") is None, "text of a run was run"
            assert page.evaluate("window.broken") == [], "the content policy was broken"
        assert [line for line in self.wrong if not any(part in line for part in expected)] == []
