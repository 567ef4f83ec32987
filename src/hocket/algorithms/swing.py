"""Swing (De Sensi, Bonato, Saam and Hoefler, NSDI'24): recursive halving and doubling with near partners on a ring.

In step s, even ranks have their partner sum of (-2)^i for i <= s further, odd ranks as much behind: 1, -1, 3, -5, ...
"""

from __future__ import annotations

from hocket import AllReduce, Program, chunk


def _partner(rank: int, step: int, ranks: int) -> int:
    distance: int = (1 - (-2) ** (step + 1)) // 3
    return (rank - distance if rank % 2 else rank + distance) % ranks


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Reduce-scatter with growing distances, all-gather with shrinking ones. In place. An even number of ranks.

    Block b spreads from rank b to each holder's partner, the last step first; where ranks are no power of two, some
    partner has it already and is left out. Blocks are summed the same ways backwards.
    """
    if ranks % 2:
        raise ValueError(f"Swing takes an even number of ranks, not {ranks}")
    steps = (ranks - 1).bit_length()
    ways: list[list[tuple[int, int, int]]] = [[] for _ in range(steps)]
    for block in range(ranks):
        holders = [block]
        for step in reversed(range(steps)):
            for rank in tuple(holders):
                if (to := _partner(rank, step, ranks)) not in holders:
                    ways[step].append((block, rank, to))
                    holders.append(to)
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="swing_all_reduce", instances=instances) as p:
        for way in ways:
            for block, rank, to in way:
                chunk(rank, "in", block).reduce(chunk(to, "in", block))
        for way in reversed(ways):
            for block, rank, to in way:
                chunk(rank, "in", block).copy(to, "in", block)
    return p
