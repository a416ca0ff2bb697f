"""Reports: their content, their security policy, and their cost."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outdo.errors import RunError
from outdo.evals.held_out import Evaluation
from outdo.recipe.load import load_recipe
from outdo.report.facts import read_facts
from outdo.report.html import visible
from outdo.report.sentences import describe_result, format_duration, repeat_command
from outdo.report.write import write_report
from outdo.runs.writer import RunWriter
from outdo.training.console import summary
from support.folders import HOSTILE, RECIPE, group, held_out, make_run, numbers, played
from support.harness import SHORT

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>"


class Page(HTMLParser):
    """A page's tags, its text, and what its scripts and styles hold."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inline: list[tuple[str, dict[str, str | None], str]] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inline.append((tag, dict(attrs), ""))
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            tag, attributes, text = self.inline[-1]
            self.inline[-1] = (tag, attributes, text + data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def data(self) -> Any:
        return json.loads(next(text for _, attributes, text in self.inline if attributes.get("id") == "data"))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    return tmp_path / "run"


def test_result_and_sections(made: Path) -> None:
    page = Page(write_report(made))
    assert "Held-out success (test) rose from 0.100 [0.00, 0.40] to 0.900 [0.60, 0.98]." in page.text
    assert "30 steps" in page.text and "720 sampled tokens in 240 answers" in page.text
    for title in (
        "Evaluation",
        "Curves",
        "Training answers, early and late",
        "Cost",
        "Where the time went",
        "Recipe",
        "Repeat this run",
    ):
        assert title in page.text, title
    assert "sampling" in page.text and "38%" in page.text, "0.75 of 2 seconds: grading is within sampling"
    assert "pass@1 [95%]" in page.text and "doctor" in page.text
    changed = page.text.partition("Changed from the defaults:")[2].partition("all ")[0]
    assert "max_steps" in changed and "num_generations 4" in re.sub(r"\s+", " ", changed) and "seed" not in changed


def test_held_out_answers(made: Path) -> None:
    text = Page(write_report(made)).text
    assert "test 0 → 30 2 1 1 1 1 may be chance (p = 1.000)" in text  # gained, lost, both, neither, not judged
    first, second = text.index("What is 1+2?"), text.index("What is 2+2?")
    assert "Gained 2" in text[:first] and "Lost 1" in text[first:second]
    assert "before training wrong · reward 0 · 1 of 2 sampled right before 1+2" in text[first:]
    assert "after step 30 right · reward 1" in text[first:]
    assert "wrong · reward 0.9" in text, "partial credit is shown, and is not right"


def test_cost_and_price(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ended=None)
    run.record_sft({"step": 0, "loss": 1.0, "tokens": 100})
    run.update_manifest(recipe=RECIPE | {"price_per_hour": 60.0}, world_size=2)
    run.finish("done")
    run.close()
    text = Page(write_report(run.folder)).text
    assert "device-seconds (1 min 0 s on 2 devices) 120" in text  # of the steps alone it is 60 s
    assert "tokens sampled 720 tokens trained on 100 price (at 60 per device-hour) 2.00" in text


def test_shares_as_in_the_terminal(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {"kind": "grpo"})
    found = Evaluation("test", 200, 0.235, 0.18, 0.3, {1: 0.4174, 10: 0.965})
    later = replace(found, success_rate=0.9951, pass_at={1: 0.9286, 10: 1.0})
    run.record_step(0, numbers(0), [group("1+1", ["2", "3"], [1.0, 0.0])])
    for step, each in enumerate([found, later]):
        run.record_eval(each.row(step))
    run.finish("done")
    run.close()
    text = Page(write_report(tmp_path / "run")).text
    shown = io.StringIO()
    Console(file=shown, width=120).print(summary([found], [later]))
    assert "0.417 → 0.929  0.965 → 1.000" in shown.getvalue()
    assert all(share in text for share in ("0.417", "0.965", "0.929", "1.000", "0.995"))


def test_prompt_early_and_late(made: Path) -> None:
    text = Page(write_report(made)).text
    early, late = text.partition("step 1: 0 of 4 right")[2], text.partition("step 30: 1 of 4 right")[2]
    assert early and late, "17*3 is wrong at first, and one of four is right at the end"
    assert "said right" in late and text.count("What is 17*3?") == 1 and "expected: 42" in text


def test_prompts_sampled_once(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {"kind": "grpo"})
    for step in range(3):
        run.record_step(step + 1, numbers(step), [group(f"{step}+{step}", ["a", "b"], [1.0, 0.0])])
    run.finish("stopped", "told to stop")
    run.close()
    text = Page(write_report(tmp_path / "run")).text
    assert "What is 0+0?" in text and "What is 2+2?" in text and "What is 1+1?" not in text
    assert "told to stop" in text and "The reward went" in text, "no evaluation: the reward is what is known"


def test_chart_data(made: Path) -> None:
    run = RunWriter.reopen(made)
    for step in range(30, 60):  # KL runs away
        run.record_step(step + 1, numbers(step, 0.5, kl_mean=0.5), [group("1+1", ["2", "3"], [1.0, 0.0])])
    run.close()
    data = Page(write_report(made)).data
    assert data["axes"]["grpo"]["steps"] == list(range(1, 61))
    charts = {chart["title"]: chart for chart in data["charts"]}
    success = charts["Success"]
    assert [(point["x"], point["y"]) for point in success["points"]] == [(0, 0.1), (30, 0.9)]
    kl = charts["KL to the start"]
    assert {"from": 0.1, "to": None, "kind": "bad"} in kl["bands"]
    assert [mark["label"] for mark in kl["marks"]] == ["kl_blowup"] and 20 < kl["marks"][0]["x"] < 40
    assert kl["lines"][0]["y"][0] == 0.01 and kl["lines"][0]["y"][-1] == 0.5


def test_turns(tmp_path: Path) -> None:
    """Calls, results and what was inserted, apart from what the model wrote; and the curves of turns in a section."""
    folder = tmp_path / "run"
    run = RunWriter.create(folder, RECIPE, {"kind": "grpo"})
    for step in (1, 2):
        row = numbers(step, turns_mean=2.0, tool_calls_mean=1.5, tool_calls_failed=0.5, env_wait_mean=0.1)
        run.record_step(step, row, [played("12+30"), group("1+1", ["2", "3"], [1.0, 0.0])])
    run.finish("done")
    run.close()
    page = Page(write_report(folder))
    classes = [attributes.get("class") for _, attributes in page.tags]
    assert (classes.count("own"), classes.count("context")) == (2 * 3 + 1, 2 * 2 + 1), "early, late, and in the legend"
    assert classes.count("inserted") == classes.count("failed") == 2
    assert "2 turns · 2 calls, 1 failed · 13 tokens + 3 inserted" in page.text
    assert "add (a=12, note=\"x\", …) code b = 30 print('Well.')" in page.text and "✗ failed Error: 42" in page.text
    assert "begins with user Count: Well." in page.text and "trained on" in page.text
    turns = page.text.partition(" Turns Turns ")[2]
    assert "Failed calls" in turns and "Environment wait" in turns.partition("Optimizer")[0]


def test_no_markup_from_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = RunWriter.create(folder, RECIPE | {"dataset_name": SCRIPT, "system_prompt": HOSTILE}, {"device": SCRIPT})
    run.record_step(
        0, numbers(0, **{f"reward/{SCRIPT}": 1.0, "reward/other": 0.0}), [group(HOSTILE, [HOSTILE, SCRIPT], [1.0, 0.0])]
    )
    run.record_step(1, numbers(1), [played(SCRIPT, HOSTILE, SCRIPT, HOSTILE)])
    for step in (0, 1):
        run.record_answers(step, SCRIPT, held_out({HOSTILE: float(step), SCRIPT: 1.0 - step}, SCRIPT + HOSTILE))
        run.record_eval({"step": step, "split": SCRIPT, "n": 3, "success_rate": 0.5, "low": 0.1, "high": 0.9})
    run.finish("failed", HOSTILE)
    run.close()
    page = Page(write_report(folder))
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "embed", "link", "textarea", "base", "form"}
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 2, "its numbers and its own lines"
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes), (tag, attributes)
        assert tag == "a" or "href" not in attributes
    assert SCRIPT in page.text and "\x1b" not in page.text and "\u202e" not in page.text
    assert "⟨U+001B⟩[31mred" in page.text and "⟨U+202E⟩" in page.text


