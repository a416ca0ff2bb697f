"""What is new in a run, to all who look at it: one watcher a run, however many viewers, gone when nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outdo.dash.book import Book, Shelf
from outdo.dash.files import sign_of
from outdo.dash.findings import findings_of
from outdo.dash.metrics import evals_of, new_rows
from outdo.dash.shapes import NewEvals, NewFindings, NewRows, NewStatus, OneRun, RunSummary, Shape
from outdo.dash.summary import FILES, Summaries

EVERY = 0.3  # seconds between two looks
PING = 15.0  # seconds of silence that a proxy may take for an end
WAITING = 64  # events that a viewer may be behind; one that is further behind begins again
MOST_ROWS = 2000  # that are sent at once; who lacks more asks for all
VIEWERS = 256
ALIVE = 10  # looks between two questions whether the run's process is still there

Event = tuple[str, int | None, bytes]  # its kind, the last step that it tells of, and its data


@dataclass(eq=False)
class Viewer:
    """One connection. `steps` is the last step of each of its runs that it was told."""

    runs: tuple[str, ...]
    steps: dict[str, int]
    queue: asyncio.Queue[tuple[str, str, int | None, bytes]] = field(default_factory=lambda: asyncio.Queue(WAITING))

    def put(self, kind: str, run: str, step: int | None, body: bytes) -> None:
        """Never waits: who does not read in time is told to begin again."""
        try:
            self.queue.put_nowait((kind, run, step, body))
        except asyncio.QueueFull:
            while not self.queue.empty():
                self.queue.get_nowait()
            for name in self.runs:
                self.queue.put_nowait(("reset", name, None, encoded(OneRun(run=name))))

    def event(self, kind: str, run: str, step: int | None, body: bytes) -> bytes:
        if step is not None:
            self.steps[run] = step
        last = ",".join(str(self.steps.get(name, -1)) for name in self.runs)
        return b"event: %b\nid: %b\ndata: %b\n\n" % (kind.encode(), last.encode(), body)


def encoded(shape: Shape) -> bytes:
    """On one line, as an event's data must be: JSON has no line ends of its own."""
    return shape.model_dump_json(by_alias=True).encode()


class Watcher:
    """Looks at one run's folder, and tells its viewers."""

    def __init__(self, name: str, folder: Path, book: Book, summaries: Summaries) -> None:
        self.name, self.folder, self.book, self.summaries = name, folder, book, summaries
        self.viewers: set[Viewer] = set()
        self.signs = self._signs()
        self.rows, self.times, self.evals, self.noted = 0, 0, 0, 0
        self.last: RunSummary | None = None
        self.gone = False
        self.task: asyncio.Task[None] | None = None

    def _signs(self) -> tuple[object, ...]:
        return tuple(sign_of(self.folder / name) for name in FILES)

    def begin(self) -> None:
        """What is there already is not new."""
        self.rows, self.times = len(self.book.metrics.frame()), self.book.metrics.times
        self.evals, self.noted = len(self.book.evals.all()), len(self.book.findings.all())
        self.last = self.summaries.of(self.folder, self.name)

    async def watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(EVERY)
            looks += 1
            signs = self._signs()
            if signs == self.signs and looks % ALIVE:
                continue
            self.signs = signs
            for kind, step, body in await asyncio.to_thread(self.look):
                for viewer in self.viewers:
                    viewer.put(kind, self.name, step, body)

    def look(self) -> list[Event]:
        """The events since the last look, encoded once for all."""
        if sign_of(self.folder / "run.json") is None:
            had, self.gone = self.gone, True
            return [] if had else [("gone", None, encoded(OneRun(run=self.name)))]
        self.gone = False
        return [*self._numbers(), *self._evals(), *self._findings(), *self._status()]

    def _numbers(self) -> list[Event]:
        frame = self.book.metrics.frame()
        had, self.rows = self.rows, len(frame)
        if self.book.metrics.times != self.times or had > len(frame):
            self.times = self.book.metrics.times
            self.evals, self.noted = len(self.book.evals.all()), len(self.book.findings.all())
            return [("reset", None, encoded(OneRun(run=self.name)))]
        if had == len(frame):
            return []
        if len(frame) - had > MOST_ROWS:
            return [("reset", None, encoded(OneRun(run=self.name)))]
        return [("metrics", int(frame.steps[-1]), encoded(new_rows(self.name, frame, had)))]

    def _evals(self) -> list[Event]:
        rows = self.book.evals.all()
        had, self.evals = self.evals, len(rows)
        if had == len(rows):
            return []
        new = evals_of(rows[had:] if had < len(rows) else rows)
        return [("evals", None, encoded(NewEvals(run=self.name, evals=new)))] if new else []

    def _findings(self) -> list[Event]:
        had, self.noted = self.noted, len(self.book.findings.all())
        if had == self.noted:
            return []
        return [("findings", None, encoded(NewFindings(run=self.name, findings=findings_of(self.book).findings)))]

    def _status(self) -> list[Event]:
        """When more than the curve has changed: rows tell that themselves."""
        now = self.summaries.of(self.folder, self.name)
        had, self.last = self.last, now
        moved = {"steps", "spark"}
        if had is not None and had.model_dump(exclude=moved) == now.model_dump(exclude=moved):
            return []
        return [("status", None, encoded(NewStatus(run=self.name, summary=now)))]


