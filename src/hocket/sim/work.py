"""What a schedule does on a topology, as flat tables: made once, used for every size."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.errors import BadTopology, NoLink
from hocket.ir.schedule import Receive, Schedule, Send, Step
from hocket.topology import Route, Topology


@dataclass(frozen=True, slots=True)
class Connection:
    """Its route, whether its messages lie in place, whether its receiver ``pulls`` them, and its steps, in order."""

    source: int
    target: int
    channel: int
    route: Route
    in_place: bool
    pulls: bool
    sends: tuple[int, ...]
    receives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Steps are numbered thread block by thread block, those of rank 0 first; connections by their senders' steps.

    By step: the ``block`` it is on; ``chunks`` it works on; whether it ``moves`` bytes; how many ``passes`` its thread
    block makes over them, for terms and messages, and whether what it reads is ``local``; the steps it ``waits`` for;
    whether others wait for it (``awaited``); the connections it ``receives`` from and ``sends`` to; and those whose
    links its own thread block fills (``carries``).
    By thread block: its ``first`` step, how many (``length``), and its ``rank``.
    """

    schedule: Schedule
    topology: Topology
    rank: tuple[int, ...]
    first: tuple[int, ...]
    length: tuple[int, ...]
    block: tuple[int, ...]
    chunks: tuple[int, ...]
    moves: tuple[bool, ...]
    passes: tuple[float, ...]
    local: tuple[bool, ...]
    waits: tuple[tuple[int, ...], ...]
    awaited: tuple[bool, ...]
    receives: tuple[tuple[int, ...], ...]
    sends: tuple[tuple[int, ...], ...]
    carries: tuple[tuple[int, ...], ...]
    connections: tuple[Connection, ...]

    @property
    def most_blocks(self) -> int:
        """Thread blocks of the rank that has most."""
        return max((len(rank.thread_blocks) for rank in self.schedule.ranks), default=0)

    def place(self, step: int) -> tuple[int, int, int]:
        """Rank, thread block of the rank, and position in it."""
        block = self.block[step]
        rank = self.rank[block]
        return rank, block - self.rank.index(rank), step - self.first[block]

    def step(self, number: int) -> Step:
        rank, block, position = self.place(number)
        return self.schedule.ranks[rank].thread_blocks[block].steps[position]

    def link_chunks(self) -> list[int]:
        """Chunks that go over each link of the topology, in one call."""
        found = [0] * len(self.topology.links)
        for connection in self.connections:
            total = sum(self.chunks[step] for step in connection.sends)
            for link in connection.route.links:
                found[link] += total
        return found


def prepare(schedule: Schedule, topology: Topology) -> Work:
    """The tables of a schedule. Raises NoLink, with the user's line, and BadTopology if the machine is too small."""
    if schedule.collective.size > topology.ranks:
        nodes = -(-schedule.collective.size // topology.gpus)
        raise BadTopology(
            f"{schedule.name} has {schedule.collective.size} ranks, {topology.name} {topology.ranks}",
            f"with {nodes} nodes it has {nodes * topology.gpus}",
        )
    work = _Tables(schedule, topology).work()
    if work.most_blocks > topology.thread_blocks:
        raise BadTopology(
            f"{schedule.name} has {work.most_blocks} thread blocks on a rank, and {topology.name} runs "
            f"{topology.thread_blocks} at once",
            "all of a schedule run at once: fewer channels or instances",
        )
    return work


def _passes(step: Step, messages: int) -> float:
    """Over the bytes of a step. One stores one message and loads one term, or two; each further term is a load, a third
    of the two loads and the store: by NCCL's model a thread block of a tree, which adds up three or four, is as fast as
    one of a ring (graph/tuning.cc: perChMaxTreeBws, perChMaxRingLL128Bws)."""
    return max(1.0, messages, (len(step.srcs) + 1) / 3)


class _Tables:
    """Collects the tables step by step."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        self._schedule = schedule
        self._topology = topology
        self._sent: dict[tuple[int, int, int], list[int]] = {}
        self._received: dict[tuple[int, int, int], list[int]] = {}
        self._at: dict[tuple[int, int, int], bool | None] = {}  # of messages in place: whether they are pulled
        self._steps: list[tuple[Step, int]] = []

    def work(self) -> Work:
        rank, first, length, block = list[int](), list[int](), list[int](), list[int]()
        starts: list[list[int]] = []
        for r, part in enumerate(self._schedule.ranks):
            starts.append([])
            for thread_block in part.thread_blocks:
                starts[r].append(len(self._steps))
                block += [len(first)] * len(thread_block.steps)
                rank.append(r)
                first.append(len(self._steps))
                length.append(len(thread_block.steps))
                for step in thread_block.steps:
                    self._add(step, r)
        waits = [tuple([starts[r][w.thread_block] + w.step for w in step.waits]) for step, r in self._steps]
        awaited = [False] * len(self._steps)
        for names in waits:
            for name in names:
                awaited[name] = True
        numbers = {name: number for number, name in enumerate(self._sent)}
        connections = tuple([self._connection(name) for name in numbers])
        receives, sends = self._ends(numbers)
        carries = self._carries(receives, sends, connections)
        return Work(
            self._schedule,
            self._topology,
            tuple(rank),
            tuple(first),
            tuple(length),
            tuple(block),
            tuple([step.count or 0 for step, _ in self._steps]),
            tuple([step.moves for step, _ in self._steps]),
            tuple([_passes(step, len(names)) for (step, _), names in zip(self._steps, carries, strict=True)]),
            tuple([not any(type(source) is Receive for source in step.srcs) for step, _ in self._steps]),
            tuple(waits),
            tuple(awaited),
            tuple(receives),
            tuple(sends),
            tuple(carries),
            connections,
        )

    def _add(self, step: Step, rank: int) -> None:
        number = len(self._steps)
        self._steps.append((step, rank))
        for source in step.srcs:
            if type(source) is Receive:
                self._received.setdefault((source.peer, rank, source.channel), []).append(number)
        for target in step.dsts:
            if type(target) is Send:
                name = rank, target.peer, target.channel
                self._sent.setdefault(name, []).append(number)
                self._at[name] = None if target.at is None else not target.pushes

    def _connection(self, name: tuple[int, int, int]) -> Connection:
        source, target, channel = name
        route = self._topology.route(source, target)
        sends = self._sent[name]
        if route is None:
            where = self._steps[sends[0]][0].where
            raise NoLink(self._topology.name, source, target, where[-1] if where else None)
        pulled = self._at[name]
        pulls = bool(pulled) and not route.network  # the network sends what lies anywhere
        return Connection(
            source, target, channel, route, pulled is not None, pulls, tuple(sends), tuple(self._received[name])
        )

    def _ends(self, numbers: dict[tuple[int, int, int], int]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        receives: list[tuple[int, ...]] = [()] * len(self._steps)
        sends: list[tuple[int, ...]] = [()] * len(self._steps)
        for name, number in numbers.items():
            for step in self._received[name]:
                receives[step] = (*receives[step], number)
            for step in self._sent[name]:
                sends[step] = (*sends[step], number)
        return receives, sends

    def _carries(
        self,
        receives: list[tuple[int, ...]],
        sends: list[tuple[int, ...]],
        connections: tuple[Connection, ...],
    ) -> list[tuple[int, ...]]:
        """Within a node, whoever moves a message occupies its links; between nodes, the network does."""
        found = []
        for into, out in zip(receives, sends, strict=True):
            pulled = [c for c in into if connections[c].pulls]
            pushed = [c for c in out if not connections[c].pulls and not connections[c].route.network]
            found.append(tuple(pulled + pushed))
        return found
