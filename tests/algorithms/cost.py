"""Counts what programs and their schedules cost, as ``hocket.algorithms.entry.Cost`` defines it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from fractions import Fraction

from hocket import Program, Schedule
from hocket.algorithms.entry import Cost
from hocket.ir.chunk_dag import ChunkDag, ChunkNode, Span
from hocket.ir.schedule import Receive
from hocket.verify.events import Events


def counted(program: Program) -> Cost:
    """Everything counted: the rounds in the program, all else in the schedule that it compiles to."""
    schedule = program.compile(opcodes=True)
    chunks = schedule.collective.chunks
    hops, volume, reductions = _flow(schedule)
    scratch = max(rank.scratch for rank in schedule.ranks)
    units = (Fraction(n, chunks) for n in (volume, reductions, scratch))
    return Cost(Fraction(hops), Fraction(rounds(program.chunk_dag)), *units)


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


def rounds(dag: ChunkDag) -> int:
    """Rounds in which every rank sends to at most one other and receives from at most one: a placement found.

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

    return min(_placed(dag, lambda number: (number,)), _placed(dag, far))


def _is_transfer(node: ChunkNode) -> bool:
    return node.src is not None and node.src.rank != node.dst.rank


def _placed(dag: ChunkDag, priority: Callable[[int], tuple[int, ...]]) -> int:
    """Rounds that a list schedule takes. All that one rank sends another in a round goes together.

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
        for n in after[number]:
            before, node = dag.nodes[number], dag.nodes[n]
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
                    finish(n, earliest[n])

    for number in range(dag.collective.size):
        finish(number, 0)
    time = 0
    while waiting:
        time += 1
        sends: dict[int, int] = {}
        receives: dict[int, int] = {}
        able = list(waiting)
        while able:
            done = set()
            for number in sorted((n for n in able if earliest[n] <= time), key=priority):
                node = dag.nodes[number]
                assert node.src is not None
                source, target = node.src.rank, node.dst.rank
                if sends.get(source, target) == target and receives.get(target, source) == source:
                    sends[source], receives[target] = target, source
                    done.add(number)
            before = set(waiting)
            waiting -= done
            for number in sorted(done):
                finish(number, time)
            able = list(waiting - before)  # what may overwrite, in the same round, what was just sent
    return time
