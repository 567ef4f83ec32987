"""Calls in the background: ``async_=True`` and handles."""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import sys
import threading
import weakref
from logging.handlers import QueueHandler
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.algorithms import all_pairs
from hocket.communicator import Handle
from hocket.errors import CallMismatch, CommunicatorBusy, CommunicatorDead, InvalidArgument, PeerFailed, PeerRefused
from tests import limits

BIG = 1 << 18  # elements: many tiles
SIZES = 4, BIG  # a posted call; a job of the queue


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


def passive(comm: Communicator, elements: int) -> bool:
    """Rank 0 starts a call and never looks at it; rank 1 could not finish it alone."""
    other = comm.dup()
    x = np.full(elements, comm.rank + 1)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        other.barrier()  # rank 1 comes here once it has its sum
        return bool(handle.wait()[-1] == 3)
    shared = comm.empty(elements, x.dtype)  # this rank offers what rank 0 cannot
    shared[:] = x
    total = comm.all_reduce(shared)
    other.barrier()
    return bool(total[-1] == 3)


@pytest.mark.parametrize("elements", [*SIZES, 1 << 10])
def test_a_call_goes_on_by_itself(elements: int) -> None:
    assert hocket.spawn(passive, 2, (elements,)) == [True, True]


def crossed(comm: Communicator, elements: int) -> list[int]:
    """Two communicators, waited for in opposite orders; then a call that has to wait its turn."""
    a, b = comm.dup(), comm.dup()
    first, second = a.all_reduce(np.full(elements, 1), async_=True), b.all_reduce(np.full(elements, 2), async_=True)
    totals = [int(handle.wait()[0]) for handle in ((first, second) if comm.rank else (second, first))]
    x = np.full(elements, 3)
    later = [a.all_reduce(x, async_=True) for _ in range(5)]
    del later  # a handle that nobody keeps: the call goes on all the same
    gc.collect()
    totals.append(int(a.all_reduce(np.copy(a.broadcast(x)))[-1]))
    return sorted(totals)


@pytest.mark.parametrize("elements", SIZES)
def test_orders(elements: int) -> None:
    assert hocket.spawn(crossed, 2, (elements,)) == [[2, 4, 3 * 2**5 * 2]] * 2


def posted(comm: Communicator) -> None:
    """Short calls that nobody waits for are completed by whoever asks, or by the call that comes next."""
    for number in range(100):
        x = np.full(4, comm.rank + number)
        handle = comm.all_reduce(x, async_=True)
        if number % 4 == 0:
            while not handle.done():
                os.sched_yield()
        elif number % 4 == 1:
            assert hocket.wait_any([handle]) == 0
        elif number % 4 == 2:
            comm.barrier()
        else:
            comm.all_reduce(x, np.empty_like(x), async_=True).wait()
        assert (x == 2 * number + 1).all()
        assert handle.done()
        assert handle.wait() is x


def test_a_posted_call() -> None:
    hocket.spawn(posted, 2)


def averages(comm: Communicator) -> None:
    """What is left to do with a result belongs to the call: it is done once, whoever waits, and if nobody does."""
    for _ in range(3):
        shared, big = comm.empty(BIG), np.empty(BIG)
        for x in (np.empty(4), big, shared):
            x[:] = comm.rank
            comm.all_reduce(x, op="avg", async_=True)
            comm.barrier()
            assert (x == (comm.size - 1) / 2).all()
        part = np.empty(3)
        comm.reduce_scatter(np.arange(3.0 * comm.size), part, op="avg", async_=True)
        comm.barrier()
        assert part.tolist() == [3 * comm.rank, 3 * comm.rank + 1, 3 * comm.rank + 2]


def test_a_call_is_finished_without_its_handle() -> None:
    hocket.spawn(averages, 2)


