"""Ranks that are cores of this machine: what hocket's own runtime does there (docs/design/paths.md).

A rank is one thread, which goes round its thread blocks and runs of each what is ready. Messages go by the path that
``select`` takes (native/policy/select.h), in tiles of the same size. A step takes the time of a copy, more for each
further operand, and more for what another core stores or loads: a slot, or a place in an array that several ranks use.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise

from hocket.collectives import BufferName
from hocket.ir.chunk_dag import Span
from hocket.ir.messages import connection_widths, fan_of, multicasts, one_round, stored_once
from hocket.ir.order import in_order, pace
from hocket.ir.schedule import Destination, Receive, Send, Source
from hocket.sim.work import Work
from hocket.topology import Memory, Protocol

EAGER, FIFO, ZERO_COPY = "eager", "fifo", "zero-copy"
"""The paths, as the glossary has them; inline eager is eager here."""

ALIGN, STEP_BYTES = 64, 16 << 10
RANK_SLOTS, LEAST_SLOT = 2 << 20, 64 << 10
ROTATED, ROTATED_SLOT = 2 << 20, 8 << 10
"""Those of native/core/interpreter.h and native/policy/tunables.def; tests compare them, or what follows from them."""

TILES_A_VISIT = 2
"""The same: that a thread block runs before the next of its rank has its turn."""

_LEAST = 1e-7
"""Microseconds a byte: a step is no faster."""

_Place = tuple[int, BufferName, int]


class Turns:
    """Whose turn it is on a core: ``holder`` is a thread block, -1 for none; others that could run wait in line."""

    __slots__ = ("holder", "line", "until")

    def __init__(self) -> None:
        self.holder = -1
        self.until = 0
        self.line: deque[int] = deque()

    def take(self, block: int, tile: int) -> bool:
        """Whether a thread block that is at ``tile`` has its turn; if not, it is in line."""
        if self.holder < 0:
            self.holder, self.until = block, tile + TILES_A_VISIT
        elif self.holder != block or (tile >= self.until and self.line):
            self.line.append(block)
            return False
        return True

    def over(self, block: int, tile: int, tiles: int) -> bool:
        """Whether a thread block that holds the core, and has come to ``tile``, gives it to the next in line."""
        return self.holder == block and (tile >= tiles or (tile >= self.until and block in self.line))


def between(points: Sequence[Memory], size: float) -> Memory:
    """What was measured, between two working sets by the logarithm of the size. ``points``: the smallest first."""
    if size <= points[0].bytes:
        return points[0]
    for low, high in pairwise(points):
        if size <= high.bytes:
            part = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
            both = zip(_speeds(low), _speeds(high), strict=True)
            return Memory(low.ranks, round(size), *(1 / ((1 - part) / a + part / b) for a, b in both))
    return points[-1]


def _speeds(point: Memory) -> tuple[float, float, float, float]:
    return point.copy, point.update, point.add, point.far


class Cores:
    """How a schedule is cut on cores, and how fast its steps are there."""

    def __init__(self, work: Work) -> None:
        self._work = work
        schedule = work.schedule
        widths, in_place = connection_widths(schedule)
        self._in_place = schedule.in_place()
        self._round = one_round(schedule)
        self._widest = max(widths.values(), default=0 if in_place else 1)
        further = {(m.source, reader, m.channel) for m in multicasts(schedule) for reader in m.readers[1:]}
        self._fan = fan_of(widths, further)
        self._pace = pace(schedule, in_order(schedule))
        self._slot_chunks = [0] * len(schedule.ranks)  # of both ends
        for connection, width in widths.items():
            self._slot_chunks[connection[1]] += width
            self._slot_chunks[connection[0]] += 0 if connection in further else width
        self._costs = self._operands()
        size = schedule.collective.size
        counts = {point.ranks for point in work.topology.costs.memory}
        ranks = min((count for count in counts if count >= size), default=max(counts))
        self._memory = sorted(
            (point for point in work.topology.costs.memory if point.ranks == ranks), key=lambda point: point.bytes
        )

    def path(self, share: float) -> str:
        """That of a call with so many bytes in a chunk, on arrays that are as the schedule wants them."""
        if self._in_place:
            return ZERO_COPY
        eager = self._work.topology.costs.protocol(EAGER)
        if self._round is None:
            return FIFO
        return EAGER if self._round.chunks * _lines(share) <= eager.slot else FIFO

    def shortest(self) -> str:
        """That of calls of hardly any bytes."""
        return self.path(0.0)

    def tile(self, share: float, protocol: Protocol) -> int:
        """Bytes of a tile."""
        chunk = _lines(share)
        if protocol.name == EAGER:
            return chunk
        most = protocol.slot
        if self._widest:
            slots = self._slots(protocol)
            most = min(most, max(RANK_SLOTS * self._widest // (self._fan * slots), LEAST_SLOT))
        return self._cut(chunk, most, *self._pace)

    def rates(self, share: float, tile: float, protocol: Protocol) -> list[float]:
        """By step, the bytes of a chunk that it moves in a microsecond."""
        point = between(self._memory, self.working_set(share, tile, protocol))
        copy, update, add, far = (1e-3 / speed for speed in _speeds(point))

        def time(loads: int, stores: int, both: int, crossing: int) -> float:
            first, further = (update, stores + both - 1) if both else (copy, stores - 1)
            return max(first + (loads - 1) * add + further * copy / 2 + crossing * far / 2, _LEAST)

        return [1 / time(*operands) if any(operands) else math.inf for operands in self._costs]

    def _slots(self, protocol: Protocol) -> int:
        return 1 << (max(self._work.schedule.slots, protocol.slots) - 1).bit_length()

    def _rotated(self, protocol: Protocol, tile: float) -> int:
        """Slots of a connection (native: settle)."""
        slots = self._slots(protocol)
        while max(self._widest, 1) * tile >= ROTATED_SLOT and 2 * slots * self._fan * tile <= ROTATED:
            slots *= 2
        return slots

    def _cut(self, chunk: int, most: int, work: int, depth: int) -> int:
        """As native/core/interpreter.h."""
        tile, widest = ALIGN, max(self._widest, 1)
        late, steps = max(0, depth - work), work * chunk * STEP_BYTES
        while tile < chunk and tile * 2 * widest <= most and 2 * late * tile * tile < steps:
            tile *= 2
        return tile

    def working_set(self, share: float, tile: float, protocol: Protocol) -> float:
        """Bytes that the rank with most works in: its buffers, and its half of the slots (native: touched_bytes)."""
        schedule, collective = self._work.schedule, self._work.schedule.collective
        most = 0.0
        for rank, part in enumerate(schedule.ranks):
            sizes = collective.inputs(rank), collective.outputs(rank)
            own = (max(sizes) if collective.alias(rank) is not None else sum(sizes)) + part.scratch
            slots = (
                0.0
                if protocol.name == ZERO_COPY
                else self._rotated(protocol, tile) * self._slot_chunks[rank] * tile / 2
            )
            most = max(most, own * share + slots)
        return most

    def _operands(self) -> list[tuple[int, int, int, int]]:
        """By step: places that it loads, that it stores to, that it does both to; how many another core uses too.

        Calls come one after the other: what another core stores in a
        call lies with it when the next begins.
        """
        work, free = self._work, stored_once(self._work.schedule)
        used: dict[_Place, set[int]] = defaultdict(set)
        stored: dict[_Place, set[int]] = defaultdict(set)
        found: list[tuple[int, list[Source], list[Destination]]] = []
        for number in range(len(work.block)):
            rank, step = work.rank[work.block[number]], work.step(number)
            loads = [source for source in step.srcs if not _said(source)] if step.moves else []
            stores = [d for d in step.dsts if not _said(d) and (rank, d) not in free] if step.moves else []
            for operand in (*loads, *stores):
                for place in _places(rank, operand):
                    used[place].add(rank)
            for operand in stores:
                for place in _places(rank, operand):
                    stored[place].add(rank)
            found.append((rank, loads, stores))

        def crosses(rank: int, operand: Source | Destination, store: bool) -> bool:
            if not isinstance(operand, Span) and operand.at is None:
                return True
            users = used if store else stored
            return any(users[place] - {rank} for place in _places(rank, operand))

        return [
            (
                sum(load not in stores for load in loads),
                sum(store not in loads for store in stores),
                sum(store in loads for store in stores),
                sum(crosses(rank, o, False) for o in loads) + sum(crosses(rank, o, True) for o in stores),
            )
            for rank, loads, stores in found
        ]


def _said(operand: Source | Destination) -> bool:
    """Whether it only says or learns where a message lies."""
    if isinstance(operand, Receive):
        return operand.at is not None and not operand.pulls
    return isinstance(operand, Send) and operand.at is not None and not operand.pushes


def _places(rank: int, operand: Source | Destination) -> list[_Place]:
    """Chunks of buffers that it is."""
    span = operand if isinstance(operand, Span) else operand.at
    return [] if span is None else [(span.rank, span.buffer, index) for index in span.indices()]


def _lines(share: float) -> int:
    """A chunk is of whole cache lines."""
    return max(math.ceil(share / ALIGN), 1) * ALIGN
