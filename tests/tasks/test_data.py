"""Data sets: every kind of source gives the same prompts; columns, splits, demonstrations, errors."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import GraderError, OutdoWarning, RecipeError, TaskError
from outdo.models.load import Policy
from outdo.models.tiny import TEMPLATE
from outdo.recipe.load import load_recipe
from outdo.rewards.compose import find_rewards
from outdo.tasks import gsm8k, sources
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.lengths import drop_long_prompts
from outdo.tasks.mixture import task_of
from outdo.tasks.sources import Source
from outdo.tasks.task import Task, find_task, held_out

ROWS = [{"prompt": f"q{i}", "answer": str(i), "hint": f"h{i}"} for i in range(40)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(task: Task, split: str = "train") -> list[tuple[str, Any, dict[str, Any]]]:
    return sorted((p.text, p.answer, dict(p.meta)) for p in task.prompts(split, 0))


def by_recipe(**keys: Any) -> Task:
    return task_of(load_recipe(None, keys))


def test_sources_give_the_same_prompts(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = find_task(str(lines(tmp_path / "a.jsonl", ROWS)))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet(str(tmp_path / "a.parquet"))
    table.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "dict"))
    (tmp_path / "folder").mkdir()
    lines(tmp_path / "folder" / "train.jsonl", ROWS)
    _tables(tmp_path)
    assert len(rows_of(plain)) + len(rows_of(plain, "test")) == 40 and 1 <= len(rows_of(plain, "test")) <= 12
    for name in ("a.jsonl.gz", "a.json", "lines.json", "a.parquet", "saved", "dict", "folder", *TABLES):
        other = find_task(str(tmp_path / name))
        assert other.finite and other.splits == ("train", "test"), name
        for split in ("train", "test"):
            assert rows_of(other, split) == rows_of(plain, split), name


TABLES = ("a.csv", "semicolons.csv", "a.tsv", "parts", "shards", "repository")


def _tables(folder: Path) -> None:
    """The rows as tables, and in folders of several files."""
    for name, separator in (("a.csv", ","), ("semicolons.csv", ";"), ("a.tsv", "\t")):
        _csv(folder / name, ROWS, separator)
    lines(folder / "lines.json", ROWS)
    for name, files in (
        ("parts", ("part1.csv", "part2.csv")),
        ("shards", ("train-00000-of-00002.csv", "train-00001-of-00002.csv")),
        ("repository/data", ("train-00000-of-00002.csv", "train-00001-of-00002.csv")),
    ):
        (folder / name).mkdir(parents=True)
        for file, rows in zip(files, (ROWS[:15], ROWS[15:]), strict=True):
            _csv(folder / name / file, rows)


def _csv(path: Path, rows: list[dict[str, Any]], separator: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        table.writeheader()
        table.writerows(rows)


def test_table_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt,answer,hint\n"one, ""two""\nthree",1,\n\nfour,2,x\n')
    assert rows_of(find_task(str(path)), "all") == [
        ("four", "2", {"hint": "x"}),
        ('one, "two"\nthree', "1", {"hint": None}),
    ]


def test_tools(tmp_path: Path, policy: Policy) -> None:
    """A row's tools reach the chat template, as a list or as text, and the prompt's length."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    rows = [{"prompt": "a", "answer": "1", "tools": tools}, {"prompt": "b", "answer": "1", "tools": json.dumps(tools)}]
    task = find_task(str(lines(tmp_path / "a.jsonl", rows)))
    prompts = list(task.prompts("all", 0))
    assert [prompt.meta["tools"] for prompt in prompts] == [tools, tools]
    with pytest.warns(OutdoWarning, match="no place for them"):
        plain = policy.renderer.encode(prompts[0])
    policy.renderer.tokenizer.chat_template = "{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE
    shown = policy.renderer.decode(policy.renderer.encode(prompts[0]))
    assert '"name": "add"' in shown and len(policy.renderer.encode(prompts[0])) > len(plain)
    short = drop_long_prompts(task, lambda each: [len(policy.renderer.encode(p)) for p in each], 500, print)
    assert len(list(short.prompts("all", 0))) == 2
    with pytest.raises(TaskError, match="longer than 20 tokens"):
        drop_long_prompts(task, lambda each: [len(policy.renderer.encode(p)) for p in each], 20, print)


