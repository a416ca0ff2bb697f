"""A recipe as a Python script for TRL, or for Unsloth, which trains with TRL's trainer."""

from __future__ import annotations

import ast
from typing import Any

from outdo.bridges.convert import rewards as reward_source
from outdo.bridges.convert.data import Data, as_lines, data_of, demonstrations, messages_of
from outdo.bridges.convert.files import Files, model_files, name_of
from outdo.bridges.convert.plan import Plan, as_comment, literal, refuse_lost
from outdo.bridges.convert.rewards import Carried, Sources, call_of, carry_rewards, unique_functions
from outdo.bridges.convert.settings import grpo_settings, lora_settings, sft_settings

TRL, UNSLOTH = "trl>=1.16", "unsloth"
CAN_GIVE = ("completion_ids", "finish", "verdicts", "trainer_state", "groups")
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]  # Unsloth's own list
WIDTH = 100
PROMPT_ROOM = 1024  # tokens of a prompt, where the recipe has no limit
_NAMES = ("HERE", "MODEL", "read", "texts", "decoded", "by_group", "main", "json", "args", "trainer", "prompts")


def trl_files(plan: Plan, allow_missing: bool) -> Files:
    return _files(plan, allow_missing, unsloth=False)


def unsloth_files(plan: Plan, allow_missing: bool) -> Files:
    return _files(plan, allow_missing, unsloth=True)


def _files(plan: Plan, allow_missing: bool, unsloth: bool) -> Files:
    sources = carry_rewards(plan, CAN_GIVE)
    settings = grpo_settings(plan, [one.weight for one in sources.carried])
    data = data_of(plan.recipe, plan.task)
    if not data.in_order:
        plan.notes.append("the prompts come in another order: TRL shuffles them itself")
    settings["a step"]["shuffle_dataset"] = not data.in_order
    files = Files(main="train.py")
    model = model_files(plan, files)
    examples = demonstrations(plan.recipe, plan.task)
    if any("finish" in one.parameters for one in sources.carried):
        plan.notes.append(
            "an answer whose last token is its end, at exactly max_completion_length, counts as cut there"
        )
    if unsloth:
        _fit_unsloth(plan, settings)
    refuse_lost(plan, allow_missing)
    files.texts["train.jsonl"] = as_lines(_rows(data, data.train))
    if data.test:
        files.texts["test.jsonl"] = as_lines(_rows(data, data.test))
    if examples is not None:
        files.texts["demonstrations.jsonl"] = as_lines(examples)
    if sources.graders:
        files.texts[f"{reward_source.GRADERS_FILE}.py"] = reward_source.graders_text(sources.graders)
    files.copies |= sources.files
    files.texts[files.main] = _Script(plan, sources, data, settings, model, examples is not None, unsloth).text()
    return files


def _rows(data: Data, prompts: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{"prompt": messages_of(prompt), **data.row(prompt)} for prompt in prompts]


def _fit_unsloth(plan: Plan, settings: dict[str, dict[str, Any]]) -> None:
    del settings["the model"]["model_init_kwargs"]
    settings["the model"].pop("gradient_checkpointing", None)  # get_peft_model sets it
    plan.notes.append("Unsloth takes trl up to 1.15, transformers up to 5.17 and datasets below 5, and a GPU")
    if not plan.recipe.use_peft:
        plan.notes.append("all weights are trained (full_finetuning=True): Unsloth is made for adapters, use_peft=true")


