"""A clerk's desk: a request, the store, and what the clerk has done. It says whether the customer was served."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from outdo.errors import TaskError
from outdo.seeds import seed_of
from outdo.tasks.shop.requests import KINDS, REASONS, Call, Request
from outdo.tasks.shop.store import STATUSES, Customer, Store, StoreError, generate

MAX_REPLY_CHARS = 500
MAX_CUSTOMERS = 100
_NUMBER = re.compile(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")


class Desk:
    """What is done to the store is done to a copy of it. A request is refused or answered once."""

    def __init__(self, store: Store, customer: Customer, request: Request) -> None:
        self.store, self.customer, self.request = store.copy(), customer, request
        self.refusals: list[str] = []
        self.replies: list[str] = []
        self._expected = store.copy()
        for name, arguments in request.changes:
            self._expected.call(name, **arguments)

    def call(self, name: str, **arguments: Any) -> str:
        """The result of a call, as JSON text. Raises StoreError where it cannot be done."""
        own = {"refuse_request": self._refuse, "send_reply": self._reply}.get(name)
        return json.dumps(own(**arguments)) if own else self.store.call(name, **arguments)

    def is_served(self) -> bool:
        """The database is as the right calls leave it, the request was refused if it had to be, with the right reason,
        and the question answered if there was one."""
        if self.store != self._expected or self.refusals != [self.request.refusal] * bool(self.request.refusal):
            return False
        return not self.request.facts or (len(self.replies) == 1 and states(self.replies[0], self.request))

    def _refuse(self, reason: str) -> str:
        if reason not in REASONS:
            raise StoreError(f"there is no reason {reason!r:.40}; the reasons are {', '.join(REASONS)}")
        self.refusals.append(reason)
        return "refused"

    def _reply(self, text: str) -> str:
        if self.replies:
            raise StoreError("a reply was sent already")
        self.replies.append(str(text))
        return "sent"


def states(reply: str, request: Request) -> bool:
    """Whether a reply has the facts, and no number beside them that does not belong to the order or the request, and no
    other status: a list of candidates is no answer."""
    if len(reply) > MAX_REPLY_CHARS:
        return False
    numbers, words = _numbers(reply), set(re.findall(r"[a-z]+", reply.lower()))
    facts = {float(fact) for fact in request.facts if fact.isdigit()}
    known = facts | _numbers(request.text) | {float(one) for one in request.allowed}
    named = {fact for fact in request.facts if not fact.isdigit()}
    return facts <= numbers <= known and (not named or words & set(STATUSES) == named)


def _numbers(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in _NUMBER.findall(text)}


def desk_of(columns: Mapping[str, Any]) -> Desk:
    """The desk of a prompt's columns: `shop`, the number of the problem, `kind` and `num_customers`. Raises
    TaskError."""
    number, kind, size = (columns.get(name) for name in ("shop", "kind", "num_customers"))
    whole = isinstance(number, int) and isinstance(size, int) and 2 <= size <= MAX_CUSTOMERS
    if not whole or kind not in KINDS:
        raise TaskError(
            f"shop: a prompt needs the columns shop, a whole number, kind, one of {', '.join(KINDS)}, and "
            f"num_customers, from 2 to {MAX_CUSTOMERS}; it has shop={number!r:.40}, kind={kind!r:.40}, "
            f"num_customers={size!r:.40}"
        )
    rng = random.Random(seed_of("shop", number, kind, size))
    while True:
        store = generate(rng, size)
        customer = rng.choice(list(store.customers.values()))
        if request := KINDS[kind](rng, store, customer):
            return Desk(store, customer, request)


def as_text(calls: tuple[Call, ...]) -> str:
    """Calls as a person reads them."""
    return "; ".join(f"{name}({', '.join(f'{key}={value!r}' for key, value in its.items())})" for name, its in calls)
