"""Memory traffic: the bytes that a call loads and stores, counted in its schedule (YHCCL, section 2.1: the data access
volume). The runtime counts the same while it runs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.collectives import Collective
from hocket.ir.chunk_dag import Span
from hocket.ir.geometry import bounds, chunk_length, output_units
from hocket.ir.memory import apart as lying_apart
from hocket.ir.messages import stored_once
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Step


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes loaded and bytes stored by instructions: by k sources and m destinations, k and m times what each has.

    Slots count; one that several ranks read is stored once. What waiting and calling cost does not, nor copies of whole
    arrays before and after a call, for a schedule that cannot work on them where they lie.
    """

    loaded: int = 0
    stored: int = 0

    @property
    def moved(self) -> int:
        """Both: YHCCL's data access volume."""
        return self.loaded + self.stored

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.loaded + other.loaded, self.stored + other.stored)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.loaded - other.loaded, self.stored - other.stored)


Path = Literal["eager", "fifo", "mapped", "cma"]
"""How the messages of a call travel (docs/design/paths.md); the last two are zero-copy."""


def traffic(
    schedule: Schedule,
    n: int,
    itemsize: int,
    *,
    path: Path = "fifo",
    apart: bool = True,
    units: Sequence[Sequence[int]] | None = None,
) -> tuple[Traffic, ...]:
    """What each rank moves in a call on units of ``n`` elements of ``itemsize`` bytes, exactly as the runtime runs it.

    ``path``: that of the call, which the runtime selects (``native/policy/select.h``). ``apart``: the arrays lie apart;
    it tells only where the schedule is in-place. ``units``: elements of each unit of each rank's input, where they are
    not all n; n is then the longest of them.
    """
    collective = schedule.collective
    if not itemsize or 64 % itemsize:
        n, itemsize = n * itemsize, 1
        units = None if units is None else [[length * itemsize for length in rank] for rank in units]
    sizes = _Sizes(collective, n, itemsize, units)
    free = stored_once(schedule)
    lie_apart = apart and not schedule.in_place()

    def of_rank(rank: int) -> Traffic:
        part = schedule.ranks[rank]
        if lie_apart and collective.alias(rank) is not None:
            part = lying_apart(collective, rank, part) or part
        loaded = stored = 0
        for step, targets in _eager_operations(part) if path == "eager" else _slot_operations(rank, part, free):
            if targets:
                size = sizes.of_operand(rank, step, targets)
                loads, stores = _reached(step) if path == "cma" else (len(step.srcs), len(targets))
                loaded += loads * size
                stored += stores * size
        return Traffic(loaded, stored)

    return tuple(of_rank(rank) for rank in range(collective.size))


class _Sizes:
    """How long chunks are in a call; the arguments are those of ``traffic``."""

    def __init__(self, collective: Collective, n: int, itemsize: int, units: Sequence[Sequence[int]] | None) -> None:
        self._chunk = chunk_length(collective.chunks, n, itemsize)
        self._collective, self._n, self._itemsize = collective, n, itemsize
        self._units = {"in": units, "out": None if units is None else output_units(collective, units)}

    def of_operand(self, rank: int, step: Step, destinations: Sequence[Destination]) -> int:
        """Bytes of one operand: of each chunk as much as the shortest local operand has."""
        spans = [o for o in (*step.srcs, *destinations) if type(o) is Span and o.buffer != "sc"]
        total = 0
        for j in range(step.count or 0):
            least = self._chunk
            for span in spans:
                given = self._units[span.buffer]
                own = None if given is None else given[rank]
                place = bounds(self._collective, self._n, self._itemsize, span.index + j * span.stride, own)
                least = min(least, place.stop - place.start)
            total += least
        return total * self._itemsize


_Operation = tuple[Step, Sequence[Destination]]
"""A step, and those of its destinations that it stores to at once."""


def _eager_operations(part: Rank) -> Iterator[_Operation]:
    """In one round a step stores what it keeps, and then what it sends, once for all who get the same."""
    sent = set()
    for step in (step for block in part.thread_blocks for step in block.steps if step.moves):
        yield step, [target for target in step.dsts if type(target) is Span]
        if isinstance(step.dsts[0], Send) and step.srcs not in sent:
            sent.add(step.srcs)
            yield step, [step.dsts[0]]


def _slot_operations(rank: int, part: Rank, free: Container[tuple[int, Destination]]) -> Iterator[_Operation]:
    """``free``: sends whose slot another send has filled."""
    for step in (step for block in part.thread_blocks for step in block.steps if step.moves):
        yield step, [target for target in step.dsts if type(target) is Span or (rank, target) not in free]


def _reached(step: Step) -> tuple[int, int]:
    """How often a step loads and stores where it reaches what lies with other ranks (native/transport/cma.cpp)."""
    pulled = sum(type(source) is Receive and source.pulls for source in step.srcs)
    pushed = sum(type(target) is Send and target.pushes for target in step.dsts)
    here = len(step.dsts) - pushed
    if len(step.srcs) > 1:  # what is pulled goes to blocks first, and so does a sum that is only pushed
        return pulled + len(step.srcs) + pushed, pulled + max(1, here) + pushed
    kept = here - min(pulled, here)  # what is pulled goes to one of its places at once
    return pulled + (kept > 0) + pushed, pulled + kept + pushed