class _Script:
    """The text of a script, part by part."""

    def __init__(
        self, plan: Plan, sources: Sources, data: Data, settings: Any, model: str, warms_up: bool, unsloth: bool
    ) -> None:
        self.plan, self.recipe, self.sources, self.data = plan, plan.recipe, sources, data
        self.settings, self.model, self.warms_up, self.unsloth = settings, model, warms_up, unsloth
        self.name_of = unique_functions(sources.carried, {*_NAMES, *(one.module for one in sources.carried)})

    def text(self) -> str:
        parts = [self._head(), self._imports(), self._helpers(), *map(self._reward, self.sources.carried)]
        if not self.sources.carried:
            parts.append(_STUB)
        if self.warms_up:
            parts.append(self._warm_up())
        parts += [self._main(), 'if __name__ == "__main__":\n    main()\n']
        return "\n\n\n".join(filter(None, parts))

    def _head(self) -> str:
        package = UNSLOTH if self.unsloth else TRL
        trainer = "Unsloth and TRL" if self.unsloth else "TRL"
        extras = [name for name, used in (("peft", self.recipe.use_peft), ("bitsandbytes", self._is_4bit)) if used]
        extras += list(self.sources.graders.packages) if self.sources.graders else []
        lines = [
            f"GRPO with {trainer}: written by outdo convert from {self.plan.name}.",
            f"pip install {' '.join([repr(package), *extras])}, then run it where it is: python train.py",
            *(["", *self.plan.header] if self.plan.header else []),
        ]
        return as_comment(lines)

    @property
    def _is_4bit(self) -> bool:
        return self.recipe.load_in_4bit and not self.unsloth

    def _imports(self) -> str:
        modules = dict.fromkeys(one.module for one in self.sources.carried)
        trl = ["GRPOConfig", "GRPOTrainer", *(["SFTConfig", "SFTTrainer"] if self.warms_up else [])]
        lines = ["import json", *(["from itertools import groupby"] if self._has_groups else [])]
        lines += ["from pathlib import Path", ""]
        if self.unsloth:
            lines += ["from unsloth import FastLanguageModel  # before trl and transformers, which it changes", ""]
        lines += ["from datasets import Dataset"]
        lines += ["from peft import LoraConfig"] if self.recipe.use_peft and not self.unsloth else []
        lines += ["from transformers import BitsAndBytesConfig"] if self._is_4bit else []
        lines += [f"from trl import {', '.join(trl)}", *(["", *map("import {}".format, modules)] if modules else [])]
        lines += ["", "HERE = Path(__file__).resolve().parent", f"MODEL = {self.model}"]
        return "\n".join(lines)

    @property
    def _has_groups(self) -> bool:
        return any(one.builtin and one.name in reward_source.OF_GROUPS for one in self.sources.carried)

    def _helpers(self) -> str:
        parts = [_READ]
        if any(not one.as_messages for one in self.sources.carried):
            parts.append(_TEXTS)
        if self.data.as_json and self.sources.carried:
            parts.append(_DECODED)
        if self._has_groups:
            parts.append(_BY_GROUP)
        return "\n\n\n".join(parts)

    def _reward(self, one: Carried) -> str:
        """The function that TRL calls."""
        body = self._of_each(one) if one.one else self._of_lists(one)
        if "verdicts" in one.parameters:
            body = [*_wrapped("judged = ", self._truth()), "verdicts = [grade.verdict for grade in judged]", *body]
        doc = [f'    """{_docstring(one.doc)}"""'] if one.doc else []
        head = f"def {self.name_of(one)}(prompts, completions, completion_ids, **columns):"
        return "\n".join([head, *doc, *(f"    {line}" for line in body)])

    def _given(self, one: Carried) -> dict[str, str]:
        limit = self.recipe.max_completion_length
        cut = f'["length" if len(ids) >= {limit} else "stop" for ids in completion_ids]'
        given = {
            "completions": "completions" if one.as_messages else "texts(completions)",
            "prompts": "prompts" if one.as_messages else "texts(prompts)",
            "messages": "prompts",
            "completion_ids": "completion_ids",
            "finish": cut,
            "max_completion_length": repr(limit),
            "reward_timeout": repr(self.recipe.reward_timeout),
            "trainer_state": 'columns["trainer_state"]',
            "missing": "[None] * len(completions)",
        }
        return given | ({"verdicts": "verdicts"} if "verdicts" in one.parameters else {})

    def _truth(self) -> str:
        """The call of the grader that decides success."""
        part = self.plan.rewards.part(self.plan.rewards.truth)
        truth = reward_source.carried_of(part, self.sources)
        return call_of(truth, self._given(truth), self._columns(), f"{truth.module}.")

    def _columns(self) -> dict[str, str]:
        """The expression of each column of the data."""
        return {
            name: f"decoded(columns[{literal(name)}])" if name in self.data.as_json else f"columns[{literal(name)}]"
            for name in self.data.columns
        }

    def _of_lists(self, one: Carried) -> list[str]:
        given, columns = self._given(one), self._columns()
        if one.builtin and one.name in reward_source.OF_GROUPS:
            names = [name for name in one.parameters if name in given]
            listed = ", ".join(f"{name}={given[name]}" for name in names)
            return _wrapped("return ", f"by_group({one.module}.{one.function}, prompts, {listed})")
        call = call_of(one, given, columns, f"{one.module}.")
        if one.gives_grades:
            return [*_wrapped("grades = ", call), "return [grade.reward for grade in grades]"]
        return _wrapped("return ", call)

    def _of_each(self, one: Carried) -> list[str]:
        """A function of one answer, called for each."""
        columns = {name: f"{expression}[i]" for name, expression in self._columns().items()}
        lists = ("completions", "prompts", "messages", "completion_ids", "finish")
        given = {
            name: f"{expression}[i]" if name in lists else expression for name, expression in self._given(one).items()
        }
        given |= {
            name: "texts(completions)[i]" for name in one.parameters if name == reward_source.answer_name(one, columns)
        }
        given |= {name: "texts(prompts)[i]" for name in ("prompt", "question") if name not in columns}
        given |= {"ground_truth": columns.get("ground_truth", columns.get("answer", "None")), "missing": "None"}
        return [f"return [{call_of(one, given, columns, f'{one.module}.')} for i in range(len(completions))]"]

    def _warm_up(self) -> str:
        model = "model" if self.unsloth else "MODEL"
        extra = ["        processing_class=tokenizer,"] if self.unsloth else []
        arguments = {"output_dir": None, **sft_settings(self.plan)}
        if not self.unsloth:
            arguments = {"output_dir": None, "model_init_kwargs": {"dtype": "float32"}, **sft_settings(self.plan)}
        lines = [f"        {key}={literal(value)}," for key, value in arguments.items() if key != "output_dir"]
        return "\n".join(
            [
                f"def warm_up({'model, tokenizer' if self.unsloth else ''}):",
                '    """The supervised updates before GRPO: the folder of the model that they end with."""',
                "    args = SFTConfig(",
                '        output_dir=str(HERE / "sft"),',
                *lines,
                "    )",
                "    trainer = SFTTrainer(",
                f"        model={model},",
                "        args=args,",
                '        train_dataset=read("demonstrations.jsonl"),',
                *extra,
                "    )",
                "    trainer.train()",
                *(["    return trainer.model"] if self.unsloth else _SAVE_SFT),
            ]
        )

    def _main(self) -> str:
        lines = ["def main():"]
        if self.unsloth:
            lines += self._unsloth_model()
        elif self.warms_up:
            lines += ["    model = warm_up()"]
        lines += ["    args = GRPOConfig(", f'        output_dir=str(HERE / "{name_of(self.plan)}"),']
        for heading, settings in self.settings.items():
            lines += [f"        # {heading}"] if settings else []
            lines += [f"        {key}={literal(value)}," for key, value in settings.items()]
        functions = ", ".join(map(self.name_of, self.sources.carried)) or "reward"
        lines += ["    )", "    trainer = GRPOTrainer("]
        lines += [f"        model={'model' if self.unsloth or self.warms_up else 'MODEL'},"]
        lines += [f"        reward_funcs=[{functions}],", "        args=args,"]
        lines += ['        train_dataset=read("train.jsonl"),']
        lines += ['        eval_dataset=read("test.jsonl"),'] if self.data.test else []
        lines += ["        processing_class=tokenizer,"] if self.unsloth else []
        if self.recipe.use_peft and not self.unsloth:
            lines += [f"        peft_config=LoraConfig({_arguments(lora_settings(self.recipe))}),"]
        if self._is_4bit:
            lines += ['        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),']
        lines += ["    )", "    trainer.train()", "    trainer.save_model(args.output_dir)"]
        lines += ["    print(trainer.evaluate())  # eval_reward: the mean reward of held-out prompts"] * bool(
            self.data.test
        )
        return "\n".join(lines)

    def _unsloth_model(self) -> list[str]:
        r = self.recipe
        length = (r.max_prompt_length or PROMPT_ROOM) + r.max_completion_length
        loading = {"max_seq_length": length, "load_in_4bit": r.load_in_4bit, "full_finetuning": not r.use_peft}
        call = f"FastLanguageModel.from_pretrained(MODEL, {_arguments(loading)})"
        lines = [f"    {line}" for line in _wrapped("model, tokenizer = ", call)]
        if r.use_peft:
            adapter = lora_settings(r) | {"use_gradient_checkpointing": "unsloth", "random_state": r.seed}
            if adapter["target_modules"] == "all-linear":
                adapter["target_modules"] = LAYERS
            lines += ["    model = FastLanguageModel.get_peft_model(", "        model,"]
            lines += [f"        {key}={literal(value)}," for key, value in adapter.items()] + ["    )"]
        return lines + (["    model = warm_up(model, tokenizer)"] if self.warms_up else [])


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={literal(value)}" for key, value in values.items())


