"""The simulator: how long a proven schedule takes on a described machine, and what holds it up (docs/simulator.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hocket.errors import BadTopology, InvalidArgument, caller
from hocket.ir.schedule import Schedule
from hocket.sim.cores import EAGER, Cores
from hocket.sim.engine import Engine
from hocket.sim.estimate import Estimator
from hocket.sim.path import Segment, critical_path
from hocket.sim.record import Record
from hocket.sim.spans import timeline_of
from hocket.sim.work import Work, prepare
from hocket.timeline import Timeline
from hocket.topology import Protocol, Topology

__all__ = ["MOST_TILES", "Prediction", "Segment", "Simulator", "Trace"]

MOST_TILES = 8
"""Tiles that are simulated one by one: more repeat what the last of these do, each in the time of one of them, or in
what the busiest link or thread block needs for one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One call. ``bytes`` are those of a rank's larger buffer; times in microseconds.

    ``link_floor``: the bytes of the ``busiest`` link over its bandwidth; ``latency_floor``: the longest chain of
    latencies; ``estimate``: the closed form. ``tiles`` of each chunk.
    """

    program: str
    topology: str
    protocol: str
    bytes: int
    time: float
    link_floor: float
    busiest: str
    latency_floor: float
    estimate: float
    tiles: int

    @property
    def algbw(self) -> float:
        """1e9 bytes a second, as nccl-tests has it."""
        return self.bytes / self.time / 1e3 if self.time else 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A call in full: its timeline, and the chain of what it waited for, in the order of time."""

    prediction: Prediction
    timeline: Timeline
    path: tuple[Segment, ...]


