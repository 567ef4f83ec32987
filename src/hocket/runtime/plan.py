"""Lowers one rank's part of a schedule to the flat words that native code reads (layout: native/core/plan.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hocket import _native
from hocket.ir.chunk_dag import Span
from hocket.ir.memory import apart, last_pushes, last_stores
from hocket.ir.messages import Connection, multicasts, one_round, two_rounds
from hocket.ir.schedule import Rank, Receive, Schedule, Send, Step

_PLACES = {"in": 0, "out": 1, "sc": 2}
_RECEIVE, _SEND, _HERE = 3, 4, 5
_THEIRS = {"in": 6, "out": 7}
_SLOTS, _PULLED, _PUSHED = 0, 1, 2

_Event = tuple[int, int, int] | tuple[int, int, int, int]
"""The end of a step (rank, thread block, step), or a message of a connection, by its number."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's part of a schedule: numbers of chunks only.

    ``writes_input``: it stores to the input buffer. ``part``: what it was made of.
    """

    words: bytes
    digest: int
    name: str
    writes_input: bool
    part: Rank


def lower(schedule: Schedule, rank: int) -> Plan:
    """The plan of ``rank``. The schedule is one that ``hocket.ir.schedule.verify`` accepts."""
    return _lower(schedule, rank, schedule.ranks[rank])


def lower_apart(schedule: Schedule, rank: int) -> Plan | None:
    """The plan of a rank for arrays that lie apart, where the schedule has them in one memory. None if there is none.

    The others need not run theirs: the traffic is the same.
    """
    if schedule.collective.alias(rank) is None or schedule.in_place():
        return None
    part = apart(schedule.collective, rank, schedule.ranks[rank])
    return None if part is None else _lower(schedule, rank, part)


def _lower(schedule: Schedule, rank: int, part: Rank) -> Plan:
    collective = schedule.collective
    widths, storage = _connections(schedule)
    round_ = one_round(schedule)
    work, depth = pace(schedule)
    shared = multicasts(schedule)
    readers = {(m.source, r, m.channel): (i, n) for i, m in enumerate(shared) for n, r in enumerate(m.readers)}
    own = sorted((c for c in widths | storage if rank in c[:2]), key=lambda c: (readers.get(c, (-1, 0)), c))
    number = {connection: i for i, connection in enumerate(own)}
    fan: Counter[int] = Counter()
    for (source, target, channel), width in widths.items():
        further_reader = readers.get((source, target, channel), (0, 0))[1] > 0
        fan.update({target: width} if further_reader else {source: width, target: width})

    def further(place: Span | Receive | Send) -> bool:
        """Whether a place is for a reader of a multicast beyond the first: what the first reads is there for all."""
        return isinstance(place, Send) and readers.get((rank, place.peer, place.channel), (0, 0))[1] > 0

    def operand(place: Span | Receive | Send) -> tuple[int, int, int, int, int]:
        if isinstance(place, Span):
            unit, position = (0, place.index) if place.buffer == "sc" else divmod(place.index, collective.chunks)
            return _PLACES[place.buffer], 0, unit, position, place.stride
        receives = isinstance(place, Receive)
        end = number[(place.peer, rank, place.channel) if receives else (rank, place.peer, place.channel)]
        if place.at is None:
            return _RECEIVE if receives else _SEND, end, 0, 0, 0
        if place.at.rank == rank:
            return _HERE, end, 0, 0, 0
        return _THEIRS[place.at.buffer], end, *divmod(place.at.index, collective.chunks), place.at.stride

    blocks: list[dict[str, int]] = []
    steps: list[dict[str, int]] = []
    operands: list[dict[str, int]] = []
    waits: list[dict[str, int]] = []
    last = last_stores(part) | last_pushes(schedule.ranks, rank)
    for b, block in enumerate(part.thread_blocks):
        blocks.append({"first_step": len(steps), "steps": len(block.steps)})
        for s, step in enumerate(block.steps):
            dsts = [d for d, place in enumerate(step.dsts) if not further(place)]
            steps.append(
                {
                    "count": _count(step),
                    "first_operand": len(operands),
                    "sources": len(step.srcs),
                    "destinations": len(dsts),
                    "first_wait": len(waits),
                    "waits": len(step.waits),
                    "last": sum(1 << bit for bit, d in enumerate(dsts[:32]) if (b, s, d) in last),
                }
            )
            for place in (*step.srcs, *(step.dsts[d] for d in dsts)):
                operands.append(dict(zip(("place", "end", "unit", "position", "stride"), operand(place), strict=True)))
            waits.extend({"block": wait.thread_block, "step": wait.step} for wait in step.waits)
    connections = []
    for src, dst, channel in own:
        sends = src == rank
        multicast, reader = readers.get((src, dst, channel), (-1, 0))
        connections.append(
            {
                "peer": dst if sends else src,
                "channel": channel,
                "sends": int(sends),
                "storage": storage.get((src, dst, channel), _SLOTS),
                "width": 0 if sends and reader else widths.get((src, dst, channel), 0),
                "place": 0 if round_ is None else round_.places[src, dst, channel],
                "multicast": multicast + 1,
                "reader": reader,
                "more": len(shared[multicast].readers) - 1 if sends and multicast >= 0 and not reader else 0,
            }
        )
    header = {
        "magic": _native.PLAN_MAGIC,
        "rank": rank,
        "ranks": collective.size,
        "chunks": collective.chunks,
        "input_blocks": collective.input_blocks(rank),
        "output_blocks": collective.output_blocks(rank),
        "scratch": part.scratch,
        "slots": schedule.slots,
        "widest": max(widths.values(), default=0 if storage else 1),
        "fan": max(fan.values(), default=1),
        "work": work,
        "depth": depth,
        "eager": 0 if round_ is None else round_.chunks,
        "two_rounds": int(two_rounds(schedule)),
        "blocks": len(blocks),
        "steps": len(steps),
        "operands": len(operands),
        "waits": len(waits),
        "connections": len(connections),
        "multicasts": len(shared),
    }
    tables = (
        ("header", [header]),
        ("block", blocks),
        ("step", steps),
        ("operand", operands),
        ("wait", waits),
        ("connection", connections),
        ("multicast", [{"source": m.source, "channel": m.channel, "messages": m.messages} for m in shared]),
    )
    return Plan(
        words=b"".join(_pack(kind, records) for kind, records in tables),
        digest=int(schedule.digest()[:16], 16),
        name=schedule.name,
        writes_input=any(
            isinstance(d, Span) and d.buffer == "in" for b in part.thread_blocks for s in b.steps for d in s.dsts
        ),
        part=part,
    )


def pace(schedule: Schedule) -> tuple[int, int]:
    """Operands that the busiest rank handles in one tile, and the longest chain of steps, each counted per chunk.

    A chain goes along thread blocks, waits and messages over all ranks; that slots may be full does not count. Of a
    schedule that deadlocks, the part before. At least 1 and no more than fits in a word.
    """
    work = [0] * len(schedule.ranks)
    ends: dict[_Event, int] = {}
    stuck: dict[_Event, list[tuple[int, int]]] = {}  # thread blocks, by what they need
    done: Counter[tuple[int, int]] = Counter()
    clock: Counter[tuple[int, int]] = Counter()
    messages: Counter[tuple[bool, Connection]] = Counter()  # sent, or received
    todo = [(r, b) for r, rank in enumerate(schedule.ranks) for b in range(len(rank.thread_blocks))]
    while todo:
        block = r, b = todo.pop()
        for step in schedule.ranks[r].thread_blocks[b].steps[done[block] :]:
            arriving = [(s.peer, r, s.channel) for s in step.srcs if isinstance(s, Receive)]
            needs: list[_Event] = [(*connection, messages[False, connection]) for connection in arriving]
            needs += [(r, wait.thread_block, wait.step) for wait in step.waits]
            missing = next((event for event in needs if event not in ends), None)
            if missing is not None:
                stuck.setdefault(missing, []).append(block)
                break
            cost = _count(step) * (len(step.srcs) + len(step.dsts)) if step.moves else 0
            work[r] += cost
            clock[block] = max(clock[block], *(ends[event] for event in needs), 0) + cost
            leaving = [(r, d.peer, d.channel) for d in step.dsts if isinstance(d, Send)]
            happened: list[_Event] = [(*connection, messages[True, connection]) for connection in leaving]
            happened.append((r, b, done[block]))
            messages.update((False, connection) for connection in arriving)
            messages.update((True, connection) for connection in leaving)
            done[block] += 1
            for event in happened:
                ends[event] = clock[block]
                todo += stuck.pop(event, ())
    return _word(max(work, default=0)), _word(max(clock.values(), default=0))


def _word(value: int) -> int:
    return min(max(1, value), 0xFFFFFFFF)


def _pack(kind: str, records: Sequence[dict[str, int]]) -> bytes:
    fields = _native.PLAN_LAYOUT[kind]
    assert all(record.keys() == set(fields) for record in records), f"plan.h and plan.py differ about {kind}"
    flat = chain.from_iterable((record[field] for field in fields) for record in records)
    return np.fromiter(flat, np.uint32, len(records) * len(fields)).tobytes()


def _connections(schedule: Schedule) -> tuple[dict[Connection, int], dict[Connection, int]]:
    """The most chunks that one slot of each connection of the schedule holds; where messages of those without lie."""
    widths: dict[Connection, int] = {}
    storage: dict[Connection, int] = {}
    for r, _, _, step in schedule.steps():
        for target in step.dsts:
            if isinstance(target, Send):
                connection = r, target.peer, target.channel
                if target.at is not None:
                    storage[connection] = _PUSHED if target.pushes else _PULLED
                else:
                    widths[connection] = max(widths.get(connection, 1), _count(step))
        for source in step.srcs:
            if isinstance(source, Receive) and source.at is None:
                connection = source.peer, r, source.channel
                widths[connection] = max(widths.get(connection, 1), _count(step))
    return widths, storage


def _count(step: Step) -> int:
    count = step.count
    assert count is not None, "the verifier demands a local span in each step"
    return count
