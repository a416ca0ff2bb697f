"""What every training run shares: it is evaluated, saved as it goes, and whatever ends it, what was learnt is kept."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from outdo.doctor.conditions import IN_SAMPLING, IN_UPDATE, describe_out_of_memory
from outdo.errors import BrokenGraders, Halted, OutdoError, OutOfMemory, RunError, describe
from outdo.evals.held_out import Evaluation
from outdo.learn.memory import frozen_objects, is_out_of_memory, release_memory
from outdo.learn.update import BaseLearner
from outdo.metrics.measure import Metrics
from outdo.models.load import Policy
from outdo.parallel.launch import resume_command
from outdo.parallel.world import ProcessLost, get_world, is_common
from outdo.runs import checkpoint
from outdo.runs.files import Writer
from outdo.runs.manifest import Status
from outdo.runs.writer import RunWriter
from outdo.training import interrupts
from outdo.training.best import Best
from outdo.training.callbacks import Callback, notify, notify_everywhere
from outdo.training.checkpointing import Checkpointer, load_optimizer
from outdo.training.context import COMMANDS, Result, RunContext, epoch_of
from outdo.training.evaluation import Evaluator
from outdo.training.monitors import built_in_callbacks
from outdo.training.saved_model import save_model
from outdo.types import Group, Sampler

L = TypeVar("L", bound=BaseLearner)
WARM_UP = "warm_up"  # the phase of a checkpoint from before the first GRPO step


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from: its folder and its state."""

    folder: Path
    state: dict[str, Any]

    @property
    def in_warm_up(self) -> bool:
        return self.state.get("phase") == WARM_UP


