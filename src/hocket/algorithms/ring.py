"""Ring algorithms (paper section 7.1.1): bandwidth-optimal, p - 1 steps for each of reduce-scatter and all-gather.

Segmented as in Open MPI: each chunk goes round in several parts, which follow each other. Bidirectional: over both
links of every rank at once, so that nothing goes further than half around.
"""

from __future__ import annotations

from hocket import AllGather, AllReduce, Program, ReduceScatter, chunk


def all_reduce(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Each chunk goes around the ring twice: to be summed, then to be handed out. In place."""
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="ring_all_reduce", instances=instances) as p:
        for i in range(ranks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c, ch=_channel(i, channels))
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i, ch=_channel(i, channels))
    return p


def segmented_all_reduce(ranks: int, segments: int = 2, instances: int = 1) -> Program:
    """The ring with each of its p chunks in several segments, one after the other. In place."""
    with Program(
        AllReduce(ranks, chunks=ranks * segments, inplace=True), name="segmented_ring_all_reduce", instances=instances
    ) as p:
        for segment in range(segments):
            for i in range(ranks):
                index = i * segments + segment
                c = chunk((i + 1) % ranks, "in", index)
                for step in range(1, ranks):
                    c = chunk((i + step + 1) % ranks, "in", index).reduce(c)
                for step in range(1, ranks):
                    c = c.copy((i + step) % ranks, "in", index)
    return p


def bidirectional_all_reduce(ranks: int, instances: int = 1) -> Program:
    """Rank i sums chunk i from both sides, and hands it out to both. In place."""
    with Program(
        AllReduce(ranks, chunks=ranks, inplace=True), name="bidirectional_ring_all_reduce", instances=instances
    ) as p:
        sides = [(1, ranks // 2), (-1, (ranks - 1) // 2)]
        for far in range(ranks // 2, 0, -1):
            for i in range(ranks):
                for way, length in sides:
                    if far <= length:
                        near = chunk((i + way * (far - 1)) % ranks, "in", i)
                        near.reduce(chunk((i + way * far) % ranks, "in", i))
        for far in range(1, ranks // 2 + 1):
            for i in range(ranks):
                for way, length in sides:
                    if far <= length:
                        chunk((i + way * (far - 1)) % ranks, "in", i).copy((i + way * far) % ranks, "in", i)
    return p


def bidirectional_all_gather(ranks: int, instances: int = 1) -> Program:
    """Each rank's chunk goes half around the ring in one direction, and half in the other."""
    with Program(AllGather(ranks), name="bidirectional_ring_all_gather", instances=instances) as p:
        for r in range(ranks):
            own = chunk(r, "in", 0).copy(r, "out", r)
            for way, length in ((1, ranks // 2), (-1, (ranks - 1) // 2)):
                c = own
                for step in range(1, length + 1):
                    c = c.copy((r + way * step) % ranks, "out", r)
    return p


def all_gather(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Each rank's chunk goes around the ring once."""
    with Program(AllGather(ranks), name="ring_all_gather", instances=instances) as p:
        for r in range(ranks):
            c = chunk(r, "in", 0).copy(r, "out", r)
            for step in range(1, ranks):
                c = c.copy((r + step) % ranks, "out", r, ch=_channel(r, channels))
    return p


def reduce_scatter(ranks: int, channels: int = 1, instances: int = 1) -> Program:
    """Block r starts at rank r + 1 and is summed on its way around the ring to rank r. In place."""
    with Program(ReduceScatter(ranks, inplace=True), name="ring_reduce_scatter", instances=instances) as p:
        for r in range(ranks):
            c = chunk((r + 1) % ranks, "in", r)
            for step in range(1, ranks):
                c = chunk((r + step + 1) % ranks, "in", r).reduce(c, ch=_channel(r, channels))
    return p


def _channel(number: int, channels: int) -> int:
    """The channel of a chunk: they take turns."""
    if channels < 1:
        raise ValueError(f"a ring has at least 1 channel, not {channels}")
    return number % channels