class Live:
    """All watchers, and the streams that they feed."""

    def __init__(self, shelf: Shelf, summaries: Summaries) -> None:
        self.shelf, self.summaries = shelf, summaries
        self.watchers: dict[str, Watcher] = {}
        self.viewers = 0
        self.closing = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.viewers >= VIEWERS

    async def stream(self, runs: Sequence[tuple[str, Path]], after: Sequence[int | None]) -> AsyncIterator[bytes]:
        """Server-sent events of these runs, from the step given for each, or from now on."""
        viewer = Viewer(tuple(name for name, _ in runs), {})
        self.viewers += 1
        try:
            yield b"retry: 2000\n\n"
            for (name, folder), step in zip(runs, after, strict=True):
                watcher = await self._join(viewer, name, folder)
                for kind, last, body in await asyncio.to_thread(missed, watcher, step):
                    yield viewer.event(kind, name, last, body)
            while not self.closing.is_set():
                try:
                    item = await asyncio.wait_for(viewer.queue.get(), PING)
                except TimeoutError:
                    yield b": ping\n\n"
                else:
                    yield viewer.event(*item)
        finally:
            self.viewers -= 1
            self._leave(viewer)

    async def _join(self, viewer: Viewer, name: str, folder: Path) -> Watcher:
        watcher = self.watchers.get(name)
        if watcher is None:
            watcher = self.watchers[name] = Watcher(name, folder, self.shelf.book(folder), self.summaries)
            watcher.viewers.add(viewer)
            await asyncio.to_thread(watcher.begin)
            watcher.task = asyncio.create_task(watcher.watch())
        watcher.viewers.add(viewer)
        return watcher

    def _leave(self, viewer: Viewer) -> None:
        for name in viewer.runs:
            watcher = self.watchers.get(name)
            if watcher is None:
                continue
            watcher.viewers.discard(viewer)
            if not watcher.viewers:
                del self.watchers[name]
                if watcher.task:
                    watcher.task.cancel()


def missed(watcher: Watcher, after: int | None) -> list[Event]:
    """How the run stands as a viewer comes, and the rows after the step that it had."""
    summary = watcher.summaries.of(watcher.folder, watcher.name)
    frame = watcher.book.metrics.frame()
    last = int(frame.steps[-1]) if len(frame) else -1
    told: list[Event] = [("status", last, encoded(NewStatus(run=watcher.name, summary=summary)))]
    if after is None or after == last:
        return told
    lacking = int((frame.steps > after).sum())
    if after > last or lacking > MOST_ROWS:
        return [("reset", last, encoded(OneRun(run=watcher.name))), *told]
    rows: NewRows = new_rows(watcher.name, frame, len(frame) - lacking)
    return [("metrics", last, encoded(rows)), *told]


def parse_id(value: str, count: int) -> list[int | None]:
    """The steps that a viewer had when it was cut off, as `id:` gave them."""
    parts = value.split(",")
    if len(parts) != count or not all(part.lstrip("-").isdecimal() and len(part) < 17 for part in parts):
        return [None] * count
    return [int(part) for part in parts]