def test_curriculum_of_another_task(tmp_path: Path) -> None:
    easy = lines(tmp_path / "easy.jsonl", ROWS)
    keys = {"curriculum_dataset_name": str(easy), "curriculum_steps": 2, "num_generations": 2}
    task = by_recipe(**keys)
    recipe = load_recipe(None, keys)
    curriculum = Curriculum(task, recipe)
    assert all(prompt.text.startswith("q") for prompt in curriculum.draw(5))
    for _ in range(2):
        curriculum.observe(0.5)
    assert not any(prompt.text.startswith("q") for prompt in curriculum.draw(5))
    with pytest.raises(RecipeError, match="its verifier is countdown"):
        by_recipe(**{**keys, "curriculum_dataset_name": "countdown"})
    with pytest.raises(TaskError, match="curriculum_dataset_name"):
        by_recipe(**{**keys, "curriculum_dataset_name": "none.jsonl"})


def test_own_splits(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("validation", 20), ("test", 30)):
        lines(tmp_path / f"{split}.jsonl", ROWS[first : first + 10])
    task = find_task(str(tmp_path))
    assert task.splits == ("train", "test", "validation")
    assert [text for text, *_ in rows_of(task, "test")] == sorted(f"q{i}" for i in range(30, 40))
    assert len(rows_of(task)) == 10
    other = by_recipe(dataset_name=str(tmp_path), dataset_train_split="validation", dataset_test_split="train")
    assert rows_of(other) == rows_of(task, "validation") and rows_of(other, "test") == rows_of(task)
    with pytest.raises(TaskError, match=r"dataset_train_split=trian: .* has no such split; it has test, train, valid"):
        by_recipe(dataset_name=str(tmp_path), dataset_train_split="trian")
    with pytest.raises(TaskError, match="dataset_test_split=dev"):
        by_recipe(dataset_name=str(tmp_path), dataset_test_split="dev")


def test_all_splits(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"what is {i}?", "answer": i}) + "\n" for i in range(40)))
    task = find_task(str(path))
    assert 0 < len(held_out(task, "test", 0)) < 20
    assert {prompt.answer for prompt in held_out(task, "all", 0)} == set(range(40))
    with pytest.raises(TaskError, match="has no split 'all'"):
        held_out(find_task("arithmetic"), "all", 4)


def test_columns(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "final": i, "worked": f"so {i}", "prompt": "not this"} for i in range(30)]
    path = str(lines(tmp_path / "a.jsonl", rows))
    task = by_recipe(dataset_name=path, columns={"prompt": "question", "answer": "final", "completion": "worked"})
    text, answer, meta = rows_of(task)[0]
    assert text == f"q{answer}" and meta == {"final": answer, "worked": f"so {answer}", "completion": f"so {answer}"}
    shown = dict(itertools.islice(((p.text, t) for p, t in task.demonstrations(0)), 20))
    assert all(text == f"so {question[1:]}" for question, text in shown.items())
    with pytest.raises(TaskError, match="no column 'quesiton'; it has question, final, worked, prompt"):
        by_recipe(dataset_name=path, columns={"prompt": "quesiton"})


def test_source_keys_as_arguments(tmp_path: Path) -> None:
    path = str(lines(tmp_path / "a.jsonl", [{"q": "a", "split": "mine"}, {"q": "b", "split": "test"}]))
    task = find_task(path, {"columns": {"prompt": "q"}, "dataset_train_split": "mine"})
    assert [text for text, *_ in rows_of(task)] == ["a"] and [text for text, *_ in rows_of(task, "test")] == ["b"]
    with pytest.raises(TaskError, match="takes no 'digits'"):
        find_task(path, {"columns": {"prompt": "q"}, "digits": 2})
    with pytest.raises(TaskError, match="columns='q'"):
        find_task(path, {"columns": "q"})


def test_columns_follow_the_data() -> None:
    base = {"dataset_name": "a.jsonl", "columns": {"prompt": "question"}}
    both = load_recipe(None, {"columns": {"answer": "final"}}, base_of=base).columns
    assert both == {"prompt": "question", "answer": "final"}
    assert load_recipe(None, {"dataset_name": "b.jsonl"}, base_of=base).columns == {}


