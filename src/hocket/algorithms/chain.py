"""Chains, as NCCL broadcasts and reduces along its rings: every rank has one neighbour on either side.

A rank sends each byte at most once, so on large buffers, which move tile by tile, all links are busy at once; a single
byte takes p - 1 hops.
"""

from __future__ import annotations

from hocket import Broadcast, Program, Reduce, chunk


def broadcast(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The root's buffer goes from rank to rank, in ascending order from the root. In place."""
    with Program(Broadcast(ranks, inplace=True, root=root), name="chain_broadcast", instances=instances) as p:
        c = chunk(root, "in", 0)
        for step in range(1, ranks):
            c = c.copy((root + step) % ranks, "out", 0)
    return p


def reduce(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """A sum that starts behind the root collects every rank's buffer on its way around to the root. In place."""
    with Program(Reduce(ranks, inplace=True, root=root), name="chain_reduce", instances=instances) as p:
        c = chunk((root + 1) % ranks, "in", 0)
        for step in range(2, ranks + 1):
            c = chunk((root + step) % ranks, "in", 0).reduce(c)
    return p
