"""No control character of a stranger reaches the terminal, through whatever writes to it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table

from outdo.untrusted.terminal import PrintableConsole, PrintableStream, printable
from support.folders import append, make_run

Outdo = Callable[..., subprocess.CompletedProcess[str]]
CONTROLS = [chr(c) for c in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(c) not in "\n\t"]
MARKS = [
    "\u202a",
    "\u202e",
    "\u2066",
    "\u2069",
    "\u200e",
    "\u200f",
    "\u061c",
    "\u2028",
    "\u2029",
    "\U000e0041",
    "\ufeff",
]
ATTACK = "\x1b[2J\x1b]8;;http://e.vil\x07l\x1b]0;t\x9b31m\u202e\r\x08\x7f"


def is_clean(text: str) -> bool:
    return not any(c in text for c in (*CONTROLS, *MARKS))


def test_every_control_is_made_visible() -> None:
    for one in (*CONTROLS, *MARKS, "\ud800"):
        shown = printable(f"a{one}b")
        assert is_clean(shown) and shown[0] == "a" and shown[-1] == "b" and len(shown) > 2, repr(one)
    for text in ("plain", "é 漢字 😀 a\u0301", "two\nlines\t", "👩\u200d👩"):
        assert printable(text) == text
    assert printable(printable(ATTACK)) == printable(ATTACK)


def test_console_text_is_text() -> None:
    """In tables, titles, with a style, and in a live display; brackets are no markup and links no links."""
    out = io.StringIO()
    console = PrintableConsole(file=out, width=200)
    table = Table("name", ATTACK, title=ATTACK)
    table.add_row(f"[link=http://e.vil]x[/link]{ATTACK}", "[/never opened] :smile:")
    console.print(table)
    console.print(f"{ATTACK} [red]", style="bold", soft_wrap=True)
    with Live(ATTACK, console=console, refresh_per_second=1):
        pass
    shown = out.getvalue()
    assert is_clean(shown) and "[link=http://e.vil]x[/link]" in shown and ":smile:" in shown and "[red]" in shown


def test_console_has_its_own_codes() -> None:
    out = io.StringIO()
    console = PrintableConsole(file=PrintableStream(out), force_terminal=True, color_system="standard", width=80)
    console.print(f"a{ATTACK}", style="bold red")
    assert out.getvalue().startswith("\x1b[1;31ma␛[2J") and out.getvalue().count("\x1b") == 2


def test_print_warnings_and_logs(tmp_path: Path) -> None:
    code = (
        "import sys, warnings, logging\n"
        "from outdo.untrusted.terminal import make_output_printable\n"
        "make_output_printable(); make_output_printable()\n"
        f"text = {ATTACK!r}\n"
        "print('one', text); sys.stdout.writelines([text]); warnings.warn(text)\n"
        "logging.error(text); print(text, file=sys.stderr); raise ValueError(text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=tmp_path)
    out, err = (each.decode() for each in (done.stdout, done.stderr))
    assert done.returncode == 1 and is_clean(out) and is_clean(err)
    assert out.count("␛[2J") == 2 and err.count("␛[2J") >= 4


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Two runs with escape codes in all their texts."""
    for name in ("one", "two"):
        folder = tmp_path / name
        make_run(folder, steps=6)
        manifest = json.loads((folder / "run.json").read_text())
        manifest["recipe"] |= {"run_name": ATTACK + name, "system_prompt": ATTACK, "dataset_name": ATTACK + name}
        manifest |= {"why": ATTACK, "status": "failed", "device": ATTACK, "kind": "grpo"}
        (folder / "run.json").write_text(json.dumps(manifest))
        append(folder / "metrics.jsonl", {"step": 7, "reward_mean": 0.1, f"reward/{ATTACK}": 1.0, ATTACK: 2.0})
        append(
            folder / "evals.jsonl", {"step": 6, "split": ATTACK, "n": 4, "success_rate": 0.5, "low": 0.1, "high": 0.9}
        )
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "one", "two"),
        ("compare", "one", "--answers"),
        ("doctor", "one"),
        ("plot", "one", "--signals", f"x{ATTACK}"),
        ("eval", "one"),
        ("train", "--resume", "one"),
        ("train", f"x{ATTACK}=1"),
        ("chat", f"./x{ATTACK}"),
        (f"x{ATTACK}",),
        ("grade", "--reward", f"x{ATTACK}", "none.jsonl"),
        ("audit", f"x{ATTACK}"),
    ],
    ids=lambda words: " ".join(words[:2])[:12] if words[0].isalpha() else "unknown",
)
def test_commands_on_hostile_text(outdo: Outdo, hostile: Path, words: tuple[str, ...]) -> None:
    done = outdo(*words)
    assert is_clean(done.stdout) and is_clean(done.stderr), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
