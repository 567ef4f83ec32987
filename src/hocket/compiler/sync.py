"""Synchronisation across thread blocks, and the schedule itself (paper section 5.2, last part).

A processing edge inside a thread block is kept by its order. One across thread blocks becomes a wait, unless other
waits and orders of the rank already imply it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hocket.ir.instr_dag import Arrival, Departure, InstrDag, connections
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step, ThreadBlock, Wait

Clock = NDArray[np.int32]
"""For each other thread block of a rank the last step known to have finished; -1 for none."""


def synchronize(dag: InstrDag, slots: int) -> Schedule:
    """Insert the waits that processing edges across thread blocks need, transitively reduced."""
    block_of, step_of, by_rank = dag.blocks, *_steps(dag)
    waiting, waited = bytearray(len(dag.instrs)), bytearray(len(dag.instrs))
    for i, before in enumerate(dag.after):
        for earlier in before:
            if block_of[earlier] != block_of[i]:
                waiting[i] = waited[earlier] = True
    asked = _asked(by_rank, block_of, waiting, waited) if any(waiting) else waiting
    connection = connections(dag)
    # The ends of each connection, and of the transfers whose messages lie in place.
    receives: list[Receive] = []
    sends: list[Send] = []
    receive_of: list[Receive] = []
    send_of: list[Send] = []
    for e, (edge, number) in enumerate(zip(dag.edges, connection, strict=True)):
        if number == len(sends):
            channel = dag.channel(e)
            assert channel is not None  # all have been given one
            receives.append(Receive(edge.src, channel))
            sends.append(Send(edge.dst, channel))
        receive, send = receives[number], sends[number]
        if edge.at is not None:
            receive, send = structs.replace(receive, at=edge.at), structs.replace(send, at=edge.at)
        receive_of.append(receive)
        send_of.append(send)
    ranks = []
    for rank, numbers in enumerate(by_rank):
        count = max(map(block_of.__getitem__, numbers), default=-1) + 1
        steps: list[list[Step]] = [[] for _ in range(count)]
        # The connections of each block, in the order of their first use.
        received: defaultdict[int, dict[int, None]] = defaultdict(dict)
        sent: defaultdict[int, dict[int, None]] = defaultdict(dict)
        nothing: Clock = np.full(count, -1, np.int32)
        clocks: list[Clock | None] = [None] * count  # None for a thread block that knows nothing
        finished: dict[int, Clock] = {}  # of those that are waited for and know something
        for i in numbers:
            instr, block = dag.instrs[i], block_of[i]
            waits: tuple[Wait, ...] = ()
            if waiting[i]:
                waits = _waits(dag.after[i], block, block_of, step_of, clocks, nothing, finished, bool(asked[i]))
            clock = clocks[block]
            if clock is not None and waited[i]:
                finished[i] = clock.copy()
            srcs: list[Source] = []
            for source in instr.srcs:
                if type(source) is Arrival:
                    received[block][connection[source.edge]] = None
                    srcs.append(receive_of[source.edge])
                else:
                    srcs.append(source)  # type: ignore[arg-type]
            dsts: list[Destination] = []
            for target in instr.dsts:
                if type(target) is Departure:
                    sent[block][connection[target.edge]] = None
                    dsts.append(send_of[target.edge])
                else:
                    dsts.append(target)  # type: ignore[arg-type]
            steps[block].append(Step(tuple(srcs), tuple(dsts), waits, instr.where))
        blocks = [
            ThreadBlock(
                tuple([receives[n] for n in received.get(b, ())]),
                tuple([sends[n] for n in sent.get(b, ())]),
                tuple(its),
            )
            for b, its in enumerate(steps)
        ]
        ranks.append(Rank(dag.scratch[rank], tuple(blocks)))
    return Schedule(dag.name, dag.collective, dag.protocol, slots, tuple(ranks))


def _steps(dag: InstrDag) -> tuple[list[int], list[list[int]]]:
    """Which step of its thread block each instruction is, and the instructions of each rank."""
    step: list[int] = []
    by_rank: list[list[int]] = [[] for _ in range(dag.collective.size)]
    lengths: list[list[int]] = [[] for _ in range(dag.collective.size)]
    for i, (instr, block) in enumerate(zip(dag.instrs, dag.blocks, strict=True)):
        of_rank = lengths[instr.rank]
        while len(of_rank) <= block:
            of_rank.append(0)
        step.append(of_rank[block])
        of_rank[block] += 1
        by_rank[instr.rank].append(i)
    return step, by_rank


def _asked(by_rank: list[list[int]], block_of: Sequence[int], waiting: bytearray, waited: bytearray) -> bytearray:
    """For each instruction whether what its thread block knows after it is of use: it is waited for, or another waits
    later in the block."""
    found = bytearray(len(block_of))
    for numbers in by_rank:
        useful: set[int] = set()
        for i in reversed(numbers):
            found[i] = waited[i] or block_of[i] in useful
            if found[i] or waiting[i]:
                useful.add(block_of[i])
    return found


def _waits(
    after: Sequence[int],
    block: int,
    block_of: Sequence[int],
    step_of: Sequence[int],
    clocks: list[Clock | None],
    nothing: Clock,
    finished: dict[int, Clock],
    learns: bool,
) -> tuple[Wait, ...]:
    """The waits of an instruction; its thread block learns what they imply, if ``learns``."""
    waits: list[tuple[int, int]] = []
    clock = clocks[block]
    # Later instructions know more, so what they imply need not be waited for again.
    for before in reversed(after):
        other, step = block_of[before], step_of[before]
        if other == block or (clock is not None and clock[other] >= step):
            continue
        waits.append((other, step))
        if not learns and len(after) == 1:
            break
        known = finished.get(before)
        if clock is None:
            clock = clocks[block] = nothing.copy() if known is None else known.copy()
        elif known is not None:
            np.maximum(clock, known, out=clock)
        clock[other] = step
    waits.sort()
    return tuple([Wait(other, step) for other, step in waits])