def test_content_security_policy(made: Path) -> None:
    page = Page(write_report(made))
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for tag, attributes, text in page.inline:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy, tag
    assert "import " not in re.sub(r"//.*", "", page.inline[-1][2]), "one module that loads no other"


def test_repeat_command_gives_the_same_recipe() -> None:
    for given in (
        [
            "seed=3",
            "beta=0.05",
            "task_args.digits=3",
            "stop=[###, ' end']",
            "reward_funcs=numeric,format",
            "kl_limit=null",
        ],
        ["model_name_or_path=./model", "dataset_name=my data.jsonl", "reward_funcs=numeric", "system_prompt=Say 'it'"],
    ):
        recipe = load_recipe(None, given)
        words = shlex.split(repeat_command("grpo", recipe.model_dump(mode="json")))
        assert words[:2] == ["outdo", "train"] and load_recipe(None, words[2:]) == recipe
    assert repeat_command("grpo", load_recipe(None, ["output_dir=here"]).model_dump(mode="json")) == "outdo train"
    assert repeat_command("sft", load_recipe(None, []).model_dump(mode="json")) == "outdo sft"


def test_overlapping_intervals(made: Path) -> None:
    run = RunWriter.reopen(made)
    run.record_eval({"step": 31, "split": "test", "n": 10, "success_rate": 0.3, "low": 0.1, "high": 0.6})
    assert "to 0.300 [0.10, 0.60]; the intervals overlap" in describe_result(read_facts(made))
    run.close()
    assert [format_duration(s) for s in (0.25, 59.6, 61, 7260)] == ["0.25 s", "1 min 0 s", "1 min 1 s", "2 h 1 min"]


