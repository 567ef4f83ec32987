"""The simulation: thread blocks run their steps tile by tile, as events in the order of their times.

A step begins when its thread block is free, the steps it waits for are done for this tile, what it receives has begun
to arrive and a slot to send into is free. It decodes, waits and publishes at the machine's cost, and moves its bytes at
most as fast as one thread block can. Within a node its bytes occupy the links on their way; between nodes it stores
them for the network, which its rank posts message by message, and goes on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from hocket.errors import InvalidSchedule
from hocket.sim.cores import Turns
from hocket.sim.links import Flow, Links
from hocket.sim.record import Cause, Record
from hocket.sim.work import Work
from hocket.topology import Costs, Protocol

_FLOW, _FLOWN, _MOVED, _DONE, _HEAD, _POSTED = range(6)

_GRID = float(1 << 20)
"""Times are rounded to so many parts of a microsecond, so that what happens alike happens at once."""

_Event = tuple[float, int, int, int, int, Flow | None]
"""Time, number, kind, step or connection, version or tile."""


class Engine:
    """One run. ``tiles``: bytes of each tile of a chunk; ``rates``: bytes a microsecond, at most, by step."""

    def __init__(
        self,
        work: Work,
        protocol: Protocol,
        tiles: Sequence[float],
        rates: Sequence[float],
        record: Record | None = None,
    ) -> None:
        self._work = work
        self._costs: Costs = work.topology.costs
        self._protocol = protocol
        self._tiles = tiles
        self._rates = rates
        self._record = record
        self._links = Links([link.bandwidth * 1e3 for link in work.topology.links])
        self._widths = [min(work.topology.links[i].bandwidth for i in c.route.links) * 1e3 for c in work.connections]
        self._slots = protocol.slots
        blocks, steps, connections = len(work.first), len(work.block), len(work.connections)
        self._at = list(work.first)
        self._tile = [0] * blocks
        self._done = [0] * steps
        self._pending = [0] * steps
        self._sent = [0] * connections
        self._taken = [0] * connections
        self._arrived = [0] * connections
        self._freed = [0] * connections
        self._tails: list[deque[float]] = [deque() for _ in range(connections)]
        self._lagging = [-1] * connections
        self._stored: dict[int, list[Flow]] = {}
        self._for_step: dict[int, list[int]] = {}
        self._for_message = [-1] * connections
        self._for_slot = [-1] * connections
        self._turns = [Turns() for _ in work.schedule.ranks] if self._costs.memory else []
        self._posted = [0.0] * work.topology.ranks
        self._ready = [0.0] * connections
        self._wires: list[deque[Flow] | None] = [None] * connections
        self._unfinished = [steps] * len(tiles)
        self.finished = [0.0] * len(tiles)
        self._events: list[_Event] = []
        self._number = 0
        self._fresh: list[Flow] = []

    def run(self) -> list[float]:
        """When the last step of each tile was done, in microseconds."""
        start = self._costs.launch + self._protocol.start + self._costs.start * self._work.most_blocks
        for block, length in enumerate(self._work.length):
            if length:
                self._try(block, start, Cause("launch"))
        events, links = self._events, self._links
        while events:
            now, _, kind, which, number, flow = heapq.heappop(events)
            if kind == _DONE:
                self._finish(which, now)
            elif kind == _FLOW:
                self._carry(which, now)
            elif kind == _FLOWN:
                assert flow is not None
                if number == flow.version:
                    self._flown(flow, now)
            elif kind == _HEAD:
                if flow is None or not flow.headed:
                    if flow is not None:
                        flow.headed = True
                    self._arrive(which, now)
            elif kind == _MOVED:
                self._moved(which, now)
            else:
                assert flow is not None
                self._begin(flow, now)
            if (links.dirty or self._fresh) and (not events or events[0][0] > now):
                self._settle(now)
        if any(self._unfinished):
            raise InvalidSchedule(f"{self._work.schedule.name} comes to a halt: it is no proven schedule")
        return self.finished

    def _push(self, time: float, kind: int, which: int, number: int = 0, flow: Flow | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (round(time * _GRID) / _GRID, self._number, kind, which, number, flow))

    # -----------------------------------------------------------------------------------------------------------
    # Steps

    def _try(self, block: int, now: float, cause: Cause | None) -> None:
        """Begin the next step of a thread block, or note what it waits for."""
        if not self._turns:
            self._begun(block, now, cause)
            return
        rank = self._work.rank[block]
        if self._turns[rank].take(block, self._tile[block]) and not self._begun(block, now, cause):
            self._next(rank, now, cause)

    def _next(self, rank: int, now: float, cause: Cause | None) -> None:
        """The core of a rank has nothing to do: the first thread block in line has its turn."""
        turns = self._turns[rank]
        turns.holder = -1
        if turns.line:
            self._try(turns.line.popleft(), now, cause)

    def _begun(self, block: int, now: float, cause: Cause | None) -> bool:
        """Whether it could begin."""
        work = self._work
        step, tile = self._at[block], self._tile[block]
        for other in work.waits[step]:
            if self._done[other] <= tile:
                self._for_step.setdefault(other, []).append(block)
                return False
        for connection in work.receives[step]:
            if self._arrived[connection] <= self._taken[connection]:
                self._for_message[connection] = block
                return False
        for connection in work.sends[step]:
            if (
                not work.connections[connection].in_place
                and self._sent[connection] - self._freed[connection] >= self._slots
            ):
                self._for_slot[connection] = block
                return False
        for connection in work.receives[step]:
            self._taken[connection] += 1
        for connection in work.sends[step]:
            self._sent[connection] += 1
        overhead = self._costs.decode + (self._costs.wait if work.waits[step] else 0.0)
        if self._record is not None:
            self._record.begin(step, tile, now, now + overhead, cause)
        size = work.chunks[step] * self._tiles[tile] if work.moves[step] else 0.0
        if work.carries[step] and size > 0.0:
            self._push(now + overhead, _FLOW, step)
            return True
        end = now + overhead + size / self._rates[step]
        for connection in work.carries[step]:  # of messages of no bytes
            if not work.connections[connection].pulls:
                self._push(end + self._protocol.hop, _HEAD, connection)
        if work.receives[step] and work.chunks[step] * self._tiles[tile] > self._protocol.grain:
            self._push(end, _MOVED, step)
        else:
            self._push(end + (self._costs.publish if work.awaited[step] else 0.0), _DONE, step)
        return True

    def _moved(self, step: int, now: float) -> None:
        """Its own bytes are through: the step ends when the last grain of what it receives is, too."""
        work, protocol = self._work, self._protocol
        size = work.chunks[step] * self._tiles[self._tile[work.block[step]]]
        end = now
        if size > protocol.grain:
            streamed = [c for c in work.receives[step] if not work.connections[c].pulls]
            for connection in streamed:
                if not self._tails[connection]:
                    self._lagging[connection] = step
                    return
            rest = protocol.grain / self._rates[step] / work.passes[step] if work.moves[step] else 0.0
            for connection in streamed:
                tail = self._tails[connection].popleft()
                if tail + rest > end:
                    end = tail + rest
                    self._is_late(step, connection, tail)
        for flow in self._stored.pop(step, ()):
            self._tail(flow, end)
        self._push(end + (self._costs.publish if work.awaited[step] else 0.0), _DONE, step)

    def _is_late(self, step: int, connection: int, tail: float) -> None:
        """What ends a step is the tail of a message."""
        if self._record is not None:
            what = self._work.connections[connection]
            sender = what.sends[what.receives.index(step)]
            self._record.late[step, self._tile[self._work.block[step]]] = sender, tail

    def _finish(self, step: int, now: float) -> None:
        """A step is done for a tile: its slots are free, its messages for the network are posted, others go on."""
        work = self._work
        block = work.block[step]
        tile = self._tile[block]
        if self._record is not None:
            self._record.end(step, tile, now)
        self._done[step] += 1
        self._unfinished[tile] -= 1
        if not self._unfinished[tile]:
            self.finished[tile] = now
        for connection in work.sends[step]:
            self._sent_by(connection, step, tile, now)
        if step + 1 < work.first[block] + work.length[block]:
            self._at[block] = step + 1
        else:
            self._at[block] = work.first[block]
            self._tile[block] = tile + 1
        if self._tile[block] < len(self._tiles):
            self._try(block, now, Cause("order", step, tile))
        if self._turns and self._turns[work.rank[block]].over(block, self._tile[block], len(self._tiles)):
            self._next(work.rank[block], now, Cause("order", step, tile))
        for waiting in self._for_step.pop(step, ()):
            self._try(waiting, now, Cause("wait", step, tile))
        for connection in work.receives[step]:
            self._freed[connection] += 1
            waiting = self._for_slot[connection]
            if waiting >= 0:
                self._for_slot[connection] = -1
                self._try(waiting, now, Cause("slot", step, tile))

    def _sent_by(self, connection: int, step: int, tile: int, now: float) -> None:
        """What a step that has ended says: that a message may be pulled, or that one is ready to be posted."""
        what = self._work.connections[connection]
        size = self._work.chunks[step] * self._tiles[tile]
        if what.route.network:
            rank = what.source
            self._posted[rank] = max(self._posted[rank], now) + self._costs.post
            wire = max(size / self._protocol.wire, 1e-6)
            flow = Flow(what.route.links, self._widths[connection], wire, step, connection, tile, network=True)
            asked = self._posted[rank] + self._costs.asked(wire)
            self._ready[connection] = max(self._ready[connection], asked)  # no message overtakes one before it
            self._push(self._ready[connection], _POSTED, connection, 0, flow)
        elif what.pulls:
            self._push(now + self._protocol.hop, _HEAD, connection)

    # -----------------------------------------------------------------------------------------------------------
    # Messages

    def _carry(self, step: int, now: float) -> None:
        """A thread block begins to move a step's bytes over links of its node."""
        work = self._work
        tile = self._tile[work.block[step]]
        wire = work.chunks[step] * self._tiles[tile] / self._protocol.wire
        names = work.carries[step]
        cap = self._rates[step] / self._protocol.wire
        self._pending[step] = len(names)
        for name in names:
            flow = Flow(work.connections[name].route.links, cap, wire, step, name, tile, network=False)
            self._start(flow, now)

    def _start(self, flow: Flow, now: float) -> None:
        if self._record is not None:
            flow.pieces = []
            self._record.flows.append(flow)
        if self._links.add(flow, now):
            self._push(now + flow.left / flow.rate, _FLOWN, 0, flow.version, flow)
        if self._streams(flow):
            self._fresh.append(flow)

    def _streams(self, flow: Flow) -> bool:
        """Whether its receiver begins before all of it has arrived."""
        size = self._work.chunks[flow.step] * self._tiles[flow.tile]
        return size > self._protocol.grain and not self._work.connections[flow.connection].pulls

    def _begin(self, flow: Flow, now: float) -> None:
        """The network begins with a message, after those before it on its connection."""
        queue = self._wires[flow.connection]
        if queue is None:
            self._wires[flow.connection] = deque()
            self._start(flow, now)
        else:
            queue.append(flow)

    def _settle(self, now: float) -> None:
        """Before time goes on: rates, when flows end, and when the first grains of those that have begun arrive."""
        if self._links.dirty:
            for flow in self._links.share(now):
                self._push(now + flow.left / flow.rate, _FLOWN, 0, flow.version, flow)
        for flow in self._fresh:
            hop = self._protocol.network_hop if flow.network else self._protocol.hop
            grain = self._protocol.grain / self._protocol.wire
            self._push(now + grain / flow.rate + hop, _HEAD, flow.connection, 0, flow)
        self._fresh = []

    def _flown(self, flow: Flow, now: float) -> None:
        """A flow has passed. Where its step forwards what it receives, the last of that may still be to come."""
        flow.change(now, 0.0)
        self._links.remove(flow)
        connection = flow.connection
        if flow.network:
            self._tail(flow, now)
            queue = self._wires[connection]
            if queue:
                self._start(queue.popleft(), now)
            else:
                self._wires[connection] = None
            return
        if not self._work.connections[connection].pulls:
            self._stored.setdefault(flow.step, []).append(flow)
        self._pending[flow.step] -= 1
        if not self._pending[flow.step]:
            self._moved(flow.step, now)

    def _tail(self, flow: Flow, now: float) -> None:
        """The last byte of a message is stored; its receiver sees it a hop later."""
        connection = flow.connection
        tail = now + (self._protocol.network_hop if flow.network else self._protocol.hop)
        if not self._streams(flow):
            self._push(tail, _HEAD, connection)
            return
        self._tails[connection].append(tail)
        if not flow.headed:
            self._push(tail, _HEAD, connection, 0, flow)
        lagging = self._lagging[connection]
        if lagging >= 0:
            self._lagging[connection] = -1
            self._moved(lagging, now)

    def _arrive(self, connection: int, now: float) -> None:
        number = self._arrived[connection]
        self._arrived[connection] = number + 1
        waiting = self._for_message[connection]
        if waiting >= 0:
            self._for_message[connection] = -1
            sends = self._work.connections[connection].sends
            tile, position = divmod(number, len(sends))
            self._try(waiting, now, Cause("message", sends[position], tile))
