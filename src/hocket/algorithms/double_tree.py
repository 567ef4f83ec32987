"""Double binary trees (Sanders, Speck and Träff, Parallel Computing'09; NCCL from 2.4 on).

Half of the buffer travels one binary tree, the other half a second one, in which the leaves of the first are inside:
so no rank sends more than about the whole buffer a phase, where the inner ranks of one tree would send it twice.
"""

from __future__ import annotations

from hocket import AllReduce, Broadcast, Program, chunk


def _edges(nodes: int) -> list[tuple[int, int]]:
    """(parent, child), parents first, of the binary tree of 1 to nodes - 1 in order, and of 0 above its top.

    The lowest set bit is a node's height; its parent is next to it, one bit higher, or where that is no node, below.
    """
    found = []
    for child in sorted(range(1, nodes), key=lambda node: -(node & -node)):
        low = child & -child
        parent = (child ^ low) | low << 1
        found.append((parent if parent < nodes else child ^ low, child))
    return found


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Each half is summed up its tree, and handed down again. In place.

    The second tree is the first one mirrored, for odd p shifted by one rank.
    """
    with Program(AllReduce(ranks, chunks=2, inplace=True), name="double_tree_all_reduce", instances=instances) as p:
        second = [(node + 1) % ranks if ranks % 2 else ranks - 1 - node for node in range(ranks)]
        trees = (range(ranks), second)
        for parent, child in reversed(_edges(ranks)):
            for half, rank in enumerate(trees):
                chunk(rank[parent], "in", half).reduce(chunk(rank[child], "in", half))
        for parent, child in _edges(ranks):
            for half, rank in enumerate(trees):
                chunk(rank[parent], "in", half).copy(rank[child], "in", half)
    return p


def broadcast(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The root hands one half to the top of either tree of the other ranks. In place."""
    with Program(Broadcast(ranks, 2, inplace=True, root=root), name="double_tree_broadcast", instances=instances) as p:
        others = ranks - 1
        second = [0, *(node % others + 1 if others % 2 else ranks - node for node in range(1, ranks))]
        for parent, child in _edges(ranks):
            for half, rank in enumerate((range(ranks), second)):
                source, to = (root + rank[parent]) % ranks, (root + rank[child]) % ranks
                chunk(source, "out", half).copy(to, "out", half)
    return p
