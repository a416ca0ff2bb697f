"""The model that a run ends with: a Hugging Face folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from outdo.errors import RunError
from outdo.models.load import Policy, load_policy, save_adapter, save_policy
from outdo.runs import checkpoint
from outdo.runs.files import write_folder
from outdo.training.plan import lora_of

if TYPE_CHECKING:
    from outdo.training.run import TrainingRun


def save_model(run: TrainingRun[Any], use_best: bool = False) -> None:
    """The weights as they are, or those of the best checkpoint where the recipe wants them. Raises RunError where they
    are non-finite, or the disk fails."""
    learner = run.any_learner
    if learner and not learner.is_finite():
        raise RunError("its weights are NaN or infinite; the newest checkpoint has the last finite ones")
    if run.world.is_first:
        policy = (_best_policy(run) if use_best and run.recipe.load_best_model_at_end else None) or run.policy
        _write(run, policy)


def _write(run: TrainingRun[Any], policy: Policy) -> None:
    writer = run.writer
    try:
        write_folder(writer.model_folder, lambda folder: save_policy(policy, folder))
        writer.link_model()
        if policy.adapter:
            write_folder(writer.adapter_folder, lambda folder: save_adapter(policy, folder))
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot save the model to {writer.model_folder}: {error}") from error


def _best_policy(run: TrainingRun[Any]) -> Policy | None:
    """The policy of the best checkpoint, which the run notes; None where that is the last, or there is none."""
    if run.context.kind != "grpo" or (best := run.checkpointer.best()) is None:
        return None
    folder, policy = run.writer.checkpoints / checkpoint.name_of(best.step), None
    if best.step != run.done:
        if problem := checkpoint.corruption(folder):
            run.reporter.note(f"  warning: the best checkpoint, {folder}: {problem}; the last weights are saved")
            return None
        recipe, lora = run.recipe, lora_of(run.recipe)
        policy = load_policy(str(folder), device="cpu", dtype=recipe.dtype, seed=recipe.seed, lora=lora)
    run.best = best
    run.writer.update_manifest(best=best.row())
    run.reporter.note(f"best: {best.describe()}; its weights are in {run.writer.model_folder}")
    return policy
