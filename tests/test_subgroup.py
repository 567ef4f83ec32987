"""Communicators made by their members alone: orders, tags, errors; nothing is left."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.errors import (
    CallTimeout,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    RankFailed,
    WrongType,
)


def members(part: Communicator, comm: Communicator) -> list[int]:
    """The ranks of ``comm`` that are in ``part``, in its order."""
    return part.all_gather(np.array([comm.rank])).tolist()


def chosen(comm: Communicator) -> None:
    """Ranks 3 and 1, in this order; the others go on, and may end."""
    if comm.rank in (1, 3):
        with comm.subgroup([3, 1]) as part:
            assert (part.rank, part.size) == ([3, 1].index(comm.rank), 2)
            assert members(part, comm) == [3, 1]
            with part.subgroup(np.array([1, 0])) as reverse:  # type: ignore[arg-type]
                assert members(reverse, comm) == [1, 3]
    with comm.subgroup([comm.rank]) as alone:
        assert members(alone, comm) == [comm.rank]


def test_members_alone_make_it() -> None:
    hocket.spawn(chosen, 4)


def overlapping(comm: Communicator) -> None:
    """All pairs and triples at once, the pairs in an order that differs from rank to rank."""
    rounds = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    pairs = [pair for both in rounds for pair in (both if comm.rank % 2 else reversed(both)) if comm.rank in pair]
    triples = [ranks for ranks in itertools.combinations(range(4), 3) if comm.rank in ranks]
    made = {ranks: comm.subgroup(ranks) for ranks in pairs + triples}
    for ranks, part in sorted(made.items()):
        assert members(part, comm) == list(ranks)
        part.close()


def test_groups_that_overlap() -> None:
    hocket.spawn(overlapping, 4)


def in_other_orders(comm: Communicator) -> list[str]:
    """Ranks 0 and 1 make their group last, 2 and 3 first; threads of a rank make groups in opposite orders."""
    low, high = range(2), range(2, 4)
    mine = low if comm.rank in low else high
    if comm.rank in high:
        comm.subgroup(mine).close()
    made: dict[str, Communicator] = {}
    tags = ["a", "b"] if comm.rank % 2 else ["b", "a"]

    def make(tag: str) -> None:
        made[tag] = comm.subgroup(mine, tag)

    threads = [threading.Thread(target=make, args=[tag]) for tag in tags]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if comm.rank in low:
        comm.subgroup(mine).close()
    told = [made[tag].broadcast_object(tag if comm.rank in (0, 2) else None) for tag in "ab"]
    return [text for text in told if text is not None]


def test_orders_and_tags() -> None:
    assert hocket.spawn(in_other_orders, 4) == [["a", "b"]] * 4


def again(comm: Communicator) -> None:
    """The same group twice is two communicators; what a rank calls on one has nothing to do with the other."""
    first, second = comm.subgroup([0, 1]), comm.subgroup([0, 1])
    one = first.all_reduce(np.array([1]), async_=True)
    assert second.all_reduce(np.array([5]))[0] == 10
    assert one.wait()[0] == 2
    first.close()
    assert second.all_reduce(np.array([7]))[0] == 14


def test_the_same_group_twice() -> None:
    hocket.spawn(again, 2)


def beside_calls(comm: Communicator) -> None:
    """A group is made while a call of the parent is in the background, and outlives the parent."""
    pending = comm.barrier(async_=True) if comm.rank < 2 else None
    part = comm.subgroup([0, 1]) if comm.rank < 2 else None
    if pending is None or part is None:
        comm.recv(np.empty(1), 0)  # only now does this rank come to the barrier
        comm.barrier()
        return
    part.barrier()
    assert not pending.done()
    if comm.rank == 0:
        comm.send(np.empty(1), 2)
    pending.wait()
    comm.close()
    assert part.all_reduce(np.array([3]))[0] == 6


def test_it_is_no_call_of_the_parent_and_outlives_it() -> None:
    hocket.spawn(beside_calls, 3)


def mistaken(comm: Communicator) -> None:
    """Who is wrong alone is told alone, and the communicator goes on."""
    if comm.rank == 0:
        for ranks in ([0, 3], [0, -1], [0, 0], [1, 2], [], [0, 1.0], [0, None], "01", 5, None):
            with pytest.raises(InvalidArgument, match=r"ranks must be different ones in \[0, 3\), this one, 0, among"):
                comm.subgroup(ranks)  # type: ignore[arg-type]
        with pytest.raises(WrongType, match="tag must be a text, not int"):
            comm.subgroup([0, 1], 5)  # type: ignore[arg-type]
    with comm.subgroup(range(3), "\udc80 is no UTF-8") as part:
        part.barrier()
    comm.close()
    with pytest.raises(CommunicatorDead, match="closed"):
        comm.subgroup([comm.rank])


def test_wrong_arguments() -> None:
    hocket.spawn(mistaken, 3)


def deserted(comm: Communicator, met: bool) -> None:
    """Rank 3 dies; the others wait for it, two of them in reverse order. Ranks have the numbers of ``comm``."""
    ranks = [3, 2, 1] if met else [2, 1, 3]
    if comm.rank == 3:
        comm.recv(np.empty(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        comm.send(np.empty(1), 3)
        with pytest.raises(PeerFailed, match="rank 3 "):
            comm.barrier()
    else:
        with pytest.raises(PeerFailed) as error:
            comm.subgroup(ranks)
        assert error.value.rank == 3
        with pytest.raises(CommunicatorDead, match="rank 3 "):
            comm.barrier()
    (Path.cwd() / f"{comm.rank}.told").touch()


@pytest.mark.parametrize("first", [False, True], ids=["who listens lives", "who listens dies"])
def test_a_member_that_dies_is_named(first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankFailed, match="rank 3 was ended by SIGKILL"):
        hocket.spawn(deserted, 4, (first,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.told", "1.told", "2.told"]


def late(launched: Communicator, ranks: list[int]) -> str:
    """Rank 2 comes only when the others have waited long enough."""
    with hocket.init(timeout=0.5) as comm:
        try:
            if comm.rank != 2:
                comm.subgroup(ranks)
        except CallTimeout as error:
            assert error.rank == 2  # noqa: PT017
            told = "timeout"
        except PeerFailed as error:
            told = f"{error.rank} {error.reason}"
        launched.barrier()
        if comm.rank == 2:
            with pytest.raises(PeerFailed, match="rank 2 was waited for in vain"):
                comm.subgroup(ranks)
            told = ""
        return told


@pytest.mark.parametrize("ranks", [[0, 1, 2], [2, 1, 0]])
def test_a_member_that_does_not_come(ranks: list[int]) -> None:
    zero, one, two = hocket.spawn(late, 3, (ranks,))
    assert {zero, one} <= {"timeout", "2 was waited for in vain"}
    assert "timeout" in (zero, one)
    assert two == ""


def interrupted(comm: Communicator) -> None:
    """Ctrl-C on rank 0, which waits for rank 2, as rank 1 does; rank 2 waits for neither."""
    if comm.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            comm.subgroup(range(3))
    else:
        with pytest.raises(PeerFailed, match="rank 0 was interrupted"):
            comm.subgroup(range(3)) if comm.rank == 1 else comm.barrier()


def aborted(comm: Communicator) -> None:
    """Another thread of rank 1 ends what it waits in."""
    if comm.rank == 1:
        threading.Timer(0.1, comm.abort, ("had enough",)).start()
        with pytest.raises((CommunicatorDead, PeerFailed), match="rank 1 had enough"):
            comm.subgroup(range(3))
    else:
        with pytest.raises(PeerFailed, match="rank 1 had enough"):
            comm.subgroup(range(3)) if comm.rank == 0 else comm.barrier()


def test_an_interruption_ends_waiting() -> None:
    hocket.spawn(interrupted, 3)


def test_another_thread_ends_waiting() -> None:
    hocket.spawn(aborted, 3)


def left(comm: Communicator) -> None:
    """Who has left cannot be waited for."""
    part = comm.dup()
    if part.rank == 0:
        part.close()
    else:
        with pytest.raises(PeerFailed, match="rank 0 closed its communicator"):
            part.subgroup([0, 1])
    comm.barrier()


def test_a_member_that_has_left() -> None:
    hocket.spawn(left, 2)


def many(comm: Communicator) -> None:
    """Neither descriptors nor mappings of a group are left."""

    def used() -> tuple[int, int]:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return descriptors, sum("memfd:hocket" in line for line in Path("/proc/self/maps").read_text().splitlines())

    def once() -> None:
        for ranks in ((0, 1), (1, 2), (0, 2)):
            if comm.rank in ranks:
                with comm.subgroup(ranks, "again and again") as part:
                    part.barrier()

    once()
    before = used()
    for _ in range(20):
        once()
    assert used() == before


def test_nothing_is_left() -> None:
    hocket.spawn(many, 3)