def test_unreadable_parts(made: Path) -> None:
    with (made / "metrics.jsonl").open("a") as file:
        file.write("{broken\n" + json.dumps({"step": 31, **numbers(30)}) + "\n" + '{"half')
    shutil.rmtree(made / "groups")
    text = Page(write_report(made)).text
    assert "1 lines of metrics.jsonl" in text and "31 steps" in text and "Answers before" not in text
    with pytest.raises(RunError, match="holds no run"):
        read_facts(made / "groups")


def test_supervised_report(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", RECIPE, {"kind": "sft"})
    for step in range(20):
        run.record_sft({"step": step, "loss": 2.0 - step / 10, "grad_norm": 1.0, "lr": 1e-3, "tokens": 10})
    run.finish("done")
    run.close()
    page = Page(write_report(tmp_path / "run"))
    assert "The loss went from 2 to 0.1." in page.text and "outdo sft" in page.text
    assert [chart["title"] for chart in page.data["charts"]] == ["Loss", "Gradient norm", "Learning rate"]


def test_stages(tmp_path: Path) -> None:
    names = ["01-sft", "02-grpo", "../out"]
    run = RunWriter.create(tmp_path / "all", RECIPE, {"kind": "stages", "stages": names})
    make_run(tmp_path / "all/01-sft", steps=3)
    make_run(tmp_path / "all/02-grpo", steps=5, ended=None).finish("failed", "the disk is full")
    make_run(tmp_path / "out")
    run.finish("failed", "the disk is full")
    run.close()
    page = Page(write_report(tmp_path / "all"))
    assert "rose from 0.100 [0.00, 0.40] to 0.900 [0.60, 0.98]. Sampled success (pass@1)" in page.text
    assert "It took 8 steps" in page.text
    assert [attributes["href"] for tag, attributes in page.tags if tag == "a"] == [
        "01-sft/report.html",
        "02-grpo/report.html",
    ]


def test_long_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    rows = "".join(json.dumps({"step": step, **numbers(step, (step % 97) / 97)}) + "\n" for step in range(3, 20_000))
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(rows)
    start = time.process_time()
    path = write_report(run.folder)
    assert time.process_time() - start < 5 and path.stat().st_size < 3_000_000
    line = next(chart for chart in Page(path).data["charts"] if chart["title"] == "Reward")["lines"][0]
    low, mean, high = (line[name][250] for name in ("low", "y", "high"))
    assert len(line["y"]) == 500 and low < mean < high and high - low > 0.3, (
        "40 rows, with the least and the most of them"
    )


def test_control_characters() -> None:
    assert visible("a\x1b\x00\x85\u200f\n\tb") == "a⟨U+001B⟩⟨U+0000⟩⟨U+0085⟩⟨U+200F⟩\n\tb"


def test_every_run_writes_a_report(steady: Path) -> None:
    page = Page(steady / "report.html")
    assert "Held-out success (test)" in page.text and "6 steps" in page.text and "grpo, done" in page.text
    assert page.data["axes"]["grpo"]["steps"] == [1, 2, 3, 4, 5, 6] and page.data["axes"]["sft"]["steps"] == [1, 2]


@pytest.mark.slow
def test_report_command(outdo: Outdo, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one")
    done = outdo("report", "one", "--out", "send/it.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "send/it.html").exists() and (tmp_path / "send/it.png").stat().st_size > 10_000
    done = outdo("report", "runs/none")
    assert done.returncode == 2 and "holds no run" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_foreign_files_are_not_overwritten(outdo: Outdo, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one")
    assert outdo("report", "one", "--out", "it.html").returncode == 0
    assert outdo("report", "one", "--out", "it.html").returncode == 0
    for name, text in (("data.jsonl", "{}\n"), ("other.html", "<!doctype html>\n<p>mine"), ("it.png", "mine")):
        (tmp_path / name).write_text(text)
        done = outdo("report", "one", "--out", name if name != "it.png" else "it.html")
        assert done.returncode == 2 and name in done.stderr, done
        assert (tmp_path / name).read_text() == text
    done = outdo("plot", "one", "--out", "it.png")
    assert done.returncode == 2 and "it.png: already exists" in done.stderr


@pytest.mark.slow
def test_failed_report(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "runs/one/report.html/in the way").mkdir(parents=True)
    done = outdo("train", *SHORT, "max_steps=1", "eval_size=2", "output_dir=runs/one")
    assert done.returncode == 0 and "warning: no report" in done.stdout, done.stderr
    assert json.loads((tmp_path / "runs/one/run.json").read_text())["status"] == "done"


@pytest.mark.slow
def test_report_in_a_browser(browser: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run", groups=[group(SCRIPT, [SCRIPT, HOSTILE], [1.0, 0.0])])
    address = write_report(tmp_path / "run").as_uri()
    for width in (1280, 400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        said: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, said=said: request.url == address or said.append(request.url))
        page.goto(address)
        page.wait_for_timeout(300)
        assert not said and page.evaluate("window.harmed") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            """[...document.querySelector('[data-chart] canvas').getContext('2d').getImageData(0, 0, 300, 150).data]
            .some((value) => value)"""
        ), "the first chart is drawn"
        first = page.locator(".read").first
        page.locator("[data-chart]").first.hover(position={"x": 200, "y": 100})
        page.wait_for_timeout(100)
        assert "step" in first.inner_text(), "hover reads a value"
        page.select_option("#axis", "time")
        page.wait_for_timeout(100)
        page.locator("[data-chart]").first.hover(position={"x": 210, "y": 100})
        page.wait_for_timeout(100)
        assert "step" not in first.inner_text() and not said
        page.close()


@pytest.mark.slow
def test_report_without_scripts_and_in_print(browser: Any, made: Path) -> None:
    address = write_report(made).as_uri()
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    assert (
        page.locator(".static svg polyline").first.is_visible() and not page.locator("[data-chart]").first.is_visible()
    )
    page.close()
    page = browser.new_page()
    page.goto(address)
    assert not page.locator(".static svg").first.is_visible()
    page.emulate_media(media="print")
    assert page.locator(".static svg").first.is_visible() and not page.locator("[data-chart]").first.is_visible()
    page.close()
