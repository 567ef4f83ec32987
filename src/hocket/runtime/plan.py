"""Lowers the ranks' parts of a schedule to the flat words that native code reads (layout: native/core/plan.h)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from hocket import _native
from hocket.collectives import AllToAll
from hocket.errors import InvalidArgument, Location, StepName, Where, caller
from hocket.ir.chunk_dag import Span
from hocket.ir.memory import apart, last_pushes, last_stores, lasting
from hocket.ir.messages import Connection, connection_widths, fan_of, multicasts, one_round, two_rounds
from hocket.ir.order import in_order, pace, whole_sums
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step
from hocket.runtime.buffers import Layout

_PLACES = {"in": 0, "out": 1, "sc": 2}
_RECEIVE, _SEND, _HERE = 3, 4, 5
_THEIRS = {"in": 6, "out": 7}
_SLOTS, _PULLED, _PUSHED, _DIRECT, _BATCHED = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's part of a schedule, numbers of chunks only, and all that the rank has to know of the whole.

    Plain values, so that it can go from the rank that compiled a program to the others (plan_cache.py). ``apart``: the
    words for arrays that lie apart though the schedule is in-place, if there are such. ``lends``: messages lie in the
    arrays. ``averages``: a sum can be made an average. ``steps``: by thread block, how each is called, and the number
    of its line, from 1.
    """

    digest: int
    words: bytes
    apart: bytes | None
    layout: Layout
    lends: bool
    averages: bool
    steps: tuple[tuple[tuple[str, int], ...], ...]
    lines: tuple[Location, ...]

    @property
    def name(self) -> str:
        return self.layout.name

    def called(self, name: str) -> Plan:
        """The same, under the name that errors are to use."""
        return replace(self, layout=replace(self.layout, name=name))

    def step_name(self, thread_block: int, step: int) -> StepName:
        """How an error calls a step of this rank."""
        operation, line = self.steps[thread_block][step]
        return StepName(self.layout.rank, operation, thread_block, step, self.lines[line - 1] if line else None)


def lower(schedule: Schedule, rank: int, nodes: Sequence[int] = ()) -> Plan:
    """The plan of ``rank``. The schedule is one that ``hocket.ir.schedule.verify`` accepts.

    ``nodes``: that of each rank, where they are on several.
    """
    return lower_all(schedule, (rank,), nodes)[0]


def lower_all(schedule: Schedule, ranks: Iterable[int], nodes: Sequence[int] = ()) -> list[Plan]:
    """The same for several ranks: what is so of the whole schedule is found once."""
    whole = _Whole(schedule, nodes)
    return [whole.plan(rank) for rank in ranks]


