"""One run, from the warm-up to the saved model. Whatever ends it, what was learnt is kept and can be gone on from."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outdo import checkpoint, signals
from outdo.config import Recipe
from outdo.errors import Halted, NumericsError, OutdoError, RunError
from outdo.evals.held_out import Evaluation, evaluate_prompts
from outdo.grade.compose import Rewards
from outdo.learn.learner import LocalLearner
from outdo.learn.sft import warm_up
from outdo.loop import Rounds, Row, run_loop
from outdo.models.load import Policy, save_policy
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.run import Run, Status, read_rows
from outdo.seeds import seed_of
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.task import Task, held_out
from outdo.track.console import LiveTable, PlainLines, interval
from outdo.types import Group, SampleParams, Sampler

PATIENCE = 3  # steps in a row past kl_limit before the guard acts


@dataclass(frozen=True)
class Start:
    """Where a run goes on: the checkpoint's folder and its state."""

    folder: Path
    state: dict[str, Any]


class Session:
    """Wires one run. It is the loop's recorder: it is told what happened, and keeps it."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        rewards: Rewards,
        policy: Policy,
        sampler: Sampler,
        run: Run,
        reporter: PlainLines | LiveTable,
        start: Start | None = None,
    ) -> None:
        self.recipe, self.task, self.rewards, self.policy, self.sampler = recipe, task, rewards, policy, sampler
        self.run, self.reporter, self.start = run, reporter, start
        self.splits = {s: held_out(task, s, recipe.eval_size) for s in eval_splits(recipe, task)}
        last = [s for s in recipe.final_eval_split if s not in self.splits]
        self.final_splits = {s: held_out(task, s, recipe.eval_size) for s in last}
        self.curriculum = Curriculum(task, recipe)
        self.learner: LocalLearner | None = None
        self.undivided: signals.Undivided = nullcontext
        self.made: Rounds = []  # rollouts of the step in hand
        self.done = 0  # steps finished
        self.past_limit = 0  # steps in a row with KL past its limit
        self.boundary = self.curriculum.state()  # as it was when the last step ended
        self.saver: threading.Thread | None = None
        self.last_saved = -1  # the step of the last checkpoint that was written

    def train(self) -> tuple[list[Evaluation], list[Evaluation]]:
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
            self.run.close()

    def _phases(self) -> tuple[list[Evaluation], list[Evaluation]]:
        recipe = self.recipe
        if self.start:
            before = self._go_on(self.start)
        else:
            self._warm_up()
            self.reporter.begin("before GRPO: held-out problems")
            before = self._evaluate(0)
            self._foothold(before)
            with self.undivided():
                learner = LocalLearner(self.policy, recipe)
                self._save_reference(learner)
                self.learner = learner
                self._save()
        assert self.learner
        self.learner.say = self.reporter.note
        self.learner.rehearse()
        size = f"{recipe.prompts_per_step} prompts x {recipe.num_generations} answers"
        self.reporter.begin(f"GRPO: {recipe.max_steps} steps of {size}")
        run_loop(
            recipe,
            self.curriculum,
            self.sampler,
            self.rewards,
            self.learner,
            self,
            start=self.done,
            made=self.made,
            undivided=self.undivided,
        )
        self.reporter.begin("after GRPO: held-out problems")
        after = self._evaluate(recipe.max_steps)
        with self.undivided():
            self._save(wait=True)
            self._save_model()
            self.run.finish("done")
        return before, after

    def _warm_up(self) -> None:
        recipe = self.recipe
        if not recipe.sft_steps:
            return
        self.reporter.begin(f"warm-up: imitating the {self.task.name} teacher")
        warm_up(
            self.policy,
            self.task.demonstrations(recipe.seed),
            steps=recipe.sft_steps,
            batch_size=recipe.sft_batch_size,
            learning_rate=recipe.sft_learning_rate,
            max_length=recipe.max_completion_length,
            on_step=lambda step, loss: self.reporter.warmup(step, recipe.sft_steps, loss),
        )

    def _go_on(self, start: Start) -> list[Evaluation]:
        """Puts everything back where the checkpoint had it. The weights came with the policy."""
        state = start.state
        with self.undivided():
            self.learner = LocalLearner(self.policy, self.recipe)
            if self.learner.reference:
                _load_weights(self.learner.reference.model, self.run.folder / "reference" / checkpoint.name_of(0))
            self.learner.load_state(load_file(start.folder / "optimizer.safetensors"), state["learner"])
            self.curriculum.load_state(state["curriculum"])
            self.boundary = self.curriculum.state()
            self.done, self.past_limit = int(state["step"]), int(state["past_limit"])
            self.sampler.load(self.learner.weights(), version=self.done)
            self.made[:] = read_rounds(start.folder / "rollouts.jsonl")
            self.run.rewind(state["offsets"])
            earlier = self.run.manifest.get("resumed")
            resumed = [*earlier, self.done] if isinstance(earlier, list) else [self.done]
            self.run.note(status="running", why="", resumed=resumed)
        self.reporter.note(f"going on after step {self.done}")
        self._evaluate_if_due()
        return self._evaluated(0)

    # --- what the loop tells

    def record(self, step: int, row: Row, groups: Sequence[Group]) -> None:
        self.run.record(step, row, groups)
        self.done, self.boundary = step + 1, self.curriculum.state()
        self._guard_kl(row)
        self.reporter.step(step, self.recipe.max_steps, row)

    def after(self, done: int) -> None:
        self._evaluate_if_due()
        if self.recipe.save_steps and done % self.recipe.save_steps == 0 and done < self.recipe.max_steps:
            with self.undivided():
                self._save()

    def failed(self, step: int, groups: Sequence[Group]) -> None:
        with suppress(RunError):  # the error to hear of is on its way
            path = self.run.keep_groups(f"halted-step-{step:06d}.jsonl", step, groups)
            self.reporter.note(f"the answers of the step that went wrong are in {path}")

    def _guard_kl(self, row: Row) -> None:
        recipe, kl = self.recipe, row["kl_mean"]
        self.past_limit = self.past_limit + 1 if kl is not None and recipe.kl_limit and kl > recipe.kl_limit else 0
        if self.past_limit < PATIENCE:
            return
        said = f"KL to the starting model is {kl:.3f}, past kl_limit={recipe.kl_limit} for {PATIENCE} steps"
        assert self.learner
        if recipe.kl_guard == "stop":
            raise NumericsError(
                f"halted at step {self.done}: {said}. Raise beta (now {row['beta']:g}), lower learning_rate (now "
                f"{row['lr']:.2g}), or set kl_limit=null to let it go. The model so far is kept"
            )
        self.past_limit = 0
        if recipe.kl_guard == "lower_rate":
            self.learner.rate_scale /= 2
            self.reporter.note(f"  guard: {said}; the learning rate is halved from here")
        else:
            self.learner.beta *= 2
            self.reporter.note(f"  guard: {said}; beta is doubled to {self.learner.beta:g}")

    # --- evaluating

    def _evaluate_if_due(self) -> None:
        recipe = self.recipe
        if recipe.eval_steps and self.done % recipe.eval_steps == 0 and 0 < self.done < recipe.max_steps:
            self._evaluate(self.done)

    def _evaluated(self, step: int) -> list[Evaluation]:
        """What was found at that step, if it was looked at."""
        return [Evaluation.of(row) for row in read_rows(self.run.folder / "evals.jsonl") if row["step"] == step]

    def _evaluate(self, step: int) -> list[Evaluation]:
        """Held-out success, measured once for a step however often the run is gone on with."""
        if found := self._evaluated(step):
            return found
        recipe = self.recipe
        params = SampleParams(recipe.max_completion_length, recipe.temperature, stop=tuple(recipe.stop))
        seed = seed_of("evaluation", recipe.seed, step)
        looked_at = self.splits | (self.final_splits if step == recipe.max_steps else {})
        how = params, recipe.eval_samples, seed, recipe.eval_ks
        found = [evaluate_prompts(ps, split, self.sampler, self.rewards, *how) for split, ps in looked_at.items()]
        with self.undivided():
            for result in found:
                self.run.record_eval(result.row(step))
        for result in found:
            passes = "".join(f"  pass@{k} {value:.3f}" for k, value in result.pass_at.items())
            self.reporter.note(f"  {result.split}: success {interval(result)}{passes}")
        return found

    def _foothold(self, before: Sequence[Evaluation]) -> None:
        """Says in plain words when GRPO has nothing to hold on to."""
        if not before:
            return
        chance = before[0].pass_at.get(1, before[0].success_rate)
        if chance < 0.005:
            self.reporter.note(
                "  warning: the model is right almost never, so every group will be all wrong and nothing is learnt. "
                "Give it a longer warm-up (sft_steps), an easier start (curriculum_steps, curriculum_args), "
                "or a reward that also pays for part of the way"
            )
        elif chance > 0.995:
            self.reporter.note("  warning: the model is right almost always; there is nothing left to learn here")

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

    def _save_reference(self, learner: LocalLearner) -> None:
        """The first weights, once. Without them the run could not be gone on with, so here a full disk ends it."""
        if learner.reference:
            model = learner.reference.model
            try:
                checkpoint.save(self.run.folder / "reference", 0, lambda folder: _save_weights(model, folder))
            except (OSError, SafetensorError) as error:
                raise RunError(f"cannot write {self.run.folder / 'reference'}: {error}") from error

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

    def _writer(self, learner: LocalLearner) -> Callable[[Path], None]:
        weights = {name: value.detach().to("cpu", copy=True) for name, value in learner.weights().items()}
        tensors, plain = learner.state()
        rounds = [list(groups) for groups in self.made]
        state = {
            "step": self.done,
            "learner": plain,
            "curriculum": self.boundary,
            "past_limit": self.past_limit,
            "offsets": self.run.offsets(),
        }

        def write(folder: Path) -> None:
            save_policy(self.policy, folder, weights)
            save_file(tensors, folder / "optimizer.safetensors")
            write_rounds(folder / "rollouts.jsonl", rounds)
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

        return write

    def _best(self) -> list[int]:
        """The evaluated step with the highest success that has a checkpoint."""
        there = {checkpoint.step_of(folder) for folder in checkpoint.existing(self.run.checkpoints)}
        first = next(iter(self.splits), None)
        rows = [row for row in read_rows(self.run.folder / "evals.jsonl") if row["split"] == first]
        scored = {row["step"]: row["success_rate"] for row in rows if row["step"] in there}
        return [max(scored, key=lambda step: (scored[step], step))] if scored else []

    def _end(self, status: Status, why: str, whole: bool = False) -> None:
        """The last words of a run that did not finish: keep what there is, never hide the first error.

        `whole`: nothing is half done, so a checkpoint can be made of where it stands.
        """
        try:
            self._saved()
            if whole and self.learner and (self.made or self.last_saved != self.done):
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
                self.reporter.note(f"go on with: outdo train --resume {self.run.folder}")
        with suppress(RunError):  # a disk that failed the run fails its last line too; the first error is on its way
            self.run.finish(status, why)

    def _save_model(self) -> None:
        try:
            checkpoint.write_whole(self.run.model_folder, lambda folder: save_policy(self.policy, folder))
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot save the model to {self.run.model_folder}: {error}") from error


def eval_splits(recipe: Recipe, task: Task) -> list[str]:
    """What is looked at all along; a split that the task has not is refused where its prompts are asked for."""
    held_back = recipe.final_eval_split
    return recipe.eval_split or [s for s in ("test", "ood") if s in task.splits and s not in held_back]


def _save_weights(model: Any, folder: Path) -> None:
    tensors = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
    save_file(tensors, folder / "weights.safetensors")


def _load_weights(model: Any, folder: Path) -> None:
    if wrong := checkpoint.trouble(folder):
        raise RunError(f"{folder}: {wrong}; without the first weights KL cannot be measured: start a new run")
    model.load_state_dict(load_file(folder / "weights.safetensors"))
