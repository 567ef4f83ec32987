"""What an instruction does, over any values: arrays (the reference executor) or expressions (the proof).

``evaluate`` is the meaning of every instruction. ``Machine`` executes a schedule in any order that the schedule
permits, with the reads and the writes of a step as separate events.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hocket.collectives import BufferName, Collective
from hocket.errors import UninitializedChunk
from hocket.ir.chunk_dag import Span
from hocket.ir.geometry import bounds, check_size, check_units, output_units
from hocket.ir.schedule import Receive, Schedule, Send, Source, Step

V = TypeVar("V")

Combine = Callable[..., V]
"""``combine(first, second, ...)``: the value that two or more sources make, in their order."""

Place = tuple[int, int]
"""A thread block: (rank, number)."""


def evaluate(sources: Sequence[Source], fetch: Callable[[Source], list[V]], combine: Combine[V]) -> list[V]:
    """``reduce(srcs)``: read each source once, combine chunk by chunk from the first source to the last.

    All sources meet in one ``combine``, so that a value which it accumulates in a wider type is rounded once.
    """
    if len(sources) == 1:
        return fetch(sources[0])
    return list(map(combine, *map(fetch, sources)))


Memory = list[dict[BufferName, list[V | None]]]
"""The physical buffers of each rank, chunk by chunk; None is uninitialised."""


def initial_memory(collective: Collective, scratch: Sequence[int], load: Callable[[int, int], V]) -> Memory[V]:
    """Memory before the first step: input chunk ``index`` of ``rank`` is ``load(rank, index)``, all else is empty."""
    memory: Memory[V] = []
    for rank in range(collective.size):
        inputs = collective.inputs(rank)
        buffers: dict[BufferName, list[V | None]] = {
            "in": [None] * inputs,
            "out": [None] * collective.outputs(rank),
            "sc": [None] * scratch[rank],
        }
        buffer, offset = collective.place(rank, "in")
        buffers[buffer][offset : offset + inputs] = [load(rank, index) for index in range(inputs)]
        memory.append(buffers)
    return memory


def _at_tile(load: Callable[[int, int, int], V], tile: int, rank: int, index: int) -> V:
    return load(rank, index, tile)


class Stuck(Exception):
    """No event is possible and the schedule is not finished. ``at`` are the steps that wait."""

    def __init__(self, at: tuple[tuple[int, int, int], ...]) -> None:
        super().__init__(f"{len(at)} thread blocks wait for each other")
        self.at = at


class Machine(Generic[V]):
    """Executes a schedule event by event. An event is the read or the write of one step of one tile.

    ``load(rank, index, tile)`` gives the content of an input chunk. ``slots`` defaults to the schedule's; None there
    means unbounded. Memory is ``memory[tile][rank][buffer][index]``; None is uninitialised.
    """

    def __init__(
        self,
        schedule: Schedule,
        load: Callable[[int, int, int], V],
        combine: Combine[V],
        *,
        slots: int | None,
        tiles: int = 1,
    ) -> None:
        self.schedule = schedule
        self._combine = combine
        self._slots = slots
        self._tiles = tiles
        self._queues: dict[tuple[int, int, int], deque[list[V]]] = {}
        self._blocks = [(r, b) for r, rank in enumerate(schedule.ranks) for b in range(len(rank.thread_blocks))]
        self._done: dict[Place, int] = dict.fromkeys(self._blocks, 0)
        self._held: dict[Place, list[V]] = {}
        scratch = [rank.scratch for rank in schedule.ranks]
        self.memory = [
            initial_memory(schedule.collective, scratch, partial(_at_tile, load, tile)) for tile in range(tiles)
        ]

    def output(self, rank: int, tile: int = 0) -> list[V | None]:
        """The chunks of the output buffer."""
        collective = self.schedule.collective
        buffer, offset = collective.place(rank, "out")
        return self.memory[tile][rank][buffer][offset : offset + collective.outputs(rank)]

    def cursor(self, place: Place) -> tuple[int, int] | None:
        """(tile, step) of the step that a thread block is at; None when it has finished."""
        length = len(self.schedule.ranks[place[0]].thread_blocks[place[1]].steps)
        tile, step = divmod(self._done[place], length) if length else (self._tiles, 0)
        return None if tile >= self._tiles else (tile, step)

    def progress(self, place: Place) -> int:
        """How many steps, over all tiles, a thread block has finished."""
        return self._done[place]

    def ready(self, place: Place) -> bool:
        """Whether the next event of a thread block, a read or a write, is possible."""
        at = self.cursor(place)
        if at is None:
            return False
        if place in self._held:
            return True
        tile, number = at
        rank = self.schedule.ranks[place[0]]
        step = rank.thread_blocks[place[1]].steps[number]
        for wait in step.waits:
            needed = tile * len(rank.thread_blocks[wait.thread_block].steps) + wait.step
            if self._done[place[0], wait.thread_block] <= needed:
                return False
        for source in step.srcs:
            if type(source) is Receive and not self._queues.get((source.peer, place[0], source.channel)):
                return False
        if self._slots is not None:
            sends = [target for target in step.dsts if isinstance(target, Send) and target.at is None]
            return all(len(self._queues.get((place[0], s.peer, s.channel), ())) < self._slots for s in sends)
        return True

    def event(self, place: Place) -> None:
        """Do the next event of a thread block: read the sources of its step, or write the destinations."""
        at = self.cursor(place)
        assert at is not None
        assert self.ready(place)
        tile, number = at
        step = self.schedule.ranks[place[0]].thread_blocks[place[1]].steps[number]
        if place not in self._held:
            fetch = partial(self._fetch, place[0], tile, step)
            self._held[place] = evaluate(step.srcs, fetch, self._combine) if step.moves else []
            return
        values = self._held.pop(place)
        for span in step.writes():
            buffer = self.memory[tile][span.rank][span.buffer]
            for i, value in zip(span.indices(), values, strict=True):
                buffer[i] = value
        for target in step.dsts:
            if isinstance(target, Send):
                message = values if target.at is None else []  # what lies in place is only counted
                self._queues.setdefault((place[0], target.peer, target.channel), deque()).append(message)
        for source in step.srcs:
            if isinstance(source, Receive):  # the slot was held while its content was used
                self._queues[source.peer, place[0], source.channel].popleft()
        self._done[place] += 1

    def _fetch(self, rank: int, tile: int, step: Step, source: Source) -> list[V]:
        span = source if isinstance(source, Span) else source.at
        if span is None:
            assert isinstance(source, Receive)
            return self._queues[source.peer, rank, source.channel][0]
        buffer = self.memory[tile][span.rank][span.buffer]
        values = [value for i in span.indices() if (value := buffer[i]) is not None]
        if len(values) != span.count:
            missing = next(i for i in span.indices() if buffer[i] is None)
            raise UninitializedChunk(span.rank, span.buffer, missing, step.where[0] if step.where else None)
        return values

    def run(self, rng: random.Random | None = None) -> None:
        """Run to the end in an order drawn from ``rng`` (without one: always the first possible event).

        Raises Stuck when no event is possible. Every connection is then or at the end as the events have left it.
        """
        awake = list(self._blocks)
        asleep: set[Place] = set()
        neighbours = self._neighbours()
        while awake:
            pick = rng.randrange(len(awake)) if rng is not None else 0
            place = awake[pick]
            if not self.ready(place):
                awake[pick] = awake[-1]
                awake.pop()
                asleep.add(place)
                continue
            self.event(place)
            if place not in self._held:
                for other in neighbours[place]:
                    if other in asleep:
                        asleep.remove(other)
                        awake.append(other)
        waiting = [(place, at) for place in self._blocks if (at := self.cursor(place)) is not None]
        if waiting:
            raise Stuck(tuple((rank, block, at[1]) for (rank, block), at in waiting))

    def replay(self, order: Iterable[Place]) -> None:
        """Let thread blocks do one whole step each, in the given order, which must be possible."""
        for place in order:
            self.event(place)
            self.event(place)

    def _neighbours(self) -> dict[Place, list[Place]]:
        """For each thread block those whose readiness may change when it finishes a step."""
        by_end: dict[tuple[str, int, int, int], Place] = {}
        for r, rank in enumerate(self.schedule.ranks):
            for b, block in enumerate(rank.thread_blocks):
                by_end.update({("recv", e.peer, r, e.channel): (r, b) for e in block.receives})
                by_end.update({("send", r, e.peer, e.channel): (r, b) for e in block.sends})
        found: dict[Place, list[Place]] = {}
        for r, rank in enumerate(self.schedule.ranks):
            waiting: dict[int, set[int]] = {}
            for b, block in enumerate(rank.thread_blocks):
                for step in block.steps:
                    for wait in step.waits:
                        waiting.setdefault(wait.thread_block, set()).add(b)
            for b, block in enumerate(rank.thread_blocks):
                local = [(r, other) for other in sorted(waiting.get(b, ()))]
                receivers = [by_end.get(("recv", r, e.peer, e.channel)) for e in block.sends]
                senders = [by_end.get(("send", e.peer, r, e.channel)) for e in block.receives]
                found[r, b] = [(r, b), *local, *(place for place in (*receivers, *senders) if place is not None)]
        return found


# ---------------------------------------------------------------------------------------------------------------

Array = NDArray[np.generic]


ACCUMULATORS = {
    name: name
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
        *("float32_int32", "float64_int32", "int64_int32", "int32_int32", "int16_int32"),
    )
} | {"float16": "float32", "bfloat16": "float32"}
"""The types that are combined, and in which each is: native/device/kernels.h has them. bfloat16 is of ml_dtypes; a
value and its index are a structure of C with fields of these names."""


def accumulator(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type that values are combined in. Raises KeyError for one that is only moved."""
    pair = dtype.isalignedstruct and dtype.names == ("value", "index")
    fields = dtype.fields.values() if pair and dtype.fields else ()
    name = "_".join(kind.name for kind, *_ in fields) or dtype.name
    wide = ACCUMULATORS[name]
    return dtype if wide == name else np.dtype(wide)


