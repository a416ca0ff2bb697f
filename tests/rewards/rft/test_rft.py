"""OpenAI's grader JSON: problems with their place, scores of each grader, and failing judges."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outdo.errors import GraderError
from outdo.rewards.compose import Reward, Rewards, grade
from outdo.rewards.rft import load, rft_reward, validate
from outdo.rewards.rft.models import Endpoint
from outdo.rewards.rft.read import read_spec
from outdo.types import Group, Prompt, Trajectory
from support.basics import ROOT

EXACT = {
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.gold }}",
    "operation": "eq",
}
CLOSE = {
    "type": "text_similarity",
    "name": "close",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.gold }}",
    "evaluation_metric": "fuzzy_match",
}
JUDGE = {
    "type": "score_model",
    "model": "judge-1",
    "input": [
        {"role": "system", "content": "Score it."},
        {"role": "user", "content": "Gold: {{ item.gold }}. Answer: {{ sample.output_text }}"},
    ],
}
LABELS = {
    "type": "label_model",
    "model": "judge-1",
    "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
    "labels": ["good", "fair", "bad"],
    "passing_labels": ["good", "fair"],
}
PYTHON = {"type": "python", "source": "def grade(sample, item):\n    return 1.0\n", "image_tag": "2025-05-08"}
MULTI = {"type": "multi", "graders": {"exact": EXACT, "close": CLOSE}, "calculate_output": "0.5 * exact + 0.5 * close"}


def spec_of(data):
    spec, problems = read_spec(data)
    assert not problems
    return spec


def graded(data, completions, endpoint=None, **row):
    """One row's grades; `row` is its keys."""
    columns = {key: [value] * len(completions) for key, value in row.items()}
    return rft_reward(spec_of(data), endpoint)(completions, max_completion_length=64, **columns)


def one(data, completion, endpoint=None, **row):
    return graded(data, [completion], endpoint, **row)[0]


def problems_of(data):
    """Each as `place: message`."""
    return [f"{'.'.join(map(str, p.place))}: {p.text}" for p in read_spec(data)[1]]


# What is read, and what is refused


