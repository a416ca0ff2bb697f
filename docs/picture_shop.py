"""What the picture of turns shows (pictures.py): a shop with a tool, and a tiny model whose chat template shows tools.

Most demonstrations forget something: that the shop knows goods by their singular alone, or which price was lower.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outdo import Prompt, belongs, task
from outdo.models.tiny import tiny_model, tiny_tokenizer

GOODS = ("pen", "cup", "book", "lamp")
TEMPLATE = (
    "{% if tools %}<|user|>{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}"
    "<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>"
    "{% endfor %}{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_model(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Shop:
    """Its prices are the prompt's."""

    def reset(self, **columns: Any) -> None:
        self.prices: dict[str, int] = columns["prices"]

    def price(self, item: str) -> int:
        """The price of one piece.

        Args:
            item: What is bought
        """
        if item not in self.prices:
            raise ValueError(f"no {item[:20]} here")
        return self.prices[item]


def teacher(prompt: Prompt, rng: random.Random) -> list[dict[str, Any]]:
    prices, messages = prompt.meta["prices"], list[dict[str, Any]]()
    items = [item + "s" * (rng.random() < 0.3) for item in prices]
    while items:
        calls = [{"name": "price", "arguments": {"item": item}} for item in items]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        for item in items:
            result = str(prices[item]) if item in prices else f"Error: ValueError: no {item} here"
            messages.append({"role": "tool", "name": "price", "content": result})
        items = [item.removesuffix("s") for item in items if item not in prices]
    answer = prompt.answer if rng.random() < 0.7 else rng.choice(list(prices))
    return [*messages, {"role": "assistant", "content": f"The {answer}."}]


@task(rewards=["shop.py:cheapest"], teacher=teacher)
def cheaper(split: str, seed: int) -> Iterator[Prompt]:
    rng = random.Random(f"{split} {seed}")
    while True:
        pair, prices = rng.sample(GOODS, 2), rng.sample(range(1, 10), 2)
        key = f"{pair} {prices}"
        if belongs(key, split):
            columns = {"prices": dict(zip(pair, prices, strict=True))}
            text = f"Cheaper: {pair[0]}s or {pair[1]}s?"
            yield Prompt(key, ({"role": "user", "content": text},), pair[prices[0] > prices[1]], columns)


def cheapest(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 for the right answer and nothing else."""
    return [float(text == f"The {gold}.") for text, gold in zip(completions, answer, strict=True)]