def _product(a: Array, b: Array) -> Array:
    """NumPy may contract complex products to fused operations, depending on the processor; this is plain."""
    if a.dtype.kind != "c":
        return np.asarray(np.multiply(a, b))
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


def _minimum(a: Array, b: Array) -> Array:
    """NaN if either is. Of two zeros the second, which NumPy leaves open."""
    return np.where(np.less(a, b) | np.not_equal(a, a), a, b)


def _maximum(a: Array, b: Array) -> Array:
    """NaN if either is. Of two zeros the second, which NumPy leaves open."""
    return np.where(np.greater(a, b) | np.not_equal(a, a), a, b)


def _extreme(before: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """The pair whose value comes first, a NaN before any number; of equal values that with the lower index."""
    (x, i), (y, j) = ((pairs["value"], pairs["index"]) for pairs in cast("tuple[NDArray[np.void], ...]", (a, b)))
    first, second = (before(v, w) | ((v != v) & (w == w)) for v, w in ((x, y), (y, x)))
    return np.where(first | (~second & (i < j)), a, b)


def _logical(ufunc: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    return ufunc(a, b).astype(a.dtype)


OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": _product,
    "min": _minimum,
    "max": _maximum,
    "avg": np.add,  # and ``average`` in the end
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": partial(_logical, np.logical_and),
    "lor": partial(_logical, np.logical_or),
    "lxor": partial(_logical, np.logical_xor),
    "minloc": partial(_extreme, np.less),
    "maxloc": partial(_extreme, np.greater),
}
"""Each over values of one type, which ``accumulator`` gives. Sums and products of integers wrap; of bool they are "or"
and "and". Logical ones give 0 or 1, where they combine at all: one rank keeps what it has. Which types have which
operators: native/device/kernels.cpp."""


def combine_arrays(op: str) -> Combine[Array]:
    """What an operator makes of arrays: lifted to the accumulator, combined in order, rounded once to nearest even."""
    operator = OPERATORS[op]

    def combine(*values: Array) -> Array:
        length = min(map(len, values))
        if len(values) == 1:
            return values[0]
        wide = accumulator(values[0].dtype)
        total = functools.reduce(operator, (value[:length].astype(wide, copy=False) for value in values))
        return total.astype(values[0].dtype, copy=False)

    return combine


def average(total: Array, ranks: int, factor: float = 1) -> Array:
    """A sum over ``ranks`` divided by their number: in the accumulator, rounded once more, complex numbers by parts.

    With ``factor`` it is multiplied by that first, as a sum that is scaled is, of ``ranks`` 1.
    """
    wide = total.astype(accumulator(total.dtype))
    parts = wide.view(f"f{wide.itemsize // 2}") if wide.dtype.kind == "c" else wide
    quotients: Array = parts * parts.dtype.type(factor) / parts.dtype.type(ranks)
    return quotients.view(wide.dtype).astype(total.dtype)


def reference(
    schedule: Schedule,
    inputs: Sequence[Array],
    op: str = "sum",
    *,
    seed: int | None = None,
    slots: int | None = None,
    units: Sequence[Sequence[int]] | None = None,
) -> list[Array]:
    """Execute a schedule on one array a rank and return one output a rank: what every runtime must give, bit by bit.

    ``inputs[r]`` is flat, with as many units of n elements as the collective says; or ``units[r]`` are the elements of
    each, and those of the outputs follow. Where no rank has an input, n is 0. The order of events is drawn from
    ``seed``. Output chunks that the collective leaves free, and no step writes, are zero. Raises UnevenSize or
    UnevenCounts as a communicator does.
    """
    collective = schedule.collective
    ranks = range(collective.size)
    dtype = inputs[0].dtype
    if 64 % dtype.itemsize:  # elements that are only moved, and cut as bytes
        sizes = None if units is None else [[n * dtype.itemsize for n in row] for row in units]
        raw = reference(schedule, [x.view(np.uint8) for x in inputs], op, seed=seed, slots=slots, units=sizes)
        return [out.view(dtype) for out in raw]
    if units is None:
        n = next((len(inputs[r]) // collective.input_blocks(r) for r in ranks if collective.input_blocks(r)), 0)
        check_size(schedule.name, collective.chunks, schedule.narrowings, n, dtype.itemsize)
        units, results = (
            [[n] * blocks(r) for r in ranks] for blocks in (collective.input_blocks, collective.output_blocks)
        )
    else:
        check_units(schedule)
        n = max(map(max, filter(None, units)), default=0)
        results = output_units(collective, units)
    machine = Machine[Array](
        schedule,
        lambda rank, index, tile: inputs[rank][bounds(collective, n, dtype.itemsize, index, units[rank])].copy(),
        combine_arrays(op),
        slots=schedule.slots if slots is None else slots,
    )
    machine.run(None if seed is None else random.Random(seed))
    outputs = []
    for rank in ranks:
        out = np.zeros(sum(results[rank]), dtype)
        for index, value in enumerate(machine.output(rank)):
            if value is not None:
                at = bounds(collective, n, dtype.itemsize, index, results[rank])
                length = min(at.stop - at.start, len(value))
                out[at.start : at.start + length] = value[:length]
        outputs.append(average(out, collective.size) if op == "avg" else out)
    return outputs