class _Whole:
    """What the plans of all ranks have in common."""

    def __init__(self, schedule: Schedule, nodes: Sequence[int]) -> None:
        self._schedule = schedule
        # Thousands of steps come from a few lines.
        self._located: Callable[[Where], Location] = functools.cache(lambda where: where.resolve())
        self._digest = int(schedule.digest()[:16], 16)
        self._in_place = schedule.in_place()
        self._widths, pushed = connection_widths(schedule)
        self._storage = {connection: _PUSHED if pushes else _PULLED for connection, pushes in pushed.items()}
        if len(set(nodes)) > 1:
            self._storage |= _direct(schedule, self._widths, nodes)
        self._round = one_round(schedule)
        self._two_rounds = two_rounds(schedule)
        order = list(in_order(schedule))
        self._pace = pace(schedule, order)
        # What is stored once is there for the readers of one node.
        self._multicasts = [
            m for m in multicasts(schedule) if not nodes or len({nodes[r] for r in (m.source, *m.readers)}) == 1
        ]
        self._pushes = last_pushes(schedule.ranks)
        self._moves = not schedule.collective.reduces() and all(len(s.srcs) == 1 for _, _, _, s in schedule.steps())
        connections = self._widths.keys() | self._storage.keys()
        sources, targets = ({connection[end] for connection in connections} for end in (0, 1))
        self._one_way = not schedule.collective.reduces() and sources.isdisjoint(targets)  # no rank does both
        copied = [(rank, step.srcs[0]) for rank, _, _, step in schedule.steps() if len(step.srcs) == 1]
        self._combined = connections - {(s.peer, rank, s.channel) for rank, s in copied if isinstance(s, Receive)}
        self._averages = schedule.collective.averages()
        self._whole_sums = whole_sums(schedule, order) if self._averages else frozenset()
        self._readers = {
            (m.source, r, m.channel): (i, n) for i, m in enumerate(self._multicasts) for n, r in enumerate(m.readers)
        }
        self._own: list[list[Connection]] = [[] for _ in schedule.ranks]  # by rank, those of a multicast side by side
        nobody = -1, 0
        for connection in sorted(connections, key=lambda c: (self._readers.get(c, nobody), c)):
            for rank in connection[:2]:
                self._own[rank].append(connection)
        self._slots = {c: width for c, width in self._widths.items() if c not in self._storage}
        self._fan = fan_of(self._slots, {connection for connection in self._slots if self._is_further(connection)})

    def _is_further(self, connection: Connection) -> bool:
        """Whether it is to a reader of a multicast beyond the first: what is stored for the first is there for all."""
        return self._readers.get(connection, (0, 0))[1] > 0

    def plan(self, rank: int) -> Plan:
        schedule, collective = self._schedule, self._schedule.collective
        part, alias = schedule.ranks[rank], collective.alias(rank)
        # The others need not run theirs: the traffic is the same.
        two = apart(collective, rank, part) if alias is not None and not self._in_place else None
        lines: dict[Location, int] = {}
        steps = []
        for block in part.thread_blocks:
            named = []
            for step in block.steps:
                at = self._located(step.where[0]) if step.where else None
                named.append((str(step), 0 if at is None else lines.setdefault(at, len(lines) + 1)))
            steps.append(tuple(named))
        writes_input = any(
            isinstance(d, Span) and d.buffer == "in" for b in part.thread_blocks for s in b.steps for d in s.dsts
        )
        layout = Layout(
            name=schedule.name,
            chunks=collective.chunks,
            narrowings=schedule.narrowings,
            rank=rank,
            input_blocks=collective.input_blocks(rank),
            output_blocks=collective.output_blocks(rank),
            alias=alias,
            inplace=collective.inplace,
            moves=self._moves,
            writes_input=writes_input,
            splits=two is not None,
        )
        return Plan(
            self._digest,
            self._words(rank, part),
            None if two is None else self._words(rank, two),
            layout,
            self._in_place,
            self._averages,
            tuple(steps),
            tuple(lines),
        )

    def _words(self, rank: int, part: Rank) -> bytes:
        own = self._own[rank]
        steps = _StepTables(rank, self._schedule.collective.chunks, own)
        last = last_stores(part) | self._pushes[rank]
        for b, block in enumerate(part.thread_blocks):
            steps.tables["block"].append({"first_step": len(steps.tables["step"]), "steps": len(block.steps)})
            for s, step in enumerate(block.steps):
                dsts = [
                    d
                    for d, place in enumerate(step.dsts)
                    if not (isinstance(place, Send) and self._is_further((rank, place.peer, place.channel)))
                ]
                bits = sum(1 << bit for bit, d in enumerate(dsts[:32]) if (b, s, d) in last)
                steps.add(step, [step.dsts[d] for d in dsts], bits, (rank, b, s) in self._whole_sums)
        tables = steps.tables | {
            "connection": [self._connection(rank, connection) for connection in own],
            "multicast": [{"source": m.source, "channel": m.channel, "messages": m.messages} for m in self._multicasts],
        }
        header = self._header(rank, part) | {f"{kind}s": len(records) for kind, records in tables.items()}
        return _pack("header", [header]) + b"".join(_pack(kind, records) for kind, records in tables.items())

    def _header(self, rank: int, part: Rank) -> dict[str, int]:
        """All but the numbers of records."""
        collective = self._schedule.collective
        work, depth = self._pace
        return {
            "magic": _native.PLAN_MAGIC,
            "rank": rank,
            "ranks": collective.size,
            "chunks": collective.chunks,
            "input_blocks": collective.input_blocks(rank),
            "output_blocks": collective.output_blocks(rank),
            "scratch": part.scratch,
            "slots": self._schedule.slots,
            "widest": max(self._slots.values(), default=0 if self._storage else 1),
            "fan": self._fan,
            "work": work,
            "depth": depth,
            "eager": 0 if self._round is None else self._round.chunks,
            "two_rounds": int(self._two_rounds),
            "one_way": int(self._one_way),
            "exchanges": int(isinstance(collective, AllToAll)),
            "averages": int(bool(self._whole_sums)),
        }

    def _connection(self, rank: int, connection: Connection) -> dict[str, int]:
        source, target, channel = connection
        sends = source == rank
        multicast, reader = self._readers.get(connection, (-1, 0))
        return {
            "peer": target if sends else source,
            "channel": channel,
            "sends": int(sends),
            "storage": self._storage.get(connection, _SLOTS),
            "width": 0 if sends and reader else self._widths.get(connection, 0),
            "place": 0 if self._round is None else self._round.places[connection],
            "multicast": multicast + 1,
            "reader": reader,
            "combined": int(connection in self._combined),
            "more": len(self._multicasts[multicast].readers) - 1 if sends and multicast >= 0 and not reader else 0,
        }


