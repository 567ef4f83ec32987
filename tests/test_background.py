"""Calls in the background: ``async_=True`` and handles."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.algorithms import all_pairs
from hocket.communicator import Handle
from hocket.errors import CallMismatch, CommunicatorDead, InvalidArgument, PeerFailed, PeerRefused

BIG = 1 << 18  # elements: many tiles


def family(comm: Communicator) -> None:
    """Everything that has a name, all in flight at once, against the same calls one by one."""
    size, rank = comm.size, comm.rank
    x = np.arange(6 * size, dtype=np.float32) + rank
    schedule = all_pairs.all_reduce(size).compile()
    inflight: list[Handle[np.ndarray] | Handle[np.ndarray | None] | Handle[None]] = [
        comm.all_reduce(x, np.empty_like(x), op="avg", async_=True),
        comm.all_gather(x, async_=True),
        comm.reduce_scatter(x, async_=True),
        comm.all_to_all(x, np.empty_like(x), async_=True),
        comm.broadcast(x, np.empty_like(x), root=size - 1, async_=True),
        comm.reduce(x, np.empty_like(x), op="max", async_=True),
        comm.gather(x, root=1, async_=True),
        comm.scatter(x, root=1, async_=True),
        comm.barrier(async_=True),
        comm.run(schedule, x, np.empty_like(x), async_=True),
    ]
    found = [handle.wait() for handle in reversed(inflight)][::-1]
    expected = [
        comm.all_reduce(x, np.empty_like(x), op="avg"),
        comm.all_gather(x),
        comm.reduce_scatter(x),
        comm.all_to_all(x, np.empty_like(x)),
        comm.broadcast(x, np.empty_like(x), root=size - 1),
        comm.reduce(x, np.empty_like(x), op="max"),
        comm.gather(x, root=1),
        comm.scatter(x, root=1),
        None,
        comm.run(schedule, x, np.empty_like(x)),
    ]
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.tobytes() == other.tobytes()
    assert all(handle.done() for handle in inflight)
    assert inflight[0].wait() is found[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_family_in_flight(ranks: int) -> None:
    hocket.spawn(family, ranks)


def passive(comm: Communicator) -> bool:
    """Rank 0 starts a call and never looks at it; rank 1 could not finish it alone."""
    other = comm.dup()
    x = np.full(BIG, comm.rank + 1)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        other.barrier()  # rank 1 comes here once it has its sum
        return bool(handle.wait()[-1] == 3)
    total = comm.all_reduce(x)
    other.barrier()
    return bool(total[-1] == 3)


def test_a_call_goes_on_by_itself() -> None:
    assert hocket.spawn(passive, 2) == [True, True]


def crossed(comm: Communicator) -> list[int]:
    """Two communicators, waited for in opposite orders; then a call that has to wait its turn."""
    a, b = comm.dup(), comm.dup()
    first, second = a.all_reduce(np.full(BIG, 1), async_=True), b.all_reduce(np.full(BIG, 2), async_=True)
    totals = [int(handle.wait()[0]) for handle in ((first, second) if comm.rank else (second, first))]
    x = np.full(BIG, 3)
    later = [a.all_reduce(x, async_=True) for _ in range(5)]
    del later  # a handle that nobody keeps: the call goes on all the same
    gc.collect()
    totals.append(int(a.all_reduce(np.copy(a.broadcast(x)))[-1]))
    return sorted(totals)


def test_orders() -> None:
    assert hocket.spawn(crossed, 2) == [[2, 4, 3 * 2**5 * 2]] * 2


def disagreeing(comm: Communicator) -> list[str]:
    """Rank 1 errs in one way, then in another; what comes after is right."""
    x, found = np.ones(4), []
    ok = [comm.all_reduce(np.ones(4), async_=True)]
    mismatched = comm.all_reduce(x if comm.rank == 0 else np.ones(5), async_=True)
    ok.append(comm.all_reduce(np.ones(3), async_=True))
    if comm.rank == 0:
        refused = comm.reduce_scatter(np.ones(6), async_=True)
    else:
        with pytest.raises(InvalidArgument):
            comm.reduce_scatter(np.ones(7), async_=True)
    ok += [comm.all_reduce(np.ones(n), async_=True) for n in range(1, 4)]
    assert [handle.wait()[0] for handle in ok] == [2] * 5
    for _ in range(2):
        with pytest.raises(CallMismatch) as caught:
            mismatched.wait()
    found.append(str(caught.value))
    assert (x == 1).all()
    if comm.rank == 0:
        with pytest.raises(PeerRefused) as other:
            refused.wait()
        found.append(str(other.value))
    return found


def test_what_goes_wrong_is_said_when_waited_for() -> None:
    first, second = hocket.spawn(disagreeing, 2)
    assert first[:1] == second
    assert "4 x float64" in first[0]
    assert "5 x float64" in first[0]
    assert "axis 0" in first[1]


def closing(comm: Communicator, how: str) -> str:
    x = np.ones(BIG)
    if comm.rank == 1:
        getattr(comm, how)()
        return ""
    handle = comm.all_reduce(x, async_=True)
    with pytest.raises(PeerFailed) as caught:
        handle.wait()
    with pytest.raises(PeerFailed):
        handle.wait()
    assert handle.done()
    with pytest.raises(CommunicatorDead):
        comm.barrier(async_=True).wait()
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize(("how", "told"), [("close", "closed its communicator"), ("abort", "called abort()")])
def test_a_peer_that_goes(how: str, told: str) -> None:
    assert hocket.spawn(closing, 2, (how,)) == [f"error[peer-failed]: rank 1 {told}", ""]


def leaving(comm: Communicator) -> None:
    """Closing ends what is in flight, and does not wait for the others."""
    other = comm.dup()
    if comm.rank == 0:
        handle = comm.all_reduce(np.ones(BIG), async_=True)
        comm.close()
        with pytest.raises(CommunicatorDead):
            handle.wait()
    other.barrier()  # only now would rank 1 have come to the call


def test_closing_with_a_call_in_flight() -> None:
    hocket.spawn(leaving, 2)


def test_closing_gives_back_what_the_background_took() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with hocket.init() as comm:
        comm.all_reduce(np.ones(3), async_=True).wait()
        assert len(list(Path("/proc/self/fd").iterdir())) > before
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(CommunicatorDead):
        comm.barrier()


def forking(comm: Communicator) -> int:
    other = comm.dup()
    x = np.ones(BIG)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        child = os.fork()
        if child == 0:
            try:
                handle.wait()
            except CommunicatorDead:
                os._exit(7 if handle.done() else 8)
            os._exit(9)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        other.barrier()
        assert handle.wait()[0] == 2
        return status
    other.barrier()
    return int(comm.all_reduce(x)[0])


def test_a_child_has_no_part_in_a_call() -> None:
    assert hocket.spawn(forking, 2) == [7, 2]


def interrupted_wait(handle: Handle[np.ndarray]) -> None:
    threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    handle.wait()


def interrupted(comm: Communicator) -> int:
    """Ctrl-C while waiting raises; the call itself goes on."""
    other = comm.dup()
    x = np.ones(BIG)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        with pytest.raises(KeyboardInterrupt):
            interrupted_wait(handle)
        other.barrier()
        return int(handle.wait()[0])
    other.barrier()
    return int(comm.all_reduce(x)[0])


def test_ctrl_c_while_waiting() -> None:
    assert hocket.spawn(interrupted, 2) == [2, 2]
