"""One rank of one library, for peers.py, which starts it: ``peers_worker.py LIBRARY JOB.json``.

Needs only NumPy beside the library. An iteration is: the barrier, a reading of CLOCK_MONOTONIC, the call, a second
reading. Barrier and loop are the same code for all libraries; what a library's call needs is bound before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import statistics
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Bound = tuple[Callable[[], object], Array]
"""A call without arguments, and where its result will be."""

BLOCKWISE = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives with a block for each rank."""

ITEM = 4  # bytes of a float32
PERIOD = 4099  # elements after which inputs repeat: a prime, so that no block looks like another
LINE = 16  # words from one rank's counter to the next, as in peers_native.cpp
BARRIERS = 64  # that are timed for a cell
SPARSE = 4160  # bytes between the starts of small buffers in the cold regime: a page, and a line so that sets differ


@dataclass(frozen=True)
class Job:
    """What the ranks of one launch do. ``bytes`` are those of a rank's larger buffer.

    ``segment``: a path to the memory they share. ``cores``: rank r is pinned to core ``r % len(cores)`` of these.
    ``cache``: bytes of the last-level cache. A cell has ``least`` to ``most`` calls, as many as take ``seconds``, and
    is measured in each of ``rounds``. ``turn`` and ``next``: see Turns.
    """

    collective: str
    bytes: list[int]
    ranks: int
    cores: list[int]
    cache: int
    seconds: float
    warmups: int
    least: int
    most: int
    segment: str
    native: str
    result: str
    rounds: int = 1
    turn: str = ""
    next: str = ""
    first: bool = True


@dataclass(frozen=True)
class Cell:
    """Microseconds of the slowest rank of each iteration; ``wrong`` elements over all ranks, before and after.

    On a machine that others use too, ``p5`` is the one of the three that they disturb least. ``barrier``: what the
    barrier took then, which is how fast cores exchange a line.
    """

    regime: str
    bytes: int
    p5: float
    median: float
    p95: float
    iterations: int
    wrong: int
    barrier: float
    round: int = 0


@dataclass(frozen=True)
class Result:
    """``alone``: median microseconds of the same call on 4 bytes in a group of one rank, which is Python's part."""

    version: str
    alone: float
    cells: list[Cell] = field(default_factory=list)


# Libraries: a class for each. `bind` may return x as the result where the interface has only that one buffer.


class Library:
    """``rank`` of this process; ``version`` as the library tells it."""

    rank: int
    version: str
    cold = False  # whether the calls to come are on buffers that no cache holds

    def empty(self, elements: int) -> Array:
        """Memory of the kind that this contender's buffers are made of."""
        return np.empty(elements, np.float32)

    def bind(self, collective: str, x: Array, out: Array) -> Bound:
        raise NotImplementedError

    def alone(self) -> Library:
        """The same for a group of this rank only."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing, where the end of the process is enough."""


