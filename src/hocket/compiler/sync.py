"""Synchronisation across thread blocks, and the schedule itself (paper section 5.2, last part).

A processing edge inside a thread block is kept by its order. One across thread blocks becomes a wait, unless other
waits and orders of the rank already imply it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.ir.instr_dag import Arrival, Departure, Instr, InstrDag
from hocket.ir.schedule import (
    Destination,
    Rank,
    Receive,
    Schedule,
    Send,
    Source,
    Step,
    ThreadBlock,
    Wait,
)

Clock = NDArray[np.int32]
"""For each thread block of a rank the last step known to have finished; -1 for none."""


def synchronize(dag: InstrDag, slots: int) -> Schedule:
    """Insert the waits that processing edges across thread blocks need, transitively reduced."""
    place: list[tuple[int, int]] = []
    lengths: list[list[int]] = [[] for _ in range(dag.collective.size)]
    waited = bytearray(len(dag.instrs))
    by_rank: list[list[int]] = [[] for _ in range(dag.collective.size)]
    for i, instr in enumerate(dag.instrs):
        block = instr.thread_block
        assert block is not None
        of_rank = lengths[instr.rank]
        while len(of_rank) <= block:
            of_rank.append(0)
        place.append((block, of_rank[block]))
        of_rank[block] += 1
        by_rank[instr.rank].append(i)
        for before in instr.after:
            if place[before][0] != block:
                waited[before] = True
    receives = [Receive(edge.src, dag.channel(e) or 0) for e, edge in enumerate(dag.edges)]
    sends = [Send(edge.dst, dag.channel(e) or 0) for e, edge in enumerate(dag.edges)]
    ranks = []
    for rank, numbers in enumerate(by_rank):
        blocks: list[list[Step]] = [[] for _ in lengths[rank]]
        ends: list[tuple[dict[Receive, None], dict[Send, None]]] = [({}, {}) for _ in blocks]
        clocks: list[Clock] = [np.full(len(blocks), -1, np.int32) for _ in blocks]
        finished: dict[int, Clock] = {}
        for i in numbers:
            instr = dag.instrs[i]
            block, step = place[i]
            waits = _waits(instr, block, place, clocks[block], finished)
            clocks[block][block] = step
            if waited[i]:
                finished[i] = clocks[block].copy()
            srcs: list[Source] = []
            dsts: list[Destination] = []
            for source in instr.srcs:
                if type(source) is Arrival:
                    ends[block][0][receives[source.edge]] = None
                    srcs.append(receives[source.edge])
                else:
                    assert not isinstance(source, Arrival)
                    srcs.append(source)
            for target in instr.dsts:
                if type(target) is Departure:
                    ends[block][1][sends[target.edge]] = None
                    dsts.append(sends[target.edge])
                else:
                    assert not isinstance(target, Departure)
                    dsts.append(target)
            blocks[block].append(Step(tuple(srcs), tuple(dsts), waits, instr.where))
        ranks.append(
            Rank(
                dag.scratch[rank],
                tuple(
                    ThreadBlock(tuple(received), tuple(sent), tuple(steps))
                    for steps, (received, sent) in zip(blocks, ends, strict=True)
                ),
            )
        )
    return Schedule(dag.name, dag.collective, dag.protocol, slots, tuple(ranks))


def _waits(
    instr: Instr, block: int, place: list[tuple[int, int]], clock: Clock, finished: dict[int, Clock]
) -> tuple[Wait, ...]:
    """The waits of one instruction; ``clock`` of its thread block learns what they imply."""
    waits: list[Wait] = []
    # Later instructions know more, so what they imply need not be waited for again.
    for before in reversed(instr.after):
        other, step = place[before]
        if other != block and clock[other] < step:
            waits.append(Wait(other, step))
            np.maximum(clock, finished[before], out=clock)
    return tuple(sorted(waits, key=lambda wait: (wait.thread_block, wait.step)))
