"""Lifelines between nodes: connections of TCP between leaders, which end when a process does and carry nothing.

The leader of a node, its lowest rank, has one with the leader of the next node and one with that of the node before. A
rank that is alone on its node has nobody there who would see it end. Where leaders cannot reach each other, as behind
a firewall, there is none: then only a timeout tells.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

_PATIENCE = 2.0  # seconds, while ranks meet
_SIOCGIFADDR = 0x8915  # linux/sockios.h; not in Python


class Offer(msgspec.Struct, frozen=True):
    """Where a leader can be reached; nowhere, that of another rank."""

    addresses: tuple[str, ...] = ()
    port: int = 0


class Leader:
    """One end of two connections, while its process meets others: offer, connect, and accept, on all leaders at once.

    ``leaders``: their ranks, by node. ``secret``: the same on all, and known to nobody else.
    """

    def __init__(self, node: int, leaders: Sequence[int], secret: str) -> None:
        self._node, self._leaders = node, leaders
        self._secret = hashlib.sha256(f"lifelines {secret}".encode()).digest()
        self._until = time.monotonic() + _PATIENCE
        self._listener: socket.socket | None = None
        self._next: socket.socket | None = None

    def offer(self) -> Offer:
        """Where the one before finds this leader."""
        with suppress(OSError):
            self._listener = socket.create_server(("", 0))
            return Offer(tuple(_addresses()), self._listener.getsockname()[1])
        return Offer()

    def connect(self, offers: Sequence[Offer]) -> bool:
        """To the next; ``offers`` are of all leaders. Whether something has answered, which need not be the leader."""
        theirs = offers[self._after()]
        if len(self._leaders) == 2 and self._node == 1:
            return False
        own = set(offers[self._node].addresses)  # another machine may have the same ones, of bridges and the like
        for address in [a for a in theirs.addresses if a not in own] or theirs.addresses:
            with suppress(OSError):
                self._next = socket.create_connection((address, theirs.port), self._left())
                self._next.sendall(self._secret)
                return True
        return False

    def accept(self, connected: Sequence[bool]) -> dict[int, int]:
        """What came to be: descriptors, by the rank at the other end. ``connected``: what ``connect`` said, of all."""
        found: dict[int, int] = {}
        before = self._node - 1
        if connected[before] and (line := self._answered()) is not None:
            found[self._leaders[before]] = line.detach()
        if self._next is not None and _received(self._next, len(self._secret), self._until) == self._secret:
            self._next.setblocking(False)
            found[self._leaders[self._after()]] = self._next.detach()
        return found

    def close(self) -> None:
        """All that was not handed out."""
        for end in (self._listener, self._next):
            if end is not None:
                end.close()

    def _answered(self) -> socket.socket | None:
        """The connection of the one before; strangers may come, too."""
        assert self._listener is not None
        with suppress(OSError):
            while True:
                self._listener.settimeout(self._left())
                line, _ = self._listener.accept()
                if _received(line, len(self._secret), self._until) == self._secret:
                    line.sendall(self._secret)
                    line.setblocking(False)
                    return line
                line.close()
        return None

    def _after(self) -> int:
        return (self._node + 1) % len(self._leaders)

    def _left(self) -> float:
        return max(0.001, self._until - time.monotonic())


def _received(line: socket.socket, length: int, until: float) -> bytes:
    """As many bytes as come in time."""
    data = b""
    with suppress(OSError):
        while len(data) < length:
            line.settimeout(max(0.001, until - time.monotonic()))
            more = line.recv(length - len(data))
            if not more:
                break
            data += more
    return data


def _addresses() -> list[str]:
    """Those of this machine, of IPv4, which its loopback follows."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                request = fcntl.ioctl(end, _SIOCGIFADDR, struct.pack("40s", os.fsencode(name)))
                found.append(socket.inet_ntoa(request[20:24]))
    return sorted(found, key=lambda address: address.startswith("127."))
