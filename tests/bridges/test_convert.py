"""Conversions as files: what is in them, what is refused, and that data stays data."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from bridges.verl_keys import KEYS
from outdo.bridges.convert import TARGETS, convert
from outdo.bridges.convert.settings import NOTED, ONLY_HERE
from outdo.bridges.convert.verl import UNSUPPORTED
from outdo.bridges.keys import LOSSES, ONLY
from outdo.errors import OutdoError, RecipeError
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import grade_all
from outdo.tasks.mixture import task_of
from outdo.types import Group, Prompt, Trajectory
from support.basics import ROOT

HOSTILE = [
    *(
        '"""; import os; os.system("touch hacked")\n"""',
        "it's {braces} %s {{x}} ${HOME} $(touch hacked) `touch hacked`",
    ),
    *(
        "\\\n# coding: x\r\nline\x0bfeed\u2028sep\u0000nul",
        "'''\ntouch hacked\n'''",
        "<answer>42</answer>\n#### 42 " * 3,
    ),
]
FINITE = ["max_steps=2", "num_generations=2", "per_device_train_batch_size=4", "model_name_or_path=some/model"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(name: str, *given: dict[str, Any]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in given))
    return f"dataset_name={name}"


def script(folder: Path) -> ast.Module:
    return ast.parse((folder / "train.py").read_text())


def arguments(folder: Path, call: str = "GRPOConfig") -> dict[str, Any]:
    """The keyword arguments of a call in a script; None where one is no literal."""
    found = next(n for n in ast.walk(script(folder)) if isinstance(n, ast.Call) and ast.unparse(n.func) == call)
    return {str(k.arg): ast.literal_eval(k.value) if _is_literal(k.value) else None for k in found.keywords}


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def trl(*keys: str) -> dict[str, Any]:
    convert(
        load_recipe(None, ["sft_steps=0", "max_steps=2", "eval_size=2", *keys]),
        "trl",
        Path("out"),
        allow_missing=True,
        force=True,
    )
    return arguments(Path("out"))


@pytest.mark.parametrize(
    ("keys", "theirs"),
    [
        (["loss_type=gspo"], {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
        (["loss_type=cispo"], {"epsilon_high": 5.0}),
        (["loss_type=dapo", "epsilon_high=0.28"], {"loss_type": "dapo", "epsilon_high": 0.28}),
        (["beta=0.1"], {"beta": 0.1, "use_bias_correction_kl": False}),
        (["dtype=bfloat16"], {"bf16": True, "model_init_kwargs": {"dtype": "float32"}}),
        (["lr_scheduler_type=linear", "min_lr_rate=0.1", "learning_rate=0.01"], {"lr_scheduler_type": "polynomial"}),
        (["lr_scheduler_type=cosine", "min_lr_rate=0.1"], {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
        (["lr_scheduler_type=constant", "warmup_steps=5"], {"lr_scheduler_type": "constant_with_warmup"}),
        (["optim=adamw"], {"optim": "adamw_torch"}),
        (["generation_batch_size=256", "max_steps=7", "eval_steps=2"], {"max_steps": 14, "eval_steps": 4}),
        (["generation_batch_size=256"], {"steps_per_generation": 2, "gradient_accumulation_steps": 1}),
        (["num_iterations=3", "max_steps=7"], {"max_steps": 21, "steps_per_generation": 1}),
        (["gradient_accumulation_steps=4", "generation_batch_size=128"], {"gradient_accumulation_steps": 1}),
        (["save_steps=0"], {"save_strategy": "no"}),
        (["min_p=0.05"], {"min_p": 0.05}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings(keys: list[str], theirs: dict[str, Any]) -> None:
    given = trl(*keys)
    assert {key: given.get(key) for key in theirs} == theirs


def test_a_step_of_theirs_has_as_many_answers_as_ours() -> None:
    for size, times, step in ((8, 1, 8), (8, 4, 64), (4, 2, 16), (128, 4, 128)):
        r = load_recipe(
            None,
            [
                f"per_device_train_batch_size={size}",
                f"gradient_accumulation_steps={times}",
                f"generation_batch_size={step}",
            ],
        )
        given = trl(
            *(f"{key}={getattr(r, key)}" for key in ("per_device_train_batch_size", "gradient_accumulation_steps")),
            f"generation_batch_size={step}",
        )
        micro = given["per_device_train_batch_size"]
        assert micro * given["steps_per_generation"] == r.answers_per_step
        assert micro * given["gradient_accumulation_steps"] * r.updates_per_step == r.answers_per_step


def test_an_adapter() -> None:
    trl("use_peft=true", "lora_r=4", "load_in_4bit=true")
    assert arguments(Path("out"), "LoraConfig") == {
        "r": 4,
        "lora_alpha": 32.0,
        "lora_dropout": 0.0,
        "target_modules": "all-linear",
    }
    assert arguments(Path("out"), "BitsAndBytesConfig")["load_in_4bit"] is True


def test_every_recipe_key_that_is_named_exists() -> None:
    assert {*NOTED, *UNSUPPORTED, *ONLY_HERE} <= set(Recipe.model_fields)
    defaults = {key: Recipe.model_fields[key].get_default() for key in (*NOTED, *UNSUPPORTED)}
    assert defaults == {key: unused for table in (NOTED, UNSUPPORTED) for key, (unused, _) in table.items()}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("variant_*.yaml")), ids=lambda path: path.stem)
def test_variants(path: Path) -> None:
    """Each of our recipes is carried over, or refused with the reason."""
    recipe = load_recipe(path)
    try:
        convert(recipe, "trl", Path("out"))
    except RecipeError as error:
        lost = [key for key in ONLY_HERE if getattr(recipe, key) not in ONLY[key][0]]
        lost += ["loss_type"] if recipe.loss_type not in LOSSES else []
        assert lost and all(f"{key}=" in str(error) for key in lost)
        assert not Path("out").exists()
    else:
        given = arguments(Path("out"))
        assert given["loss_type"] == ("grpo" if recipe.loss_type == "gspo" else recipe.loss_type)
        is_whole = recipe.loss_type == "gspo" or recipe.importance_sampling_level == "sequence"
        assert given["importance_sampling_level"] == ("sequence" if is_whole else "token")


# What cannot be carried over

LOST = [
    ["reward_funcs=math"],
    ["advantage_estimator=rloo"],
    ["beta=0.1", "kl_in_reward=true"],
    ["stop=END"],
    ["dynamic_sampling=true"],
    ["reward_funcs=numeric,format", "reward_gate=numeric"],
    ["temperature_end=0.5"],
]


@pytest.mark.parametrize("keys", LOST, ids=lambda keys: keys[-1])
def test_what_is_lost_is_refused_and_then_listed(keys: list[str]) -> None:
    recipe = load_recipe(None, ["sft_steps=0", *keys])
    with pytest.raises(RecipeError, match="--allow-missing"):
        convert(recipe, "trl", Path("out"))
    assert not Path("out").exists()
    done = convert(recipe, "trl", Path("out"), allow_missing=True)
    assert len(done.lost) == 1
    head = (Path("out") / "train.py").read_text().partition("\nimport ")[0]
    assert "Not carried over" in head and done.lost[0].split(":")[0] in head


def test_without_any_reward_the_script_stops_at_it() -> None:
    convert(load_recipe(None, ["sft_steps=0", "reward_funcs=math"]), "trl", Path("out"), allow_missing=True)
    assert "NotImplementedError" in ast.dump(script(Path("out")))


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        (["dataset_name=guess", "model_name_or_path=m"], "several turns"),
        (["stages=[{stage: sft}, {stage: grpo}]"], "stages"),
        (["dataset_mixture=[{dataset_name: arithmetic}, {dataset_name: countdown}]"], "dataset_mixture"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_form_elsewhere(keys: list[str], code: str) -> None:
    for target in TARGETS:
        with pytest.raises(OutdoError, match=code):
            convert(load_recipe(None, keys), target, Path("out"), allow_missing=True)


def test_an_unknown_target_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'unsloth'"):
        convert(load_recipe(None, []), "unslot")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    recipe = load_recipe(None, ["sft_steps=0", "max_steps=1", "eval_size=1"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "graders.py").write_text("mine")
    with pytest.raises(RecipeError, match="--force"):
        convert(recipe, "trl", out)
    assert [path.name for path in out.iterdir()] == ["graders.py"] and (out / "graders.py").read_text() == "mine"
    convert(recipe, "trl", out, force=True)
    assert (out / "graders.py").read_text() != "mine"
    with pytest.raises(RecipeError, match="is a file"):
        convert(recipe, "trl", out / "train.jsonl")
    with pytest.raises(RecipeError, match="another name"):
        convert(recipe, "trl", out / "graders.py", force=True)
    assert convert(recipe, "trl", tmp_path / "more" / "grpo.py").paths[0] == tmp_path / "more" / "grpo.py"


# The user's own rewards

OWN = """
from helper import bonus


