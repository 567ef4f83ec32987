"""How units are cut into chunks; native/core cuts them the same way.

Units are of n elements each, or of lengths of their own (``counts=``): then n is the longest on any rank, and all units
are cut by its chunks, so that a short unit has full first chunks and short or empty last ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

from hocket.collectives import BufferName, Collective, members
from hocket.errors import InvalidArgument, UnevenCounts, UnevenSize, caller, show_span
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Narrowing, Receive, Schedule

Unit = tuple[int, BufferName, int]
"""A unit of a user's physical buffer: (rank, buffer, number)."""


def chunk_length(chunks: int, n: int, itemsize: int) -> int:
    """Elements of a full chunk of a unit of ``n`` elements: an even share, rounded up to 64 bytes."""
    line = max(1, 64 // itemsize)
    share = -(-n // chunks)
    return -(-share // line) * line


def bounds(collective: Collective, n: int, itemsize: int, index: int, units: Sequence[int] | None = None) -> slice:
    """Elements of chunk ``index`` of an input or output buffer; the last chunks of a unit are shorter or empty.

    ``units``: elements of each unit of the buffer, where they are not all n.
    """
    unit, position = divmod(index, collective.chunks)
    begin, length = (unit * n, n) if units is None else (sum(units[:unit]), units[unit])
    q = chunk_length(collective.chunks, n, itemsize)
    return slice(begin + min(position * q, length), begin + min((position + 1) * q, length))


def check_size(name: str, chunks: int, narrowings: Iterable[Narrowing], n: int, itemsize: int) -> None:
    """Raise UnevenSize if a unit of ``n`` elements cannot be cut so that every value fits where it goes.

    ``name`` is the schedule's. Elements whose size does not divide 64 bytes are only ever moved, and cut as bytes.
    """
    if not itemsize or 64 % itemsize:
        n, itemsize = n * itemsize, 1
    q = chunk_length(chunks, n, itemsize)
    for narrowing in narrowings:
        value, location = narrowing.value, narrowing.location
        if min((value + 1) * q, n) - min(value * q, n) != min((location + 1) * q, n) - min(location * q, n):
            raise UnevenSize(name, n, chunks, value, location, narrowing.where)


def check_units(schedule: Schedule) -> None:
    """Raise UnevenCounts unless the schedule may be run on units of lengths of their own.

    It may if every value stays at its place in units that have the length of its own, whatever the lengths: which those
    are, the collective says by what must be summed where. All that a step reads and writes belongs together, and so
    does what a slot carries; a scratch chunk, which has room for any, belongs to one kind of unit for good.
    """
    chunks = schedule.collective.chunks
    for narrowing in schedule.narrowings:
        raise UnevenCounts(
            schedule.name, f"chunk {narrowing.value} of a unit", f"chunk {narrowing.location}", narrowing.where
        )
    kinds = _equal_units(schedule.collective)
    traffic: Counter[tuple[int, int, int, bool]] = Counter()
    for rank, _, _, step in schedule.steps():
        operands: list[list[Hashable]] = []
        for operand in (*step.srcs, *step.dsts):
            place = operand if isinstance(operand, Span) else operand.at
            if place is not None:
                number = 1 if place.buffer == "sc" else chunks
                operands.append([(place.rank, place.buffer, index // number) for index in place.indices()])
                continue
            assert not isinstance(operand, Span)
            receives = isinstance(operand, Receive)
            source, target = (operand.peer, rank) if receives else (rank, operand.peer)
            slot = traffic[source, target, operand.channel, receives]
            traffic[source, target, operand.channel, receives] += 1
            operands.append([(source, target, operand.channel, slot, j) for j in range(step.count or 0)])
        for other in operands[1:]:
            for a, b in zip(operands[0], other, strict=True):
                if apart := kinds.join(a, b):
                    one, two = (show_span(r, buffer, unit * chunks, chunks) for r, buffer, unit in apart)
                    raise UnevenCounts(schedule.name, one, two, step.where[0] if step.where else None)


def output_units(collective: Collective, inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """The elements of each unit of each rank's output, from those of the inputs that must be summed there.

    A unit of which nothing is promised has as many as the longest. Raises InvalidArgument for a sum of units of
    different lengths.
    """
    kinds = _equal_units(collective)
    lengths: dict[Hashable, int] = {}
    for rank, units in enumerate(inputs):
        for number, n in enumerate(units):
            unit = _unit(collective, rank, "in", number * collective.chunks)
            if lengths.setdefault(kinds.root(unit), n) != n:
                raise InvalidArgument(
                    f"unit {number} of the input of rank {rank} has {n} elements, others that it is summed with or "
                    f"shares a place with have {lengths[kinds.root(unit)]}",
                    caller(),
                )
    longest = max(chain.from_iterable(inputs), default=0)
    return [
        [
            lengths.get(kinds.root(_unit(collective, rank, "out", index)), longest)
            for index in range(0, collective.outputs(rank), collective.chunks)
        ]
        for rank in range(collective.size)
    ]


class _Kinds:
    """Disjoint sets of places. A set may have a name: a unit of the user's that is in it."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}
        self._names: dict[Hashable, Unit] = {}

    def root(self, place: Hashable) -> Hashable:
        parents = self._parents
        while (parent := parents.setdefault(place, place)) != place:
            parents[place] = place = parents[parent]
        return place

    def name(self, unit: Unit) -> None:
        self._names.setdefault(self.root(unit), unit)

    def join(self, a: Hashable, b: Hashable) -> tuple[Unit, Unit] | None:
        """Make two sets one. If both have names, they stay apart, and these are returned."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return None
        if a in self._names and b in self._names:
            return self._names[a], self._names[b]
        if b in self._names:
            a, b = b, a
        self._parents[b] = a
        return None


def _equal_units(collective: Collective) -> _Kinds:
    """The units of users' buffers, those together that must have one length. All have names."""
    kinds = _Kinds()
    ranks = range(collective.size)
    for rank in ranks:
        for index in range(collective.outputs(rank)):
            target = _unit(collective, rank, "out", index)
            for source, chunk in members(collective.required(rank, index) or ()):
                kinds.join(target, _unit(collective, source, "in", chunk))
    ends: tuple[tuple[BufferName, Callable[[int], int]], ...] = (("in", collective.inputs), ("out", collective.outputs))
    for buffer, length in ends:  # named after what is contributed, where something is
        for rank in ranks:
            for index in range(0, length(rank), collective.chunks):
                kinds.name(_unit(collective, rank, buffer, index))
    return kinds


def _unit(collective: Collective, rank: int, buffer: BufferName, index: int) -> Unit:
    """The unit that a chunk of a buffer lies in."""
    physical, offset = collective.place(rank, buffer)
    return rank, physical, (offset + index) // collective.chunks