class Hocket(Library):
    """Private buffers."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.version = comm, comm.rank, metadata.version("hocket")

    @classmethod
    def open(cls) -> Self:
        import hocket

        return cls(hocket.init())

    def bind(self, collective: str, x: Array, out: Array) -> Bound:
        call = getattr(self.comm, collective)
        return (partial(call, x), x) if collective == "broadcast" else (partial(call, x, out), out)

    def alone(self) -> Library:
        return type(self)(self.comm.split(self.rank))

    def close(self) -> None:
        self.comm.close()


class HocketShared(Hocket):
    """Buffers that all ranks can reach."""

    def empty(self, elements: int) -> Array:
        found: Array = self.comm.empty(elements, np.float32)
        return found


class Mpi(Library):
    """mpi4py. Threads are off: with THREAD_MULTIPLE, MPICH leaves its fast path."""

    def __init__(self, comm: Any, version: str) -> None:
        self.comm, self.rank, self.version = comm, comm.rank, version

    @classmethod
    def open(cls) -> Self:
        import mpi4py

        mpi4py.rc(threads=False)
        from mpi4py import MPI

        version = MPI.Get_library_version().splitlines()[0].partition(",")[0].strip("\0 ")
        return cls(MPI.COMM_WORLD, f"{version}, mpi4py {mpi4py.__version__}")

    def bind(self, collective: str, x: Array, out: Array) -> Bound:
        comm = self.comm
        if collective == "broadcast":
            return partial(comm.Bcast, x), x
        if collective == "reduce":
            return partial(comm.Reduce, x, out if comm.rank == 0 else None), out
        calls = {
            "all_reduce": comm.Allreduce,
            "all_gather": comm.Allgather,
            "reduce_scatter": comm.Reduce_scatter_block,
            "all_to_all": comm.Alltoall,
        }
        return partial(calls[collective], x, out), out

    def alone(self) -> Library:
        from mpi4py import MPI

        return Mpi(MPI.COMM_SELF, self.version)


class Gloo(Library):
    """torch.distributed. all_reduce and reduce have one buffer, which they overwrite."""

    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as dist

        self.dist, self.tensor, self.group = dist, torch.from_numpy, group
        self.rank, self.version = dist.get_rank(), f"torch {torch.__version__}"

    @classmethod
    def open(cls) -> Self:
        import torch.distributed as dist

        rank, size, token = (os.environ[f"HOCKET_{name}"] for name in ("RANK", "SIZE", "RENDEZVOUS"))
        meeting = Path(sys.argv[2]).with_name(f"gloo-{token}").absolute()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
        return cls(dist.group.WORLD)

    def bind(self, collective: str, x: Array, out: Array) -> Bound:
        dist, group = self.dist, self.group
        source, target = self.tensor(x), self.tensor(out)
        if collective == "all_reduce":
            return partial(dist.all_reduce, source, group=group), x
        if collective == "broadcast":
            return partial(dist.broadcast, source, group=group, group_src=0), x
        if collective == "reduce":
            return partial(dist.reduce, source, group=group, group_dst=0), x
        calls = {
            "all_gather": dist.all_gather_single,
            "reduce_scatter": dist.reduce_scatter_single,
            "all_to_all": dist.all_to_all_single,
        }
        return partial(calls[collective], target, source, group=group), out

    def alone(self) -> Library:
        return Gloo(self.dist.new_group([self.rank], use_local_synchronization=True))

    def close(self) -> None:
        self.dist.destroy_process_group()


class Part(ctypes.Structure):
    """As in peers_native.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "to", "also")] + [("elements", ctypes.c_size_t)]