class Simulator:
    """A schedule on a topology: made once, asked for any size and protocol. Deterministic.

    Raises NoLink for a transfer that the topology has no way for, BadTopology for a schedule that it is too small for.
    """

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        self.schedule = schedule
        self.topology = topology
        self._work = prepare(schedule, topology)
        self._cores = Cores(self._work) if topology.costs.memory else None
        self._estimator = Estimator(self._work)
        collective = schedule.collective
        ranks = range(collective.size)
        self._larger = max((max(collective.inputs(r), collective.outputs(r)) for r in ranks), default=1) or 1
        self._protocols = self._able()

    @property
    def work(self) -> Work:
        return self._work

    def protocols(self) -> tuple[str, ...]:
        """Those that its messages can have: Direct where they lie in place, else those with enough slots, or the one
        that it names.

        On cores the path of short calls: eager, where there is such, goes through the fifo from some size on.
        """
        return self._protocols

    def _able(self) -> tuple[str, ...]:
        if self._cores is not None:
            return (self._cores.shortest(),)
        direct, needed = self.schedule.in_place(), self.schedule.slots
        if direct:
            return tuple(p.name for p in self.topology.costs.protocols if p.name == "Direct")
        able = [p.name for p in self.topology.costs.protocols if p.name != "Direct" and p.slots >= needed]
        said = self.schedule.protocol
        return tuple(name for name in able if said in ("auto", name.lower()))

    def share(self, size: int) -> float:
        """Bytes of a chunk in a call of ``size`` bytes: an even share, as everywhere here."""
        return size / self._larger

    def working_set(self, size: int) -> float:
        """On cores, the bytes that a rank works in; 0 elsewhere."""
        if self._cores is None:
            return 0.0
        share = self.share(size)
        path = self.topology.costs.protocol(self._cores.path(share))
        return self._cores.working_set(share, self._cores.tile(share, path), path)

    def estimate(self, size: int, protocol: str) -> float:
        """The closed form alone, in microseconds."""
        chosen, tiles, rates = self._cut(size, protocol)
        first = self._estimator.chain(chosen, tiles[0], rates)
        whole = sum(tiles) / tiles[0] if tiles[0] else 1.0
        pipelined = first + (whole - 1) * self._estimator.period(chosen, tiles[0], rates)
        floor = self._estimator.link_floor(chosen, self.share(size))[0]
        return max(pipelined, self._estimator.start(chosen) + floor)

    def predict(self, size: int, protocol: str, tile: int | None = None) -> Prediction:
        """Simulate a call of ``size`` bytes. ``tile``: bytes of one on cores; None: what the runtime takes."""
        chosen, tiles, rates = self._cut(size, protocol, tile)
        few = tiles if len(tiles) <= MOST_TILES else [tiles[0]] * MOST_TILES
        finished = Engine(self._work, chosen, few, rates).run()
        time = max(finished)
        if len(tiles) > len(few):
            half = MOST_TILES // 2
            period = (finished[-1] - finished[half - 1]) / (MOST_TILES - half)
            # In a deep pipeline the first tiles have links to themselves, which later ones share with
            # those on their way back.
            period = max(period, self._estimator.period(chosen, tiles[0], rates))
            time += period * (sum(tiles) / tiles[0] - MOST_TILES)
        return self._prediction(size, chosen, time, len(tiles))

    def best(self, size: int, tile: int | None = None) -> Prediction:
        """By whichever protocol is fastest; on cores, by the path that the runtime takes.

        Raises BadTopology if none has as many slots as the schedule needs.
        """
        if self._cores is not None:
            return self.predict(size, self._cores.shortest(), tile)
        names = self.protocols()
        if not names:
            needs = f"{self.schedule.protocol}, with {self.schedule.slots} slots"
            raise BadTopology(f"{self.topology.name} has no protocol for {self.schedule.name}: {needs}")
        floors = {name: self._floor(size, self.topology.costs.protocol(name)) for name in names}
        best: Prediction | None = None
        for name in sorted(names, key=floors.__getitem__):
            if best is None or floors[name] < best.time:
                found = self.predict(size, name)
                best = found if best is None else min(best, found, key=lambda one: one.time)
        assert best is not None
        return best

    def _floor(self, size: int, protocol: Protocol) -> float:
        """Microseconds below which no run is."""
        links = self._estimator.link_floor(protocol, self.share(size))[0]
        return max(self._estimator.start(protocol) + links, self._estimator.latency_floor(protocol))

    def trace(self, size: int, protocol: str) -> Trace:
        """Simulate a call tile by tile, to the last, and keep what happened."""
        chosen, tiles, rates = self._cut(size, protocol)
        record = Record()
        time = max(Engine(self._work, chosen, tiles, rates, record).run())
        path = critical_path(self._work, record, chosen, self._estimator.start(chosen))
        title = f"simulated: {chosen.name}, {size} B on {self.topology.name}"
        timeline = timeline_of(self._work, record, tiles, title, time)
        return Trace(self._prediction(size, chosen, time, len(tiles)), timeline, path)

    def _prediction(self, size: int, protocol: Protocol, time: float, tiles: int) -> Prediction:
        floor, busiest = self._estimator.link_floor(protocol, self.share(size))
        return Prediction(
            self.schedule.name,
            self.topology.name,
            protocol.name,
            size,
            time,
            floor,
            self.topology.links[busiest].name if busiest >= 0 else "",
            self._estimator.latency_floor(protocol),
            self.estimate(size, protocol.name),
            tiles,
        )

    def _cut(self, size: int, protocol: str, tile: int | None = None) -> tuple[Protocol, list[float], list[float]]:
        """The protocol, bytes of each tile of a chunk, and by step the bytes a microsecond that it moves."""
        if size < 0:
            raise InvalidArgument(f"a call has no {size} bytes", caller())
        chosen = self.topology.costs.protocol(protocol)
        if self._cores is None and chosen.name not in self.protocols():
            able = ", ".join(self.protocols()) or "none here"
            raise BadTopology(f"{chosen.name} is not for {self.schedule.name}", f"what its messages can have: {able}")
        share = self.share(size)
        if self._cores is not None:
            if chosen.name == EAGER:
                chosen = self.topology.costs.protocol(self._cores.path(share))
            slot = float(tile or self._cores.tile(share, chosen))
            rates = self._cores.rates(share, slot, chosen)
        else:
            slot = float(chosen.slot)
            rates = self._rates(size, chosen)
        full = max(1, math.ceil(share / slot)) - 1
        return chosen, [slot] * full + [share - full * slot], rates

    def _rates(self, size: int, chosen: Protocol) -> list[float]:
        """Of a GPU's thread blocks: at most what one stores, or what one moves in its own memory."""
        work, cached = self._work, self._cached(size)
        copy, local = min(chosen.block, cached) * 1e3, min(self.topology.costs.local, cached) * 1e3
        rates = []
        for i in range(len(work.block)):
            alone = work.local[i] and not work.sends[i]
            rates.append((local if alone else copy) / work.passes[i])
        return rates

    def _cached(self, size: int) -> float:
        """GB/s at which a thread block copies where the working set of a node lies."""
        caches = self.topology.costs.caches
        ranks = min(self.schedule.collective.size, self.topology.gpus)
        whole = size * ranks * (1 if self.schedule.collective.inplace else 2)
        return next((speed for most, speed in caches if whole <= most), caches[-1][1] if caches else math.inf)
