"""Runs a schedule on processes, checks what it computed, and says how fast it was."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket import _native, collectives
from hocket.collectives import Collective, bus_factor
from hocket.errors import UsageError, counted
from hocket.ir.geometry import bounds
from hocket.ir.schedule import Schedule
from hocket.runtime.operands import FOREIGN, dtype_of
from hocket.semantics import OPERATORS, reference

if TYPE_CHECKING:
    from hocket.communicator import Communicator

Array = NDArray[np.generic]

DTYPES = _native.TYPES

_BITWISE = 1 << 20
"""Up to so many bytes a rank the result is also compared with the reference, bit for bit."""

_BLOCK = 1 << 18
"""Elements that are made and compared at a time."""


def dtype_named(name: str) -> np.dtype[np.generic]:
    """The type of a name."""
    if name not in FOREIGN:
        return dtype_of(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"{name} is the type of a package that is not here", "pip install ml_dtypes") from None
    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return found


def _epsilon(dtype: np.dtype[np.generic]) -> float:
    """How far the next greater value is from 1. NumPy's finfo does not know types of ml_dtypes."""
    one = np.ones(1, f"f{dtype.itemsize // 2}" if dtype.kind == "c" else dtype)
    return float((np.nextafter(one, one + one) - one)[0])


def check_names(dtype: str, op: str) -> None:
    """Raises UsageError for a type or an operator that does not exist."""
    for what, word, known in (("dtype", dtype, DTYPES), ("op", op, tuple(OPERATORS))):
        if word not in known:
            raise UsageError(f"--{what} must be one of {', '.join(known)}, not {word!r}")


def check_operator(collective: Collective, dtype: str, op: str) -> None:
    """Raises UsageError for an operator that a collective which combines does not have for a type."""
    if not collective.reduces():
        return
    known = _native.OPERATORS_OF[dtype]
    if op not in known:
        raise UsageError(f"{op} is not for {dtype}: --op {', '.join(known)} are")
    if op == "avg" and not collective.averages():
        raise UsageError(f"{collective.name} does not sum over all ranks: there is no avg")


@dataclass(frozen=True)
class Measurement:
    """One program at one size. Times are in seconds, of the slowest rank; ``bytes`` are those of the larger buffer.

    ``wrong`` counts the elements, over all ranks, that differ from NumPy by more than rounding allows, or from the
    reference in any bit when ``bitwise``.
    """

    collective: str
    ranks: int
    bytes: int
    dtype: str
    op: str
    iterations: int
    median: float
    p95: float
    algbw: float
    busbw: float | None
    wrong: int
    bitwise: bool

    def __str__(self) -> str:
        busbw = "" if self.busbw is None else f", busbw {self.busbw:.3g} GB/s"
        against = "the reference, bit for bit, and NumPy" if self.bitwise else "NumPy"
        calls = counted(self.iterations, "call")
        each = "1 process" if self.ranks == 1 else f"each of {self.ranks} processes"
        return (
            f"{show_size(self.bytes)} of {self.dtype} on {each}\n"
            f"  {show_seconds(self.median)} median, {show_seconds(self.p95)} p95 of {calls}\n"
            f"  algbw {self.algbw:.3g} GB/s{busbw}\n"
            f"  {self.wrong} wrong against {against}"
        )


@dataclass(frozen=True)
class Speed:
    """How fast calls were: seconds of the slowest rank, and 1e9 bytes of the larger buffer a second."""

    median: float
    p95: float
    algbw: float
    busbw: float | None

    @classmethod
    def of(cls, collective: Collective, size: int, seconds: Sequence[Sequence[float]]) -> Speed:
        """From the seconds of each rank and iteration, ``size`` bytes in the larger buffer."""
        slowest = np.max(seconds, axis=0)
        median, factor = float(np.median(slowest)), bus_factor(collective)
        algbw = size / median / 1e9
        return cls(median, float(np.percentile(slowest, 95)), algbw, None if factor is None else algbw * factor)


