"""Search: BM25 against scores computed by hand, passages of files and rows, and what is refused."""

from __future__ import annotations

import json
import math

import pytest

from outdo.envs.calls import CallError
from outdo.envs.search import PASSAGE_CHARS, Index, Passage, _index, _passages, make_search_tool, words
from outdo.envs.tools import find_tools
from outdo.errors import ToolError

CORPUS = [
    Passage("", "the cat sat on the mat"),  # 6 words
    Passage("", "the dog sat"),  # 3
    Passage("", "cat cat cat and a dog"),  # 6
    Passage("", "nothing of the kind here at all"),  # 7
]


def test_scores_by_hand():
    index = Index(CORPUS)
    mean = (6 + 3 + 6 + 7) / 4
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))  # cat and dog are in two of four

    def weight(tf: int, length: int) -> float:
        return idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * length / mean))

    both = {one.text: score for score, one in index.search("cat dog", 10)}
    assert both == pytest.approx(
        {
            CORPUS[0].text: weight(1, 6),
            CORPUS[1].text: weight(1, 3),
            CORPUS[2].text: weight(3, 6) + weight(1, 6),
        },
        rel=1e-12,
    )
    assert weight(1, 3) > weight(1, 6)  # a shorter passage says more with one word
    assert [one.text for _, one in index.search("cat dog", 10)] == [CORPUS[2].text, CORPUS[1].text, CORPUS[0].text]


def test_a_rare_word_counts_more():
    index = Index(CORPUS)
    assert [one.text for _, one in index.search("the mat", 1)] == [CORPUS[0].text]
    assert index.search("the mat", 9)[0][0] > 2 * index.search("the", 9)[0][0]
    assert index.search("unicorn", 3) == [] and index.search("", 3) == [] and index.search("?!", 3) == []


def test_words_and_repeats_of_a_query():
    index = Index(CORPUS)
    assert words("The CAT's naïve, 3.5 Straße_x") == ["the", "cat", "s", "naïve", "3", "5", "strasse", "x"]
    assert index.search("cat cat cat", 3) == index.search("Cat", 3)


def test_equal_scores_keep_their_order():
    index = Index([Passage(str(i), "same words") for i in range(50)])
    assert [one.title for _, one in index.search("same", 5)] == ["0", "1", "2", "3", "4"]


def test_a_folder(tmp_path):
    (tmp_path / "animals").mkdir()
    (tmp_path / "animals" / "whale.md").write_text("# Whales\n\nThe blue whale is the largest animal.\n")
    (tmp_path / "rivers.txt").write_text("The Nile is a long river.\n\nThe Amazon has the most water.")
    (tmp_path / "code.py").write_text("whale whale whale")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("whale whale")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 whale")
    (tool,) = find_tools([f"search:{tmp_path}"])
    search = tool.make()
    first, second = search("largest whale").split("\n\n[2] ")
    assert first == "[1] animals/whale.md\n# Whales\n\nThe blue whale is the largest animal."
    assert second == "latin.txt\ncaf\N{REPLACEMENT CHARACTER} whale"
    assert search("amazon water", k=1) == "[1] rivers.txt\nThe Nile is a long river.\n\nThe Amazon has the most water."
    assert search("rivers", k=1).startswith("[1] rivers.txt")  # titles count
    assert search("xylophone") == "No passage has any of these words."
    parameters = tool.schema["function"]["parameters"]
    assert tool.name == "search" and parameters["required"] == ["query"]
    assert [parameters["properties"][name]["type"] for name in ("query", "k")] == ["string", "integer"]


@pytest.mark.parametrize("k", [0, -1, 11])
def test_how_many(tmp_path, k):
    (tmp_path / "a.txt").write_text("word")
    search = make_search_tool(str(tmp_path)).make()
    with pytest.raises(CallError, match="from 1 to 10"):
        search("word", k)
    with pytest.raises(CallError, match="1,001 characters"):
        search("x" * 1_001)


def test_passages_of_a_long_file():
    paragraphs = [f"{name} " * 60 for name in ("alpha", "beta", "gamma", "delta", "omega")]
    passages = list(_passages("\n\n".join(paragraphs) + "\n \n"))
    assert all(len(one) <= PASSAGE_CHARS for one in passages)
    assert " ".join(passages).split() == " ".join(paragraphs).split()
    assert passages[0].count("\n\n") == 2 and "gamma" in passages[0]
    words_only = " ".join(f"w{i}" for i in range(2_000))
    assert " ".join(_passages(words_only)).split() == words_only.split()
    assert [len(one) for one in _passages("x" * 3_000)] == [1_200, 1_200, 600]


def rows(path, *values):
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in values))
    return str(path)


def test_rows(tmp_path):
    path = rows(
        tmp_path / "facts.jsonl",
        {"title": "Nile", "text": "a river in Africa\u2028and Egypt", "fact": "long"},
        "",
        {"title": "Alps", "text": "mountains in Europe", "fact": "high"},
    )
    assert make_search_tool(path).make()("mountains") == "[1] Alps\nmountains in Europe"
    assert make_search_tool(path).make()("egypt").startswith("[1] Nile\na river")
    (tool,) = find_tools([{"search": {"path": path, "column": "fact", "title": "text"}}])
    assert tool.make()("high") == "[1] mountains in Europe\nhigh"
    bare = rows(tmp_path / "bare.jsonl", {"body": "one"}, {"body": "two"})
    assert make_search_tool(bare).make()("two") == "[1] row 2\ntwo"


def test_built_once(tmp_path):
    (tmp_path / "a.txt").write_text("word")
    make_search_tool(str(tmp_path))
    assert _index(tmp_path.resolve(), "", "") is _index(tmp_path.resolve(), "", "")
    assert _index.cache_info().hits >= 1


def test_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "image.png").write_bytes(b"x")
    blank = rows(tmp_path / "blank.jsonl", "", "")
    good = rows(tmp_path / "good.jsonl", {"words": "a"})
    for given, says in (
        (f"search:{tmp_path / 'empty'}", "there is no text"),
        (f"search:{blank}", "there is no text"),
        (f"search:{tmp_path / 'image.png'}", "give a folder with .txt or .md files, or a .jsonl"),
        (f"search:{tmp_path / 'goood.jsonl'}", "did you mean good.jsonl"),
        (f"search:{good}", "line 1: which column is the text.*one of words"),
        ({"search": {"path": good, "column": "word"}}, "no column 'word'.*did you mean 'words'"),
        ({"search": {"path": str(tmp_path), "column": "a"}}, "only a .jsonl has columns"),
        (f"search:{rows(tmp_path / 'a.jsonl', '{broken')}", "line 1: not JSON"),
        (f"search:{rows(tmp_path / 'b.jsonl', [1])}", "must be an object"),
        (f"search:{rows(tmp_path / 'c.jsonl', {'text': 'a'}, {'text': 3})}", "line 2: the text is a int"),
    ):
        with pytest.raises(ToolError, match=says):
            find_tools([given])
