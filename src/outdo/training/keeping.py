"""What every run shares: it is evaluated, saved as it goes, and whatever ends it, what was learnt is kept."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outdo.errors import Halted, OutdoError, RunError
from outdo.evals.from_recipe import eval_params
from outdo.evals.held_out import Evaluation, describe_limits, evaluate_prompts, problems_of
from outdo.learn.sft import Imitator
from outdo.learn.update import Updates
from outdo.models.load import Policy, save_adapter, save_policy
from outdo.recipe.schema import Recipe
from outdo.report.write import try_report
from outdo.rewards.compose import Rewards
from outdo.runs import checkpoint
from outdo.runs.files import write_folder
from outdo.runs.manifest import Status
from outdo.runs.reader import read_rows
from outdo.runs.writer import RunWriter
from outdo.seeds import seed_of
from outdo.tasks.task import Task, held_out
from outdo.training import signals
from outdo.training.console import LiveTable, PlainLines, interval
from outdo.training.trackers import Trackers
from outdo.types import Sampler

L = TypeVar("L", bound=Updates)
Before = list[Evaluation]
After = list[Evaluation]


@dataclass(frozen=True)
class Start:
    """Where a run goes on: the checkpoint's folder and its state."""

    folder: Path
    state: dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What an earlier run found of the very model that a run starts from, asked in the very way."""

    where: str  # the run
    found: tuple[Evaluation, ...]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of, once everything is loaded."""

    recipe: Recipe
    task: Task
    rewards: Rewards | None  # without them there is no success to measure
    policy: Policy
    sampler: Sampler
    run: RunWriter
    reporter: PlainLines | LiveTable
    start: Start | None  # None: it begins
    known: Known | None  # of the model that it begins with


