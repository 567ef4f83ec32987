"""k-nomial trees: the binomial tree with digits to base k for bits, so wider and less deep (as in MPICH and UCC).

Ranks count from the root, which is 0. The parent of a rank is the rank without its highest digit.
"""

from __future__ import annotations

from hocket import Broadcast, Program, Reduce, chunk


def _parent(child: int, radix: int) -> int:
    if radix < 2:
        raise ValueError(f"a k-nomial tree has a radix of at least 2, not {radix}")
    place = 1
    while place * radix <= child:
        place *= radix
    return child % place


def broadcast(ranks: int, radix: int = 4, root: int = 0, instances: int = 1) -> Program:
    """In each step, every rank that has the buffer sends it to k - 1 that do not. In place."""
    with Program(Broadcast(ranks, inplace=True, root=root), name="knomial_broadcast", instances=instances) as p:
        held = [chunk(root, "in", 0)]
        for child in range(1, ranks):
            held.append(held[_parent(child, radix)].copy((root + child) % ranks, "out", 0))
    return p


def reduce(ranks: int, radix: int = 4, root: int = 0, instances: int = 1) -> Program:
    """The broadcast backwards. In place."""
    with Program(Reduce(ranks, inplace=True, root=root), name="knomial_reduce", instances=instances) as p:
        sums = [chunk((root + r) % ranks, "in", 0) for r in range(ranks)]
        for child in reversed(range(1, ranks)):
            parent = _parent(child, radix)
            sums[parent] = sums[parent].reduce(sums[child])
    return p
