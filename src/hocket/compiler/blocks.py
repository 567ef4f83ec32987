"""Thread block assignment (paper section 5.2, steps 2 and 4)."""

from __future__ import annotations

import heapq
from dataclasses import replace

from hocket.ir.instr_dag import InstrDag, connections, ends


def assign_thread_blocks(dag: InstrDag) -> InstrDag:
    """One thread block for each (send peer, receive peer, channel); local ones go where the last is oldest."""
    connection = connections(dag)
    count = max(connection, default=-1) + 1
    # An end of a connection is a number: that of the connection where it sends, ``count`` more where it receives.
    arrivals, departures = ends(dag)
    receives = [None if edge is None else connection[edge] + count for edge in arrivals]
    sends = [None if edge is None else connection[edge] for edge in departures]
    partner: list[int | None] = [None] * (2 * count)
    for receiving, sending in zip(receives, sends, strict=True):
        if sending is not None and receiving is not None:
            partner[sending], partner[receiving] = receiving, sending
    block_of: list[int | None] = [None] * (2 * count)
    blocks = [0] * dag.collective.size
    ranks = [instr.rank for instr in dag.instrs]
    for rank, *its in zip(ranks, receives, sends, strict=True):
        for end in its:
            if end is not None and block_of[end] is None:
                together = partner[end]
                block = None if together is None else block_of[together]
                if block is None:
                    block = blocks[rank]
                    blocks[rank] += 1
                block_of[end] = block
    blocks = [max(1, n) for n in blocks]
    latest = [[-1] * n for n in blocks]
    oldest: list[list[tuple[int, int]]] = [[(-1, b) for b in range(n)] for n in blocks]
    assigned: list[int] = []
    for i, (rank, receiving, sending) in enumerate(zip(ranks, receives, sends, strict=True)):
        end = sending if receiving is None else receiving
        block = None if end is None else block_of[end]
        if block is None:
            heap = oldest[rank]
            while heap[0][0] != latest[rank][heap[0][1]]:
                _, stale = heapq.heappop(heap)
                heapq.heappush(heap, (latest[rank][stale], stale))
            block = heap[0][1]
        latest[rank][block] = i
        assigned.append(block)
    return replace(dag, blocks=tuple(assigned))
