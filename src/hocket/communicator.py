"""Communicator: the ranks of a job, and the collectives they call. The facade of the runtime."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeVar, cast, overload

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from hocket.collectives import whole
from hocket.errors import (
    SIZES_HELP,
    CallMismatch,
    CallTimeout,
    CommunicatorDead,
    HocketError,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    WrongType,
    caller,
    describe,
)
from hocket.explain import Explanation, explain
from hocket.ir.schedule import Schedule
from hocket.ir.traffic import Traffic
from hocket.program import Contract
from hocket.runtime import arena, launch, machine
from hocket.runtime.adopted import Adopted as Adopted
from hocket.runtime.bootstrap import MOST_RANKS, MpiCommunicator, meet
from hocket.runtime.counts import Counts
from hocket.runtime.execution import VARIANTS, Endpoint, Key, brief, offer
from hocket.runtime.execution import CallCache as CallCache
from hocket.runtime.execution import Handle as Handle
from hocket.runtime.execution import PreparedCall as PreparedCall
from hocket.runtime.execution import wait_any as wait_any
from hocket.runtime.nodes import meet as meet_nodes
from hocket.runtime.nodes import world as mpi_world
from hocket.runtime.operands import Array, Omitted, Operand, Operands, element_type, name_of, operands_of
from hocket.runtime.operands import Buffer as Buffer
from hocket.runtime.stores import Store
from hocket.runtime.world import meet as meet_store
from hocket.tunables import CONFIG
from hocket.tuning import ITEM, KINDS, NAMED, PICKS, Call, Choice, Entry, Sizes, choose, declined, digest

if TYPE_CHECKING:
    from hocket.tuner.online import Online, TunedKey

Scalar = TypeVar("Scalar", bound=np.generic)
Result = TypeVar("Result")

Given = NDArray[Scalar] | None
"""An array, or none: a rank that has no input, a result whose place the call finds."""
Now = Literal[False]
Later = Literal[True]
"""Whether a call is in the background."""
Rows = Sequence[int] | None
"""``counts``: rows of the block of each rank."""
Pair = tuple[Sequence[int], Sequence[int]] | None
"""``counts`` of an AllToAll: rows to each rank, and from each."""

Entries = Callable[[int], tuple[Entry, ...]]
"""What communicators of a number of ranks take, before they say more by ``use``."""


_MOST_THREADS = 1 << 10  # of a rank


def _pickled(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(cloudpickle.dumps(value), np.uint8)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A call by name on one of some ranks, but for its arrays: the size of ``call`` is not known yet.

    ``reads`` and ``writes``: whether the rank has an input, and an output. ``rows``: what its ``counts`` mean.
    """

    call: Call
    op: str
    reads: bool
    writes: bool
    rows: Counts | None

    def operands(self, given: Operands) -> Operands:
        """Those that the schedule runs on, with the ``out`` that the caller need not give. Raises InvalidArgument.

        Without an input, ``x`` is looked at only where it must say what ``out`` is like.
        """
        x, out, between, omitted = given.x, given.out, given.between, Omitted.REFUSED
        if x is not None and (self.reads or out is None):
            shape, kind = self.shape(x.shape), self.call.kind
            if out is None and self.writes:
                if self.rows is None and kind.cuts == kind.joins:
                    out, between, omitted = x, 0, Omitted.X
                else:
                    out, omitted = Operand(shape, x.type), Omitted.FRESH
            elif out is not None and out.shape != shape:
                raise InvalidArgument(f"x of shape {x.shape} calls for an out of {shape}, not {out.shape}", caller())
        elif out is not None and self.rows is not None:
            self.rows.check_out(out.shape)
        return Operands(x, out, between, omitted) if self.reads else Operands(None, out, omitted=omitted)

    def bytes(self, operands: Operands) -> int | None:
        """Bytes of the larger buffer of a rank with most; None where not every rank knows it from its own arrays."""
        if self.rows is not None:
            return self.rows.bytes(operands)
        kind = self.call.kind
        operand, all_blocks = (operands.x, kind.cuts) if self.reads else (operands.out, kind.joins)
        blocks = self.call.ranks if kind.blocks and not all_blocks else 1
        return 0 if operand is None else operand.nbytes * blocks

    def shape(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """Of the result, from that of ``x``. Raises InvalidArgument."""
        kind, ranks = self.call.kind, self.call.ranks
        if self.rows is not None:
            return self.rows.shape(x)
        if not kind.blocks:
            return x
        rows = x[0] if x else 1
        if kind.cuts:
            if not x or rows % ranks:
                raise InvalidArgument(f"x of shape {x} does not make {ranks} blocks of one size along axis 0", caller())
            rows //= ranks
        return (rows * ranks if kind.joins else rows, *x[1:])

    def laid(self, x: Operand, rank: int, in_place: bool) -> Operands:
        """Of arrays that lie in place, or apart."""
        found, kind = self.operands(Operands(x, None)), self.call.kind
        if in_place and (found.out is None or kind.cuts == kind.joins):
            if self.rows is not None and found.out is not None:
                raise InvalidArgument(f"with counts, x and out of {self.call.name} must lie apart", caller())
            return found
        if in_place and found.x is not None and found.out is not None:
            if self.rows is None:
                ahead = rank * min(found.x.nbytes, found.out.nbytes)
            else:
                ahead = self.rows.own(rank) * math.prod(x.shape[1:]) * x.type.itemsize
            return replace(found, between=ahead if kind.cuts else -ahead, omitted=Omitted.REFUSED)
        known = found.out is None or found.out.type.dtype is not None  # NumPy can allocate it
        return replace(found, between=None, omitted=Omitted.FRESH if known else Omitted.REFUSED)


def _called(choice: Choice) -> str:
    """A call by name as its user would write it, but for the arrays."""
    call, words = choice.call, []
    if not (call.kind.reads and call.kind.writes):
        words.append(f"root={call.root}")
    if call.reproducible is not None:
        words.append(f"reproducible={call.reproducible!r}")
    return f"{call.name}({', '.join(words)})" if words else call.name


class Communicator:
    """The processes that ``hocket.init()`` brought together. All make the same calls in the same order.

    A rank whose arguments are wrong, or that calls something else, makes every rank raise before anything is written,
    and the communicator goes on working. A rank that ends, raises or leaves while it is needed makes every other
    raise PeerFailed, and the communicator is dead.

    With ``async_=True`` a call returns a Handle at once and goes on in the background, on a thread that needs nothing
    of Python. Calls are made one after the other, in their order; one that is not in the background waits for those
    that are. Until ``wait`` has returned, or ``done`` has said so, its arrays must be neither read nor written. It goes
    on where its handle, or even the communicator, is dropped; it ends where the communicator is closed.
    Wrong arguments raise at once on the rank that gave them, everything else in ``wait``.

    Threads make one call at a time: while one is in a call, or as it starts one in the background, another raises
    CommunicatorBusy, and its call was not made. Calls in the background wait their turn, whichever thread starts them.
    Calls have one order, the same on every rank, so threads agree on whose is next, or have a ``dup`` each.
    ``send`` and ``recv`` are refused only where another thread has the same partner, in the same direction.
    ``subgroup``, ``abort``, ``close``, ``traffic``, ``empty`` and handles are for any thread at any time.

    In the collectives that have a name, ``out`` has exactly the shape of the result. Arrays lie apart, or in place as
    NCCL has it: ``x`` and ``out`` are the same, or one is the own block of the other. The default schedule of a
    collective is compiled when it is first called, and kept.

    With ``counts``, blocks have rows of their own along axis 0, or none: rank r contributes, or gets, ``counts[r]``,
    and all ranks give the same counts. Only in ``all_to_all`` each gives its own, a pair: the rows that it sends to
    each rank, and those that it gets from each; a rank whose blocks are of one size may give none. CallMismatch where
    these do not fit together.
    """

    def __init__(self, endpoint: Endpoint, configured: Entries = lambda _: (), *, tuned: bool = True) -> None:
        self._endpoint = endpoint
        self._configured = configured
        self._entries = configured(endpoint.size)
        self._schedules: dict[Key, Schedule] = {}
        self._online = self._tuner() if tuned else None
        self._cache = endpoint.cached(self._slow_path)
        self._call = self._cache.call
        self._lines: dict[tuple[int, int], Communicator] = {}  # of two ranks, by sender and receiver

    @property
    def rank(self) -> int:
        """This process, from 0."""
        return self._endpoint.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._endpoint.size

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node: those that share memory. Nodes come in the order of their lowest ranks."""
        numbers = self._endpoint.nodes or (0,) * self.size
        return tuple(tuple(r for r in range(self.size) if numbers[r] == n) for n in range(max(numbers) + 1))

    @property
    def local_rank(self) -> int:
        """This process among the ranks of its node, from 0."""
        return next(ranks.index(self.rank) for ranks in self.nodes if self.rank in ranks)

    @overload
    def run(
        self,
        schedule: Schedule,
        x: Given[Scalar],
        out: Given[Scalar] = None,
        *,
        op: str = "sum",
        tile: int | None = None,
        async_: Now = False,
    ) -> NDArray[Scalar] | None: ...
    @overload
    def run(
        self,
        schedule: Schedule,
        x: Given[Scalar],
        out: Given[Scalar] = None,
        *,
        op: str = "sum",
        tile: int | None = None,
        async_: Later,
    ) -> Handle[NDArray[Scalar] | None]: ...
    def run(
        self,
        schedule: Schedule,
        x: Array | None,
        out: Array | None = None,
        *,
        op: str = "sum",
        tile: int | None = None,
        async_: bool = False,
    ) -> object:
        """Run a schedule. Returns the result, or None on a rank that has no output.

        A collective has units of n elements: ``x`` has ``schedule.collective.input_blocks(rank) * n`` elements, ``out``
        ``output_blocks(rank) * n``; either is None where it has none. They are C-contiguous arrays. Without
        ``out`` an in-place schedule whose input and output are of one size works in ``x``; otherwise ``out`` is
        allocated, joined along axis 0. ``x`` is never written unless the result lies in it. ``tile``: bytes of a chunk
        that move at a time, a power of two from 64 bytes to 256 MB; no more than a chunk needs, nor than leaves the
        slots of a connection below 1 GB; None: chosen.

        A collective that only moves data takes elements of any type and size but references to objects, of one type on
        all ranks. Others combine:

        =====================================  =====================================================
        type                                   op
        =====================================  =====================================================
        bool                                   sum, prod, min, max, band, bor, bxor, land, lor, lxor
        int8, int16, int32, int64              sum, prod, min, max, band, bor, bxor, land, lor, lxor
        uint8, uint16, uint32, uint64          sum, prod, min, max, band, bor, bxor, land, lor, lxor
        float16, bfloat16, float32, float64    sum, prod, min, max, avg
        complex64, complex128                  sum, prod, avg
        float32_int32, float64_int32           minloc, maxloc
        int64_int32, int32_int32, int16_int32  minloc, maxloc
        =====================================  =====================================================

        The last are pairs, a structure as C lays it out: ``np.dtype([("value", "f8"), ("index", "i4")], align=True)``
        is float64_int32, MPI's ``MPI_DOUBLE_INT``. minloc and maxloc give the least or greatest value with its index;
        of equal ones the lowest index, and a NaN goes before any number. land, lor and lxor give 0 or 1 where there is
        more than one rank.

        A schedule compiled with ``storage="peer"`` takes arrays of ``empty`` only, in place if its collective is.

        Integers wrap; of bool, sum is "or" and prod is "and"; min and max give NaN if any element is NaN. float16 and
        bfloat16 (of ml_dtypes) are combined in float32, and rounded to nearest even whenever a rank stores or sends
        the result of a step. avg is for collectives that sum over all ranks (AllReduce, ReduceScatter, Reduce): their
        sum, rounded to the type, is divided by the number of ranks (in float32 for 16 bits) and rounded again. The bits
        are the same on every processor, except those inside a NaN.

        Raises WrongType or InvalidArgument on a rank with wrong arguments and PeerRefused on the others, CallMismatch,
        UnevenSize, PeerFailed, CallTimeout, CommunicatorDead.
        """
        return self._endpoint.run(schedule, x, out, op, tile, async_)

    def use(self, schedule: Schedule, sizes: str | None = None) -> None:
        """From now on, take ``schedule`` in calls by name of its collective, and from its root, if it has one.

        Every rank calls it, with the same. ``sizes``: for which, as "32KB..3MB", both included, "..4KB", "1MB.." or
        "64KB"; bytes of the larger buffer of a rank with most, K = 1024; None: all, those that not every rank knows too
        (docs/schedules-by-size.md). What was said last counts first, what HOCKET_CONFIG says last. Calls that ask for
        bits that the schedule does not promise, or that it cannot be cut for, take what they would without it. Calls
        that were prepared before stay as they were prepared; communicators made of this one do not take it over.

        Raises WrongType or InvalidArgument on a rank with wrong arguments and PeerRefused on the others, CallMismatch
        where schedules or sizes differ, PeerFailed, CallTimeout, CommunicatorDead.
        """
        with self._endpoint.refusing():
            self._endpoint.require_fit(schedule)
            if schedule.collective.name not in [name.replace("_", "") for name in NAMED]:
                raise InvalidArgument(
                    f"{schedule.collective.name} is not called by name, only {', '.join(NAMED)}", caller()
                )
            if schedule.in_place():
                raise InvalidArgument(
                    f"the messages of {schedule.name} lie in its arrays, and calls by name are on any arrays",
                    caller(),
                    'compile it with storage="fifo"',
                )
            known = Sizes() if sizes is None else Sizes.parse(sizes) if isinstance(sizes, str) else None
            if known is None:
                raise InvalidArgument(f"{sizes!r} is no range of sizes", caller(), SIZES_HELP)
            entry = Entry(schedule, known, f"comm.use at {caller()}")
        self._endpoint.agree(schedule, str(entry.sizes))
        self._entries = (entry, *self._entries)
        self._cache.forget()

    @overload
    def all_reduce(
        self,
        x: NDArray[Scalar],
        out: Given[Scalar] = None,
        *,
        op: str = "sum",
        reproducible: Contract | None = None,
        async_: Now = False,
    ) -> NDArray[Scalar]: ...
    @overload
    def all_reduce(
        self,
        x: NDArray[Scalar],
        out: Given[Scalar] = None,
        *,
        op: str = "sum",
        reproducible: Contract | None = None,
        async_: Later,
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def all_reduce(
        self,
        x: Array,
        out: Array | None = None,
        *,
        op: str = "sum",
        reproducible: Contract | None = None,
        async_: bool = False,
    ) -> object:
        """Combine ``x`` of all ranks element by element; every rank gets the same bits. Works in ``x`` without ``out``.

        ``reproducible`` chooses a program that keeps a contract on the bits of sums: "across-ranks", which all keep;
        "across-sizes", where an element's bits do not depend on where it lies either; "rank-order", the sum from rank 0
        to the last, rounded once. Errors are those of ``run``.
        """
        return self._call("all_reduce", x, out, async_, op, 0, None, reproducible)

    @overload
    def all_gather(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, counts: Rows = None, async_: Now = False
    ) -> NDArray[Scalar]: ...
    @overload
    def all_gather(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, counts: Rows = None, async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def all_gather(self, x: Array, out: Array | None = None, *, counts: Rows = None, async_: bool = False) -> object:
        """Join ``x`` of all ranks along axis 0, on every rank: (n, ...) gives (size * n, ...), a scalar (size,).

        Allocates without ``out``. With ``counts``, ``x`` of rank r has ``counts[r]`` rows. Errors are those of ``run``.
        """
        return self._call("all_gather", x, out, async_, "sum", 0, counts, None)

    @overload
    def reduce_scatter(
        self,
        x: NDArray[Scalar],
        out: Given[Scalar] = None,
        *,
        op: str = "sum",
        counts: Rows = None,
        async_: Now = False,
    ) -> NDArray[Scalar]: ...
    @overload
    def reduce_scatter(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", counts: Rows = None, async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def reduce_scatter(
        self, x: Array, out: Array | None = None, *, op: str = "sum", counts: Rows = None, async_: bool = False
    ) -> object:
        """Combine ``x`` of all ranks; rank r gets block r of ``size`` along axis 0: (size * n, ...) gives (n, ...).

        Allocates without ``out``. With ``counts``, block r has ``counts[r]`` rows. Errors are those of ``run``;
        InvalidArgument where axis 0 does not divide.
        """
        return self._call("reduce_scatter", x, out, async_, op, 0, counts, None)

    @overload
    def all_to_all(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, counts: Pair = None, async_: Now = False
    ) -> NDArray[Scalar]: ...
    @overload
    def all_to_all(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, counts: Pair = None, async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def all_to_all(self, x: Array, out: Array | None = None, *, counts: Pair = None, async_: bool = False) -> object:
        """Block r of ``size`` along axis 0 goes to rank r, which joins what it gets in rank order.

        Works in ``x`` without ``out``. With ``counts``, a pair, block r has ``counts[0][r]`` rows and rank r sends
        ``counts[1][r]``; allocates without ``out``, which must lie apart. Errors are those of ``run``; InvalidArgument
        where axis 0 does not divide.
        """
        return self._call("all_to_all", x, out, async_, "sum", 0, counts, None)

    @overload
    def broadcast(
        self, x: Given[Scalar], out: Given[Scalar] = None, *, root: int = 0, async_: Now = False
    ) -> NDArray[Scalar]: ...
    @overload
    def broadcast(
        self, x: Given[Scalar], out: Given[Scalar] = None, *, root: int = 0, async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def broadcast(self, x: Array | None, out: Array | None = None, *, root: int = 0, async_: bool = False) -> object:
        """Every rank gets ``x`` of the root. Works in ``x`` without ``out``.

        Off the root ``x`` is not read: it may be None where there is an ``out``. Errors are those of ``run``.
        """
        return self._call("broadcast", x, out, async_, "sum", root, None, None)

    @overload
    def reduce(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", root: int = 0, async_: Now = False
    ) -> NDArray[Scalar] | None: ...
    @overload
    def reduce(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", root: int = 0, async_: Later
    ) -> Handle[NDArray[Scalar] | None]: ...
    @brief
    def reduce(
        self, x: Array, out: Array | None = None, *, op: str = "sum", root: int = 0, async_: bool = False
    ) -> object:
        """Combine ``x`` of all ranks element by element; the root gets the result, in ``x`` without ``out``.

        The other ranks get None; their ``x`` and ``out`` are not written. Errors are those of ``run``.
        """
        return self._call("reduce", x, out, async_, op, root, None, None)

    @overload
    def gather(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, root: int = 0, counts: Rows = None, async_: Now = False
    ) -> NDArray[Scalar] | None: ...
    @overload
    def gather(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, root: int = 0, counts: Rows = None, async_: Later
    ) -> Handle[NDArray[Scalar] | None]: ...
    @brief
    def gather(
        self, x: Array, out: Array | None = None, *, root: int = 0, counts: Rows = None, async_: bool = False
    ) -> object:
        """Join ``x`` of all ranks along axis 0, on the root: (n, ...) gives (size * n, ...), a scalar (size,).

        The root allocates without ``out``; the other ranks get None, their ``out`` is not written. With ``counts``,
        ``x`` of rank r has ``counts[r]`` rows. Errors are those of ``run``.
        """
        return self._call("gather", x, out, async_, "sum", root, counts, None)

    @overload
    def scatter(
        self, x: Given[Scalar], out: Given[Scalar] = None, *, root: int = 0, counts: Rows = None, async_: Now = False
    ) -> NDArray[Scalar]: ...
    @overload
    def scatter(
        self, x: Given[Scalar], out: Given[Scalar] = None, *, root: int = 0, counts: Rows = None, async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def scatter(
        self, x: Array | None, out: Array | None = None, *, root: int = 0, counts: Rows = None, async_: bool = False
    ) -> object:
        """Rank r gets block r of ``size`` along axis 0 of the root's ``x``: (size * n, ...) gives (n, ...).

        Off the root ``x`` is not read. It may be None where there is an ``out``; without one, the result is allocated
        for an ``x`` of this shape and type. With ``counts``, block r has ``counts[r]`` rows. Errors are those of
        ``run``; InvalidArgument where axis 0 does not divide.
        """
        return self._call("scatter", x, out, async_, "sum", root, counts, None)

    @overload
    def scan(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", async_: Now = False
    ) -> NDArray[Scalar]: ...
    @overload
    def scan(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", async_: Later
    ) -> Handle[NDArray[Scalar]]: ...
    @brief
    def scan(self, x: Array, out: Array | None = None, *, op: str = "sum", async_: bool = False) -> object:
        """Combine ``x`` of ranks 0 to r element by element on rank r. Works in ``x`` without ``out``.

        Added in the order of ranks. There is no op avg. Errors are those of ``run``.
        """
        return self._call("scan", x, out, async_, op, 0, None, None)

    @overload
    def exscan(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", async_: Now = False
    ) -> NDArray[Scalar] | None: ...
    @overload
    def exscan(
        self, x: NDArray[Scalar], out: Given[Scalar] = None, *, op: str = "sum", async_: Later
    ) -> Handle[NDArray[Scalar] | None]: ...
    @brief
    def exscan(self, x: Array, out: Array | None = None, *, op: str = "sum", async_: bool = False) -> object:
        """Combine ``x`` of the ranks before r element by element on rank r. Works in ``x`` without ``out``.

        Rank 0 gets None; its ``x`` and ``out`` are not written. Otherwise as ``scan``.
        """
        return self._call("exscan", x, out, async_, op, 0, None, None)

    def broadcast_object(self, value: Result | None = None, *, root: int = 0) -> Result:
        """Every rank gets the root's ``value``, by cloudpickle; the root its own. Off the root ``value`` is not read.

        Raises what pickling it raises, on the root, and PeerRefused on the others; otherwise as ``broadcast``. What
        unpickling raises concerns that rank alone.
        """
        mine = self.rank == root
        with self._endpoint.refusing():
            data = _pickled(value) if mine else np.empty(0, np.uint8)
        length = self.broadcast(np.array([data.size]), root=root)
        with self._endpoint.refusing():
            data = data if mine else np.empty(int(length[0]), np.uint8)
        self.broadcast(data, root=root)
        return cast("Result", value if mine else cloudpickle.loads(data.data))

    def all_gather_object(self, value: Result) -> list[Result]:
        """Copies of the values of all ranks, in rank order, on every rank, by cloudpickle.

        Raises what pickling one raises, on its rank, and PeerRefused on the others; otherwise as ``all_gather``. What
        unpickling raises concerns that rank alone.
        """
        with self._endpoint.refusing():
            data = _pickled(value)
        counts = self.all_gather(np.array([data.size])).tolist()
        joined = self.all_gather(data, counts=counts)
        return [cloudpickle.loads(part.data) for part in np.split(joined, np.cumsum(counts)[:-1])]

    def send(self, x: NDArray[Scalar], dest: int) -> None:
        """Send ``x`` to rank ``dest``, which takes it with ``recv``. Returns once ``x`` may be written again.

        Waits until ``dest`` receives. What one rank sends another arrives in order. Two ranks meet when the first of
        them first sends the other something. Raises CallMismatch on both where the receiver's array has another type or
        number of elements; InvalidArgument for a ``dest`` that is no other rank, and then nobody else is told;
        otherwise as ``run``.
        """
        with self._line(self.rank, self._other("dest", dest)) as line:
            line.broadcast(x)

    def recv(self, out: NDArray[Scalar], source: int) -> NDArray[Scalar]:
        """Take what rank ``source`` sends to this one, in ``out``. Returns ``out``; errors as in ``send``."""
        with self._line(self._other("source", source), self.rank) as line:
            return line.broadcast(None, out)

    def sendrecv(self, x: NDArray[Scalar], dest: int, out: NDArray[Scalar], source: int) -> NDArray[Scalar]:
        """``send`` and ``recv`` at once, so that ranks can shift around a ring. ``x`` and ``out`` lie apart.

        ``dest`` and ``source`` may both be this rank, which copies then. Returns ``out``; errors as in ``send``. Where
        only the receiving fails, ``x`` has been sent.
        """
        if whole(dest) == whole(source) == self.rank:
            with self._line(self.rank, self.rank) as line:
                return line.broadcast(x, out)
        dest, source = self._other("dest", dest), self._other("source", source)
        # All ranks meet in one order: otherwise those of a ring would wait for each other in a circle.
        for pair in sorted(((self.rank, dest), (source, self.rank))):
            with self._line(*pair):
                pass
        try:
            with self._line(self.rank, dest) as line:
                sent = line.broadcast(x, async_=True)
        except Exception as error:
            with self._line(source, self.rank) as line:
                line._endpoint.refuse(error)
        try:
            with self._line(source, self.rank) as line:
                if isinstance(out, np.ndarray) and np.may_share_memory(x, out):
                    line._endpoint.refuse(InvalidArgument("x and out overlap, and must lie apart", caller()))
                line.broadcast(None, out)
        except BaseException:
            with suppress(HocketError):
                sent.wait()
            raise
        with self._line(self.rank, dest):
            sent.wait()
        return out

    def _other(self, name: str, given: int) -> int:
        rank = whole(given)
        if rank is None or not 0 <= rank < self.size or rank == self.rank:
            raise InvalidArgument(
                f"{name} must be another rank in [0, {self.size}), not {given!r}",
                caller(),
                "sendrecv copies if dest and source are both this rank" if rank == self.rank else None,
            )
        return rank

    @contextmanager
    def _line(self, sender: int, receiver: int) -> Iterator[Communicator]:
        """The communicator of a sender, its rank 0, and a receiver, on which a message is a broadcast.

        Its errors name ranks as this communicator does, and what ends it ends this one.
        """
        self._endpoint.alive()
        called = sender, receiver
        line = self._lines.get(called)
        if line is None:
            line = self._lines[called] = Communicator(self._endpoint.pair(sender, receiver), tuned=False)
        try:
            yield line
        except PeerRefused as error:
            raise PeerRefused(called[error.rank], error.reason) from None
        except CallMismatch as error:
            messages = [call.partition(" (")[2].partition(" a unit")[0] for call in error.calls]
            calls = f"send ({messages[0]})", f"recv ({messages[1]})"
            raise CallMismatch(called[error.rank or 0], error.differs, calls, callers=called) from None
        except PeerFailed as error:
            self._endpoint.lose(called[error.rank], error.reason)
        except CallTimeout as error:
            self._endpoint.time_out(called[error.rank], error.seconds)
        except CommunicatorDead:
            self._endpoint.alive()  # says why
            raise
        except KeyboardInterrupt:
            self.abort("was interrupted")
            raise

    def _slow_path(
        self,
        name: str,
        x: NDArray[Scalar] | None,
        out: NDArray[Scalar] | None,
        async_: bool,
        op: str,
        root: int,
        counts: object,
        reproducible: Contract | None,
    ) -> object:
        """Prepare a call by name and make it: what is prepared ``_call`` knows from then on, and takes by itself."""
        try:
            entries = self._entries
            wanted = self._wanted(name, op, root, counts, reproducible)
            reads = wanted.reads or (out is None and wanted.writes)
            given = operands_of(x if reads else None, out if wanted.writes else None)
            operands = wanted.operands(given)
            call = self._prepared(wanted, operands, [self._endpoint.shares(operands, x, out)])
        except Exception as error:
            self._endpoint.refuse(error, async_)
        if entries is self._entries:  # no thread has called use() meanwhile
            self._cache.learn((name, x, out, async_, op, root, counts, reproducible), call)
        return call.start(x, out) if async_ else call(x, out)

    def prepare(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: str | type | np.dtype[np.generic],
        *,
        op: str = "sum",
        root: int = 0,
        counts: object = None,
        reproducible: Contract | None = None,
        in_place: bool = False,
        timeout: float | None = None,
        scale: float | None = None,
    ) -> PreparedCall:
        """A collective by name on arrays of one shape and type, decided once, to be called as often as wanted.

        ``shape`` is that of ``x``, for a broadcast or scatter on the root. ``dtype`` may be "bfloat16", which NumPy
        does not know, for calls on a ``Buffer``. With ``in_place``, ``x`` and ``out`` are the same, and ``out`` may be
        left out; or one is the own block of the other, and both are given. Otherwise they lie apart; without ``out``,
        each call allocates one. ``timeout`` takes the place of that of ``init`` in this call, on this rank. ``scale``,
        where there is an avg: the sum, rounded to the type, is multiplied by it (in float32 for 16 bits) and rounded
        again, in the same pass. The other options are those of the method of that name.

        No other rank has to take part: where another has prepared something else, the call raises. Raises WrongType,
        InvalidArgument and UnevenSize, on this rank alone, and CommunicatorDead.
        """
        wanted = self._wanted(name, op, root, counts, reproducible)
        x = Operand(arena.lengths(shape), element_type(dtype))
        operands = wanted.laid(x, self.rank, in_place)
        seconds = None if timeout is None else _seconds(timeout)
        return self._prepared(wanted, operands, [True, False], seconds, scale)

    def _prepare_arms(
        self, name: str, shape: int, dtype: np.dtype[np.generic], op: str, arms: TunedKey, *, in_place: bool
    ) -> list[PreparedCall]:
        """A collective by name on private arrays by each arm, as a tuner has it run."""
        choice, prepare = self._on_private(name, (shape,), dtype, op, in_place)
        return [prepare(*arms.choice(number, choice)) for number in range(len(arms.arms))]

    def _on_private(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], op: str, in_place: bool
    ) -> tuple[Choice, Callable[..., PreparedCall]]:
        """What a collective by name takes of the table on private arrays, and what prepares it, untuned."""
        wanted, x = self._wanted(name, op, 0, None, None), Operand(shape, element_type(dtype))
        operands = wanted.laid(x, self.rank, in_place)
        choice = choose(replace(wanted.call, size=wanted.bytes(operands), item=dtype.itemsize))
        return choice, partial(self._chosen, wanted, operands, [False], None, None)

    def _wanted(self, name: str, op: str, root: object, counts: object, reproducible: Contract | None) -> _Wanted:
        if name not in NAMED:
            raise InvalidArgument(f"there is no collective {name!r}, only {', '.join(NAMED)}", caller())
        if reproducible is not None and not isinstance(reproducible, str):
            raise WrongType(f"reproducible must be the name of a contract, not {name_of(reproducible)}", caller())
        kind, ranks, rank, rows = KINDS[name], self.size, whole(root), None
        if rank is None or not 0 <= rank < ranks:
            raise InvalidArgument(f"root must be in [0, {ranks}), not {root!r}", caller())
        is_root = rank == self.rank
        reads, writes = kind.reads or is_root, (kind.writes or is_root) and (kind.first or self.rank > 0)
        if counts is not None:
            if not kind.blocks:
                raise InvalidArgument(f"{name} takes no counts: it has no blocks", caller())
            if kind.exchanges:
                rows = Counts.exchange(counts, ranks)
            else:
                inputs, outputs = (ranks if kind.cuts else 1) * reads, (ranks if kind.joins else 1) * writes
                rows = Counts.agree(counts, ranks, self.rank, inputs, outputs)
        here = self._endpoint
        place = here.threads, here.sockets, here.nodes, here.oversubscribed, rows is not None, here.long_headers
        call = Call(name, ranks, None, rank, reproducible, *place, tuned=here.tuned)
        return _Wanted(call, op, reads, writes, rows)

    def _prepared(
        self,
        wanted: _Wanted,
        operands: Operands,
        kinds: Sequence[bool],
        timeout: float | None = None,
        scale: float | None = None,
    ) -> PreparedCall:
        """Choose and load what a call by name runs. ``kinds``: whether its arrays may be memory that ranks share."""
        operand = operands.x or operands.out
        item = ITEM if operand is None else operand.type.itemsize
        choice = choose(replace(wanted.call, size=wanted.bytes(operands), item=item), self._entries)
        prepare = partial(self._chosen, wanted, operands, kinds, timeout, scale)
        call = prepare(choice)
        if self._online is not None and choice.entry is None and operand is not None:
            key = self._online.of(choice.call, operand.type.name, wanted.op)
            if key is not None:
                call.tuned(key.native, lambda number: prepare(*key.choice(number, choice)), self._online.merge)
        return call

    def _chosen(
        self,
        wanted: _Wanted,
        operands: Operands,
        kinds: Sequence[bool],
        timeout: float | None,
        scale: float | None,
        choice: Choice,
        tile: int | None = None,
        zero_copy: bool = True,
    ) -> PreparedCall:
        """Load what was chosen for a call by name. ``tile``: instead of its own."""
        endpoint, item = self._endpoint, choice.call.item
        find = partial(endpoint.program, _called(choice))
        loaded = find(choice.key, choice.compile)
        bound = loaded.lowered.layout.bind(operands, wanted.rows)
        outlook, size = endpoint.expects(loaded, bound), choice.call.size
        eager = outlook is not None and outlook.one_round
        attaches = endpoint.attaches and wanted.op not in PICKS
        attaches = attaches and size is not None and outlook is not None and size >= outlook.attached_bytes

        def lends(shared: bool) -> bool:
            can = zero_copy and bound.n is not None and shared in kinds and (shared or attaches)
            return can and not declined(choice, eager, attached=not shared)

        shared, private = lends(True), lends(False)
        plans = [
            choice.zero_copy(find, inplace) if (shared or private) and bound.lies(inplace) else None
            for inplace in VARIANTS
        ]
        counted = None
        if wanted.call.kind.exchanges and wanted.rows is None:  # other ranks may give counts
            counted = loaded.apart if bound.apart else loaded.plan
            uneven = choose(replace(wanted.call, item=item, uneven=True), self._entries)
            if (uneven.entry, uneven.line, uneven.instances) != (choice.entry, choice.line, choice.instances):
                other = find(uneven.key, uneven.compile)
                if other.lowered.layout.bind(operands) == bound:  # else they mismatch
                    counted = other.plan
        tile = tile or choice.tile
        offered = offer(plans, bound, shared, private)
        return endpoint.prepare(loaded, bound, wanted.op, tile, offered, timeout, scale, counted)

    def _tuner(self) -> Online | None:
        """What chooses among arms, if HOCKET_TUNER asks for it."""
        if not self._endpoint.tuner.chooses or self.size == 1:
            return None
        from hocket.tuner.online import Online

        @cache
        def prepared(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], in_place: bool) -> PreparedCall:
            choice, prepare = self._on_private(name, shape, dtype, "sum", in_place)
            return prepare(choice)

        def call(name: str, x: NDArray[Scalar], *, in_place: bool) -> NDArray[Scalar] | None:
            return cast("NDArray[Scalar] | None", prepared(name, x.shape, x.dtype, in_place)(x))

        gather, broadcast = partial(call, "gather", in_place=False), partial(call, "broadcast", in_place=True)
        return Online(self._endpoint, gather, broadcast, machine.fingerprint())

    def _schedule(self, key: Key, compiled: Callable[[], Schedule]) -> Schedule:
        """A program, compiled here."""
        return self._schedules.get(key) or self._schedules.setdefault(key, compiled())

    def explain(self, name: str, nbytes: int, *, root: int = 0, reproducible: Contract | None = None) -> Explanation:
        """What a call by name runs, why, what it moves and how long it might take; nothing is called.

        ``nbytes``: bytes of the larger buffer of a rank with most, taken as float32, with the arrays that the call has
        without ``out``; ``shared`` is for such as ``empty`` makes. No other rank has to take part. The first time it
        measures memory for some tenths of a second, which is best done while other ranks do nothing. Raises
        InvalidArgument.
        """
        size = whole(nbytes)
        if size is None or size < 0 or size >> 62:
            raise InvalidArgument(f"nbytes must be a number of bytes below 2**62, not {nbytes!r}", caller())
        call = self._wanted(name, "sum", root, None, reproducible).call
        choice = choose(replace(call, size=size), self._entries)
        explained = explain(self._endpoint, choice, self._schedule, size)
        tuner = "" if self._online is None else self._online.why(choice.call, "float32", "sum")
        return replace(explained, tuner=tuner)

    @overload
    def empty(self, shape: int | Sequence[int], dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: str | type = ...) -> NDArray[np.generic]: ...
    def empty(self, shape: int | Sequence[int], dtype: object = np.float64) -> NDArray[np.generic]:
        """A new array, not initialised, in memory that the other ranks can map; C-contiguous, aligned to pages.

        Where the arrays of a collective are such, or views on such, on every rank, and are in place on every rank or
        apart on every rank, messages are read and written in them and copied nowhere in between. Only this rank
        allocates. The memory is used again once the last array on it is gone, and may be used after ``close``. After an
        error in the middle of a call another rank may, for a moment, still write to its arrays. What a child stores
        after fork is its own; until then it sees what its parent and the other ranks store: give it copies.

        Raises WrongType, InvalidArgument, MemoryError, CommunicatorDead.
        """
        self._endpoint.alive()
        return arena.empty(shape, dtype)

    def adopt(self, descriptor: int | None = None, address: int = 0, nbytes: int = 0) -> Adopted:
        """Have the other ranks read and write in memory that others made, as in arrays of ``empty``.

        Every rank calls it. ``nbytes`` bytes from ``address`` on are a mapping of ``descriptor``, an open file or
        memfd of this user: shared, and writeable. The descriptor may be closed afterwards. A rank that has nothing to
        adopt gives nothing. From then on arrays and buffers in that memory are as those of ``empty``, for this
        communicator alone, until ``close`` of what is returned. The memory must stay mapped until then, and ranks
        should not map the same bytes. A file that is cut off while ranks use it ends those with SIGBUS.

        Raises WrongType and InvalidArgument on a rank whose memory others cannot map, or that has adopted some of it
        before, MemoryError on one that has no room to map it, and PeerRefused on the others; no rank has adopted
        anything then. Also CallMismatch, PeerFailed, CallTimeout, CommunicatorDead and BootstrapFailed.
        """
        return self._endpoint.adopt(descriptor, address, nbytes)

    @overload
    def barrier(self, *, async_: Literal[False] = False, timeout: float | None = None) -> None: ...
    @overload
    def barrier(self, *, async_: Literal[True], timeout: float | None = None) -> Handle[None]: ...
    def barrier(self, *, async_: bool = False, timeout: float | None = None) -> object:
        """Return once every rank has called it. ``timeout``, in seconds, takes the place of that of ``init``.

        Raises InvalidArgument on a rank with a wrong one and PeerRefused on the others, CallMismatch, PeerFailed,
        CallTimeout, CommunicatorDead.
        """
        with self._endpoint.refusing(async_):
            seconds = None if timeout is None else _seconds(timeout)
        return self._endpoint.barrier(async_, seconds)

    def decline(self, reason: str) -> NoReturn:
        """In the place of a call: no rank makes it, and all raise Declined, this one too.

        So a library that has another way to do the same takes it on all ranks, though only one knows why. Where a rank
        refuses the call, the others raise PeerRefused instead.
        """
        self._endpoint.decline(reason)

    def cached(self, slow_path: Callable[..., object], tensors: type, lock: Lock) -> CallCache:
        """For integrations: a table of prepared calls on tensors, which are read without Python.

        ``tensors``: a type that has DLPack's ``__dlpack_c_exchange_api__``. The table's ``call`` takes eight arguments:
        a name, x and out, each a tensor or None, whether the call is in the background, and four options. If ``learn``
        was told before which prepared call belongs to them, it makes that one, as ``call(x, out)`` or ``call.start``,
        else ``slow_path`` of the same arguments. Two calls belong together if their tensors have the same types and
        lengths, and lie to each other in the same way, and all else are the same objects: texts, small whole numbers,
        bools, None and tuples of these, or no call is learnt. Types are those of DLPack. Subclasses, complex tensors,
        and what is not dense, aligned and in the memory of the CPU, take the slow path. ``lock`` is held in calls that
        are known. One table is enough for a communicator, which keeps all that it has made.

        Raises ValueError for a type without that interface, in its version 1, and CommunicatorDead.
        """
        return self._endpoint.cached(slow_path, tensors, lock)

    def traffic(self) -> Traffic:
        """Bytes that the kernels of this rank have loaded and stored in all calls that have ended.

        What one call moved is the difference of two of them; ``hocket.ir.traffic`` says the same from the schedule.
        """
        return self._endpoint.traffic()

    @property
    def network_bytes(self) -> int:
        """Bytes of messages that this rank has sent to other nodes in all calls so far.

        Headers, and messages of short calls, which go with them, do not count.
        """
        return self._endpoint.alive().network_bytes

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A new communicator of the ranks that give the same ``color``, in order of ``key``, then of rank.

        Every rank calls it; one that gives None is in no new communicator and gets None. The new ones may be used in
        different threads, and closed before or after this one.
        """
        endpoint = self._endpoint.split(color, key)
        return None if endpoint is None else Communicator(endpoint, self._configured)

    def dup(self) -> Communicator:
        """A new communicator of the same ranks, whose calls are independent of this one's."""
        return cast("Communicator", self.split(0))

    def subgroup(self, ranks: Sequence[int], tag: str = "") -> Communicator:
        """A new communicator of these ranks, made by them alone: the first of them is its rank 0, and so on.

        This rank is one of them, each of which gives the same ranks in the same order, and the same ``tag``. Returns
        once all have. Calls with the same ranks and tag are matched in their order, so that the same group can be made
        again. It is no call of this communicator: ranks that are not among these take no part, calls in the background
        go on, and other threads may make calls, or subgroups, meanwhile. What is promised of ``split`` holds.

        Ranks may make groups that overlap, each rank in an order of its own, unless they wait for each other in a
        circle, such as two that make two groups in opposite orders. One order on all ranks makes no circle.

        Raises InvalidArgument or WrongType for wrong arguments, and then nobody else is told. A rank that ends, or
        does not come in time, ends this communicator as in a call: PeerFailed, CallTimeout. Also CommunicatorDead, and
        BootstrapFailed where a rank lacks what it needs.
        """
        return Communicator(self._endpoint.subgroup(ranks, tag), self._configured)

    def abort(self, reason: str = "called abort()") -> None:
        """End the communicator now, on every rank; also from another thread while this one is in a call.

        ``reason`` is a verb phrase: the others raise ``PeerFailed: rank 2 called abort()``.
        """
        self._endpoint.abort(reason)

    def close(self, drain: bool = False) -> None:
        """Leave the communicator; closing twice is allowed. Calls in the background end with CommunicatorDead.

        With ``drain`` they end as they would, before this rank leaves; errors are for who waits on their handles.
        Without, closing does not wait.
        """
        self._endpoint.close(drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if value is None:
            self.close()
        else:
            self.abort(f"raised {describe(value)}")

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}>"


def _seconds(timeout: object) -> float:
    value = float(timeout) if isinstance(timeout, float | np.floating) else whole(timeout)
    if value is None or not value > 0:
        raise InvalidArgument(f"timeout must be a positive number of seconds, not {timeout!r}", caller())
    return float(min(value, sys.float_info.max))


def init(
    timeout: float = 1800.0,
    *,
    rank: int | None = None,
    size: int | None = None,
    store: Store | None = None,
    mpi: MpiCommunicator | None = None,
    threads: int | Literal["auto"] = "auto",
) -> Communicator:
    """Meet the other ranks that a launcher started, or those that share a key-value store; alone without either.

    Launchers are ``hocket launch``, ``hocket.spawn``, torchrun, Open MPI's, MPICH's and Intel's mpiexec, srun; where
    several left their variables, the first of these counts. Ranks of mpiexec and srun that are on several machines meet
    over MPI, as with ``mpi=MPI.COMM_WORLD``, if mpi4py is installed; all other ranks must be on one machine.

    ``store`` is anything with ``set(key, value)``, ``get(key)`` and ``check(keys)`` that all ranks reach, such as a
    store of torch.distributed; ``rank`` and ``size`` belong to it, and the launcher is not asked. Every rank makes the
    same number of calls with a store, in the same order. Ranks that turn out to be on several machines, in several
    network namespaces or of several users go over MPI where its launcher has started all of them, each has mpi4py, and
    MPI is begun or HOCKET_TORCH_MPI=1 set (docs/machines.md); else they are an error on every rank, at once.

    ``mpi`` is a communicator of mpi4py, whose ranks these are; its ranks all call this. They may be on several nodes:
    what ranks of one node send each other goes through shared memory, all else through a duplicate of ``mpi``, which
    stays until MPI ends (docs/machines.md). A rank waits without a limit for others that have not called this.

    ``timeout`` is in seconds: how long nothing may move, here and in any call, before it counts as an error; infinity
    for no limit.
    ``threads``, the same on every rank: how many of this process share the work of a call on 1 MB or more; "auto": the
    cores that all ranks may use (affinity, control group), divided by the ranks.
    The file that HOCKET_CONFIG names in the environment says which schedules calls by name take, on this communicator
    and on those made of it (docs/schedules-by-size.md); all ranks must have the same.
    Raises BootstrapFailed, which BadConfig is, and PeerFailed when it is known that a rank ended and never will come.
    """
    timeout = _seconds(timeout)
    team = None if threads == "auto" else whole(threads)
    if threads != "auto" and (team is None or not 1 <= team <= _MOST_THREADS):
        raise InvalidArgument(f'threads must be "auto" or from 1 to {_MOST_THREADS}, not {threads!r}', caller())
    entries = _configured()

    def schedules(ranks: int) -> str:
        return digest(entries(ranks))

    if store is None and rank is None and size is None:
        mpi = mpi_world() if mpi is None else mpi
        met = meet(timeout, schedules) if mpi is None else meet_nodes(mpi, timeout, schedules)
    elif mpi is not None:
        raise InvalidArgument("mpi says which ranks there are: rank, size and store belong to a store", caller())
    else:
        which, many = whole(rank), whole(size)
        if store is None or which is None or many is None:
            raise InvalidArgument(
                "rank, size and store belong together", caller(), "a launcher gives ranks without them"
            )
        if not 0 <= which < many:
            raise InvalidArgument(f"rank must be in [0, {many}), not {which}", caller())
        met = meet_store(store, which, many, timeout, schedules)
    return Communicator(Endpoint(met, timeout, team, schedules), entries)


def _configured() -> Entries:
    """What the file says that HOCKET_CONFIG names, if it does; nothing is read yet."""
    path = os.environ.get(CONFIG)
    if not path:
        return lambda _: ()
    from hocket.config import Config

    return Config(Path(path)).entries


def spawn(
    fn: Callable[..., Result],
    ranks: int = 4,
    args: Sequence[object] = (),
    *,
    threads: int | Literal["auto"] = "auto",
) -> list[Result]:
    """Call ``fn(comm, *args)`` in ``ranks`` fresh processes and return what they return, in rank order.

    ``fn``, ``args`` and results travel by cloudpickle, so that a function of a notebook cell will do. When a rank
    raises, its exception is raised here, the remote traceback as its cause, and the other ranks are ended; RankFailed
    when a rank ends without a result. ``threads`` is that of ``init``.
    """
    number = whole(ranks)
    if number is None or not 1 <= number <= MOST_RANKS:
        raise InvalidArgument(f"ranks must be a number from 1 to {MOST_RANKS}, not {ranks!r}", caller())
    return launch.call(_in_rank, number, (fn, tuple(args), threads))


def _in_rank(fn: Callable[..., Result], args: tuple[object, ...], threads: int | Literal["auto"]) -> Result:
    with init(threads=threads) as comm:
        return fn(comm, *args)
