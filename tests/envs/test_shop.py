"""The shop: what the right calls lead to is paid, and nothing else."""

from __future__ import annotations

import inspect
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from outdo.envs.shop import Shop
from outdo.errors import TaskError
from outdo.tasks import shop
from outdo.tasks.shop.desk import desk_of, states
from outdo.tasks.shop.requests import KINDS, REASONS, Request
from outdo.tasks.shop.store import StoreError
from outdo.tasks.task import find_task
from outdo.types import Message, Prompt

TOOLS = [name for name in vars(Shop) if not name.startswith("_") and name not in ("reset", "get_reward")]


def some(count: int, split: str = "train", **args: object) -> list[Prompt]:
    return list(itertools.islice(find_task("shop", dict(args)).prompts(split, 3), count))


def opened(prompt: Prompt) -> Shop:
    clerk = Shop()
    clerk.reset(**prompt.meta, answer=prompt.answer)
    return clerk


def served(prompt: Prompt, messages: list[Message]) -> float:
    """The reward of a conversation, whose results must be those that the tools give."""
    clerk = opened(prompt)
    results = iter([message for message in messages if message["role"] == "tool"])
    for message in messages:
        for call in message.get("tool_calls", ()):
            result = getattr(clerk, call["name"])(**call["arguments"])
            assert {"role": "tool", "name": call["name"], "content": result} == next(results)
    return clerk.get_reward()


def test_solution_is_paid() -> None:
    seen: Counter[str] = Counter()
    for prompt in (*some(200), *some(100, "ood")):
        request = desk_of(prompt.meta).request
        seen[prompt.meta["kind"]] += 1
        seen[request.refusal] += 1
        assert served(prompt, shop.solution(prompt)) == 1.0, prompt
    assert seen.keys() >= {*KINDS, *REASONS} and 60 < seen[""] < 240


def test_demonstrations_leave_room() -> None:
    rng = random.Random(0)
    kinds = ["cancel", "address", "refund", "order"]
    paid = [served(prompt, shop.teacher(prompt, rng)) for prompt in some(300, kinds=kinds)]
    assert 0.5 < sum(paid) / len(paid) < 0.9
    assert all(served(prompt, shop.teacher(prompt, rng, forgets=0.0)) == 1.0 for prompt in some(50))


def cancels_everything(clerk: Shop) -> None:
    _each_order(clerk, lambda order: clerk.cancel_order(order["id"]))


def refunds_everything(clerk: Shop) -> None:
    _each_order(clerk, lambda order: clerk.refund_order(order["id"], order["total"]))


def refuses_for_every_reason(clerk: Shop) -> None:
    for reason in REASONS:
        clerk.refuse_request(reason)


def replies_with_every_number(clerk: Shop) -> None:
    clerk.send_reply(" ".join(map(str, range(130))) + " pending shipped delivered")


def orders_everything(clerk: Shop) -> None:
    for product in clerk._desk.store.products.values():
        for number in range(1, 5):
            _tried(lambda product=product, number=number: clerk.place_order(f"C{number}", product.name, 1))


def does_nothing(clerk: Shop) -> None: ...


def _each_order(clerk: Shop, act: Callable[[dict[str, Any]], object]) -> None:
    for customer in list(clerk._desk.store.customers):
        for order in json.loads(clerk.list_orders(customer)):
            _tried(lambda order=order: act(order))


def _tried(call: Callable[[], object]) -> None:
    with suppress(StoreError):
        call()


@pytest.mark.parametrize(
    "play",
    [
        cancels_everything,
        refunds_everything,
        refuses_for_every_reason,
        replies_with_every_number,
        orders_everything,
        does_nothing,
    ],
)
def test_wrong_play_is_not_paid(play: Callable[[Shop], None]) -> None:
    for prompt in some(200):
        clerk = opened(prompt)
        play(clerk)
        assert clerk.get_reward() == 0.0, prompt


def test_more_than_was_asked_for_is_not_paid() -> None:
    """The right calls, and then one more: a cancellation, a refusal, a second order."""
    extra = {
        "cancels": lambda clerk, order: clerk.cancel_order(order.id),
        "refuses": lambda clerk, order: clerk.refuse_request("too_late"),
        "orders": lambda clerk, order: clerk.place_order(order.customer_id, order.product, 1),
        "moves": lambda clerk, order: clerk.change_address(order.id, "1 Other Road"),
    }
    for prompt in some(60):
        for act in extra.values():
            clerk = opened(prompt)
            for message in shop.solution(prompt):
                for call in message.get("tool_calls", ()):
                    getattr(clerk, call["name"])(**call["arguments"])
            assert clerk.get_reward() == 1.0
            store = clerk._desk.store
            order = next(one for one in store.orders.values() if one.status not in ("cancelled", "refunded"))
            before = (store.copy(), list(clerk._desk.refusals))
            _tried(lambda act=act, clerk=clerk, order=order: act(clerk, order))
            changed = before != (store, clerk._desk.refusals)
            assert clerk.get_reward() == (0.0 if changed else 1.0)


