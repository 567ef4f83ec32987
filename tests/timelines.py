"""Timelines for tests: one where every step takes as long as it says, and what must be true of any."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from hocket.ir.messages import transfers
from hocket.ir.schedule import Schedule
from hocket.timeline import LinkUse, Message, Span, Timeline

Lane = tuple[int, int]
Interval = tuple[float, float, float]


def lockstep(schedule: Schedule, tiles: int = 1, duration: Callable[[int], float] = lambda _: 1.0) -> Timeline:
    """A step begins when those before it have ended, and number i of all takes ``duration(i)``. Slots never run out.

    A message takes the link from its rank to the other, which it uses by half for the last microsecond of its step.
    """
    steps = list(schedule.steps())
    number = {key[:3]: i for i, key in enumerate(steps)}
    pairs = transfers(steps)
    needs: dict[int, list[int]] = defaultdict(list)
    for sent, received in pairs:
        needs[received].append(sent)
    for i, (r, _, _, step) in enumerate(steps):
        needs[i] += [number[r, wait.thread_block, wait.step] for wait in step.waits]
    length: dict[Lane, int] = {}
    for r, b, s, _ in steps:
        length[r, b] = max(length.get((r, b), 0), s + 1)
    spans: dict[tuple[int, int], Span] = {}

    def span(i: int, tile: int) -> Span:
        """Recursion is as deep as the longest chain: small schedules only."""
        if (i, tile) not in spans:
            r, b, s, _ = steps[i]
            before = (i - 1, tile) if s else (i + length[r, b] - 1, tile - 1) if tile else None
            free = span(*before).end if before is not None else 0.0
            begin = max([free, *(span(j, tile).end for j in needs[i])])
            spans[i, tile] = Span(r, b, s, tile, begin, begin + duration(i), begin - free)
        return spans[i, tile]

    order = [(i, tile) for tile in range(tiles) for i in range(len(steps))]
    made = tuple(span(*key) for key in order)
    place = {key: i for i, key in enumerate(order)}
    messages = []
    busy: dict[str, list[Interval]] = defaultdict(list)
    for tile in range(tiles):
        for sent, received in pairs:
            link = f"{steps[sent][0]} to {steps[received][0]}"
            messages.append(Message(place[sent, tile], place[received, tile], 1024, (link,)))
            end = spans[sent, tile].end
            busy[link].append((max(end - 1, spans[sent, tile].begin), end, 0.5))
    uses = tuple(LinkUse(link, _apart(intervals)) for link, intervals in busy.items())
    return Timeline("in lockstep", schedule, made, tuple(messages), uses, max(span.end for span in made))


def _apart(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Intervals of one share, in order; those that overlap as one."""
    found: list[Interval] = []
    for begin, end, share in sorted(intervals):
        if found and begin <= found[-1][1]:
            first, last, _ = found.pop()
            begin, end = first, max(end, last)
        found.append((begin, end, share))
    return tuple(found)


def assert_valid(timeline: Timeline, *, one_thread_each: bool = True, messages: bool = True) -> None:
    """Each step is there once for each tile; thread blocks do one thing at a time; messages are those of the schedule.

    ``one_thread_each``: whatever runs a span is its thread block, so that its steps and its waits fill its time.
    ``messages``: steps wait for them; else there are none.
    """
    tiles = 1 + max(span.tile for span in timeline.spans)
    steps = list(timeline.schedule.steps())
    assert Counter((s.rank, s.thread_block, s.step, s.tile) for s in timeline.spans) == Counter(
        (r, b, s, tile) for r, b, s, _ in steps for tile in range(tiles)
    )
    lanes: dict[Lane, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        assert 0 <= span.begin <= span.end <= timeline.total + 1e-6
        assert span.waited >= 0
        lanes[span.rank, span.thread_block].append(span)
    for spans in lanes.values():
        spans.sort(key=lambda span: (span.tile, span.step))
        free = 0.0
        for span in spans:
            assert free <= span.begin + 1e-6
            assert span.begin - span.waited >= free - 1e-6
            if one_thread_each:
                assert abs(span.begin - span.waited - free) < 1e-6
            free = span.end
    number = {(s.rank, s.thread_block, s.step, s.tile): i for i, s in enumerate(timeline.spans)}
    wanted = Counter(
        (number[*steps[i][:3], tile], number[*steps[j][:3], tile]) for i, j in transfers(steps) for tile in range(tiles)
    )
    assert Counter((m.sent, m.received) for m in timeline.messages) == (wanted if messages else Counter())
    assert all(timeline.spans[m.sent].begin <= timeline.spans[m.received].end for m in timeline.messages)
    for use in timeline.links:
        last = 0.0
        for begin, end, share in use.intervals:
            assert last <= begin <= end
            assert 0 <= share <= 1
            last = end