@pytest.mark.parametrize("data", [EXACT, CLOSE, JUDGE, LABELS, PYTHON, MULTI])
def test_valid_graders(data, tmp_path):
    path = tmp_path / "grader.json"
    path.write_text(json.dumps({**data, "name": "any name"}))
    assert validate(path) == []
    function, name = load(path)
    assert (function.__name__, name) == ("grader", "grader")


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ({**EXACT, "operation": "equals"}, "operation: 'equals' is not one of eq, ne, like, ilike; did you mean 'eq'?"),
        ({**EXACT, "refrence": "x"}, "refrence: a string_check grader has no 'refrence'"),
        ({**EXACT, "input": 3}, "input: is a number, and must be a string"),
        ({**EXACT, "name": []}, "name: is a list, and must be a string"),
        ({**EXACT, "input": "{{ samples.x }}"}, "input: column 4: 'samples' is not a namespace"),
        ({**EXACT, "reference": "{{ sample.text }}"}, "reference: column 10: sample has no 'text'"),
        ({"type": "string_check"}, ": a string_check grader needs 'input'"),
        ({**EXACT, "type": "stringcheck"}, "type: 'stringcheck' is not one of string_check"),
        ({**EXACT, "type": 3}, "type: '3' is not one of"),
        ({"grader": EXACT}, ": needs 'type', one of string_check, text_similarity, python, score_model, label_model"),
        ({"grader": EXACT}, "only the value of 'grader'"),
        ([], ": is a list, and must be a grader"),
        (None, ": is null, and must be a grader"),
        ({**CLOSE, "evaluation_metric": "cosine"}, "evaluation_metric: cosine compares embeddings"),
        ({**CLOSE, "evaluation_metric": "rouge1"}, "did you mean 'rouge_1'?"),
        ({**CLOSE, "pass_threshold": "0.5"}, "pass_threshold: is a string, and must be a finite number"),
        ({**CLOSE, "pass_threshold": 10**400}, "pass_threshold: is a number, and must be a finite number"),
        ({**CLOSE, "pass_threshold": True}, "pass_threshold: is a boolean"),
        ({**JUDGE, "input": "Score it"}, "input: must be a list of messages"),
        ({**JUDGE, "input": [{"role": "judge", "content": "x"}]}, "input.0.role: 'judge' is not one of system"),
        ({**JUDGE, "input": [{"role": "user"}]}, "input.0: a message needs 'content'"),
        ({**JUDGE, "input": ["hello"]}, "input.0: is a string, and must be a message"),
        (
            {**JUDGE, "input": [{"role": "user", "content": "{{x}}"}]},
            "input.0.content: column 3: 'x' is not a namespace",
        ),
        (
            {**JUDGE, "input": [{"role": "user", "content": {"type": "input_image", "image_url": "x"}}]},
            "input.0.content: must be a string: images and audio are not supported",
        ),
        ({**JUDGE, "range": [1, 0]}, "range: must be two finite numbers, the smaller first"),
        ({**JUDGE, "range": [0, float("inf")]}, "range: must be two finite numbers"),
        ({**JUDGE, "sampling_params": {"temprature": 0}}, "sampling_params.temprature: is not one of temperature"),
        (
            {**JUDGE, "sampling_params": {"temperature": "hot"}},
            "sampling_params.temperature: is a string, and must be a number",
        ),
        (
            {**JUDGE, "sampling_params": {"reasoning_effort": 3}},
            "sampling_params.reasoning_effort: is a number, and must be",
        ),
        ({**LABELS, "passing_labels": ["great"]}, "passing_labels.0: 'great' is not one of the labels"),
        ({**LABELS, "labels": []}, "labels: must be a non-empty list of strings"),
        ({**LABELS, "labels": ["good", "fair", "good"]}, "labels: has a duplicate label"),
        ({**MULTI, "graders": {"exact": MULTI}}, "graders.exact.type: a multi grader cannot contain another"),
        ({**MULTI, "graders": {}}, "graders: must be an object of graders by name"),
        ({**MULTI, "graders": {"a b": EXACT}}, "graders.a b: a formula cannot use this name"),
        ({**MULTI, "calculate_output": "exact + clos"}, "calculate_output: column 9: unknown grader 'clos'"),
        ({**MULTI, "calculate_output": "exact +"}, "calculate_output: column 8: expected"),
        ({**MULTI, "calculate_output": "(" * 9_000}, "calculate_output: column 51: nested more than 50"),
        ({**MULTI, "graders": {"exact": {**EXACT, "operation": "is"}}}, "graders.exact.operation: 'is' is not one of"),
    ],
)
def test_problems(data, want):
    assert any(want in problem for problem in problems_of(data)), problems_of(data)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("def grade(sample, item)\n  return 1", "is not valid Python"),
        ("x = 1", "defines no function grade(sample, item)"),
        ("class A:\n  def grade(self, item): pass", "defines no function grade"),
        ("async def grade(sample, item): pass", "defines no function grade"),
        ("def grade(sample): pass", "it takes 1"),
        ("def grade(a, b, c): pass", "it takes 3"),
        ("def grade(a, b, *, c): pass", "must take two arguments"),
        ("x = 1\0", "is not valid Python"),
        ("(" * 5_000, "is not valid Python"),
        ("#" * 256 * 1024, "must be under 262144"),
    ],
)
def test_bad_python_sources(source, want):
    assert any(want in problem for problem in problems_of({"type": "python", "source": source}))


@pytest.mark.parametrize(
    "source", ["def grade(a, b, c=1): pass", "def grade(*args): pass", "import os\n@f\ndef grade(s, i): pass"]
)
def test_odd_python_sources(source, tmp_path):
    assert problems_of({"type": "python", "source": source + "\nopen('made', 'w')"}) == []


