"""Synchronisation across thread blocks, and the schedule itself (paper section 5.2, last part).

A processing edge inside a thread block is kept by its order. One across thread blocks becomes a wait, unless other
waits and orders of the rank already imply it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.ir.instr_dag import InstrDag, connections, ends
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step, ThreadBlock, Wait

Clock = NDArray[np.int32]
"""For each thread block of a rank the last step known to have finished; -1 for none."""


def synchronize(dag: InstrDag, slots: int) -> Schedule:
    """Insert the waits that processing edges across thread blocks need, transitively reduced."""
    place, by_rank = _places(dag)
    waited = bytearray(len(dag.instrs))
    for before, (block, _) in zip(dag.after, place, strict=True):
        for earlier in before:
            if place[earlier][0] != block:
                waited[earlier] = True
    arrivals, departures = ends(dag)
    connection = connections(dag)
    receives: dict[int, Receive] = {}
    sends: dict[int, Send] = {}
    for e, (edge, number) in enumerate(zip(dag.edges, connection, strict=True)):
        if number not in sends:
            channel = dag.channel(e) or 0
            receives[number], sends[number] = Receive(edge.src, channel), Send(edge.dst, channel)
    ranks = []
    for rank, numbers in enumerate(by_rank):
        count = max((place[i][0] for i in numbers), default=-1) + 1
        steps: list[list[Step]] = [[] for _ in range(count)]
        received: list[dict[int, Receive]] = [{} for _ in range(count)]
        sent: list[dict[int, Send]] = [{} for _ in range(count)]
        clocks: list[Clock] = list(np.full((count, count), -1, np.int32))
        finished: dict[int, Clock] = {}
        for i in numbers:
            instr = dag.instrs[i]
            block, step = place[i]
            waits = _waits(dag.after[i], block, place, clocks[block], finished)
            clocks[block][block] = step
            if waited[i]:
                finished[i] = clocks[block].copy()
            # Ends of edges become ends of connections; the other operands are spans.
            srcs: tuple[Source, ...] = instr.srcs  # type: ignore[assignment]
            dsts: tuple[Destination, ...] = instr.dsts  # type: ignore[assignment]
            arrival, departure = arrivals[i], departures[i]
            if arrival is not None:
                number = connection[arrival]
                received[block][number] = receives[number]
                srcs = (receives[number], *srcs[1:])
            if departure is not None:
                number = connection[departure]
                sent[block][number] = sends[number]
                dsts = (sends[number], *dsts[1:])
            steps[block].append(Step(srcs, dsts, waits, instr.where))
        ranks.append(
            Rank(
                dag.scratch[rank],
                tuple(
                    ThreadBlock(tuple(received[b].values()), tuple(sent[b].values()), tuple(steps[b]))
                    for b in range(count)
                ),
            )
        )
    return Schedule(dag.name, dag.collective, dag.protocol, slots, tuple(ranks))


Place = tuple[int, int]
"""A thread block of a rank, and a step in it."""


def _places(dag: InstrDag) -> tuple[list[Place], list[list[int]]]:
    """Where each instruction goes, and the instructions of each rank."""
    place: list[Place] = []
    by_rank: list[list[int]] = [[] for _ in range(dag.collective.size)]
    lengths: list[list[int]] = [[] for _ in range(dag.collective.size)]
    for i, (instr, block) in enumerate(zip(dag.instrs, dag.blocks, strict=True)):
        of_rank = lengths[instr.rank]
        while len(of_rank) <= block:
            of_rank.append(0)
        place.append((block, of_rank[block]))
        of_rank[block] += 1
        by_rank[instr.rank].append(i)
    return place, by_rank


def _waits(
    after: tuple[int, ...], block: int, place: list[Place], clock: Clock, finished: dict[int, Clock]
) -> tuple[Wait, ...]:
    """The waits of one instruction; ``clock`` of its thread block learns what they imply."""
    waits: list[Place] = []
    # Later instructions know more, so what they imply need not be waited for again.
    for before in reversed(after):
        other, step = place[before]
        if other != block and clock[other] < step:
            waits.append((other, step))
            np.maximum(clock, finished[before], out=clock)
    return tuple([Wait(other, step) for other, step in sorted(waits)])
