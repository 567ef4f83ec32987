"""A timeline in the JSON of Chrome and Perfetto, as the runtime writes what it measured (``hocket.trace_events``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from hocket.timeline import Timeline
from hocket.trace_events import CLOSE, NEXT, OPEN, arrow, describe, head, names, us


def text(timelines: Sequence[Timeline]) -> str:
    """The file: a process for each rank of each timeline, in order, with a track for each thread block.

    Messages are arrows. The links of a timeline are a process more, with a counter for each, in per cent.
    """
    events: list[str] = []
    process, message = 1, 0  # process 0 is that of an idle core
    for timeline in timelines:
        events += _of(timeline, process, message)
        process += len(timeline.schedule.ranks) + 1
        message += len(timeline.messages)
    return (OPEN + NEXT.join(event.encode() for event in events) + CLOSE).decode()


def _of(timeline: Timeline, process: int, message: int) -> Iterator[str]:
    """The numbers of its processes and messages begin with these."""
    ranks = timeline.schedule.ranks
    for r, rank in enumerate(ranks):
        tracks = [f"tb {block}" for block in range(len(rank.thread_blocks))]
        yield from names(process + r, f"{timeline.title}: rank {r}", process + r, 1, tracks)
    said: dict[tuple[int, int, int], str] = {}
    for span in timeline.spans:
        key = span.rank, span.thread_block, span.step
        if key not in said:
            said[key] = describe(ranks[span.rank], span.thread_block, span.step)
        begin, end = _ns(span.begin), _ns(span.end)
        at = head("X", process + span.rank, span.thread_block + 1, begin)
        yield f'{at},"dur":{us(end - begin)},{said[key]}"tile":{span.tile},"waited":{us(_ns(span.waited))}}}}}'
    for number, transfer in enumerate(timeline.messages, message):
        for phase, which in (("s", transfer.sent), ("f", transfer.received)):
            span = timeline.spans[which]
            yield arrow(phase, process + span.rank, span.thread_block + 1, _ns(span.begin), number)
    if timeline.links:
        links = process + len(ranks)
        yield from names(links, f"{timeline.title}: links", links, 0, [])
    for use in timeline.links:
        for time, percent in _levels(use.intervals):
            counter = f'"name":{json.dumps(use.link)},"args":{{"%":{percent:.1f}}}'
            yield f"{head('C', process + len(ranks), 0, _ns(time))},{counter}}}"


def _levels(intervals: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, float]]:
    """The times at which the use of a link changes, and what it is from then on, in per cent."""
    for i, (begin, end, share) in enumerate(intervals):
        yield begin, 100 * share
        if i + 1 == len(intervals) or intervals[i + 1][0] > end:
            yield end, 0.0


def _ns(time: float) -> int:
    return round(time * 1000)
