"""Communicators made of others: who is in them, in what order; threads; errors; nothing grows."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator, _native
from hocket.errors import CallMismatch, InvalidArgument, PeerFailed, PeerRefused, RankFailed, WrongType


def groups(comm: Communicator) -> tuple[int, int, int] | None:
    """Odd ranks in reverse order, even ones in order, the last one nowhere."""
    color = None if comm.rank == comm.size - 1 else comm.rank % 2
    part = comm.split(color, key=-comm.rank if color else 0)
    if part is None:
        comm.barrier()
        return None
    with part:
        total = int(part.all_reduce(np.array([comm.rank]))[0])
        comm.barrier()  # the parent goes on
        return part.rank, part.size, total


@pytest.mark.campaign
def test_who_is_where() -> None:
    assert hocket.spawn(groups, 6) == [(0, 3, 6), (1, 2, 4), (1, 3, 6), (0, 2, 4), (2, 3, 6), None]


def pairs(comm: Communicator) -> list[int]:
    """A grid: each rank is in a row and in a column, and uses both at once from two threads."""
    row, column, both = comm.split(comm.rank // 2), comm.split(comm.rank % 2), comm.dup()
    assert row is not None
    assert column is not None
    comm.close()  # its children do not need it
    totals = {}

    def add(name: str, part: Communicator) -> None:
        totals[name] = sum(int(part.all_reduce(np.array([comm.rank + call]))[0]) for call in range(300))

    threads = [threading.Thread(target=add, args=pair) for pair in (("row", row), ("column", column), ("both", both))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for part in (row, column, both):
        part.close()
    return [totals["row"], totals["column"], totals["both"]]


def test_threads_use_different_parts() -> None:
    calls = 2 * sum(range(300))
    rows, columns = [1, 1, 5, 5], [2, 4, 2, 4]
    assert hocket.spawn(pairs, 4) == [
        [300 * rows[r] + calls, 300 * columns[r] + calls, 300 * 6 + 2 * calls] for r in range(4)
    ]


def many(comm: Communicator) -> None:
    def used() -> tuple[int, int, int]:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        maps = sum("memfd:hocket" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return descriptors, maps, int(Path("/proc/self/statm").read_text().split()[1]) >> 8

    def once() -> None:
        with comm.dup() as one:
            one.all_reduce(np.ones(1000))
            part = one.split(comm.rank % 2)
            assert part is not None
            with part:
                part.barrier()

    for _ in range(20):
        once()
    before = used()
    for _ in range(150):
        once()
    descriptors, maps, megabytes = used()
    assert (descriptors, maps) == before[:2]
    assert megabytes <= before[2] + 2


@pytest.mark.campaign
def test_hundreds_come_and_go() -> None:
    hocket.spawn(many, 3)


def wrong(comm: Communicator) -> None:
    if comm.rank == 1:
        with pytest.raises(WrongType, match="must be integers, not str"):
            comm.split("red")  # type: ignore[arg-type]
    else:
        with pytest.raises(PeerRefused, match="rank 1 could not"):
            comm.split(1)
    for color, key in ((10**1500, 0), (0, -(1 << 63))):
        with pytest.raises(InvalidArgument if comm.rank == 1 else PeerRefused, match="must be integers of 64 bits"):
            comm.split(color, key) if comm.rank == 1 else comm.split(1)
    with pytest.raises(CallMismatch, match="rank 1 differs in collective"):
        comm.barrier() if comm.rank == 1 else comm.split(0)
    with comm.dup() as again:
        assert again.rank == comm.rank


def test_wrong_calls_are_errors_on_every_rank() -> None:
    hocket.spawn(wrong, 3)


def dying(comm: Communicator) -> None:
    """Rank 2 makes the call and dies before it meets its group; ranks of other groups do not care."""
    if comm.rank == 2:
        said = comm._endpoint.alive().exchange("[0, 0]", _native.SPLIT)
        assert isinstance(said, list)
        os.kill(os.getpid(), signal.SIGKILL)
    part = None
    try:
        part = comm.split(int(comm.rank == 3))
    except PeerFailed as error:
        assert error.rank == 2  # noqa: PT017
        assert "ended" in error.reason  # noqa: PT017
    assert (part is None) == (comm.rank != 3)


def test_a_rank_that_dies_in_a_split() -> None:
    with pytest.raises(RankFailed, match="rank 2 was ended by SIGKILL"):
        hocket.spawn(dying, 4)