def many(completions, answer, level, **columns):
    return [bonus() * (gold in text) + level[i] for i, (text, gold) in enumerate(zip(completions, answer))]


def one(response, ground_truth, question):
    return float(ground_truth in response and "?" in question)
"""


def test_a_file_of_the_user_and_its_neighbour() -> None:
    Path("trl.py").write_text(OWN)  # a name that would hide the trainer
    Path("helper.py").write_text("def bonus():\n    return 2.0\n")
    data = rows(
        "d.jsonl", *({"messages": [{"role": "user", "content": f"{i}?"}], "answer": "7", "level": i} for i in range(9))
    )
    convert(load_recipe(None, [data, "reward_funcs=trl.py:many,trl.py:one", *FINITE]), "trl", Path("out"))
    assert sorted(path.name for path in Path("out").glob("*.py")) == ["helper.py", "my_trl.py", "train.py"]
    module = module_of(Path("out"))
    prompts, given = [[{"role": "user", "content": "1?"}]] * 2, {"answer": ["7", "7"], "level": [0, 5]}
    said = [[{"role": "assistant", "content": text}] for text in ("7", "8")]
    assert module.one(prompts, said, None, **given) == [1.0, 0.0]


def module_of(folder: Path) -> ModuleType:
    """The script, imported without the trainer."""
    stubs = {name: ModuleType(name) for name in ("trl", "datasets", "unsloth", "peft", "transformers")}
    for name in ("GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"):
        setattr(stubs["trl"], name, None)
    stubs["datasets"].Dataset = stubs["unsloth"].FastLanguageModel = None  # type: ignore[attr-defined]
    kept = {name: sys.modules.get(name) for name in stubs}
    sys.modules |= stubs
    sys.path.insert(0, str(folder.resolve()))
    for name in ("graders", "helper", "my_trl"):
        sys.modules.pop(name, None)
    try:
        spec = importlib.util.spec_from_file_location("converted", folder / "train.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder.resolve()))
        for name, before in kept.items():
            sys.modules.pop(name) if before is None else sys.modules.update({name: before})


def test_a_file_that_imports_outdo_is_refused() -> None:
    Path("own.py").write_text("import outdo\n\ndef f(completions, **columns):\n    return [1.0] * len(completions)\n")
    with pytest.raises(RecipeError, match="imports outdo"):
        convert(load_recipe(None, ["sft_steps=0", "reward_funcs=own.py:f"]), "trl", Path("out"))


def test_columns_of_several_types_come_back_as_they_were() -> None:
    answers: list[Any] = [1, "1", 2.5, None, [3, "x"], {"a": [1]}, 2**70, True]
    data = rows("d.jsonl", *({"prompt": f"{i}?", "answer": "7", "mixed": one} for i, one in enumerate(answers)))
    Path("own.py").write_text("def same(completions, mixed, **columns):\n    return mixed\n")
    convert(load_recipe(None, [data, "reward_funcs=own.py:same", "eval_fraction=0.01", *FINITE]), "trl", Path("out"))
    read = [
        json.loads(line)
        for path in ("train", "test")
        if Path(f"out/{path}.jsonl").exists()
        for line in Path(f"out/{path}.jsonl").read_text().splitlines()
    ]
    assert all(isinstance(row["mixed"], str) for row in read)
    given = module_of(Path("out")).same(
        [None] * len(read),
        [[{"content": ""}]] * len(read),
        None,
        mixed=[row["mixed"] for row in read],
        answer=["7"] * len(read),
    )
    assert sorted(map(repr, given)) == sorted(map(repr, answers))


# Data stays data


@pytest.mark.parametrize("target", list(TARGETS))
def test_hostile_data(target: str, tmp_path: Path) -> None:
    """Prompts, golds, columns, names and prompts of the system reach the files as values, or not at all."""
    given = [
        {"prompt": f"{text} {i}", "answer": text, "col'umn\n": text, "labels": [text]}
        for i, text in enumerate(HOSTILE * 3)
    ]
    data = rows("d.jsonl", *given)
    recipe = load_recipe(None, [data, "reward_funcs=exact", *FINITE]).model_copy(
        update={"system_prompt": HOSTILE[0], "run_name": HOSTILE[1], "report_to": []}
    )
    name = 'recipe"""\nimport os; os.system("touch hacked")\n.yaml'
    done = convert(recipe, target, Path("out"), name, allow_missing=True)
    contents = [
        message["content"]
        for path in Path("out").rglob("*.jsonl")
        for row in map(json.loads, path.read_text().splitlines())
        for message in row.get("prompt") or row.get("messages") or [{"content": row["problem"]}]
    ]
    assert {text for text in contents if text != HOSTILE[0]} == {row["prompt"] for row in given}
    for path in Path("out").glob("*.py"):
        tree = ast.parse(path.read_text())
        assert "hacked" not in {
            n.value for n in ast.walk(tree) if isinstance(n, ast.Call) for n in n.args if isinstance(n, ast.Constant)
        }
    if (shell := Path("out/train.sh")).exists():
        subprocess.run(["bash", "-n", shell], check=True)
        fake = tmp_path / "python3"
        fake.write_text('#!/bin/sh\nfor a; do echo "$a"; done\n')
        fake.chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        said = subprocess.run(["bash", shell], env=env, capture_output=True, text=True, check=True).stdout
        assert f"data.train_files={(tmp_path / 'out').resolve()}/train.jsonl" in said.splitlines()
    if (recipe_file := Path("out/recipe.yaml")).exists():
        assert yaml.safe_load(recipe_file.read_text())["system_prompt"] == HOSTILE[0]
    assert not list(tmp_path.rglob("hacked")) and done.paths


