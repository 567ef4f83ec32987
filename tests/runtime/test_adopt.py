"""Memory that others made: adopted, then read and written in place by the other ranks, until it is let go of."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import re
import resource
import signal
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Adopted, Buffer, Communicator
from hocket.algorithms import direct
from hocket.errors import (
    CallMismatch,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    WrongType,
)
from hocket.ir.traffic import Traffic
from hocket.runtime import arena, execution
from tests.runtime.processes import leftovers, run
from tests.runtime.test_arena import address, ways

Bytes = NDArray[np.uint8]

N = 40_000
LONG = 4 * N


def memory(nbytes: int, at: int = 0) -> tuple[int, Bytes]:
    """A memfd, and its bytes from a place on, mapped."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, at + nbytes)
    return descriptor, np.frombuffer(mmap.mmap(descriptor, nbytes, offset=at), np.uint8)


def adopted(comm: Communicator, nbytes: int, at: int = 0) -> tuple[Bytes, Adopted]:
    descriptor, found = memory(nbytes, at)
    held = comm.adopt(descriptor, address(found), len(found))
    os.close(descriptor)
    return found, held


def sums(comm: Communicator, x: NDArray[np.float32], out: NDArray[np.float32] | None = None) -> int:
    """Which way an AllReduce goes; its result must be right."""
    x[:] = np.arange(len(x)) % 1000 + comm.rank
    with ways() as found:
        result = comm.all_reduce(x, out)
    assert (result == comm.size * (np.arange(len(x)) % 1000) + sum(range(comm.size))).all()
    return found[0] if found else 0


def moved(before: Traffic, after: Traffic) -> tuple[int, int]:
    return after.loaded - before.loaded, after.stored - before.stored


