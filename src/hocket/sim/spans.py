"""A recorded run as a Timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hocket.sim.record import Record
from hocket.sim.work import Work
from hocket.timeline import LinkUse, Message, Span, Timeline


def timeline_of(work: Work, record: Record, tiles: Sequence[float], title: str, total: float) -> Timeline:
    """Spans are thread block by thread block, in the order of time."""
    spans: list[Span] = []
    number: dict[tuple[int, int], int] = {}
    for block, first in enumerate(work.first):
        free = None
        for tile in range(len(tiles)):
            for step in range(first, first + work.length[block]):
                begin, end = record.begins[step, tile], record.ends[step, tile]
                number[step, tile] = len(spans)
                waited = 0.0 if free is None else begin - free
                spans.append(Span(*work.place(step), tile, begin, end, waited))
                free = end
    messages = [
        Message(
            number[sent, tile],
            number[received, tile],
            round(work.chunks[sent] * size),
            tuple([work.topology.links[link].name for link in connection.route.links]),
        )
        for connection in work.connections
        for tile, size in enumerate(tiles)
        for sent, received in zip(connection.sends, connection.receives, strict=True)
    ]
    return Timeline(title, work.schedule, tuple(spans), tuple(messages), _uses(work, record), total)


def _uses(work: Work, record: Record) -> tuple[LinkUse, ...]:
    """The share of each link that is used, piece by piece; links that nothing uses are left out."""
    changes: dict[int, dict[float, float]] = {}
    for flow in record.flows:
        for begin, end, rate, _ in flow.pieces or ():
            for link in flow.links:
                at = changes.setdefault(link, {})
                at[begin] = at.get(begin, 0.0) + rate
                at[end] = at.get(end, 0.0) - rate
    uses = []
    for link, at in sorted(changes.items()):
        intervals: list[tuple[float, float, float]] = []
        width = work.topology.links[link].bandwidth * 1e3
        times = sorted(at)
        rate = 0.0
        for begin, end in pairwise(times):
            rate += at[begin]
            share = rate / width
            if share < 1e-9:
                continue
            if intervals and intervals[-1][1] == begin and abs(intervals[-1][2] - share) < 1e-9:
                intervals[-1] = intervals[-1][0], end, intervals[-1][2]
            else:
                intervals.append((begin, end, share))
        uses.append(LinkUse(work.topology.links[link].name, tuple(intervals)))
    return tuple(uses)