def test_example_of_the_docs(tmp_path):
    page = (ROOT / "docs" / "rft.md").read_text()
    path = tmp_path / "grader.json"
    path.write_text(page.split("```text\n")[1].split("```")[0])
    assert validate(path) == []
    answers = ['{"name": "Ann", "email": "a@b.c"}', '{"name": "Ann", "email": "x"}', "Ann, a@b.c"]
    grades = load(path)[0](answers, name=["Ann"] * 3, email=["a@b.c"] * 3)
    assert [(g.reward, g.verdict) for g in grades] == [(1.0, "right"), (0.5, "wrong"), (0.0, "wrong")]


def test_problems_have_lines(tmp_path):
    path = tmp_path / "grader.json"
    bad = {**MULTI, "graders": {"exact": {**EXACT, "operation": "equals", "inptu": "x"}, "close": {"type": "python"}}}
    path.write_text(json.dumps(bad, indent=2))
    lines = [line.strip() for line in path.read_text().splitlines()]
    unknown, operation, close = (
        lines.index(text) + 1 for text in ('"inptu": "x"', '"operation": "equals",', '"close": {')
    )
    problems = validate(path)
    assert len(problems) == 3
    assert problems[0].startswith(f"{path}, line {unknown}: graders.exact.inptu: ")
    assert "graders.exact.operation: 'equals' is not one of eq, ne, like, ilike; did you mean 'eq'?" in problems[1]
    assert f"line {operation}:" in problems[1]
    assert f"line {close}: graders.close: a python grader needs 'source'" in problems[2]
    with pytest.raises(GraderError, match="operation") as caught:
        load(path)
    assert str(caught.value).splitlines() == problems


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{\n  "type": "multi",\n}', "line 3, column 1: invalid JSON"),
        ("", "line 1, column 1: invalid JSON"),
        ('{"type": "python",\n "type": "multi"}', "line 2: duplicate key 'type'"),
        ('{"type": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested"),
        ("[" * 50 + "]" * 50, "line 1: nested more than 20"),
        ("1" * 5_000, "digits"),
        ("\x00", "invalid JSON"),
    ],
)
def test_invalid_json(text, want, tmp_path):
    path = tmp_path / "grader.json"
    path.write_text(text)
    (problem,) = validate(path)
    assert want in problem
    assert problem.startswith(str(path))


def test_unreadable_files(tmp_path):
    path = tmp_path / "grader.json"
    assert validate(path) == [f"{path}: no such file"]
    assert validate(tmp_path) == [f"{tmp_path}: is a folder"]
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in validate(path)[0]
    path.write_bytes(b" " * 10_000_000)
    assert "larger than 2000000 bytes" in validate(path)[0]
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(EXACT).encode())  # a byte order mark is ignored
    assert validate(path) == []


def test_many_problems(tmp_path):
    path = tmp_path / "grader.json"
    path.write_text(json.dumps({"type": "string_check", **{f"key{i}": i for i in range(100_000)}}))
    start = time.monotonic()
    assert len(validate(path)) == 20
    path.write_text(json.dumps({**EXACT, "k" * 1_000_000: 1}))
    assert len(validate(path)[0]) < 1_000
    assert time.monotonic() - start < 5


# What graders pay


@pytest.mark.parametrize(
    ("operation", "text", "reward"),
    [
        ("eq", "Paris", 1.0),
        ("eq", "paris", 0.0),
        ("eq", "Paris ", 1.0),
        ("eq", "Paris.", 0.0),
        ("ne", "Paris", 0.0),
        ("ne", "Rome", 1.0),
        ("neq", "Rome", 1.0),
        ("like", "It is Paris.", 1.0),
        ("like", "It is PARIS.", 0.0),
        ("like", "Par", 0.0),
        ("ilike", "It is PARIS.", 1.0),
        ("ilike", "Rome", 0.0),
    ],
)
def test_string_checks(operation, text, reward):
    judged = one({**EXACT, "operation": operation}, text, gold="Paris")
    assert (judged.reward, judged.verdict) == (reward, "right" if reward else "wrong")
    assert bool(judged.reason) is (reward == 0.0)