def collectives(comm: Communicator) -> None:
    lines, held = adopted(comm, 3 * LONG + 4096, at=4096)
    x, out, part = lines[:LONG].view("f4"), lines[LONG : 2 * LONG].view("f4"), lines[2 * LONG + 192 : -1024].view("f4")
    before = [comm.traffic()]
    for given in ((x,), (x, out), (part,), (comm.empty(N, "f4"), out)):
        assert sums(comm, *given) > 0, "this call was not zero-copy"
        before.append(comm.traffic())
    shared = comm.empty(N, "f4")
    assert sums(comm, shared) == 1
    assert moved(before[0], before[1]) == moved(before[-1], comm.traffic()), "it moves what a call on comm.empty moves"
    for root in range(comm.size):
        x[:] = comm.rank
        assert (comm.broadcast(x, root=root) == root).all()
    x[:] = comm.rank
    result = comm.all_gather(x[:1000], part[: 1000 * comm.size])
    assert (result.reshape(comm.size, -1) == np.arange(comm.size)[:, None]).all()
    schedule = direct.all_reduce(comm.size).compile(storage="peer")
    x[:] = 1
    comm.run(schedule, x)
    comm.all_reduce(x[: N // 2], async_=True).wait()
    prepared = comm.prepare("all_reduce", N, "float32", in_place=True)
    prepared(Buffer(address(x), LONG, "float32"))
    assert prepared.variant == 1
    assert (x[: N // 2] == comm.size**3).all()
    held.close()
    held.close()
    assert sums(comm, x) == 0, "it was let go of"
    assert sums(comm, shared) == 1
    with pytest.raises((InvalidArgument, PeerRefused), match="memory that ranks share"):
        comm.run(schedule, x)


@pytest.mark.parametrize("ranks", [2, 3])
def test_arrays_in_adopted_memory_are_shared(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(collectives, ranks)


def mapped() -> int:
    """Mappings of files of this test."""
    return len(re.findall("/memfd:test ", Path("/proc/self/maps").read_text()))


def some(comm: Communicator) -> None:
    """Only some ranks have something; several at once; what is let go of; each communicator adopts for itself."""
    descriptor, lines = memory(LONG)
    given = (descriptor, address(lines), LONG) if comm.rank == 0 else ()
    x = lines.view("f4") if comm.rank == 0 else comm.empty(N, "f4")
    with comm.adopt(*given):
        assert sums(comm, x) == (comm.size > 1)
        other = comm.dup()
        assert sums(other, x) == 0, "that of another communicator"
        with other.adopt(*given):
            assert sums(other, x) == (comm.size > 1)
            assert sums(comm, x) == (comm.size > 1)
        other.close()
    assert sums(comm, x) == 0
    assert mapped() == 1 + (comm.rank > 0)
    with ExitStack() as all_of:
        several = []
        for length in (100, 5000, LONG):
            found, held = adopted(comm, length)
            all_of.enter_context(held)
            several.append(found)
        assert mapped() == 1 + 3 * comm.size
    del several, found
    comm.adopt()
    assert mapped() == 1, "others let go of it with the next"
    again, held = adopted(comm, LONG)
    assert sums(comm, again.view("f4")) == (comm.size > 1)
    comm.close()
    held.close()
    with pytest.raises(CommunicatorDead):
        comm.adopt()


@pytest.mark.parametrize("ranks", [1, 2])
def test_some_ranks_adopt_and_let_go(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(some, ranks)


def refused(comm: Communicator) -> None:
    """What one rank cannot adopt none adopts; all know why, and go on."""
    descriptor, lines = memory(LONG)
    at = address(lines)
    other, beyond = memory(LONG)[1], os.memfd_create("short")
    os.ftruncate(beyond, 100)
    longer = np.frombuffer(mmap.mmap(descriptor, LONG), np.uint8)
    half = os.memfd_create("half", os.MFD_ALLOW_SEALING)
    os.ftruncate(half, LONG)
    cut = np.frombuffer(mmap.mmap(half, LONG), np.uint8)
    os.ftruncate(half, 5000)
    sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(sealed, LONG)
    own = np.frombuffer(mmap.mmap(sealed, LONG), np.uint8)
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, 0x10)  # F_SEAL_FUTURE_WRITE
    private = np.frombuffer(mmap.mmap(descriptor, LONG, flags=mmap.MAP_PRIVATE), np.uint8)
    lent = comm.empty(LONG, np.uint8)
    read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    source, sink = os.pipe()
    held = comm.adopt(descriptor, at + 8192, 8192)
    bad: list[tuple[type[Exception], str, tuple[object, object, object]]] = [
        (WrongType, "must be integers", ("3", at, 4096)),
        (WrongType, "must be integers", (descriptor, None, 4096)),
        (InvalidArgument, "nbytes must be positive", (descriptor, at, 0)),
        (InvalidArgument, "Bad file descriptor", (1 << 20, at, 4096)),
        (InvalidArgument, "cannot be mapped", (1 << 40, at, 4096)),
        (InvalidArgument, "no file of this user", (source, at, 4096)),
        (InvalidArgument, "Permission denied", (read_only, at, 4096)),
        (InvalidArgument, "Operation not permitted", (sealed, address(own), 4096)),
        (InvalidArgument, "no shared, writeable mapping of descriptor", (descriptor, address(other), 4096)),
        (InvalidArgument, "no shared, writeable mapping of descriptor", (descriptor, address(private), 4096)),
        (InvalidArgument, "no shared, writeable mapping of descriptor", (descriptor, 0, 4096)),
        (InvalidArgument, "no shared, writeable mapping of descriptor", (descriptor, at, 100 * LONG)),
        (InvalidArgument, "no shared, writeable mapping of descriptor", (beyond, at, 100)),
        (InvalidArgument, "the file ends after 5000 bytes, before byte 5001", (half, address(cut), 5001)),
        (InvalidArgument, "share some of these bytes already", (descriptor, at + 8191, 2)),
        (InvalidArgument, "share some of these bytes already", (descriptor, at, LONG)),
        (InvalidArgument, "share some of these bytes already", (arena.own().descriptor, address(lent), 4096)),
    ]
    for number, (kind, text, arguments) in enumerate(bad):
        wrong = number % comm.size
        expected = (kind, text) if comm.rank == wrong else (PeerRefused, text)
        with pytest.raises(expected[0], match=expected[1]):
            comm.adopt(*(arguments if comm.rank == wrong else (descriptor, at, 4096)))  # type: ignore[arg-type]
    with comm.adopt(descriptor, at, 8192), comm.adopt(descriptor, address(longer), LONG):
        assert sums(comm, longer.view("f4")) == 1
    held.close()
    assert sums(comm, lines.view("f4")) == 0
    with pytest.raises(CallMismatch, match="split"):
        comm.adopt() if comm.rank else comm.split(0)
    assert sums(comm, comm.empty(N, "f4")) == 1
    os.close(sink)


def test_what_cannot_be_adopted_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(refused, 2)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def no_room(comm: Communicator) -> None:
    large, lines = 1 << 30, memory(LONG)
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, large)
    if comm.rank == 0:
        lines = descriptor, np.frombuffer(mmap.mmap(descriptor, large), np.uint8)
    before, (_, most) = mapped(), resource.getrlimit(resource.RLIMIT_AS)
    if comm.rank == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + large // 2, most))
    files = descriptors()
    with pytest.raises(
        *((MemoryError,) if comm.rank == 1 else (PeerRefused,)), match="cannot map the memory of a rank"
    ):
        comm.adopt(lines[0], address(lines[1]), len(lines[1]))
    assert (mapped(), descriptors()) == (before, files), "nothing is left behind"
    assert sums(comm, lines[1][:LONG].view("f4")) == 0
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with comm.adopt(lines[0], address(lines[1]), len(lines[1])):
        assert sums(comm, lines[1][:LONG].view("f4")) == 1


def test_a_rank_that_has_no_room_to_map_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(no_room, 2)


def killed_while_adopting(rank: int) -> None:
    comm = hocket.init(timeout=60)
    if rank == 1:
        execution.gather = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, return-value]
    adopted(comm, LONG)


def killed_in_a_call(rank: int) -> None:
    comm = hocket.init(timeout=60)
    lines, held = adopted(comm, LONG)
    array = lines.view("f4")
    alive = weakref.ref(array)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(array)
    except PeerFailed:
        del array, lines
        held.close()
        gc.collect()
        assert alive() is not None, "others may still store there"
        raise


@pytest.mark.parametrize("live", [killed_while_adopting, killed_in_a_call])
def test_a_rank_that_is_killed(live: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    before = leftovers()
    words, _ = run(3, live, victim=1)
    assert {rank: (word["type"], word["rank"]) for rank, word in words.items()} == {
        0: ("PeerFailed", 1),
        2: ("PeerFailed", 1),
    }, words
    assert leftovers() == before
