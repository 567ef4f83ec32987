"""Timeline: when each step of a schedule ran, what it waited for, which messages went where. Simulated, or measured.

A plain value, whoever made it. ``measured`` reads one from the file that HOCKET_TRACE left (``hocket.runtime.trace``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hocket import trace_events
from hocket.errors import InvalidArgument, Unreadable, UsageError, caller
from hocket.ir.memory import apart
from hocket.ir.messages import transfers
from hocket.ir.schedule import Rank, Schedule
from hocket.trace_events import TRACKS, Event

FORMATS = (".html", ".json")
"""How the names of timelines in files end."""


@dataclass(frozen=True, slots=True)
class Span:
    """A step on one tile. Times are microseconds from the start of the call.

    ``begin`` comes after its waits, when its slots and its messages were there. ``waited`` is how long before that
    whatever runs it (its thread block; of a measured one its thread, which may run several) had nothing to do.
    """

    rank: int
    thread_block: int
    step: int
    tile: int
    begin: float
    end: float
    waited: float


@dataclass(frozen=True, slots=True)
class Message:
    """A transfer from one span to another, both numbers of ``Timeline.spans``.

    ``links`` names those that it went over, in order; none where that is not known.
    """

    sent: int
    received: int
    bytes: int
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How much of one link's bandwidth was used: (begin, end, share from 0 to 1), in order, apart; in between none."""

    link: str
    intervals: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """One call of a schedule, which lasted ``total`` microseconds."""

    title: str
    schedule: Schedule
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]
    links: tuple[LinkUse, ...]
    total: float

    def __repr__(self) -> str:
        return f"<Timeline {self.title!r} of {self.schedule.name!r}: {len(self.spans)} spans, {self.total:.6g} us>"

    def draw(self, path: str | os.PathLike[str], *others: Timeline) -> None:
        """Write a page that opens offline (.html), or a file for Perfetto (.json); others below it, on the same axis.

        Raises InvalidArgument for another ending, OSError.
        """
        from hocket.formats import perfetto, timeline_page

        ending = Path(path).suffix.lower()
        if ending not in FORMATS:
            raise InvalidArgument(
                f"the name of a timeline ends in {' or '.join(FORMATS)}, not {Path(path).name!r}", caller()
            )
        write = timeline_page.page if ending == ".html" else perfetto.text
        Path(path).write_text(write([self, *others]), encoding="utf-8")

    def _repr_html_(self) -> str:
        """The page in a notebook."""
        from hocket.formats.timeline_page import frame

        return frame([self])


# ---------------------------------------------------------------------------------------------------------------
# From a trace


