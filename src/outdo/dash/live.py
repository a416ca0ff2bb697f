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
from outdo.dash.shapes import NewEvals, NewFindings, NewStatus, OneRun, RunSummary, Shape
from outdo.dash.summary import FILES, Summaries

EVERY = 0.4  # seconds between two looks: with many viewers it is the events that cost
PING = 15.0  # seconds of silence that a proxy may take for an end
WAITING = 64  # events that a viewer may be behind; one that is further behind begins again
MOST_ROWS = 2000  # that are sent at once; who lacks more asks for all
VIEWERS = 256
ALIVE = 8  # looks between two questions whether the run's process is still there
STANDING = ("run.json", "evals.jsonl", "findings.jsonl")  # files that say how a run stands, beside its rows


@dataclass(frozen=True)
class Event:
    """What happened to one run, written once for all viewers."""

    kind: str
    run: str
    body: bytes
    step: int | None = None  # the last that it tells of
    rows: int = 0  # of metrics: how many there were with these


@dataclass(eq=False)
class Viewer:
    """One connection. `steps` and `rows` are how far it was told each of its runs."""

    runs: tuple[str, ...]
    steps: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    queue: asyncio.Queue[Event | None] = field(default_factory=lambda: asyncio.Queue(WAITING))

    def put(self, event: Event | None) -> None:
        """Never waits: who does not read in time is told to begin again. None is the end."""
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            for name in self.runs:
                self.queue.put_nowait(reset_of(name))
        self.queue.put_nowait(event)

    def written(self, event: Event) -> bytes:
        """As it is sent; nothing where the viewer has these rows already."""
        if event.kind == "metrics" and event.rows <= self.rows.get(event.run, 0):
            return b""
        if event.kind in ("metrics", "reset"):
            self.rows[event.run] = event.rows
        if event.step is not None:
            self.steps[event.run] = event.step
        last = ",".join(str(self.steps.get(name, -1)) for name in self.runs)
        return b"event: %b\nid: %b\ndata: %b\n\n" % (event.kind.encode(), last.encode(), event.body)


def encoded(shape: Shape) -> bytes:
    """On one line, as an event's data must be: JSON has no line ends of its own."""
    return shape.model_dump_json(by_alias=True).encode()


def reset_of(run: str, rows: int = 0, step: int | None = None) -> Event:
    return Event("reset", run, encoded(OneRun(run=run)), step, rows)


class Watcher:
    """Looks at one run's folder, and tells its viewers."""

    def __init__(self, name: str, folder: Path, book: Book, summaries: Summaries) -> None:
        self.name, self.folder, self.book, self.summaries = name, folder, book, summaries
        self.viewers: set[Viewer] = set()
        self.signs: tuple[object, ...] = ()
        self.standing: tuple[object, ...] = ()
        self.rows, self.times, self.evals, self.noted = 0, 0, 0, 0
        self.last: RunSummary | None = None
        self.gone = False
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def _signs(self, names: Sequence[str] = FILES) -> tuple[object, ...]:
        return tuple(sign_of(self.folder / name) for name in names)

    def begin(self) -> None:
        """What is there already is not new."""
        self.signs, self.standing = self._signs(), self._signs(STANDING)
        self.rows, self.times = len(self.book.metrics.frame()), self.book.metrics.times
        self.evals, self.noted = len(self.book.evals.all()), len(self.book.findings.all())
        self.last = self.summaries.of(self.folder, self.name)

    async def watch(self) -> None:
        try:
            await asyncio.to_thread(self.begin)
        finally:
            self.ready.set()
        looks = 0
        while True:
            await asyncio.sleep(EVERY)
            looks += 1
            signs = self._signs()
            ask = looks % ALIVE == 0
            if signs == self.signs and not ask:
                continue
            self.signs = signs
            try:
                events = await asyncio.to_thread(self.look, ask)
            except (OSError, ValueError):  # files that changed under our hands: the next look sees them whole
                continue
            for event in events:
                for viewer in self.viewers:
                    viewer.put(event)

    def look(self, ask: bool = True) -> list[Event]:
        """The events since the last look; with whether the process is there, where that is to be asked."""
        if sign_of(self.folder / "run.json") is None:
            had, self.gone = self.gone, True
            return [] if had else [Event("gone", self.name, encoded(OneRun(run=self.name)))]
        self.gone = False
        return [*self._numbers(), *self._evals(), *self._findings(), *self._status(ask)]

    def _numbers(self) -> list[Event]:
        frame, times = self.book.metrics.frame(), self.book.metrics.times
        again = times != self.times or len(frame) - self.rows > MOST_ROWS
        had, self.rows, self.times = self.rows, len(frame), times
        last = int(frame.steps[-1]) if len(frame) else -1
        if again:
            self.evals, self.noted = len(self.book.evals.all()), len(self.book.findings.all())
            return [reset_of(self.name, len(frame), last)]
        if had == len(frame):
            return []
        return [Event("metrics", self.name, encoded(new_rows(self.name, frame, had)), last, len(frame))]

    def _evals(self) -> list[Event]:
        rows = self.book.evals.all()
        had, self.evals = self.evals, len(rows)
        new = evals_of(rows[had:] if had <= len(rows) else rows)
        return [Event("evals", self.name, encoded(NewEvals(run=self.name, evals=new)))] if new else []

    def _findings(self) -> list[Event]:
        had, self.noted = self.noted, len(self.book.findings.all())
        if had == self.noted:
            return []
        found = findings_of(self.book).findings
        return [Event("findings", self.name, encoded(NewFindings(run=self.name, findings=found)))]

    def _status(self, ask: bool) -> list[Event]:
        """When more than the curve has changed: rows tell that themselves."""
        standing = self._signs(STANDING)
        if standing == self.standing and not ask:
            return []
        self.standing = standing
        now = self.summaries.of(self.folder, self.name)
        had, self.last = self.last, now
        moved = {"steps", "spark"}
        if had is not None and had.model_dump(exclude=moved) == now.model_dump(exclude=moved):
            return []
        return [self._stands(now)]

    def _stands(self, summary: RunSummary, step: int | None = None) -> Event:
        return Event("status", self.name, encoded(NewStatus(run=self.name, summary=summary)), step)

    def missed(self, after: int | None) -> tuple[list[Event], int]:
        """How the run stands as a viewer comes, with the rows after the step that it had; and how many rows that is:
        later ones come as events."""
        frame, known = self.book.metrics.frame(), self.rows
        known = min(known, len(frame))
        last = int(frame.steps[known - 1]) if known else -1
        told = [self._stands(self.summaries.of(self.folder, self.name), last)]
        if after is None or after == last:
            return told, known
        lacking = int((frame.steps[:known] > after).sum())
        if after > last or lacking > MOST_ROWS:
            return [reset_of(self.name, known, last), *told], known
        rows = new_rows(self.name, frame.head(known), known - lacking)
        return [Event("metrics", self.name, encoded(rows), last, known), *told], known


