"""A shop with customers, orders, products and a policy: requests that are served by calling its tools.

The database is generated; what must happen to it is computed from the request and the policy. Some requests must be
refused. The out-of-distribution split has shops with twice as many customers. Demonstrations are those of a clerk who
often forgets the policy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from outdo.errors import TaskError, did_you_mean
from outdo.seeds import seed_of
from outdo.tasks.shop.desk import MAX_CUSTOMERS, as_text, desk_of
from outdo.tasks.shop.requests import KINDS, POLICY, Call
from outdo.tasks.splits import belongs
from outdo.types import Message, Prompt


def prompts(split: str, seed: int, kinds: Sequence[str] = (), num_customers: int = 4) -> Iterator[Prompt]:
    """Endless requests, of some `kinds` or all of them."""
    for kind in kinds:
        if kind not in KINDS:
            raise TaskError(
                f"shop: there is no kind of request {kind!r}{did_you_mean(kind, KINDS)}: {', '.join(KINDS)}"
            )
    if not 2 <= num_customers <= MAX_CUSTOMERS // 2:
        raise TaskError(f"shop: num_customers={num_customers} must be from 2 to {MAX_CUSTOMERS // 2}")
    size = num_customers * (2 if split == "ood" else 1)
    rng = random.Random(seed_of("shop", split, seed))
    while True:
        number, kind = rng.randrange(2**40), rng.choice(list(kinds) or list(KINDS))
        if belongs((number, kind, size), split):
            yield problem(number, kind, size)


def problem(number: int, kind: str, size: int) -> Prompt:
    columns = {"shop": number, "kind": kind, "num_customers": size}
    desk = desk_of(columns)
    request, customer = desk.request, desk.customer
    text = f"{POLICY}\n\n{customer.name} ({customer.email}) writes: {request.text}"
    answer = f"refuse: {request.refusal}" if request.refusal else as_text(request.changes) or request.reply
    return Prompt(f"{kind}-{number:x}-{size}", ({"role": "user", "content": text},), answer, columns)


def solution(prompt: Prompt) -> list[Message]:
    """What a clerk does who knows the policy."""
    return _served(prompt, knows_policy=True)


def teacher(prompt: Prompt, rng: random.Random, forgets: float = 0.5) -> list[Message]:
    """A demonstration; with probability `forgets` by a clerk who does what is asked for, whatever the policy says."""
    return _served(prompt, knows_policy=rng.random() >= forgets)


def _served(prompt: Prompt, knows_policy: bool) -> list[Message]:
    desk = desk_of(prompt.meta)
    request = desk.request
    final: list[Call] = list(request.changes if knows_policy else request.careless)
    if request.refusal and (knows_policy or not final):
        final = [("refuse_request", {"reason": request.refusal})]
    elif request.reply:
        final.append(("send_reply", {"text": request.reply}))
    messages: list[Message] = []
    for name, arguments in (*request.look_ups, *final):
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": dict(arguments)}]}
        )
        messages.append({"role": "tool", "name": name, "content": desk.call(name, **arguments)})
    return [*messages, {"role": "assistant", "content": "Done."}]