def test_empty_reference():
    like = {**EXACT, "operation": "like"}
    assert one(like, "anything", gold="").verdict == "broken"
    backwards = {**like, "input": "{{ item.gold }}", "reference": "{{ sample.output_text }}"}
    assert one(backwards, "aris", gold="Paris").reward == 1.0
    assert (one(backwards, "", gold="Paris").reward, one(backwards, "", gold="Paris").verdict) == (0.0, "wrong")


def test_text_similarity():
    near = one({**CLOSE, "pass_threshold": 0.8}, "Pariss", gold="Paris")
    assert (near.reward, near.verdict) == (pytest.approx(10 / 11), "right")
    assert one(CLOSE, "Pariss", gold="Paris").verdict == "wrong"
    assert one(CLOSE, "Paris", gold="Paris").verdict == "right"


def test_item_and_sample():
    def text(template, **row):
        return one({**CLOSE, "input": template, "reference": row.pop("want")}, '{"a": [1, {"b": "x"}]}', **row).reward

    assert text("{{ item.answer }}", answer=42, want="42") == 1.0
    assert text("{{ item.messages[0].content }}", messages=({"role": "user", "content": "hi"},), want="hi") == 1.0
    assert text("{{ item.prompts }}", prompts="hi", want="hi") == 1.0
    assert text("{{ sample.output_json.a[1].b }}", want="x") == 1.0
    assert text("{{ sample.choices[0].message.content }}", want='{"a": [1, {"b": "x"}]}') == 1.0
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    assert text("{{ sample.output_tools[0].function.name }}", completion_tools=calls, want="add") == 1.0


@pytest.mark.parametrize("key", ["gold", "answer", "completion_ids", "finish", "max_completion_length"])
def test_missing_item_is_broken(key):
    data = {**EXACT, "reference": f"{{{{ item.{key} }}}}"}
    judged = one(data, "x", answer=None, finish="stop", completion_ids=(1,), other=1)
    assert (judged.reward, judged.verdict) == (None, "broken")
    assert f"item.{key} is missing" in judged.reason


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ sample.output_json.a }}", "the answer is not JSON"),
        ("{{ sample.output_json }}", "the answer is not JSON"),
        ("{{ sample.output_tools[0].function.name }}", "sample.output_tools[0] is missing"),
    ],
)
def test_missing_sample_is_wrong(template, reason):
    judged = one({**EXACT, "input": template, "operation": "ne"}, "no json", gold="x")
    assert (judged.reward, judged.verdict) == (0.0, "wrong")
    assert reason in judged.reason


@pytest.mark.parametrize(
    "text",
    ["NaN", "[" * 100_000, "[" * 500 + "]" * 500, "1" * 5_000, '{"a": Infinity}', '{"a": 1e999}', "\ud800", '{"b": 1}'],
)
def test_bad_json_answers(text):
    assert one({**EXACT, "input": "{{ sample.output_json.a }}"}, text, gold="x").verdict == "wrong"


@pytest.mark.parametrize("text", ["{{ item.gold }}", "\0", "\ud800", "{}", "a" * 1_000_000])
def test_hostile_answers(text):
    assert one(EXACT, text, gold=text).reward == 1.0
    assert one(EXACT, text, gold="secret").reward == 0.0
    start = time.monotonic()
    assert one(MULTI, text, gold="secret").verdict == "wrong"
    assert time.monotonic() - start < 2


def test_multi():
    right, near, broken = (
        one(MULTI, text, **row) for text, row in [("ab", {"gold": "ab"}), ("ac", {"gold": "ab"}), ("a", {})]
    )
    assert (right.reward, right.verdict, right.parts) == (1.0, "right", {"exact": 1.0, "close": 1.0})
    assert (near.reward, near.verdict, near.parts) == (0.25, "wrong", {"exact": 0.0, "close": 0.5})
    assert near.reason.startswith("exact: eq: 'ac' against 'ab'; close: fuzzy_match 0.5")
    assert (broken.reward, broken.verdict) == (None, "broken")
    assert "exact: item.gold is missing" in broken.reason
    assert one({**MULTI, "pass_threshold": 0.2}, "ac", gold="ab").verdict == "right"


