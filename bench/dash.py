"""How fast the dashboard is: `python -m bench.dash`.

Makes the folder of a run of 20,000 steps with 500,000 answers and 30 signals, and asks a server for what a browser
asks for: the first view from a cold server, groups, the prompts that gained most; then its memory. Appends rows and
times how soon a viewer has them. Trains the default for some steps with 50 viewers and without, in turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.machine import facts, line

STEPS, PROMPTS, ANSWERS = 20_000, 5, 5  # 25 answers a step
ASKED = 2_000  # different prompts
SIGNALS = 30
VIEWERS = 50
FIRST_VIEW = (  # what the page of a run asks for at once
    ("run", {}),
    ("metrics", {"points": 1000}),
    ("evals", {}),
    ("findings", {}),
    ("signals", None),
    ("steps", {}),
    ("groups", {"step": STEPS - 1}),
)
WANTED = {
    "first view, cold server (s)": 1.5,
    "a group (s)": 0.2,
    "a step's groups (s)": 0.2,
    "server memory after everything (MB)": 300,
    "a new step at the viewer (s)": 1.0,
    "training slower by, 50 viewers (%)": 2.0,
}
WORDS = ("so", "we", "add", "the", "tens", "and", "then", "carry", "one", "to", "the", "next", "is", "fifteen")


def make_run(folder: Path, steps: int = STEPS) -> None:
    """As run.py writes it, with made-up curves and texts."""
    rng = random.Random(0)
    (folder / "groups").mkdir(parents=True)
    recipe = {"dataset_name": "arithmetic", "model_name_or_path": "tiny", "max_steps": steps, "seed": 0}
    recipe |= {"num_generations": ANSWERS, "learning_rate": 1e-4, "beta": 0.01, "temperature": 1.0, "kl_limit": 0.1}
    manifest = {"status": "done", "why": "", "started": "2026-01-01T00:00:00+0000", "recipe": recipe, "kind": "grpo"}
    (folder / "run.json").write_text(json.dumps(manifest | {"device": "cpu", "parameters": 1}))
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(40, 100))) for _ in range(4000)]
    metrics = (folder / "metrics.jsonl").open("w")
    for first in range(0, steps, 100):
        rows = []
        for step in range(first, min(first + 100, steps)):
            metrics.write(json.dumps(_signals(rng, step, steps)) + "\n")
            rows += [_group(rng, step, texts, step / steps) for _ in range(PROMPTS)]
        (folder / "groups" / f"steps-{first:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics.close()
    with (folder / "evals.jsonl").open("w") as file:
        for step in range(0, steps + 1, max(1, steps // 40)):
            rate = round(0.2 + 0.7 * step / steps, 3)
            told = {"step": step, "split": "test", "n": 200, "success_rate": rate, "low": rate - 0.06}
            file.write(json.dumps(told | {"high": rate + 0.06, "pass@1": rate, "verdicts": "01" * 100}) + "\n")


def _signals(rng: random.Random, step: int, steps: int) -> dict[str, Any]:
    part = step / steps
    success = round(min(1.0, max(0.0, 0.2 + 0.7 * part + rng.gauss(0, 0.08))), 6)
    row = {"step": step, "reward_mean": success, "reward_std": 0.4, "success_rate": success}
    row |= {"kl_mean": round(0.04 * part + abs(rng.gauss(0, 0.002)), 6), "entropy_mean": round(0.9 - 0.4 * part, 6)}
    row |= {"group_diversity": round(0.9 - 0.2 * part, 6), "informative": round(0.5 + rng.gauss(0, 0.1), 6)}
    row |= {"all_right": 0.2, "all_wrong": 0.2, "len_mean": 80.0, "truncated": 0.0, "grader_broken": 0.0}
    row |= {"tokens": 2000, "tokens_per_s": round(rng.gauss(4000, 300), 2), "time/step": 0.5, "time/rollout": 0.3}
    row |= {"time/update": 0.15, "time/grade": 0.02, "grad_norm": round(abs(rng.gauss(0.5, 0.1)), 6), "lr": 1e-4}
    more = SIGNALS + 1 - len(row)
    return row | {f"reward/part{i}": round(rng.random(), 6) for i in range(more)}


def _group(rng: random.Random, step: int, texts: list[str], skill: float) -> dict[str, Any]:
    prompt = f"train-{rng.randrange(ASKED)}"
    answers = []
    for _ in range(ANSWERS):
        right = rng.random() < 0.2 + 0.7 * skill
        told = {"text": f"<think>{rng.choice(texts)}</think><answer>{rng.randrange(99)}</answer>", "num_tokens": 80}
        told |= {"finish": "stop", "reward": float(right), "verdict": "right" if right else "wrong"}
        told |= {"parts": {"numeric": float(right)}, "reason": "" if right else "answered another", "advantage": 0.5}
        answers.append(told)
    head = {"step": step, "prompt_id": prompt, "messages": [{"role": "user", "content": f"What is {prompt}?"}]}
    return head | {"answer": "12", "version": step, "completions": answers}


class Server:
    """`outdo dash` in a process of its own."""

    def __init__(self, root: Path) -> None:
        words = [sys.executable, "-m", "outdo", "dash", str(root), "--port", "0", "--no-open"]
        start = time.perf_counter()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found, "the server did not say where it is"
        self.port = int(found[1])
        self.get("/api/openapi.json")
        self.started = time.perf_counter() - start

    def get(self, path: str, **query: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path + ("?" + urlencode(query) if query else ""))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, (path, query, answer.status, body[:200])
        return json.loads(body)

    def memory(self, name: str = "VmRSS") -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def cpu(self) -> float:
        """Seconds of a core that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def timed(server: Server, path: str, **query: Any) -> float:
    start = time.perf_counter()
    server.get(path, **query)
    return time.perf_counter() - start


