"""Recursive doubling: in round k the ranks whose numbers differ in bit k exchange all they have.

Few rounds, for small buffers (Thakur, Rabenseifner and Gropp, IJHPCA'05).
"""

from __future__ import annotations

from hocket import AllGather, AllReduce, Program, chunk


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Partners exchange their sums. In place; scratch for one buffer.

    Of p ranks, a power of two takes part. Of the first 2 (p - 2^k), each even one first hands its buffer to the odd one
    behind it, and is handed the result.
    """
    power = 1
    while 2 * power <= ranks:
        power *= 2
    folded = range(0, 2 * (ranks - power), 2)
    with Program(AllReduce(ranks, inplace=True), name="recursive_doubling_all_reduce", instances=instances) as p:
        for even in folded:
            chunk(even + 1, "in", 0).reduce(chunk(even, "in", 0))
        active = [rank for rank in range(ranks) if rank not in folded]
        for k in range(power.bit_length() - 1):
            for i in range(power):
                if not i >> k & 1:
                    mine, theirs = chunk(active[i], "in", 0), chunk(active[i + (1 << k)], "in", 0)
                    saved = mine.copy(active[i + (1 << k)], "sc", 0)
                    mine.reduce(theirs)
                    theirs.reduce(saved)
        for even in folded:
            chunk(even + 1, "in", 0).copy(even, "in", 0)
    return p


def all_gather(ranks: int, instances: int = 1) -> Program:
    """Partners exchange their blocks, which lie side by side. A power of two of ranks."""
    if ranks & ranks - 1:
        raise ValueError(f"recursive doubling takes a power of two of ranks here, not {ranks}")
    with Program(AllGather(ranks), name="recursive_doubling_all_gather", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", r)
        for k in range(ranks.bit_length() - 1):
            for r in range(ranks):
                first = r >> k << k
                chunk(r, "out", first, 1 << k).copy(r ^ 1 << k, "out", first)
    return p
