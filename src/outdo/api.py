"""The Python interface: train, sft, harvest and evaluate. The algorithm itself is in `training/loop.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from outdo.errors import RecipeError
from outdo.evals.held_out import Evaluation
from outdo.evals.loading import run_with_model
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import build_eval_suite, evaluate_model
from outdo.models.load import loaded_model
from outdo.recipe.schema import Recipe
from outdo.tasks.objects import eval_task, is_data
from outdo.tasks.sources import SOURCE_KEYS
from outdo.tasks.task import refuse_no_task
from outdo.training.context import Result, RewardLike, as_reward_list, make_context, reward_name
from outdo.training.launch import launch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

P = ParamSpec("P")
INTERNAL = ("kind", "overrides", "where")  # of the command line


def _with_signature(of: Callable[P, Any]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """For a function that passes all it is given to `of`: it shows that one's parameters."""

    def decorate(function: Callable[..., Result]) -> Callable[P, Result]:
        public = [one for one in signature(of).parameters.values() if one.name not in INTERNAL]
        shown = signature(of).replace(parameters=public, return_annotation=signature(function).return_annotation)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate


@_with_signature(make_context)
def train(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """Trains by a recipe (a YAML path, a Recipe, or the default) with `keys` over it, and returns the result.

    `task`, `reward_funcs`, `callbacks`, `tools`, `environment_factory` and `agent` may be your own objects instead of
    names. So may `model` (of transformers, with its tokenizer as `processing_class`), which is trained in place, and
    the rows of `train_dataset` and `eval_dataset` (a list, a `datasets.Dataset`, a frame); the run's folder keeps both.

    `resume` is the folder of a run to resume, by its own recipe; what has changed since and matters is refused unless
    `force`. A recipe with `stages` runs them in order. Raises a subclass of OutdoError; an interrupt is raised after
    the run has been saved.
    """
    return launch(make_context(recipe, **given))


@_with_signature(make_context)
def sft(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """Supervised training alone, by the recipe's sft keys; one epoch where they give no length. Else as `train`."""
    return launch(make_context(recipe, **{"kind": "sft", **given}))


@_with_signature(make_context)
def harvest(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """A harvest by the recipe's harvest keys, in a run's folder: the model as it is, and `Result.harvest`."""
    return launch(make_context(recipe, **{"kind": "harvest", **given}))


def evaluate(
    model: str | Path | PreTrainedModel,
    task: Any = "arithmetic",
    split: str = "test",
    *,
    task_args: Mapping[str, Any] | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    system_prompt: str | None = None,
    processing_class: Any = None,
    tokenizer: Any = None,
    **settings: Any,
) -> Evaluation:
    """Held-out success of any saved model, or of a loaded one with its tokenizer as `processing_class`. `task` is a
    task, its name, or data (rows, a `datasets.Dataset`, a frame), which is then that split. `reward`, a name or a
    function, judges instead of the task's own verifier; `settings` are the fields of `EvalSettings`, such as size (0:
    the whole split), samples, temperature, dtype and seed."""
    names = ["task_args", "reward", "system_prompt", *EvalSettings.__dataclass_fields__]
    if unknown := [key for key in settings if key not in names]:
        data = f"; {unknown[0]} of data is task_args={{'{unknown[0]}': …}}" if unknown[0] in SOURCE_KEYS else ""
        raise RecipeError(f"evaluate takes no {', '.join(unknown)}; it takes {', '.join(names)}{data}")
    eval_settings = EvalSettings(**settings)
    if is_data(task):
        task = eval_task(task, split, system_prompt)
    refuse_no_task(task)
    if not isinstance(task_args, (Mapping, type(None))):
        raise RecipeError(f"task_args={task_args!r:.80}: expected a mapping, such as {{'digits': 3}}")
    judges = [] if reward is None else as_reward_list("reward", reward)
    if len(judges) > 1:
        raise RecipeError(f"reward has {len(judges)} rewards: name the one that decides what is right")
    suite = build_eval_suite(
        [task],
        [split],
        eval_settings.size,
        task_args=task_args,
        reward=reward_name(judges[0]) if judges else None,
        functions={reward_name(judge): judge for judge in judges if not isinstance(judge, str)},
        system_prompt=system_prompt,
    )
    source = model if isinstance(model, (str, Path)) else loaded_model(model, processing_class or tokenizer)
    name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
    (result,) = run_with_model(source, eval_settings, lambda p: evaluate_model(name, p, suite, eval_settings))
    return result.evaluation
