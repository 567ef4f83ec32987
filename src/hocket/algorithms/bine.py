"""Bine trees (De Sensi et al., SC'25): binomial trees over negabinary rank numbers, whose partners lie nearer.

The tree with halving distances, for a power of two of ranks, counted from the root: a rank that has the buffer has 0s
only, or 1s only, in the lowest k bits of its number to base -2, and its k-th child has the others.
"""

from __future__ import annotations

from hocket import Broadcast, Program, Reduce, chunk


def _edges(ranks: int) -> list[tuple[int, int]]:
    """(parent, child), in the order of the steps."""
    if ranks & ranks - 1:
        raise ValueError(f"a Bine tree takes a power of two of ranks here, not {ranks}")
    found: list[tuple[int, int]] = []
    for k in range(ranks.bit_length() - 1, 0, -1):
        ones = (1 - (-2) ** k) // 3
        for rank in (0, *(child for _, child in found)):
            found.append((rank, (rank - ones if rank % 2 else rank + ones) % ranks))
    return found


def broadcast(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """Every rank that has the buffer sends it to one that does not. In place."""
    with Program(Broadcast(ranks, inplace=True, root=root), name="bine_broadcast", instances=instances) as p:
        for parent, child in _edges(ranks):
            chunk((root + parent) % ranks, "out", 0).copy((root + child) % ranks, "out", 0)
    return p


def reduce(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The broadcast backwards. In place."""
    with Program(Reduce(ranks, inplace=True, root=root), name="bine_reduce", instances=instances) as p:
        for parent, child in reversed(_edges(ranks)):
            chunk((root + parent) % ranks, "in", 0).reduce(chunk((root + child) % ranks, "in", 0))
    return p
