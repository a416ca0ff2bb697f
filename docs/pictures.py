"""Makes docs/images/dash-*.png: trains short runs, opens them in the dashboard and takes pictures (`make pictures`).

`python docs/pictures.py FOLDER` keeps the runs there and uses those that exist, so that pictures can be taken again. It
needs chromium and the development packages (playwright, Pillow).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import picture_shop
from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
WIDTH, SCALE = 1280, 1.25
NARROW, GAP = 400, 24
SHORT = ["eval_size=60", "eval_samples=4", "eval_steps=10", "device=cpu"]
RUNS = {  # name -> the words of `outdo`; the second has a rate that is far too high, for the doctor to find
    "sums": ["train", *SHORT, "max_steps=40", "price_per_hour=0.5"],
    "too-fast": ["train", *SHORT, "max_steps=20", "learning_rate=3e-3", "beta=0.01", "eval_steps=0", "seed=1"],
}
SHOP = [  # turns and calls, with picture_shop.py as shop.py
    *("train", "model_name_or_path=model", "dataset_name=shop.py:cheaper", "environment_factory=shop.py:Shop"),
    *("sft_steps=260", "sft_batch_size=16", "sft_learning_rate=2e-3", "max_completion_length=360", "max_turns=4"),
    *("max_steps=8", "per_device_train_batch_size=64"),
    *("eval_size=30", "eval_samples=0", "eval_steps=0", "device=cpu"),
]
SWEEP = ["sweep", "num_generations=4,8", "beta=0,0.05", "max_steps=6", "sft_steps=300", *SHORT, "eval_steps=0"]
VIEWS = {  # picture -> view, height, and what to wait for
    "runs": ("#/runs", 700, "table.runs"),
    "run": ("#/run?run=sums", 900, "article[data-signal=reward_mean] canvas"),
    "groups": ("#/groups?run=sums&step=3", 820, ".group"),
    "turns": ("#/groups?run=shop&step=8", 980, ".group >> nth=1"),
    "answers": ("#/answers?run=sums", 860, ".changed"),
    "findings": ("#/findings?run=too-fast", 560, ".finding-list > *"),
    "resources": ("#/resources?run=sums", 800, ".columns"),
    "sweep": ("#/sweep?sweep=swept", 860, ".heat"),
}
SCROLLED = {"turns": ".tools"}  # picture -> what is at its top
NARROW_VIEWS = ("#/runs", "#/run?run=sums", "#/answers?run=sums")


def train_runs(root: Path) -> None:
    for name, words in RUNS.items():
        if not (root / name / "report.html").exists():
            shutil.rmtree(root / name, ignore_errors=True)
            _outdo([*words, f"output_dir={root / name}"])
    train_shop(root)
    _outdo([*SWEEP, "--out", str(root / "swept")])  # resumes, and has nothing to do where it is done


def train_shop(root: Path) -> None:
    if not (root / "shop" / "report.html").exists():
        shutil.rmtree(root / "shop", ignore_errors=True)
        shutil.copy(Path(picture_shop.__file__), root / "shop.py")
        picture_shop.save_model(root / "model")
        _outdo([*SHOP, "output_dir=shop"], root)


def _outdo(words: list[str], folder: Path | None = None) -> None:
    print("outdo", *words, flush=True)
    done = subprocess.run([sys.executable, "-m", "outdo", *words], check=False, cwd=folder)
    if done.returncode not in (0, 3):  # 3: halted by a guard
        sys.exit(f"outdo {' '.join(words)} failed with status {done.returncode}")


@contextmanager
def dashboard(root: Path) -> Iterator[str]:
    """The address of `outdo dash` over the runs."""
    command = [sys.executable, "-m", "outdo", "dash", str(root), "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        found = next(match for line in process.stdout if (match := re.search(r"http://\S+", line)))
        yield found.group()
    finally:
        process.terminate()
        process.wait(10)


def take(
    browser: Any, address: str, view: str, width: int, height: int, ready: str = "main", scroll: str = ""
) -> Image.Image:
    size = {"width": width, "height": height}
    page = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme="light")
    page.goto(address + view)
    page.wait_for_selector(ready)
    if scroll:
        page.locator(scroll).first.evaluate("(element) => element.scrollIntoView()")
    page.wait_for_timeout(1000)  # what is loaded after the first view
    picture = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return picture.convert("RGB")


def save(picture: Image.Image, name: str) -> None:
    """With a palette: a page has few colours."""
    path = IMAGES / f"dash-{name}.png"
    picture.quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} ({path.stat().st_size >> 10} KiB)", flush=True)


def main(root: Path) -> None:
    train_runs(root)
    path = next(found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name)))
    with dashboard(root) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (view, height, ready) in VIEWS.items():
            save(take(browser, address, view, WIDTH, height, ready, SCROLLED.get(name, "")), name)
        parts = [take(browser, address, view, NARROW, 860) for view in NARROW_VIEWS]
        side = Image.new("RGB", (sum(part.width + GAP for part in parts) - GAP, parts[0].height), "white")
        for i, part in enumerate(parts):
            side.paste(part, (i * (part.width + GAP), 0))
        save(side, "narrow")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="outdo-pictures-") as folder:
            main(Path(folder))
