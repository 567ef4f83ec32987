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
_STRANGER = 0.1  # of these, for one that has connected and says nothing
_SIOCGIFADDR = 0x8915  # linux/sockios.h; not in Python


class Offer(msgspec.Struct, frozen=True):
    """Where a leader can be reached; nowhere, that of another rank."""

    addresses: tuple[str, ...] = ()
    port: int = 0


def connections(leaders: int) -> int:
    """How many so many leaders have with each other."""
    return 1 if leaders == 2 else leaders


class Leader:
    """One end of two connections, while its process meets others: all leaders offer, connect, accept and keep at once.

    ``leaders``: their ranks, by node. ``secret``: the same on all, and known to nobody else.
    """

    def __init__(self, node: int, leaders: Sequence[int], secret: str) -> None:
        self._node, self._after, self._leaders = node, (node + 1) % len(leaders), leaders
        self._secret = secret
        self._until = time.monotonic() + _PATIENCE
        self._listener: socket.socket | None = None
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None

    def offer(self) -> Offer:
        """Where the one before finds this leader."""
        with suppress(OSError):
            self._listener = socket.create_server(("", 0))
            return Offer(tuple(_addresses()), self._listener.getsockname()[1])
        return Offer()

    def connect(self, offers: Sequence[Offer]) -> bool:
        """To the next; ``offers`` are of all leaders. Whether something has answered, which need not be the leader."""
        theirs = offers[self._after]
        if len(self._leaders) == 2 and self._node == 1:
            return False
        own = set(offers[self._node].addresses)  # another machine may have the same ones, of bridges and the like
        ways = [address for address in theirs.addresses if address not in own] or list(theirs.addresses)
        for tried, address in enumerate(ways):
            with suppress(OSError):
                self._next = socket.create_connection((address, theirs.port), self._left() / (len(ways) - tried))
                self._next.sendall(self._word(self._node))
                return True
        return False

    def accept(self, connected: Sequence[bool]) -> bool:
        """Whether the one before has come. ``connected``: what ``connect`` said, of all leaders."""
        if not connected[self._node - 1] or self._listener is None:
            return False
        with suppress(OSError):
            while self._before is None and time.monotonic() < self._until:
                self._listener.settimeout(self._left())
                line, _ = self._listener.accept()
                if self._knows(line):
                    self._before = line
                else:
                    line.close()
        return self._before is not None

    def keep(self, accepted: Sequence[bool]) -> dict[int, int]:
        """The descriptors of this leader, by the rank at the other end. ``accepted``: what ``accept`` said, of all.

        Both ends of a connection keep theirs, or neither.
        """
        found: dict[int, int] = {}
        for other, end, both in (
            (self._node - 1, self._before, accepted[self._node]),
            (self._after, self._next, accepted[self._after]),
        ):
            if both and end is not None:
                end.setblocking(False)
                found[self._leaders[other]] = end.detach()
        return found

    def close(self) -> None:
        """All that was not kept."""
        for end in (self._listener, self._next, self._before):
            if end is not None:
                end.close()

    def _knows(self, line: socket.socket) -> bool:
        """Whether who has connected is the one before: strangers may come, too."""
        wanted, heard = self._word((self._node - 1) % len(self._leaders)), b""
        until = min(self._until, time.monotonic() + _STRANGER)
        with suppress(OSError):
            while len(heard) < len(wanted):
                line.settimeout(max(0.001, until - time.monotonic()))
                more = line.recv(len(wanted) - len(heard))
                if not more:
                    break
                heard += more
        return heard == wanted

    def _word(self, node: int) -> bytes:
        """What the leader of a node says first."""
        return hashlib.sha256(f"lifelines {node} {self._secret}".encode()).digest()

    def _left(self) -> float:
        return max(0.001, self._until - time.monotonic())


def _addresses() -> list[str]:
    """Those of this machine, of IPv4, which its loopback follows."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                request = fcntl.ioctl(end, _SIOCGIFADDR, struct.pack("40s", os.fsencode(name)))
                found.append(socket.inet_ntoa(request[20:24]))
    return sorted(found, key=lambda address: address.startswith("127."))
