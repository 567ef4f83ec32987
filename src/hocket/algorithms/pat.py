"""PAT, parallel aggregated trees, as in NCCL from 2.23 on (Jeaugey, 2025, arXiv:2506.20252), without a buffer limit.

Every block travels a binomial tree of its own, for any p: Bruck's rounds with the farthest distance first, while there
is least to send. The blocks of one round lie apart, so each is a send of its own; NCCL packs them into one message.
"""

from __future__ import annotations

from hocket import AllGather, Program, ReduceScatter, chunk


def all_gather(ranks: int, instances: int = 1) -> Program:
    """Block b goes from ranks b + i to b + i + distance, for the largest power of two first."""
    with Program(AllGather(ranks), name="pat_all_gather", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", r)
        for k in reversed(range((ranks - 1).bit_length())):
            for i in range(0, ranks - (1 << k), 2 << k):
                for block in range(ranks):
                    sender, receiver = (block + i) % ranks, (block + i + (1 << k)) % ranks
                    chunk(sender, "out", block).copy(receiver, "out", block)
    return p


def reduce_scatter(ranks: int, instances: int = 1) -> Program:
    """The trees backwards: nearest first, and the farthest distance is left for complete sums. In place."""
    with Program(ReduceScatter(ranks, inplace=True), name="pat_reduce_scatter", instances=instances) as p:
        for k in range((ranks - 1).bit_length()):
            for i in range(0, ranks - (1 << k), 2 << k):
                for block in range(ranks):
                    sender, receiver = (block + i + (1 << k)) % ranks, (block + i) % ranks
                    chunk(receiver, "in", block).reduce(chunk(sender, "in", block))
    return p
