"""Scatter and all-gather (van de Geijn; Barnett et al., SHPCC'94): a Broadcast of large buffers.

The root sends about twice the buffer, whatever the number of ranks, and the others no more.
"""

from __future__ import annotations

from hocket import Broadcast, Program, chunk


def broadcast(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """Block i goes down a binomial tree to rank i, counted from the root, then around the ring. In place.

    The root needs no block again: where one would pass it, it sends its own on at once.
    """
    with Program(
        Broadcast(ranks, ranks, inplace=True, root=root), name="scatter_allgather_broadcast", instances=instances
    ) as p:
        for child in sorted(range(1, ranks), key=lambda rank: -(rank & -rank)):  # large subtrees first
            subtree = child & -child
            parent = child - subtree
            blocks = chunk((root + parent) % ranks, "out", child, min(subtree, ranks - child))
            blocks.copy((root + child) % ranks, "out", child)
        for step in range(1, ranks):
            for i in range(ranks):
                to = (i + step) % ranks
                if to:
                    chunk((root + to - 1) % ranks, "out", i).copy((root + to) % ranks, "out", i)
    return p
