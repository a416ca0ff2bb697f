"""Slows those who guess a token, and not those who have it.

The first wrong guesses of a client are answered at once. From then on its guesses, right or wrong, take turns at
growing intervals: guessing in parallel is no faster, and one who has the token waits a moment but gets in. A client is
an address, or for IPv6 the network that one machine may choose addresses from. While many clients guess, each has
fewer free ones.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

FREE, FREE_UNDER_ATTACK = 10, 3  # wrong guesses of a client that cost it nothing
ATTACK = 100  # wrong guesses of all clients, that have not been forgiven
FIRST_WAIT, MAX_WAIT = 0.1, 1.0  # seconds between two guesses of a client, doubled with each
FORGIVEN_PER_S = 1 / 60  # wrong guesses of a client
MAX_QUEUE = 16  # guesses of a client that wait; further ones are refused unread
MAX_CLIENTS = 10_000


@dataclass
class Client:
    wrong: float = 0.0
    seen: float = 0.0  # when it was last counted
    next_turn: float = 0.0
    waiting: int = 0


class Guesses:
    """Of all clients. Used in one event loop."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.all = Client()

    async def take_turn(self, address: str) -> bool:
        """Waits until this client may guess; False where too many of its guesses wait already."""
        client = self._client(address)
        wait = self._wait(client)
        if not wait:
            return True
        if client.waiting >= MAX_QUEUE:
            return False
        client.next_turn = max(client.next_turn, time.monotonic()) + wait
        client.waiting += 1
        try:
            await asyncio.sleep(client.next_turn - time.monotonic())
        finally:
            client.waiting -= 1
        return True

    def count_wrong(self, address: str) -> int:
        """Counts a wrong guess. Returns the seconds to wait for the next, 0 where it is free."""
        client = self._client(address)
        for one in (client, self.all):
            _forgive(one, FORGIVEN_PER_S if one is client else FORGIVEN_PER_S * ATTACK)
            one.wrong += 1
        wait = self._wait(client)
        return max(1, round(wait)) if wait else 0

    def _wait(self, client: Client) -> float:
        _forgive(client, FORGIVEN_PER_S)
        _forgive(self.all, FORGIVEN_PER_S * ATTACK)
        over = client.wrong - (FREE_UNDER_ATTACK if self.all.wrong > ATTACK else FREE)
        return 0.0 if over <= 0 else float(min(MAX_WAIT, FIRST_WAIT * 2 ** min(over, 20)))

    def _client(self, address: str) -> Client:
        key = _network(address)
        if key not in self.clients and len(self.clients) >= MAX_CLIENTS:
            idle = [key for key, client in self.clients.items() if not client.waiting]
            for old in idle[: MAX_CLIENTS // 2]:
                del self.clients[old]
        return self.clients.setdefault(key, Client(seen=time.monotonic()))


def _forgive(client: Client, per_s: float) -> None:
    now = time.monotonic()
    client.wrong, client.seen = max(0.0, client.wrong - (now - client.seen) * per_s), now


def _network(address: str) -> str:
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped) if ip.ipv4_mapped else str(int(ip) >> 64)
    return str(ip)