def waited_for(comm: Communicator) -> None:
    """Several threads wait for one call, and for one that fails."""
    other, x = comm.dup(), np.full(BIG, comm.rank)
    handle = comm.all_reduce(x * 1.0, op="avg", async_=True)
    failing = other.all_reduce(np.ones(comm.rank + 1), async_=True)
    found: list[np.ndarray] = []
    errors: list[Exception] = []
    together = threading.Barrier(8)

    def wait() -> None:
        together.wait()
        found.append(handle.wait())
        try:
            failing.wait()
        except CallMismatch as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(map(id, errors))) == 8
    assert all(one is found[0] for one in found)
    assert (found[0] == (comm.size - 1) / 2).all()


def test_several_threads_wait_for_one_call() -> None:
    hocket.spawn(waited_for, 2)


def dropping(comm: Communicator, elements: int) -> list[int]:
    """Rank 0 drops a communicator whose call rank 1 enters only afterwards."""
    found = []
    for kept in (True, False):
        other, x = comm.dup(), np.full(elements, comm.rank + 1)
        if comm.rank == 0:
            handle = other.all_reduce(x, async_=True)
            dropped = weakref.ref(other._endpoint)
            if not kept:
                del handle
            del other
            gc.collect()  # returns
            comm.barrier()  # only now does rank 1 enter the call
            comm.barrier()  # and it has returned from it
            if kept:
                handle.wait()
                del handle
            else:
                while x[-1] != 3:
                    os.sched_yield()
            comm.dup()  # whoever makes calls lets go of what has ended
            gc.collect()
            assert dropped() is None
            assert x[0] == 3
        else:
            comm.barrier()
            other.all_reduce(x)
            comm.barrier()
            comm.dup()
        found.append(int(x[-1]))
    return found


@pytest.mark.parametrize("elements", SIZES)
def test_a_communicator_that_is_dropped_with_a_call_in_flight(elements: int) -> None:
    assert hocket.spawn(dropping, 2, (elements,)) == [[3, 3]] * 2


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


def closing(comm: Communicator, how: str, elements: int) -> str:
    x = np.ones(elements)
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
@pytest.mark.parametrize("elements", SIZES)
def test_a_peer_that_goes(how: str, told: str, elements: int) -> None:
    assert hocket.spawn(closing, 2, (how, elements)) == [f"error[peer-failed]: rank 1 {told}", ""]


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
    hocket.init().close()  # opens what the process keeps
    before = len(list(Path("/proc/self/fd").iterdir()))
    with hocket.init() as comm:
        comm.all_reduce(np.ones(3), async_=True).wait()
        assert len(list(Path("/proc/self/fd").iterdir())) > before
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(CommunicatorDead):
        comm.barrier()


def drained(comm: Communicator) -> None:
    """Closing waits for the calls in the background; one of them has failed, of which its handle tells."""
    other, x = comm.dup(), np.full(BIG, comm.rank + 1)
    failed = comm.all_reduce(np.ones(comm.rank + 1), async_=True)
    handle = comm.all_reduce(x, async_=True) if comm.rank == 0 else None
    if handle is None:
        other.barrier()  # rank 0 is about to close
        assert comm.all_reduce(x)[-1] == 3
        with pytest.raises(PeerFailed, match="rank 0 closed"):
            comm.barrier()
    else:
        other.barrier(async_=True)
        comm.close(drain=True)
        assert handle.done()
        assert handle.wait()[-1] == 3
        with pytest.raises(CommunicatorDead):
            comm.barrier()
    with pytest.raises(CallMismatch):
        failed.wait()
    comm.close(drain=True)
    other.close(drain=True)


def test_closing_when_all_has_ended() -> None:
    hocket.spawn(drained, 2)


def interrupt_in(function: str) -> None:
    """Ctrl-C once the main thread waits in native code that a function calls: until then it keeps the GIL."""
    sys.setswitchinterval(60)  # until this rank ends
    while sys._current_frames()[threading.main_thread().ident or 0].f_code.co_name != function:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGINT)