@dataclass(frozen=True)
class Job:
    """What each rank is to do. ``n`` is the number of elements of one unit of the collective."""

    schedule: Schedule
    n: int
    dtype: str
    op: str
    iterations: int
    warmup: int

    @property
    def bytes(self) -> int:
        """Bytes of a rank's larger buffer."""
        return self.schedule.collective.most_blocks() * self.n * self.type.itemsize

    @property
    def type(self) -> np.dtype[np.generic]:
        return dtype_named(self.dtype)

    def values(self, rank: int, begin: int, end: int) -> Array:
        """Elements [begin, end) of what ``rank`` begins with; any process can make any part."""
        mixed = np.arange(begin, end, dtype=np.uint64) + np.uint64(rank << 40)
        # The last part of splitmix64, enough for values that look random.
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed >>= np.uint64(40)
        if self.type.names is not None:
            pairs = np.zeros(len(mixed), self.type)
            pairs["value"], pairs["index"] = mixed % np.uint64(7), rank
            return pairs
        match self.type.kind:
            case "b":
                return np.asarray(mixed % np.uint64(2) != 0)
            case "i" | "u":
                whole: Array = (mixed % np.uint64(2001)).astype(np.int64) - 1000
                return whole.astype(self.type, copy=False)
        real = mixed.astype(np.float32) / np.float32(1 << 23) - 1
        values: Array = real + np.complex64(1j) * np.sqrt(np.abs(real)) if self.type.kind == "c" else real
        return values.astype(self.type, copy=False)

    def input(self, rank: int) -> Array:
        """All that ``rank`` begins with."""
        found: Array = np.empty(self.schedule.collective.input_blocks(rank) * self.n, self.type)
        for begin in range(0, len(found), _BLOCK):
            end = min(begin + _BLOCK, len(found))
            found[begin:end] = self.values(rank, begin, end)
        return found

    def promises(self, rank: int) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """For each chunk of the output that the collective says something about: where it lies, and the ranks and first
        elements of the inputs that must be summed there."""
        collective = self.schedule.collective
        for index in range(collective.outputs(rank)):
            total = collective.required(rank, index)
            if total is not None:
                terms = collectives.members(total)
                yield self._bounds(index), [(source, self._bounds(chunk).start) for source, chunk in terms]

    def _bounds(self, index: int) -> slice:
        return bounds(self.schedule.collective, self.n, self.type.itemsize, index)