def test_rounding_at_the_threshold():
    judged = one({**MULTI, "calculate_output": "0.7 * exact + 0.2 * close + 0.1 * exact"}, "ab", gold="ab")
    assert judged.reward < 1
    assert judged.verdict == "right"


def test_formula_without_a_value():
    judged = one({**MULTI, "calculate_output": "close / exact"}, "ac", gold="ab")
    assert (judged.verdict, judged.reward, judged.reason) == ("wrong", 0.0, "division of 0.5 by 0")
    judged = one({**MULTI, "calculate_output": "close / (exact - exact)"}, "ac", gold="ab")
    assert (judged.verdict, judged.reason) == ("broken", "division of 0.5 by 0")


def test_unused_graders_are_not_run():
    data = {**MULTI, "graders": {**MULTI["graders"], "judge": JUDGE, "code": PYTHON}}
    assert one(data, "ab", gold="ab").reward == 1.0


def test_answers_of_a_group():
    prompt = Prompt("p", ({"role": "user", "content": "capital?"},), None, {"gold": "Paris"})
    answers = tuple(Trajectory.single((1,), (0.0,), text, "stop", 0) for text in ("Paris", "Rome"))
    rewards = Rewards((Reward("grader", rft_reward(spec_of(EXACT))),), "grader", 64)
    assert [g.reward for g in grade(Group(prompt, (1,), answers), rewards).grades] == [1.0, 0.0]


# Judges, over a real server


class Judge(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        answer = self.server.replies[min(len(self.server.requests), len(self.server.replies)) - 1]
        status, body, headers = answer(json.loads(self.server.requests[-1][2])) if callable(answer) else answer
        if status == "hang":
            self.server.released.wait(10)
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if int(headers.get("Content-Length", 0)) > len(body):
            self.server.released.wait(10)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64


def reply(content, status=200, **headers):
    message = content if isinstance(content, dict) else {"role": "assistant", "content": content}
    return status, json.dumps({"choices": [{"index": 0, "message": message}]}).encode(), headers


@contextmanager
def judge(*replies):
    """A server that sends these replies in turn, then repeats the last."""
    server = Server(("127.0.0.1", 0), Judge)
    server.replies, server.requests, server.released = replies, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield (
            server,
            Endpoint(f"http://127.0.0.1:{server.server_port}/v1", "key-1", timeout_s=5, attempts=3, pause_s=0.01),
        )
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("content", "reward"),
    [
        ('{"steps": [], "result": 0.75}', 0.75),
        ('{"result": 1}', 1.0),
        (" 0.5\n", 0.5),
        ("1e-1", 0.1),
        ("0", 0.0),
    ],
)
def test_judge_score(content, reward):
    with judge(reply(content)) as (_, at):
        judged = one(JUDGE, "Paris", at, gold="Paris")
    assert (judged.reward, judged.verdict) == (reward, "right" if reward == 1 else "wrong")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("great!", "is not a number"),
        ("0.5 of 1", "is not a number"),
        ("Score: 1", "is not a number"),
        ("", "is not a number"),
        ("nan", "is not a number"),
        ("inf", "is not a number"),
        ("1e999", "is not a number"),
        ("{", "is not a number"),
        ('{"result": true}', "is not a number"),
        ('{"result": "one"}', "is not a number"),
        ('{"result": NaN}', "is not a number"),
        ('{"result": [1]}', "is not a number"),
        ('{"score": 1}', "is not a number"),
        ('{"result": 1' + "0" * 400 + "}", "is not a number"),
        ("[" * 100_000, "is not a number"),
        ('{"result": 1.5}', "score 1.5 is not between 0 and 1"),
        ("-0.1", "score -0.1 is not between 0 and 1"),
        ({"role": "assistant", "content": None, "refusal": "I will not"}, "the judge refused: 'I will not'"),
        ({"role": "assistant", "content": None}, "reply is empty"),
    ],
)
def test_bad_judge_scores(content, message):
    with judge(reply(content)) as (_, at):
        judged = one(JUDGE, "Paris", at, gold="Paris")
    assert (judged.reward, judged.verdict) == (None, "broken")
    assert message in judged.reason


