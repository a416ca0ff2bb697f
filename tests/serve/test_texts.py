"""What is shown of an answer while it grows: never what could still become something else, and in the end all of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outdo.models.load import Policy
from outdo.models.renderer import Renderer
from outdo.rollout import OnTokens
from outdo.rollout.turns import Turn
from outdo.serve.calls import Specials
from outdo.serve.following import follow, follow_all
from outdo.serve.texts import AnswerText
from outdo.types import Segment


@pytest.fixture
def bytewise(policy: Policy) -> Renderer:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<end>", "<call>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", additional_special_tokens=["<call>"]
    )
    return replace(policy.renderer, tokenizer=wrapped, eos_ids=(wrapped.eos_token_id,))


def grown(text: AnswerText, ids: list[int]) -> list[str]:
    """The pieces, one token at a time, and the rest."""
    pieces = [text.grow(ids[:count]) for count in range(1, len(ids) + 1)]
    return [*pieces, text.rest(text.whole(ids))]


def test_pieces_join_to_the_answer(bytewise: Renderer) -> None:
    ids = [*bytewise.encode_texts(["é 😀!"])[0], bytewise.eos_ids[0]]
    pieces = grown(AnswerText(bytewise), ids)
    assert [piece for piece in pieces if piece] == ["é", " ", "😀", "!"]
    assert "".join(grown(AnswerText(bytewise), ids[:-3])) == "é \ufffd", "half a character, where no more comes"


def test_stop_texts_are_cut_and_held_back(bytewise: Renderer) -> None:
    (ids,) = bytewise.encode_texts(["one EN two END three"])
    text = AnswerText(bytewise, stop=("END", "\n\n"))
    pieces = grown(text, ids)
    assert "".join(pieces) == text.whole(ids) == "one EN two "
    assert pieces[4:7] == ["", "", "EN "], "E and EN could have become END"
    cut = AnswerText(bytewise, stop=("END",), limit=6)
    assert "".join(cut.grow(ids[:count]) for count in range(1, 20)) == "one ", "EN is the limit's end, and may be END"
    assert cut.rest(cut.whole(ids[:6])) == "EN"


def test_calls_are_held_back(bytewise: Renderer) -> None:
    (ids,) = bytewise.encode_texts(["a < b \n<tool_call>{}</tool_call> after"])
    text = AnswerText(bytewise, marks=("<tool_call>",))
    assert "".join(text.grow(ids[:count]) for count in range(1, len(ids))) == "a < b"
    assert text.rest("a < b") == ""
    unknown = AnswerText(bytewise, marks=None)
    assert not any(unknown.grow(ids[:count]) for count in range(1, len(ids))) and unknown.rest("all") == "all"
    margin = AnswerText(bytewise, marks=("<tool_call>",))
    (spaced,) = bytewise.encode_texts(["\n\nword more<tool_call>"])
    assert margin.grow(spaced[:6]) == "\n\nword" and margin.rest("word more") == " more"


def test_special_tokens_of_calls_stay(bytewise: Renderer) -> None:
    call, end = bytewise.tokenizer.convert_tokens_to_ids(["<call>", "<end>"])
    specials = Specials.of(bytewise, ("<call>", "<not there>"))
    assert specials == Specials(frozenset({call}), frozenset({end}))
    ids = [*bytewise.encode_texts(["a"])[0], call, *bytewise.encode_texts(["b"])[0], end]
    assert AnswerText(bytewise).whole(ids) == "ab"
    assert AnswerText(bytewise, specials=specials).whole(ids) == "a<call>b"


def test_following_answers(bytewise: Renderer) -> None:
    rows = bytewise.encode_texts(["first answer", "second"])

    async def collect() -> list[tuple[int, str, bool]]:
        async def ask(index: int, watch: OnTokens) -> Turn:
            for count in range(1, len(rows[index]) + 1):
                watch(rows[index][:count])
                await asyncio.sleep(0.01)
            return Turn(str(index), Segment(tuple(rows[index]), (0.0,) * len(rows[index])), "length")

        asks = [lambda watch: ask(0, watch), lambda watch: ask(1, watch)]
        pieces = follow_all(asks, [AnswerText(bytewise), AnswerText(bytewise)])
        return [(piece.place, piece.text, piece.turn is not None) async for piece in pieces]

    pieces = asyncio.run(collect())
    for index, whole in ((0, "first answer"), (1, "second")):
        own = [(text, done) for number, text, done in pieces if number == index]
        shown = "".join(text for text, _ in own)
        assert whole.startswith(shown) and len(shown) >= len(whole) - 4 and len(own) >= 3
        assert [done for _, done in own] == [False] * (len(own) - 1) + [True]
    assert any(a[0] != b[0] for a, b in pairwise(pieces[:-2])), "they grow side by side"

    async def fails() -> None:
        async def ask(watch: OnTokens) -> Turn:
            watch(rows[1][:3])
            await asyncio.sleep(0.05)
            raise ValueError("it broke")

        with pytest.raises(ValueError, match="it broke"):
            [piece async for piece in follow(ask, AnswerText(bytewise))]

    asyncio.run(fails())
