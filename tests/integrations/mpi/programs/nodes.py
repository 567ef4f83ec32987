"""A rank of a job on several nodes: ``nodes.py NAME ...``, of functions below. It prints "right" if all is."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count, pairwise
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

import hocket
from hocket.algorithms import all_pairs
from hocket.errors import (
    BootstrapFailed,
    CallMismatch,
    CallTimeout,
    CommunicatorDead,
    HocketError,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
)
from hocket.tuning import _WITH_HEADERS, KINDS, TABLE, Call, choose

SIZES = (0, 1, 3, 1000, 100_003)


def numbers(comm: hocket.Communicator, rank: int, n: int, dtype: str) -> np.ndarray:
    """Those of a rank, which every rank can work out."""
    return np.random.default_rng([rank, n]).integers(-50, 50, n * comm.size).astype(dtype)


def collectives(comm: hocket.Communicator) -> None:
    """Each collective by name is that of NumPy, for several types and sizes."""
    size, me = comm.size, comm.rank
    for n in SIZES:
        for dtype in ("int32", "float64", "int8"):
            xs = [numbers(comm, r, n, dtype) for r in range(size)]
            mine, total = xs[me], np.sum(xs, axis=0, dtype=dtype)
            block = slice(me * n, (me + 1) * n)
            np.testing.assert_array_equal(comm.all_reduce(mine.copy()), total)
            np.testing.assert_array_equal(comm.all_reduce(mine, np.empty_like(mine), op="max"), np.max(xs, axis=0))
            np.testing.assert_array_equal(comm.all_gather(mine), np.concatenate(xs))
            np.testing.assert_array_equal(comm.reduce_scatter(mine), total[block])
            np.testing.assert_array_equal(comm.all_to_all(mine.copy()), np.concatenate([x[block] for x in xs]))
            for root in range(size):
                np.testing.assert_array_equal(comm.broadcast(mine.copy(), root=root), xs[root])
                reduced = comm.reduce(mine.copy(), root=root)
                gathered = comm.gather(mine, root=root)
                scattered = comm.scatter(mine, root=root)
                np.testing.assert_array_equal(scattered, xs[root][block])
                if me == root:
                    np.testing.assert_array_equal(reduced, total)
                    np.testing.assert_array_equal(gathered, np.concatenate(xs))
            handle = comm.all_reduce(mine.copy(), async_=True)
            np.testing.assert_array_equal(handle.wait(), total)
            np.testing.assert_array_equal(comm.scan(mine.copy()), np.sum(xs[: me + 1], axis=0, dtype=dtype))
    prepared = comm.prepare("all_reduce", 1000, "float32", in_place=True)
    for shared in (False, True):
        x = comm.empty(1000, np.float32) if shared else np.empty(1000, np.float32)
        x.fill(me)
        assert (prepared(x) == sum(range(size))).all()
    counts = [3 * r for r in range(size)]
    rows = [np.full((counts[r], 2), r) for r in range(size)]
    np.testing.assert_array_equal(comm.all_gather(rows[me], counts=counts), np.concatenate(rows))
    halves = ([100] * size, [100] * size) if me else None  # rank 0 gives none
    x = np.arange(100 * size) + 1000 * me
    expected = np.concatenate([np.arange(100 * me, 100 * me + 100) + 1000 * r for r in range(size)])
    np.testing.assert_array_equal(comm.all_to_all(x, np.empty_like(x), counts=halves), expected)
    sends = [(me + r) % 3 * 50 for r in range(size)]  # some none
    gets = [(me + r) % 3 * 50 for r in range(size)]
    sent = np.repeat(np.arange(size) + 100 * me, sends)
    np.testing.assert_array_equal(
        comm.all_to_all(sent, counts=(sends, gets)), np.repeat(np.arange(size) * 100 + me, gets)
    )
    each = [7 * (r + 1) for r in range(size)]
    summed = comm.reduce_scatter(np.arange(sum(each)), counts=each)
    np.testing.assert_array_equal(summed, size * np.arange(sum(each))[sum(each[:me]) :][: each[me]])
    comm.barrier()


def crosses(comm: hocket.Communicator) -> None:
    """What a call sends from each node is what its schedule says, and no byte more than has to be."""
    size, others = comm.size, len(comm.nodes) - 1
    x = np.ones(12 << 16, np.float32)  # whole tiles: others leave gaps in messages of several chunks
    last = comm.nodes[-1]
    calls: dict[str, tuple[Callable[[], object], Callable[[tuple[int, ...]], float]]] = {
        "all_reduce": (lambda: comm.all_reduce(x), lambda node: 2 * x.nbytes * others / (others + 1)),
        "all_gather": (lambda: comm.all_gather(x), lambda node: len(node) * others * x.nbytes),
        "reduce_scatter": (lambda: comm.reduce_scatter(x), lambda node: (size - len(node)) * x.nbytes / size),
        "all_to_all": (lambda: comm.all_to_all(x), lambda node: len(node) * (size - len(node)) * x.nbytes / size),
        "reduce": (lambda: comm.reduce(x, root=last[0]), lambda node: (node != last) * x.nbytes),
    }
    for name, (call, expected) in calls.items():
        before = comm.network_bytes
        call()
        sent = comm.all_gather(np.array([comm.network_bytes - before]))
        for node in comm.nodes:
            assert sum(sent[list(node)]) == expected(node), (name, node, sent)


def with_headers(comm: hocket.Communicator) -> None:
    """What is to go with headers does: of the largest such call nothing else is sent."""
    place = tuple(next(node for node, ranks in enumerate(comm.nodes) if r in ranks) for r in range(comm.size))
    for name in (line.collective for line in TABLE if line.when is _WITH_HEADERS):
        kind = KINDS[name]
        blocks = comm.size if kind.blocks else 1
        long = not MPI.Get_library_version().startswith("MPICH")
        calls = [Call(name, comm.size, (n << 9) * blocks, nodes=place, long_headers=long) for n in range(1, 257)]
        most = max(call.size or 0 for call in calls if choose(call).line.when is _WITH_HEADERS) // blocks
        for dtype in ("u1", "f8"):
            n = most // np.dtype(dtype).itemsize
            before = comm.network_bytes
            found = getattr(comm, name)(np.ones(n * (comm.size if kind.cuts else 1), dtype))
            assert comm.network_bytes == before, (name, dtype, n)
            assert found is None or (found == (comm.size if kind.combines else 1)).all(), (name, dtype, n)


def large(comm: hocket.Communicator) -> None:
    """Hundreds of messages, on several channels that share a connection of the wire: what one awaits must not stand
    behind what another has no room for."""
    x = np.full(16 << 20, comm.rank, np.int32)
    schedule = all_pairs.all_reduce(comm.size).compile()
    for _ in range(2):
        found = np.zeros_like(x)
        comm.run(schedule, x, found)
        assert (found == sum(range(comm.size))).all()


def differ(comm: hocket.Communicator) -> None:
    """Ranks of several nodes that call different things all raise, and go on."""
    with pytest.raises(CallMismatch, match=f"rank {comm.size - 1}"):
        comm.all_reduce(np.ones(10 if comm.rank < comm.size - 1 else 20))
    with pytest.raises(InvalidArgument if comm.rank == 1 else PeerRefused, match="op"):
        comm.all_reduce(np.ones(4), op="nothing" if comm.rank == 1 else "sum")
    np.testing.assert_array_equal(comm.all_reduce(np.ones(4)), np.full(4, comm.size))


def raises(comm: hocket.Communicator) -> None:
    """A rank that raises is named on all others, on whichever node."""
    comm.all_reduce(np.ones(100_000))
    MPI.COMM_WORLD.Barrier()  # abort ends a call that goes on elsewhere, too
    if comm.rank == 1:
        comm.abort("has had enough")
        return
    with pytest.raises(PeerFailed, match="rank 1 has had enough"):
        comm.all_reduce(np.ones(100_000))


def stops(comm: hocket.Communicator) -> None:
    """A rank that goes silent is named by those that wait for it, in time, and finds out when it goes on."""
    last = comm.size - 1
    pids = comm.all_gather(np.array([os.getpid()]))
    MPI.COMM_WORLD.Barrier()
    if comm.rank == last:
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(PeerFailed, match=f"rank {last} was waited for in vain"):
            comm.all_reduce(np.ones(100_000))
        return
    call, begun = comm.prepare("all_reduce", 100_000, "float64", in_place=True, timeout=1), time.monotonic()
    with pytest.raises((CallTimeout, PeerFailed), match=f"rank {last}"):
        call(np.ones(100_000))
    assert time.monotonic() - begun < 10
    comm_dead = pytest.raises(CommunicatorDead, match=f"rank {last}")
    with comm_dead:
        call(np.ones(100_000))
    if comm.rank == 0:
        os.kill(pids[last], signal.SIGCONT)


def meets(comm: hocket.Communicator) -> None:
    """What a rank raises while it meets others ends the meeting of all."""
    for what, raised, said in (
        ("trace.begin", KeyboardInterrupt(), "was interrupted"),
        ("gather", KeyboardInterrupt(), "was interrupted"),
        ("gather", ZeroDivisionError("by 0"), "raised ZeroDivisionError: by 0"),
    ):
        patched = mock.patch(f"hocket.runtime.nodes.{what}", side_effect=raised) if comm.rank == 1 else nullcontext()
        expected = pytest.raises(type(raised) if comm.rank == 1 else BootstrapFailed)
        with patched, expected as error:
            hocket.init(2, mpi=MPI.COMM_WORLD)
        assert comm.rank == 1 or re.search(f"rank 1:? {said}", str(error.value))
    comm.barrier()


def leaves(comm: hocket.Communicator) -> None:
    """A rank that closes its communicator is named where it is still needed."""
    comm.barrier()
    if comm.rank == comm.size - 1:
        comm.close()
        return
    with pytest.raises(PeerFailed, match=f"rank {comm.size - 1} closed"):
        comm.all_reduce(np.ones(100_000))


def places(comm: hocket.Communicator) -> None:
    """Ranks know the nodes that HOCKET_NODES gives them, and make no further communicators."""
    given = os.environ["HOCKET_NODES"]
    if "+" in given:
        ends = np.cumsum([0, *map(int, given.split("+"))])
        assert comm.nodes == tuple(tuple(range(a, b)) for a, b in pairwise(ends)), comm.nodes
    assert [node[comm.local_rank] for node in comm.nodes if comm.rank in node] == [comm.rank]


def cut(comm: hocket.Communicator) -> None:
    """The network is cut in a call, once rank 0 has said that calls go on. Every rank says what it raises, and when.

    What they say goes into the pipe HOCKET_TEST_PIPE, a line each. This job never ends.
    """
    pipe = os.open(os.environ["HOCKET_TEST_PIPE"], os.O_WRONLY)
    call, x = comm.prepare("all_reduce", 100_000, "float64", in_place=True, timeout=2), np.ones(100_000)
    for number in count():
        if number == 10 and comm.rank == 0:
            os.write(pipe, b"calls\n")
        begun = time.monotonic()
        try:
            call(x)
        except HocketError as error:
            os.write(pipe, f"{comm.rank} {time.monotonic() - begun:.2f} {error}".replace("\n", " ").encode() + b"\n")
            break
    signal.pause()


def finds(comm: hocket.Communicator) -> None:
    """Ranks that a launcher has started on several machines meet over MPI without being told to."""
    with hocket.init(60) as found:
        assert (found.rank, found.nodes) == (comm.rank, comm.nodes)
        np.testing.assert_array_equal(found.all_gather(np.array([comm.rank])), np.arange(comm.size))


def parts(comm: hocket.Communicator) -> None:
    """Communicators of some ranks, on one node or several, and messages between two ranks."""
    size, me = comm.size, comm.rank
    node_of = [next(n for n, node in enumerate(comm.nodes) if r in node) for r in range(size)]
    for color, key in ((0, -me), (me % 2, me), (node_of[me], 0), (None if me == size - 1 else 1, 0)):
        colors = [tuple(pair) for pair in comm.all_gather(np.array([[-1 if color is None else color, key]]))]
        part = comm.split(color, key)
        if part is None:
            assert color is None
            continue
        ranks = [r for _, r in sorted((k, r) for r, (c, k) in enumerate(colors) if c == color)]
        assert (part.size, part.rank) == (len(ranks), ranks.index(me))
        assert {frozenset(ranks[r] for r in node) for node in part.nodes} == {
            frozenset(r for r in ranks if node_of[r] == n) for n in {node_of[r] for r in ranks}
        }
        for n in (3, 100_003):
            total = part.all_reduce(np.full(n, float(me)))
            np.testing.assert_array_equal(total, np.full(n, float(sum(ranks))))
        part.close()
    again = [comm.subgroup([size - 1, 0], tag) for tag in ("a", "b", "a")] if me in (0, size - 1) else []
    for group in again:
        assert group.broadcast(np.array([me])).tolist() == [size - 1]
        group.close()
    with comm.dup() as other:
        np.testing.assert_array_equal(other.all_gather(np.array([me])), np.arange(size))
    for n in (1, 100_003):
        for step in range(1, size):
            to, source = (me + step) % size, (me - step) % size
            got = comm.sendrecv(np.full(n, me), to, np.empty(n, int), source)
            assert (got == source).all()


if __name__ == "__main__":
    comm = hocket.init(60, mpi=MPI.COMM_WORLD)
    try:
        for name in sys.argv[1:]:
            globals()[name](comm)
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)  # the others wait for this rank
    MPI.COMM_WORLD.Barrier()
    comm.close()
    print("right", flush=True)
