"""Into how many operations of a FIFO a runtime cuts the steps of a file, and the proof of every cut that occurs.

A step of n chunks is ceil(n / g) operations. The grain g, the chunks of an operation, follows from the size of a call:
as many as ``FIFO_BYTES`` hold, at most COUNT, at least one. So the calls that a file serves have few grains.

One cut refines another if each operation of the other is one or more of its own: that of g refines those of multiples
of g, and all refine whole steps. Without a race, what comes out is what whole steps compute, which are one order of
their parts; and that a cut has no race and no deadlock holds for those that it refines:

- A race in the coarse cut is one in the fine cut, where less is in order: both keep program order, waits, transfers.
- A cycle of waits in the coarse cut is one in the fine cut, through the last parts of the same operations. Such a part
  waits for the last part of what a transfer brings, and for the first part of its own operation. That waits for the
  last part of what comes before it in its block or of what it waits for in another; and of the message whose slot it
  needs, as no fewer messages lie between the two than in the coarse cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hocket.errors import Calls, Deadlock
from hocket.formats.msccl_legal import cut
from hocket.formats.msccl_targets import COUNT, FIFO_BYTES
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Schedule
from hocket.verify import check_order
from hocket.verify.events import Events


@dataclass(frozen=True, slots=True)
class Grain:
    """Operations of up to ``chunks`` chunks, and the calls, by runtime, in which they are."""

    chunks: int
    calls: Mapping[str, Calls]


def grains(protocol: str, loop_chunks: int, low: int, high: int | None, runtimes: Iterable[str]) -> list[Grain]:
    """Those in calls of ``low`` to ``high`` bytes, the finest first. None is no limit. A call is divided by the runtime
    into ``loop_chunks`` equal chunks; no file serves another."""
    shortest = max(1, -(-low // loop_chunks))
    longest = None if high is None else max(shortest, high // loop_chunks)
    found: dict[int, dict[str, Calls]] = {}
    for runtime in runtimes:
        capacity = FIFO_BYTES[runtime][protocol]
        for chunks in range(1, COUNT + 1):
            begin = shortest if chunks == COUNT else max(shortest, capacity // (chunks + 1) + 1)
            ends = [longest] if chunks == 1 else [longest, capacity // chunks]
            end = min((end for end in ends if end is not None), default=None)
            if end is None or begin <= end:
                calls = Calls(runtime, begin * loop_chunks, None if end is None else end * loop_chunks)
                found.setdefault(chunks, {})[runtime] = calls
    return [Grain(chunks, found[chunks]) for chunks in sorted(found)]


def check_operations(schedule: Schedule, slots: int, served: Sequence[Grain]) -> None:
    """Raise Race or Deadlock for some grain that cuts a step; a Deadlock says in which calls it is."""
    counts = {
        step.count or 1
        for _, _, _, step in schedule.steps()
        if any(not isinstance(end, Span) for end in (*step.srcs, *step.dsts))
    }
    for grain in _finest(served, max(counts, default=1)):
        try:
            check_order(replace(cut(schedule, grain.chunks), slots=slots))
        except Deadlock as error:
            raise replace(error, calls=tuple(_stuck(schedule, slots, served, counts))) from None


def _finest(served: Sequence[Grain], longest: int) -> Iterator[Grain]:
    """The grains that cut a step of ``longest`` chunks, and whose cut no other of them refines."""
    kept: list[Grain] = []
    for grain in served:
        if grain.chunks < longest and all(grain.chunks % finer.chunks for finer in kept):
            kept.append(grain)
            yield grain


def _stuck(schedule: Schedule, slots: int, served: Sequence[Grain], counts: Iterable[int]) -> Iterator[Calls]:
    """The calls in which the operations wait for each other; nothing if these are all."""
    known: dict[tuple[int, ...], bool] = {}

    def waits(grain: Grain) -> bool:
        operations = tuple(-(-count // grain.chunks) for count in counts)  # all that deadlock depends on
        if operations not in known:
            try:
                Events(cut(schedule, grain.chunks)).least_slots(slots)
            except Deadlock:
                known[operations] = True
            else:
                known[operations] = False
        return known[operations]

    stuck = [waits(grain) for grain in served]
    if all(stuck):
        return
    for runtime in dict.fromkeys(runtime for grain in served for runtime in grain.calls):
        range_: Calls | None = None
        for grain, waiting in zip(served, stuck, strict=True):
            calls = grain.calls.get(runtime)
            if calls is not None and waiting:  # a coarser grain is of smaller calls
                range_ = calls if range_ is None else replace(range_, low=calls.low)
            elif calls is not None and range_ is not None:
                yield range_
                range_ = None
        if range_ is not None:
            yield range_
