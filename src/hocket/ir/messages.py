"""How messages lie in shared memory: which connections share their slots, which schedules take one round, or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Receive, Schedule, Send, Step

MOST_READERS = 31
"""Of a multicast (native/core/plan.h)."""

Connection = tuple[int, int, int]
"""(source rank, destination rank, channel)."""


def transfers(steps: Iterable[tuple[int, int, int, Step]]) -> list[tuple[int, int]]:
    """For each message of a tile the step that sends it and the one that receives it, as numbers of ``steps``.

    Those are all of a schedule, in the order of ``Schedule.steps``: the k-th on a connection belongs to its k-th.
    """
    sent: dict[Connection, list[int]] = {}
    received: dict[Connection, list[int]] = {}
    for number, (rank, _, _, step) in enumerate(steps):
        for source in step.srcs:
            if isinstance(source, Receive):
                received.setdefault((source.peer, rank, source.channel), []).append(number)
        for target in step.dsts:
            if isinstance(target, Send):
                sent.setdefault((rank, target.peer, target.channel), []).append(number)
    return [pair for end, sends in sent.items() for pair in zip(sends, received.get(end, ()), strict=False)]


@dataclass(frozen=True, slots=True)
class Multicast:
    """Connections that are always sent on together, ``messages`` times a tile: one slot holds what all of them carry.

    That is what the schedule means: a step that sends on several connections waits for a slot on each.
    """

    source: int
    channel: int
    readers: tuple[int, ...]
    messages: int


def multicasts(schedule: Schedule) -> list[Multicast]:
    """Those of all ranks, at most one of a rank on a channel."""
    found: dict[tuple[int, int], Multicast] = {}
    for source, rank in enumerate(schedule.ranks):
        for block in rank.thread_blocks:
            if len(block.sends) < 2:
                continue
            used: dict[Send, list[int]] = {}
            for s, step in enumerate(block.steps):
                for target in step.dsts:
                    if isinstance(target, Send) and target.at is None:
                        used.setdefault(target, []).append(s)
            together: dict[tuple[int, tuple[int, ...]], list[int]] = {}
            for send, steps in used.items():
                together.setdefault((send.channel, tuple(steps)), []).append(send.peer)
            for (channel, when), peers in together.items():
                if 1 < len(peers) <= MOST_READERS:
                    found.setdefault((source, channel), Multicast(source, channel, tuple(sorted(peers)), len(when)))
    return list(found.values())


def stored_once(schedule: Schedule) -> set[tuple[int, Send]]:
    """The ends, each with its rank, that cost a step no store: another reader of a multicast has the same slot."""
    return {(m.source, Send(reader, m.channel)) for m in multicasts(schedule) for reader in m.readers[1:]}


def connection_widths(schedule: Schedule) -> tuple[dict[Connection, int], dict[Connection, bool]]:
    """The most chunks that one slot of each connection holds; of those without slots, whether they are pushed."""
    widths: dict[Connection, int] = {}
    in_place: dict[Connection, bool] = {}
    for r, _, _, step in schedule.steps():
        for target in step.dsts:
            if isinstance(target, Send):
                connection = r, target.peer, target.channel
                if target.at is not None:
                    in_place[connection] = target.pushes
                else:
                    widths[connection] = max(widths.get(connection, 1), step.count or 0)
        for source in step.srcs:
            if isinstance(source, Receive) and source.at is None:
                connection = source.peer, r, source.channel
                widths[connection] = max(widths.get(connection, 1), step.count or 0)
    return widths, in_place


def fan_of(widths: Mapping[Connection, int], further: Container[Connection]) -> int:
    """Chunks of the slots, one of each connection, of the rank with most.

    ``further``: connections to a reader of a multicast beyond the first: what is stored for the first is there for all.
    """
    fan: Counter[int] = Counter()
    for connection, width in widths.items():
        source, target, _ = connection
        fan[target] += width
        if connection not in further:
            fan[source] += width
    return max(fan.values(), default=1)


@dataclass(frozen=True, slots=True)
class Round:
    """All messages of a schedule that sends before it receives: where they begin in the senders' eager areas.

    ``chunks``: those of an area.
    """

    places: Mapping[Connection, int]
    chunks: int


def one_round(schedule: Schedule) -> Round | None:
    """The messages of a schedule, if all can be sent before any is received.

    So it is if every connection carries one message, and a step that sends comes in its thread block after none that
    waits or receives, nor after one that writes what it reads. Then nothing orders it after anything but those, and as
    there are no races, it reads what the rank began with. Equal messages of a rank are one.
    """
    if schedule.in_place():
        return None
    places: dict[Connection, int] = {}
    most = 0
    for source, rank in enumerate(schedule.ranks):
        messages: dict[tuple[Span | Receive, ...], int] = {}
        end = 0
        for block in rank.thread_blocks:
            written: set[tuple[str, int]] = set()
            late = False  # it has waited, or received
            for step in block.steps:
                sends = [d for d in step.dsts if isinstance(d, Send)]
                spans = [s for s in step.srcs if isinstance(s, Span)]
                late = late or bool(step.waits) or len(spans) < len(step.srcs)
                stale = any((s.buffer, index) in written for s in spans for index in s.indices())
                written.update((d.buffer, index) for d in step.dsts if isinstance(d, Span) for index in d.indices())
                if not sends:
                    continue
                if late or stale or step.dsts[0] != sends[0]:
                    return None
                if step.srcs not in messages:
                    messages[step.srcs] = end
                    end += step.count or 0
                for send in sends:
                    connection = source, send.peer, send.channel
                    if connection in places:
                        return None
                    places[connection] = messages[step.srcs]
        most = max(most, end)
    return Round(places, most) if most else None


def two_rounds(schedule: Schedule) -> bool:
    """Whether ranks need to wait for each other only twice: until all have entered, and until all are done.

    So it is if all messages lie in place, a rank offers what it offers first of all, and a step that moves data comes
    after none that learns of a message, in its thread block or by waiting. Then no step that moves data comes after one
    of another rank: every message ends in a step that learns, or begins in one that offers, before which there is
    nothing. As there are no races, no two of them are in conflict, and they need no order.
    """
    if not schedule.in_place():
        return False
    for rank in schedule.ranks:
        learned = {
            (b, s)
            for b, block in enumerate(rank.thread_blocks)
            for s, step in enumerate(block.steps)
            if any(isinstance(source, Receive) and not source.pulls for source in step.srcs)
        }
        for b, block in enumerate(rank.thread_blocks):
            worked = late = False
            for s, step in enumerate(block.steps):
                if any(isinstance(end, Receive | Send) and end.at is None for end in (*step.srcs, *step.dsts)):
                    return False
                if (b, s) in learned:
                    late = True
                    continue
                told = any((wait.thread_block, wait.step) in learned for wait in step.waits)
                offers_late = not step.moves and (worked or bool(step.waits))
                if late or told or offers_late:
                    return False
                worked = worked or step.moves
    return True
