"""The addresses of the dashboard. All are to be read: nothing here writes, and any method but GET is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from outdo.dash import page, shapes
from outdo.dash.answers import LONG, SHOWN, SORTED, Show, Sort, read_groups, tokens_of
from outdo.dash.blocks import Place, read_place
from outdo.dash.book import Book, Shelf
from outdo.dash.files import WHOLE, text_of
from outdo.dash.findings import findings_of
from outdo.dash.guard import LOOPBACK, Guard
from outdo.dash.live import Live, parse_id
from outdo.dash.metrics import evals_of, metrics_of
from outdo.dash.places import Places, Unknown
from outdo.dash.prompts import prompt_page
from outdo.dash.summary import Summaries, run_page
from outdo.dash.sweeps import Sweeps, sweep_page
from outdo.metrics.catalogue import CATALOGUE

Name = Annotated[str, Query(max_length=4096, description="a run's id, as /api/runs lists it")]
Step = Annotated[int, Query(ge=0, le=WHOLE, description="a step")]
Edge = Annotated[int | None, Query(ge=0, le=WHOLE, description="a step; leave out for no limit")]
PointCount = Annotated[int, Query(ge=1, le=20_000, description="points at most")]
Prompt = Annotated[str, Query(max_length=100_000, description="a prompt's id")]
Several = Annotated[list[str], Query(min_length=1, max_length=16, description="ids of runs; may be given again")]
NOT_THERE: dict[int | str, dict[str, Any]] = {404: {"model": shapes.Detail, "description": "there is no such thing"}}
ABOUT = "Run folders of outdo, as JSON, to be read. Nothing can be written."


class Desk:
    """What the addresses share."""

    def __init__(self, root: Path) -> None:
        self.places = Places(root)
        self.root = self.places.root
        self.shelf, self.summaries = Shelf(self.root), Summaries(self.root)
        self.sweeps = Sweeps(self.root)
        self.live = Live(self.shelf, self.summaries)

    def book(self, run: str) -> Book:
        """Raises Unknown."""
        return self.shelf.book(self.places.run(run))

    def summary(self, run: str) -> shapes.RunSummary:
        return self.summaries.of(self.places.run(run), run)


def told(shape: shapes.Shape) -> Response:
    """Written once, by the shape itself."""
    return Response(shape.model_dump_json(by_alias=True), media_type="application/json")


def guarded(api: FastAPI, token: str | None = None, loopback: bool = True, port: int = 0) -> Guard:
    """`loopback`: only names of this machine are answered to."""
    return Guard(api, token, LOOPBACK if loopback else None, port)


def make_api(root: Path) -> FastAPI:
    desk = Desk(root)
    app = FastAPI(
        title="outdo dash",
        description=ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.desk = desk

    @app.exception_handler(Unknown)
    def unknown(request: Request, error: Unknown) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=404)

    for add in (_add_runs, _add_numbers, _add_groups, _add_several, _add_live, _add_pages):
        add(app, desk)
    return app


def _getter(app: FastAPI, path: str, model: type[shapes.Shape]) -> Callable[[Any], Any]:
    return app.get(path, response_model=model, responses=NOT_THERE, tags=["runs"])


def _add_runs(app: FastAPI, desk: Desk) -> None:
    @_getter(app, "/api/runs", shapes.Runs)
    def runs(
        q: Annotated[str, Query(max_length=1000, description="words that the id, task or model has")] = "",
        status: Annotated[str, Query(max_length=40)] = "",
        kind: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:
        """Every run and sweep under the root, the newest first."""
        found = desk.places.look()
        listed = [desk.summaries.of(desk.root / name, name) for name in found.runs]
        kept = [
            one
            for one in listed
            if status in ("", one.status) and kind in ("", one.kind) and _fits(one, q.casefold().split())
        ]
        kept.sort(key=lambda one: one.started or "", reverse=True)
        sweeps = [desk.sweeps.of(desk.root / name, name) for name in found.sweeps]
        shown = [sweep for sweep in sweeps if sweep]
        return told(shapes.Runs(root=text_of(str(desk.root)), runs=kept, sweeps=shown, trouble=list(found.trouble)))

    @_getter(app, "/api/run", shapes.RunPage)
    def run(run: Name) -> Response:
        """One run: its recipe, facts, and what it has cost so far."""
        return told(run_page(desk.book(run), desk.summary(run)))

    @app.get("/api/signals", response_model=shapes.Charts, tags=["words"])
    def signals() -> Response:
        """The charts: what each signal means, and what to do when it is bad."""
        charts = [shapes.Chart.model_validate(asdict(one)) for one in CATALOGUE]
        return told(shapes.Charts(charts=charts))


def _fits(one: shapes.RunSummary, words: list[str]) -> bool:
    text = f"{one.id} {one.task} {one.model} {one.kind} {one.status}".casefold()
    return all(word in text for word in words)


def _add_numbers(app: FastAPI, desk: Desk) -> None:
    @_getter(app, "/api/metrics", shapes.Metrics)
    def metrics(
        run: Name,
        points: PointCount = 1000,
        first: Edge = None,
        last: Edge = None,
        names: Annotated[str, Query(max_length=10_000, description="signals, with commas between; all if empty")] = "",
    ) -> Response:
        """Curves: every row where they fit, else even stretches of them, with mean, least and most of each."""
        return told(metrics_of(desk.book(run).metrics, points, first, last, [n for n in names.split(",") if n]))

    @_getter(app, "/api/sft", shapes.Metrics)
    def sft(run: Name, points: PointCount = 1000, first: Edge = None, last: Edge = None) -> Response:
        """Curves of the supervised part."""
        return told(metrics_of(desk.book(run).sft, points, first, last))

    @_getter(app, "/api/evals", shapes.Evals)
    def evals(run: Name) -> Response:
        """Held-out success. A step here is how many steps were done: 0 is before the first."""
        book = desk.book(run)
        return told(shapes.Evals(evals=evals_of(book.evals.all()), trouble=book.evals.trouble()))

    @_getter(app, "/api/findings", shapes.Findings)
    def findings(run: Name) -> Response:
        """What the doctor says of the whole history now; and what was noted on the way and no longer holds."""
        return told(findings_of(desk.book(run)))


def _add_groups(app: FastAPI, desk: Desk) -> None:
    @_getter(app, "/api/steps", shapes.StepList)
    def steps(run: Name, first: Edge = None, last: Edge = None) -> Response:
        """Which steps have their answers kept."""
        low, high = first or 0, WHOLE if last is None else last
        found = [step for step in desk.book(run).steps() if low <= step <= high]
        return told(shapes.StepList(steps=found, ranges=_ranges(found)))

    @_getter(app, "/api/groups", shapes.Groups)
    def groups(
        run: Name,
        step: Step,
        sort: Sort = "spread",
        order: Literal["desc", "asc"] = "desc",
        show: Show = "all",
        limit: Annotated[int, Query(ge=1, le=500)] = 24,
        offset: Annotated[int, Query(ge=0, le=WHOLE)] = 0,
    ) -> Response:
        """The groups of a step, with texts cut to 2,000 characters."""
        places, trouble = desk.book(run).index.at(step)
        found, wrong = read_groups(desk.root, places)
        shown = sorted(filter(SHOWN[show], found), key=SORTED[sort], reverse=order == "desc")
        some = shown[offset : offset + limit]
        return told(shapes.Groups(step=step, total=len(shown), groups=some, trouble=[*trouble, *wrong][:20]))

    @_getter(app, "/api/group", shapes.Group)
    def group(run: Name, step: Step, prompt: Prompt) -> Response:
        """One group with its whole texts."""
        found, wrong = read_groups(desk.root, [_place(desk.book(run), step, prompt)], LONG)
        if not found:
            raise HTTPException(404, "; ".join(wrong) or "the group cannot be read")
        return told(found[0])

    @_getter(app, "/api/tokens", shapes.Tokens)
    def tokens(run: Name, step: Step, prompt: Prompt, answer: Annotated[int, Query(ge=0, le=4096)]) -> Response:
        """The tokens of one answer: text, log-probability, and how many times likelier the update made each."""
        try:
            found = tokens_of(read_place(desk.root, _place(desk.book(run), step, prompt)), answer)
        except (OSError, ValueError) as error:
            raise HTTPException(404, str(error)) from None
        if found is None:
            raise HTTPException(404, "the tokens of this answer were not kept: log_tokens says how many are")
        return told(shapes.Tokens(tokens=found))

    @_getter(app, "/api/prompt", shapes.PromptPage)
    def prompt(run: Name, prompt: Prompt) -> Response:
        """One prompt through all steps."""
        found = prompt_page(desk.root, desk.book(run).index, prompt)
        if found is None:
            raise HTTPException(404, f"no kept step asked {prompt!r:.200}")
        return told(found)

    @_getter(app, "/api/improved", shapes.Improved)
    def improved(run: Name, limit: Annotated[int, Query(ge=1, le=1000)] = 24) -> Response:
        """Prompts that were asked at least twice, those that gained most first."""
        return told(desk.book(run).gains.improved(limit))


def _place(book: Book, step: int, prompt: str) -> Place:
    places, _ = book.index.at(step, prompt)
    if not places:
        raise HTTPException(404, f"step {step} has no group of {prompt!r:.200}")
    return places[0]


def _ranges(steps: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return found


def _add_several(app: FastAPI, desk: Desk) -> None:
    @_getter(app, "/api/compare", shapes.Compared)
    def compare(run: Several) -> Response:
        """Runs side by side, as `outdo compare` has them; differences are from the first."""
        from outdo.dash.comparing import compared  # it needs half of the package: not before someone asks

        names = list(dict.fromkeys(run))
        return told(compared([(desk.book(name), desk.summary(name)) for name in names]))

    @_getter(app, "/api/sweep", shapes.SweepPage)
    def sweep(sweep: Annotated[str, Query(max_length=4096, description="a sweep's id")]) -> Response:
        """A sweep: its cells, and the setting to take."""
        folder = desk.places.sweep(sweep)
        try:
            return told(sweep_page(desk.root, folder, sweep))
        except (OSError, ValueError) as error:
            raise HTTPException(404, f"sweep.json cannot be read: {error}") from None


def _add_live(app: FastAPI, desk: Desk) -> None:
    busy: dict[int | str, dict[str, Any]] = {503: {"model": shapes.Detail, "description": "too many viewers"}}
    stream: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}, "description": "events"}}

    @app.get("/api/live", response_class=StreamingResponse, responses={**NOT_THERE, **busy, **stream}, tags=["runs"])
    async def live(
        run: Several,
        after: Annotated[list[int] | None, Query(max_length=16, description="the last known step of each")] = None,
        last_event_id: Annotated[str, Header(max_length=400)] = "",
    ) -> Response:
        """What is new, as it happens: events metrics, evals, findings, status, reset and gone."""
        if desk.live.is_full:
            raise HTTPException(503, "too many viewers are connected: close some")
        names = list(dict.fromkeys(run))
        folders = [(name, desk.places.run(name)) for name in names]
        known: list[int | None] = list(after or ())
        had = parse_id(last_event_id, len(names)) if last_event_id else [*known, *[None] * len(names)][: len(names)]
        return StreamingResponse(desk.live.stream(folders, had), media_type="text/event-stream")


def _add_pages(app: FastAPI, desk: Desk) -> None:
    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return page.web_file("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return page.web_file(name)

    @app.get("/report", include_in_schema=False)
    def report(run: Name) -> Response:
        return page.report(desk.root, desk.places.run(run))

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> Response:
        return page.api_page(app.openapi())
