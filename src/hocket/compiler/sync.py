"""Synchronisation across thread blocks, and the schedule itself (paper section 5.2, last part).

A processing edge inside a thread block is kept by its order. One across thread blocks becomes a wait, unless other
waits and orders of the rank already imply it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hocket.ir.instr_dag import Arrival, Departure, Instr, InstrDag, connections
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
    ends = _Ends(dag)
    ranks = []
    for rank, numbers in enumerate(by_rank):
        count = max(map(block_of.__getitem__, numbers), default=-1) + 1
        blocks = [_Block(ends) for _ in range(count)]
        clocks = _Clocks(dag, step_of, count)
        for i in numbers:
            waits = clocks.waits(i, bool(asked[i])) if waiting[i] else ()
            if waited[i]:
                clocks.remember(i)
            blocks[block_of[i]].add(dag.instrs[i], waits)
        ranks.append(Rank(dag.scratch[rank], tuple([block.build() for block in blocks])))
    return Schedule(dag.name, dag.collective, dag.protocol, slots, tuple(ranks))


class _Ends:
    """The ends of each connection, and those of each transfer, which also say where a message in place lies."""

    def __init__(self, dag: InstrDag) -> None:
        self.connection = connections(dag)
        self.receives: list[Receive] = []
        self.sends: list[Send] = []
        self.receive_of: list[Receive] = []
        self.send_of: list[Send] = []
        for e, (edge, number) in enumerate(zip(dag.edges, self.connection, strict=True)):
            if number == len(self.sends):
                channel = dag.channel(e)
                assert channel is not None  # all have been given one
                self.receives.append(Receive(edge.src, channel))
                self.sends.append(Send(edge.dst, channel))
            receive, send = self.receives[number], self.sends[number]
            if edge.at is not None:
                receive, send = structs.replace(receive, at=edge.at), structs.replace(send, at=edge.at)
            self.receive_of.append(receive)
            self.send_of.append(send)


class _Block:
    """A thread block in the making; its connections are in the order of their first use."""

    def __init__(self, ends: _Ends) -> None:
        self._ends = ends
        self._steps: list[Step] = []
        self._received: dict[int, None] = {}
        self._sent: dict[int, None] = {}

    def add(self, instr: Instr, waits: tuple[Wait, ...]) -> None:
        ends = self._ends
        srcs: list[Source] = []
        for source in instr.srcs:
            if type(source) is Arrival:
                self._received[ends.connection[source.edge]] = None
                srcs.append(ends.receive_of[source.edge])
            else:
                srcs.append(source)  # type: ignore[arg-type]
        dsts: list[Destination] = []
        for target in instr.dsts:
            if type(target) is Departure:
                self._sent[ends.connection[target.edge]] = None
                dsts.append(ends.send_of[target.edge])
            else:
                dsts.append(target)  # type: ignore[arg-type]
        self._steps.append(Step(tuple(srcs), tuple(dsts), waits, instr.where))

    def build(self) -> ThreadBlock:
        receives = tuple([self._ends.receives[n] for n in self._received])
        sends = tuple([self._ends.sends[n] for n in self._sent])
        return ThreadBlock(receives, sends, tuple(self._steps))


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


class _Clocks:
    """What each thread block of a rank knows of the others."""

    def __init__(self, dag: InstrDag, step_of: Sequence[int], count: int) -> None:
        self._dag, self._step_of = dag, step_of
        self._nothing: Clock = np.full(count, -1, np.int32)
        self._now: list[Clock | None] = [None] * count  # None for a thread block that knows nothing
        self._finished: dict[int, Clock] = {}  # of those that are waited for and know something

    def waits(self, i: int, learns: bool) -> tuple[Wait, ...]:
        """The waits of an instruction; its thread block learns what they imply, if ``learns``."""
        block_of, after = self._dag.blocks, self._dag.after[i]
        block = block_of[i]
        waits: list[tuple[int, int]] = []
        clock = self._now[block]
        # Later instructions know more, so what they imply need not be waited for again.
        for before in reversed(after):
            other, step = block_of[before], self._step_of[before]
            if other == block or (clock is not None and clock[other] >= step):
                continue
            waits.append((other, step))
            if not learns and len(after) == 1:
                break
            known = self._finished.get(before)
            if clock is None:
                clock = self._now[block] = (self._nothing if known is None else known).copy()
            elif known is not None:
                np.maximum(clock, known, out=clock)
            clock[other] = step
        waits.sort()
        return tuple([Wait(other, step) for other, step in waits])

    def remember(self, i: int) -> None:
        """What the thread block of an instruction knows when it ends."""
        clock = self._now[self._dag.blocks[i]]
        if clock is not None:
            self._finished[i] = clock.copy()
