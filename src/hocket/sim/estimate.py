"""Closed forms beside the simulation: what no run can be faster than, and alpha-beta-gamma without loaded links.

The floors: the bytes of the busiest link over its bandwidth, and the longest chain of latencies. The estimate: the
chain of the first tile, each step at the speed of its thread block, and for each tile more what the busiest thread
block or link takes for one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hocket.errors import InvalidSchedule
from hocket.sim.work import Work
from hocket.topology import Protocol


class Estimator:
    """Of one schedule on one topology, for any size and protocol."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._sender: list[list[tuple[int, int]]] = [[] for _ in work.block]  # (connection, the step that sent)
        for number, connection in enumerate(work.connections):
            for sent, received in zip(connection.sends, connection.receives, strict=True):
                self._sender[received].append((number, sent))
        self._follows = [i > work.first[work.block[i]] for i in range(len(work.block))]
        self._order = self._sorted()
        self._link_chunks = work.link_chunks()
        self._latency_floors: dict[Protocol, float] = {}

    def _sorted(self) -> list[int]:
        """Steps after all that they depend on in a tile."""
        work = self._work
        before = [
            [*([i - 1] if self._follows[i] else []), *work.waits[i], *(s for _, s in self._sender[i])]
            for i in range(len(work.block))
        ]
        missing = [len(names) for names in before]
        after: list[list[int]] = [[] for _ in before]
        for i, names in enumerate(before):
            for name in names:
                after[name].append(i)
        order = [i for i, count in enumerate(missing) if not count]
        for i in order:
            for j in after[i]:
                missing[j] -= 1
                if not missing[j]:
                    order.append(j)
        if len(order) < len(before):
            raise InvalidSchedule(f"{work.schedule.name} comes to a halt: it is no proven schedule")
        return order

    def start(self, protocol: Protocol) -> float:
        """When the first step begins."""
        costs = self._work.topology.costs
        return costs.launch + protocol.start + costs.start * self._work.most_blocks

    def link_floor(self, protocol: Protocol, share: float) -> tuple[float, int]:
        """Microseconds that the busiest link needs for ``share`` bytes in a chunk, and which; -1 if nothing is sent."""
        links = self._work.topology.links
        floor, busiest = 0.0, -1
        for number, chunks in enumerate(self._link_chunks):
            time = chunks * share / protocol.wire / (links[number].bandwidth * 1e3)
            if time > floor:
                floor, busiest = time, number
        return floor, busiest

    def latency_floor(self, protocol: Protocol) -> float:
        """Microseconds of the longest chain of latencies."""
        if protocol not in self._latency_floors:
            self._latency_floors[protocol] = self.chain(protocol, 0.0, [1.0] * len(self._work.block))
        return self._latency_floors[protocol]

    def chain(self, protocol: Protocol, tile: float, rates: Sequence[float]) -> float:
        """When the last step of a tile of so many bytes ends if no link is loaded; of none: latencies only."""
        work, costs = self._work, self._work.topology.costs
        waits, awaited, moves, passes = work.waits, work.awaited, work.moves, work.passes
        starts, ends = [0.0] * len(work.block), [0.0] * len(work.block)
        start = self.start(protocol)
        for i in self._order:
            begin = ends[i - 1] if self._follows[i] else start
            size = work.chunks[i] * tile
            grain = min(size, protocol.grain)
            tail = 0.0
            for other in waits[i]:
                begin = max(begin, ends[other])
            for number, sent in self._sender[i]:
                head, arrived = self._arrival(number, sent, size, grain, starts, ends, protocol, rates)
                begin = max(begin, head)
                tail = max(tail, arrived + (grain / rates[i] / passes[i] if moves[i] and arrived > head else 0.0))
            starts[i] = begin + costs.decode + (costs.wait if waits[i] else 0.0)
            own = size / rates[i] if moves[i] else 0.0
            ends[i] = max(starts[i] + own, tail) + (costs.publish if awaited[i] else 0.0)
        return max(ends, default=start)

    def _arrival(
        self,
        number: int,
        sent: int,
        size: float,
        grain: float,
        starts: Sequence[float],
        ends: Sequence[float],
        protocol: Protocol,
        rates: Sequence[float],
    ) -> tuple[float, float]:
        """When the first grain and the last byte of a message are seen."""
        connection = self._work.connections[number]
        if connection.route.network:
            costs = self._work.topology.costs
            begin = ends[sent] + costs.post + costs.asked(size / protocol.wire)
            links = self._work.topology.links
            rate = min(links[link].bandwidth for link in connection.route.links) * 1e3 * protocol.wire
            return begin + grain / rate + protocol.network_hop, begin + size / rate + protocol.network_hop
        if connection.pulls:
            seen = ends[sent] + protocol.hop
            return seen, seen
        published = self._work.topology.costs.publish if self._work.awaited[sent] else 0.0
        tail = ends[sent] - published + protocol.hop
        if size <= grain:
            return tail, tail
        return min(tail, starts[sent] + grain / rates[sent] + protocol.hop), tail

    def period(self, protocol: Protocol, tile: float, rates: Sequence[float]) -> float:
        """Microseconds that the busiest thread block, or the busiest link, takes for one tile."""
        work, costs = self._work, self._work.topology.costs
        busy = [0.0] * len(work.first)
        for i, block in enumerate(work.block):
            time = costs.decode
            time += costs.wait if work.waits[i] else 0.0
            time += costs.publish if work.awaited[i] else 0.0
            if work.moves[i]:
                time += work.chunks[i] * tile / rates[i]
            busy[block] += time
        return max(self.link_floor(protocol, tile)[0], max(busy, default=0.0))