def _direct(schedule: Schedule, connections: Iterable[Connection], nodes: Sequence[int]) -> dict[Connection, int]:
    """The connections between nodes whose messages lie in the buffers of both ranks, and their storage.

    No chunk is longer than that in which it is received. Batched are those whose sender waits for nobody: not in its
    thread block, which receives nothing, and sends nothing through slots. Else a tile could wait for a later one.
    """
    lasts = [lasting(schedule.collective, rank, part) for rank, part in enumerate(schedule.ranks)]
    found = []
    for source, target, channel in connections:
        send, receive = Send(target, channel), Receive(source, channel)
        if nodes[source] == nodes[target] or send not in lasts[source] or receive not in lasts[target]:
            continue
        if lasts[target][receive] in (None, lasts[source][send]):
            found.append((source, target, channel))
    storage = dict.fromkeys(found, _DIRECT)
    for source, rank in enumerate(schedule.ranks):
        for block in rank.thread_blocks:
            ends = [end for step in block.steps for end in (*step.srcs, *step.dsts) if not isinstance(end, Span)]
            sends = [(source, end.peer, end.channel) for end in ends if isinstance(end, Send)]
            alone = not any(step.waits for step in block.steps)
            if alone and len(sends) == len(ends) and all(send in storage for send in sends):
                storage.update(dict.fromkeys(sends, _BATCHED))
    return storage


class _StepTables:
    """The records of a rank's steps, and of what they refer to. ``connections``: those of the rank, as numbered."""

    def __init__(self, rank: int, chunks: int, connections: Sequence[Connection]) -> None:
        self.tables: dict[str, list[dict[str, int]]] = {kind: [] for kind in ("block", "step", "operand", "wait")}
        self._rank, self._chunks = rank, chunks
        self._number = {connection: i for i, connection in enumerate(connections)}

    def add(self, step: Step, dsts: Sequence[Destination], last: int, whole: bool) -> None:
        """A step that stores to ``dsts``; ``last``: the set of those that share no chunk with another operand."""
        assert step.count is not None, "the verifier demands a local span in each step"
        operands, waits = self.tables["operand"], self.tables["wait"]
        self.tables["step"].append(
            {
                "count": step.count,
                "first_operand": len(operands),
                "sources": len(step.srcs),
                "destinations": len(dsts),
                "first_wait": len(waits),
                "waits": len(step.waits),
                "last": last,
                "whole": int(whole),
            }
        )
        names = "place", "end", "unit", "position", "stride"
        operands.extend(dict(zip(names, self._operand(place), strict=True)) for place in (*step.srcs, *dsts))
        waits.extend({"block": wait.thread_block, "step": wait.step} for wait in step.waits)

    def _operand(self, place: Source | Destination) -> tuple[int, int, int, int, int]:
        rank, chunks = self._rank, self._chunks
        if isinstance(place, Span):
            unit, position = (0, place.index) if place.buffer == "sc" else divmod(place.index, chunks)
            return _PLACES[place.buffer], 0, unit, position, place.stride
        receives = isinstance(place, Receive)
        end = self._number[(place.peer, rank, place.channel) if receives else (rank, place.peer, place.channel)]
        if place.at is None:
            return _RECEIVE if receives else _SEND, end, 0, 0, 0
        if place.at.rank == rank:
            return _HERE, end, 0, 0, 0
        return _THEIRS[place.at.buffer], end, *divmod(place.at.index, chunks), place.at.stride


def _pack(kind: str, records: Sequence[dict[str, int]]) -> bytes:
    fields = _native.PLAN_LAYOUT[kind]
    assert all(record.keys() == set(fields) for record in records), f"plan.h and plan.py differ about {kind}"
    flat = chain.from_iterable((record[field] for field in fields) for record in records)
    try:
        return np.fromiter(flat, np.uint32, len(records) * len(fields)).tobytes()
    except OverflowError:
        beyond = next(f"{field} {value}" for record in records for field, value in record.items() if value >> 32)
        raise InvalidArgument(f"this schedule is too large to be run: {beyond}", caller()) from None
