"""What customers of a shop ask for, and the calls that serve them by its policy. One function for each kind of request;
a kind that the store at hand has no occasion for gives None."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from outdo.tasks.shop.store import TODAY, Customer, Order, Store, random_address

FULL_DAYS, HALF_DAYS, MOST_OF_ONE = 14, 30, 5
REASONS = "not_their_order", "already_shipped", "not_delivered", "too_late", "out_of_stock", "over_limit"
POLICY = f"""You serve the customers of a shop through its tools. Today is {TODAY}. The shop's policy:
- Only the customer who writes may have an order changed, and only their own: else the reason is not_their_order.
- An order may be cancelled, or get another address, while it is pending: else already_shipped.
- A delivered order is refunded in full up to {FULL_DAYS} days after its delivery, by half up to {HALF_DAYS} days, and
  later not at all: too_late. One that is not delivered is not refunded: not_delivered.
- A customer may buy at most {MOST_OF_ONE} of a product at once: else over_limit. With less in stock than they want,
  nothing is ordered: out_of_stock.
What the policy forbids you refuse, with refuse_request and the reason, and change nothing; where several reasons hold,
give the one that stands first here. Where the customer asks a question, send them the answer with send_reply. Do only
what is asked for."""

Call = tuple[str, Mapping[str, Any]]  # an operation of the store, and its arguments
Calls = tuple[Call, ...]


@dataclass(frozen=True)
class Request:
    """What a customer writes, and what serves it."""

    text: str
    look_ups: Calls = ()  # that a clerk needs to know what to do
    changes: Calls = ()  # of the database
    refusal: str = ""  # one of REASONS; "": none
    facts: tuple[str, ...] = ()  # numbers and words that the reply must have
    allowed: tuple[str, ...] = ()  # numbers that it may have beside them
    careless: Calls = ()  # the changes of a clerk who does not know the policy
    reply: str = ""  # one with the facts


Kind = Callable[[random.Random, Store, Customer], Request | None]


def status(rng: random.Random, store: Store, customer: Customer) -> Request:
    order = rng.choice(_orders(store, customer))
    text = f"what is the status of my order of {_amount(order)}?"
    dates = [part for day in (order.ordered, order.delivered) for part in (day or "").split("-")]
    allowed = order.id[1:], str(order.quantity), str(order.total), *filter(None, dates)
    reply = f"Your order {order.id} is {order.status}."
    return Request(text, _list_calls(customer), facts=(order.status,), allowed=allowed, reply=reply)


def stock(rng: random.Random, store: Store, customer: Customer) -> Request:
    product = rng.choice(list(store.products.values()))
    text = f"how many of the {product.name} do you have in stock, and what does one cost?"
    look_up = ("check_stock", {"product": product.name})
    reply = f"We have {product.stock} in stock. One costs {product.price}."
    return Request(text, (look_up,), facts=(str(product.stock), str(product.price)), reply=reply)


def total(rng: random.Random, store: Store, customer: Customer) -> Request:
    orders = _orders(store, customer)
    paid = sum(order.total for order in orders)
    allowed = tuple(text for order in orders for text in (order.id[1:], str(order.quantity), str(order.total)))
    text = "what do all of my orders cost together?"
    reply = f"Together they cost {paid}."
    return Request(text, _list_calls(customer), facts=(str(paid),), allowed=allowed, reply=reply)


def cancel(rng: random.Random, store: Store, customer: Customer) -> Request:
    order, asked, look_ups = _named(rng, store, customer)
    changes = (("cancel_order", {"order_id": order.id}),)
    return _decided(f"please cancel {asked}.", look_ups, changes, _not_pending(order, customer))


def address(rng: random.Random, store: Store, customer: Customer) -> Request:
    order, asked, look_ups = _named(rng, store, customer)
    target = random_address(rng)
    changes = (("change_address", {"order_id": order.id, "address": target}),)
    return _decided(f"please send {asked} to {target} instead.", look_ups, changes, _not_pending(order, customer))


def refund(rng: random.Random, store: Store, customer: Customer) -> Request:
    order, asked, look_ups = _named(rng, store, customer)
    days = (TODAY - date.fromisoformat(order.delivered)).days if order.delivered else 0
    amount = order.total if days <= FULL_DAYS else order.total // 2
    reason = "not_delivered" if not order.delivered else "too_late" if days > HALF_DAYS else ""
    reason = "not_their_order" if order.customer_id != customer.id else reason
    changes = (("refund_order", {"order_id": order.id, "amount": amount}),)
    careless = (("refund_order", {"order_id": order.id, "amount": order.total}),)
    return _decided(f"I do not want {asked} any more. Please refund it.", look_ups, changes, reason, careless)


def order(rng: random.Random, store: Store, customer: Customer) -> Request:
    product, quantity = rng.choice(list(store.products.values())), rng.randint(1, MOST_OF_ONE + 3)
    reason = "over_limit" if quantity > MOST_OF_ONE else "out_of_stock" if quantity > product.stock else ""
    changes = (_order_call(customer, product.name, quantity),)
    look_ups = _look_up(customer), ("check_stock", {"product": product.name})
    careless = changes if quantity <= product.stock else ()
    return _decided(f"please order {quantity} x {product.name} for me.", look_ups, changes, reason, careless)


def exchange(rng: random.Random, store: Store, customer: Customer) -> Request | None:
    """Cancels one order and places another: both are possible, or neither happens."""
    pending = [one for one in _orders(store, customer) if one.status == "pending"]
    products = [one for one in store.products.values() if one.stock]
    if not pending or not products:
        return None
    old, new = rng.choice(pending), rng.choice(products)
    if new.name == old.product:
        return None
    quantity = rng.randint(1, min(MOST_OF_ONE, new.stock))
    text = f"please cancel my order of {_amount(old)}, and order {quantity} x {new.name} instead."
    changes = ("cancel_order", {"order_id": old.id}), _order_call(customer, new.name, quantity)
    return Request(
        text, (*_list_calls(customer), ("check_stock", {"product": new.name})), changes, careless=changes[:1]
    )


KINDS: dict[str, Kind] = {
    "status": status,
    "stock": stock,
    "total": total,
    "cancel": cancel,
    "address": address,
    "refund": refund,
    "order": order,
    "exchange": exchange,
}


def _decided(
    text: str,
    look_ups: Calls,
    changes: Calls,
    reason: str,
    careless: tuple[Call, ...] | None = None,
) -> Request:
    """The request, with its changes where there is no reason to refuse it."""
    return Request(
        text, look_ups, () if reason else changes, reason, careless=changes if careless is None else careless
    )


def _named(rng: random.Random, store: Store, customer: Customer) -> tuple[Order, str, Calls]:
    """An order, how the customer names it, and how to find it. One of four named by its id is somebody else's."""
    if rng.random() < 0.5:
        own = rng.choice(_orders(store, customer))
        return own, f"my order of {_amount(own)}", (*_list_calls(customer), ("get_order", {"order_id": own.id}))
    foreign = rng.random() < 0.25
    named = rng.choice([one for one in store.orders.values() if (one.customer_id != customer.id) == foreign])
    return named, f"order {named.id}", (_look_up(customer), ("get_order", {"order_id": named.id}))


def _not_pending(order: Order, customer: Customer) -> str:
    if order.customer_id != customer.id:
        return "not_their_order"
    return "" if order.status == "pending" else "already_shipped"


def _orders(store: Store, customer: Customer) -> list[Order]:
    return [order for order in store.orders.values() if order.customer_id == customer.id]


def _amount(order: Order) -> str:
    return f"{order.quantity} x {order.product}"


def _look_up(customer: Customer) -> Call:
    return "look_up_customer", {"email": customer.email}


def _list_calls(customer: Customer) -> Calls:
    return _look_up(customer), ("list_orders", {"customer_id": customer.id})


def _order_call(customer: Customer, product: str, quantity: int) -> Call:
    return "place_order", {"customer_id": customer.id, "product": product, "quantity": quantity}