class Call(ctypes.Structure):
    """As in peers_native.cpp."""

    _fields_ = [
        ("mine", ctypes.c_void_p),
        ("theirs", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("boxes", ctypes.c_void_p * 2),
        ("elements", ctypes.c_size_t),
        ("parts", Part * 2 * 2),
        ("past", ctypes.c_bool),
    ]


class Bare(HocketShared):
    """No library: the least that two cores must do, from a function of Python that looks at nothing.

    A rank says that it is there, waits for the other, does its half on both ranks' buffers, says that it is done and
    waits for the other. A short message goes to a place beside, and nobody waits in the end.
    """

    BOX = 4 << 10  # bytes of a short message at most
    SHORT = 256  # of one in hot calls, whose arrays are in the caches of both
    PAST = 64 << 10  # bytes of the larger buffer from which on cold calls store non-temporally
    HELD = 16 << 20  # and hot ones

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        if comm.size > 2:
            raise ValueError("this is for two ranks")
        self._native = ctypes.PyDLL(Job(**json.loads(Path(sys.argv[2]).read_text())).native)
        self._native.bare.restype, self._native.bare.argtypes = ctypes.py_object, (ctypes.POINTER(Call),)
        self._native.reach.restype = ctypes.c_void_p
        self._native.reach.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t)
        self._reached: list[tuple[int, int, int]] = []  # addresses where an array begins and ends, and the other rank's
        self._calls: list[Call] = []
        self._desk = aligned(self, (4 * self.BOX) // ITEM)  # lines, then boxes
        self._desk.fill(0)
        comm.barrier()

    def empty(self, elements: int) -> Array:
        array = super().empty(elements)
        begin, huge = array.ctypes.data, 2 << 20
        if self.comm.size == 1:
            self._reached.insert(0, (begin, begin + array.nbytes, begin))
            return array
        array.fill(0)
        with Path("/proc/self/maps").open() as maps:
            for line in maps:
                span, _, offset, _, inode = line.split()[:5]
                low, high = (int(end, 16) for end in span.split("-"))
                if low <= begin < high:
                    break
        files = (link for link in Path("/proc/self/fd").iterdir() if link.exists())
        file = next(int(link.name) for link in files if link.stat().st_ino == int(inode))
        mine = np.array([os.getpid(), file, int(offset, 16) + begin - low])
        process, file, place = self.comm.all_gather(mine)[3 * (1 - self.rank) :][:3].tolist()
        first = place // huge * huge
        count = -(-(place + array.nbytes - first) // huge) * huge
        base = self._native.reach(f"/proc/{process}/fd/{file}".encode(), first, count)
        if base is None:
            raise OSError("the other rank's array cannot be mapped")
        self._reached.insert(0, (begin, begin + array.nbytes, base + place - first))
        return array

    def _theirs(self, address: int) -> int:
        return next(other + address - begin for begin, end, other in self._reached if begin <= address < end)

    def bind(self, collective: str, x: Array, out: Array) -> Bound:
        result = x if collective == "broadcast" else out
        me, other = self.rank, 1 - self.rank
        source, target, elements = x.ctypes.data, out.ctypes.data, max(x.size, out.size)
        desk = self._desk.ctypes.data
        if self.comm.size == 1:
            call = Call(desk, desk, source, (desk + self.BOX,) * 2, x.size)
            self._calls.append(call)
            return self._native.bare(call), result
        half, reached = elements // 2, self._theirs(desk)
        block, size = ITEM * half, ITEM * elements
        silent = {"broadcast": 1, "reduce": 0}.get(collective) == me
        blockwise = collective in ("reduce_scatter", "all_to_all")  # the other rank needs only its block
        message = 0 if silent else half if blockwise else x.size
        call = Call(desk, reached, source + blockwise * other * block, elements=message)
        if size <= (self.BOX if self.cold else self.SHORT):
            for odd in range(2):
                at = self.BOX * (1 + odd)
                call.boxes[odd], box = desk + at, reached + at
                call.parts[odd][0] = {
                    "all_reduce": Part(source, box, target, None, elements),
                    "all_gather": Part(source, None, target + me * block, None, half),
                    "reduce_scatter": Part(source + me * block, box, target, None, half),
                    "broadcast": Part(box, None, source, None, elements * me),
                    "reduce": Part(source, box, target, None, elements * other),
                    "all_to_all": Part(source + me * block, None, target + me * block, None, half),
                }[collective]
                if collective in ("all_gather", "all_to_all"):
                    call.parts[odd][1] = Part(box, None, target + other * block, None, half)
        else:
            theirs, result_there = self._theirs(source), self._theirs(target) if out.size else 0
            cut = half // 16 * 16  # rank 0 works on what is before, in whole lines
            mine, count = ITEM * cut * me, elements - cut if me else cut
            own = me * block
            call.parts[0][0] = call.parts[1][0] = {
                "all_reduce": Part(source + mine, theirs + mine, target + mine, result_there + mine, count),
                "all_gather": Part(source, None, target + own, result_there + own, half),
                "reduce_scatter": Part(source + own, theirs + own, target, None, half),
                "broadcast": Part(theirs, None, source, None, cut)
                if me
                else Part(source + ITEM * cut, None, theirs + ITEM * cut, None, elements - cut),
                "reduce": Part(source + mine, theirs + mine, (result_there if me else target) + mine, None, count),
                "all_to_all": Part(source + own, None, target + own, None, half),
            }[collective]
            if collective == "all_to_all":
                last = Part(theirs + own, None, target + other * block, None, half)
                call.parts[0][1] = call.parts[1][1] = last
            aligned_blocks = collective not in BLOCKWISE or block % 64 == 0
            call.past = aligned_blocks and size >= (self.PAST if self.cold else self.HELD)
        self._calls.append(call)
        return self._native.bare(call), result


LIBRARIES: dict[str, Callable[[], Library]] = {
    "hocket": Hocket.open,
    "hocket-shared": HocketShared.open,
    "bare": Bare.open,
    "mpi": Mpi.open,
    "gloo": Gloo.open,
}


# Inputs and results


def values(rank: int, begin: int, count: int) -> Array:
    """Elements [begin, begin + count) of a rank's input: small whole numbers, whose sums are exact in any order."""
    period = np.random.default_rng(rank).integers(-8, 9, PERIOD).astype(np.float32)
    return np.resize(np.roll(period, -begin), count)


def lengths(collective: str, ranks: int, elements: int) -> tuple[int, int]:
    """Elements of ``x`` and ``out`` where the larger has ``elements``."""
    block = elements // ranks
    return {
        "all_gather": (block, elements),
        "reduce_scatter": (elements, block),
        "broadcast": (elements, 0),
    }.get(collective, (elements, elements))


def expected(collective: str, rank: int, ranks: int, elements: int) -> Array | None:
    """The result on a rank; None where it has none."""
    block = elements // ranks
    if collective == "broadcast":
        return values(0, 0, elements)
    if collective == "all_gather":
        return np.concatenate([values(r, 0, block) for r in range(ranks)])
    if collective == "all_to_all":
        return np.concatenate([values(r, rank * block, block) for r in range(ranks)])
    if collective == "reduce" and rank:
        return None
    begin, count = (rank * block, block) if collective == "reduce_scatter" else (0, elements)
    total = values(0, begin, count)
    for r in range(1, ranks):
        total += values(r, begin, count)
    return total


# Measuring


class Team:
    """The ranks of a launch, whatever their library: a barrier, and a few words that all can read."""

    @staticmethod
    def segment_bytes(ranks: int, most: int) -> int:
        return 8 * ranks * (LINE + most)

    def __init__(self, job: Job, rank: int) -> None:
        """``eviction``: to be read, so that nothing else is in the caches."""
        self.job, self.rank = job, rank
        descriptor = os.open(job.segment, os.O_RDWR)
        words = np.frombuffer(mmap.mmap(descriptor, self.segment_bytes(job.ranks, job.most)), np.int64)
        os.close(descriptor)
        self._lines = words[: job.ranks * LINE].reshape(job.ranks, LINE)
        self._table = words[job.ranks * LINE :].reshape(job.ranks, job.most)
        self.eviction = np.ones(4 * job.cache // ITEM, np.float32)
        # PyDLL: the lock of the interpreter is kept, so a call costs as little as it can.
        self.native = ctypes.PyDLL(job.native)
        self.barrier = partial(self.native.barrier, ctypes.c_void_p(self._lines.ctypes.data), rank, job.ranks)

    def all(self, mine: list[int]) -> NDArray[np.int64]:
        """What each rank gives, as many words from each: shape (ranks, words)."""
        self.barrier()
        self._table[self.rank, : len(mine)] = mine
        self.barrier()
        found = self._table[:, : len(mine)].copy()
        self.barrier()
        return found


class Turns:
    """A cell is measured in a ``with`` of it, while all other jobs of a ring sleep: each then measures the same cell.

    A rank that sleeps reads from a named pipe, ``turn`` and its number, and its job's turn ends as it writes to that of
    the same rank of the next job. The first job's first turn comes when all jobs have opened their libraries.
    """

    def __init__(self, job: Job, rank: int) -> None:
        names = (job.turn, job.next) if job.turn else ()
        self._pipes = [os.open(f"{name}-{rank}", os.O_RDWR) for name in names]
        if not job.first:
            self.__enter__()
        self.__exit__()

    def __enter__(self) -> None:
        if self._pipes:
            os.read(self._pipes[0], 1)

    def __exit__(self, *_: object) -> None:
        if self._pipes:
            os.write(self._pipes[1], b".")


def timed(calls: list[Callable[[], object]], barrier: Callable[[], object]) -> list[int]:
    """Nanoseconds of each call on this rank."""
    found = []
    for call in calls:
        barrier()
        begin = perf_counter_ns()
        call()
        found.append(perf_counter_ns() - begin)
    return found


def aligned(library: Library, elements: int) -> Array:
    """Memory that begins with a cache line."""
    memory = library.empty(elements + 64 // ITEM)
    skip = -memory.ctypes.data % 64 // ITEM
    return memory[skip : skip + elements]


class Buffers:
    """Pairs of buffers, and the calls on them. Hot: one pair. Cold: a ``lap`` goes over many, none twice.

    Before each lap the inputs are rewritten and 4x the last-level cache is read; the pairs of a lap span as much too,
    unless the cell ends first.
    """

    def __init__(self, team: Team, library: Library, size: int, cold: bool) -> None:
        job = team.job
        self._team, self._cold, self._elements, self._next = team, cold, size // ITEM, 0
        library.cold = cold
        shape = lengths(job.collective, job.ranks, self._elements)
        strides = [max(-(-length // 16) * 16, SPARSE // ITEM) if cold else length for length in shape]
        count = min(4 * job.cache // (max(strides) * ITEM) + 1, job.most) if cold else 1
        self._inputs, self._outputs = (aligned(library, stride * count) for stride in strides)
        for array in (self._inputs, self._outputs):
            array.fill(1)
        (x, out), (x_stride, out_stride) = shape, strides
        bound = [
            library.bind(job.collective, self._inputs[at * x_stride :][:x], self._outputs[at * out_stride :][:out])
            for at in range(count)
        ]
        self._calls = [call for call, _ in bound] * (1 if cold else job.most)
        self.lap = count
        self._input, self._result = self._inputs[:x], bound[0][1]

    def run(self, count: int) -> NDArray[np.int64]:
        """Nanoseconds that the slowest rank took for each of ``count`` more calls."""
        found: list[int] = []
        while len(found) < count:
            if self._cold and self._next == 0:
                self._inputs.fill(self._team.rank + 1)
                self._team.eviction.max()
            some = self._calls[self._next :][: count - len(found)]
            self._next = (self._next + len(some)) % len(self._calls)
            found += timed(some, self._team.barrier)
        slowest: NDArray[np.int64] = self._team.all(found).max(axis=0)
        return slowest

    def wrong(self) -> int:
        """Elements that one call leaves wrong on this rank."""
        job, rank = self._team.job, self._team.rank
        self._outputs.fill(np.nan)
        given = job.collective != "broadcast" or rank == 0
        self._input[:] = values(rank, 0, len(self._input)) if given else np.nan
        self._team.barrier()
        self._calls[0]()
        wanted = expected(job.collective, rank, job.ranks, self._elements)
        return 0 if wanted is None else int(np.count_nonzero(self._result != wanted))


def measure(team: Team, library: Library, size: int, cold: bool) -> list[Cell]:
    """The cells of one size, hot, or cold and before that the first lap.

    Every time twice as many calls, until the ranks, who all see the same times, have enough.
    """
    job, cells = team.job, []

    def add(regime: str, slowest: NDArray[np.int64], wrong: int) -> None:
        p5, median, p95 = (float(found) / 1e3 for found in np.percentile(slowest, (5, 50, 95)))
        barrier = statistics.median(timed([team.barrier] * BARRIERS, lambda: None)) / 1e3
        cells.append(Cell(regime, size, p5, median, p95, len(slowest), int(team.all([wrong]).sum()), barrier))

    buffers = Buffers(team, library, size, cold)
    first = buffers.run(buffers.lap)
    wrong = buffers.wrong()
    if cold:
        add("first", first, wrong)
    buffers.run(job.warmups)
    slowest = buffers.run(job.least)
    while slowest.sum() < job.seconds * 1e9 and len(slowest) < job.most:
        slowest = np.append(slowest, buffers.run(min(len(slowest), job.most - len(slowest))))
    add("cold" if cold else "hot", slowest, wrong + buffers.wrong())
    return cells


def alone(library: Library, collective: str, calls: int) -> float:
    """Median microseconds of a call on 4 bytes in a group of one rank."""
    own = library.alone()
    length, result = lengths(collective, 1, 1)
    call, _ = own.bind(collective, np.zeros(length, np.float32), np.zeros(result, np.float32))
    return statistics.median(timed([call] * calls, lambda: None)) / 1e3


def compare(job: Job, library: Library) -> Result:
    """All cells. Those of the regime "python" have 4 bytes, or blocks of so many."""
    team, turns = Team(job, library.rank), Turns(job, library.rank)
    with turns:
        result = Result(library.version, alone(library, job.collective, job.most))
    blocks = job.ranks if job.collective in BLOCKWISE else 1
    for number in range(job.rounds):
        with turns:
            (least,) = measure(team, library, ITEM * blocks, cold=False)
        result.cells.append(replace(least, regime="python", round=number))
        for size, cold in product(job.bytes, (False, True)):
            with turns:
                cells = measure(team, library, size, cold)
            result.cells.extend(replace(cell, round=number) for cell in cells)
    with turns:  # until the others have measured their last
        return result


def memory(job: Job, rank: int) -> dict[str, float]:
    """1e9 bytes a second that all ranks load and store together, by loop: the median over parts of the buffers.

    The three buffers are 4x the last-level cache each. A part is small, so that what else the machine does disturbs
    few of them, as it does few calls.
    """
    team, plain = Team(job, rank), Library()
    part, parts = job.cache // 4, 16
    buffers = [aligned(plain, part * parts // ITEM) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        buffer.fill(number)
    native, found = team.native, {}
    loops = {"copy": native.copy, "reduce": native.reduce, "non_temporal": native.copy_non_temporal}
    for name, loop in loops.items():
        calls = [
            partial(
                loop,
                *(ctypes.c_void_p(buffer.ctypes.data + at * part) for buffer in buffers),
                ctypes.c_size_t(part // ITEM),
            )
            for at in range(parts)
        ]
        slowest = team.all(timed(calls * job.least, team.barrier)).max(axis=0)
        moved = (3 if name == "reduce" else 2) * part * job.ranks
        found[name] = moved / float(np.median(slowest))
    return found


def main() -> None:
    name, path = sys.argv[1:]
    job = Job(**json.loads(Path(path).read_text()))
    ranks = ("HOCKET_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = int(next(os.environ[variable] for variable in ranks if variable in os.environ))
    os.sched_setaffinity(0, {job.cores[rank % len(job.cores)]})
    gc.disable()
    if name == "memory":
        found: dict[str, Any] = memory(job, rank)
    else:
        library = LIBRARIES[name]()
        found = asdict(compare(job, library))
        library.close()
    if rank == 0:
        Path(job.result).write_text(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: an MPI that is finalised waits for the other ranks, which wait in the barrier