class Live:
    """All watchers, and the streams that they feed."""

    def __init__(self, shelf: Shelf, summaries: Summaries) -> None:
        self.shelf, self.summaries = shelf, summaries
        self.watchers: dict[str, Watcher] = {}
        self.viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_full(self) -> bool:
        return len(self.viewers) >= VIEWERS

    async def stream(self, runs: Sequence[tuple[str, Path]], after: Sequence[int | None]) -> AsyncIterator[bytes]:
        """Server-sent events of these runs, from the step given for each, or from now on."""
        viewer = Viewer(tuple(name for name, _ in runs))
        self._loop = asyncio.get_running_loop()
        self.viewers.add(viewer)
        try:
            yield b"retry: 2000\n\n"
            for (name, folder), step in zip(runs, after, strict=True):
                watcher = self._joined(viewer, name, folder)
                await watcher.ready.wait()
                events, known = await asyncio.to_thread(watcher.missed, step)
                for event in events:
                    yield viewer.written(event)
                viewer.rows[name] = known
            async for text in self._told(viewer):
                yield text
        finally:
            self.viewers.discard(viewer)
            self._leave(viewer)

    async def _told(self, viewer: Viewer) -> AsyncIterator[bytes]:
        while True:
            try:
                event = await asyncio.wait_for(viewer.queue.get(), PING)
            except TimeoutError:
                yield b": ping\n\n"
                continue
            if event is None:
                return
            if text := viewer.written(event):
                yield text

    def _joined(self, viewer: Viewer, name: str, folder: Path) -> Watcher:
        watcher = self.watchers.get(name)
        if watcher is None:
            watcher = self.watchers[name] = Watcher(name, folder, self.shelf.book(folder), self.summaries)
            watcher.task = asyncio.create_task(watcher.watch())
        watcher.viewers.add(viewer)
        return watcher

    def _leave(self, viewer: Viewer) -> None:
        for name in viewer.runs:
            watcher = self.watchers.get(name)
            if watcher is not None:
                watcher.viewers.discard(viewer)
                if not watcher.viewers:
                    del self.watchers[name]
                    if watcher.task:
                        watcher.task.cancel()

    def close(self) -> None:
        """Ends every stream; from any thread, and from a signal's handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for viewer in self.viewers:
            viewer.put(None)


def parse_id(value: str, count: int) -> list[int | None]:
    """The steps that a viewer had when it was cut off, as `id:` gave them."""
    parts = value.split(",")
    if len(parts) != count or not all(part.lstrip("-").isdecimal() and len(part) < 17 for part in parts):
        return [None] * count
    return [int(part) for part in parts]
