"""Every collective with every type: ``python -m tests.runtime.sweep [--quick | --huge] [--ranks P ...]``.

Each collective that has a name, with every type and every operator of that type (elements without operators too where
data only move), at 0, 1, 3, 17, 3001 and 1000003 elements a block and 64 MB in the larger buffer, on 1, 2, 3, 4 and 7
ranks, in place and apart. Each result must have the bits of the reference and lie within rounding of NumPy. Prints a
table and exits with 1 if anything is wrong. ``--quick`` takes one size and form for each collective, type and operator;
``--huge`` two calls of more than 4 GB a rank.

Large inputs repeat within each chunk, with a period that is no multiple of any piece. The reference then works on one
period of each chunk, and every element is compared with what it says.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket import Communicator, _native
from hocket.cli.measure import unit
from hocket.collectives import Collective
from hocket.ir.geometry import bounds
from hocket.ir.schedule import Schedule
from hocket.semantics import reference
from hocket.tuning import NAMED, default_program, is_small
from tests.runtime.cases import PAIRS, count_unlike_numpy, data, kind_of, same

Array = NDArray[np.generic]

RANKS = (1, 2, 3, 4, 7)
ELEMENTS = (0, 1, 3, 17, 3001, 1_000_003)
LARGE = 64 << 20
HUGE = (4 << 30) + (3 << 20)
OPAQUE = ("S3", "i1,f8,S3")
COMBINING = ("all_reduce", "reduce_scatter", "reduce")
PREFIX = ("scan", "exscan")  # which combine too, but have no avg
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PERIOD = 64 * 1009  # bytes
PERIOD_OF_OPAQUE = 64 * 251  # elements


@dataclass(frozen=True)
class Case:
    """One call. ``elements`` of a block; None: ``bytes`` in the larger buffer of a rank."""

    name: str
    dtype: str
    op: str
    inplace: bool
    elements: int | None = None
    bytes: int = 0

    def __str__(self) -> str:
        size = f"{self.elements} elements" if self.elements is not None else f"{self.bytes >> 20} MB"
        return f"{self.name} {self.dtype} {self.op} {size} {'in place' if self.inplace else 'apart'}"


def triples() -> list[tuple[str, str, str]]:
    """Every collective with every type and every operator it takes."""
    moved = [(dtype, "sum") for dtype in (*_native.TYPES, *OPAQUE)]
    no_average = [(dtype, op) for dtype, op in PAIRS if op != "avg"]
    return [
        (name, *pair)
        for name in NAMED
        for pair in (PAIRS if name in COMBINING else no_average if name in PREFIX else moved)
    ]


def everything() -> Iterator[Case]:
    for triple in triples():
        for elements, inplace in product(ELEMENTS, (False, True)):
            yield Case(*triple, inplace, elements)
        for inplace in (False, True):
            yield Case(*triple, inplace, bytes=LARGE)


def sample(ranks: int) -> Iterator[Case]:
    """Each triple once on two and three ranks, some on the others; sizes and forms in turn."""
    forms = list(product((0, 1, 3, 17, 1501, 3001, 40_009), (False, True)))
    for number, triple in enumerate(triples()):
        if ranks in (2, 3) or number % 7 == ranks % 7:
            elements, inplace = forms[(number + ranks) % len(forms)]
            yield Case(*triple, inplace, elements)


def huge() -> Iterator[Case]:
    yield Case("all_reduce", "uint8", "sum", True, bytes=HUGE)
    yield Case("all_gather", "float32", "sum", True, bytes=HUGE)


# ---------------------------------------------------------------------------------------------------------------
# Arrays that repeat


@dataclass(frozen=True)
class Stretch:
    """How arrays of blocks of ``n`` elements repeat, chunk by chunk, what those of ``short`` elements a block have."""

    collective: Collective
    dtype: np.dtype[np.generic]
    n: int

    @property
    def short(self) -> int:
        """Elements of a block in which every chunk is one period, or all of a smaller one."""
        itemsize = self.dtype.itemsize
        return min(self.n, self.collective.chunks * (PERIOD_OF_OPAQUE if 64 % itemsize else PERIOD // itemsize))

    def pieces(self, small: Array, large: Array) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
        """For each period of each chunk: where it begins in ``large``, its bytes there, and what they should be."""
        itemsize, scale = self.dtype.itemsize, 1
        if 64 % itemsize:  # cut as bytes
            itemsize, scale = 1, itemsize
        raw, rare = large.view(np.uint8), small.view(np.uint8)
        blocks = len(small) // self.short if self.short else 0
        for index in range(blocks * self.collective.chunks):
            part = bounds(self.collective, self.short * scale, itemsize, index)
            whole = bounds(self.collective, self.n * scale, itemsize, index)
            period = rare[part.start * itemsize : part.stop * itemsize]
            stop = whole.stop * itemsize
            for begin in range(whole.start * itemsize, stop, max(1, len(period))):
                piece = raw[begin : min(begin + len(period), stop)]
                yield begin, piece, period[: len(piece)]

    def fill(self, large: Array, small: Array) -> None:
        for _, piece, period in self.pieces(small, large):
            piece[:] = period

    def count_wrong(self, large: Array, small: Array) -> int:
        """Elements of ``large`` that are not as in ``small``."""
        wrong = 0
        for begin, piece, period in self.pieces(small, large):
            if np.array_equal(piece, period):
                continue
            first, last = begin // large.itemsize, -(-(begin + len(piece)) // large.itemsize)
            if len(piece) % large.itemsize or begin % large.itemsize:  # bytes: no NaN among them
                wrong += last - first
            else:
                wrong += int(np.sum(~same(large[first:last], period.view(large.dtype))))
        return wrong


# ---------------------------------------------------------------------------------------------------------------
# On a rank


@dataclass
class Column:
    """What a rank saw of a collective on one number of ranks."""

    calls: int = 0
    wrong: int = 0
    seconds: float = 0.0


class Buffers:
    """Two arrays that grow as needed, because fresh memory is slow."""

    def __init__(self) -> None:
        self._bytes = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def array(self, which: int, length: int, dtype: np.dtype[np.generic]) -> Array:
        size = length * dtype.itemsize
        if len(self._bytes[which]) < size:
            self._bytes[which] = np.empty(size, np.uint8)
        return self._bytes[which][:size].view(dtype)


@functools.cache
def schedule_of(name: str, ranks: int, small: bool = False) -> Schedule:
    return default_program(name, ranks, root=ranks // 2, small=small).compile()


@functools.lru_cache(maxsize=1)
def expected(
    name: str, ranks: int, short: int, dtype: str, op: str, small: bool = False
) -> tuple[list[Array], list[Array]]:
    """Inputs of ``short`` elements a block, and what the reference makes of them."""
    schedule = schedule_of(name, ranks, small)
    inputs = [data(r, schedule.collective.input_blocks(r) * short, dtype) for r in range(ranks)]
    with np.errstate(all="ignore"):
        return inputs, reference(schedule, inputs, op)


def on_each_rank(comm: Communicator, cases: Sequence[Case]) -> tuple[dict[str, Column], list[str]]:
    """Make the calls. Returns what was seen, by collective, and a line for each call that went wrong here."""
    columns = {name: Column() for name in NAMED}
    lines = []
    buffers = Buffers()
    for number, case in enumerate(cases):
        begun = time.perf_counter()
        wrong = call(comm, case, buffers, judge=number % comm.size == comm.rank)
        column = columns[case.name]
        column.calls += 1
        column.wrong += bool(wrong)
        column.seconds += time.perf_counter() - begun
        if wrong:
            lines.append(f"{case} on {comm.size} ranks: {wrong} elements wrong, says rank {comm.rank}")
    return columns, lines


def call(comm: Communicator, case: Case, buffers: Buffers, judge: bool) -> int:
    """Make a call and count what is wrong on this rank; the one that judges also asks NumPy, about all ranks."""
    dtype, rank = kind_of(case.dtype), comm.rank
    any_size = schedule_of(case.name, comm.size).collective
    n = unit(any_size, case.bytes, case.dtype) if case.elements is None else case.elements
    small = is_small(case.name, comm.size, any_size.most_blocks() * n * dtype.itemsize)
    collective = schedule_of(case.name, comm.size, small).collective
    stretch = Stretch(collective, dtype, n)
    inputs, outputs = expected(case.name, comm.size, stretch.short, case.dtype, case.op, small)

    reads, writes = collective.input_blocks(rank), collective.output_blocks(rank)
    x, out = (buffers.array(which, blocks * n, dtype) for which, blocks in enumerate((reads, writes)))
    inside = case.inplace and reads and writes
    if inside:
        whole = x if reads > writes else out
        own = whole[rank * n : (rank + 1) * n]
        x, out = (whole, whole) if reads == writes else (own, whole) if reads < writes else (whole, own)
    out.view(np.uint8)[:] = 0x5A  # what no step writes is wrong
    stretch.fill(x, inputs[rank])

    keywords: dict[str, object] = {"op": case.op} if case.name in (*COMBINING, *PREFIX) else {}
    if case.name in ROOTED:
        keywords["root"] = comm.size // 2
    found = getattr(comm, case.name)(x if reads else None, out if writes else None, **keywords)
    assert found is (out if writes else None), case

    wrong = stretch.count_wrong(out, outputs[rank])
    if not inside:
        wrong += stretch.count_wrong(x, inputs[rank])
    if judge:
        wrong += count_unlike_numpy(schedule_of(case.name, comm.size, small), case.op, inputs, outputs)
    return wrong


# ---------------------------------------------------------------------------------------------------------------


def run(ranks: int, cases: Sequence[Case]) -> tuple[dict[str, Column], list[str]]:
    """One job. A call is wrong if any rank says so; times are those of the slowest rank."""
    results = hocket.spawn(on_each_rank, ranks, (cases,))
    total = {
        name: Column(
            results[0][0][name].calls,
            max(columns[name].wrong for columns, _ in results),
            max(columns[name].seconds for columns, _ in results),
        )
        for name in NAMED
    }
    return total, [line for _, lines in results for line in lines]


def table(columns: dict[int, dict[str, Column]]) -> str:
    """A row for each collective, calls, wrong ones and seconds for each number of ranks."""
    rows = ["".join((f"{'':14}", *(f"{f'{ranks} rank' + 's' * (ranks > 1):>24}" for ranks in columns)))]
    rows.append(f"{'collective':14}" + f"{'calls':>8}{'wrong':>7}{'time':>9}" * len(columns))
    for name in NAMED:
        cells = (column[name] for column in columns.values())
        rows.append(f"{name:14}" + "".join(f"{c.calls:8}{c.wrong:7}{c.seconds:7.1f} s" for c in cells))
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="a sample")
    which.add_argument("--huge", action="store_true", help="two calls of more than 4 GB a rank, on two ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, metavar="P")
    given = parser.parse_args()
    begun = time.perf_counter()
    columns, lines = {}, []
    for ranks in (2,) if given.huge else given.ranks:
        cases = list(huge() if given.huge else sample(ranks) if given.quick else everything())
        columns[ranks], found = run(ranks, cases)
        lines += found
        print(f"{len(cases)} calls on {ranks} ranks: {time.perf_counter() - begun:.0f} s so far", file=sys.stderr)
    print(*lines, table(columns), sep="\n")
    total = [column for row in columns.values() for column in row.values()]
    calls, wrong = sum(c.calls for c in total), sum(c.wrong for c in total)
    seconds = time.perf_counter() - begun
    print(f"{calls} calls, {wrong} wrong: bits of the reference, bounds of NumPy; {seconds:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    from tests.runtime import sweep  # under its own name, so that ranks import it too

    sweep.main()