def _wrapped(before: str, call: str) -> list[str]:
    """A call on one line, or with each argument on a line of its own."""
    if len(before) + len(call) <= WIDTH:
        return [before + call]
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    given = [ast.get_source_segment(call, node) or "" for node in tree.args]
    given += [f"{node.arg}={ast.get_source_segment(call, node.value)}" for node in tree.keywords]
    return [f"{before}{ast.get_source_segment(call, tree.func)}(", *(f"    {each}," for each in given), ")"]


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


_READ = '''def read(name):
    """The rows of a file beside this script."""
    with open(HERE / name, encoding="utf-8") as file:
        return Dataset.from_list([json.loads(line) for line in file])'''

_TEXTS = '''def texts(conversations):
    """The last message of each."""
    return [messages[-1]["content"] for messages in conversations]'''

_DECODED = '''def decoded(column):
    """Values that are JSON in the file, because they are of several types."""
    return [json.loads(value) for value in column]'''

_BY_GROUP = '''def by_group(function, prompts, **lists):
    """The rewards of a function that compares the answers to one prompt."""
    groups = [list(places) for _, places in groupby(range(len(prompts)), key=lambda i: prompts[i])]
    calls = [{name: [values[i] for i in group] for name, values in lists.items()} for group in groups]
    return [reward for call in calls for reward in function(**call)]'''

_STUB = '''def reward(prompts, completions, completion_ids, **columns):
    """None of the recipe's rewards could be carried over."""
    raise NotImplementedError("write the reward here: a number for each of the completions")'''

_SAVE_SFT = ["    trainer.save_model(args.output_dir)", "    return args.output_dir"]
