"""A recipe as a configuration of open-r1's GRPO script: flat keys of TRL, and rewards by the names of its registry."""

from __future__ import annotations

from typing import Any

import yaml

from outdo.bridges.convert.data import as_lines, data_of
from outdo.bridges.convert.files import MODEL_FOLDER, Files, model_files, name_of
from outdo.bridges.convert.plan import Plan, as_comment, refuse_lost
from outdo.bridges.convert.settings import grpo_settings, lora_settings
from outdo.recipe.schema import Recipe
from outdo.types import Prompt

# Our reward: the same one in the registry of open-r1, and how it differs.
REGISTRY = {
    "math": ("accuracy", "reads the answer with math-verify, and needs the column `solution`"),
    "format": ("format", "wants line breaks between the tags"),
    "tag_count": ("tag_count", "counts tags with their line breaks"),
    "reasoning_steps": ("reasoning_steps", "counts markers, whatever follows them"),
    "cosine": ("cosine", "counts characters, up to cosine_max_len, and decides by accuracy"),
    "repetition": ("repetition_penalty", "counts words, not tokens"),
    "length": ("length", "counts characters, and decides by accuracy"),
    "overlong": ("soft_overlong_punishment", ""),
    "code": ("binary_code", "runs at the provider of code_provider, and needs the column `verification_info`"),
    "code_fraction": ("code", "runs at the provider of code_provider, and needs the column `verification_info`"),
}
INSTEAD = "take --to trl, whose script has the reward itself, or reward_funcs=math and a column `answer`"
NOT_THEIRS = ("model_init_kwargs", "shuffle_dataset")  # the script's own code sets the first


def open_r1_files(plan: Plan, allow_missing: bool) -> Files:
    r = plan.recipe
    names, weights = _rewards(plan)
    settings = {key: value for part in grpo_settings(plan, weights).values() for key, value in part.items()}
    data = data_of(r, plan.task)
    files = Files(main="recipe.yaml")
    model_files(plan, files)
    if r.sft_steps or r.sft_epochs:
        plan.lost.append("the SFT warm-up: run it first (outdo sft RECIPE), name its model, and take sft_steps=0")
    plan.notes.append("its keys are those of TRL 1.16: leave out the ones that the TRL of open-r1 does not know")
    plan.notes.append("run it in open-r1's repository, with the paths below as they are seen from there")
    if any(len(prompt.messages) > 1 + (prompt.messages[0]["role"] == "system") for prompt in data.train):
        plan.lost.append("prompts of several messages: open-r1 reads one column of text")
    refuse_lost(plan, allow_missing)
    system = data.train[0].messages[0]["content"] if data.train[0].messages[0]["role"] == "system" else None
    recipe: dict[str, Any] = {
        "model_name_or_path": f"./{MODEL_FOLDER}" if files.folders else r.model_name_or_path,
        "dtype": "float32",
        **_adapter(r),
        "dataset_name": "./data",
        "dataset_prompt_column": "problem",
        "system_prompt": system,
        "reward_funcs": names,
        "output_dir": name_of(plan),
        **{key: value for key, value in settings.items() if key not in NOT_THEIRS},
        "shuffle_dataset": not data.in_order,
    }
    if "cosine" in names:
        low, high, last = (0.5, 1.0, r.max_completion_length)
        recipe |= {"cosine_min_value_correct": low, "cosine_max_value_correct": high, "cosine_max_len": last}
        recipe |= {"cosine_min_value_wrong": -1.0, "cosine_max_value_wrong": -0.5}
    lines = [
        f"GRPO with open-r1: written by outdo convert from {plan.name}.",
        "accelerate launch src/open_r1/grpo.py --config recipe.yaml",
        *(["", *plan.header] if plan.header else []),
    ]
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=False, width=110)
    files.texts[files.main] = f"{as_comment(lines)}\n{text}"
    files.texts["data/train.jsonl"] = as_lines(_row(prompt) for prompt in data.train)
    files.texts["data/test.jsonl"] = as_lines(_row(prompt) for prompt in data.test or data.train[:1])
    return files


def _rewards(plan: Plan) -> tuple[list[str], list[float]]:
    names, weights = [], []
    for part in plan.rewards.parts:
        if not part.weight:
            continue
        if part.grader is None or part.name not in REGISTRY:
            plan.lost.append(f"the reward {part.name}: open-r1 has none of that name: {INSTEAD}")
            continue
        name, difference = REGISTRY[part.name]
        names.append(name)
        weights.append(part.weight)
        if difference:
            plan.notes.append(f"the reward {name} is {part.name} here, and {difference}")
    return names, weights


def _adapter(r: Recipe) -> dict[str, Any]:
    """As arguments of TRL's ModelConfig."""
    if not r.use_peft:
        return {}
    lora = {f"lora_{key.removeprefix('lora_')}": value for key, value in lora_settings(r).items()}
    return {"use_peft": True, "load_in_4bit": r.load_in_4bit, **lora}


def _row(prompt: Prompt) -> dict[str, Any]:
    """A row with the columns that their rewards read."""
    gold = prompt.answer if isinstance(prompt.answer, str) else "" if prompt.answer is None else str(prompt.answer)
    return {"problem": prompt.messages[-1]["content"], "solution": gold}
