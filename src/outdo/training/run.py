"""What every training run shares: it is evaluated, saved as it goes, and whatever ends it, what was learnt is kept."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from safetensors import SafetensorError

from outdo.doctor.conditions import IN_SAMPLING, IN_UPDATE, describe_out_of_memory
from outdo.errors import Halted, OutdoError, OutOfMemory, RunError
from outdo.evals.held_out import Evaluation
from outdo.learn.memory import is_out_of_memory, release_memory
from outdo.learn.update import BaseLearner
from outdo.metrics.measure import Metrics
from outdo.models.load import Policy, save_adapter, save_policy
from outdo.runs import checkpoint
from outdo.runs.files import Writer, write_folder
from outdo.runs.manifest import Status
from outdo.runs.writer import RunWriter
from outdo.training import interrupts
from outdo.training.callbacks import Callback, notify
from outdo.training.checkpointing import Checkpointer, load_optimizer
from outdo.training.context import Result, RunContext
from outdo.training.evaluation import Evaluator
from outdo.training.monitors import built_in_callbacks
from outdo.types import Group, Sampler

L = TypeVar("L", bound=BaseLearner)
COMMANDS = {"grpo": "train", "sft": "sft"}  # of `outdo`, that resume such a run


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from: its folder and its state."""

    folder: Path
    state: dict[str, Any]


