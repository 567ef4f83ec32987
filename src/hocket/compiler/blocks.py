"""Thread block assignment (paper section 5.2, steps 2 and 4)."""

from __future__ import annotations

import heapq
from dataclasses import replace

from hocket.compiler.fuse import is_fused
from hocket.ir.instr_dag import Instr, InstrDag

End = tuple[int, bool, int, int | None]
"""One end of a connection: rank, whether it receives, peer, channel."""


def assign_thread_blocks(dag: InstrDag) -> InstrDag:
    """One thread block for each (send peer, receive peer, channel); local ones go where the last is oldest."""

    def ends(instr: Instr) -> list[End]:
        receiving: list[End] = [(instr.rank, True, dag.edges[e].src, dag.channel(e)) for e in instr.arrivals]
        return receiving + [(instr.rank, False, dag.edges[e].dst, dag.channel(e)) for e in instr.departures]

    used = [ends(instr) for instr in dag.instrs]
    partner: dict[End, End] = {}
    for instr, its in zip(dag.instrs, used, strict=True):
        if is_fused(instr):
            first, second = its
            partner[first], partner[second] = second, first
    block_of: dict[End, int] = {}
    blocks = [0] * dag.collective.size
    for instr, its in zip(dag.instrs, used, strict=True):
        for end in its:
            if end not in block_of:
                together = partner.get(end)
                if together is None or together not in block_of:
                    block_of[end] = blocks[instr.rank]
                    blocks[instr.rank] += 1
                else:
                    block_of[end] = block_of[together]
    blocks = [max(1, n) for n in blocks]
    latest = [[-1] * n for n in blocks]
    oldest: list[list[tuple[int, int]]] = [[(-1, b) for b in range(n)] for n in blocks]
    instrs: list[Instr] = []
    for i, instr in enumerate(dag.instrs):
        rank = instr.rank
        if used[i]:
            block = block_of[used[i][0]]
        else:
            heap = oldest[rank]
            while heap[0][0] != latest[rank][heap[0][1]]:
                _, stale = heapq.heappop(heap)
                heapq.heappush(heap, (latest[rank][stale], stale))
            block = heap[0][1]
        latest[rank][block] = i
        instrs.append(Instr(rank, instr.srcs, instr.dsts, instr.after, block, instr.where))
    return replace(dag, instrs=tuple(instrs))
