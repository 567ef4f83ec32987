"""Thread block assignment (paper section 5.2, steps 2 and 4)."""

from __future__ import annotations

import heapq
from dataclasses import replace

from hocket.ir.instr_dag import Arrival, Departure, InstrDag, connections


def assign_thread_blocks(dag: InstrDag) -> InstrDag:
    """One thread block for all connections that an instruction uses together; the paper's has one of each direction.

    Instructions without any go where the last one is oldest.
    """
    connection = connections(dag)
    count = max(connection, default=-1) + 1
    # An end of a connection is a number: that of the connection where it sends, ``count`` more where it receives.
    ends: list[list[int]] = []
    together = list(range(2 * count))  # a forest: ends of one tree share a thread block
    for instr in dag.instrs:
        its = [connection[s.edge] + count for s in instr.srcs if type(s) is Arrival]
        its += [connection[d.edge] for d in instr.dsts if type(d) is Departure]
        ends.append(its)
        for other in its[1:]:
            together[_root(together, other)] = _root(together, its[0])
    block_of: list[int | None] = [None] * (2 * count)
    blocks = [0] * dag.collective.size
    ranks = [instr.rank for instr in dag.instrs]
    for rank, its in zip(ranks, ends, strict=True):
        if its:
            root = _root(together, its[0])
            if block_of[root] is None:
                block_of[root] = blocks[rank]
                blocks[rank] += 1
    blocks = [max(1, n) for n in blocks]
    latest = [[-1] * n for n in blocks]
    oldest: list[list[tuple[int, int]]] = [[(-1, b) for b in range(n)] for n in blocks]
    assigned: list[int] = []
    for i, (rank, its) in enumerate(zip(ranks, ends, strict=True)):
        block = block_of[_root(together, its[0])] if its else None
        if block is None:
            heap = oldest[rank]
            while heap[0][0] != latest[rank][heap[0][1]]:
                _, stale = heapq.heappop(heap)
                heapq.heappush(heap, (latest[rank][stale], stale))
            block = heap[0][1]
        latest[rank][block] = i
        assigned.append(block)
    return replace(dag, blocks=tuple(assigned))


def _root(forest: list[int], node: int) -> int:
    while forest[node] != node:
        forest[node] = forest[forest[node]]
        node = forest[node]
    return node
