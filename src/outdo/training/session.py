"""One GRPO run, from the warm-up to the saved model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outdo.doctor import foothold
from outdo.doctor.show import note
from outdo.doctor.watch import Watch
from outdo.errors import Halted, NumericsError, RunError
from outdo.evals.held_out import Evaluation
from outdo.learn.learner import LocalLearner
from outdo.learn.memory import most_held
from outdo.learn.sft import Imitator, imitate
from outdo.rewards.choose import graded
from outdo.rewards.compose import Rewards
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.runs import checkpoint
from outdo.runs.writer import Tokens
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.lessons import Lessons
from outdo.training.keeping import Keeper, Parts, Start
from outdo.training.loop import Rounds, Row, run_loop
from outdo.types import Group

PATIENCE = 3  # steps in a row past kl_limit before the guard acts


class Session(Keeper[LocalLearner]):
    """GRPO, after a warm-up where the recipe asks for one. It is the loop's recorder: it is told what happened."""

    command = "train"
    rewards: Rewards

    def __init__(self, parts: Parts, *, lessons: Lessons | None = None) -> None:
        """`lessons` are those of the warm-up."""
        super().__init__(parts)
        self.lessons = lessons
        self.curriculum = Curriculum(self.task, self.recipe)
        self.made: Rounds = []  # rollouts of the step in hand
        self.past_limit = 0  # steps in a row with KL past its limit
        self.boundary = self.curriculum.state()  # as it was when the last step ended
        self.saving = 0.0  # seconds that the checkpoint since the last row held the run up
        self.watch: Watch | None = None  # from the first step on

    def _phases(self) -> tuple[list[Evaluation], list[Evaluation]]:
        recipe = self.recipe
        if self.start:
            before = self._go_on(self.start)
        else:
            self._warm_up()
            with self.undivided():
                learner = LocalLearner(self.policy, recipe)
                self._save_reference(learner)
                self.learner = learner
                if self.lessons:
                    self._save()  # not to be warmed up again, whatever becomes of the evaluation
            before = self._look_first()
            with self.undivided():
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
        if self.splits or self.final_splits:
            self.reporter.begin("after GRPO: held-out problems")
        after = self._evaluate(recipe.max_steps)
        self._finish()
        return before, after

    def _warm_up(self) -> None:
        if not self.lessons:
            return
        self.reporter.begin(f"warm-up: imitating {self.lessons.name}")
        learner = Imitator(self.policy, self.recipe, self.lessons.steps)
        learner.say = self.reporter.note
        with self._timed(learner):
            imitate(learner, self.lessons, lambda rows: self._taught(rows, learner.steps, "warm-up"))

    def _look_first(self) -> list[Evaluation]:
        if self.splits:
            self.reporter.begin("before GRPO: held-out problems")
        before = self._evaluate(0)
        self._foothold(before)
        return before

    def _go_on(self, start: Start) -> list[Evaluation]:
        """Puts everything back where the checkpoint had it."""
        state = start.state
        with self.undivided():
            learner = LocalLearner(self.policy, self.recipe)
            if learner.reference:
                _load_weights(learner.reference, self.run.folder / "reference" / checkpoint.name_of(0))
            self._put_back(learner, start)
            self.curriculum.load_state(state["curriculum"])
            self.boundary, self.past_limit = self.curriculum.state(), int(state["past_limit"])
            self.made[:] = read_rounds(start.folder / "rollouts.jsonl")
        self.reporter.note(f"going on after step {self.done}")
        self._evaluate_if_due()
        return self._evaluated(0) or self._look_first()

    # --- what the loop tells

    def record(self, step: int, row: Row, groups: Sequence[Group]) -> None:
        watch = self.watch or Watch(self.run.folder, self.recipe.model_dump(mode="json"))  # reads what was before
        row = {**row, "memory": float(most_held(self.policy.device)), "time/save": self.saving}
        row["time/step"] = (row["time/step"] or 0.0) + self.saving
        self.saving = 0.0
        self.run.record_step(step, row, groups, self._tokens(groups[: self.recipe.log_tokens]))
        self.trackers.step(step, row, groups)
        self.done, self.boundary = step + 1, self.curriculum.state()
        self._consult(watch, step, row)
        self._guard_kl(row)
        self.reporter.step(step, self.recipe.max_steps, row)

    def after(self, done: int) -> None:
        self._evaluate_if_due()
        if self.recipe.save_steps and done % self.recipe.save_steps == 0 and done < self.recipe.max_steps:
            begun = time.perf_counter()
            with self.undivided():
                self._save()
            self.saving = time.perf_counter() - begun

    def failed(self, step: int, groups: Sequence[Group]) -> None:
        with suppress(RunError):  # the error to hear of is on its way
            path = self.run.record_failed_step(step, groups)
            self.reporter.note(f"the answers of the step that went wrong are in {path}")

    def _consult(self, watch: Watch, step: int, row: Row) -> None:
        """What the doctor has to say after this step, once; a halt where it is grave and the recipe wants that."""
        self.watch = watch
        if self.recipe.doctor == "quiet":
            return
        for finding in watch.step({"step": step, **row}):
            self.run.record_finding(step, finding.row())
            self.trackers.found(step, finding.code, note(finding).strip())
            self.reporter.note(note(finding))
            if self.recipe.doctor == "halt" and finding.severity == "critical":
                said = note(finding).strip().removeprefix("doctor: ")
                raise Halted(f"halted at step {self.done} by the doctor: {said}. The model so far is kept")

    def _tokens(self, groups: Sequence[Group]) -> list[Tokens]:
        """Each token of these groups' answers: its text, its log-probability, and how the update changed its chance."""
        assert self.learner
        ratios = self.learner.ratios(groups)
        return [
            [
                list(zip(self.policy.renderer.pieces(answer.token_ids), answer.logprobs, its_ratios, strict=True))
                for answer, its_ratios in zip(group.trajectories, of_group, strict=True)
            ]
            for group, of_group in zip(groups, ratios, strict=True)
        ]

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

    def _foothold(self, before: Sequence[Evaluation]) -> None:
        """Says in plain words when GRPO has nothing to hold on to, and which groups would see a spread."""
        if not before:
            return
        passes = before[0].pass_at
        k = max(passes, default=1)
        chance = passes.get(1, before[0].success_rate)
        size, others = self.recipe.num_generations, graded(self.rewards, chance > 0.5) if self.rewards else []
        for line in foothold.words(chance, k, passes.get(k, chance), size, others):
            self.reporter.note(line)

    # --- keeping

    def _beside(self) -> tuple[dict[str, Any], Callable[[Path], None]]:
        rounds = [list(groups) for groups in self.made]
        state = {"curriculum": self.boundary, "past_limit": self.past_limit}
        return state, lambda folder: write_rounds(folder / "rollouts.jsonl", rounds)

    def _is_unsaved(self) -> bool:
        return bool(self.made) or super()._is_unsaved()

    def _save_reference(self, learner: LocalLearner) -> None:
        """The first weights, once. Without them the run could not be gone on with, so here a full disk ends it."""
        if learner.reference:
            first = learner.reference
            try:
                checkpoint.save(self.run.folder / "reference", 0, lambda folder: _save_weights(first, folder))
            except (OSError, SafetensorError) as error:
                raise RunError(f"cannot write {self.run.folder / 'reference'}: {error}") from error


def _save_weights(model: Any, folder: Path) -> None:
    tensors = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
    save_file(tensors, folder / "weights.safetensors")


def _load_weights(model: Any, folder: Path) -> None:
    if wrong := checkpoint.corruption(folder):
        raise RunError(f"{folder}: {wrong}; without the first weights KL cannot be measured: start a new run")
    model.load_state_dict(load_file(folder / "weights.safetensors"))
