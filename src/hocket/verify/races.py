"""Races: two accesses to one chunk, at least one a write, that neither waits nor transfers order.

Order that comes only from slots being full does not count: such a schedule is safe only because slots are few. Memory
is touched by its own rank alone (storage fifo), so a clock over the thread blocks of one rank answers nearly always;
where it does not, the same clock is carried through all ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.collectives import BufferName
from hocket.errors import Race
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Schedule
from hocket.semantics import Place
from hocket.verify.events import Events, Order

Clock = NDArray[np.int32]
"""For each thread block of a rank the last step that is known to have finished; -1 for none."""


def check_races(events: Events, order: Order) -> None:
    """Raise Race for the first unordered pair of accesses, in the order of an execution."""
    by_rank: list[list[int]] = [[] for _ in events.schedule.ranks]
    for i in order:
        by_rank[events.rank[i]].append(i)
    for rank, numbers in enumerate(by_rank):
        suspects = _suspects(events, rank, numbers)
        if suspects:
            known = _known_everywhere(events, order, rank)
            for first, second, span in suspects:
                if known[second][events.block[first]] < events.position[first]:
                    raise _race(events, first, second, span)


def _known_everywhere(events: Events, order: Order, rank: int) -> list[Clock]:
    """For each step of any rank, the last step of each thread block of ``rank`` that is known to have finished before
    it ends: along all edges but those of slots being full."""
    known: list[Clock] = [np.empty(0, np.int32)] * len(order)
    for i in order:
        clock = np.full(len(events.first[rank]), -1, np.int32)
        for before in events.before[i]:
            np.maximum(clock, known[before], out=clock)
        if events.rank[i] == rank:
            clock[events.block[i]] = events.position[i]
        known[i] = clock
    return known


def both_orders(schedule: Schedule, race: Race) -> tuple[list[Place], list[Place]]:
    """The witness of a race: two executions, by thread blocks, that make the two accesses in either order.

    ``semantics.Machine.replay`` runs them, with as many slots as they like; each ends after the second access.
    """
    events = Events(schedule)
    steps = [events.first[name.rank][name.thread_block] + name.step for name in (race.first, race.second)]
    found: list[list[Place]] = []
    for first, second in (steps, reversed(steps)):
        run: dict[int, None] = {}
        for target in (first, second):
            stack = [target]
            while stack:
                i = stack[-1]
                pending = [j for j in events.before[i] if j not in run]
                if pending:
                    stack.extend(pending)
                else:
                    run[stack.pop()] = None
        found.append([(events.rank[i], events.block[i]) for i in run])
    return found[0], found[1]


def _suspects(events: Events, rank: int, numbers: list[int]) -> list[tuple[int, int, Span]]:
    """Pairs of conflicting accesses that the clocks of the rank's thread blocks do not order."""
    first = events.first[rank]
    blocks = len(first)
    if blocks == 1:
        return []
    waited = {first[w.thread_block] + w.step for i in numbers for w in events.steps[i].waits}
    nothing = np.full(blocks, -1, np.int32)  # shared by all that know nothing, never written
    clocks: list[Clock] = [nothing] * blocks
    finished: dict[int, Clock] = {}  # of those that are waited for and know something
    wrote: dict[BufferName, dict[int, int]] = {"in": {}, "out": {}, "sc": {}}
    readers: dict[BufferName, dict[int, list[int]]] = {"in": {}, "out": {}, "sc": {}}
    found: list[tuple[int, int, Span]] = []
    block_of, position = events.block, events.position
    for i in numbers:
        step, block = events.steps[i], block_of[i]
        clock = clocks[block]
        for wait in step.waits:
            if clock[wait.thread_block] < wait.step:
                known = finished.get(first[wait.thread_block] + wait.step)
                if clock is nothing:
                    clock = clocks[block] = nothing.copy() if known is None else known.copy()
                elif known is not None:
                    np.maximum(clock, known, out=clock)
                clock[wait.thread_block] = wait.step
        for source in step.srcs:
            if type(source) is Span:
                writer, reading = wrote[source.buffer], readers[source.buffer]
                for index in source.indices():
                    last = writer.get(index)
                    if last is not None and block_of[last] != block and clock[block_of[last]] < position[last]:
                        found.append((last, i, Span(rank, source.buffer, index)))
                    earlier = reading.get(index)
                    if earlier is None:
                        reading[index] = [i]
                    else:
                        earlier.append(i)
        for target in step.dsts:
            if type(target) is Span:
                writer, reading = wrote[target.buffer], readers[target.buffer]
                for index in target.indices():
                    last = writer.get(index)
                    if last is not None and block_of[last] != block and clock[block_of[last]] < position[last]:
                        found.append((last, i, Span(rank, target.buffer, index)))
                    for last in reading.pop(index, ()):
                        if block_of[last] != block and clock[block_of[last]] < position[last]:
                            found.append((last, i, Span(rank, target.buffer, index)))
                    writer[index] = i
        if clock is not nothing and i in waited:
            finished[i] = clock.copy()
    return found


def _race(events: Events, first: int, second: int, span: Span) -> Race:
    def access(i: int) -> str:
        (index,) = span.indices()
        return "writes" if _touches(events.steps[i].dsts, span.buffer, index) else "reads"

    return Race(
        span.rank,
        span.buffer,
        span.index,
        events.name(first),
        events.name(second),
        access(first),
        access(second),
    )


def _touches(operands: tuple[object, ...], buffer: BufferName, index: int) -> bool:
    return any(isinstance(o, Span) and o.buffer == buffer and index in o.indices() for o in operands)