def first_view(server: Server, run: str) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(len(FIRST_VIEW)) as pool:
        asked = [
            pool.submit(server.get, f"/api/{name}", **({} if query is None else {"run": run, **query}))
            for name, query in FIRST_VIEW
        ]
        for one in asked:
            one.result()
    return time.perf_counter() - start


def reading(root: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Everything that is read of a finished run."""
    views, starts, used = [], [], []
    for _ in range(rounds):
        server = Server(root)
        starts.append(server.started)
        before = server.cpu()
        views.append(first_view(server, "big"))
        used.append(server.cpu() - before)
        if len(views) < rounds:
            server.close()
    rng = random.Random(1)
    listed, single = [], []
    for _ in range(40):
        step = rng.randrange(steps)
        listed.append(timed(server, "/api/groups", run="big", step=step))
        prompt = server.get("/api/groups", run="big", step=step)["groups"][0]["prompt_id"]
        single.append(timed(server, "/api/group", run="big", step=step, prompt=prompt))
    found = {
        "process start until it answers (s)": statistics.median(starts),
        "first view, cold server (s)": statistics.median(views),
        "of that, the server's own work (s of a core)": statistics.median(used),
        "first view again (s)": statistics.median(first_view(server, "big") for _ in range(rounds)),
        "a step's groups (s)": statistics.median(listed),
        "a group (s)": statistics.median(single),
        "a group, the slowest of 40 (s)": max(single),
        "most improved, first time: all of groups/ is read (s)": timed(server, "/api/improved", run="big"),
        "most improved, again (s)": timed(server, "/api/improved", run="big"),
        "a prompt through all steps (s)": timed(server, "/api/prompt", run="big", prompt="train-7"),
        "a zoomed curve (s)": timed(server, "/api/metrics", run="big", first=steps // 3, last=steps // 2),
        "compare with itself alone (s)": timed(server, "/api/compare", run="big"),
        "server memory after everything (MB)": server.memory(),
        "server memory at its highest (MB)": server.memory("VmHWM"),
    }
    server.close()
    return found


def events(port: int, run: str) -> Iterator[tuple[str, Any]]:
    """Server-sent events, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/api/live?{urlencode({'run': run})}")
    answer = connection.getresponse()
    kind = ""
    while raw := answer.readline():
        text = raw.decode().rstrip("\n")
        if text.startswith("event: "):
            kind = text[7:]
        elif text.startswith("data: "):
            yield kind, json.loads(text[6:])


def latency(root: Path, steps: int, count: int = 20) -> dict[str, Any]:
    """From a row's being written until a viewer has it."""
    server = Server(root)
    written: dict[int, float] = {}
    waits: list[float] = []
    ready = threading.Event()

    def listen() -> None:
        for kind, data in events(server.port, "big"):
            ready.set()
            if kind == "metrics":
                waits.extend(time.perf_counter() - written[step] for step in data["steps"])
                if len(waits) >= count:
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    ready.wait(30)
    rng = random.Random(2)
    path = root / "big" / "metrics.jsonl"
    size = path.stat().st_size
    for step in range(steps, steps + count):
        time.sleep(rng.uniform(0.2, 0.6))
        with path.open("a") as file:
            written[step] = time.perf_counter()
            file.write(json.dumps(_signals(rng, step, steps)) + "\n")
    thread.join(10)
    server.close()
    os.truncate(path, size)
    return {"a new step at the viewer (s)": statistics.median(waits), "the slowest of 20 (s)": max(waits)}


@contextmanager
def viewers(port: int, count: int) -> Iterator[list[int]]:
    """So many connections that read whatever comes; how many events each had."""
    had = [0] * count
    connections = []

    def listen(index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connections.append(connection)
        try:
            connection.request("GET", "/api/live?run=live")
            answer = connection.getresponse()
            while text := answer.readline():
                had[index] += text.startswith(b"event: metrics")
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return

    threads = [threading.Thread(target=listen, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield had
    finally:
        for connection in connections:
            if connection.sock is not None:
                connection.sock.shutdown(2)


def share(root: Path, seconds: float = 12.0) -> dict[str, Any]:
    """What 50 viewers cost the server at three steps a second, whatever else the machine does."""
    run = root / "live"
    (run / "groups").mkdir(parents=True)
    manifest = {"status": "running", "recipe": {"max_steps": 1000}, "kind": "grpo"}
    (run / "run.json").write_text(json.dumps(manifest))
    metrics = run / "metrics.jsonl"
    metrics.touch()
    server, rng = Server(root), random.Random(3)
    with viewers(server.port, VIEWERS) as had:
        time.sleep(2.0)
        before, start, step = server.cpu(), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            with metrics.open("a") as file:
                file.write(json.dumps(_signals(rng, step, 1000)) + "\n")
            step += 1
            time.sleep(0.3)
        used = (server.cpu() - before) / (time.perf_counter() - start)
        assert min(had) > 0, "a viewer was told nothing"
    server.close()
    return {"the server's share of one core, 50 viewers, 3 steps a second (%)": 100 * used}


def beside_training(root: Path, turns: int, length: int) -> dict[str, Any]:
    """A real run, with and without viewers by turns of so many steps. The server has a lower priority, as it has with
    `outdo train --dash`; the viewers' own reading is in this process, at the lowest."""
    run = root / "live"
    words = [sys.executable, "-m", "outdo", "train", f"output_dir={run}", f"max_steps={(turns + 1) * length}"]
    words += ["sft_steps=100", "eval_size=4", "eval_samples=0", "kl_limit=null", "save_steps=0", "doctor=quiet"]
    server = Server(root)
    os.setpriority(os.PRIO_PROCESS, server.process.pid, 10)
    training = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    took: list[float] = []  # by turn, watched or not
    used, wall, told = 0.0, 0.0, 0
    try:
        done = _wait_for(run, training, length)
        for turn in range(turns):
            watched = turn % 2 == 1
            with viewers(server.port, VIEWERS if watched else 0) as had:
                before, start = server.cpu(), time.perf_counter()
                goal = done + length
                done = _wait_for(run, training, goal)
                if watched:
                    used, wall = used + server.cpu() - before, wall + time.perf_counter() - start
                    told += sum(had)
            rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
            took.append(statistics.median(row["time/step"] for row in rows[goal - length + 1 : goal]))
    finally:
        training.terminate()
        training.wait(60)
        server.close()
    # Each turn with viewers beside those before and after it: a machine that others use too drifts.
    ratios = [2 * took[i] / (took[i - 1] + took[i + 1]) for i in range(1, turns - 1, 2)]
    return {
        "a step without viewers (s)": statistics.median(took[::2]),
        "a step with 50 viewers (s)": statistics.median(took[1::2]),
        "training slower by, 50 viewers (%)": 100 * (statistics.median(ratios) - 1),
        "the least and most of the turns (%)": 100 * (min(ratios) - 1),
        "   to (%)": 100 * (max(ratios) - 1),
        "the server's share of one core beside that (%)": 100 * used / wall,
        "events told to viewers": told,
    }


def _wait_for(run: Path, training: subprocess.Popen[bytes], steps: int) -> int:
    """Until so many steps are done."""
    while training.poll() is None:
        try:
            done = (run / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            done = 0
        if done >= steps:
            return done
        time.sleep(0.05)
    raise SystemExit("training ended too soon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=5, help="cold servers")
    parser.add_argument("--turns", type=int, default=21, help="with and without viewers; 0 leaves training out")
    parser.add_argument("--length", type=int, default=6, help="steps of a turn")
    parser.add_argument("--runs", type=Path, help="keep the made run here, and use it again")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine = facts()
    print(line(machine))
    with tempfile.TemporaryDirectory() as temporary:
        root = args.runs or Path(temporary)
        if not (root / "big" / "run.json").exists():
            print(f"making a run of {args.steps:,} steps …", flush=True)
            make_run(root / "big", args.steps)
        size = sum(path.stat().st_size for path in (root / "big").rglob("*") if path.is_file())
        found: dict[str, Any] = {"the run's folder (MB)": size / 1e6}
        found |= reading(root, args.rounds, args.steps)
        found |= latency(root, args.steps)
        with tempfile.TemporaryDirectory() as other:
            found |= share(Path(other))
        if args.turns:
            with tempfile.TemporaryDirectory() as other:
                found |= beside_training(Path(other), args.turns, args.length)
    for name, value in found.items():
        wanted = WANTED.get(name)
        star = " *" if wanted is not None and value > wanted else ""
        print(f"{name:<66}{value:>10.3f}{f'   wanted under {wanted:g}' if wanted is not None else ''}{star}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