# The other targets' keys


def test_verl_names_keys_that_exist() -> None:
    keys = [
        "max_steps=2",
        "use_peft=true",
        "beta=0.1",
        "kl_in_reward=true",
        "loss_type=dr_grpo",
        "lr_scheduler_type=cosine",
    ]
    convert(load_recipe(None, ["sft_steps=0", *keys]), "verl", Path("out"))
    words = shlex.split((Path("out") / "train.sh").read_text(), comments=True)
    given = dict(word.split("=", 1) for word in words if "." in word.partition("=")[0] and "=" in word)
    assert set(given) <= KEYS
    ours = load_recipe(None, keys)
    step = int(given["data.train_batch_size"]) * int(given["actor_rollout_ref.rollout.n"])
    assert step == ours.answers_per_step
    assert given["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert given["algorithm.use_kl_in_reward"] == "True" and given["actor_rollout_ref.actor.use_kl_loss"] == "False"


def test_verl_scores_an_answer() -> None:
    data = rows("d.jsonl", *({"prompt": f"How many apples? {i}", "answer": 42} for i in range(9)))
    keys = ["reward_funcs=numeric,format", "reward_weights=[1,0.5]", *FINITE]
    convert(load_recipe(None, [data, *keys]), "verl", Path("out"))
    row = json.loads((Path("out") / "train.jsonl").open().readline())
    spec = importlib.util.spec_from_file_location("reward", "out/reward.py")
    assert spec and spec.loader
    module = sys.modules["reward"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    score = module.compute_score(
        row["data_source"],
        "<think>6*7</think><answer>42 apples</answer>",
        row["reward_model"]["ground_truth"],
        row["extra_info"],
    )
    assert score == {"score": 1.5, "numeric": 1.0, "format": 1.0}
    assert module.compute_score("", "<answer>41</answer>", "42", row["extra_info"])["score"] == 0.0


def test_unsloth() -> None:
    data = rows("d.jsonl", *({"prompt": f"{i}?", "answer": 42} for i in range(9)))
    convert(load_recipe(None, [data, "reward_funcs=numeric", "use_peft=true", *FINITE]), "unsloth", Path("out"))
    lines = (Path("out") / "train.py").read_text().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports.index("from trl import GRPOConfig, GRPOTrainer") > next(
        i for i, line in enumerate(imports) if line.startswith("from unsloth")
    )
    adapter = arguments(Path("out"), "FastLanguageModel.get_peft_model")
    assert (adapter["r"], adapter["random_state"], len(adapter["target_modules"])) == (16, 0, 7)
    assert "peft_config" not in arguments(Path("out"), "GRPOTrainer")


def test_the_keys_are_trls() -> None:
    """Every key of the scripts and of open-r1's recipe is an argument there, and its value is accepted."""
    trl_package = pytest.importorskip("trl.trainer") and importlib.import_module("trl")
    data = rows("d.jsonl", *({"prompt": f"{i}?", "answer": "42"} for i in range(9)))
    for target, rewards in (("trl", "numeric"), ("unsloth", "numeric"), ("open-r1", "math,cosine")):
        convert(load_recipe(None, [data, f"reward_funcs={rewards}", "warmup_steps=2", *FINITE]), target, Path(target))
        if target == "open-r1":
            given = yaml.safe_load(Path("open-r1/recipe.yaml").read_text())
            own = {
                "system_prompt",
                "reward_funcs",
                "dataset_prompt_column",
                *(k for k in given if k.startswith("cosine_")),
            }
            fields = {
                **trl_package.ScriptArguments.__dataclass_fields__,
                **trl_package.ModelConfig.__dataclass_fields__,
            }
            given = {key: value for key, value in given.items() if key not in own and key not in fields}
        else:
            given = arguments(Path(target))
        trl_package.GRPOConfig(**{**given, "output_dir": "x"})


def test_rewards_of_tokens_and_groups_in_a_script() -> None:
    """Groups are told apart by their prompts, and verdicts are those of the verifier, as in a step of ours."""
    data = rows("d.jsonl", *({"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(9)))
    names = ["numeric", "length", "cosine", "duplicates", "overlong", "repetition"]
    recipe = load_recipe(None, [data, f"reward_funcs={','.join(names)}", "max_completion_length=20", *FINITE])
    convert(recipe, "trl", Path("out"))
    module = module_of(Path("out"))
    texts = ["<answer>1</answer>", "no no no no no no", "<answer>2</answer>", "<answer>2</answer>"]
    prompts = [Prompt(str(i), ({"role": "user", "content": f"{i}+1"},), str(i + 1)) for i in (0, 1)]
    answers = [
        Trajectory.single(
            tuple(map(ord, text[:20])), (0.0,) * len(text[:20]), text, "stop" if len(text) < 20 else "length", 0
        )
        for text in texts
    ]
    groups = [Group(prompt, (1,), tuple(answers[2 * i : 2 * i + 2])) for i, prompt in enumerate(prompts)]
    ours = [
        grade.parts for group in grade_all(groups, rewards_of(recipe, task_of(recipe), {})) for grade in group.grades
    ]
    asked = [list(prompts[i // 2].messages) for i in range(4)]
    said = [[{"role": "assistant", "content": text}] for text in texts]
    ids = [list(answer.token_ids) for answer in answers]
    for name in names:
        theirs = getattr(module, name)(asked, said, ids, answer=["1", "1", "2", "2"])
        assert theirs == [parts[name] for parts in ours], name
    assert len({parts["length"] for parts in ours}) > 1 and ours[2]["duplicates"] == -1.0
