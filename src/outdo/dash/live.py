"""Live updates of runs as server-sent events: one watcher per run for all its viewers, stopped when the last leaves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outdo.dash.models import NewEvals, NewFindings, NewRows, NewStatus, RunEvent
from outdo.dash.summaries import Summaries
from outdo.doctor.report import findings_of
from outdo.doctor.summary import RunSummary
from outdo.runs.curves import curves_since, eval_records
from outdo.runs.manifest import manifest_path
from outdo.runs.run_reader import RunCache, RunReader, Stamps, run_stamps, status_stamps
from outdo.runs.safe_open import file_stamp
from outdo.runs.table import Frame
from outdo.runs.values import Record

POLL_INTERVAL = 0.4  # seconds; with many viewers the events cost more than the polling
PING_INTERVAL = 15.0  # seconds of silence before a proxy might close the stream
QUEUE_SIZE = 64  # events that a viewer may be behind, before it must reload
MAX_ROWS = 2000  # in one event; a viewer that lacks more reloads
MAX_VIEWERS = 256
POLLS_PER_LOCK_CHECK = 8


@dataclass(frozen=True)
class Event:
    """Something new in one run, serialized once for all viewers."""

    kind: str
    run: str
    body: bytes
    step: int | None = None  # the last step that it covers
    rows: int = 0  # of metrics: the number of rows including these


@dataclass(eq=False)
class Viewer:
    """One connection. `steps` and `rows` are what it has received of each of its runs."""

    runs: tuple[str, ...]
    steps: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    queue: asyncio.Queue[Event | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_SIZE))

    def put(self, event: Event | None) -> None:
        """Never waits: a viewer that does not read in time gets a reset. None ends the stream."""
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            for name in self.runs:
                self.queue.put_nowait(reset_event(name))
        self.queue.put_nowait(event)

    def format(self, event: Event) -> bytes:
        """The event as it is sent; empty where the viewer already has these rows."""
        if event.kind == "metrics" and event.rows <= self.rows.get(event.run, 0):
            return b""
        if event.kind in ("metrics", "reset"):
            self.rows[event.run] = event.rows
        if event.step is not None:
            self.steps[event.run] = event.step
        last = ",".join(str(self.steps.get(name, -1)) for name in self.runs)
        return b"event: %b\nid: %b\ndata: %b\n\n" % (event.kind.encode(), last.encode(), event.body)


def encode(record: Record) -> bytes:
    """One line, as an event's data must be: JSON escapes line ends."""
    return record.model_dump_json(by_alias=True).encode()


def reset_event(run: str, rows: int = 0, step: int | None = None) -> Event:
    return Event("reset", run, encode(RunEvent(run=run)), step, rows)


def rows_event(run: str, frame: Frame, start: int, step: int) -> Event:
    curves = curves_since(frame, start)
    return Event("metrics", run, encode(NewRows(run=run, **dict(curves))), step, len(frame))


