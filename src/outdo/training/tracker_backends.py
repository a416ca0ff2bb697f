"""The tools behind `trackers.py`, each with its own conventions. A package is imported when its tool is opened, on the
tracker's thread; whatever it raises disables the tracker, never the run."""

from __future__ import annotations

import json
import logging
import netrc
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HTTPS = 443
CONNECT_TIMEOUT = 5.0  # seconds
MAX_VALUE_CHARS = 5000  # in mlflow, whose own limit is 6000
MAX_PARAMS = 100  # that mlflow accepts in one call
MAX_METRICS = 800  # in one call; mlflow's own limit is 1000
SEND_SECONDS = 1.0  # between two calls to mlflow
COLUMNS = ("prompt", "answer", "reward", "advantage", "verdict", "reason")


@dataclass(frozen=True)
class Subject:
    """The run that is tracked."""

    id: str  # the same when it is resumed
    name: str
    project: str | None  # None: the tool's environment variable, else outdo
    folder: Path
    recipe: Mapping[str, Any]
    facts: Mapping[str, Any]
    notify: Callable[[str], None]
    is_new: bool = True  # False: it is resumed

    def project_of(self, variable: str) -> str:
        return self.project or os.environ.get(variable) or "outdo"


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`. One writer per session of the run; rows that a
    resumed run computes again are not written again."""

    def __init__(self, subject: Subject) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary, self.tensor, self.types = event_pb2, summary_pb2, tensor_pb2, types_pb2
        self.writer = EventFileWriter(str(subject.folder / "tensorboard"))
        if subject.is_new:
            self._text(0, "recipe", fenced("\n".join(f"{key}: {value}" for key, value in subject.recipe.items())))

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, [self.summary.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._text(step, "answers", as_markdown(rows))

    def finding(self, step: int, code: str, text: str) -> None:
        self._text(step, f"findings/{code}", fenced(text))

    def close(self, completed: bool) -> None:
        self.writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        tensor = self.tensor.TensorProto(dtype=self.types.DT_STRING, string_val=[text.encode()])
        plugin = self.summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self.summary.SummaryMetadata(plugin_data=plugin)
        self._write(step, [self.summary.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    def _write(self, step: int, values: Sequence[Any]) -> None:
        summary = self.summary.Summary(value=values)
        self.writer.add_event(self.event.Event(wall_time=time.time(), step=step, summary=summary))
        self.writer.flush()


class Wandb:
    """Never prompts for a key: without a key or a network it writes to the run's folder, for `wandb sync`."""

    def __init__(self, subject: Subject) -> None:
        import wandb

        self.wandb, self.table = wandb, wandb.Table
        mode = wandb_mode(os.environ)
        if mode == "offline" and "WANDB_MODE" not in os.environ:
            place = subject.folder / "wandb"
            subject.notify(f"  wandb: no key or no network, so the run is offline: wandb sync {place}/offline-*")
        self.run = wandb.init(
            project=subject.project_of("WANDB_PROJECT"),
            name=subject.name,
            id=subject.id,
            dir=os.environ.get("WANDB_DIR") or str(subject.folder),
            config={**subject.recipe, "outdo": dict(subject.facts)},
            resume="allow",
            mode=mode,
            reinit="create_new",  # leaves a run of the user's own alone
            settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )
        for axis, names in (("step", ("train/*", "time/*", "eval/*", "answers")), ("sft/step", ("sft/*",))):
            self.run.define_metric(axis)
            for name in names:
                self.run.define_metric(name, step_metric=axis)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        axis = "sft/step" if any(name.startswith("sft/") for name in values) else "step"
        self.run.log({**values, axis: step})

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self.table(columns=list(COLUMNS), data=[[row[name] for name in COLUMNS] for row in rows])
        self.run.log({"answers": table, "step": step})

    def finding(self, step: int, code: str, text: str) -> None:
        self.run.tags = tuple(dict.fromkeys((*(self.run.tags or ()), code)))
        self.run.notes = "\n".join(filter(None, (self.run.notes, text)))
        self.run.summary[f"findings/{code}"] = text

    def close(self, completed: bool) -> None:
        self.run.finish(exit_code=0 if completed else 1)


def wandb_mode(environment: Mapping[str, str]) -> Any:
    """WANDB_MODE, else online where there is a key and the server accepts a connection."""
    if mode := environment.get("WANDB_MODE"):
        return mode
    host = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    with suppress(OSError, netrc.NetrcParseError):
        if environment.get("WANDB_API_KEY") or netrc.netrc().authenticators(host.hostname or "") is not None:
            socket.create_connection((host.hostname, host.port or HTTPS), timeout=CONNECT_TIMEOUT).close()
            return "online"
    return "offline"


class MLflow:
    """In MLFLOW_TRACKING_URI, else mlflow's default. A resumed run is found by its tag `outdo.id`."""

    def __init__(self, subject: Subject) -> None:
        for name in ("mlflow.store.db", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.metric, self.client = Metric, MlflowClient()
        self.pending: list[Any] = []  # metrics that are not sent yet
        self.last_sent = -SEND_SECONDS
        project = subject.project_of("MLFLOW_EXPERIMENT_NAME")
        existing = self.client.get_experiment_by_name(project)
        experiment = existing.experiment_id if existing else self.client.create_experiment(project)
        runs = self.client.search_runs([experiment], f"tags.`outdo.id` = '{subject.id}'")
        if runs:
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        facts = {f"outdo.{key}": json.dumps(value) for key, value in subject.facts.items()}
        run = self.client.create_run(experiment, run_name=subject.name, tags={"outdo.id": subject.id, **facts})
        self.id = run.info.run_id
        texts = {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in subject.recipe.items()}
        params = [Param(key, text[:MAX_VALUE_CHARS]) for key, text in texts.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(self.id, params=params[start : start + MAX_PARAMS])

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        self.pending += [self.metric(name, value, now, step) for name, value in values.items()]
        if len(self.pending) > MAX_METRICS or time.monotonic() - self.last_sent > SEND_SECONDS:
            self._send()

    def _send(self) -> None:
        """Rows of short steps are sent together: a call takes as long as a short update."""
        self.client.log_batch(self.id, metrics=self.pending)
        self.pending, self.last_sent = [], time.monotonic()

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.client.log_text(self.id, as_markdown(rows), f"answers/step-{step:06d}.md")

    def finding(self, step: int, code: str, text: str) -> None:
        self.client.set_tag(self.id, f"finding.{code}", text[:MAX_VALUE_CHARS])

    def close(self, completed: bool) -> None:
        self._send()
        self.client.set_terminated(self.id, "FINISHED" if completed else "FAILED")


class Trackio:
    """In its local store, or the Space of TRACKIO_SPACE_ID; `trackio show` opens it."""

    def __init__(self, subject: Subject) -> None:
        import trackio

        self.trackio = trackio
        project = re.sub(r"[^-\w. ]", "-", subject.project_of("TRACKIO_PROJECT"))
        name = f"{subject.name}-{subject.id[:4]}"  # trackio identifies a run by its name alone
        config = json.loads(json.dumps({**subject.recipe, "outdo": dict(subject.facts)}, default=str))
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = trackio.init(project=project, name=name, config=config, resume="allow", **quiet)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        data = [[row[name] for name in COLUMNS] for row in rows]
        self.run.log({"answers": self.trackio.Table(columns=list(COLUMNS), data=data)}, step=step)

    def finding(self, step: int, code: str, text: str) -> None:
        self.run.alert(code, text, level=self.trackio.AlertLevel.WARN, step=step)

    def close(self, completed: bool) -> None:
        self.run.finish()


def fenced(text: str) -> str:
    """A Markdown code block, whatever the text contains."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Answers as Markdown, for tools without tables."""
    parts = []
    for row in rows:
        numbers = (f"{name} {row[name]:.3g}" for name in ("reward", "advantage") if row[name] is not None)
        texts = (row["prompt"], row["answer"], *([row["reason"]] if row["reason"] else []))
        parts += [", ".join((f"**{row['verdict']}**", *numbers)), *map(fenced, texts)]
    return "\n\n".join(parts)