def unit(collective: Collective, size: int, dtype: str) -> int:
    """Elements of one unit for ``size`` bytes in the larger buffer of a rank: rounded down, but at least one."""
    return max(1, size // (collective.most_blocks() * dtype_named(dtype).itemsize))


def measure(schedule: Schedule, size: int, dtype: str, op: str, iterations: int, warmup: int) -> Measurement:
    """Run a schedule on as many processes as it has ranks, ``size`` bytes in the larger buffer of each."""
    collective = schedule.collective
    job = Job(schedule, unit(collective, size, dtype), dtype, op, iterations, warmup)
    results = hocket.spawn(_on_each_rank, ranks=collective.size, args=(job,))
    wrong = sum(count for _, count, _ in results)
    if job.bytes <= _BITWISE:
        expected = reference(schedule, [job.input(rank) for rank in range(collective.size)], op)
        for rank, (_, _, out) in enumerate(results):
            assert out is not None
            for at, _ in job.promises(rank):
                wrong += int(np.sum(np.any(_bytes(out[at]) != _bytes(expected[rank][at]), axis=1)))
    speed = Speed.of(collective, job.bytes, [seconds for seconds, _, _ in results])
    return Measurement(
        collective=str(collective),
        ranks=collective.size,
        bytes=job.bytes,
        dtype=dtype,
        op=op,
        iterations=iterations,
        **asdict(speed),
        wrong=wrong,
        bitwise=job.bytes <= _BITWISE,
    )


def _bytes(values: Array) -> NDArray[np.uint8]:
    return values.view(np.uint8).reshape(len(values), values.itemsize)


def _on_each_rank(comm: Communicator, job: Job) -> tuple[list[float], int, Array | None]:
    """Times of this rank, the number of its wrong elements, and its output if that is small."""
    x, out = buffers(job.schedule.collective, job, comm.rank)
    seconds = timed(comm, job, functools.partial(comm.run, job.schedule, op=job.op), x, out)
    return seconds, count_wrong(job, comm.rank, out), out.copy() if job.bytes <= _BITWISE else None


def timed(
    comm: Communicator, job: Job, call: Callable[[Array | None, Array | None], object], x: Array, out: Array
) -> list[float]:
    """Seconds of each call of ``call(x, out)``, from the same input every time and after a barrier. A buffer without
    elements is None."""
    start = job.input(comm.rank)
    seconds = []
    for i in range(job.warmup + job.iterations):
        out[:] = 0  # what the last call does not write is wrong
        x[:] = start  # in place, sums of sums would soon overflow
        comm.barrier()
        begin = perf_counter()
        call(x if len(x) else None, out if len(out) else None)
        if i >= job.warmup:
            seconds.append(perf_counter() - begin)
    return seconds


def buffers(collective: Collective, job: Job, rank: int) -> tuple[Array, Array]:
    """Input and output, one inside the other where ``collective`` is in place."""
    x: Array = np.empty(collective.input_blocks(rank) * job.n, job.type)
    out: Array = np.zeros(collective.output_blocks(rank) * job.n, job.type)
    alias = collective.alias(rank)
    if alias is not None:
        begin = alias.offset // collective.chunks * job.n
        if alias.buffer == "out":
            return x, x[begin : begin + len(out)]
        return out[begin : begin + len(x)], out
    return x, out


def count_wrong(job: Job, rank: int, out: Array) -> int:
    """Elements that differ from NumPy: at all for integers, min, max and what is only moved; by more than the steps of
    a sum or product can round otherwise, p * eps * sum|x| for a sum.

    A block is made and compared at a time, so that memory grows neither with the size nor with the number of ranks.
    """
    kind, size = job.type.kind, job.schedule.collective.size
    exact = kind in "biu" or job.type.names is not None  # bfloat16 is of the same kind as a structure
    wide = job.type if exact else np.dtype(np.complex128 if kind == "c" else np.float64)
    combine = OPERATORS[job.op]
    tolerance, least = 0.0, 0.0
    if not exact and job.schedule.collective.reduces() and job.op in ("sum", "prod", "avg"):
        # An average rounds once more than its sum, a product of complex numbers three times a part.
        steps = 4 * size if job.op == "prod" else size + 1
        tolerance = steps * _epsilon(job.type)
        least = steps * 1e-7 if job.op == "prod" and job.dtype == "float16" else 0.0  # products become subnormal
    divisor = size if job.op == "avg" else 1
    wrong = 0
    for at, terms in job.promises(rank):
        for begin in range(at.start, at.stop, _BLOCK):
            end = min(begin + _BLOCK, at.stop)
            parts = [
                job.values(source, first + begin - at.start, first + end - at.start).astype(wide, copy=False)
                for source, first in terms
            ]
            expected = functools.reduce(combine, parts)
            found = out[begin:end].astype(wide, copy=False)
            if tolerance:
                allowed = tolerance * functools.reduce(combine, map(np.abs, parts)) + least
                wrong += int(np.sum(~(np.abs(found - expected / divisor) * divisor <= allowed)))
            else:
                wrong += int(np.sum(found != expected))
    return wrong


def show_size(count: int) -> str:
    """``25 MB``: K = 1024, as sizes are given."""
    for unit, power in (("GB", 3), ("MB", 2), ("KB", 1)):
        if count >= 1024**power:
            return f"{count / 1024**power:.4g} {unit}"
    return f"{count} B"


def show_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            digits = max(0, 2 - math.floor(math.log10(seconds / scale)))
            return f"{seconds / scale:.{digits}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
