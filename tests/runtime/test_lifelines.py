"""Lifelines of leaders that are threads of one process."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hocket.runtime import lifelines
from hocket.runtime.lifelines import Leader, Offer


class Job:
    """Leaders that meet, of which those in ``unreachable`` are behind a firewall. ``late``: accepts after its time."""

    def __init__(self, leaders: list[int], unreachable: frozenset[int] = frozenset(), late: int | None = None) -> None:
        self._leaders, self._unreachable, self._late = leaders, unreachable, late
        self._offers = [Offer()] * len(leaders)
        self._connected = [False] * len(leaders)
        self._accepted = [False] * len(leaders)
        self._together = threading.Barrier(len(leaders))

    def meet(self, node: int, secret: str) -> dict[int, int]:
        leader = Leader(node, self._leaders, secret)
        offer = leader.offer()
        self._offers[node] = Offer() if node in self._unreachable else offer
        self._together.wait()
        self._connected[node] = leader.connect(self._offers)
        self._together.wait()
        if node == self._late:
            leader._until = time.monotonic()
        self._accepted[node] = leader.accept(self._connected)
        self._together.wait()
        try:
            return leader.keep(self._accepted)
        finally:
            leader.close()

    def run(self, secrets: dict[int, str] | None = None) -> list[dict[int, int]]:
        nodes = range(len(self._leaders))
        with ThreadPoolExecutor(len(self._leaders)) as pool:
            return list(pool.map(lambda node: self.meet(node, (secrets or {}).get(node, "a secret")), nodes))


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """What is closed in the end."""
    found: list[int] = []
    yield found
    for descriptor in found:
        os.close(descriptor)


def is_gone(lifeline: int) -> bool:
    return bool(select.select([lifeline], [], [], 0)[0])


@pytest.mark.parametrize("leaders", [[0, 1], [0, 2, 3], [0, 1, 5, 6]])
def test_each_sees_the_end_of_its_neighbours(leaders: list[int], descriptors: list[int]) -> None:
    found = Job(leaders).run()
    for node, mine in enumerate(found):
        assert set(mine) == {leaders[node - 1], leaders[(node + 1) % len(leaders)]}
        assert not any(map(is_gone, mine.values()))
    for lifeline in found[1].values():
        os.close(lifeline)
    for node, mine in enumerate(found):
        if node != 1:
            assert [rank for rank, lifeline in mine.items() if is_gone(lifeline)] == [
                r for r in mine if r == leaders[1]
            ]
            descriptors += mine.values()


def test_where_one_is_not_reached(descriptors: list[int]) -> None:
    found = Job([0, 1, 2], frozenset([1])).run()
    assert [set(mine) for mine in found] == [{2}, {2}, {0, 1}]
    for mine in found:
        descriptors += mine.values()


def test_no_stranger_is_taken_for_the_leader(monkeypatch: pytest.MonkeyPatch, descriptors: list[int]) -> None:
    monkeypatch.setattr(lifelines, "_PATIENCE", 0.2)
    assert Job([0, 1]).run({1: "another"}) == [{}, {}]


def test_one_that_is_late_has_no_lifeline_at_either_end(descriptors: list[int]) -> None:
    found = Job([0, 1, 2], late=1).run()
    assert [set(mine) for mine in found] == [{2}, {2}, {0, 1}]
    for mine in found:
        assert not any(map(is_gone, mine.values()))
        descriptors += mine.values()


@pytest.mark.parametrize("says", [b"", b"x" * 32], ids=["silent", "another word"])
def test_a_stranger_keeps_nobody_out(says: bytes, monkeypatch: pytest.MonkeyPatch, descriptors: list[int]) -> None:
    """One connects first, and stays."""
    offered = Leader.offer
    strangers: list[socket.socket] = []

    def offer(self: Leader) -> Offer:
        mine = offered(self)
        strangers.append(socket.create_connection(("127.0.0.1", mine.port)))
        strangers[-1].sendall(says)
        return mine

    monkeypatch.setattr(Leader, "offer", offer)
    found = Job([0, 1]).run()
    assert [set(mine) for mine in found] == [{1}, {0}]
    for mine in found:
        descriptors += mine.values()
    for stranger in strangers:
        stranger.close()


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, descriptors: list[int]
) -> None:
    connects = socket.create_connection
    patience: list[float] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] != "127.0.0.1":
            patience.append(timeout)
            raise TimeoutError
        return connects(address, timeout)

    monkeypatch.setattr(lifelines, "_addresses", lambda: ["192.0.2.1", "127.0.0.1"])
    monkeypatch.setattr(socket, "create_connection", connect)
    found = Job([0, 1]).run()
    assert [set(mine) for mine in found] == [{1}, {0}]
    assert patience[0] <= lifelines._PATIENCE / 2
    for mine in found:
        descriptors += mine.values()
