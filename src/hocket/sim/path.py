"""The critical path: from the end of the last step back to the launch, each time to what was waited for last."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal

from hocket.errors import StepName
from hocket.sim.links import Flow
from hocket.sim.record import Record
from hocket.sim.work import Work
from hocket.topology import Protocol

_ROUNDED = 2e-6
"""Microseconds by which times may differ that the engine rounded."""

Kind = Literal["launch", "thread block", "link", "latency", "synchronisation"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the path: (begin, end) in microseconds, ``what`` took it, and the step it is of, with the user's line.

    ``kind``: the launch; a thread block that moves bytes as fast as it can; a link that it shares or fills; a message
    on its way, or the network's post; decoding, waiting and publishing.
    """

    kind: Kind
    what: str
    begin: float
    end: float
    step: StepName | None
    tile: int


def critical_path(work: Work, record: Record, protocol: Protocol, start: float) -> tuple[Segment, ...]:
    """In the order of time, without gaps: the segments' times add up to the total."""
    if not record.ends:
        return (Segment("launch", "launch", 0.0, start, None, 0),)
    return tuple(reversed(list(_Walk(work, record, protocol).back(start))))


class _Walk:
    def __init__(self, work: Work, record: Record, protocol: Protocol) -> None:
        self._work = work
        self._record = record
        self._protocol = protocol
        self._flows: dict[tuple[int, int], list[Flow]] = {}
        for flow in record.flows:
            self._flows.setdefault((flow.step, flow.tile), []).append(flow)

    def back(self, start: float) -> Iterator[Segment]:
        record = self._record
        at = max(record.ends, key=lambda key: (record.ends[key], key))
        end = record.ends[at]
        while True:
            begin = record.begins[at]
            if at in record.late and end > record.ends[at] - _ROUNDED:
                at, end = yield from self._rest(at, end)
                continue
            yield from self._step(at, begin, end)
            cause = record.causes[at]
            if cause.kind == "launch":
                yield Segment("launch", "kernel launch", 0.0, begin, None, 0)
                return
            at = cause.step, cause.tile
            end = begin
            if cause.kind == "message":
                end = yield from self._message(at, begin)

    def _name(self, at: tuple[int, int]) -> StepName:
        return self._work.schedule.step_name(*self._work.place(at[0]))

    def _step(self, at: tuple[int, int], begin: float, end: float) -> Iterator[Segment]:
        """A step, from its begin to ``end``, which is earlier than its own where a message was ahead of it."""
        name, (rank, block, _) = self._name(at), self._work.place(at[0])
        starts = min(self._record.starts[at], end)
        flows = [flow for flow in self._flows.get(at, ()) if not flow.network]
        moved = starts
        if flows:
            last = max(flows, key=lambda flow: flow.since)
            moved = min(last.since, end)
        elif self._work.moves[at[0]]:
            moved = end - (self._work.topology.costs.publish if self._work.awaited[at[0]] else 0.0)
            moved = min(max(moved, starts), end)
        where = f"rank {rank}, thread block {block}"
        if end > moved:
            yield Segment("synchronisation", where, moved, end, name, at[1])
        if moved > starts:
            if flows:
                yield from self._pieces(last, starts, moved, name, where)
            else:
                yield Segment("thread block", where, starts, moved, name, at[1])
        if starts > begin:
            yield Segment("synchronisation", where, begin, starts, name, at[1])

    def _rest(self, at: tuple[int, int], end: float) -> Generator[Segment, None, tuple[tuple[int, int], float]]:
        """A step that ended with the tail of a message; returns its sender's step, and until when that matters."""
        name, (rank, block, _) = self._name(at), self._work.place(at[0])
        where = f"rank {rank}, thread block {block}"
        sender, tail = self._record.late[at]
        moved = max(end - (self._work.topology.costs.publish if self._work.awaited[at[0]] else 0.0), tail)
        if end > moved:
            yield Segment("synchronisation", where, moved, end, name, at[1])
        if moved > tail:
            yield Segment("thread block", where, tail, moved, name, at[1])
        return (sender, at[1]), (yield from self._message((sender, at[1]), tail))

    def _pieces(self, flow: Flow, begin: float, end: float, name: StepName, where: str) -> Iterator[Segment]:
        """What held a flow up, the last first."""
        links = self._work.topology.links
        at = end
        for low, high, _, narrow in reversed(flow.pieces or []):
            low, high = max(low, begin), min(high, at)
            if high <= low:
                continue
            if low - begin < _ROUNDED:
                low = begin
            if narrow >= 0:
                yield Segment("link", links[narrow].name, low, at, name, flow.tile)
            elif flow.network:
                widths = [links[link].bandwidth for link in flow.links]
                yield Segment("link", links[flow.links[widths.index(min(widths))]].name, low, at, name, flow.tile)
            else:
                yield Segment("thread block", where, low, at, name, flow.tile)
            at = low
        if at > begin:
            yield Segment("latency", where, begin, at, name, flow.tile)

    def _message(self, at: tuple[int, int], seen: float) -> Generator[Segment, None, float]:
        """The way of a message up to when it was seen; returns until when its sender's step matters."""
        name, (rank, _, _) = self._name(at), self._work.place(at[0])
        network = [flow for flow in self._flows.get(at, ()) if flow.network]
        if not network:
            stored = min(seen, max(seen - self._protocol.hop, self._record.starts[at]))
            if seen > stored:
                yield Segment("latency", f"hop from rank {rank}", stored, seen, name, at[1])
            return stored
        flow = max(network, key=lambda flow: flow.since)
        stored = max(seen - self._protocol.network_hop, flow.pieces[0][0] if flow.pieces else 0.0)
        ended = self._record.ends[at]
        if seen > stored:
            yield Segment("latency", f"network from rank {rank}", stored, seen, name, at[1])
        posted = flow.pieces[0][0] if flow.pieces else stored
        yield from self._pieces(flow, posted, stored, name, f"rank {rank}")
        if posted > ended:
            yield Segment("latency", f"post of rank {rank}", ended, posted, name, at[1])
        return ended
