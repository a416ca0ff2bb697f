"""Answers of several turns as a person sees them: a real chromium, a real server, a run that the writer wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outdo.runs.held_out import held_out_answers
from outdo.runs.writer import RunWriter
from support.browser import HOSTILE, Watched, chromium, dash, until
from support.folders import RECIPE, group, numbers, played

pytestmark = pytest.mark.slow
ODD = HOSTILE["script"] + HOSTILE["terminal"] + HOSTILE["turned"]
SHOWN = HOSTILE["script"] + "␛[31mred␛[0m and a bell ␇abc ⟨U+202E⟩gnp.exe⟨U+202C⟩ ⟨U+2066⟩left⟨U+2069⟩"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    chromium()
    root: Path = tmp_path_factory.mktemp("runs")
    run = RunWriter.create(root / "turns", RECIPE, {"kind": "grpo"})
    played_group = played("12+30")
    own = [[text, -3.0 if text == "b" else -0.01, 1.0] for text in (*"abcdefghi", "done", "<|end|>", "", "")]
    spelled = [[*own[:9], *([text, None, None] for text in "=42"), *own[9:]] for _ in range(2)]
    run.record_step(1, numbers(1), [played_group, group("1+1", ["2", "3"], [1.0, 0.0])], [spelled])
    run.record_step(2, numbers(2), [played("odd", ODD, ODD, ODD), played("long", final="x" * 5000)])
    for step in (0, 2):
        run.record_answers(step, "test", held_out_answers([played("12+30"), played("odd", ODD, ODD, ODD)], []))
        run.record_eval({"step": step, "split": "test", "n": 2, "success_rate": 1.0, "low": 0.3, "high": 1.0})
    run.finish("done")
    run.close()
    with dash(root) as address:
        yield address


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:
    watched = Watched(browser, address)
    yield watched
    watched.check()
    for page in watched.pages:
        page.close()


def card(page: Any, text: str) -> Any:
    page.wait_for_selector(".group")
    return page.locator(".group").filter(has_text=text).first


def style(element: Any, name: str) -> str:
    return str(element.evaluate(f"(element) => getComputedStyle(element).{name}"))


def test_bubbles(watched: Watched) -> None:
    page = watched.open("#/groups?run=turns&step=1&sort=id&order=asc")
    first, second = card(page, "12+30").locator(".answer").all()
    own, context = first.locator(".own"), first.locator(".context")
    assert own.count() == 2 and context.count() == 1
    assert own.nth(0).locator(".call b").all_inner_texts() == ["add", "42"]
    assert own.nth(0).locator(".call > .said").all_inner_texts() == [
        'add(a=12, note="x", …)',
        "b = 30\nprint('Well.')",
        '42(a="Well.")',
    ]
    assert own.nth(0).locator(":scope > .said").inner_text() == "Well." and "9 tokens" in own.nth(0).inner_text()
    assert own.nth(1).locator(".said").inner_text() == "It is 42"
    assert context.locator(".said").all_inner_texts() == ["42", "Error: 42"]
    assert [row.locator(".tag").count() for row in context.locator(".result").all()] == [0, 1]
    assert "3 tokens together" in context.inner_text()
    assert "2 turns · 2 calls, 1 failed · 13 tokens + 3 inserted · stop" in first.locator("footer").inner_text()
    assert second.locator(".own .said").inner_text() == "Well. <<6*7=42>> done"
    assert second.locator(".inserted").all_inner_texts() == ["42>>"]
    assert second.locator(".start .said").inner_text() == "Count: Well." and first.locator(".start").count() == 0
    legend = page.locator(".turns-legend")
    assert "trained on" in legend.inner_text() and "no gradient" in legend.inner_text()
    for name in ("borderTopStyle", "backgroundColor"):
        kinds = [style(own.first, name), style(context.first, name)]
        assert kinds[0] != kinds[1], f"the two kinds have the same {name}"
        assert kinds == [style(legend.locator(f"i.{kind}"), name) for kind in ("own", "context")]
    other = card(page, "1+1")
    assert other.locator(".turns").count() == 0 and other.locator(".answer .said").all_inner_texts() == ["2", "3"]


def test_tokens_of_turns(watched: Watched) -> None:
    """Coloured tokens stay in the bubble of their turn."""
    page = watched.open("#/groups?run=turns&step=1&sort=id&order=asc&tokens=logprob")
    page.wait_for_selector(".own .token")
    answer = card(page, "12+30").locator(".answer").first
    assert answer.locator(".own .tokens").all_inner_texts() == ["abcdefghi", "done<|end|>"]
    assert answer.locator(".context .tokens").all_inner_texts() == ["=42"]
    assert answer.locator(".token.less").all_inner_texts() == ["b"]
    assert answer.locator(".context .tag").count() == 1, "the call that failed is still marked"


def test_hostile_turns_are_text(watched: Watched) -> None:
    for width in (1280, 400):
        page = watched.open("#/groups?run=turns&step=2&sort=id&order=asc", width)
        answer = card(page, "odd").locator(".answer").first
        assert answer.locator(".own > .said").first.text_content() == SHOWN
        assert answer.locator(".context .said").all_text_contents() == [SHOWN, f"Error: {SHOWN}"]
        assert answer.locator(".who b").nth(2).text_content() == SHOWN[:200], "the name of a tool"
        assert page.locator("main img, main script, main b:text-is('bold')").count() == 0
        assert "\x1b" not in page.inner_text("main") and "\u202e" not in page.inner_text("main")
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_held_out_answers(watched: Watched) -> None:
    page = watched.open("#/answers?run=turns")
    page.wait_for_selector(".changed")
    sides = page.locator(".changed").filter(has_text="12+30").locator(".answer").all()
    assert [side.locator(".own").count() for side in sides] == [2, 2]
    assert sides[0].locator(".context .said").all_inner_texts() == ["42", "Error: 42"]
    assert "2 turns · 2 calls, 1 failed · 13 tokens + 3 inserted" in sides[1].locator("footer").inner_text()
    assert page.locator(".turns-legend").count() == 1
    odd = page.locator(".changed").filter(has_text="What is odd").locator(".answer").first
    assert odd.locator(".own > .said").first.text_content() == SHOWN


def test_long_turns_are_cut(watched: Watched) -> None:
    page = watched.open("#/groups?run=turns&step=2&sort=id&order=asc")
    answer = card(page, "long").locator(".answer").first
    last = answer.locator(".own").nth(1).locator(".said")
    assert len(last.inner_text()) == 2000
    answer.get_by_role("button", name="show all").click()
    until(page, "[...document.querySelectorAll('.own .said')].some((each) => each.textContent.length === 5000)")
    assert answer.locator(".show-all").count() == 0 and answer.locator(".context").count() == 1
