"""A recipe as a job of OpenAI's reinforcement fine-tuning: its grader, its data, and the request that starts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outdo.bridges.convert.data import Data, columns_of, data_of, messages_of
from outdo.bridges.convert.files import Files, name_of
from outdo.bridges.convert.plan import Plan, as_comment, refuse_lost
from outdo.bridges.convert.rewards import Carried, Sources, carry_rewards, graders_text
from outdo.bridges.convert.single import call_for_one
from outdo.bridges.convert.source import standalone
from outdo.errors import RecipeError
from outdo.rewards.compose import Reward
from outdo.rewards.rft.formula import can_be_named
from outdo.rewards.rft.read import read_spec

MODEL = "o4-mini-2025-04-16"
MESSAGES = "prompt_messages"  # the prompt as a key of the item, for graders that read the question
MAX_SOURCE_BYTES = 256_000  # of a python grader
MAX_SUFFIX = 18  # characters of a model's name
# What can be imported there beside the standard library, as far as our graders need it.
PACKAGES = frozenset({"jsonschema", "numpy", "rapidfuzz", "scipy", "sympy"})
UNNAMED = "reward"
# Recipe keys that the managed loop decides itself.
MANAGED = (
    *("loss_type", "epsilon", "beta", "num_generations", "learning_rate", "temperature", "max_completion_length"),
    *("scale_rewards", "optim", "lr_scheduler_type", "use_peft"),
)


def rft_files(plan: Plan, allow_missing: bool) -> Files:
    data = data_of(plan.recipe, plan.task)
    grader = _grader(plan, data)
    _note(plan)
    refuse_lost(plan, allow_missing)
    if grader is None:
        raise RecipeError(f"{plan.name}: none of its rewards can be carried over, and a job needs a grader")
    spec, problems = read_spec(grader)
    if spec is None:
        raise RecipeError(f"the grader of {plan.name} is not valid: {problems[0].text}")
    files = Files(main="start.py")
    needs_messages = MESSAGES in json.dumps(grader)
    files.texts["grader.json"] = json.dumps(grader, indent=2) + "\n"
    files.texts["train.jsonl"] = _lines(data.train, needs_messages)
    if data.test:
        files.texts["validation.jsonl"] = _lines(data.test, needs_messages)
    files.texts["job.json"] = json.dumps(_job(plan, data), indent=2) + "\n"
    files.texts[files.main] = _start(plan)
    return files


def _lines(prompts: Any, needs_messages: bool) -> str:
    rows = []
    for prompt in prompts:
        messages = messages_of(prompt)
        own = {MESSAGES: messages} if needs_messages else {}
        rows.append(json.dumps({"messages": messages, **own, **columns_of(prompt)}) + "\n")
    return "".join(rows)


def _grader(plan: Plan, data: Data) -> dict[str, Any] | None:
    """The grader of all rewards: one, or a weighted sum of several."""
    written = [part for part in plan.rewards.parts if part.source.endswith(".json") and part.weight]
    sources = carry_rewards(plan, (), one_file=True)
    plan.lost[:] = [item for item in plan.lost if "--to rft" not in item]  # JSON graders are taken as they are
    graders: dict[str, tuple[float, dict[str, Any]]] = {}
    for part in written:
        graders[_key(part.name, graders)] = part.weight, _as_written(part)
    for one in sources.carried:
        source = _python(one, plan, data, sources)
        if source is not None:
            key = _key(one.name, graders)
            graders[key] = one.weight, {"type": "python", "name": key, "source": source}
    if len(graders) == 1 and next(iter(graders.values()))[0] == 1.0:
        return next(iter(graders.values()))[1]
    if any(grader["type"] == "multi" for _, grader in graders.values()):
        plan.lost.append("a multi grader beside other rewards: write one grader.json that has all of them")
        return None
    return _sum(graders) if graders else None


def _sum(graders: dict[str, tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    formula = " + ".join(f"{weight!r} * {key}" for key, (weight, _) in graders.items()).replace("+ -", "- ")
    each = {key: grader for key, (_, grader) in graders.items()}
    return {"type": "multi", "name": UNNAMED, "graders": each, "calculate_output": formula}


def _key(name: str, taken: Any) -> str:
    key = name if can_be_named(name) else UNNAMED
    while key in taken:
        key += "_2"
    return key


def _as_written(part: Reward) -> dict[str, Any]:
    grader = json.loads(Path(part.source).read_text(encoding="utf-8"))
    return {"name": part.name, **grader}


def _python(one: Carried, plan: Plan, data: Data, sources: Sources) -> str | None:
    """The source of a python grader that gives a reward's numbers; None where there is none."""
    if one.builtin:
        part = plan.rewards.part(one.name)
        own = standalone([(part.function.__module__, part.function.__name__)])
        if missing := sorted(set(own.packages) - PACKAGES):
            plan.lost.append(
                f"the reward {one.name}: it needs {', '.join(missing)}, which a python grader cannot import"
            )
            return None
        text, function = graders_text(own), own.names[part.function.__module__, part.function.__name__]
    else:
        path = sources.origins.get(one.module)
        if path is None:
            plan.lost.append(
                f"the reward {one.name}: it is in an installed package, which a python grader cannot import"
            )
            return None
        text, function = path.read_text(encoding="utf-8"), one.function
    source = f"{text.rstrip()}\n\n\n_reward = {function}\n\n\n{_GRADE.format(**_body(one, plan, data))}"
    if len(source.encode()) > MAX_SOURCE_BYTES:
        plan.lost.append(f"the reward {one.name}: its source has over {MAX_SOURCE_BYTES:,} bytes")
        return None
    return source