class TrainingRun(Generic[L]):
    """One run of one learner, and what callbacks see of it."""

    def __init__(self, context: RunContext, policy: Policy, sampler: Sampler, writer: RunWriter) -> None:
        self.context, self.recipe, self.reporter = context, context.recipe, context.reporter
        self.policy, self.sampler, self.writer = policy, sampler, writer
        self.done = 0  # steps finished
        self.tokens = 0  # sampled in the last step
        self.total = context.recipe.max_steps  # steps in all
        self._learner: L | None = None
        self.uninterruptible: interrupts.Uninterruptible = nullcontext
        self.evaluator = Evaluator(context.recipe, context.task, context.rewards, writer, context.prior_evals)
        kind = next(iter(self.evaluator.splits), "").partition("/")[0]
        self.checkpointer = Checkpointer(writer, context.recipe.save_total_limit, kind, context.reporter.note)
        self.callbacks: list[Callback] = [*built_in_callbacks(self), *context.callbacks]
        self.checkpoint_state: Callable[[], dict[str, Any]] = dict  # of this kind of run, beside the learner's
        self.checkpoint_files: Callable[[], Writer] = lambda: lambda folder: None
        self.has_pending: Callable[[], bool] = lambda: False  # work since the last step that is worth a checkpoint
        self._halt: Halted | None = None
        self._finish_early = ""

    @property
    def folder(self) -> Path:
        return self.writer.folder

    @property
    def learner(self) -> L:
        assert self._learner, "there is no learner before the warm-up is over"
        return self._learner

    @learner.setter
    def learner(self, learner: L) -> None:
        self._learner = learner

    def begin(self, phase: str) -> None:
        """Training starts here, with weights and rows as they were where it resumed."""
        self.reporter.begin(phase)
        notify(self.callbacks, "on_start", self)

    # --- steering

    def halt(self, error: Halted | str) -> None:
        """Ends the run after the callbacks of this step, as stopped. The model so far is saved."""
        self._halt = self._halt or (error if isinstance(error, Halted) else Halted(error))

    def finish_early(self, reason: str) -> None:
        """Ends the run when this step is complete, as done: with its last evaluation, checkpoint and model."""
        self._finish_early = self._finish_early or reason

    # --- events of the loop

    def step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self.done, self.tokens = step + 1, int(metrics.get("tokens") or 0)
        notify(self.callbacks, "on_step", self, step, metrics, groups)
        self._raise_if_halted()

    def step_end(self, done: int) -> bool:
        notify(self.callbacks, "on_step_end", self, done)
        self._raise_if_halted()
        if self._finish_early:
            self.total = done
            self.reporter.note(f"finished early, after step {done}: {self._finish_early}")
        return not self._finish_early

    def step_failed(self, step: int, groups: Sequence[Group]) -> None:
        with suppress(RunError):  # the first error is on its way
            path = self.writer.record_failed_step(step, groups)
            self.reporter.note(f"the answers of the step that failed are in {path}")

    def sft_steps(self, rows: Sequence[dict[str, Any]], total: int, name: str = "step") -> None:
        """Supervised updates: recorded and shown."""
        for row in rows:
            notify(self.callbacks, "on_sft_step", self, row)
            if "loss" in row:
                self.reporter.progress(name, row["step"], total, f"loss {row['loss']:.3f}")
        self._raise_if_halted()

    def _raise_if_halted(self) -> None:
        if self._halt:
            raise self._halt

    # --- evaluation

    def evaluate(self, step: int) -> list[Evaluation]:
        """Held-out success after `step` steps, measured once."""
        recorded, is_last = self.evaluator.recorded(step), step == self.total
        measured = {one.split for one in recorded}
        if recorded and not (is_last and self.evaluator.final_splits.keys() - measured):
            return recorded
        carried = self.evaluator.carried_over() if step == 0 else []
        evaluations = carried or self.evaluator.measure(self.sampler, step, is_last, measured)
        notify(self.callbacks, "on_eval", self, step, evaluations)
        if carried and self.evaluator.prior:
            source = self.evaluator.prior.run
            self.reporter.note(f"  carried over from {source}: the same model and problems, not evaluated again")
        return [*recorded, *evaluations]

    def evaluate_if_due(self) -> None:
        """Every `eval_steps` steps; the last evaluation is that of the end."""
        every = self.recipe.eval_steps
        if every and self.done % every == 0 and 0 < self.done < self.recipe.max_steps:
            self.evaluate(self.done)

    # --- checkpoints

    def save(self, wait: bool = False) -> None:
        """A checkpoint of where the last step ended."""
        files = self.checkpoint_files()  # first: a learner may report rows here that the checkpoint counts
        states = {name: one.state() for name, one in self._named_callbacks().items()}
        state = {**self.checkpoint_state(), "callbacks": {name: each for name, each in states.items() if each}}
        self._notify_saved()
        self.checkpointer.save(self.done, self.policy, self.learner, state, files)
        if wait:
            self._notify_saved()

    def _named_callbacks(self) -> dict[str, Callback]:
        """By class, with a number where there are several of one."""
        names = [type(one).__name__ for one in self.callbacks]
        numbers = [names[:index].count(name) for index, name in enumerate(names)]
        keys = [f"{name}#{number}" if number else name for name, number in zip(names, numbers, strict=True)]
        return dict(zip(keys, self.callbacks, strict=True))

    def _notify_saved(self) -> None:
        """Waits for the checkpoint that is being written, and notifies of it in this thread."""
        if (step := self.checkpointer.wait()) is not None:
            notify(self.callbacks, "on_save", self, step, self.writer.checkpoints / checkpoint.name_of(step))

    def restore(self, learner: L, point: ResumePoint) -> None:
        """The learner, the sampler and the files as the checkpoint had them. The weights came with the policy."""
        load_optimizer(learner, point.folder, point.state)
        self.learner, self.done = learner, int(point.state["step"])
        self.sampler.update(learner, version=self.done)
        self.writer.rewind(point.state["offsets"])
        states = point.state.get("callbacks") or {"KLGuard": {"past_limit": point.state.get("past_limit", 0)}}
        for name, callback in self._named_callbacks().items():
            if name in states:
                callback.load_state(states[name])
        earlier = self.writer.manifest.resumed
        resumed = [*earlier, self.done] if isinstance(earlier, list) else [self.done]
        self.writer.update_manifest(status="running", why="", resumed=resumed)
        self.reporter.note(f"resumed after step {self.done}")

    # --- the ends

    @contextmanager
    def session(self) -> Iterator[None]:
        """The body is the run. However it ends, that is recorded and the model is saved; the error passes on."""
        try:
            with interrupts.listen() as self.uninterruptible:  # also while the last lines are written
                try:
                    yield
                except KeyboardInterrupt as error:
                    self._end("stopped", f"{error or 'interrupted'} after step {self.done}", resumable=True)
                    raise
                except Halted as error:
                    with self.uninterruptible():
                        self._end("stopped", str(error))
                    raise
                except BaseException as error:
                    if is_out_of_memory(error):
                        raise self._end_out_of_memory(error) from error
                    why = str(error) if isinstance(error, OutdoError) else f"{type(error).__name__}: {error}"
                    with self.uninterruptible():
                        self._end("failed", why)
                    raise
        finally:
            self.reporter.close()
            self._notify_end()
            self.writer.close()

    def _end_out_of_memory(self, error: BaseException) -> OutOfMemory:
        """The run ends as stopped, in words that name the change that helps."""
        modules = {frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)}
        where = IN_UPDATE if any(name.startswith("outdo.learn.") for name in modules) else IN_SAMPLING
        text = str(error)
        traceback.clear_frames(error.__traceback__)  # which hold the tensors that filled the memory
        release_memory(self.policy.device)
        recipe = self.recipe.model_dump(mode="json")
        halted = OutOfMemory(describe_out_of_memory(where, self.done, recipe, self.tokens, text))
        with self.uninterruptible():
            self._end("stopped", str(halted))
        return halted

    def _notify_end(self) -> None:
        """Notifies every callback; an error in one is a warning, not a failed run."""
        manifest = self.writer.manifest
        for callback in self.callbacks:
            try:
                notify([callback], "on_end", self, manifest.status, manifest.why)
            except (OutdoError, OSError) as error:
                with suppress(OSError):
                    self.reporter.note(f"  warning: {error}")

    def finish(self) -> None:
        with self.uninterruptible():
            self.save(wait=True)
            self._save_model()
            self.writer.finish("done", self._finish_early)

    def result(self, before: list[Evaluation], after: list[Evaluation]) -> Result:
        return Result(self.folder, self.writer.model_folder, before, after, self.recipe)

    def _end(self, status: Status, why: str, resumable: bool = False) -> None:
        """The end of a run that did not finish: keeps what there is, and never hides the first error. `resumable`:
        nothing is half done, so that a checkpoint of this moment is valid."""
        try:
            self.checkpointer.wait()
            if resumable and self._learner and (self.has_pending() or self.checkpointer.last_step != self.done):
                self.save(wait=True)
            self._save_model()
        except Exception as error:  # whatever it is, the first error is the one to report
            why += f" (and the model could not be saved: {error})"
        with suppress(OSError):
            self.reporter.close()
            self.reporter.note(f"{status}: {self.done} steps are in {self.folder}")
            if resumable and self._learner and self.checkpointer.last_step != self.done:
                self.reporter.note(f"step {self.done} could not be saved; the checkpoints before it are valid")
            elif resumable:
                command = COMMANDS[self.context.kind]
                self.reporter.note(f"resume with: outdo {command} --resume {shlex.quote(str(self.folder))}")
        with suppress(RunError):  # a disk that failed the run fails its last line too
            self.writer.finish(status, why)

    def _save_model(self) -> None:
        try:
            write_folder(self.writer.model_folder, lambda folder: save_policy(self.policy, folder))
            if self.policy.adapter:
                write_folder(self.writer.adapter_folder, lambda folder: save_adapter(self.policy, folder))
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot save the model to {self.writer.model_folder}: {error}") from error
