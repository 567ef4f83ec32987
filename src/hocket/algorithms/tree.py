"""Binomial trees (Thakur, Rabenseifner and Gropp, IJHPCA'05): ceil(log2 p) steps, for small buffers.

Ranks count from the root, which is 0. The parent of a rank is the rank without its highest bit where whole buffers
move; where blocks do, it is the rank without its lowest bit, so that the blocks of a subtree lie side by side.
"""

from __future__ import annotations

from hocket import Broadcast, Gather, Program, Reduce, Scatter, chunk


def broadcast(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """In each step, every rank that has the buffer sends it to one that does not. In place."""
    with Program(Broadcast(ranks, inplace=True, root=root), name="tree_broadcast", instances=instances) as p:
        held = [chunk(root, "in", 0)]
        for child in range(1, ranks):
            parent = child - (1 << child.bit_length() - 1)
            held.append(held[parent].copy((root + child) % ranks, "out", 0))
    return p


def reduce(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The broadcast backwards: in each step, half of the ranks hand their sum to their parent. In place."""
    with Program(Reduce(ranks, inplace=True, root=root), name="tree_reduce", instances=instances) as p:
        sums = [chunk((root + r) % ranks, "in", 0) for r in range(ranks)]
        for child in reversed(range(1, ranks)):
            parent = child - (1 << child.bit_length() - 1)
            sums[parent] = sums[parent].reduce(sums[child])
    return p


def gather(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """Each rank hands the blocks of its subtree to its parent in one piece; the root puts them in their places."""
    with Program(Gather(ranks, inplace=True, root=root), name="tree_gather", instances=instances) as p:
        for child in reversed(range(1, ranks)):
            bit = child & -child
            rank, parent, count = (root + child) % ranks, (root + child - bit) % ranks, min(bit, ranks - child)
            blocks = chunk(rank, "in", 0)
            if count > 1:
                blocks.copy(rank, "sc", 0)
                blocks = chunk(rank, "sc", 0, count)
            blocks.copy(parent, "sc", bit)
        for child in range(1, ranks):
            chunk(root, "sc", child).copy(root, "out", (root + child) % ranks)
    return p


def scatter(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The gather backwards: each rank gets the blocks of its subtree in one piece and hands its children theirs."""
    with Program(Scatter(ranks, inplace=True, root=root), name="tree_scatter", instances=instances) as p:
        for child in range(1, ranks):
            chunk(root, "in", (root + child) % ranks).copy(root, "sc", child)
        for child in sorted(range(1, ranks), key=lambda rank: -(rank & -rank)):  # large subtrees first
            bit = child & -child
            rank, parent, count = (root + child) % ranks, (root + child - bit) % ranks, min(bit, ranks - child)
            blocks = chunk(parent, "sc", bit, count)
            if count > 1:
                blocks.copy(rank, "sc", 0)
                blocks = chunk(rank, "sc", 0)
            blocks.copy(rank, "out", 0)
    return p