def _body(one: Carried, plan: Plan, data: Data) -> dict[str, str]:
    call = call_for_one(one, plan, data, "_reward")
    messages = f'    messages = item.get("{MESSAGES}") or item.get("messages") or []\n' if "messages" in call else ""
    value = f"{call}.reward" if one.gives_grades else call
    return {"messages": messages, "value": value, "name": one.name}


_GRADE = """def grade(sample, item):
    message = (sample.get("choices") or [{{}}])[0].get("message") or {{}}
    text = message.get("content") or sample.get("output_text") or ""
{messages}    reward = {value}
    if reward is None:
        raise ValueError("{name} cannot judge this row")
    return float(reward)
"""


def _job(plan: Plan, data: Data) -> dict[str, Any]:
    r = plan.recipe
    epochs = 1 if data.in_order else max(1, round(r.max_steps * r.prompts_per_step / len(data.train)))
    hyperparameters = {
        "n_epochs": epochs,
        "batch_size": r.prompts_per_step,
        "learning_rate_multiplier": "auto",
        "compute_multiplier": "auto",
        "eval_interval": r.eval_steps or "auto",
        "eval_samples": r.eval_samples or "auto",
        "reasoning_effort": "default",
    }
    files = {"training_file": "train.jsonl", **({"validation_file": "validation.jsonl"} if data.test else {})}
    method = {"type": "reinforcement", "reinforcement": {"hyperparameters": hyperparameters}}
    return {"model": MODEL, **files, "suffix": name_of(plan)[:MAX_SUFFIX], "seed": r.seed, "method": method}


def _note(plan: Plan) -> None:
    r = plan.recipe
    if r.sft_steps or r.sft_epochs:
        plan.lost.append("the SFT warm-up: the job starts from OpenAI's model: take sft_steps=0 and sft_epochs=0")
    plan.notes.append("OpenAI is closing its fine-tuning platform: only accounts that used it before can start a job")
    plan.notes.append(f"the model is {MODEL}, and not {r.model_name_or_path}: set `model` in job.json")
    values = ", ".join(f"{key}={getattr(r, key)}" for key in MANAGED)
    plan.notes.append(f"the managed loop decides these itself, and shows no KL, entropy or advantages: {values}")
    plan.notes.append(
        "compute_multiplier and learning_rate_multiplier are relative to values that OpenAI does not publish: auto"
    )
    plan.notes.append("a grader sees the answer without its reasoning: rewards for think tags pay nothing there")
    first = next(plan.task.prompts("train", r.seed)).messages[0]["role"]
    if first != "system" and any(part.grader and part.grader.judges for part in plan.rewards.parts):
        plan.notes.append(
            "no prompt names the form of an answer, which our graders read: set system_prompt, if yours lack it"
        )
    plan.notes.append("an answer that cannot be judged gets 0 there; here it is broken, and left out of its group")


def _start(plan: Plan) -> str:
    lines = [
        f"Reinforcement fine-tuning at OpenAI: written by outdo convert from {plan.name}.",
        "pip install openai, set OPENAI_API_KEY, then run it: python start.py. It uploads the data and costs money.",
        *(["", *plan.header] if plan.header else []),
    ]
    return f"{as_comment(lines)}\n\n\n{_START}"


_START = """import json
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).resolve().parent


def main():
    client = OpenAI()
    job = json.loads((HERE / "job.json").read_text(encoding="utf-8"))
    grader = json.loads((HERE / "grader.json").read_text(encoding="utf-8"))
    client.fine_tuning.alpha.graders.validate(grader=grader)
    job["method"]["reinforcement"]["grader"] = grader
    for key in ("training_file", "validation_file"):
        if key in job:
            with open(HERE / job[key], "rb") as file:
                job[key] = client.files.create(file=file, purpose="fine-tune").id
    print(client.fine_tuning.jobs.create(**job).id)


if __name__ == "__main__":
    main()
"""