def undrained(comm: Communicator) -> None:
    """Rank 1 fails while rank 0 drains; then Ctrl-C while rank 0 drains another communicator."""
    second, third = comm.dup(), comm.dup()
    if comm.rank == 0:
        handle = comm.barrier(async_=True)
        comm.close(drain=True)
        with pytest.raises(PeerFailed, match="rank 1 had enough"):
            handle.wait()
        handle = second.barrier(async_=True)
        threading.Thread(target=interrupt_in, args=("close",)).start()
        with pytest.raises(KeyboardInterrupt):
            second.close(drain=True)
        with pytest.raises(CommunicatorDead, match="rank 0 was interrupted"):
            handle.wait()
        second.close(drain=True)
        third.barrier()
    else:
        comm.abort("had enough")
        third.barrier()
        with pytest.raises(PeerFailed, match="rank 0 was interrupted"):
            second.barrier()


def test_what_ends_draining() -> None:
    hocket.spawn(undrained, 2)


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


def waits(handle: Handle[np.ndarray]) -> None:
    handle.wait()


def interrupted(comm: Communicator, elements: int) -> None:
    """Ctrl-C while waiting raises, and the others know."""
    other = comm.dup()
    x = np.ones(elements)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        threading.Thread(target=interrupt_in, args=("waits",)).start()
        with pytest.raises(KeyboardInterrupt):
            waits(handle)
        with pytest.raises(CommunicatorDead, match="rank 0 was interrupted"):
            handle.wait()
        other.barrier()
    else:
        other.barrier()
        with pytest.raises(PeerFailed, match="rank 0 was interrupted"):
            comm.all_reduce(x)


@pytest.mark.parametrize("elements", SIZES)
def test_ctrl_c_while_waiting(elements: int) -> None:
    hocket.spawn(interrupted, 2, (elements,))


def handled(comm: Communicator, elements: int) -> None:
    """A signal handler that uses the communicator whose call it interrupts, which whoever waits may be making."""
    other = comm.dup()
    x = np.ones(elements)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)

        def handler(*_: object) -> None:
            comm.abort("was told to stop")
            with pytest.raises((CommunicatorBusy, CommunicatorDead)):
                handle.wait()
            with pytest.raises(CommunicatorDead):
                comm.barrier()

        signal.signal(signal.SIGINT, handler)
        threading.Thread(target=interrupt_in, args=("waits",)).start()
        with pytest.raises(CommunicatorDead, match="rank 0 was told to stop"):
            waits(handle)
        other.barrier()
    else:
        other.barrier()
        with pytest.raises(PeerFailed, match="rank 0 was told to stop"):
            comm.all_reduce(x)


@pytest.mark.parametrize("elements", SIZES)
def test_a_signal_handler_that_uses_the_communicator(elements: int) -> None:
    hocket.spawn(handled, 2, (elements,))


def polite(comm: Communicator, elements: int) -> int:
    """A signal handler that asks for too much is refused, and what it starts is done; the call goes on."""
    other = comm.dup()
    x = np.ones(elements)
    started: list[Handle[np.ndarray]] = []
    if comm.rank == 0:
        ended = comm.all_reduce(np.ones(1), async_=True)
        ended.wait()
        handle = comm.all_reduce(x, async_=True)

        def handler(*_: object) -> None:
            assert ended.wait()[0] == 2
            started.append(comm.all_reduce(np.ones(3), async_=True))
            other.barrier()

        signal.signal(signal.SIGINT, handler)
        threading.Thread(target=interrupt_in, args=("waits",)).start()
        waits(handle)
    else:
        comm.all_reduce(np.ones(1))
        other.barrier()
        comm.all_reduce(x)
        started.append(comm.all_reduce(np.ones(3), async_=True))
    return int(x[0]) + int(started[0].wait()[0])


@pytest.mark.parametrize("elements", SIZES)
def test_a_signal_handler_that_starts_a_call(elements: int) -> None:
    assert hocket.spawn(polite, 2, (elements,)) == [4, 4]


