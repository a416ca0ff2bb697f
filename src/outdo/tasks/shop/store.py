"""The database of a shop, and what can be done to it. The operations check what is possible, not what the shop's
policy allows: that is for whoever calls them to know."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from typing import Any

TODAY = date(2025, 3, 14)
FIRST_NAMES = ("Ada", "Boris", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Iris", "Jonas", "Kira", "Leo")
LAST_NAMES = ("Adler", "Brandt", "Costa", "Duval", "Endo", "Fischer", "Green", "Horvat", "Ivanov", "Jensen", "Kim")
STREETS = ("Mill Lane", "Station Road", "Park Street", "High Street", "Harbour Way", "Church Hill")
PRODUCTS = (
    *("desk lamp", "wall clock", "tea kettle", "wool blanket", "bread knife", "garden chair", "bath towel"),
    *("coffee mug", "picture frame", "floor rug", "salad bowl", "water bottle", "mirror", "bookshelf", "umbrella"),
)
STATUSES = "pending", "shipped", "delivered", "cancelled", "refunded"


class StoreError(ValueError):
    """What was asked of the store cannot be done."""


@dataclass
class Customer:
    id: str
    name: str
    email: str
    address: str


@dataclass
class Product:
    name: str
    price: int
    stock: int


@dataclass
class Order:
    id: str
    customer_id: str
    product: str
    quantity: int
    total: int
    status: str
    address: str
    ordered: str  # a date
    delivered: str | None = None
    refund: int = 0


@dataclass
class Store:
    customers: dict[str, Customer] = field(default_factory=dict)  # by id
    products: dict[str, Product] = field(default_factory=dict)  # by name
    orders: dict[str, Order] = field(default_factory=dict)  # by id

    def call(self, name: str, **arguments: Any) -> str:
        """What an operation returns, as JSON text."""
        return json.dumps(getattr(self, name)(**arguments))

    def copy(self) -> Store:
        customers, products, orders = self.customers.items(), self.products.items(), self.orders.items()
        return Store(
            {id: replace(one) for id, one in customers},
            {name: replace(one) for name, one in products},
            {id: replace(one) for id, one in orders},
        )

    def look_up_customer(self, email: str) -> dict[str, Any]:
        for customer in self.customers.values():
            if customer.email == str(email).strip().lower():
                return asdict(customer)
        raise StoreError(f"no customer has the e-mail address {email!r:.60}")

    def list_orders(self, customer_id: str) -> list[dict[str, Any]]:
        self._customer(customer_id)
        shown = ("id", "product", "quantity", "total", "status")
        orders = [asdict(order) for order in self.orders.values() if order.customer_id == customer_id]
        return [{name: order[name] for name in shown} for order in orders]

    def get_order(self, order_id: str) -> dict[str, Any]:
        return asdict(self._order(order_id))

    def check_stock(self, product: str) -> dict[str, Any]:
        return asdict(self._product(product))

    def place_order(self, customer_id: str, product: str, quantity: int) -> dict[str, Any]:
        customer, item = self._customer(customer_id), self._product(product)
        if isinstance(quantity, bool) or not isinstance(quantity, int) or quantity < 1:
            raise StoreError(f"the quantity must be a whole number of 1 or more, not {quantity!r:.40}")
        if quantity > item.stock:
            raise StoreError(f"only {item.stock} of {item.name} are in stock")
        item.stock -= quantity
        number, total = f"O{max(int(one[1:]) for one in self.orders) + 1}", quantity * item.price
        today = TODAY.isoformat()
        order = Order(number, customer.id, item.name, quantity, total, "pending", customer.address, today)
        self.orders[number] = order
        return asdict(order)

    def cancel_order(self, order_id: str) -> dict[str, Any]:
        order = self._open(order_id)
        order.status = "cancelled"
        self.products[order.product].stock += order.quantity
        return asdict(order)

    def refund_order(self, order_id: str, amount: int) -> dict[str, Any]:
        order = self._open(order_id)
        if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= order.total:
            raise StoreError(f"the amount must be a whole number from 1 to the order's total, {order.total}")
        order.status, order.refund = "refunded", amount
        return asdict(order)

    def change_address(self, order_id: str, address: str) -> dict[str, Any]:
        order = self._open(order_id)
        order.address = str(address).strip()
        return asdict(order)

    def _customer(self, customer_id: str) -> Customer:
        customer_id = str(customer_id)
        if customer_id not in self.customers:
            raise StoreError(f"there is no customer {customer_id!r:.40}: ids look like C3")
        return self.customers[customer_id]

    def _product(self, name: str) -> Product:
        if str(name).lower() not in self.products:
            raise StoreError(f"there is no product {name!r:.40}; the shop has {', '.join(self.products)}")
        return self.products[str(name).lower()]

    def _order(self, order_id: str) -> Order:
        order_id = str(order_id)
        if order_id not in self.orders:
            raise StoreError(f"there is no order {order_id!r:.40}: ids look like O107")
        return self.orders[order_id]

    def _open(self, order_id: str) -> Order:
        order = self._order(order_id)
        if order.status in ("cancelled", "refunded"):
            raise StoreError(f"order {order_id} is {order.status} already")
        return order


def generate(rng: random.Random, num_customers: int) -> Store:
    """A shop with two to four orders of each customer, all of different products."""
    store = Store()
    for name in rng.sample(PRODUCTS, min(len(PRODUCTS), num_customers + 4)):
        store.products[name] = Product(name, 2 * rng.randint(3, 60), rng.choice((0, 0, 1, 2, 3, *range(4, 13))))
    names = [(first, last) for first in FIRST_NAMES for last in LAST_NAMES]
    for number, (first, last) in enumerate(rng.sample(names, num_customers), 1):
        email = f"{first}.{last}@example.com".lower()
        customer = Customer(f"C{number}", f"{first} {last}", email, random_address(rng))
        store.customers[customer.id] = customer
    owners = [id for id in store.customers for _ in range(rng.randint(2, 4))]
    rng.shuffle(owners)
    first_number = rng.randint(100, 800)
    bought: dict[str, list[str]] = {id: [] for id in store.customers}
    for number, owner in enumerate(owners, first_number):
        product = store.products[rng.choice([name for name in store.products if name not in bought[owner]])]
        bought[owner].append(product.name)
        store.orders[f"O{number}"] = _order(rng, f"O{number}", store.customers[owner], product)
    return store


def random_address(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)}"


def _order(rng: random.Random, number: str, owner: Customer, product: Product) -> Order:
    quantity, status = rng.randint(1, 4), rng.choice(("pending", "pending", "shipped", *["delivered"] * 3))
    days = rng.randint(1, 45) if status == "delivered" else 0  # since the delivery
    ordered = (TODAY - timedelta(days + rng.randint(1, 6))).isoformat()
    delivered = (TODAY - timedelta(days)).isoformat() if days else None
    total = quantity * product.price
    return Order(number, owner.id, product.name, quantity, total, status, owner.address, ordered, delivered)
