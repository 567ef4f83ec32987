"""Which program a collective that is called by name runs, by size and number of ranks.

Small buffers take a program that sends all there is to send at once: up to 16 KB a rank, such a call costs one look at
what the others have said (ARCHITECTURE.md, "One round"). It pays with traffic: every buffer goes to every rank that
needs it. So small is what does not make the busiest rank send or receive more than ``_SMALL``.

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

from hocket.algorithms import all_pairs, direct, knomial, recursive_halving, ring, tree
from hocket.program import Contract, Program

_SMALL = 128 << 10
"""Bytes that one rank sends or receives."""


@dataclass(frozen=True, slots=True)
class _Programs:
    """From the number of ranks and the root. ``blocks``: the larger buffer of a rank is a block for each rank."""

    large: Callable[[int, int], Program]
    small: Callable[[int, int], Program]
    blocks: bool = False


_PROGRAMS = {
    "all_reduce": _Programs(lambda p, _: ring.all_reduce(p), lambda p, _: all_pairs.one_shot_all_reduce(p)),
    "all_gather": _Programs(lambda p, _: ring.all_gather(p), lambda p, _: direct.all_gather(p), True),
    "reduce_scatter": _Programs(lambda p, _: ring.reduce_scatter(p), lambda p, _: direct.reduce_scatter(p), True),
    "all_to_all": _Programs(lambda p, _: direct.all_to_all(p), lambda p, _: direct.all_to_all(p), True),
    "broadcast": _Programs(tree.broadcast, lambda p, root: knomial.broadcast(p, max(2, p), root)),
    "reduce": _Programs(tree.reduce, lambda p, root: knomial.reduce(p, max(2, p), root)),
    "gather": _Programs(direct.gather, direct.gather, True),
    "scatter": _Programs(direct.scatter, direct.scatter, True),
}

NAMED = tuple(_PROGRAMS)
"""The collectives that are called by name, each a method of Communicator."""

_REPRODUCIBLE: dict[Contract | None, Callable[[int], Program]] = {
    "across-sizes": recursive_halving.all_reduce,
    "rank-order": all_pairs.one_shot_all_reduce,
}
"""An AllReduce for each contract on bits that not all defaults keep, whatever the size."""


_LENDING: dict[str, Callable[[int, int, bool], Program | None]] = {
    "all_reduce": lambda p, _, inplace: direct.all_reduce(p, inplace=inplace),
    "all_gather": lambda p, _, inplace: direct.all_gather(p, inplace=inplace),
    "reduce_scatter": lambda p, _, inplace: direct.reduce_scatter(p, inplace=inplace),
    "all_to_all": lambda p, _, inplace: None if inplace else direct.all_to_all(p),
    "broadcast": lambda p, root, inplace: direct.broadcast(p, root, inplace=inplace),
    "reduce": lambda p, root, inplace: direct.reduce(p, root, inplace=inplace),
    "gather": lambda p, root, inplace: direct.gather(p, root, inplace=inplace),
    "scatter": lambda p, root, inplace: direct.scatter(p, root, inplace=inplace),
}
"""Where ranks reach each other's arrays, by whether they are in place: what moves least is direct."""


def is_small(name: str, ranks: int, size: int) -> bool:
    """Whether a call takes the program for small buffers. ``size``: bytes of the larger buffer of a rank with most."""
    busiest = size * (ranks - 1)
    return busiest <= _SMALL * (ranks if _PROGRAMS[name].blocks else 1)


def default_program(
    name: str, ranks: int, root: int = 0, reproducible: Contract | None = None, *, small: bool = False
) -> Program:
    """The program that a communicator runs for a collective that is called by name."""
    chosen = _REPRODUCIBLE.get(reproducible)
    if chosen is not None and name == "all_reduce":
        return chosen(ranks)
    programs = _PROGRAMS[name]
    return (programs.small if small else programs.large)(ranks, root)


def lending_program(
    name: str, ranks: int, root: int = 0, reproducible: Contract | None = None, *, inplace: bool
) -> Program | None:
    """What a communicator runs instead where the arrays of all ranks are memory that all can reach. None: nothing.

    An AllReduce adds up in the order of ranks.
    """
    return None if reproducible == "across-sizes" else _LENDING[name](ranks, root, inplace)
