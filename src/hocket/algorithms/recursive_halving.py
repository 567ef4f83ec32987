"""Recursive halving: in each round partners split what they hold, and each sums one half of it.

ReduceScatter in few rounds; with recursive doubling behind it Rabenseifner's AllReduce, which sends no more than a ring
where p is a power of two (Rabenseifner, ICCS'04; Thakur, Rabenseifner and Gropp, IJHPCA'05).
"""

from __future__ import annotations

from hocket import AllReduce, Program, ReduceScatter, chunk


def _halve(ranks: list[int]) -> None:
    """Rank i of some, a power of two, ends with the sum of chunk i."""
    half = len(ranks) // 2
    while half:
        for i, rank in enumerate(ranks):
            first = (i ^ half) // half * half  # the half that the partner goes on with
            chunk(ranks[i ^ half], "in", first, half).reduce(chunk(rank, "in", first, half))
        half //= 2


def reduce_scatter(ranks: int, instances: int = 1) -> Program:
    """Partners are p / 2 apart, then p / 4, then ... In place. A power of two of ranks."""
    if ranks & ranks - 1:
        raise ValueError(f"recursive halving takes a power of two of ranks here, not {ranks}")
    with Program(ReduceScatter(ranks, inplace=True), name="recursive_halving_reduce_scatter", instances=instances) as p:
        _halve(list(range(ranks)))
    return p


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Rabenseifner's: halving among a power of two of ranks, then doubling. In place.

    Of the first 2 (p - 2^k) ranks, each even one and the odd one behind it first sum one half of the buffer each; the
    even one collects both and takes part, and hands the result over.
    """
    power = 1
    while 2 * power <= ranks:
        power *= 2
    half = power // 2
    folded = range(1, 2 * (ranks - power), 2)
    with Program(
        AllReduce(ranks, chunks=power, inplace=True), name="recursive_halving_all_reduce", instances=instances
    ) as p:
        for odd in folded:
            upper = chunk(odd, "in", half, half).reduce(chunk(odd - 1, "in", half, half))
            chunk(odd - 1, "in", 0, half).reduce(chunk(odd, "in", 0, half))
            upper.copy(odd - 1, "in", half)
        active = [rank for rank in range(ranks) if rank not in folded]
        _halve(active)
        for k in range(power.bit_length() - 1):
            for i, rank in enumerate(active):
                first = i >> k << k
                chunk(rank, "in", first, 1 << k).copy(active[i ^ 1 << k], "in", first)
        for odd in folded:
            chunk(odd - 1, "in", 0, power).copy(odd, "in", 0)
    return p
