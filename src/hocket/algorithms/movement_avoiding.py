"""Movement-avoiding reductions (YHCCL: Peng et al., SC'23, section 3): nothing is copied only to be summed.

A chunk goes along a chain of ranks; each adds its own to what it gets, and hands the sum on. Only the first copies. So
does every tree of such sums load and store 3p - 1 times a buffer: with several sockets there is a chain in each, and
the last rank of one adds up what the others end with. That takes fewer steps in a row and moves no more, where the
paper's second step adds 2(m - 1) for m sockets. The paper's ranks take turns in writing to one window; here each has
slots of its own. Socket s of m has the ranks from s * p // m on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hocket import AllReduce, Program, Reduce, ReduceScatter, Ref, chunk


def reduce_scatter(ranks: int, sockets: int = 2, instances: int = 1) -> Program:
    """The sum of each block ends at its rank. One socket would be the ring. In place."""
    with Program(ReduceScatter(ranks, inplace=True), name="movement_avoiding_reduce_scatter", instances=instances) as p:
        for r in range(ranks):
            _sum(r, r, by_socket(ranks, sockets))
    return p


def reduce(ranks: int, sockets: int = 2, root: int = 0, instances: int = 1) -> Program:
    """The sum ends at the root. One socket would be the chain. In place."""
    with Program(Reduce(ranks, inplace=True, root=root), name="movement_avoiding_reduce", instances=instances) as p:
        _sum(root, 0, by_socket(ranks, sockets))
    return p


def all_reduce(ranks: int, sockets: int = 1, instances: int = 1) -> Program:
    """The sum of each chunk ends at a rank of its own, which stores it for all others at once. In place."""
    with Program(
        AllReduce(ranks, chunks=ranks, inplace=True), name="movement_avoiding_all_reduce", instances=instances
    ) as p:
        for r in range(ranks):
            total = _sum(r, r, by_socket(ranks, sockets))
            for step in range(1, ranks):
                total.copy((r + step) % ranks, "in", r)
    return p


def by_socket(ranks: int, sockets: int) -> list[range]:
    """The ranks of each socket that has any."""
    if sockets < 1:
        raise ValueError(f"there must be at least one socket, not {sockets}")
    starts = [ranks * socket // sockets for socket in range(sockets + 1)]
    return [range(low, high) for low, high in pairwise(starts) if low < high]


def _sum(last: int, index: int, sockets: Sequence[Sequence[int]]) -> Ref:
    """The sum of chunk ``index`` of all ranks, at rank ``last``, where the chain of its own socket ends."""
    own = next(group for group in sockets if last in group)
    total = _chain(own, last, index)
    for number, group in enumerate(group for group in sockets if group is not own):
        part = _chain(group, group[index % len(group)], index)
        total = total.reduce(part.copy(last, "sc", number))
    return total


def _chain(group: Sequence[int], last: int, index: int) -> Ref:
    """The sum of chunk ``index`` of some ranks, each of which adds to that of the one before; the last is ``last``."""
    end = group.index(last) + 1
    first, *others = (*group[end:], *group[:end])
    total = chunk(first, "in", index)
    for r in others:
        total = chunk(r, "in", index).reduce(total)
    return total
