"""What follows from an order of all steps: how long its chains are, and which steps make sums over all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from hocket.collectives import BufferName
from hocket.ir.chunk_dag import Span
from hocket.ir.messages import Connection
from hocket.ir.schedule import Destination, Receive, Schedule, Send, Source, Step

_Event = tuple[int, int, int] | tuple[int, int, int, int]
"""The end of a step (rank, thread block, step), or a message of a connection, by its number."""
_Chunk = tuple[int, BufferName, int] | tuple[_Event, int]
"""A chunk of a buffer of a rank, or of a message in a slot."""
Happening = tuple[int, int, int, Step, list[_Event], list[_Event]]
"""A step in an order of all: rank, thread block, number, the step, what it needs, and what ends with it."""


def pace(schedule: Schedule, order: Iterable[Happening]) -> tuple[int, int]:
    """Operands that the busiest rank handles in one tile, and the longest chain of steps, each counted per chunk.

    A chain goes along thread blocks, waits and messages over all ranks; that slots may be full does not count. Of a
    schedule that deadlocks, the part before. At least 1 and no more than fits in a word.
    """
    work = [0] * len(schedule.ranks)
    ends: dict[_Event, int] = {}
    clock: Counter[tuple[int, int]] = Counter()
    for r, b, _, step, needs, events in order:
        cost = (step.count or 0) * (len(step.srcs) + len(step.dsts)) if step.moves else 0
        work[r] += cost
        clock[r, b] = max(clock[r, b], *(ends[event] for event in needs), 0) + cost
        ends.update(dict.fromkeys(events, clock[r, b]))
    return _word(max(work, default=0)), _word(max(clock.values(), default=0))


def whole_sums(schedule: Schedule, order: Iterable[Happening]) -> frozenset[tuple[int, int, int]]:
    """The steps (rank, thread block, number) that make sums over all ranks, of a collective that ``averages``.

    Each output comes from exactly one of them: what has a term of each rank is whole, and with any other it would have
    too many. None where a step makes both such sums and others.
    """
    collective = schedule.collective
    found: set[tuple[int, int, int]] = set()
    terms: defaultdict[_Chunk, int] = defaultdict(int)
    for r in range(collective.size):
        buffer, first = collective.place(r, "in")
        terms.update({(r, buffer, first + i): 1 for i in range(collective.inputs(r))})
    for r, b, s, step, needs, events in order:
        if not step.moves:
            continue
        arriving, leaving = iter(needs), iter(events)
        sources = [_chunks(source, step, arriving) for source in step.srcs]
        sums = [sum(terms[chunk] for chunk in chunks) for chunks in zip(*sources, strict=True)]
        if len(step.srcs) > 1 and collective.size in sums:
            if sums.count(collective.size) < len(sums):
                return frozenset()
            found.add((r, b, s))
        for target in step.dsts:
            terms.update(zip(_chunks(target, step, leaving), sums, strict=True))
    return frozenset(found)


def _chunks(operand: Source | Destination, step: Step, messages: Iterator[_Event]) -> list[_Chunk]:
    """Where the chunks of an operand are. ``messages``: those of the step, from this operand on."""
    if not isinstance(operand, Span):
        message = next(messages)
        if operand.at is None:
            return [(message, i) for i in range(step.count or 0)]
        operand = operand.at
    return [(operand.rank, operand.buffer, i) for i in operand.indices()]


def in_order(schedule: Schedule) -> Iterator[Happening]:
    """All steps in an order that the schedule permits.

    What a step needs begins with the messages that it receives, what ends with it with those that it sends.
    """
    happened: set[_Event] = set()
    stuck: dict[_Event, list[tuple[int, int]]] = {}  # thread blocks, by what they need
    done: Counter[tuple[int, int]] = Counter()
    messages: Counter[tuple[bool, Connection]] = Counter()  # sent, or received
    todo = [(r, b) for r, rank in enumerate(schedule.ranks) for b in range(len(rank.thread_blocks))]
    while todo:
        block = r, b = todo.pop()
        steps = schedule.ranks[r].thread_blocks[b].steps
        while done[block] < len(steps):
            step = steps[done[block]]
            arriving = [(s.peer, r, s.channel) for s in step.srcs if isinstance(s, Receive)]
            needs: list[_Event] = [(*connection, messages[False, connection]) for connection in arriving]
            needs += [(r, wait.thread_block, wait.step) for wait in step.waits]
            missing = next((event for event in needs if event not in happened), None)
            if missing is not None:
                stuck.setdefault(missing, []).append(block)
                break
            leaving = [(r, d.peer, d.channel) for d in step.dsts if isinstance(d, Send)]
            events: list[_Event] = [(*connection, messages[True, connection]) for connection in leaving]
            events.append((r, b, done[block]))
            yield r, b, done[block], step, needs, events
            messages.update((False, connection) for connection in arriving)
            messages.update((True, connection) for connection in leaving)
            done[block] += 1
            happened.update(events)
            for event in events:
                todo += stuck.pop(event, ())


def _word(value: int) -> int:
    return min(max(1, value), 0xFFFFFFFF)
