"""Races: two accesses to one chunk, at least one a write, that neither waits nor transfers order.

Order that comes only from slots being full does not count: such a schedule is safe only because slots are few. Memory
is touched by its own rank, so that a clock over the thread blocks of one rank answers nearly always; where it does not,
the same clock is carried through all ranks.

Where a message lies in place, the step at its other end touches the memory too, a *visit*. On the own rank, what reads
the message begins after the step that offers it, and what stores it has ended before the step that learns of it. No
visit is before the rank begins or after it leaves the call: that is what beginning and leaving mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.collectives import BufferName
from hocket.errors import Race
from hocket.ir.chunk_dag import Span, shares_chunk
from hocket.ir.schedule import Receive, Schedule, Send
from hocket.semantics import Place
from hocket.verify.events import Events, Order

Clock = NDArray[np.int32]
"""For each thread block of a rank the last step that is known to have finished; -1 for none."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """Step ``step`` of another rank reads a span of this one, once ``begins`` has, or writes it before ``ends`` has."""

    step: int
    span: Span
    begins: int | None
    ends: int | None


def check_races(events: Events, order: Order) -> None:
    """Raise Race for the first unordered pair of accesses, in the order of an execution."""
    visits = _visits(events)
    visited: dict[int, set[int]] = {}
    for rank, steps in enumerate(visits):
        for i in steps:
            visited.setdefault(i, set()).add(rank)
    by_rank: list[list[int]] = [[] for _ in events.schedule.ranks]
    for i in order:
        by_rank[events.rank[i]].append(i)
        for rank in visited.get(i, ()):
            by_rank[rank].append(i)
    for rank, numbers in enumerate(by_rank):
        known: dict[int, list[Clock]] = {}  # by the rank of the first step
        for first, second, span in _suspects(events, rank, numbers, visits[rank]):
            home = events.rank[first]
            if home not in known:
                known[home] = _known_everywhere(events, order, home)
            if known[home][second][events.block[first]] < events.position[first]:
                raise _race(events, first, second, span)


def _visits(events: Events) -> list[dict[int, list[_Visit]]]:
    """For each rank the visits to its memory, by their steps; reads come first."""
    found: list[dict[int, list[_Visit]]] = [{} for _ in events.schedule.ranks]
    if not events.in_place:
        return found
    messages: Counter[tuple[bool, int, int, int]] = Counter()  # of each connection, sent or received so far
    for i, (step, rank) in enumerate(zip(events.steps, events.rank, strict=True)):
        for source in step.srcs:
            if type(source) is Receive and source.at is not None:
                connection = source.peer, rank, source.channel
                if source.pulls:
                    offer = events.sent[connection][messages[False, *connection]]
                    found[source.peer].setdefault(i, []).append(_Visit(i, source.at, offer, None))
                messages[False, *connection] += 1
        for target in step.dsts:
            if type(target) is Send and target.at is not None:
                connection = rank, target.peer, target.channel
                if target.pushes:
                    notice = events.received[connection][messages[True, *connection]]
                    found[target.peer].setdefault(i, []).append(_Visit(i, target.at, None, notice))
                messages[True, *connection] += 1
    return found


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


_Access = tuple[int, int | None]
"""A step, and a step of the rank by whose end it has ended: itself, the one that learns of what it stores, or none."""

_Begin = tuple[int, int, Clock]
"""A thread block, a position there, and a clock: what has ended before a step begins."""

_Suspect = tuple[int, int, Span]
"""Two steps in the order of the execution, and the chunk that both access."""


def _suspects(events: Events, rank: int, numbers: list[int], visits: dict[int, list[_Visit]]) -> Iterator[_Suspect]:
    """Pairs of conflicting accesses to the rank's memory that the clocks of its thread blocks do not order.

    ``numbers``: its steps and those that visit it, in order.
    """
    if len(events.first[rank]) == 1 and not visits:
        return
    own = [i for i in numbers if events.rank[i] == rank]
    offers = {visit.begins for found in visits.values() for visit in found if visit.begins is not None}
    clocks = _Clocks(events, rank, own, offers)
    accesses = _Accesses(events, rank)
    for i in numbers:
        if events.rank[i] != rank:
            for visit in visits[i]:
                if visit.begins is None:
                    yield from accesses.write(visit.span, (i, visit.ends), None)
                else:
                    yield from accesses.read(visit.span, (i, None), clocks.at(visit.begins))
            continue
        step, begin = events.steps[i], clocks.begin(i)
        if step.moves:
            for source in step.srcs:
                if type(source) is Span:
                    yield from accesses.read(source, (i, i), begin)
            for target in step.dsts:
                if type(target) is Span:
                    yield from accesses.write(target, (i, i), begin)
        clocks.end(i)


class _Clocks:
    """What the thread blocks of a rank know, as its steps begin and end in the order of the execution."""

    def __init__(self, events: Events, rank: int, own: list[int], offers: set[int]) -> None:
        self._events = events
        self._first = events.first[rank]
        self._remembered = {self._first[w.thread_block] + w.step for i in own for w in events.steps[i].waits} | offers
        self._nothing = np.full(len(self._first), -1, np.int32)  # shared by all that know nothing, never written
        self._now: list[Clock] = [self._nothing] * len(self._first)
        self._finished: dict[int, Clock] = {}  # of those that are remembered and know something

    def begin(self, i: int) -> _Begin:
        """What has ended before a step begins: its thread block learns from what it waits for."""
        events = self._events
        block = events.block[i]
        clock = self._now[block]
        for wait in events.steps[i].waits:
            if clock[wait.thread_block] < wait.step:
                known = self._finished.get(self._first[wait.thread_block] + wait.step)
                if clock is self._nothing:
                    clock = self._now[block] = (self._nothing if known is None else known).copy()
                elif known is not None:
                    np.maximum(clock, known, out=clock)
                clock[wait.thread_block] = wait.step
        return block, events.position[i], clock

    def end(self, i: int) -> None:
        clock = self._now[self._events.block[i]]
        if clock is not self._nothing and i in self._remembered:
            self._finished[i] = clock.copy()

    def at(self, offer: int) -> _Begin:
        """What has ended before an earlier step that offers a place has."""
        events = self._events
        return events.block[offer], events.position[offer], self._finished.get(offer, self._nothing)


class _Accesses:
    """The last write of each chunk of a rank, and the reads since; each new access is compared with them."""

    def __init__(self, events: Events, rank: int) -> None:
        self._rank = rank
        self._block, self._position = events.block, events.position
        self._wrote: dict[BufferName, dict[int, _Access]] = {"in": {}, "out": {}, "sc": {}}
        self._readers: dict[BufferName, dict[int, list[_Access]]] = {"in": {}, "out": {}, "sc": {}}

    def read(self, span: Span, access: _Access, begin: _Begin | None) -> Iterator[_Suspect]:
        wrote, readers = self._wrote[span.buffer], self._readers[span.buffer]
        for index in span.indices():
            last = wrote.get(index)
            if last is not None and not self._ordered(last, access, begin):
                yield last[0], access[0], Span(self._rank, span.buffer, index)
            earlier = readers.get(index)
            if earlier is None:
                readers[index] = [access]
            else:
                earlier.append(access)

    def write(self, span: Span, access: _Access, begin: _Begin | None) -> Iterator[_Suspect]:
        wrote, readers = self._wrote[span.buffer], self._readers[span.buffer]
        for index in span.indices():
            last = wrote.get(index)
            if last is not None and not self._ordered(last, access, begin):
                yield last[0], access[0], Span(self._rank, span.buffer, index)
            for last in readers.pop(index, ()):
                if not self._ordered(last, access, begin):
                    yield last[0], access[0], Span(self._rank, span.buffer, index)
            wrote[index] = access

    def _ordered(self, last: _Access, access: _Access, begin: _Begin | None) -> bool:
        ends = last[1]
        if last[0] == access[0]:
            return True
        if ends is None or begin is None:
            return False
        block, at, clock = begin
        other = self._block[ends]
        return self._position[ends] < at if other == block else bool(clock[other] >= self._position[ends])


def _race(events: Events, first: int, second: int, span: Span) -> Race:
    def access(i: int) -> str:
        return "writes" if any(shares_chunk(span, place) for place in events.steps[i].writes()) else "reads"

    return Race(
        span.rank,
        span.buffer,
        span.index,
        events.name(first),
        events.name(second),
        access(first),
        access(second),
    )