def test_judge_range():
    data = {**JUDGE, "range": [-1, 5], "input": [{"role": "user", "content": "{{ sample.output_json.a }}"}]}
    with judge(reply("5"), reply("4.5")) as (_, at):
        assert (one(data, '{"a": 1}', at).reward, one(data, '{"a": 1}', at).reward) == (5.0, 4.5)
        assert one(data, "no json", at).reward == -1.0  # the worst of the range
        top, passing = one(data, '{"a": 1}', at), one({**data, "pass_threshold": 4}, '{"a": 1}', at)
    assert (top.verdict, passing.verdict) == ("wrong", "right")


def test_judge_request():
    data = {
        **JUDGE,
        "input": [
            {"role": "system", "content": [{"type": "input_text", "text": "Score"}, "it."]},
            {"role": "user", "type": "message", "content": "{{ item.gold }}|{{ sample.output_text }}"},
        ],
        "sampling_params": {"temperature": 0, "max_completions_tokens": 50, "seed": None},
    }
    with judge(reply("1")) as (server, at):
        assert one(data, "{{ item.gold }} \0 \ud800 é", at, gold="G").reward == 1.0
        ((path, headers, body),) = server.requests
    sent = json.loads(body)
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer key-1"
    assert sent["messages"] == [
        {"role": "system", "content": "Score\nit."},
        {"role": "user", "content": "G|{{ item.gold }} \0 ? é"},
    ]
    assert (sent["model"], sent["temperature"], sent["max_completion_tokens"]) == ("judge-1", 0, 50)
    assert "seed" not in sent
    assert sent["response_format"]["json_schema"]["schema"]["properties"]["result"] == {"type": "number"}


@pytest.mark.parametrize(
    ("content", "reward"),
    [("good", 1.0), ('{"steps": [], "result": "fair"}', 1.0), ('{"result": "bad"}', 0.0), ("bad", 0.0)],
)
def test_labels(content, reward):
    with judge(reply(content)) as (server, at):
        judged = one(LABELS, "x", at)
        schema = json.loads(server.requests[0][2])["response_format"]["json_schema"]["schema"]
    assert (judged.reward, judged.verdict) == (reward, "right" if reward else "wrong")
    assert schema["properties"]["result"]["enum"] == ["good", "fair", "bad"]


@pytest.mark.parametrize("content", ["excellent", "good, or bad", "Good", "", "{}", '{"result": ["good"]}'])
def test_bad_labels(content):
    with judge(reply(content)) as (_, at):
        judged = one(LABELS, "x", at)
    assert judged.verdict == "broken"
    assert "not one of the labels good, fair, bad" in judged.reason


def test_busy_server_is_retried():
    with judge(reply("", 500), reply("", 429, **{"Retry-After": "0"}), reply("1")) as (server, at):
        assert one(JUDGE, "x", at, gold="y").reward == 1.0
        assert len(server.requests) == 3


@pytest.mark.parametrize(("status", "times"), [(500, 3), (503, 3), (429, 3), (401, 1), (404, 1)])
def test_failing_server(status, times):
    with judge((status, b"out of order", {})) as (server, at):
        judged = one(JUDGE, "x", at, gold="y")
        assert len(server.requests) == times
    assert judged.verdict == "broken"
    assert f"answered {status}" in judged.reason
    assert "out of order" in judged.reason
    assert "key-1" not in judged.reason


def test_redirects_are_refused():
    with judge(reply("1")) as (other, elsewhere), judge((302, b"", {"Location": elsewhere.url})) as (_, at):
        assert "answered 302" in one(JUDGE, "x", at, gold="y").reason
        assert other.requests == []


