"""The dashboard's endpoints. All are read-only: any method but GET is refused."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from outdo.dash import models, page
from outdo.dash.answers import Show as AnswerShow
from outdo.dash.answers import answers_page
from outdo.dash.live import Live, parse_event_id
from outdo.dash.places import SWEEP, Listing, Places, UnknownId
from outdo.dash.prompts import improved_prompts, prompt_page
from outdo.dash.summaries import Summaries, Sweeps, sweep_page
from outdo.doctor.compare import Comparison, compare_runs
from outdo.doctor.report import Findings, findings_of
from outdo.doctor.summary import RunPage, RunSummary, run_page
from outdo.errors import RunError
from outdo.metrics.catalogue import CATALOGUE
from outdo.runs.curves import Metrics, eval_records, load_curves
from outdo.runs.groups import FULL_CHARS, GroupRecord, load_groups, tokens_of
from outdo.runs.index import Location, read_location
from outdo.runs.run_reader import RunCache, RunReader
from outdo.runs.values import MAX_EXACT_INT, Record, as_text
from outdo.web.guard import Guard, Refusals
from outdo.web.sockets import own_names

RunId = Annotated[str, Query(max_length=4096, description="a run's id, as /api/runs lists it")]
RunIds = Annotated[list[str], Query(min_length=1, max_length=16, description="ids of runs; may be repeated")]
Step = Annotated[int, Query(ge=0, le=MAX_EXACT_INT, description="a step")]
StepLimit = Annotated[int | None, Query(ge=0, le=MAX_EXACT_INT, description="a step; no limit where it is left out")]
PointCount = Annotated[int, Query(ge=1, le=20_000, description="the maximum number of points")]
Prompt = Annotated[str, Query(max_length=100_000, description="a prompt's id")]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": models.Detail, "description": "not found"}}
ABOUT = "Run folders of outdo as JSON, read-only."
MAX_PROBLEMS = 20
REFUSALS = Refusals(
    foreign_host="use the address that outdo dash printed: this host name is not this machine's",
    no_token="this dashboard requires its token: open the address that outdo dash printed",
    too_many="too many wrong tokens came from your address: wait a little, then open the address that outdo dash "
    "printed",
    body=lambda status, reason: json.dumps({"detail": reason}).encode(),
)

Sort = Literal["spread", "reward", "length", "prompt", "id"]
Show = Literal["all", "informative", "all_right", "all_wrong", "broken"]

FILTERS: dict[Show, Callable[[GroupRecord], bool]] = {
    "all": lambda group: True,
    "informative": lambda group: bool(group.spread),
    "all_right": lambda group: group.right > 0 and not group.wrong and not group.spread,
    "all_wrong": lambda group: group.wrong > 0 and not group.right and not group.spread,
    "broken": lambda group: group.broken > 0,
}
SORT_KEYS: dict[Sort, Callable[[GroupRecord], Any]] = {
    "spread": lambda group: group.spread or 0.0,
    "reward": lambda group: -math.inf if group.mean is None else group.mean,
    "length": lambda group: statistics.fmean([a.length for a in group.answers if a.length is not None] or [0.0]),
    "prompt": lambda group: group.prompt,
    "id": lambda group: group.prompt_id,
}


class ApiState:
    def __init__(self, root: Path) -> None:
        self.places = Places(root)
        self.root = self.places.root
        self.cache, self.summaries, self.sweeps = RunCache(self.root), Summaries(self.root), Sweeps(self.root)
        self.live = Live(self.cache, self.summaries)

    def reader(self, run_id: str) -> RunReader:
        """Raises UnknownId."""
        return self.cache.reader(self.places.run(run_id))

    def all_summaries(self, listing: Listing) -> Iterator[RunSummary]:
        yield from (self.summaries.of(self.root / run_id, run_id) for run_id in listing.runs)
        for run_id in listing.foreign:
            with suppress(UnknownId, RunError):  # it is gone, or no longer recognised, or there is no room for it
                yield self.summary(run_id)

    def summary(self, run_id: str) -> RunSummary:
        return self.summaries.of(self.places.run(run_id), run_id)


def answer_json(record: Record) -> Response:
    """Serialized once, by the record itself."""
    return Response(record.model_dump_json(by_alias=True), media_type="application/json")


def guarded(
    api: FastAPI, token: str | None = None, loopback: bool = True, port: int = 0, host: str = "127.0.0.1"
) -> Guard:
    """`loopback`: only requests to this machine's own names are answered, and to the address that it listens on."""
    cookie = f"outdo-dash-{port}"  # cookies are shared by all ports of a host
    return Guard(
        api, token, own_names(host) if loopback else None, REFUSALS, cookie=cookie, private=("/api", "/report")
    )


def make_api(root: Path) -> FastAPI:
    state = ApiState(root)
    app = FastAPI(
        title="outdo dash", description=ABOUT, version="1", docs_url=None, redoc_url=None, openapi_url=page.SCHEMA
    )
    app.state.api = state

    @app.exception_handler(UnknownId)
    def unknown(request: Request, error: UnknownId) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=404)

    adders = (_add_runs, _add_numbers, _add_groups, _add_prompts, _add_answers, _add_comparisons, _add_live, _add_pages)
    for add in adders:
        add(app, state)
    return app


