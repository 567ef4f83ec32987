"""Ring algorithms (paper section 7.1.1): bandwidth-optimal, p - 1 steps for each of reduce-scatter and all-gather."""

from __future__ import annotations

from hocket import AllGather, AllReduce, Program, ReduceScatter, chunk


def all_reduce(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Each chunk goes around the ring twice: to be summed, then to be handed out. In place."""
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="ring_all_reduce", instances=instances) as p:
        for i in range(ranks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c, ch=i % channels)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i, ch=i % channels)
    return p


def all_gather(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Each rank's chunk goes around the ring once."""
    with Program(AllGather(ranks), name="ring_all_gather", instances=instances) as p:
        for r in range(ranks):
            c = chunk(r, "in", 0).copy(r, "out", r)
            for step in range(1, ranks):
                c = c.copy((r + step) % ranks, "out", r, ch=r % channels)
    return p


def reduce_scatter(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Block r starts at rank r + 1 and is summed on its way around the ring to rank r. In place."""
    with Program(ReduceScatter(ranks, inplace=True), name="ring_reduce_scatter", instances=instances) as p:
        for r in range(ranks):
            c = chunk((r + 1) % ranks, "in", r)
            for step in range(1, ranks):
                c = chunk((r + step + 1) % ranks, "in", r).reduce(c, ch=r % channels)
    return p
