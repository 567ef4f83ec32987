"""What one rank's part of a schedule does to the rank's own buffers.

Which stores nothing comes back to, which messages can lie there all through a call, and how it runs with its input and
output apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hocket.collectives import Alias, BufferName, Collective
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Rank, Receive, Schedule, Send, Step, ThreadBlock

Clock = NDArray[np.int32]
"""For each thread block of the rank the last step that is known to have finished; -1 for none."""


def last_stores(part: Rank) -> frozenset[tuple[int, int, int]]:
    """The local destinations in the rank's input and output that no other operand of the rank shares a chunk with.

    As (thread block, step, destination). A store non-temporally loses nothing there: what was read before is in a
    cache, and so need not be fetched to be written; what is read after had better be.
    """
    touched: Counter[tuple[BufferName, int]] = Counter()
    steps = [(b, s, step) for b, block in enumerate(part.thread_blocks) for s, step in enumerate(block.steps)]
    for _, _, step in steps:
        for operand in (*step.srcs, *step.dsts):
            if type(operand) is Span:
                touched.update((operand.buffer, index) for index in operand.indices())
    return frozenset(
        (b, s, d)
        for b, s, step in steps
        for d, target in enumerate(step.dsts)
        if type(target) is Span
        and target.buffer != "sc"
        and all(touched[target.buffer, index] == 1 for index in target.indices())
    )


def last_pushes(ranks: Sequence[Rank]) -> list[frozenset[tuple[int, int, int]]]:
    """Of each rank the destinations in the memory of others that no other step of any rank touches: as above."""
    ours = [
        [
            (b, s, d, target.at)
            for b, block in enumerate(part.thread_blocks)
            for s, step in enumerate(block.steps)
            for d, target in enumerate(step.dsts)
            if isinstance(target, Send) and target.at is not None and target.pushes
        ]
        for part in ranks
    ]
    touched: Counter[tuple[int, BufferName, int]] = Counter()
    if any(ours):
        for part in ranks:
            for block in part.thread_blocks:
                for step in block.steps:
                    for span in (*step.reads(), *step.writes()):
                        touched.update((span.rank, span.buffer, index) for index in span.indices())
    return [
        frozenset(
            (b, s, d) for b, s, d, at in own if all(touched[at.rank, at.buffer, index] == 1 for index in at.indices())
        )
        for own in ours
    ]


Position = int | None
"""Of a chunk in its unit: the last ones may be shorter. None in scratch, where none is."""


def lasting(collective: Collective, rank: int, part: Rank) -> dict[Send | Receive, Position]:
    """The ends of connections whose messages can lie in the rank's buffers from the beginning of a call to its end.

    Each carries one message a tile, of one chunk, which a step only moves: it lies in the step's first span. That
    chunk has one value in the whole call: so nobody stores to it while it is sent, nor, as there are no races, accesses
    it before it is received. A rank that has an alias can also run with its buffers apart, and then that must hold too.
    """
    buffer, begin = collective.place(rank, "in")
    inputs = collective.inputs(rank)
    found = _lasting(part, {(buffer, begin + index) for index in range(inputs)}, collective.chunks)
    two = apart(collective, rank, part) if collective.alias(rank) is not None else None
    if two is None:
        return found
    also = _lasting(two, {("in", index) for index in range(inputs)}, collective.chunks)
    return {end: place for end, place in found.items() if end in also and also[end] == place}


def _lasting(part: Rank, given: Set[tuple[BufferName, int]], chunks: int) -> dict[Send | Receive, Position]:
    """``lasting``, where these chunks have a value when the call begins; ``chunks`` of a unit."""
    stores: Counter[tuple[BufferName, int]] = Counter()
    messages: Counter[Send | Receive] = Counter()
    steps = [step for block in part.thread_blocks for step in block.steps]
    for step in steps:
        messages.update(end for end in (*step.srcs, *step.dsts) if not isinstance(end, Span))
        stores.update((d.buffer, index) for d in step.dsts if type(d) is Span for index in d.indices())
    found: dict[Send | Receive, Position] = {}
    for step in steps:
        spans = [operand for operand in (*step.srcs, *step.dsts) if isinstance(operand, Span)]
        if len(step.srcs) != 1 or step.count != 1 or not spans:
            continue
        chunk = spans[0].buffer, spans[0].index
        if stores[chunk] == (0 if chunk in given else 1):
            position = None if chunk[0] == "sc" else chunk[1] % chunks
            ends = (end for end in (*step.srcs, *step.dsts) if not isinstance(end, Span))
            found.update((end, position) for end in ends if messages[end] == 1)
    return found


def apart(collective: Collective, rank: int, part: Rank) -> Rank | None:
    """The part of a rank that has an alias, for buffers that lie apart; it does not write to its input.

    What is read before it is written is the input, everything else the output. What is never written is copied, where
    it can be by a step that reads it. The other ranks see no difference, so they need not know. None where that will
    not do: a step writes to what is no output, reads both kinds at once, or is ordered with a write only by other
    ranks.
    """
    alias = collective.alias(rank)
    assert alias is not None
    move = _Move(rank, alias, collective.inputs(rank), collective.outputs(rank))
    blocks: list[list[Step]] = [[] for _ in part.thread_blocks]
    for block, step, clock in _in_order(part.thread_blocks):
        moved = move.step(step, block, len(blocks[block]), clock)
        if moved is None:
            return None
        blocks[block].append(moved)
    if any(len(steps) < len(old.steps) for steps, old in zip(blocks, part.thread_blocks, strict=True)):
        return None  # a deadlock
    left = move.unwritten()
    for steps in blocks:
        steps[:] = [move.copying(step, left) for step in steps]
    thread_blocks = [
        structs.replace(old, steps=tuple(steps)) for steps, old in zip(blocks, part.thread_blocks, strict=True)
    ]
    if copies := move.copies(left):
        thread_blocks.append(ThreadBlock((), (), copies))
    return replace(part, thread_blocks=tuple(thread_blocks))


def lying_apart(schedule: Schedule) -> Schedule:
    """As it runs where the input and output of each rank lie apart; a rank for which that will not do as it is."""
    collective = schedule.collective
    ranks = tuple(
        part if collective.alias(rank) is None else apart(collective, rank, part) or part
        for rank, part in enumerate(schedule.ranks)
    )
    return replace(schedule, collective=collective.placed(False), ranks=ranks)


class _Move:
    """Steps of a rank, in an order of their execution, from one memory to two."""

    def __init__(self, rank: int, alias: Alias, inputs: int, outputs: int) -> None:
        self._rank = rank
        self._memory = alias.target
        # Where chunk 0 of either buffer lies in the memory that they share.
        self._start: dict[BufferName, int] = {alias.target: 0, alias.buffer: alias.offset}
        self._size: dict[BufferName, int] = {"in": inputs, "out": outputs}
        self._writers: dict[int, list[tuple[int, int]]] = {}
        self._first_readers: dict[int, list[tuple[int, int]]] = {}

    def step(self, step: Step, block: int, position: int, clock: Clock) -> Step | None:
        """The step, at a position of its thread block; ``clock`` says what has finished before. None: impossible."""
        here = block, position
        srcs: list[Span | Receive] = []
        for source in step.srcs:
            if type(source) is Span and source.buffer == self._memory:
                buffer = self._holder(source, here, clock)
                moved = None if buffer is None else self._lies(source, buffer)
                if moved is None:
                    return None
                srcs.append(moved)
            else:
                srcs.append(source)
        dsts: list[Span | Send] = []
        for target in step.dsts:
            if type(target) is Span and target.buffer == self._memory:
                moved = self._lies(target, "out")
                if moved is None:
                    return None
                for chunk in target.indices():
                    if not all(_before(reader, here, clock) for reader in self._first_readers.get(chunk, ())):
                        return None
                    self._writers.setdefault(chunk, []).append(here)
                dsts.append(moved)
            else:
                dsts.append(target)
        return structs.replace(step, srcs=tuple(srcs), dsts=tuple(dsts))

    def unwritten(self) -> set[int]:
        """Chunks of the output that are in the input and that no step has written."""
        begin = max(self._start.values())
        end = min(self._start[buffer] + size for buffer, size in self._size.items())
        return set(range(begin, end)) - self._writers.keys()

    def copying(self, step: Step, left: set[int]) -> Step:
        """The step; one that only sends also stores to the output if all it reads is in ``left``, and then no more."""
        if len(step.srcs) > 1 or any(type(target) is Span for target in step.dsts):
            return step
        (source,) = step.srcs
        if type(source) is not Span or source.buffer != "in":
            return step
        chunks = {self._start["in"] + index for index in source.indices()}
        if not chunks <= left:
            return step
        left -= chunks
        return structs.replace(step, dsts=(*step.dsts, self._in_output(source)))

    def copies(self, left: set[int]) -> tuple[Step, ...]:
        """Steps that take chunks of the memory from the input to the output."""
        steps = []
        for _, run in groupby(enumerate(sorted(left)), lambda pair: pair[1] - pair[0]):
            chunks = [chunk for _, chunk in run]
            source = Span(self._rank, "in", chunks[0] - self._start["in"], len(chunks))
            steps.append(Step((source,), (self._in_output(source),)))
        return tuple(steps)

    def _in_output(self, span: Span) -> Span:
        """Where what a span of the input has lies in the output."""
        return structs.replace(span, buffer="out", index=span.index + self._start["in"] - self._start["out"])

    def _holder(self, source: Span, here: tuple[int, int], clock: Clock) -> BufferName | None:
        """The buffer that holds what is read. None: partly one, partly the other, or not known."""
        found: set[BufferName] = set()
        for chunk in source.indices():
            writers = self._writers.get(chunk)
            if writers is None:
                found.add("in")
                self._first_readers.setdefault(chunk, []).append(here)
            elif all(_before(writer, here, clock) for writer in writers):
                found.add("out")
            else:
                return None
        return found.pop() if len(found) == 1 else None

    def _lies(self, span: Span, buffer: BufferName) -> Span | None:
        """Where a span of the shared memory lies in a buffer; None if it is not in it."""
        index = span.index - self._start[buffer]
        last = index + (span.count - 1) * span.stride
        return structs.replace(span, buffer=buffer, index=index) if index >= 0 and last < self._size[buffer] else None


def _before(first: tuple[int, int], second: tuple[int, int], clock: Clock) -> bool:
    """Whether a step has finished before another begins, or is the same; ``clock`` is that of the second."""
    block, position = first
    return first == second or (position < second[1] if block == second[0] else position <= int(clock[block]))


def _in_order(blocks: Sequence[ThreadBlock]) -> Iterator[tuple[int, Step, Clock]]:
    """The steps of a rank in an order that its waits allow, each with its thread block and its clock."""
    waited = {(wait.thread_block, wait.step) for block in blocks for step in block.steps for wait in step.waits}
    clocks = [np.full(len(blocks), -1, np.int32) for _ in blocks]
    finished: dict[tuple[int, int], Clock] = {}
    done = [0] * len(blocks)
    moved = True
    while moved:
        moved = False
        for b, block in enumerate(blocks):
            while done[b] < len(block.steps):
                step = block.steps[done[b]]
                if any(done[wait.thread_block] <= wait.step for wait in step.waits):
                    break
                for wait in step.waits:
                    np.maximum(clocks[b], finished[wait.thread_block, wait.step], out=clocks[b])
                yield b, step, clocks[b]
                clocks[b][b] = done[b]
                if (b, done[b]) in waited:
                    finished[b, done[b]] = clocks[b].copy()
                done[b] += 1
                moved = True
