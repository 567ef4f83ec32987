"""Circulant graphs: every rank has a neighbour at each of ceil(log2 p) distances, for any p, and one round for each.

The distances halve p, rounded up, down to 1: 9 ranks have 5, 3, 2 and 1. ReduceScatter and AllReduce are those of
Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms" (2024, arXiv:2410.14234); the Broadcast is that
of Träff, "Round-optimal n-Block Broadcast Schedules in Logarithmic Time" (2023, arXiv:2312.11236).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hocket import AllGather, AllReduce, Broadcast, Program, ReduceScatter, chunk


def _distances(ranks: int) -> list[int]:
    """p, then halves rounded up, to 1."""
    found = [ranks]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def _runs(first: int, count: int, ranks: int) -> Iterator[tuple[int, int]]:
    """``count`` blocks from ``first`` on, as (index, count) of one span, or of two where they wrap around."""
    first %= ranks
    yield first, min(count, ranks - first)
    if first + count > ranks:
        yield 0, first + count - ranks


def _reduce_scatter(ranks: int) -> None:
    """Rank r goes on with blocks r to r + distance - 1, and hands its sums of the others to r + distance."""
    for held, distance in pairwise(_distances(ranks)):
        for r in range(ranks):
            to = (r + distance) % ranks
            for index, count in _runs(to, held - distance, ranks):
                chunk(to, "in", index, count).reduce(chunk(r, "in", index, count))


def _all_gather(ranks: int) -> None:
    """The reduce-scatter backwards, with copies."""
    for wanted, distance in reversed(list(pairwise(_distances(ranks)))):
        for r in range(ranks):
            for index, count in _runs(r, wanted - distance, ranks):
                chunk(r, "out", index, count).copy((r - distance) % ranks, "out", index)


def reduce_scatter(ranks: int, instances: int = 1) -> Program:
    """In each round a rank hands half of its sums on. In place."""
    with Program(ReduceScatter(ranks, inplace=True), name="circulant_reduce_scatter", instances=instances) as p:
        _reduce_scatter(ranks)
    return p


def all_gather(ranks: int, instances: int = 1) -> Program:
    """In each round a rank hands on what it has, the same distances in ascending order."""
    with Program(AllGather(ranks), name="circulant_all_gather", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", r)
        _all_gather(ranks)
    return p


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Reduce-scatter, then all-gather. In place."""
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="circulant_all_reduce", instances=instances) as p:
        _reduce_scatter(ranks)
        _all_gather(ranks)
    return p


def broadcast(ranks: int, blocks: int = 1, root: int = 0, instances: int = 1) -> Program:
    """The buffer in n blocks, in n - 1 + ceil(log2 p) rounds, of which each has one distance in turn. In place.

    Ranks count from the root. What a rank receives over each distance follows a table; in every following phase of
    ceil(log2 p) rounds it is as many blocks further, and the last block stands for those behind it.
    """
    with Program(
        Broadcast(ranks, blocks, inplace=True, root=root), name="circulant_broadcast", instances=instances
    ) as p:
        distances = _distances(ranks)[:0:-1]
        phase = len(distances)
        tables = [_received(rank, ranks) for rank in range(ranks)]
        idle = -(blocks - 1) % phase if phase else 0  # rounds left out, so that the last phase is a whole one
        held = {(0, block) for block in range(blocks)}
        for number in range(idle, idle + blocks - 1 + phase if phase else 0):
            k = number % phase
            for to in range(1, ranks):
                block = min(tables[to][k] + number - k - idle, blocks - 1)
                if block >= 0 and (to, block) not in held:
                    source = (to - distances[k]) % ranks
                    chunk((source + root) % ranks, "out", block).copy((to + root) % ranks, "out", block)
                    held.add((to, block))
    return p


def _received(rank: int, ranks: int) -> list[int]:
    """For each distance, ascending, the block that a rank receives in the first phase; before the first are negative.

    Every rank is a sum of different distances, largest first; the place of the smallest of these is the number of the
    first block it gets, straight down that path from the root. Over each distance it gets, a phase later, the first
    block of a rank that lies between this distance and the next behind it, and no block twice.
    """
    distances = _distances(ranks)[::-1]
    phase, rest, own = len(distances) - 1, rank, len(distances) - 1
    for k in reversed(range(phase)):
        if rest >= distances[k]:
            rest, own = rest - distances[k], k
    unused = [k for k in range(phase, -1, -1) if k != own]
    found: list[int] = []

    def follow(path: int, step: int, before: int) -> None:
        """Take the paths from the root that go on from ``path`` with steps of at most number ``step``."""
        for k in range(step, -1, -1):
            end = path + distances[k]
            if k in unused and len(found) < phase and end < before and end <= ranks + rank - distances[len(found)]:
                if end <= ranks + rank - distances[len(found) + 1]:
                    follow(end, k, before)
                if len(found) == phase or path > ranks + rank - distances[len(found) + 1]:
                    return
                before = end
                found.append(k)
                unused.remove(k)

    follow(0, phase, 2 * ranks)
    return [own if k == phase else k - phase for k in found]