class Keeper(Generic[L]):
    """One run by one learner. A kind of run says what its phases are, and what else its checkpoints hold."""

    command: ClassVar[str]  # of `outdo`, that goes on with such a run

    def __init__(self, parts: Parts) -> None:
        self.recipe, self.task, self.rewards = recipe, task, rewards = parts.recipe, parts.task, parts.rewards
        self.policy, self.sampler, self.run, self.reporter = parts.policy, parts.sampler, parts.run, parts.reporter
        self.start, self.known = parts.start, parts.known
        looked_at = eval_splits(recipe, task) if rewards else []
        last = [s for s in recipe.final_eval_split if s not in looked_at] if rewards else []
        self.splits = {s: held_out(task, s, recipe.eval_size) for s in looked_at}
        self.final_splits = {s: held_out(task, s, recipe.eval_size) for s in last}
        self.learner: L | None = None
        self.undivided: signals.Undivided = nullcontext
        self.done = 0  # steps finished
        self.total = recipe.max_steps  # steps in all
        self.saver: threading.Thread | None = None
        self.last_saved = -1  # the step of the last checkpoint that was written
        self.trackers = Trackers.of(parts.run, recipe, parts.reporter.note)

    def _phases(self) -> tuple[Before, After]:
        raise NotImplementedError

    def _beside(self) -> tuple[dict[str, Any], Callable[[Path], None]]:
        """What a checkpoint of this kind holds beside weights and optimizer: plain values, and files."""
        return {}, lambda folder: None

    def _is_unsaved(self) -> bool:
        """Whether there is something that the last checkpoint has not."""
        return self.last_saved != self.done

    def train(self) -> tuple[Before, After]:
        try:
            with signals.heard() as self.undivided:  # also while the last words are written
                try:
                    return self._phases()
                except KeyboardInterrupt as error:
                    self._end("stopped", f"{error or 'interrupted'} after step {self.done}", whole=True)
                    raise
                except Halted as error:
                    with self.undivided():
                        self._end("stopped", str(error))
                    raise
                except BaseException as error:
                    why = str(error) if isinstance(error, OutdoError) else f"{type(error).__name__}: {error}"
                    with self.undivided():
                        self._end("failed", why)
                    raise
        finally:
            self.reporter.close()
            self.trackers.close(self.run.manifest.status == "done")
            try_report(self.run.folder, self.reporter.note)
            self.run.close()

    def _put_back(self, learner: L, start: Start) -> None:
        """The learner, the sampler and the files as the checkpoint had them. The weights came with the policy."""
        learner.load_state(load_file(start.folder / "optimizer.safetensors"), start.state["learner"])
        self.learner, self.done = learner, int(start.state["step"])
        self.sampler.load(learner.weights(), version=self.done)
        self.run.rewind(start.state["offsets"])
        earlier = self.run.manifest.resumed
        resumed = [*earlier, self.done] if isinstance(earlier, list) else [self.done]
        self.run.update_manifest(status="running", why="", resumed=resumed)

    @contextmanager
    def _timed(self, learner: Imitator) -> Iterator[None]:
        """Says how fast it was."""
        start = time.monotonic()
        yield
        rate = learner.seen / (time.monotonic() - start)
        self.reporter.note(f"  {learner.seen:,} tokens with their prompts, {rate:,.0f} a second")

    def _taught(self, rows: list[dict[str, Any]], steps: int, name: str = "step") -> None:
        """Updates on what was shown: kept, and told."""
        for row in rows:
            self.run.record_sft(row)
            self.trackers.taught(row)
            self.reporter.progress(name, row["step"], steps, f"loss {row['loss']:.3f}")

    def _finish(self) -> None:
        with self.undivided():
            self._save(wait=True)
            self._save_model()
            self.run.finish("done")

    # --- evaluating

    def _evaluated(self, step: int) -> list[Evaluation]:
        """What was found at that step, if it was looked at."""
        return [Evaluation.of(row) for row in read_rows(self.run.folder / "evals.jsonl") if row["step"] == step]

    def _evaluate(self, step: int) -> list[Evaluation]:
        """Held-out success, measured once for a step however often the run is gone on with."""
        if found := self._evaluated(step):
            return found
        carried = self._carried() if step == 0 else []
        found = carried or self._measure(step)
        with self.undivided():
            for result in found:
                self.run.record_eval(result.row(step))
                self.trackers.evaluated(result.row(step))
        for result in found:
            passes = "".join(f"  pass@{k} {value:.3f}" for k, value in result.pass_at.items())
            passes += describe_limits(result) if passes else ""
            lost = f"  {result.unjudged}" if result.unjudged else ""
            self.reporter.note(f"  {result.split}: success {interval(result)}{passes}{lost}")
        if carried and self.known:
            self.reporter.note(f"  carried over from {self.known.where}: the same model and problems, not asked again")
        return found

    def _carried(self) -> list[Evaluation]:
        """What is known of the model that it starts from, where that is of the very problems."""
        known = {(each.split, each.problems): each for each in self.known.found} if self.known else {}
        wanted = [(split, problems_of(prompt.id for prompt in prompts)) for split, prompts in self.splits.items()]
        return [known[key] for key in wanted] if all(key in known for key in wanted) else []

    def _measure(self, step: int) -> list[Evaluation]:
        recipe, rewards = self.recipe, self.rewards
        if rewards is None:
            return []
        params = eval_params(recipe)
        seed = seed_of("evaluation", recipe.seed, step)
        looked_at = self.splits | (self.final_splits if step == self.total else {})
        how = params, recipe.eval_samples, seed, recipe.eval_ks
        return [evaluate_prompts(ps, split, self.sampler, rewards, *how) for split, ps in looked_at.items()]

    # --- keeping

    def _save(self, wait: bool = False) -> None:
        """A checkpoint of where the last step ended. Copies are taken here; the disk is another thread's business."""
        assert self.learner
        self._saved()
        write = self._writer(self.learner)
        self.saver = threading.Thread(target=self._write, args=(self.done, write), name="checkpoint")
        self.saver.start()
        if wait:
            self._saved()

    def _saved(self) -> None:
        """Waits until the last save is on the disk."""
        if self.saver:
            self.saver.join()
            self.saver = None

    def _write(self, step: int, write: Callable[[Path], None]) -> None:
        """A disk that is full costs a checkpoint, not the run: the one before it is whole."""
        try:
            checkpoint.save(self.run.checkpoints, step, write)
            self.last_saved = step
            checkpoint.prune(self.run.checkpoints, self.recipe.save_total_limit, self._best())
        except Exception as error:
            self.reporter.note(f"  warning: no checkpoint of step {step}: {error}; the run goes on")

    def _writer(self, learner: L) -> Callable[[Path], None]:
        more, write_more = self._beside()  # first: the learner may count what is read there
        weights = {name: value.detach().to("cpu", copy=True) for name, value in learner.weights().items()}
        tensors, plain = learner.state()
        state = {"step": self.done, "learner": plain, **more, "offsets": self.run.offsets()}

        def write(folder: Path) -> None:
            save_policy(self.policy, folder, weights)
            save_file(tensors, folder / "optimizer.safetensors")
            write_more(folder)
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

        return write

    def _best(self) -> list[int]:
        """The evaluated step with the highest success that has a checkpoint; of a mixture, summed over its tasks."""
        there = {checkpoint.step_of(folder) for folder in checkpoint.existing(self.run.checkpoints)}
        kind = next(iter(self.splits), "").partition("/")[0]
        scored: dict[int, float] = {}
        for row in read_rows(self.run.folder / "evals.jsonl"):
            if row["step"] in there and row["split"].partition("/")[0] == kind:
                scored[row["step"]] = scored.get(row["step"], 0.0) + row["success_rate"]
        return [max(scored, key=lambda step: (scored[step], step))] if scored else []

    def _end(self, status: Status, why: str, whole: bool = False) -> None:
        """The last words of a run that did not finish: keep what there is, never hide the first error.

        `whole`: nothing is half done, so a checkpoint can be made of where it stands.
        """
        try:
            self._saved()
            if whole and self.learner and self._is_unsaved():
                self._save(wait=True)
            self._save_model()
        except Exception as error:  # whatever it is, the first error is the one to hear of
            why += f" (and the model could not be saved: {error})"
        with suppress(OSError):
            self.reporter.close()
            self.reporter.note(f"{status}: {self.done} steps are in {self.run.folder}")
            if whole and self.learner and self.last_saved != self.done:
                self.reporter.note(f"step {self.done} could not be saved; the checkpoints before it are whole")
            elif whole:
                self.reporter.note(f"go on with: outdo {self.command} --resume {shlex.quote(str(self.run.folder))}")
        with suppress(RunError):  # a disk that failed the run fails its last line too; the first error is on its way
            self.run.finish(status, why)

    def _save_model(self) -> None:
        try:
            write_folder(self.run.model_folder, lambda folder: save_policy(self.policy, folder))
            if self.policy.adapter:
                write_folder(self.run.adapter_folder, lambda folder: save_adapter(self.policy, folder))
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot save the model to {self.run.model_folder}: {error}") from error


def eval_splits(recipe: Recipe, task: Task) -> list[str]:
    """What is looked at all along; a split that the task has not is refused where its prompts are asked for."""
    held_back = recipe.final_eval_split
    usual = [s for kind in ("test", "ood") for s in task.splits if s.partition("/")[0] == kind]  # a mixture: test/NAME
    return recipe.eval_split or [s for s in usual if s not in held_back]
