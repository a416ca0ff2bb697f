"""What the built-in environments share: which text of a message counts, and the check of their arguments."""

from __future__ import annotations

from outdo.errors import TaskError
from outdo.rewards.answer import after_thinking, final_answers
from outdo.types import Message

MAX_CHARS = 10_000  # of a message to a game; of a longer one, nothing counts


def final_text(message: Message) -> str:
    """The text that counts: outside of the thinking part, and where there are answer tags, a box or `####`, what
    stands in them."""
    content = message.get("content")
    text = content if isinstance(content, str) and len(content) <= MAX_CHARS else ""
    return "\n".join(final_answers(text)) or after_thinking(text) or ""


def refuse_no_share(name: str, **given: object) -> None:
    """Raises TaskError for one of an environment's arguments that is no share of its reward."""
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise TaskError(f"environment_args.{key}={value!r:.40}: {name} takes a number from 0 to less than 1")
