"""Which program a collective that is called by name runs, by size and number of ranks.

Small buffers take a program that sends all there is to send at once: up to 16 KB a rank, such a call costs one look at
what the others have said (ARCHITECTURE.md, "One round"). It pays with traffic: every buffer goes to every rank that
needs it. So small is what does not make the busiest rank send or receive more than a limit.

Others take a program that moves least (docs/traffic.md) in the fewest steps, which two-shot and direct ones do. They
have a connection for every two ranks, so from 17 ranks on the rings are taken, which need less memory for slots; a root
would add up large buffers of all others alone. Where ranks fill several sockets, sums stay within them first.

Measured with ``benchmarks/crossover.py``, float32, on two cores that other work kept busy, so roughly: times of a call
in units of those of another program, on 4 and 8 ranks; on 2 all do the same. The rows up to 256 KB, ReduceScatter and
AllGather are from before multicast slots became larger, which only they can have gained from.

| bytes | AllReduce, two-shot / one-shot | ring / two-shot | ReduceScatter, ring / direct | AllGather, ring / direct |
|---|---|---|---|---|
| 16 KB | 1.52, 1.42 | 0.95, 1.63 | 1.40, 1.73 | 2.34, 1.50 |
| 256 KB | 0.81, 0.61 | 1.05, 1.11 | 1.10, 1.50 | 1.23, 1.50 |
| 1 MB | 0.98, 0.56 | 1.39, 1.57 | 1.09, 1.01 | 1.20, 1.49 |
| 4 MB | 0.56, 0.40 | 1.48, 1.30 | 0.78, 1.08 | 1.77, 1.18 |
| 16 MB | 0.62, 0.39 | 1.06, 1.10 | 1.07, 1.05 | 0.99, 1.06 |

| bytes | Broadcast, tree / flat | chain / flat | Reduce, tree / flat | chain / flat |
|---|---|---|---|---|
| 256 KB | 1.42, 1.54 | 1.77, 1.95 | 0.96, 1.87 | 1.14, 2.01 |
| 1 MB | 0.82, 1.21 | 1.24, 1.50 | 1.27, 1.18 | 1.29, 1.25 |
| 4 MB | 1.19, 1.44 | 1.14, 1.56 | 0.99, 1.01 | 0.99, 0.96 |
| 16 MB | 0.98, 1.08 | 1.00, 1.24 | 0.91, 0.76 | 0.90, 0.60 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hocket.algorithms import all_pairs, chain, direct, knomial, movement_avoiding, recursive_halving, ring
from hocket.program import Contract, Program

_SMALL = 128 << 10
"""Bytes that one rank sends or receives."""

_FEW = 16
"""Ranks up to which every two have a connection."""


@dataclass(frozen=True, slots=True)
class _Programs:
    """From the number of ranks and the root, or of ranks, sockets and the root where there are several sockets.

    ``limit``: bytes that one rank sends or receives of a small buffer. ``blocks``: the larger buffer of a rank is a
    block for each rank.
    """

    large: Callable[[int, int], Program]
    small: Callable[[int, int], Program]
    blocks: bool = False
    limit: int = _SMALL
    by_socket: Callable[[int, int, int], Program] | None = None


def _flat_broadcast(ranks: int, root: int) -> Program:
    return knomial.broadcast(ranks, max(2, ranks), root)


def _flat_reduce(ranks: int, root: int) -> Program:
    return knomial.reduce(ranks, max(2, ranks), root)


_PROGRAMS = {
    "all_reduce": _Programs(
        lambda p, _: all_pairs.all_reduce(p) if p <= _FEW else ring.all_reduce(p),
        lambda p, _: all_pairs.one_shot_all_reduce(p),
        by_socket=lambda p, sockets, _: movement_avoiding.all_reduce(p, sockets),
    ),
    "all_gather": _Programs(
        lambda p, _: direct.all_gather(p) if p <= _FEW else ring.all_gather(p), lambda p, _: direct.all_gather(p), True
    ),
    "reduce_scatter": _Programs(
        lambda p, _: direct.reduce_scatter(p) if p <= _FEW else ring.reduce_scatter(p),
        lambda p, _: direct.reduce_scatter(p),
        True,
        by_socket=lambda p, sockets, _: movement_avoiding.reduce_scatter(p, sockets),
    ),
    "all_to_all": _Programs(lambda p, _: direct.all_to_all(p), lambda p, _: direct.all_to_all(p), True),
    "broadcast": _Programs(_flat_broadcast, _flat_broadcast),
    "reduce": _Programs(chain.reduce, _flat_reduce, limit=16 << 20, by_socket=movement_avoiding.reduce),
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
    programs = _PROGRAMS[name]
    return busiest <= programs.limit * (ranks if programs.blocks else 1)


def default_program(
    name: str,
    ranks: int,
    root: int = 0,
    reproducible: Contract | None = None,
    *,
    small: bool = False,
    sockets: int = 1,
) -> Program:
    """The program that a communicator runs for a collective that is called by name.

    ``sockets``: those that the ranks fill, one after the other.
    """
    chosen = _REPRODUCIBLE.get(reproducible)
    if chosen is not None and name == "all_reduce":
        return chosen(ranks)
    programs = _PROGRAMS[name]
    if sockets > 1 and not small and programs.by_socket is not None:
        return programs.by_socket(ranks, sockets, root)
    return (programs.small if small else programs.large)(ranks, root)


def lending_program(
    name: str, ranks: int, root: int = 0, reproducible: Contract | None = None, *, inplace: bool
) -> Program | None:
    """What a communicator runs instead where the arrays of all ranks are memory that all can reach. None: nothing.

    An AllReduce adds up in the order of ranks.
    """
    return None if reproducible == "across-sizes" else _LENDING[name](ranks, root, inplace)
