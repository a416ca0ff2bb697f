"""Runs whose answers have several turns: tools and environments as users write them, SFT on conversations, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outdo import train
from outdo.errors import ModelError, OutdoError, ToolError
from outdo.learn.conversations import Dialect, encode_answers
from outdo.models.load import Policy
from outdo.models.tool_formats import MARKS
from outdo.runs.manifest import read_manifest
from outdo.types import Prompt
from support.basics import prompt_of
from support.chat_templates import family_tokenizer

ROWS = [{"prompt": f"count to {n}", "answer": str(n)} for n in range(1, 41)]
SHORT: dict[str, Any] = {
    **{"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "eval_size": 4, "eval_samples": 0},
    **{"max_completion_length": 24, "device": "cpu", "sft_steps": 0, "reward_audit": False, "max_turns": 3},
}


class Counter:
    """An environment as TRL's users write one."""

    made: ClassVar[list[Counter]] = []

    def reset(self, **columns: Any) -> str | None:
        self.count, self.goal = 0, int(columns["answer"])
        Counter.made.append(self)
        return " (use increment)"

    def increment(self, step: int) -> int:
        """
        Adds to the count.

        Args:
            step: How much to add.
        """
        self.count += step
        return self.count


def counted(environments: list[Counter], **columns: Any) -> list[float]:
    return [float(environment.count == environment.goal) + 0.1 * (environment.goal % 2) for environment in environments]


def double(number: int) -> int:
    """
    Doubles a number.

    Args:
        number: The number.
    """
    return 2 * number


def chatty() -> dict[str, Any]:
    """A random model whose chat template shows tools."""
    tokenizer = family_tokenizer("chatml")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=len(tokenizer), max_position_embeddings=1024))
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return {"model": model, "processing_class": tokenizer}


def groups_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "groups").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_an_environment_as_users_of_trl_write_it(tmp_path: Path) -> None:
    """The reward reads the very objects that were played with."""
    Counter.made.clear()
    result = train(
        **chatty(),
        train_dataset=ROWS,
        reward_funcs=counted,
        environment_factory=Counter,
        output_dir=tmp_path / "run",
        **SHORT,
    )
    groups = groups_of(result.folder)
    answers = [answer for group in groups for answer in group["completions"]]
    assert len(groups) == 4 and len(answers) == 8 and len(Counter.made) >= 8
    for group in groups:
        for answer in group["completions"]:
            assert answer["verdict"] != "broken" and answer["turns"][0]["role"] == "assistant"
            assert answer["reward"] == pytest.approx(0.1 * (int(group["answer"]) % 2))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["turns_mean"] >= 1 and row["tool_calls_failed"] is None for row in rows)
    assert all(row["tool_users"] == 0 and row["env_broken"] == 0 and row["time/wait"] >= 0 for row in rows)


def test_tools_as_functions(tmp_path: Path) -> None:
    result = train(
        **chatty(), train_dataset=ROWS, reward_funcs="numeric", tools=[double], output_dir=tmp_path / "run", **SHORT
    )
    assert len(groups_of(result.folder)) == 4
    assert read_manifest(result.folder).model_dump()["tool_format"] == "hermes"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tools": ["calculater"]}, "calculator"),
        ({"tools": [lambda x: x]}, "lambda|name"),
        ({"tools": [double, double]}, "double"),
        ({"environment_factory": "gess"}, "guess"),
        ({"tool_format": "hermees"}, "hermes"),
        ({"environment_factory": "guess", "environment_args": {"fewr": 1}}, "fewer"),
    ],
)
def test_mistakes_are_refused_before_a_model_is_loaded(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OutdoError, match=words):
        train(train_dataset=ROWS, reward_funcs="numeric", model_name_or_path="/nowhere", **given)


def test_a_template_that_cannot_show_tools(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="chat template has no place for them"):
        train(tools=[double], output_dir=tmp_path / "run", **SHORT)


def test_guessing(tmp_path: Path) -> None:
    """From demonstrations of several turns to a run that resumes bit for bit."""
    keys = {**SHORT, "dataset_name": "guess", "sft_steps": 2, "sft_batch_size": 4, "save_steps": 1, "max_turns": 8}
    whole = train(**keys, output_dir=tmp_path / "whole")
    train(**{**keys, "max_steps": 1}, output_dir=tmp_path / "part")
    resumed = train(resume=tmp_path / "part", max_steps=2, force=True)
    assert groups_of(resumed.folder) == groups_of(whole.folder)
    assert any(
        len(answer.get("segments", ())) > 1 for group in groups_of(whole.folder) for answer in group["completions"]
    )


def test_demonstrations_of_several_turns(policy: Policy) -> None:
    """The model's turns and their ends are trained on; what it was answered is not."""
    turns = [{"role": "assistant", "content": "8"}, {"role": "user", "content": "higher"}]
    example = prompt_of("1-9"), [*turns, {"role": "assistant", "content": "9"}]
    (one,) = encode_answers(policy, [example], Dialect())
    end = policy.renderer.spell([policy.eos_ids[0]])
    assert policy.renderer.spell(one.answer_ids) == f"8{end}<|user|>higher<|assistant|>9{end}"
    trained = [token for token, own in zip(one.answer_ids, one.mask, strict=True) if own]
    assert policy.renderer.spell(trained) == f"8{end}9{end}"


def test_results_of_marks_are_context(policy: Policy) -> None:
    text = "6*7=<<6*7=42>>42 and 42+1=<<42+1=43>>43"
    example = Prompt("a", ({"role": "user", "content": "?"},)), text
    (one,) = encode_answers(policy, [example], Dialect(tool_format=MARKS))
    end = policy.renderer.spell([policy.eos_ids[0]])
    assert policy.renderer.spell(one.answer_ids) == text + end
    others = [token for token, own in zip(one.answer_ids, one.mask, strict=True) if not own]
    assert policy.renderer.spell(others) == "42>>43>>"
    (plain,) = encode_answers(policy, [example], Dialect())
    assert plain.mask == () and plain.answer_ids == one.answer_ids


def test_no_class(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("class Empty:\n    pass\n")
    with pytest.raises(ToolError, match="reset"):
        train(environment_factory=f"{tmp_path}/env.py:Empty", **SHORT)