def measured(file: str | os.PathLike[str], schedule: Schedule, call: int | None = None) -> Timeline:
    """A call of a schedule from the file that HOCKET_TRACE left: the last, or that of this number, on any communicator.

    Its start is when the last rank entered it, or the first step began, if that was before. The timeline's schedule is
    the one that ran: with buffers apart where those of the call were. It has messages where steps wait for them, which
    those of short calls and of zero-copy ones do not (docs/runtime.md). Raises Unreadable for a file that is none, and
    UsageError where the call is not in it, not whole, or of another schedule.
    """
    path = Path(file)
    try:
        ranks = _find(path, schedule, call)
        number = ranks[0].args.call
        tracks = {(event.pid, event.tid // TRACKS): rank for rank, event in enumerate(ranks)}
        steps: list[list[Event]] = [[] for _ in ranks]
        for event in trace_events.steps(path, number):
            rank = tracks.get((event.pid, event.tid // TRACKS))
            if rank is not None:
                steps[rank].append(event)
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError:
        raise Unreadable(f"{path} has a line that HOCKET_TRACE did not write, or not to its end", _HOW) from None
    what = f"call {number} of {schedule.name} in {path}"
    tiles = ranks[0].args.tiles
    parts = tuple(_part(schedule, rank, steps[rank], tiles, what) for rank in range(len(ranks)))
    inplace = schedule.collective.inplace and parts == schedule.ranks
    ran = replace(schedule, collective=schedule.collective.placed(inplace), ranks=parts)
    begun = min([max(event.ts for event in ranks), *(event.ts for events in steps for event in events)])
    spans, sizes = _spans(steps, begun)
    waits = ranks[0].args.waits == trace_events.FOR_MESSAGES
    return Timeline(
        title=f"measured: call {number}, {ranks[0].args.bytes} B",
        schedule=ran,
        spans=tuple(spans),
        messages=_messages(ran, spans, sizes) if waits else (),
        links=(),
        total=_since(begun, max(event.ts + event.dur for event in ranks)),
    )


_HOW = "HOCKET_TRACE=trace.json in the environment makes a job write one"


def _find(path: Path, schedule: Schedule, number: int | None) -> list[Event]:
    """The call on each rank."""
    size = schedule.collective.size
    found: dict[tuple[int, int], dict[int, Event]] = {}
    names: dict[str, None] = {}
    for event in trace_events.calls(path):
        names[event.args.schedule] = None
        if event.args.schedule == schedule.name:
            found.setdefault((event.args.communicator, event.args.call), {})[event.args.rank] = event
    if not names:
        raise UsageError(f"{path} has no call of a schedule", _HOW)
    if not found:
        raise UsageError(f"{path} has no call of {schedule.name}", f"it has calls of {', '.join(names)}")
    wanted = [ranks for (_, call), ranks in found.items() if number in (None, call)]
    if not wanted:
        numbers = sorted({call for _, call in found})
        raise UsageError(f"{path} has no call {number} of {schedule.name}", f"its numbers are {_numbers(numbers)}")
    of_size = [ranks for ranks in wanted if _any(ranks).args.ranks == size]
    ranks = max(of_size or wanted, key=lambda ranks: max(event.ts for event in ranks.values()))
    call = _any(ranks).args.call
    if not of_size:
        why = f"it has {_any(ranks).args.ranks} ranks, not {size}"
        raise _other(f"call {call} of {schedule.name} in {path}", why)
    if missing := [rank for rank in range(size) if rank not in ranks]:
        raise UsageError(
            f"of call {call} of {schedule.name}, {path} lacks rank {_numbers(missing)}",
            "a rank that was killed, or is of another machine, leaves nothing; --call N takes another",
        )
    for rank, event in sorted(ranks.items()):
        if event.args.fault:
            raise UsageError(f"call {call} of {schedule.name} in {path} failed on rank {rank}: {event.args.fault}")
    return [ranks[rank] for rank in range(size)]


def _any(ranks: Mapping[int, Event]) -> Event:
    return next(iter(ranks.values()))


def _numbers(numbers: Sequence[int]) -> str:
    from hocket.formats.picture import ranges

    text = ranges(numbers)
    return text if len(text) < 80 else f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"


def _other(what: str, why: str) -> UsageError:
    return UsageError(
        f"{what} ran another schedule: {why}",
        "compile it as it was for the call: the same parameters, instances, slots and storage",
    )


def _part(schedule: Schedule, rank: int, steps: Sequence[Event], tiles: int, what: str) -> Rank:
    """What a rank ran: its part, or that with its buffers apart. Raises UsageError if it ran neither, or not all."""
    ran = {event.args.step for event in steps}
    part = schedule.ranks[rank]
    candidates = [part]
    if schedule.collective.alias(rank) is not None and (other := apart(schedule.collective, rank, part)) is not None:
        candidates.append(other)
    said = [_texts(candidate) for candidate in candidates]
    best = next((i for i, texts in enumerate(said) if ran <= texts), None)
    if best is None:
        raise _other(what, f"rank {rank} has a step {min(ran - said[0])!r}")
    if len(steps) != tiles * len(said[best]):
        raise UsageError(
            f"{what} is not whole: of rank {rank} there are {len(steps)} steps, not {tiles * len(said[best])}",
            f"a communicator records its first {trace_events.MOST_STEPS} steps on each thread, "
            "and a rank writes fewer that is killed meanwhile; --call N takes another",
        )
    return candidates[best]


def _texts(part: Rank) -> set[str]:
    """How a trace calls the steps of a rank."""
    blocks = enumerate(part.thread_blocks)
    return {trace_events.step_text(part, b, s) for b, block in blocks for s in range(len(block.steps))}


def _since(begun: float, at: float) -> float:
    """Both are microseconds with three digits after the point."""
    return round(at - begun, 3)


def _spans(steps: Sequence[Sequence[Event]], begun: float) -> tuple[list[Span], list[int]]:
    """All spans, by rank, thread block, tile and step, and the bytes that each worked on."""
    found: list[tuple[Span, int]] = []
    for rank, events in enumerate(steps):
        free: dict[int, float] = {}
        for event in sorted(events, key=lambda event: (event.ts, event.dur)):
            since = free.get(event.args.thread, begun)
            free[event.args.thread] = event.ts + event.dur
            block, step = map(int, event.args.step.partition(" ")[0].split("."))
            begin, end = _since(begun, event.ts), _since(begun, event.ts + event.dur)
            waited = max(0.0, _since(since, event.ts))
            found.append((Span(rank, block, step, event.args.tile, begin, end, waited), event.args.bytes))
    found.sort(key=lambda pair: (pair[0].rank, pair[0].thread_block, pair[0].tile, pair[0].step))
    return [span for span, _ in found], [size for _, size in found]


def _messages(schedule: Schedule, spans: Sequence[Span], sizes: Sequence[int]) -> tuple[Message, ...]:
    """The messages of each tile."""
    steps = list(schedule.steps())
    of: Mapping[tuple[int, int, int, int], int] = {
        (span.rank, span.thread_block, span.step, span.tile): i for i, span in enumerate(spans)
    }
    tiles = range(1 + max((span.tile for span in spans), default=-1))
    messages: list[Message] = []
    for first, second in transfers(steps):
        for tile in tiles:
            sent, received = of[*steps[first][:3], tile], of[*steps[second][:3], tile]
            messages.append(Message(sent, received, sizes[sent]))
    return tuple(messages)