class Watcher:
    """Polls one run's folder and sends events to its viewers."""

    def __init__(self, name: str, folder: Path, reader: RunReader, summaries: Summaries) -> None:
        self.name, self.folder, self.reader, self.summaries = name, folder, reader, summaries
        self.viewers: set[Viewer] = set()
        self.run_stamps: Stamps = ()
        self.status_stamps: Stamps = ()
        self.rows, self.restarts, self.evals, self.findings = 0, 0, 0, 0
        self.summary: RunSummary | None = None
        self.is_gone = False
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """What exists now is not new."""
        self.run_stamps, self.status_stamps = run_stamps(self.folder), status_stamps(self.folder)
        self.rows, self.restarts = len(self.reader.metrics.frame()), self.reader.metrics.restarts
        self.evals, self.findings = len(self.reader.evals.all()), len(self.reader.findings.all())
        self.summary = self.summaries.of(self.folder, self.name)

    async def watch(self) -> None:
        try:
            await asyncio.to_thread(self.start)
        finally:
            self.ready.set()
        for poll in itertools.count(1):
            await asyncio.sleep(POLL_INTERVAL)
            if self.reader.is_foreign:
                await asyncio.to_thread(self.reader.renew)
            stamps = run_stamps(self.folder)
            check_lock = poll % POLLS_PER_LOCK_CHECK == 0
            if stamps == self.run_stamps and not check_lock:
                continue
            self.run_stamps = stamps
            try:
                events = await asyncio.to_thread(self.poll, check_lock)
            except (OSError, ValueError):  # files that changed while they were read: the next poll reads them again
                continue
            for event in events:
                for viewer in self.viewers:
                    viewer.put(event)

    def poll(self, check_lock: bool = True) -> list[Event]:
        """The events since the last poll; `check_lock` also checks whether the run's process is alive."""
        if file_stamp(manifest_path(self.folder)) is None:
            was_gone, self.is_gone = self.is_gone, True
            return [] if was_gone else [Event("gone", self.name, encode(RunEvent(run=self.name)))]
        self.is_gone = False
        return [*self._new_rows(), *self._new_evals(), *self._new_findings(), *self._new_status(check_lock)]

    def _new_rows(self) -> list[Event]:
        frame, restarts = self.reader.metrics.frame(), self.reader.metrics.restarts
        must_reload = restarts != self.restarts or len(frame) - self.rows > MAX_ROWS
        start, self.rows, self.restarts = self.rows, len(frame), restarts
        last = int(frame.steps[-1]) if len(frame) else -1
        if must_reload:
            self.evals, self.findings = len(self.reader.evals.all()), len(self.reader.findings.all())
            return [reset_event(self.name, len(frame), last)]
        return [rows_event(self.name, frame, start, last)] if len(frame) != start else []

    def _new_evals(self) -> list[Event]:
        rows = self.reader.evals.all()
        start, self.evals = self.evals, len(rows)
        evals = eval_records(rows[start:] if start <= len(rows) else rows)
        return [Event("evals", self.name, encode(NewEvals(run=self.name, evals=evals)))] if evals else []

    def _new_findings(self) -> list[Event]:
        previous, self.findings = self.findings, len(self.reader.findings.all())
        if previous == self.findings:
            return []
        findings = findings_of(self.reader).findings
        return [Event("findings", self.name, encode(NewFindings(run=self.name, findings=findings)))]

    def _new_status(self, check_lock: bool) -> list[Event]:
        """Where more than the curve has changed: the rows themselves carry that."""
        stamps = status_stamps(self.folder)
        if stamps == self.status_stamps and not check_lock:
            return []
        self.status_stamps = stamps
        previous, self.summary = self.summary, self.summaries.of(self.folder, self.name)
        in_rows = {"steps", "spark"}
        if previous is not None and previous.model_dump(exclude=in_rows) == self.summary.model_dump(exclude=in_rows):
            return []
        return [self._status_event(self.summary)]

    def _status_event(self, summary: RunSummary, step: int | None = None) -> Event:
        return Event("status", self.name, encode(NewStatus(run=self.name, summary=summary)), step)

    def catch_up(self, after: int | None) -> tuple[list[Event], int]:
        """For a new viewer: the status, the rows after the last step that it has, and the number of rows with these.
        Later ones come as events."""
        frame = self.reader.metrics.frame()
        frame = frame.head(min(self.rows, len(frame)))
        last = int(frame.steps[-1]) if len(frame) else -1
        status = self._status_event(self.summaries.of(self.folder, self.name), last)
        if after is None or after == last:
            return [status], len(frame)
        missing = int((frame.steps > after).sum())
        if after > last or missing > MAX_ROWS:
            return [reset_event(self.name, len(frame), last), status], len(frame)
        return [rows_event(self.name, frame, len(frame) - missing, last), status], len(frame)


class Live:
    def __init__(self, cache: RunCache, summaries: Summaries) -> None:
        self.cache, self.summaries = cache, summaries
        self.watchers: dict[str, Watcher] = {}
        self.viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_full(self) -> bool:
        return len(self.viewers) >= MAX_VIEWERS

    async def stream(self, runs: Sequence[tuple[str, Path]], after: Sequence[int | None]) -> AsyncIterator[bytes]:
        """Server-sent events of these runs, after the step given for each, or from now on."""
        viewer = Viewer(tuple(name for name, _ in runs))
        self._loop = asyncio.get_running_loop()
        self.viewers.add(viewer)
        try:
            yield b"retry: 2000\n\n"
            for (name, folder), step in zip(runs, after, strict=True):
                watcher = self._join(viewer, name, folder)
                await watcher.ready.wait()
                events, rows = await asyncio.to_thread(watcher.catch_up, step)
                for missed in events:
                    yield viewer.format(missed)
                viewer.rows[name] = rows
            while True:
                try:
                    event = await asyncio.wait_for(viewer.queue.get(), PING_INTERVAL)
                except TimeoutError:
                    yield b": ping\n\n"
                    continue
                if event is None:
                    return
                if text := viewer.format(event):
                    yield text
        finally:
            self.viewers.discard(viewer)
            self._leave(viewer)

    def _join(self, viewer: Viewer, name: str, folder: Path) -> Watcher:
        watcher = self.watchers.get(name)
        if watcher is None:
            watcher = self.watchers[name] = Watcher(name, folder, self.cache.reader(folder), self.summaries)
            watcher.task = asyncio.create_task(watcher.watch())
        watcher.viewers.add(viewer)
        return watcher

    def _leave(self, viewer: Viewer) -> None:
        for watcher in [self.watchers[name] for name in viewer.runs if name in self.watchers]:
            watcher.viewers.discard(viewer)
            if not watcher.viewers:
                del self.watchers[watcher.name]
                if watcher.task:
                    watcher.task.cancel()

    def close(self) -> None:
        """Ends every stream; from any thread, and from a signal's handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for viewer in self.viewers:
            viewer.put(None)


def parse_event_id(value: str, count: int) -> list[int | None]:
    """The last step of each run that a viewer received before it was disconnected, from the last `id:`."""
    parts = value.split(",")
    if len(parts) != count or not all(part.lstrip("-").isdecimal() and len(part) < 17 for part in parts):
        return [None] * count
    return [int(part) for part in parts]