class TrainingRun(Generic[L]):
    """One run of one learner, and what callbacks see of it."""

    def __init__(self, context: RunContext, policy: Policy, sampler: Sampler, writer: RunWriter) -> None:
        self.context, self.recipe, self.reporter = context, context.recipe, context.reporter
        self.policy, self.sampler, self.writer = policy, sampler, writer
        self.done = 0  # steps finished
        self.tokens = 0  # sampled in the last step
        self.total = context.recipe.max_steps  # steps in all
        self._learner: L | None = None
        self.warm_up: BaseLearner | None = None  # the learner of the warm-up, while it lasts
        self.uninterruptible: interrupts.Uninterruptible = nullcontext
        self.evaluator = Evaluator(context.recipe, context.task, context.rewards, writer, context.prior_evals)
        kind = next(iter(self.evaluator.splits), "").partition("/")[0]
        self.checkpointer = Checkpointer(writer, context.recipe, kind, context.reporter.note)
        self.checkpointer.protected |= set((writer.manifest.halted or {}).get("kept", ()))
        self.world = get_world()
        own = [one for one in context.callbacks if one.everywhere or self.world.is_first]
        self.callbacks: list[Callback] = [*built_in_callbacks(self), *own]
        self.checkpoint_state: Callable[[], dict[str, Any]] = dict  # of this kind of run, beside the learner's
        self.checkpoint_files: Callable[[], Writer] = lambda: lambda folder: None
        self.has_pending: Callable[[], bool] = lambda: False  # work since the last step that is worth a checkpoint
        self.steps_per_epoch = epoch_of(context.kind, context.recipe, context.task)
        self.best: Best | None = None  # whose weights the saved model has; None: the last step's
        self._halt: Halted | None = None
        self._evaluates_halt = True
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

    @property
    def any_learner(self) -> BaseLearner | None:
        """That of the warm-up while it lasts; None before there is one."""
        return self.warm_up or self._learner

    def begin(self, phase: str) -> None:
        """Training starts here, with weights and rows as they were where it resumed."""
        self.reporter.begin(phase)
        self._notify("on_start")

    # --- steering

    def halt(self, error: Halted | str, evaluate: bool = True) -> None:
        """Ends the run after the callbacks of this step, as stopped: with an evaluation, a checkpoint and the model."""
        self._evaluates_halt = evaluate
        self._halt = self._halt or (error if isinstance(error, Halted) else Halted(error))

    def finish_early(self, reason: str) -> None:
        """Ends the run when this step or supervised update is complete, as done: with its last evaluation, checkpoint
        and model. In the warm-up it ends the whole run."""
        self._finish_early = self._finish_early or reason

    @property
    def is_finishing(self) -> bool:
        return bool(self._finish_early)

    def _notify(self, event: str, *arguments: Any) -> None:
        notify_everywhere(self, event, *arguments)

    def steering(self) -> dict[str, Any]:
        """What callbacks may have changed."""
        learner = self.any_learner
        scales = {name: getattr(learner, name) for name in ("rate_scale", "beta") if hasattr(learner, name)}
        halt = self._halt and self.world.portable(self._halt)
        return {"halt": halt, "evaluates": self._evaluates_halt, "early": self._finish_early, "scales": scales}

    def steer(self, steering: Mapping[str, Any]) -> None:
        """Takes over what the callbacks of the first process have changed."""
        self._halt, self._evaluates_halt = steering["halt"], steering["evaluates"]
        self._finish_early = steering["early"]
        for name, value in steering["scales"].items():
            setattr(self.any_learner, name, value)

    # --- events of the loop

    def step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self.done, self.tokens = step + 1, int(metrics.get("tokens") or 0)
        self._notify("on_step", self.done, metrics, groups)
        self.raise_if_halted()

    def step_end(self, done: int) -> bool:
        self._notify("on_step_end", done)
        self.raise_if_halted()
        if self.is_finishing:
            self.end_early(done, f"step {done}")
        return not self.is_finishing

    def end_early(self, done: int, after: str) -> None:
        """From here on the run has `done` steps in all."""
        self.total = done
        self.reporter.note(f"finished early, after {after}: {self._finish_early}")

    def step_failed(self, step: int, groups: Sequence[Group]) -> None:
        with suppress(RunError):  # the first error is on its way
            path = self.writer.record_failed_step(step + 1, groups)
            self.reporter.note(f"the answers of the step that failed are in {path}")

    def sft_steps(self, rows: Sequence[dict[str, Any]], total: int, name: str = "step") -> None:
        """Supervised updates: recorded and shown."""
        for row in rows:
            self._notify("on_sft_step", row)
            if "loss" in row:
                self.reporter.progress(name, row["step"], total, f"loss {row['loss']:.3f}")

    def raise_if_halted(self) -> None:
        if self._halt:
            raise self._halt

    # --- evaluation

    def evaluate(self, step: int) -> list[Evaluation]:
        """Held-out success after `step` steps, measured once."""
        self.world.refuse_alone("an evaluation")
        recorded, is_last = self.world.first(lambda: self.evaluator.recorded(step)), step == self.total
        measured = {one.split for one in recorded}
        if recorded and not (is_last and self.evaluator.final_splits.keys() - measured):
            return recorded
        carried = self.evaluator.carried_over() if step == 0 else []
        evaluations = carried or self.evaluator.measure(self.sampler, step, is_last, measured)
        self._notify("on_eval", step, evaluations)
        if carried and self.evaluator.prior:
            source = self.evaluator.prior.run
            self.reporter.note(f"  carried over from {source}: the same model and problems, not evaluated again")
        return [*recorded, *evaluations]

    def evaluate_if_due(self) -> None:
        """By `eval_strategy`; the last evaluation is that of the end."""
        recipe = self.recipe
        if self.is_due(recipe.eval_strategy, recipe.eval_steps) and 0 < self.done < recipe.max_steps:
            self.evaluate(self.done)

    def is_due(self, strategy: str, every: int) -> bool:
        """Whether something is to happen now, every so many steps or where an epoch ends."""
        if strategy == "epoch":
            return int(self.done / self.steps_per_epoch) > int((self.done - 1) / self.steps_per_epoch)
        return strategy == "steps" and every > 0 and self.done % every == 0

    # --- checkpoints

    def save_is_due(self) -> bool:
        """By `save_strategy`; and where the best checkpoint is wanted, when this step's evaluation is the best."""
        recipe = self.recipe
        wants_best = recipe.save_strategy == "best" or recipe.load_best_model_at_end
        if wants_best and self.world.first(lambda: self.checkpointer.is_best(self.done)):
            return True
        return self.is_due(recipe.save_strategy, recipe.save_steps)

    def save(self, wait: bool = False) -> None:
        """A checkpoint of where the last step ended, unless its weights are NaN or infinite."""
        self.world.refuse_alone("a checkpoint")
        learner = self.warm_up or self.learner
        if not learner.is_finite():
            return self.reporter.note(f"  warning: no checkpoint of step {self.done}: its weights are non-finite")
        files = self.checkpoint_files()  # first: a learner may report rows here that the checkpoint counts
        states = {name: one.state() for name, one in self._named_callbacks().items()}
        state = {**self.checkpoint_state(), "callbacks": {name: each for name, each in states.items() if each}}
        state |= {"phase": WARM_UP} if self.warm_up else {}
        self._notify_saved()
        self.checkpointer.save(self.done, self.policy, learner, state, files)
        if wait:
            self._notify_saved()

    def keep_from_before(self, step: int) -> Path | None:
        """The newest checkpoint of the policy before it sampled that step's answers. It is kept from here on."""
        folders = checkpoint.existing(self.writer.checkpoints)
        saved = [each for each in folders if checkpoint.step_of(each) < max(step - 1, 1)]
        if saved:
            self.checkpointer.protected.add(checkpoint.step_of(saved[-1]))
        return saved[-1] if saved else None

    def _named_callbacks(self) -> dict[str, Callback]:
        """By class, with a number where there are several of one."""
        names = [type(one).__name__ for one in self.callbacks]
        numbers = [names[:index].count(name) for index, name in enumerate(names)]
        keys = [f"{name}#{number}" if number else name for name, number in zip(names, numbers, strict=True)]
        return dict(zip(keys, self.callbacks, strict=True))

    def _notify_saved(self) -> None:
        """Waits for the checkpoint that is being written, and notifies of it in this thread."""
        step = self.checkpointer.wait()
        if (step := self.world.first(lambda: step)) is not None:
            self._notify("on_save", step, self.writer.checkpoints / checkpoint.name_of(step))

    def restore(self, learner: L, point: ResumePoint) -> None:
        """The learner, the sampler and the files as the checkpoint had them. The weights came with the policy."""
        self.restore_files(learner, point)
        self.learner, self.done = learner, int(point.state["step"])
        self.sampler.update(learner, version=self.done)
        self.reporter.note(f"resumed after step {self.done}")

    def restore_files(self, learner: BaseLearner, point: ResumePoint) -> None:
        """A learner, the files and the callbacks' states."""
        load_optimizer(learner, point.folder, point.state)
        self.writer.rewind(point.state["offsets"])
        states = point.state.get("callbacks") or {"KLGuard": {"past_limit": point.state.get("past_limit", 0)}}
        for name, callback in self._named_callbacks().items():
            if name in states:
                callback.load_state(states[name])
        earlier, step = self.writer.manifest.resumed, int(point.state["step"])
        resumed = [*earlier, step] if isinstance(earlier, list) else [step]
        self.writer.update_manifest(status="running", why="", resumed=resumed, halted=None)

    # --- the ends

    @contextmanager
    def session(self) -> Iterator[None]:
        """The body is the run. However it ends, that is recorded and the model is saved; the error passes on."""
        if self.world.watch:
            self.world.watch.on_lost = lambda why: self._end_alone(ProcessLost(why))
        try:
            # also while the last lines are written
            with interrupts.listen(self.world) as self.uninterruptible, frozen_objects():
                try:
                    yield
                except KeyboardInterrupt as error:
                    self.world.interruptible = nullcontext  # all have it: their own signals may be still to come
                    self._end("stopped", f"{error or 'interrupted'} after step {self.done}", resumable=True)
                    raise
                except Halted as error:
                    can_resume = self._can_save(error)
                    if can_resume and self._evaluates_halt and not isinstance(error, BrokenGraders):
                        self._evaluate_halted()
                    with self.uninterruptible():
                        self._end("stopped", str(error), can_resume, error)
                    raise
                except BaseException as error:
                    if self.world.is_shared and not is_common(error):
                        self._end_alone(error)
                        raise
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

    def _end_alone(self, error: BaseException) -> None:
        """The end of one process of several, or of what the loss of one leaves: nothing can be saved any more."""
        self.world.report_failure(error)
        why = str(error) if isinstance(error, OutdoError) else describe(error)
        with suppress(Exception):
            self.checkpointer.wait()
        with suppress(OSError):
            self.reporter.close()
            self.reporter.note(f"stopped: {self.done} steps are in {self.folder}")
            if self.checkpointer.last_step >= 0 or checkpoint.existing(self.writer.checkpoints):
                self.reporter.note(f"resume from the last checkpoint with: {self._resume_command()}")
        with suppress(RunError):
            self.writer.finish("stopped" if isinstance(error, ProcessLost) else "failed", why)

    def _resume_command(self) -> str:
        return resume_command(f"outdo {COMMANDS[self.context.kind]} --resume {shlex.quote(str(self.folder))}")

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
            save_model(self, use_best=True)
            self.writer.finish("done", self._finish_early)

    def result(self, before: list[Evaluation], after: list[Evaluation]) -> Result:
        return Result(self.folder, self.writer.model_folder, before, after, self.recipe, best=self.best)

    def _can_save(self, error: Halted) -> bool:
        """Whether a halted run is at the end of a step, with weights that are worth a checkpoint."""
        learner = self.any_learner
        return bool(learner and (error is self._halt or learner.is_between_steps) and learner.is_finite())

    def _evaluate_halted(self) -> None:
        """Held-out success where the run was halted. An error or an interrupt here costs this evaluation only."""
        if not self._learner or not self.evaluator.splits:
            return
        try:
            self.reporter.begin("halted: held-out problems")
            self.evaluate(self.done)
        except (Exception, KeyboardInterrupt) as error:
            self.reporter.note(f"  warning: not evaluated: {error or type(error).__name__}")

    def _end(self, status: Status, why: str, resumable: bool = False, halted: Halted | None = None) -> None:
        """The end of a run that did not finish: keeps what there is, and never hides the first error. `resumable`:
        nothing is half done, so that a checkpoint of this moment is valid."""
        has_learner = bool(self.any_learner)
        try:
            self.checkpointer.wait()
            is_saved = self.world.first(lambda: self.checkpointer.last_step == self.done)
            if resumable and has_learner and (self.has_pending() or not is_saved):
                self.save(wait=True)
            save_model(self, use_best=not resumable)
        except Exception as error:  # whatever it is, the first error is the one to report
            why += f" (and the model could not be saved: {error})"
        with suppress(OSError):
            self.reporter.close()
            self.reporter.note(f"{status}: {self.done} steps are in {self.folder}")
            if resumable and has_learner and self.checkpointer.last_step != self.done:
                self.reporter.note(f"step {self.done} could not be saved; the checkpoints before it are valid")
            elif resumable:
                remedy = f" {halted.remedy}" if halted and halted.remedy else ""
                self.reporter.note(f"resume with: {self._resume_command()}{remedy}")
        with suppress(RunError):  # a disk that failed the run fails its last line too
            if halted:
                facts = {"keys": list(halted.keys), "remedy": halted.remedy, "onset": halted.onset}
                self.writer.update_manifest(halted={**facts, "kept": sorted(self.checkpointer.protected)})
            self.writer.finish(status, why)