def test_hanging_server():
    with judge(("hang", b"", {})) as (_, at):
        start = time.monotonic()
        judged = one(JUDGE, "x", replace(at, timeout_s=0.3), gold="y")
        assert time.monotonic() - start < 3
    assert judged.verdict == "broken"
    assert "no answer within 0.3 seconds" in judged.reason


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, b"<html>", {}), "invalid chat completion: '<html>'"),
        ((200, b"", {}), "invalid chat completion"),
        ((200, b"[]", {}), "invalid chat completion"),
        ((200, b'{"choices": []}', {}), "invalid chat completion"),
        ((200, b"\xff" * 100, {}), "invalid chat completion"),
        ((200, b"x" * 1_100_000, {}), "larger than 1000000 bytes"),
        ((200, b"short", {"Content-Length": "100"}), "no answer within 0.3 seconds"),
        ((400, b"short", {"Content-Length": "100"}), "answered 400"),
    ],
)
def test_invalid_replies(reply, message):
    with judge(reply) as (_, at):
        judged = one(JUDGE, "x", replace(at, timeout_s=0.3), gold="y")
    assert (judged.reward, judged.verdict) == (None, "broken")
    assert message in judged.reason


def test_no_server():
    with judge(reply("1")) as (_, at):
        pass
    judged = one(JUDGE, "x", at, gold="y")
    assert judged.verdict == "broken"
    assert "cannot be reached" in judged.reason


def test_concurrent_judging_keeps_order():
    def slowly(sent):
        number = int(sent["messages"][-1]["content"])
        time.sleep(0.05 * (number % 3 == 0))
        return reply(str(number / 20))

    data = {**JUDGE, "input": [{"role": "user", "content": "{{ sample.output_text }}"}]}
    with judge(slowly) as (_, at):
        grades = graded(data, [str(i) for i in range(20)], at)
    assert [g.reward for g in grades] == [i / 20 for i in range(20)]


def test_endpoint_from_env(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(GraderError, match="OPENAI_API_KEY is not set"):
        one(JUDGE, "x", gold="y")
    for address in ("file:///etc/passwd", "localhost:8000", "http://", "http://[", "http://a b/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        with pytest.raises(GraderError, match="is not an address"):
            one(JUDGE, "x", gold="y")
    with judge(reply("1")) as (server, at):
        monkeypatch.setenv("OPENAI_BASE_URL", at.url + "/")
        assert one(JUDGE, "x", gold="y").reward == 1.0
        assert "Authorization" not in server.requests[0][1]
        monkeypatch.setenv("OPENAI_API_KEY", "key-2")
        assert one(JUDGE, "x", gold="y").reward == 1.0
        assert server.requests[1][1]["Authorization"] == "Bearer key-2"


# Python graders, in the real sandbox


def python(body, completion="x", **row):
    return one({"type": "python", "source": f"def grade(sample, item):\n    {body}\n"}, completion, **row)


def test_python_grader():
    assert python("return float(sample['output_text'] == item['gold'])", "Paris", gold="Paris").reward == 1.0
    assert python("return sample['output_json']['a'] / 4", '{"a": 1}').reward == 0.25
    assert (
        python("return float(sample['output_json'] is None and sample['output_tools'] == [])", "no json").reward == 1.0
    )
    assert (
        python("return float(sorted(sample) == ['choices', 'output_json', 'output_text', 'output_tools'])").reward
        == 1.0
    )
    assert (
        python("return float(sorted(item) == ['b', 'messages'])", b=1, messages=({"role": "user"},), answer=None).reward
        == 1.0
    )
    assert python("return len(sample['output_text'])", "\0\ud800{}").reward == 4.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return True", "returned True, not a finite number"),
        ("return 'one'", "returned a value of type str"),
        ("return None", "returned None"),
        ("return float('nan')", "returned nan"),
        ("return 10 ** 400", "returned a value of type int"),
        ("return 1 / 0", "ZeroDivisionError"),
        ("return item['gone']", "KeyError"),
        ("import os; os._exit(0)", "failed"),
        ("open('/etc/hostname', 'w'); return 1.0", "failed"),
    ],
)
def test_bad_python_results(body, message):
    judged = python(body)
    assert (judged.reward, judged.verdict) == (None, "broken")
    assert message in judged.reason


def test_python_grader_keeps_order():
    source = "def grade(sample, item):\n    return int(sample['output_text']) / 10\n"
    grades = graded({"type": "python", "source": source}, [str(i) for i in range(6)])
    assert [g.reward for g in grades] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
