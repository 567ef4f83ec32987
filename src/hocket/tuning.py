"""Which program a collective that is called by name runs: a table.

Small buffers take a program that sends all there is to send at once: up to 16 KB a rank, such a call costs one look at
what the others have said (ARCHITECTURE.md, "One round"). It pays with traffic: every buffer goes to every rank that
needs it. So small is what does not make the busiest rank send or receive more than 128 KB.

Measured with ``benchmarks/crossover.py``, float32, on two cores that other work kept busy, so roughly: the time of the
program for small buffers in units of that of the other, on 2, 4 and 8 ranks; medians over the sizes of a range.

| busiest rank | AllReduce | AllGather | ReduceScatter | Broadcast | Reduce |
|---|---|---|---|---|---|
| up to 16 KB | 0.79, 0.47, 0.38 | 1.01, 0.83, 0.67 | 0.63, 0.54, 0.53 | 1.02, 0.76, 0.76 | 1.00, 0.67, 0.80 |
| up to 128 KB | 0.58, 0.87, 0.43 | 0.86, 1.00, 0.71 | 0.60, 0.59, 0.58 | 0.99, 0.68, 0.76 | 1.00, 0.80, 0.83 |
| up to 512 KB | 0.53, 1.59, 1.46 | 0.74, 0.80, 1.18 | 0.02, 0.42, 0.43 | 0.92, 0.93, 0.85 | 1.02, 0.74, 0.83 |

One limit for all, that of AllReduce, whose other program moves least. It was measured through ``Communicator.run``,
whose way through Python hides much of the difference below 16 KB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hocket.algorithms import all_pairs, direct, knomial, recursive_halving, ring, tree
from hocket.program import Contract, Program

BLOCKWISE = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Collectives in which the larger buffer of a rank is a block for each rank."""

_SPREAD_BYTES = 1 << 20
"""Size from which on a collective has an instance for each thread (Settings.team_bytes of native/cpu/communicator.h:
less is not worth waking them)."""


@dataclass(frozen=True, slots=True)
class Call:
    """All that a choice depends on, the same on every rank.

    ``size``: bytes of the larger buffer of a rank with most; None if not every rank knows it. ``threads`` and
    ``caches``: threads of each rank, and bytes that the caches of all hold; ``sockets`` that the ranks are on.
    ``uneven``: with counts.
    """

    name: str
    ranks: int
    size: int | None
    root: int = 0
    reproducible: Contract | None = None
    threads: int = 1
    caches: int = 0
    sockets: int = 1
    uneven: bool = False

    @property
    def busiest(self) -> int | None:
        """Bytes that the busiest rank sends or receives where every buffer goes to every rank that needs it."""
        if self.size is None:
            return None
        return -(-self.size * (self.ranks - 1) // (self.ranks if self.name in BLOCKWISE else 1))


@dataclass(frozen=True, slots=True)
class When:
    """A condition of the table, and how it is said."""

    text: str
    holds: Callable[[Call], bool]


_SMALL = When(
    "small: the busiest rank sends and receives at most 128 KB",
    lambda call: call.busiest is not None and call.busiest <= 128 << 10,
)
_LARGE = When("large: more than what is small", lambda _: True)
_ANY = When("all sizes take the same program", lambda _: True)
_ACROSS_SIZES = When('reproducible="across-sizes", at any size', lambda call: call.reproducible == "across-sizes")
_RANK_ORDER = When('reproducible="rank-order", at any size', lambda call: call.reproducible == "rank-order")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table. ``program`` is of the number of ranks and the root; ``tile`` in bytes, None: from the shape
    of the schedule and the size; ``storage``: where messages lie."""

    collective: str
    when: When
    program: Callable[[int, int], Program]
    tile: int | None = None
    storage: Literal["fifo"] = "fifo"


TABLE = (
    Line("all_reduce", _ACROSS_SIZES, lambda p, _: recursive_halving.all_reduce(p)),
    Line("all_reduce", _RANK_ORDER, lambda p, _: all_pairs.one_shot_all_reduce(p)),
    Line("all_reduce", _SMALL, lambda p, _: all_pairs.one_shot_all_reduce(p)),
    Line("all_reduce", _LARGE, lambda p, _: ring.all_reduce(p)),
    Line("all_gather", _SMALL, lambda p, _: direct.all_gather(p)),
    Line("all_gather", _LARGE, lambda p, _: ring.all_gather(p)),
    Line("reduce_scatter", _SMALL, lambda p, _: direct.reduce_scatter(p)),
    Line("reduce_scatter", _LARGE, lambda p, _: ring.reduce_scatter(p)),
    Line("all_to_all", _ANY, lambda p, _: direct.all_to_all(p)),
    Line("broadcast", _SMALL, lambda p, root: knomial.broadcast(p, max(2, p), root)),
    Line("broadcast", _LARGE, tree.broadcast),
    Line("reduce", _SMALL, lambda p, root: knomial.reduce(p, max(2, p), root)),
    Line("reduce", _LARGE, tree.reduce),
    Line("gather", _ANY, direct.gather),
    Line("scatter", _ANY, direct.scatter),
)
"""The first line of a collective whose condition holds counts."""

NAMED = tuple(dict.fromkeys(line.collective for line in TABLE))
"""The collectives that are called by name, each a method of Communicator."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a call runs: ``instances`` of the program of a line."""

    line: Line
    root: int
    reproducible: Contract | None
    instances: int

    def program(self, ranks: int) -> Program:
        return self.line.program(ranks, self.root)


def choose(call: Call) -> Choice:
    """What the table says of a call of a collective in NAMED."""
    line = next(line for line in TABLE if line.collective == call.name and line.when.holds(call))
    wide = line.when is not _SMALL and not call.uneven and call.size is not None and call.size >= _SPREAD_BYTES
    return Choice(line, call.root, call.reproducible, call.threads if wide else 1)


def is_small(name: str, ranks: int, size: int) -> bool:
    """Whether a call takes the program for small buffers. ``size``: bytes of the larger buffer of a rank with most."""
    return _SMALL.holds(Call(name, ranks, size))


def default_program(
    name: str, ranks: int, root: int = 0, reproducible: Contract | None = None, *, small: bool = False
) -> Program:
    """The program of a collective for small buffers, or for the largest."""
    return choose(Call(name, ranks, 0 if small else None, root, reproducible)).program(ranks)
