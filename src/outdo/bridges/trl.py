"""TRL's GRPOTrainer on our recipe: our prompts, rewards, learning rates and warm-up; its sampling, advantages, loss and
optimizer. Its model is a copy: after each step the policy gets its weights, so that evaluations, checkpoints and the
saved model are ours.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from outdo.algo.schedules import rate_at
from outdo.bridges.backend import Backend, Loaded, Loader
from outdo.bridges.environments import factory_of
from outdo.bridges.keys import ADAPTER_REFERENCE, FIXED, config_of, refuse_args, updates_per_step
from outdo.bridges.prompts import ROW, DrawnPrompts, data_set
from outdo.bridges.rollouts import completed, groups_of
from outdo.errors import NumericsError, RecipeError, RunError
from outdo.learn.optimizers import read_state, set_rate, write_state
from outdo.learn.score import group_logprobs
from outdo.learn.update import MASTER
from outdo.metrics.measure import Clock, Metrics, measure
from outdo.models.load import Policy, save_policy
from outdo.models.lora import Adapter
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards, grade_all, halt_if_broken
from outdo.rollout.play import Play
from outdo.runs import checkpoint
from outdo.tasks.curriculum import Curriculum
from outdo.types import Group

ADAPTER = "default"  # what PEFT calls the only adapter of a model
RNG = "rng"  # in a checkpoint: the state of torch's generator, by device
# Our statistics of a step by what TRL logs.
LOGGED = {"loss": "loss", "grad_norm": "grad_norm", "kl": "kl", "clipfrac": "clip_ratio/region_mean"}


class Events(Protocol):
    """Who is notified of steps. All may raise to halt the run."""

    def step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None: ...

    def step_end(self, done: int) -> bool:
        """`done` steps are complete. False: stop here."""


@dataclass(frozen=True)
class Job:
    """What a run gives a trainer."""

    backend: Backend
    recipe: Recipe
    policy: Policy
    rewards: Rewards
    curriculum: Curriculum
    notify: Callable[[str], None]
    reference: Path  # a folder for the first weights, where the KL term needs them
    play: Play | None = None  # how answers of several turns are played
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext  # inside, a signal is raised at once


@dataclass(frozen=True)
class Masters:
    """Where the weights that are trained are: in one process, whole."""

    is_in_step: bool = False


@dataclass
class _Step:
    """The step in hand."""

    clock: Clock = field(default_factory=Clock)
    groups: list[Group] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)  # one of each update


class TRLLearner:
    """Trains a copy of the policy's model by TRL, from step `start` on."""

    def __init__(self, job: Job, start: int = 0) -> None:
        self.job, self.recipe, self.policy = job, job.recipe, job.policy
        self.start, self.done = start, start
        self.rate_scale, self.masters = 1.0, Masters()
        self.prompts = DrawnPrompts(job.curriculum, self.recipe.prompts_per_step, start)
        self.num_updates = updates_per_step(self.recipe)
        self._step, self._noted = _Step(), False
        self.trainer = self._make_trainer()
        self._sample = self.trainer._generate_and_score_completions
        self.trainer._generate_and_score_completions = self._generate
        self.trainer.create_scheduler = self._make_scheduler
        self.optimizer = self.trainer.create_optimizer()
        self._rng = _rng_state()

    # --- the trainer

    def _make_trainer(self) -> Any:
        from transformers import PrinterCallback, ProgressCallback
        from transformers.utils import logging as transformers_logging

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_model = self.job.backend.find_loader()  # first: it may replace parts of TRL
            from trl import GRPOTrainer

            transformers_logging.set_verbosity_error()  # we print what is to be seen
            recipe = self.recipe
            self._scratch = tempfile.TemporaryDirectory(prefix="outdo-trl-")
            steps = (recipe.max_steps - self.start) * self.num_updates
            config = make_config(self.job.backend, recipe, self._scratch.name, steps)
            model, peft_config, tokenizer = self._model(load_model, Path(self._scratch.name) / "start")
            environment = factory_of(self.job.play, self.prompts, self.job.backend.title)
            rows = recipe.prompts_per_step * (recipe.max_steps - self.start)
            trainer = GRPOTrainer(
                model=model,
                args=config,
                reward_funcs=[self._reward],
                train_dataset=data_set(self.prompts, rows, not self.policy.renderer.has_template),
                processing_class=tokenizer,
                callbacks=[_bridge(self)],
                peft_config=peft_config,
                **({"environment_factory": environment} if environment else {}),
            )
        for printer in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printer)
        return trainer

    def _model(self, load_model: Loader, folder: Path) -> Loaded:
        policy = self.policy
        adapter = policy.adapter
        with adapter.instead(adapter.base) if adapter else nullcontext():
            if adapter:
                policy.model.save_pretrained(folder)
                policy.renderer.tokenizer.save_pretrained(folder)
            else:
                save_policy(policy, folder)
        if self.recipe.beta and adapter and not self.start and any(bool(b.any()) for b in adapter.pairs[1::2]):
            raise RecipeError(f"beta={self.recipe.beta:g}: {ADAPTER_REFERENCE}")
        reference = self._reference() if self.recipe.beta and not adapter else None
        loaded = load_model(self.recipe, folder, adapter)
        shutil.rmtree(folder)  # a signal that ends the process would leave it
        if reference:
            loaded.model.config._name_or_path = str(reference)  # where TRL loads it from
        return loaded

    def _reference(self) -> Path:
        """The folder of the run's first weights. Raises RunError where a run that is resumed has lost them."""
        folder = self.job.reference / checkpoint.name_of(0)
        if not self.start:
            checkpoint.save(self.job.reference, 0, lambda place: save_policy(self.policy, place))
        elif problem := checkpoint.corruption(folder):
            raise RunError(f"{folder}: {problem}; without the first weights KL cannot be measured: start a new run")
        return folder

    def _make_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Our learning rate at every step."""
        peak = self.recipe.learning_rate
        self.trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda update: self._rate(self.start + update // self.num_updates) / peak
        )
        return self.trainer.lr_scheduler

    def _rate(self, step: int) -> float:
        recipe = self.recipe
        schedule = recipe.lr_scheduler_type, recipe.warmup, recipe.min_lr_rate
        return self.rate_scale * rate_at(step, recipe.max_steps, recipe.learning_rate, *schedule)

    # --- a step

    def train(self, events: Events) -> None:
        """All steps that remain. Weights change together with rows: a signal is raised while answers are sampled, or
        between two steps."""
        self.events = events
        try:
            self.trainer.train()
        finally:
            self._scratch.cleanup()

    def _generate(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        """TRL's own sampling, rewards and advantages, which are kept as groups."""
        self._step = step = _Step()
        with self.job.interruptible(), step.clock("rollout"):
            output = self._sample(inputs)
        step.clock.spent["rollout"] -= step.clock.spent["grade"]
        began = time.perf_counter()
        step.groups, is_same = completed(self.policy, step.groups, output, self.recipe.temperature)
        if not is_same and not self._noted:
            self._noted = True
            self.job.notify("  warning: the trainer encodes prompts in other tokens than outdo does")
        step.clock.leave_out(time.perf_counter() - began)
        return output

    def _reward(self, completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
        """All of the recipe's rewards, weighted and gated as ever; None where an answer cannot be judged."""
        with self._step.clock("grade"):
            prompts = [self.prompts[row] for row in columns[ROW]]
            size = self.recipe.num_generations
            environments = columns.get("environments") or ()
            groups = groups_of(self.policy, prompts, completion_ids, completions, size, self.done, environments)
            rewards = replace(self.job.rewards, step=self.done, num_steps=self.recipe.max_steps)
            self._step.groups = grade_all(groups, rewards)
            halt_if_broken(self._step.groups, self.recipe.broken_limit)
        return [reward for group in self._step.groups for reward in group.rewards]

    def logged(self, logs: Mapping[str, float], control: Any) -> None:
        """The numbers of an update; with the step's last one the step is done."""
        self._step.logs.append(dict(logs))
        if len(self._step.logs) < self.num_updates:
            return
        step, index = self._step, self.done
        step.clock.spent["update"] = step.clock.total() - step.clock.spent["rollout"] - step.clock.spent["grade"]
        learned = {ours: value for ours, key in LOGGED.items() if (value := _mean(step.logs, key)) is not None}
        learned |= {"lr": self._rate(index), "beta": self.beta}
        learned["tokens"] = float(sum(one.num_tokens for group in step.groups for one in group.trajectories))
        metrics = measure(step.groups, step.groups, learned, step.clock, self.job.rewards.audit)
        self.done += 1
        self.publish()
        if not self.is_finite():
            raise NumericsError(
                f"the weights are NaN or infinite after step {self.done}: lower learning_rate (now "
                f"{self.recipe.learning_rate:g}) or max_grad_norm (now {self.recipe.max_grad_norm:g})",
                keys=("learning_rate", "max_grad_norm"),
                remedy=f"--force learning_rate={self.recipe.learning_rate / 10:.2g}",
            )
        self._rng = _rng_state()
        self.events.step(index, metrics, step.groups)
        with self.job.interruptible():
            control.should_training_stop |= not self.events.step_end(self.done)
        self.prompts.forget(self.done)
        _set_rng_state(self._rng)

    # --- what a run asks of a learner

    @property
    def is_between_steps(self) -> bool:
        return True  # signals and halts come between steps, see `train`

    @property
    def beta(self) -> float:
        return float(self.trainer.beta)

    @beta.setter
    def beta(self, value: float) -> None:
        self.trainer.beta = value

    def scale_rate(self, factor: float) -> None:
        self.rate_scale *= factor
        set_rate(self.optimizer, self._rate(self.done))  # the scheduler has set that of the next step already

    def scale_beta(self, factor: float) -> None:
        self.beta *= factor

    def is_finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.policy.model.parameters())

    @cached_property
    def _trained(self) -> dict[str, torch.nn.Parameter]:
        """What the trainer trains, by our names."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        return {name.replace(f".{ADAPTER}.", "."): p for name, p in named.items()}

    @property
    def _ours(self) -> dict[str, Tensor]:
        """The same of the policy."""
        return self.policy.adapter.state_dict() if self.policy.adapter else dict(self.policy.model.named_parameters())

    @torch.no_grad()
    def publish(self) -> None:
        """Gives the policy the trainer's weights."""
        for name, ours in self._ours.items():
            ours.data.copy_(self._trained[name])
        if self.policy.adapter:
            self.policy.adapter.publish()

    @torch.no_grad()
    def fetch(self) -> None:
        """Gives the trainer the policy's weights: those of a new adapter, or of a checkpoint."""
        for name, ours in self._ours.items():
            self._trained[name].data.copy_(ours)

    def weights(self) -> Mapping[str, Any]:
        adapter = self.policy.adapter
        return adapter.state_dict() if adapter else self.policy.model.state_dict()

    def logprobs(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        return group_logprobs(self.policy, groups, self.recipe.temperature, 8192)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As of the end of the last step: the optimizer by parameter name, and torch's generators."""
        tensors: dict[str, Tensor] = {f"{RNG}.{device}": state for device, state in self._rng.items()}
        numbers: dict[str, dict[str, Any]] = {}
        for name, weight in self._trained.items():
            slots, numbers[name] = read_state(self.optimizer, weight)
            tensors |= {f"{name}.{slot}": value for slot, value in slots.items()}
            if self._ours[name].dtype != weight.dtype:
                tensors[f"{name}.{MASTER}"] = weight.detach().to("cpu", copy=True)
        plain = {"rate_scale": self.rate_scale, "beta": self.beta, "backend": self.job.backend.versions}
        return tensors, plain | {"optimizer_numbers": {name: values for name, values in numbers.items() if values}}

    def load_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        self.fetch()
        slots: dict[str, dict[str, Tensor]] = {name: {} for name in self._trained}
        for key, value in tensors.items():
            name, _, slot = key.rpartition(".")
            if name == RNG:
                self._rng[slot] = value
            elif slot == MASTER:
                self._trained[name].data.copy_(value)
            else:
                slots[name][slot] = value
        for name, own in slots.items():
            if own:
                write_state(self.optimizer, self._trained[name], own, plain["optimizer_numbers"].get(name, {}))
        self.rate_scale, self.beta = float(plain["rate_scale"]), float(plain["beta"])

    def restore_rng(self) -> None:
        """Before the first step: sampling continues where the checkpoint was made."""
        _set_rng_state(self._rng)


def make_config(backend: Backend, recipe: Recipe, folder: str, steps: int = 1) -> Any:
    """TRL's configuration. Raises RecipeError for settings of `backend_args` that it does not have; TRL's own checks
    raise what they like."""
    from accelerate.state import AcceleratorState
    from trl import GRPOConfig

    AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier run in this process
    refuse_args(recipe, {*GRPOConfig.__dataclass_fields__, *backend.own_args}, backend.name)
    args = {key: value for key, value in recipe.backend_args.items() if key not in backend.own_args}
    return GRPOConfig(**{"output_dir": folder, **FIXED, **config_of(recipe), **args, "max_steps": steps})


def refuse_config(backend: Backend, recipe: Recipe) -> None:
    """Raises RecipeError where TRL does not take it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_config(backend, recipe, folder)


def load_model(recipe: Recipe, folder: Path, adapter: Adapter | None) -> Loaded:
    """As TRL's users load it: float32 weights, its own attention, an adapter by PEFT."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    peft_config = None
    if adapter:
        from peft import LoraConfig

        how = {"r": adapter.r, "lora_alpha": adapter.scale * adapter.r, "task_type": "CAUSAL_LM"}
        peft_config = LoraConfig(target_modules=list(adapter.names), **how)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return Loaded(model, peft_config, AutoTokenizer.from_pretrained(folder))


def _bridge(learner: TRLLearner) -> Any:
    """The callback through which TRL notifies us."""
    from transformers import TrainerCallback

    class Bridge(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 0:
                learner.restore_rng()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> Any:
            if logs and "loss" in logs:  # not the summary at the end
                learner.logged(logs, control)
            return control

    return Bridge()


def _mean(logs: Sequence[Mapping[str, float]], key: str) -> float | None:
    values = [float(one[key]) for one in logs if key in one]
    return statistics.fmean(values) if values else None


def _rng_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _set_rng_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
