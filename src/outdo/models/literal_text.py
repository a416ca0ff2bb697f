"""Text of strangers in tokens: no special or added token comes of it, whatever it spells.

Where a token's spelling occurs, the text is cut inside it and its parts are encoded one by one. Added tokens that are
white space alone, or one character, are ordinary text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

_TRIAL = "24>>"


@dataclass(frozen=True)
class Mixed:
    """A template's own texts, whose special tokens count, and a stranger's contents between them."""

    texts: tuple[str, ...]
    contents: tuple[str, ...] = ()  # one fewer than texts
    continued: bool = False  # it follows other text
    skip: int = 0  # tokens at its begin that are not wanted


def interleaved(texts: Sequence[str], contents: Sequence[str]) -> list[str]:
    """A text, a content, a text, and so on."""
    return [texts[0], *(part for pair in zip(contents, texts[1:], strict=True) for part in pair)]


class LiteralEncoder:
    """Of one tokenizer. `guarded` puts a mark that nobody can guess where a text is to be cut; a template renders the
    mark with the text, and `encode_all` cuts there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.mark = f"z{secrets.token_hex(8)}z"
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        spelled = {i: str(token) for i, token in added.items()}
        spelled |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        self.control = {i: text for i, text in spelled.items() if len(text) > 1 and not text.isspace()}
        self.special = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        self._spellings = sorted(set(self.control.values()), key=len, reverse=True)
        specials = {text for i, text in self.control.items() if i in self.special}
        self.special_spellings = [text for text in self._spellings if text in specials]
        self._normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._anchor = self._find_anchor()
        self._pattern = lru_cache(maxsize=2)(self._compile)
        self._controls_of = lru_cache(maxsize=4096)(self._controls)

    def _compile(self, special_only: bool) -> re.Pattern[str] | None:
        spellings = self.special_spellings if special_only else self._spellings
        return re.compile("|".join(map(re.escape, spellings))) if spellings else None

    def guarded(self, text: str, keep: Container[str] | None = None) -> str:
        """The text with a mark inside every spelling of an added token. With `keep`: of special ones but those."""
        pattern = self._pattern(keep is not None)
        if pattern is None:
            return text
        if self._normalizer is not None and not text.isascii():
            normal = self._normalizer.normalize_str(_valid(text))
            text = normal if pattern.search(normal) else text

        def cut(match: re.Match[str]) -> str:
            spelled = match[0]
            return spelled if keep is not None and spelled in keep else spelled[0] + self.mark + spelled[1:]

        while True:  # what is left of one token may begin another
            cut_text = pattern.sub(cut, text)
            if cut_text == text:
                return text
            text = cut_text

    def encode_all(self, texts: Sequence[str], continued: Sequence[bool]) -> list[list[int]]:
        """Tokens of texts with marks in them. One that is `continued` follows other text, without a space between."""
        pieces = [text.split(self.mark) if self.mark in text else [text] for text in texts]
        flat = [
            self._anchor + piece if later or number else piece
            for each, later in zip(pieces, continued, strict=True)
            for number, piece in enumerate(each)
        ]
        encoded = iter(self._encode(flat))
        skipped = len(self._anchor_ids)
        rows = []
        for each, later in zip(pieces, continued, strict=True):
            row: list[int] = []
            for number in range(len(each)):
                row += next(encoded)[skipped if later or number else 0 :]
            rows.append(row)
        return rows

    def encode_mixed(self, mixed: Sequence[Mixed]) -> list[list[int] | None]:
        """Tokens of each, with no special or added one but those of its texts. None where that cannot be had."""
        rows: list[list[int] | None] = [*self._encode_parts([(one, one.contents) for one in mixed])]
        cut = [i for i, one in enumerate(mixed) if not self._is_literal(rows[i], one)]
        parts = [(mixed[i], [self.guarded(text) for text in mixed[i].contents]) for i in cut]
        for i, row in zip(cut, self._encode_parts(parts), strict=True):
            rows[i] = row if self._is_literal(row, mixed[i], unknown=True) else None
        return [row and row[one.skip :] for row, one in zip(rows, mixed, strict=True)]

    def _encode_parts(self, parts: Sequence[tuple[Mixed, Sequence[str]]]) -> list[list[int]]:
        texts = ["".join(interleaved(one.texts, contents)) for one, contents in parts]
        return self.encode_all(texts, [one.continued for one, _ in parts])

    def _is_literal(self, ids: Sequence[int] | None, one: Mixed, unknown: bool = False) -> bool:
        """Whether the special and added tokens are those of the texts, in their order. The token for `unknown`
        characters may come of any, but may also be spelled."""
        if not one.contents:
            return True
        ignored = self.tokenizer.unk_token_id
        if not unknown and ignored is not None and any(self.tokenizer.unk_token in text for text in one.contents):
            return False
        expected = [i for text in one.texts for i in self._controls_of(text)]
        return [i for i in ids or () if i in self.control and i != ignored] == [i for i in expected if i != ignored]

    def _controls(self, text: str) -> tuple[int, ...]:
        return tuple(i for i in self._encode([text])[0] if i in self.control)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        try:
            return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        except (TypeError, UnicodeError):  # half of a character, as \ud83d alone
            return self.tokenizer([_valid(text) for text in texts], add_special_tokens=False, verbose=False)[
                "input_ids"
            ]

    def _find_anchor(self) -> str:
        """What to put before a text that follows other text: some tokenizers begin every text with a space."""
        (start,) = self._encode(["a"])
        for anchor in ("", "\n", "a"):
            ids, self._anchor_ids = self._encode([anchor + _TRIAL, anchor])
            rest = ids[len(self._anchor_ids) :]
            is_prefix = ids[: len(self._anchor_ids)] == self._anchor_ids
            if is_prefix and self.tokenizer.decode([*start, *rest]) == "a" + _TRIAL:
                return anchor
        self._anchor_ids = []
        return ""


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
