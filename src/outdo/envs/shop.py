"""The shop: a class of tools with a state, as TRL's users write them. What its policy is the prompt says."""

from __future__ import annotations

from typing import Any

from outdo.tasks.shop.desk import desk_of


class Shop:
    """The tools of a clerk. The results are JSON."""

    def reset(self, **columns: Any) -> None:
        self._desk = desk_of(columns)

    def get_reward(self) -> float:
        return float(self._desk.is_served())

    def look_up_customer(self, email: str) -> str:
        """Looks up a customer.

        Args:
            email: The customer's e-mail address.

        Returns:
            The customer's id, name, e-mail address and address.
        """
        return self._desk.call("look_up_customer", email=email)

    def list_orders(self, customer_id: str) -> str:
        """Lists all orders of a customer.

        Args:
            customer_id: The customer's id, such as C3.

        Returns:
            The id, product, quantity, total and status of each order.
        """
        return self._desk.call("list_orders", customer_id=customer_id)

    def get_order(self, order_id: str) -> str:
        """Shows an order.

        Args:
            order_id: The order's id, such as O107.

        Returns:
            Everything that is known of the order, with the customer's id and the day of the delivery.
        """
        return self._desk.call("get_order", order_id=order_id)

    def check_stock(self, product: str) -> str:
        """Shows the price of a product, and how many are in stock.

        Args:
            product: The name of the product.

        Returns:
            The name, price and stock.
        """
        return self._desk.call("check_stock", product=product)

    def place_order(self, customer_id: str, product: str, quantity: int) -> str:
        """Places an order.

        Args:
            customer_id: The customer's id, such as C3.
            product: The name of the product.
            quantity: How many.

        Returns:
            The order.
        """
        return self._desk.call("place_order", customer_id=customer_id, product=product, quantity=quantity)

    def cancel_order(self, order_id: str) -> str:
        """Cancels an order.

        Args:
            order_id: The order's id, such as O107.

        Returns:
            The order.
        """
        return self._desk.call("cancel_order", order_id=order_id)

    def refund_order(self, order_id: str, amount: int) -> str:
        """Pays back the price of an order, or a part of it.

        Args:
            order_id: The order's id, such as O107.
            amount: How much is paid back.

        Returns:
            The order.
        """
        return self._desk.call("refund_order", order_id=order_id, amount=amount)

    def change_address(self, order_id: str, address: str) -> str:
        """Changes the address that an order is sent to.

        Args:
            order_id: The order's id, such as O107.
            address: The new address.

        Returns:
            The order.
        """
        return self._desk.call("change_address", order_id=order_id, address=address)

    def refuse_request(self, reason: str) -> str:
        """Refuses what the customer wants, because the policy forbids it.

        Args:
            reason: The policy's word for the reason, such as too_late.

        Returns:
            A confirmation.
        """
        return self._desk.call("refuse_request", reason=reason)

    def send_reply(self, text: str) -> str:
        """Answers the customer's question. This can be done once.

        Args:
            text: What the customer reads.

        Returns:
            A confirmation.
        """
        return self._desk.call("send_reply", text=text)
