"""Messages between two ranks, and Python objects: what arrives, in which order, and what goes wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.errors import (
    CallMismatch,
    CallTimeout,
    CommunicatorBusy,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    RankFailed,
    WrongType,
)


def shifted(comm: Communicator, elements: int) -> None:
    """Around the ring in both directions, several times, in types of all kinds."""
    p, r = comm.size, comm.rank
    for dtype in ("float64", "uint8", "complex64", "S5"):
        for distance in (1, -1, 1, p):
            x = np.full((elements, 2), r).astype(dtype)
            out = np.empty_like(x)
            assert comm.sendrecv(x, (r + distance) % p, out, (r - distance) % p) is out
            np.testing.assert_array_equal(out, np.full((elements, 2), (r - distance) % p).astype(dtype))
    comm.barrier()


@pytest.mark.parametrize(("ranks", "elements"), [(1, 5), (2, 5), (3, 0), (3, 1), (4, 1000), (2, 100_001)])
def test_a_ring_shifts(ranks: int, elements: int) -> None:
    hocket.spawn(shifted, ranks, (elements,))


def in_order(comm: Communicator) -> None:
    """Rank 0 sends to all others, which answer; collectives go on in between."""
    for turn in range(20):
        if comm.rank == 0:
            for other in range(1, comm.size):
                comm.send(np.array([turn, other]), other)
            for other in reversed(range(1, comm.size)):
                assert comm.recv(np.empty(2, int), other).tolist() == [turn + 1, other]
        else:
            got = comm.recv(np.empty(2, int), np.int64(0))  # type: ignore[arg-type]
            assert got.tolist() == [turn, comm.rank]
            got[0] += 1
            comm.send(got, 0)
        assert comm.all_reduce(np.array([1]))[0] == comm.size


def test_messages_arrive_in_order() -> None:
    hocket.spawn(in_order, 3)


def mistaken(comm: Communicator) -> None:
    me, other = comm.rank, 3 - comm.rank
    if me:
        for bad in (me, comm.size, -1, 1.0, None):
            with pytest.raises(InvalidArgument, match=r"dest must be another rank in \[0, 3\), not"):
                comm.send(np.ones(3), bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="source must be another rank"):
            comm.sendrecv(np.ones(3), other, np.ones(3), me)
        with pytest.raises(
            CallMismatch, match="rank 1 does not send what rank 2 receives: they differ in size"
        ) as error:
            comm.send(np.ones(5), 2) if me == 1 else comm.recv(np.ones(6), 1)
        assert str(error.value).splitlines()[1:] == [
            "note: rank 1 calls send (5 x float64)",
            "note: rank 2 calls recv (6 x float64)",
        ]
        with pytest.raises(WrongType if me == 2 else PeerRefused, match=r"NumPy array|rank 2 could not take part"):
            comm.send(np.ones(5), 2) if me == 1 else comm.recv([0.0] * 5, 1)  # type: ignore[arg-type]
        with pytest.raises(CallMismatch, match="type"):
            comm.sendrecv(np.ones(5), other, np.ones(5, np.int64 if me == 1 else np.float64), other)
        x = np.arange(10.0)
        for bad_x, bad_out, why in (
            (x[:6], x[4:], "x and out overlap"),
            (x, x, "x and out overlap"),
            (x[::2], x[:5].copy(), "x must be contiguous"),
            (x[:5], np.empty(10)[::2], "out must be contiguous"),
            (5.0, np.empty(1), "NumPy array, not float"),
            (x, None, "needs out"),
            (x, np.frombuffer(x.tobytes()), "read-only"),
        ):
            if me == 1:
                with pytest.raises((InvalidArgument, WrongType), match=why):
                    comm.sendrecv(bad_x, other, bad_out, other)  # type: ignore[arg-type]
            else:
                with pytest.raises(PeerRefused, match=f"rank 1 could not .*{why}"):
                    comm.sendrecv(np.empty_like(bad_x), other, np.empty_like(bad_x), other)
        out = np.empty(5)
        assert (comm.sendrecv(np.full(5, float(me)), other, out, other) == other).all()
    comm.barrier()


def test_wrong_messages_leave_the_communicator_as_it_was() -> None:
    hocket.spawn(mistaken, 3)


def deserted(comm: Communicator, met: bool) -> str:
    """Rank 2 dies; rank 1 waits for it, before or after the two have met, and rank 0 for rank 1."""
    if comm.rank == 2:
        if met:
            comm.send(np.ones(1), 1)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1 and met:
        comm.recv(np.ones(1), 2)
    with pytest.raises(PeerFailed, match="rank 2 ") as error:
        comm.recv(np.ones(1), comm.rank + 1)
    assert error.value.rank == 2
    with pytest.raises(CommunicatorDead, match="rank 2"):
        comm.send(np.ones(1), 1 - comm.rank)
    (Path.cwd() / f"{comm.rank}.told").touch()
    return "told"


@pytest.mark.parametrize("met", [False, True])
def test_a_partner_that_dies_is_named(met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankFailed, match="rank 2 was ended by SIGKILL"):
        hocket.spawn(deserted, 3, (met,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.told", "1.told"]


def caught(comm: Communicator, met: bool) -> None:
    """Rank 0 catches the error of a collective and does not close: rank 1, which waits for it, hears of it."""
    if met and comm.rank < 2:
        exchanged(comm, 1 - comm.rank)
    if comm.rank == 2:
        comm.abort("had enough")
    else:
        with pytest.raises(PeerFailed, match="rank 2 had enough"):
            comm.all_reduce(np.ones(1)) if comm.rank == 0 else comm.recv(np.ones(1), 0)


def before_and_after_meeting(comm: Communicator, end: Callable[[Communicator, bool], None]) -> None:
    for met in (False, True):
        part = comm.dup()  # whose end is not seen before the barrier
        end(part, met)
        comm.barrier()


def exchanged(comm: Communicator, other: int) -> None:
    assert comm.sendrecv(np.array([comm.rank]), other, np.empty(1, int), other) == [other]


def test_who_has_given_up_is_not_waited_for() -> None:
    hocket.spawn(before_and_after_meeting, 3, (caught,))


def interrupted(comm: Communicator, met: bool) -> None:
    """Ctrl-C while rank 0 waits for rank 1, which waits for rank 2 and hears nothing, which waits for rank 0."""
    if met:
        for step in range(3):
            if step != comm.rank:
                exchanged(comm, 3 - step - comm.rank)
    if comm.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            comm.recv(np.ones(1), 1)
    else:
        with pytest.raises(PeerFailed, match="rank 0 was interrupted"):
            comm.recv(np.ones(1), (comm.rank + 1) % 3)


def test_an_interruption_ends_waiting() -> None:
    hocket.spawn(before_and_after_meeting, 3, (interrupted,))


def aborted(comm: Communicator, met: bool) -> None:
    """Another thread of rank 0 ends what it waits in."""
    if met:
        exchanged(comm, 1 - comm.rank)
    if comm.rank == 0:
        threading.Timer(0.1, comm.abort, ("had enough",)).start()
        with pytest.raises(CommunicatorDead, match="rank 0 had enough"):
            comm.recv(np.ones(1), 1)
    else:
        with pytest.raises(PeerFailed, match="rank 0 had enough"):
            comm.recv(np.ones(1), 0)


def test_another_thread_ends_waiting() -> None:
    hocket.spawn(before_and_after_meeting, 2, (aborted,))


def late(launched: Communicator) -> None:
    for met in (False, True):
        with hocket.init(timeout=0.5) as comm:
            if met:
                exchanged(comm, 1 - comm.rank)
            if comm.rank == 0:
                with pytest.raises(CallTimeout, match="for rank 1 in vain"):
                    comm.recv(np.ones(1), 1)
            launched.barrier()
            if comm.rank == 1:
                with pytest.raises(PeerFailed, match="rank 1 was waited for in vain"):
                    comm.send(np.ones(1), 0)


def test_a_partner_that_is_late() -> None:
    hocket.spawn(late, 2)


def in_threads(comm: Communicator) -> None:
    """Rank 0 meets the others in threads of its own, the last first; two threads with one partner are too many."""
    if comm.rank:
        if comm.rank == 1:
            comm.recv(np.empty(1), 2)
        exchanged(comm, 0)
        if comm.rank == 2:
            comm.send(np.empty(1), 1)
    else:
        threads = [threading.Thread(target=exchanged, args=(comm, other)) for other in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    fresh = comm.dup()
    if comm.rank == 0:
        told = threading.Semaphore(0)

        def send() -> None:
            try:
                fresh.send(np.ones(1), 1)
            except CommunicatorBusy:
                told.release()

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        told.acquire()  # nobody is there for the other one yet
    comm.barrier()
    if comm.rank == 1:
        fresh.recv(np.empty(1), 0)
    comm.barrier()


def test_threads_have_partners_of_their_own() -> None:
    hocket.spawn(in_threads, 3)


def permuted(comm: Communicator, seed: int) -> None:
    """Every rank makes one sendrecv, whoever the partners: none waits in a circle, met or not."""
    random = np.random.default_rng(seed)
    for elements in (1, 0, 1000, 40_000) * 3:
        to = random.permutation(comm.size).tolist()
        with comm.dup() as fresh:
            for one in (fresh, fresh, comm):
                x, out = np.full(elements, comm.rank), np.empty(elements, int)
                one.sendrecv(x, to[comm.rank], out, to.index(comm.rank))
                assert (out == to.index(comm.rank)).all()


def test_any_permutation_goes_through() -> None:
    hocket.spawn(permuted, 5, (7,))


def in_parts(comm: Communicator) -> None:
    """Ranks are those of the part, also in errors; the part does not need what it was split from."""
    part = comm.split(comm.rank % 2, key=-comm.rank)
    assert part is not None
    comm.close()
    exchanged(part, 1 - part.rank)
    assert part.all_gather_object(comm.rank) == [comm.rank % 2 + 2, comm.rank % 2]
    if part.rank == 0:
        part.close()
    else:
        with pytest.raises(PeerFailed, match="rank 0 closed its communicator"):
            part.recv(np.empty(1), 0)


def test_parts_have_messages_of_their_own() -> None:
    hocket.spawn(in_parts, 4)


def with_itself(comm: Communicator) -> None:
    x = np.arange(6.0).reshape(1, 2, 3)
    assert (comm.sendrecv(x, comm.rank, np.empty_like(x), comm.rank) == x).all()
    with pytest.raises(InvalidArgument, match="calls for an out of"):
        comm.sendrecv(x, comm.rank, np.empty(5), comm.rank)
    with pytest.raises(WrongType, match="x is of float64, out of int64"):
        comm.sendrecv(x, comm.rank, np.empty((1, 2, 3), int), comm.rank)
    with pytest.raises(InvalidArgument, match="overlap"):
        comm.sendrecv(x.reshape(-1)[:4], comm.rank, x.reshape(-1)[2:], comm.rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_sends_to_itself(ranks: int) -> None:
    hocket.spawn(with_itself, ranks)


def of_any_kind(comm: Communicator) -> None:
    """What can be read can be sent; only the number of elements must agree; threads of a rank and shared memory."""
    other = 1 - comm.rank
    out = np.empty((2, 3, 4))
    comm.sendrecv(np.frombuffer(np.arange(24.0).tobytes()), other, out, other)
    assert out.tolist() == np.arange(24.0).reshape(2, 3, 4).tolist()
    for make in (np.empty, comm.empty):
        large = [make(1 << 18, np.float64) for _ in range(2)]
        large[0][:] = comm.rank
        for _ in range(3):
            large[1][:] = 5
            assert (comm.sendrecv(large[0], other, large[1], other) == other).all()
    assert comm.traffic().moved >= 6 * 2 * (8 << 18)


def test_arrays_of_any_kind() -> None:
    hocket.spawn(of_any_kind, 2, threads=2)


def needed(comm: Communicator) -> tuple[int, int]:
    """Descriptors and bytes of shared memory that a pair needs."""

    def now() -> tuple[int, int]:
        names = [path.name for path in Path("/proc/self/fd").iterdir()]
        blocks = {}
        for name in names:
            with suppress(OSError):  # the one of the listing
                file = os.fstat(int(name))
                blocks[file.st_ino] = 512 * file.st_blocks
        return len(names), sum(blocks.values())

    comm.barrier()
    before = now()
    comm.send(np.ones(1), 1) if comm.rank == 0 else comm.recv(np.empty(1), 0)
    after = now()
    return after[0] - before[0], after[1] - before[1]


def test_what_a_pair_needs() -> None:
    for descriptors, shared in hocket.spawn(needed, 2):
        assert descriptors == 3
        assert 0 < shared <= 1 << 20


def leaves(comm: Communicator) -> None:
    """What is sent before the end of a communicator arrives; what comes after does not."""
    if comm.rank == 0:
        comm.send(np.ones(3), 1)
        comm.close()
        with pytest.raises(CommunicatorDead, match="closed"):
            comm.send(np.ones(3), 1)
    else:
        assert comm.recv(np.zeros(3), 0).sum() == 3
        with pytest.raises(PeerFailed, match="rank 0 closed its communicator"):
            comm.recv(np.zeros(3), 0)


def test_a_partner_that_leaves() -> None:
    hocket.spawn(leaves, 2)


def objects(comm: Communicator) -> None:
    values = [{"rank": r, "text": "ü" * r, "array": np.arange(r)} for r in range(comm.size)]
    for root in range(comm.size):
        found = comm.broadcast_object(values[comm.rank] if comm.rank == root else None, root=root)
        assert found is not None
        assert (found["rank"], found["text"]) == (root, "ü" * root)
        assert found["array"].tolist() == list(range(root))  # type: ignore[attr-defined]
    assert comm.broadcast_object(None) is None
    everyones = comm.all_gather_object(values[comm.rank])
    assert [value["rank"] for value in everyones] == list(range(comm.size))
    assert comm.all_gather_object(lambda: comm_free)[0]() == 3  # cloudpickle takes functions
    assert comm.all_gather_object(b"x" * (1 << 20) * (comm.rank == 0))[0] == b"x" * (1 << 20)
    with pytest.raises(TypeError if comm.rank == comm.size - 1 else PeerRefused, match="pickle"):
        comm.all_gather_object(threading.Lock() if comm.rank == comm.size - 1 else 1)
    with pytest.raises(TypeError if comm.rank == 0 else PeerRefused, match="pickle"):
        comm.broadcast_object(threading.Lock())
    for root in (comm.size, -1, "0", None):
        with pytest.raises(InvalidArgument, match="root must be"):
            comm.broadcast_object(1, root=root)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no number") if comm.rank else nullcontext():
        comm.broadcast_object(Broken())
    with pytest.raises(ValueError, match="no number"):
        comm.all_gather_object(Broken() if comm.rank == 0 else 1)
    comm.barrier()


class Broken:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


comm_free = 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_objects(ranks: int) -> None:
    hocket.spawn(objects, ranks)
