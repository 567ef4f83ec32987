"""Thread block assignment (paper section 5.2, steps 2 and 4)."""

from __future__ import annotations

import heapq
from dataclasses import replace

from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Arrival, InstrDag, connections


def assign_thread_blocks(dag: InstrDag) -> InstrDag:
    """One thread block for all connections that an instruction uses together; the paper's has one of each direction.

    Instructions without any go where the last one is oldest.
    """
    connection = connections(dag)
    count = max(connection, default=-1) + 1
    # An end of a connection is a number: that of the connection where it sends, ``count`` more where it receives.
    together = list(range(2 * count))  # a forest: ends of one tree share a thread block
    ends: list[int | None] = []  # one of each instruction that has any
    for instr in dag.instrs:
        end: int | None = None
        for operand in instr.srcs + instr.dsts:
            if not isinstance(operand, Span):
                other = connection[operand.edge] + (count if type(operand) is Arrival else 0)
                if end is None:
                    end = other
                else:
                    together[_root(together, other)] = _root(together, end)
        ends.append(end)
    block_of: list[int | None] = [None] * (2 * count)
    blocks = [0] * dag.collective.size
    ranks = [instr.rank for instr in dag.instrs]
    roots = [None if end is None else _root(together, end) for end in ends]
    for rank, root in zip(ranks, roots, strict=True):
        if root is not None and block_of[root] is None:
            block_of[root] = blocks[rank]
            blocks[rank] += 1
    blocks = [max(1, n) for n in blocks]
    latest = [[-1] * n for n in blocks]
    oldest: list[list[tuple[int, int]]] = [[(-1, b) for b in range(n)] for n in blocks]
    assigned: list[int] = []
    for i, (rank, root) in enumerate(zip(ranks, roots, strict=True)):
        block = None if root is None else block_of[root]
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
