"""Hierarchical AllReduce (paper section 2, Figures 1 and 3) for nodes x gpus ranks, and for more levels."""

from __future__ import annotations

from math import prod

from hocket import AllReduce, Program, chunk, parallelize


def reduce_scatter(ranks: list[int], offset: int, count: int, ch: int) -> None:
    """Figure 3b, lines 4 to 11: ring ReduceScatter among some ranks."""
    for r in range(len(ranks)):
        c = chunk(ranks[(r + 1) % len(ranks)], "in", offset + r * count, count)
        for step in range(1, len(ranks)):
            c = chunk(ranks[(step + r + 1) % len(ranks)], "in", offset + r * count, count).reduce(c, ch=ch)


def all_gather(ranks: list[int], offset: int, count: int, ch: int) -> None:
    """Figure 3b, lines 13 to 20: ring AllGather among some ranks."""
    for r in range(len(ranks)):
        c = chunk(ranks[r], "in", offset + r * count, count)
        for step in range(1, len(ranks)):
            c = c.copy(ranks[(step + r) % len(ranks)], "in", offset + r * count, count, ch=ch)


def all_reduce(nodes: int, gpus: int, parallel: int = 1, instances: int = 1) -> Program:
    """Reduce-scatter within nodes, reduce-scatter and all-gather across, all-gather within.

    The channels are those of the paper's section 5.1; ``parallel`` splits the phases within a node. In place.
    """
    with Program(
        AllReduce((nodes, gpus), chunks=nodes * gpus, inplace=True), name="hierarchical_all_reduce", instances=instances
    ) as p:
        local = [[g + n * gpus for g in range(gpus)] for n in range(nodes)]
        cross = [[g + n * gpus for n in range(nodes)] for g in range(gpus)]
        with parallelize(parallel):
            for ranks in local:
                reduce_scatter(ranks, 0, nodes, ch=0)
        for g, ranks in enumerate(cross):
            reduce_scatter(ranks, g * nodes, 1, ch=1)
            all_gather(ranks, g * nodes, 1, ch=1)
        with parallelize(parallel):
            for ranks in local:
                all_gather(ranks, 0, nodes, ch=2)
    return p


def multilevel_all_reduce(levels: tuple[int, ...], instances: int = 1) -> Program:
    """The same with any number of levels, the outermost first: (2, 4, 8) is 2 racks of 4 nodes of 8 ranks. In place.

    Rings reduce-scatter level by level from the innermost out, each rank the part it was left with before, and
    all-gather on the way back.
    """
    ranks = prod(levels)
    with Program(
        AllReduce(levels if len(levels) > 1 else ranks, chunks=ranks, inplace=True),
        name="multilevel_all_reduce",
        instances=instances,
    ) as p:
        rings = []
        apart, part, first = 1, ranks, [0] * ranks
        for ch, size in enumerate(reversed(levels)):
            part //= size
            for low in range(ranks):
                if low // apart % size == 0:
                    rings.append(([low + apart * i for i in range(size)], first[low], part, ch))
            first = [start + rank // apart % size * part for rank, start in enumerate(first)]
            apart *= size
        for ring in rings:
            reduce_scatter(*ring)
        for ring in reversed(rings):
            all_gather(*ring)
    return p