def _get(app: FastAPI, path: str, model: type[Record]) -> Callable[[Any], Any]:
    return app.get(path, response_model=model, responses=NOT_FOUND, tags=["runs"])


def _add_runs(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/runs", models.Runs)
    def runs(
        q: Annotated[str, Query(max_length=1000, description="words in the id, task or model")] = "",
        status: Annotated[str, Query(max_length=40)] = "",
        kind: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:
        """Every run and sweep under the root, the newest first."""
        listing = state.places.list()
        matches = [
            run
            for run in state.all_summaries(listing)
            if status in ("", run.status) and kind in ("", run.kind) and _matches(run, q.casefold().split())
        ]
        matches.sort(key=lambda run: run.started or "", reverse=True)
        shown = [sweep for each in listing.sweeps if (sweep := state.sweeps.of(state.root / each, each))]
        root, problems = as_text(str(state.root)), list(listing.problems)
        return answer_json(models.Runs(root=root, runs=matches, sweeps=shown, trouble=problems))

    @_get(app, "/api/run", RunPage)
    def run(run: RunId) -> Response:
        """One run: its recipe, its facts and its cost so far."""
        return answer_json(run_page(state.reader(run), state.summary(run)))

    @app.get("/api/signals", response_model=models.Charts, tags=["words"])
    def signals() -> Response:
        """The charts: what each signal means, and what to do when it is bad."""
        return answer_json(models.Charts(charts=CATALOGUE))


def _matches(run: RunSummary, words: list[str]) -> bool:
    text = f"{run.id} {run.task} {run.model} {run.kind} {run.trainer} {run.status}".casefold()
    return all(word in text for word in words)


def _add_numbers(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/metrics", Metrics)
    def metrics(
        run: RunId,
        points: PointCount = 1000,
        first: StepLimit = None,
        last: StepLimit = None,
        names: Annotated[str, Query(max_length=10_000, description="signals, comma-separated; all if empty")] = "",
    ) -> Response:
        """Curves: every row where they fit, else equal bins with mean, minimum and maximum of each."""
        wanted = [name for name in names.split(",") if name]
        return answer_json(load_curves(state.reader(run).metrics, points, first, last, wanted))

    @_get(app, "/api/sft", Metrics)
    def sft(run: RunId, points: PointCount = 1000, first: StepLimit = None, last: StepLimit = None) -> Response:
        """Curves of supervised training."""
        return answer_json(load_curves(state.reader(run).sft, points, first, last))

    @_get(app, "/api/evals", models.Evals)
    def evals(run: RunId) -> Response:
        """Held-out success. A step here is the number of steps done: 0 is before the first."""
        file = state.reader(run).evals
        return answer_json(models.Evals(evals=eval_records(file.all()), trouble=file.problems()))

    @_get(app, "/api/findings", Findings)
    def findings(run: RunId) -> Response:
        """The doctor's findings on the complete history so far, and earlier ones that no longer hold."""
        return answer_json(findings_of(state.reader(run)))


def _add_groups(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/steps", models.StepList)
    def steps(run: RunId, first: StepLimit = None, last: StepLimit = None) -> Response:
        """The steps whose answers are recorded."""
        low, high = first or 0, MAX_EXACT_INT if last is None else last
        recorded = [step for step in state.reader(run).steps() if low <= step <= high]
        return answer_json(models.StepList(steps=recorded, ranges=_ranges(recorded)))

    @_get(app, "/api/groups", models.Groups)
    def groups(
        run: RunId,
        step: Step,
        sort: Sort = "spread",
        order: Literal["desc", "asc"] = "desc",
        show: Show = "all",
        limit: Annotated[int, Query(ge=1, le=500)] = 24,
        offset: Annotated[int, Query(ge=0, le=MAX_EXACT_INT)] = 0,
    ) -> Response:
        """The groups of a step, with texts cut to 2,000 characters."""
        reader = state.reader(run)
        locations, problems = reader.groups.at(step)
        records, unread = load_groups(reader.root, locations)
        shown = sorted(filter(FILTERS[show], records), key=SORT_KEYS[sort], reverse=order == "desc")
        selected, problems = shown[offset : offset + limit], [*problems, *unread][:MAX_PROBLEMS]
        return answer_json(models.Groups(step=step, total=len(shown), groups=selected, trouble=problems))

    @_get(app, "/api/group", GroupRecord)
    def group(run: RunId, step: Step, prompt: Prompt) -> Response:
        """One group with its full texts."""
        reader = state.reader(run)
        records, unread = load_groups(reader.root, [_location(reader, step, prompt)], FULL_CHARS)
        if not records:
            raise HTTPException(404, "; ".join(unread) or "the group cannot be read")
        return answer_json(records[0])

    @_get(app, "/api/tokens", models.Tokens)
    def tokens(run: RunId, step: Step, prompt: Prompt, answer: Annotated[int, Query(ge=0, le=4096)]) -> Response:
        """The tokens of one answer: text, log-probability, and the ratio that the update gave each."""
        reader = state.reader(run)
        try:
            records = tokens_of(read_location(reader.root, _location(reader, step, prompt)), answer)
        except (OSError, ValueError) as error:
            raise HTTPException(404, str(error)) from None
        if records is None:
            raise HTTPException(404, "the tokens of this answer were not recorded: log_tokens sets how many are")
        return answer_json(models.Tokens(tokens=records))


def _location(reader: RunReader, step: int, prompt: str) -> Location:
    locations, _ = reader.groups.at(step, prompt)
    if not locations:
        raise HTTPException(404, f"step {step} has no group of {prompt!r:.200}")
    return locations[0]


def _ranges(steps: list[int]) -> list[list[int]]:
    known = set(steps)
    firsts, lasts = ([step for step in steps if step + way not in known] for way in (-1, 1))
    return [[first, last] for first, last in zip(firsts, lasts, strict=True)]


def _add_prompts(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/prompt", models.PromptPage)
    def prompt(run: RunId, prompt: Prompt) -> Response:
        """One prompt through all steps."""
        reader = state.reader(run)
        history = prompt_page(reader.root, reader.groups, prompt)
        if history is None:
            raise HTTPException(404, f"no recorded step has the prompt {prompt!r:.200}")
        return answer_json(history)

    @_get(app, "/api/improved", models.Improved)
    def improved(run: RunId, limit: Annotated[int, Query(ge=1, le=1000)] = 24) -> Response:
        """Prompts that were sampled at two steps or more, the largest gain first."""
        return answer_json(improved_prompts(state.reader(run), limit))


def _add_answers(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/answers", models.AnswerPage)
    def answers(
        run: RunId,
        other: Annotated[str, Query(max_length=4096, description="another run; the same if empty")] = "",
        split: Annotated[str, Query(max_length=1000, description="the first that was evaluated if empty")] = "",
        before: Annotated[int | None, Query(ge=0, le=MAX_EXACT_INT, description="steps done, of `run`")] = None,
        after: Annotated[int | None, Query(ge=0, le=MAX_EXACT_INT, description="steps done, of `other`")] = None,
        show: AnswerShow = "all",
        q: Annotated[str, Query(max_length=1000, description="words in the prompt or an answer")] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 24,
        offset: Annotated[int, Query(ge=0, le=MAX_EXACT_INT)] = 0,
    ) -> Response:
        """Held-out answers of two evaluations side by side: gained, lost, right in both, in neither."""
        sides = (run, state.reader(run)), (other or run, state.reader(other or run))
        page = slice(offset, offset + limit)
        return answer_json(answers_page(sides, split, (before, after), show, q, page))


def _add_comparisons(app: FastAPI, state: ApiState) -> None:
    @_get(app, "/api/compare", Comparison)
    def compare(run: RunIds) -> Response:
        """Runs side by side, as `outdo compare` has them; differences are from the first."""
        return answer_json(compare_runs([(state.reader(each), state.summary(each)) for each in dict.fromkeys(run)]))

    @_get(app, "/api/sweep", models.SweepPage)
    def sweep(sweep: Annotated[str, Query(max_length=4096, description="a sweep's id")]) -> Response:
        """A sweep: its cells, and the best setting."""
        try:
            return answer_json(sweep_page(state.root, state.places.sweep(sweep), sweep))
        except (OSError, ValueError) as error:
            raise HTTPException(404, f"{SWEEP} cannot be read: {error}") from None


def _add_live(app: FastAPI, state: ApiState) -> None:
    busy: dict[int | str, dict[str, Any]] = {503: {"model": models.Detail, "description": "too many viewers"}}
    stream: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}, "description": "events"}}

    @app.get("/api/live", response_class=StreamingResponse, responses={**NOT_FOUND, **busy, **stream}, tags=["runs"])
    async def live(
        run: RunIds,
        after: Annotated[list[int] | None, Query(max_length=16, description="the last known step of each")] = None,
        last_event_id: Annotated[str, Header(max_length=400)] = "",
    ) -> Response:
        """Server-sent events: metrics, evals, findings, status, reset and gone."""
        if state.live.is_full:
            raise HTTPException(503, "too many viewers are connected: close some")
        folders = {run_id: state.places.run(run_id) for run_id in run}
        if last_event_id:
            last_steps = parse_event_id(last_event_id, len(folders))
        else:
            last_steps = [*(after or ()), *[None] * len(folders)][: len(folders)]
        return StreamingResponse(state.live.stream(list(folders.items()), last_steps), media_type="text/event-stream")


def _add_pages(app: FastAPI, state: ApiState) -> None:
    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return page.web_file("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return page.web_file(name)

    @app.get("/report", include_in_schema=False)
    def report(run: RunId) -> Response:
        return page.report(state.root, state.places.run(run))

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> Response:
        return page.api_page(app.openapi())