def test_the_policy_is_not_enforced_by_the_tools() -> None:
    """A refund of an order that is too old goes through, and is not paid."""
    prompt = next(p for p in some(300, kinds=["refund"]) if desk_of(p.meta).request.refusal == "too_late")
    clerk, careless = opened(prompt), desk_of(prompt.meta).request.careless
    ((name, arguments),) = careless
    assert json.loads(getattr(clerk, name)(**arguments))["status"] == "refunded" and clerk.get_reward() == 0.0


def test_tools_are_documented_for_a_schema() -> None:
    assert len(TOOLS) == 10
    for name in TOOLS:
        method = getattr(Shop, name)
        signature = inspect.signature(method, eval_str=True)
        named = [one for one in signature.parameters.values() if one.name != "self"]
        assert signature.return_annotation is str and {one.annotation for one in named} <= {str, int}
        assert all(f"    {one.name}: " in (inspect.getdoc(method) or "") for one in named)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda clerk: clerk.get_order("X1"), "no order 'X1'"),
        (lambda clerk: clerk.get_order([1]), "no order"),
        (lambda clerk: clerk.list_orders("C99"), "no customer"),
        (lambda clerk: clerk.look_up_customer("x@y"), "no customer"),
        (lambda clerk: clerk.check_stock("yacht"), "no product 'yacht'"),
        (lambda clerk: clerk.place_order("C1", next(iter(clerk._desk.store.products)), True), "whole number"),
        (lambda clerk: clerk.place_order("C1", next(iter(clerk._desk.store.products)), -1), "whole number"),
        (lambda clerk: clerk.place_order("C1", next(iter(clerk._desk.store.products)), 99), "in stock"),
        (lambda clerk: clerk.refund_order(next(iter(clerk._desk.store.orders)), 10**9), "from 1 to"),
        (lambda clerk: clerk.refuse_request("because"), "no reason 'because'"),
        (lambda clerk: (clerk.send_reply("a"), clerk.send_reply("b")), "already"),
        (
            lambda clerk: [clerk.cancel_order(next(iter(clerk._desk.store.orders))) for _ in "ab"],
            "is cancelled already",
        ),
    ],
)
def test_calls_that_cannot_be_done(call: Callable[[Any], object], part: str) -> None:
    clerk = opened(some(1)[0])
    with pytest.raises(StoreError, match=part):
        call(clerk)
    assert clerk.get_reward() == 0.0


@pytest.mark.parametrize(
    ("reply", "is_right"),
    [
        ("We have 12 in stock. One costs 30.", True),
        ("Price: 30.00, stock: 12", True),
        ("We have 12. One costs 30, and two cost 60.", False),
        ("12", False),
        ("10 11 12 13 30", False),
        ("120 at 30 each, 12", False),
        ("12 and 30" + " " * 600, False),
    ],
)
def test_facts(reply: str, is_right: bool) -> None:
    assert states(reply, Request("what does one cost?", facts=("12", "30"))) is is_right


def test_facts_that_are_a_status() -> None:
    request = Request("what is the status of order O107?", facts=("shipped",), allowed=("2",))
    assert states("Order O107, 2 lamps: it was Shipped.", request)
    for reply in ("pending, shipped or delivered", "pending", "It is shipped, 108", "unshipped", ""):
        assert not states(reply, request)


def test_large_sums_may_have_commas() -> None:
    assert states("Together 1,234.00", Request("?", facts=("1234",)))


def test_the_prompt_has_what_is_needed_and_no_more() -> None:
    for prompt in some(100):
        desk = desk_of(prompt.meta)
        assert desk.customer.email in prompt.text and desk.customer.id not in prompt.text.split("writes:")[1]
        assert desk.request.reply not in prompt.text or not desk.request.reply


def test_splits() -> None:
    train, test = {p.id for p in some(500)}, {p.id for p in some(50, "test")}
    assert not train & test and len(train) == 500
    assert all(p.meta["num_customers"] == 8 for p in some(5, "ood"))
    assert [p.text for p in some(5)] == [p.text for p in some(5)]


@pytest.mark.parametrize(("args", "part"), [({"kinds": ["refnd"]}, "refund"), ({"num_customers": 1}, "from 2 to")])
def test_bad_arguments(args: dict[str, object], part: str) -> None:
    with pytest.raises(TaskError, match=part):
        find_task("shop", args)


@pytest.mark.parametrize("columns", [{}, {"shop": 1, "kind": "x", "num_customers": 3}, {"shop": "1", "kind": "order"}])
def test_a_prompt_of_another_kind(columns: dict[str, object]) -> None:
    with pytest.raises(TaskError, match="needs the columns shop"):
        Shop().reset(**columns)
