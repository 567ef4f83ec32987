"""Bruck's algorithms (Bruck, Ho, Kipnis, Upfal and Weathersby, TPDS'97): ceil(log2 p) rounds, for any p.

In round k every rank sends to one peer, 2^k away. The paper keeps blocks in an order relative to the rank, and turns
them at the end; here the AllGather puts them into their places at once, in two spans where they wrap around.
"""

from __future__ import annotations

from hocket import AllGather, AllToAll, Program, chunk


def all_gather(ranks: int, instances: int = 1) -> Program:
    """Rank r, which has the blocks r to r + 2^k - 1, hands them to rank r - 2^k, in the last round as many as lack."""
    with Program(AllGather(ranks), name="bruck_all_gather", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", r)
        held = 1
        while held < ranks:
            for r in range(ranks):
                count = min(held, ranks - held)
                within = min(count, ranks - r)
                chunk(r, "out", r, within).copy((r - held) % ranks, "out", r)
                if within < count:
                    chunk(r, "out", 0, count - within).copy((r - held) % ranks, "out", 0)
            held *= 2
    return p


def all_to_all(ranks: int, instances: int = 1) -> Program:
    """The block for the rank i further travels the distances 2^k of the bits of i. Scratch for two buffers.

    Blocks with bit k set are runs of 2^k side by side, each a send of round k. A run arrives in the second half of the
    scratch, because its place is still being sent from, and is then put there.
    """
    with Program(AllToAll(ranks), name="bruck_all_to_all", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", r, ranks - r).copy(r, "sc", 0)
            if r:
                chunk(r, "in", 0, r).copy(r, "sc", ranks - r)
        for k in range((ranks - 1).bit_length()):
            for first in range(1 << k, ranks, 2 << k):
                count = min(1 << k, ranks - first)
                for r in range(ranks):
                    chunk(r, "sc", first, count).copy((r + (1 << k)) % ranks, "sc", ranks + first)
                for r in range(ranks):
                    chunk(r, "sc", ranks + first, count).copy(r, "sc", first)
        for r in range(ranks):
            for i in range(ranks):
                chunk(r, "sc", i).copy(r, "out", (r - i) % ranks)
    return p