def test_demonstrations(tmp_path: Path) -> None:
    user, assistant = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
    kinds = {
        "completion": {"prompt": "2+2?", "completion": "4"},
        "solution": {"prompt": "2+2?", "solution": "4"},
        "last turn": {"messages": [user, assistant]},
        "trl": {"prompt": [user], "completion": [assistant]},
    }
    for kind, row in kinds.items():
        task = find_task(str(lines(tmp_path / "a.jsonl", [{**row, "split": "train"}])))
        prompt, text = next(task.demonstrations(0))
        assert (prompt.messages, text) == ((user,), "4"), kind
        assert prompt.answer == ("4" if kind == "solution" else None)
    some = [{"prompt": "a", "split": "train"}, {"prompt": "b", "completion": "B", "split": "train"}]
    task = find_task(str(lines(tmp_path / "b.jsonl", some)))
    assert {p.text for p, _ in itertools.islice(task.demonstrations(0), 5)} == {"b"}
    none = find_task(str(lines(tmp_path / "c.jsonl", [{"prompt": "a", "split": "train"}])))
    with pytest.raises(TaskError, match=r"no demonstrations.*columns\.completion"):
        next(none.demonstrations(0))


def test_same_prompt_same_split(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": i, "completion": f"way {way}"} for i in range(50) for way in range(3)]
    task = find_task(str(lines(tmp_path / "harvest.jsonl", rows)))
    train, test = list(task.prompts("train", 0)), list(task.prompts("test", 0))
    assert len(train) + len(test) == 150 and test
    assert not {p.text for p in train} & {p.text for p in test}
    epoch = [(p.text, text) for p, text in itertools.islice(task.demonstrations(0), len(train))]
    assert len(set(epoch)) == len(train)


def test_split_ignores_ids(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": i, "id": f"{i}-{copy}"} for i in range(50) for copy in range(8)]
    task = find_task(str(lines(tmp_path / "named.jsonl", rows)))
    train, test = list(task.prompts("train", 0)), list(task.prompts("test", 0))
    assert len(train) + len(test) == 400 and test and test[0].id.startswith(test[0].text[1:] + "-")
    assert not {p.text for p in train} & {p.text for p in test}


def test_duplicate_ids(tmp_path: Path) -> None:
    """An `id` may be that of a subject; and one question may come with two answers, of which neither is lost."""
    alike = [{"prompt": f"q{i}", "answer": i, "id": "algebra"} for i in range(60)]
    both = [{"prompt": f"q{i % 30}", "answer": i // 30} for i in range(60)]
    for rows in (alike, both, both + both):
        task = find_task(str(lines(tmp_path / "rows.jsonl", rows)))
        found = {p.id: (p.text, p.answer) for p in task.prompts("all", 0)}
        assert len(found) == len(set(found.values())) == 60
        sides = [{p.text for p in task.prompts(split, 0)} for split in ("train", "test")]
        assert not sides[0] & sides[1]
    plain = find_task(str(lines(tmp_path / "rows.jsonl", [{**row, "id": f"row {i}"} for i, row in enumerate(alike)])))
    assert all(p.id.startswith("row ") for p in plain.prompts("all", 0))


def test_rft_rows(tmp_path: Path) -> None:
    row = {
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        "name": "Ann",
    }
    prompt = next(find_task(str(lines(tmp_path / "rft.jsonl", [{**row, "split": "train"}]))).prompts("train", 0))
    assert [m["role"] for m in prompt.messages] == ["developer", "user"] and prompt.meta == {"name": "Ann"}


def test_line_separator_in_text(tmp_path: Path) -> None:
    rows = [{"prompt": "one\u2028two\x85three", "split": "train"}]
    assert rows_of(find_task(str(lines(tmp_path / "a.jsonl", rows))))[0][0] == "one\u2028two\x85three"


def test_own_system_prompt_wins(tmp_path: Path) -> None:
    own = {"messages": [{"role": "system", "content": "mine"}, {"role": "user", "content": "a"}], "split": "train"}
    path = lines(tmp_path / "a.jsonl", [own, {"prompt": "b", "split": "train"}])
    found = {p.text: p.messages[0]["content"] for p in find_task(str(path), system_prompt="ours").prompts("train", 0)}
    assert found == {"a": "mine", "b": "ours"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "a list of objects"),
        ("a.json", "[1]", "row 1: a row must be an object"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.jsonl", '{"prompt": 3}', "line 1: the prompt is a int, not text: 3"),
        ("a.jsonl", '{"prompt": "  "}', "line 1: the prompt is empty"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b"', "line 2: not JSON"),
        ("a.jsonl", '{"prompt": "a", "completion": 3}', "the completion is a int, not text"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "an answer without a question"),
        ("a.jsonl", '{"question": "x"}', r"it has question\..* columns\.prompt=NAME"),
        ("a.jsonl.gz", "not gzip", "cannot be read"),
        ("a.parquet", "not parquet", "cannot be read"),
        ("a.jsonl", "", "no prompts"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "a", "x": {"b": 1, "b": 2}}', "line 2: 'b' is given twice"),
        ("a.json", '[{"prompt": "a", "prompt": "b"}]', "'prompt' is given twice"),
        ("a.jsonl", '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "line 1: has both"),
        ("a.jsonl", '{"prompt": "a", "tools": {"name": "add"}}', "line 1: `tools` must be a list"),
        ("a.jsonl", '{"prompt": "a", "tools": "[1"}', "line 1, tools: not JSON"),
        ("a.csv", "prompt,answer\na,1\nb,2,3\n", "line 3: has 3 cells"),
        ("a.csv", "prompt,prompt\na,1\n", "line 1: the column 'prompt' is given twice"),
        ("a.csv", 'prompt,answer\n"a,1\n', "not a table"),
        ("a.csv", "question,answer\na,1\n", r"it has question, answer\..* columns\.prompt=NAME"),
        ("a.csv", "prompt,answer\n", "no prompts"),
    ],
)
def test_bad_rows(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        find_task(str(tmp_path / name))


def test_lone_surrogates(tmp_path: Path) -> None:
    valid = json.dumps({"prompt": "\U0001f600", "split": "train"})  # written as a pair, \\ud83d\\ude00
    halves = [
        {"prompt": "a \ud800"},
        {"messages": [{"role": "user", "content": "\udfff"}]},
        {"prompt": "a", "x\ud83d": 1},
    ]
    for half, code in zip(halves, ("ud800", "udfff", "ud83d"), strict=True):
        path = tmp_path / "a.jsonl"
        path.write_text(f"{valid}\n\n{json.dumps(half)}\n")
        with pytest.raises(TaskError, match=rf"a.jsonl, line 3: contains \\{code}, a lone surrogate"):
            find_task(str(path))
        (tmp_path / "a.json").write_text(f"[{valid}, {json.dumps(half)}]")
        with pytest.raises(TaskError, match=rf"a.json, row 2: contains \\{code}, a lone surrogate"):
            find_task(str(tmp_path / "a.json"))
    path.write_text(f"{valid}\n")
    assert rows_of(find_task(str(path)))[0][0] == "\U0001f600"


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"neither a data set saved by `datasets` nor files such as train\.jsonl"):
        find_task(str(tmp_path))
    with pytest.raises(TaskError, match="no such file or folder"):
        find_task("./nowhere/at/all")
    pytest.importorskip("datasets")
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(TaskError, match="is the folder complete"):
        find_task(str(tmp_path))


def test_hub_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://no-such-host.invalid")
    for name in ("someone/data", "openai/gsm8k"):
        with pytest.raises(TaskError, match=f"{name}: .*hub cannot be reached.*jsonl file.*save_to_disk"):
            find_task(name)


def test_hub_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` reads a folder by the very call that reads the hub."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 200), ("test", 5)):
        rows = [{"question": f"{split}: {i} + 1?", "answer": f"<<{i}+1>>So.\n#### {i + 1}"} for i in range(count)]
        (tmp_path / "data").mkdir(exist_ok=True)
        lines(tmp_path / "data" / f"{split}.jsonl", rows)
    found = sources._hub(Source("data"))
    task = Task("gsm8k", gsm8k.from_rows(found), ("gsm8k",), gsm8k.teacher, ("train", "dev", "test"), finite=True)
    assert len(list(task.prompts("test", 0))) == 5
    assert len(list(task.prompts("train", 0))) + len(list(task.prompts("dev", 0))) == 200
    prompt, text = next(task.demonstrations(0))
    assert text == f"So.\n#### {prompt.answer}"


def test_unsupported_file_type(tmp_path: Path) -> None:
    (tmp_path / "p.xlsx").write_text("prompt,answer\n1+1,2\n")
    with pytest.raises(TaskError, match=r"p\.xlsx: .*\.xlsx; supported are \.jsonl, .*\.parquet"):
        find_task(str(tmp_path / "p.xlsx"))


def test_python_file_without_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def one(): ...\ndef _hidden(): ...\nasync def two(): ...\nraise SystemExit('it was run')\n")
    with pytest.raises(GraderError, match=r"which function\? It has one, two: .*mine\.py:one$"):
        find_rewards([str(file)], [], str(file))
    with pytest.raises(TaskError, match="It has one, two"):
        find_task(str(file))
    file.write_text("X = 1\n")
    with pytest.raises(GraderError, match="defines no function"):
        find_rewards([str(file)], [], str(file))
    file.write_text("def broken(\n")
    with pytest.raises(GraderError, match="cannot be parsed as Python"):
        find_rewards([str(file)], [], str(file))