def interrupted_turn(comm: Communicator) -> None:
    """Ctrl-C in a call that waits for one in the background: as in any call, the others know."""
    other = comm.dup()
    x = np.ones(BIG)
    if comm.rank == 0:
        handle = comm.all_reduce(x, async_=True)
        threading.Thread(target=interrupt_in, args=("_alone",)).start()
        with pytest.raises(KeyboardInterrupt):
            comm.barrier()
        with pytest.raises(CommunicatorDead):
            handle.wait()
        other.barrier()
    else:
        other.barrier()
        with pytest.raises(PeerFailed, match="rank 0 was interrupted"):
            comm.all_reduce(x)


def test_ctrl_c_while_waiting_for_a_turn() -> None:
    hocket.spawn(interrupted_turn, 2)


def called_back(comm: Communicator, elements: int) -> list[str]:
    """Rank 0 is told of a call that rank 1 joins late, and never looks at it itself."""
    other = comm.dup()
    x = np.full(elements, comm.rank + 1)
    if comm.rank == 1:
        other.barrier()
        comm.all_reduce(x)
        comm.all_reduce(x)
        return []
    told: queue.Queue[Handle[np.ndarray]] = queue.Queue()
    failed: queue.Queue[logging.LogRecord] = queue.Queue()
    logging.getLogger("hocket").addHandler(QueueHandler(failed))

    def once_more(handle: Handle[np.ndarray]) -> None:
        comm.all_reduce(handle.wait(), async_=True).add_done_callback(told.put)

    def fail(handle: Handle[np.ndarray]) -> None:
        raise SystemExit(f"{handle} is not what was hoped for")

    handle = comm.all_reduce(x, async_=True)
    for callback in (fail, told.put, once_more):
        handle.add_done_callback(callback)
    assert told.empty()
    other.barrier()
    assert told.get(timeout=limits.scaled(60)) is handle
    assert told.get(timeout=limits.scaled(60)).wait()[-1] == 6
    assert "is not what was hoped for" in failed.get(timeout=limits.scaled(60)).getMessage()
    seen = list[object]()
    handle.add_done_callback(seen.append)  # it has ended: at once
    assert seen == [handle]
    with pytest.raises(TypeError, match="a callback is callable"):
        handle.add_done_callback(None)  # type: ignore[arg-type]
    for thread in threading.enumerate():
        if thread.name == "hocket callbacks":
            thread.join(limits.scaled(60))
    return [thread.name for thread in threading.enumerate() if thread.name == "hocket callbacks"]


@pytest.mark.parametrize("elements", SIZES)
def test_callbacks(elements: int) -> None:
    """On a thread that is there while there is something to call; what one raises keeps no other from being called."""
    assert hocket.spawn(called_back, 2, (elements,)) == [[], []]


def called_back_of_a_failure(comm: Communicator) -> str:
    if comm.rank == 1:
        comm.abort("had enough")
        return ""
    told: queue.Queue[Handle[np.ndarray]] = queue.Queue()
    comm.all_reduce(np.ones(1), async_=True).add_done_callback(told.put)
    with pytest.raises(PeerFailed, match="rank 1 had enough") as error:
        told.get(timeout=limits.scaled(60)).wait()
    return type(error.value).__name__


def test_callbacks_are_called_of_calls_that_fail() -> None:
    assert hocket.spawn(called_back_of_a_failure, 2) == ["PeerFailed", ""]


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def spinning(comm: Communicator, folder: str) -> list[int]:
    """How many threads each of several calls in the background starts that rank 0 waits for before rank 1 makes it."""
    started = []
    for attempt in range(10):
        own = comm.dup()
        there, before = Path(folder) / str(attempt), tasks()
        while comm.rank == 1 and not there.exists():
            pass
        handle = own.all_reduce(np.ones(1), async_=True)
        if comm.rank == 0:
            there.touch()
        assert handle.wait() == comm.size
        started.append(tasks() - before)
        own.close()
        comm.barrier()
    return started


def test_a_posted_call_that_ends_soon_takes_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it spins: for long here, though other processes may keep a rank from its core for longer."""
    monkeypatch.setenv("HOCKET_TUNABLES", f"spins={1 << 20},visits_between_looks={1 << 30}")
    assert 0 in hocket.spawn(spinning, 2, (str(tmp_path),))[0]
