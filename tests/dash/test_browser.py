"""The dashboard as a person uses it: a real chromium, a real server, real runs."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import HOSTILE, VIEWS, Watched, chromium, dash, make_runs, until
from support.harness import SHORT, Forks

pytestmark = pytest.mark.slow
NO_LONGER = ("404", "net::ERR")  # what the browser itself notes of a run that is gone


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    chromium()  # before anything is trained for it
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, request.getfixturevalue("forks"))
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with dash(root) as address:
        yield address


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:
    watched = Watched(browser, address)
    yield watched
    for page in watched.pages:
        page.close()


def wide(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_live_run(watched: Watched, root: Path, forks: Forks) -> None:
    said = root / "said.txt"
    words = ["train", *SHORT, "max_steps=30", "eval_steps=15", f"output_dir={root / 'live'}"]
    child = forks.start(words, root, said, said)
    while not (root / "live" / "run.json").exists():
        time.sleep(0.1)
    page = watched.open("#/run?run=live")
    page.evaluate("window.first = true")
    page.wait_for_selector(".status.running")
    page.wait_for_selector("article[data-signal=reward_mean]")
    seen = {page.inner_text(".fact:has-text('Steps') b")}
    while "30 / 30" not in seen:
        page.wait_for_timeout(50)
        seen.add(page.inner_text(".fact:has-text('Steps') b"))
    page.wait_for_selector(".status.done")
    assert page.inner_text("#live") == "", "nothing is live any more"
    assert child.wait() == 0, said.read_text()[-2000:]
    assert len(seen) > 3, f"only {seen} were shown on the way"
    assert page.evaluate("window.first"), "the page was loaded again"
    label = page.get_attribute("article[data-signal=reward_mean] canvas >> nth=1", "aria-label")
    assert "at step 30" in label, label
    shown = page.inner_text(".fact:has-text('Held-out')")
    assert len(re.findall(r"\d\.\d{3}", shown)) == 3, shown  # before, after, and of sampled answers
    watched.check()


def test_linked_hover_and_zoom(watched: Watched) -> None:
    page = watched.open("#/run?run=one&smooth=0")
    canvas = page.locator("article[data-signal=reward_mean] canvas").nth(1)
    box = canvas.bounding_box()
    inner = (box["x"] + 46, box["width"] - 46 - 12)
    page.mouse.move(inner[0] + inner[1] / 5, box["y"] + 60)  # the second of six steps
    until(page, "document.querySelectorAll('article .read small').length >= 3")
    told = page.locator("article:not([data-signal=held-out]) .read small").all_inner_texts()
    assert set(told) == {"step 2"}
    rows = [json.loads(line) for line in (Path(page_root(page)) / "one" / "metrics.jsonl").read_text().splitlines()]
    read = page.inner_text("article[data-signal=success_rate] .read")
    assert float(read.split()[-1]) == pytest.approx(rows[1]["success_rate"], rel=0.01)
    page.mouse.down()
    page.mouse.move(inner[0] + inner[1], box["y"] + 80, steps=5)
    page.mouse.up()
    until(page, "location.hash.includes('zoom=')")
    canvas.dblclick()
    until(page, "!location.hash.includes('zoom=')")
    assert page.locator("article[data-signal=skipped_updates]").count() == 0, "what was 0 throughout is only named"
    page.locator("[data-still=skipped_updates]").click()
    page.wait_for_selector("article[data-signal=skipped_updates]")
    page.get_by_role("button", name="Tokens", exact=True).click()
    assert "x=tokens" in page.url
    page.locator("article[data-signal=reward_mean]").scroll_into_view_if_needed()
    label = "document.querySelectorAll('article[data-signal=reward_mean] canvas')[1].ariaLabel"
    until(page, f"{label}.includes('at {rows[0]['tokens']} tokens')")
    watched.check()


def page_root(page: Any) -> str:
    return str(page.evaluate("fetch('/api/runs').then((answer) => answer.json()).then((told) => told.root)"))


def test_group_view(watched: Watched, root: Path) -> None:
    page = watched.open("#/groups?run=one&step=1")
    page.wait_for_selector(".group")
    rows = [json.loads(line) for path in (root / "one" / "groups").glob("*.jsonl") for line in path.open()]
    first = [row for row in rows if row["step"] == 1]
    card = page.locator(".group").first
    asked = card.locator(".prompt").inner_text()
    (row,) = [row for row in first if row["messages"][-1]["content"] == asked]
    assert card.locator(".answer .said").all_inner_texts() == [answer["text"] for answer in row["completions"]]
    bars = [text.replace("−", "-") for text in card.locator(".advantage .num").all_inner_texts()]
    assert [float(text) for text in bars] == pytest.approx([a["advantage"] for a in row["completions"]], abs=0.006)
    verdicts = [text.split()[-1] for text in card.locator(".answer header .tag").all_inner_texts()]
    assert verdicts == [answer["verdict"] for answer in row["completions"]]
    picture = "document.querySelector('.picker canvas').toDataURL()"
    drawn = page.evaluate(picture)
    page.keyboard.press("t")
    until(page, f"{picture} !== {json.dumps(drawn)}")  # charts are drawn in the new colours
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('step=2')")
    until(page, "document.querySelector('.picker output').textContent === 'step 2'")
    page.get_by_role("button", name="all right").click()
    until(page, "location.hash.includes('show=all_right')")
    page.get_by_role("button", name="all", exact=True).click()
    page.get_by_role("link", name="through the steps").first.click()
    page.wait_for_selector(".seen")
    page.locator(".seen a").first.click()
    page.wait_for_selector(".group")
    assert "prompt=" in page.url
    page.go_back()
    page.wait_for_selector(".seen")
    watched.check()


def test_token_colours(watched: Watched) -> None:
    page = watched.open("#/groups?run=one&step=1&sort=id&order=asc&tokens=logprob")
    page.wait_for_selector(".token")
    asked = "fetch('/api/groups?run=one&step=1&sort=id&order=asc').then((answer) => answer.json())"
    text = page.evaluate(f"{asked}.then((told) => told.groups[0].answers[0].text)")
    shown = "".join(page.locator(".tokens").first.locator("span.token").all_text_contents())
    assert shown.startswith(text), "the tokens are not those of the answer"
    assert re.match(r"log p [−-]?\d", page.locator(".token").first.get_attribute("title"))
    watched.check()


def test_hostile_answer_is_text(watched: Watched) -> None:
    page = watched.open("#/groups?run=hostile&step=1&sort=id&order=asc")
    page.wait_for_selector(".group")
    told = page.locator(".group").filter(has_text="window.harmed").first
    texts = told.locator(".answer .said").all_text_contents()
    assert texts[0] == HOSTILE["script"]
    assert texts[1] == "␛[31mred␛[0m and a bell ␇"
    assert texts[2] == "abc ⟨U+202E⟩gnp.exe⟨U+202C⟩ ⟨U+2066⟩left⟨U+2069⟩"
    assert len(texts[3]) == 2000
    told.get_by_role("button", name="show all").click()
    until(page, "[...document.querySelectorAll('.said')].some((each) => each.textContent.length > 150000)")
    assert wide(page) <= 0
    for view in ("runs", "run", "findings", "recipe", "resources"):
        page.goto(watched.address + VIEWS[view].replace("one", "hostile"))
        page.wait_for_selector("h1")
        page.wait_for_timeout(200)
        assert page.locator("main img, main script, main b:has-text('bold')").count() == 0, view
        assert "\x1b" not in page.inner_text("main") and "\u202e" not in page.inner_text("main"), view
        assert wide(page) <= 0, view
    page.goto(watched.address + VIEWS["recipe"].replace("one", "hostile"))
    page.get_by_text("<script>window.harmed = 1</script>").first.wait_for()
    watched.check()


def test_held_out_answers(watched: Watched, root: Path) -> None:
    rows = {}
    for step in (0, 6):  # one gained, one lost
        path = root / "one" / "held_out" / f"step-{step:06d}.jsonl"
        rows[step] = [json.loads(line) for line in path.read_text().splitlines()]
        for row, right in zip(rows[step], (step == 6, step == 0), strict=False):
            row |= {"verdict": "right" if right else "wrong", "reward": float(right)}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[step]))
    page = watched.open("#/answers?run=one")
    page.wait_for_selector(".changed")
    assert "1 gained, 1 lost: may be chance" in page.inner_text("main")
    page.get_by_role("button", name="lost").click()
    until(page, "document.querySelectorAll('.changed').length === 1")
    card = page.inner_text(".changed")
    texts = [row["text"] for row in (rows[0][1], rows[6][1])]
    assert all(text.strip() in card for text in texts), (texts, card)
    assert re.search(r"before training.*right.*after step 6.*wrong", card, re.DOTALL), card
    page.keyboard.press("/")
    page.keyboard.type("no such words")
    until(page, "document.querySelectorAll('.changed').length === 0")
    assert "No such problem" in page.inner_text("main")
    again = watched.open("#/answers?run=one&show=gained")
    again.wait_for_selector(".changed")
    again.keyboard.press("ArrowLeft")
    until(again, "location.hash.includes('after=3')")
    hostile = watched.open("#/answers?run=hostile")
    hostile.wait_for_selector(".changed")
    assert "<script>window.harmed" in hostile.inner_text(".changed") and "⟨" not in hostile.inner_text("h1")
    watched.check()


def test_compare_two_runs(watched: Watched) -> None:
    page = watched.open("#/runs")
    page.get_by_role("checkbox", name="Select one").check()
    page.get_by_role("checkbox", name="Select two").check()
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector("table.side")
    table = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("table.side tbody tr:has(td.num)").all()
    }
    assert table["beta"] == ["0.01", "0.05"] and table["seed"] == ["0", "1"]
    assert table["steps"] == ["6", "6"] and "max_steps" not in table
    page.get_by_role("link", name="Overlay curves").click()
    page.wait_for_selector(".legend")
    assert page.locator(".legend li").count() == 2
    dashes = page.locator(".legend line").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2, "lines are told apart by their hue alone"
    page.go_back()
    page.wait_for_selector("table.side")
    watched.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_view_fits(watched: Watched, width: int, scheme: str) -> None:
    page = watched.open(width=width, color_scheme=scheme)
    for name, view in VIEWS.items():
        page.goto(watched.address + view)
        page.wait_for_selector("h1")
        until(page, "!document.querySelector('.waiting, [aria-busy]')")
        assert wide(page) <= 0, f"{name} scrolls sideways at {width}"
        assert not page.get_by_text("Something went wrong").count(), name
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    watched.check()


def test_keyboard_only(watched: Watched) -> None:
    page = watched.open("#/runs")
    page.wait_for_selector("table.runs")
    page.keyboard.press("/")
    page.keyboard.type("two")
    assert page.locator("table.runs tbody tr").count() == 1
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('td.name') !== null"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus cannot be seen"
    page.keyboard.press("Enter")
    page.wait_for_selector(".tabs")
    page.locator("article[data-signal=reward_mean] canvas").nth(1).focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("article[data-signal=success_rate] .read small")
    assert page.inner_text("article[data-signal=success_rate] .read small") == "step 5"
    page.keyboard.press("2")
    page.wait_for_selector(".picker")
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('.picker output').textContent === 'step 5'")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_selector("table.runs")
    watched.check()


def test_sort_and_filter_runs(watched: Watched) -> None:
    page = watched.open("#/runs")
    page.wait_for_selector("table.runs")
    names = page.locator("td.name a")
    page.locator("th.name button").click()
    up = names.all_inner_texts()
    page.locator("th.name button").click()
    assert up == sorted(up) and names.all_inner_texts() == up[::-1] and len(up) >= 3
    page.get_by_role("checkbox", name=re.compile("of sweeps")).check()
    assert names.count() == len(up) + 4
    page.get_by_label("Status").select_option("failed")
    assert page.get_by_text("No run matches this filter.").is_visible()
    assert "status=failed" in page.url
    watched.check()


def test_sweep_view(watched: Watched) -> None:
    page = watched.open(VIEWS["sweep"])
    heat = page.locator("table.heat td")
    heat.first.wait_for()
    assert [text.split()[0] for text in heat.all_inner_texts()] == ["0.5", "0.7", "0.6", "0.8"]
    assert page.locator("polyline.thread").count() == 4
    assert "it is the best by far" in page.inner_text(".notice.pick")
    page.get_by_label("Figure").select_option("kl_mean")
    assert [text.split()[0] for text in heat.all_inner_texts()] == ["0", "0.02", "0.01", "0.03"]
    watched.check()


def test_deleted_run_notice(watched: Watched, root: Path) -> None:
    shutil.copytree(root / "one", root / "doomed")
    page = watched.open("#/run?run=doomed")
    page.wait_for_selector("article[data-signal=reward_mean]")
    page.wait_for_timeout(500)
    shutil.rmtree(root / "doomed")
    page.wait_for_selector(".gone")
    assert page.locator("article[data-signal=reward_mean]").is_visible(), "what was read stays"
    page.reload()
    page.get_by_text("Not found").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.wait_for_selector("table.runs")
    watched.check(NO_LONGER)


def test_empty_folder(browser: Any, tmp_path: Path) -> None:
    with dash(tmp_path) as address:
        watched = Watched(browser, address)
        page = watched.open()
        page.get_by_text("No runs yet").wait_for()
        assert "outdo train" in page.inner_text("main")
        watched.check()
        page.close()


def test_server_gone(browser: Any, root: Path) -> None:
    with dash(root) as address:
        watched = Watched(browser, address)
        page = watched.open()
        page.wait_for_selector("table.runs")
    page.get_by_text("waiting for the server").wait_for()
    assert page.locator("table.runs tbody tr").count() >= 3, "what was read stays"
    page.locator("td.name a").first.click()
    page.get_by_text("Is outdo dash still running?").wait_for()
    watched.check(("net::ERR",))
    page.close()


def test_token_required(browser: Any, root: Path) -> None:
    with dash(root, "--token", "sesame-0123456789") as address:
        bare = address.partition("?")[0]
        watched = Watched(browser, bare)
        page = watched.open()
        page.get_by_text("token").first.wait_for()
        assert page.locator("table.runs").count() == 0
        page.goto(f"{bare}?token=sesame-0123456789")
        page.wait_for_selector("table.runs")
        assert "sesame" not in page.url, "the token stays in the history"
        page.goto(f"{bare}#/run?run=one")
        page.wait_for_selector("article[data-signal=reward_mean]")
        assert "sesame" not in page.evaluate("document.cookie"), "scripts can read the token"
        watched.check(("401", "403"))
        page.close()


def test_formatting(watched: Watched) -> None:
    page = watched.open("#/runs")
    asked = {
        "scale.short(0.957)": "0.957",
        "scale.short(12345)": "12.3k",
        "scale.short(999600)": "1M",
        "scale.short(0.00012)": "1.2e−4",
        "scale.short(null)": "–",
        "scale.clock(130)": "2 min 10 s",
        "scale.clock(7260)": "2 h 1 min",
        "scale.smoothed([1, null, 0, 0], 0.5)": [1, None, pytest.approx(1 / 3), pytest.approx(1 / 7)],
        "scale.ticks(0, 120, 4, 'steps')": [0, 50, 100],
        "scale.nearest([0, 10, 20], 14)": 1,
        "format.signed(-0.7749)": "−0.77",
        "format.signed(0.001)": "0.00",
        "format.typed(0.1 + 0.2)": "0.3",
        "text.visible('a\\u0000\\u200b\\u00e9\\n')": "a␀⟨U+200B⟩é\n",
        "text.visible('\\ud800')": "⟨U+D800⟩",
        "text.visible('\\u{1f600}')": "\U0001f600",
    }
    load = "Promise.all(['scale', 'format', 'text'].map((name) => import(`/static/${name}.js`)))"
    for expression, wanted in asked.items():
        found = page.evaluate(f"{load}.then(([scale, format, text]) => {expression})")
        assert found == wanted, expression
    watched.check()
