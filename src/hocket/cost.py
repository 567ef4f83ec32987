"""What a program costs: the terms of the alpha-beta-gamma model, counted in the program and in its schedule."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hocket.ir.chunk_dag import ChunkDag, ChunkNode, Span
from hocket.ir.schedule import Receive, Schedule
from hocket.verify.events import Events

_MOST_LOOKS = 1 << 19
"""Transfers that are looked at while they are placed in rounds: about half a second."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule costs, on the rank that has most of it: the terms of the alpha-beta-gamma model.

    ``hops``: transfers that an input makes at most, one after the other, on its way to an output: the latency where a
    rank can talk to all others at once. ``rounds``: the same where it sends to one and receives from one at a time; all
    that a rank sends another in a round is one message. None where nobody counted them. ``volume``: units sent, or
    received if these are more. ``reductions``: units added to others. ``scratch``: units of memory.

    A *unit* is the whole buffer for AllReduce, Broadcast, Reduce and AllToNext, a chunk for Custom, and one rank's
    block otherwise; it divides evenly into chunks.
    """

    hops: Fraction
    rounds: Fraction | None
    volume: Fraction
    reductions: Fraction
    scratch: Fraction


def count(schedule: Schedule, dag: ChunkDag | None = None) -> Cost:
    """Rounds are counted in the program that the schedule was made of, if it is known and not too large."""
    hops, volume, reductions = _flow(schedule)
    scratch = max(rank.scratch for rank in schedule.ranks)
    units = (Fraction(n, schedule.collective.chunks) for n in (volume, reductions, scratch))
    placed = None if dag is None else _rounds(dag)
    return Cost(Fraction(hops), None if placed is None else Fraction(placed), *units)


def _flow(schedule: Schedule) -> tuple[int, int, int]:
    """Hops of the value that made most, chunks through the busiest rank one way, chunks reduced by the busiest rank."""
    events = Events(schedule)
    _, order = events.least_slots(schedule.slots)
    hops: dict[tuple[int, str, int], int] = {}
    queues: dict[tuple[int, int, int], deque[list[int]]] = {}
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    reduced: Counter[int] = Counter()
    for number in order:
        step, rank = events.steps[number], events.rank[number]
        values = [
            queues[source.peer, rank, source.channel].popleft()
            if isinstance(source, Receive)
            else [hops.get((rank, source.buffer, i), 0) for i in source.indices()]
            for source in step.srcs
        ]
        made = [max(parts) for parts in zip(*values, strict=True)]
        reduced[rank] += (len(step.srcs) - 1) * len(made)
        for target in step.dsts:
            if isinstance(target, Span):
                hops.update(((rank, target.buffer, i), n) for i, n in zip(target.indices(), made, strict=True))
            else:
                queues.setdefault((rank, target.peer, target.channel), deque()).append([n + 1 for n in made])
                sent[rank] += len(made)
                received[target.peer] += len(made)
    longest = 0
    for rank in range(schedule.collective.size):
        buffer, offset = schedule.collective.place(rank, "out")
        for index in range(schedule.collective.outputs(rank)):
            if schedule.collective.required(rank, index) is not None:
                longest = max(longest, hops.get((rank, buffer, offset + index), 0))
    busiest = max([0, *sent.values(), *received.values()])
    return longest, busiest, max([0, *reduced.values()])


def _rounds(dag: ChunkDag) -> int | None:
    """Rounds in which every rank sends to at most one other and receives from at most one: a placement found.

    None where that would take too long.

    Two list schedules, of which the shorter counts: in the order of the program, and by the number of transfers that
    still have to follow, then by how far it goes, so that exchanges of all with all fall into rotations.
    """
    follow = [0] * len(dag.nodes)
    for number, node in reversed(list(dag.operations())):
        for before in (*node.true, *node.false):
            follow[before] = max(follow[before], follow[number] + _is_transfer(node))

    def far(number: int) -> tuple[int, ...]:
        node = dag.nodes[number]
        assert node.src is not None
        return -follow[number], (node.dst.rank - node.src.rank) % dag.collective.size, number

    urgency = list(range(len(dag.nodes)))
    first = _placed(dag, urgency)
    for place, (number, _) in enumerate(sorted(dag.operations(), key=lambda operation: far(operation[0]))):
        urgency[number] = place
    second = _placed(dag, urgency)
    return None if first is None or second is None else min(first, second)


def _is_transfer(node: ChunkNode) -> bool:
    return node.src is not None and node.src.rank != node.dst.rank


def _placed(dag: ChunkDag, urgency: Sequence[int]) -> int | None:
    """Rounds that a list schedule takes, the lowest ``urgency`` first. All that one rank sends another in a round goes
    together. None where it looks at too many transfers.

    What is sent in a round is read at its beginning and stored at its end; local operations happen between rounds.
    """
    after: list[list[int]] = [[] for _ in dag.nodes]
    for number, node in dag.operations():
        for before in (*node.true, *node.false):
            after[before].append(number)
    missing = [len(node.true) + len(node.false) for node in dag.nodes]
    earliest = [int(_is_transfer(node)) for node in dag.nodes]
    waiting: set[int] = set()

    def finish(number: int, time: int) -> None:
        """An operation is done at the end of round ``time``; so is what now can be and needs no round."""
        finished = [(number, time)]
        while finished:
            number, time = finished.pop()
            before = dag.nodes[number]
            for n in after[number]:
                node = dag.nodes[n]
                overwrites_what_is_sent = (
                    _is_transfer(before) and before.src is not None and before.src.rank == node.dst.rank
                )
                same_round = not _is_transfer(node) or (number in node.false and overwrites_what_is_sent)
                earliest[n] = max(earliest[n], time if same_round else time + 1)
                missing[n] -= 1
                if not missing[n]:
                    if _is_transfer(node):
                        waiting.add(n)
                    else:
                        finished.append((n, earliest[n]))

    for number in range(dag.collective.size):
        finish(number, 0)
    time = looks = 0
    while waiting:
        time += 1
        sends: dict[int, int] = {}
        receives: dict[int, int] = {}
        able = list(waiting)
        while able:
            done = set()
            looks += len(able)
            if looks > _MOST_LOOKS:
                return None
            for number in sorted((n for n in able if earliest[n] <= time), key=urgency.__getitem__):
                node = dag.nodes[number]
                assert node.src is not None
                source, target = node.src.rank, node.dst.rank
                if sends.get(source, target) == target and receives.get(target, source) == source:
                    sends[source], receives[target] = target, source
                    done.add(number)
            waiting -= done
            others = set(waiting)
            for number in sorted(done):
                finish(number, time)
            able = list(waiting - others)  # what may overwrite, in the same round, what was just sent
    return time
