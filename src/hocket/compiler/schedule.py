"""Scheduling: channels, a global order, thread blocks (paper section 5.2)."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import replace

from hocket.compiler.fuse import depths_to_leaf, is_fused, receivers, unfuse
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Arrival, Departure, Instr, InstrDag

MAX_BASES = 32
"""Channels tried for a chain of fused instructions before it is cut; MSCCL and RCCL have as many."""


class _Rebuild:
    """Instructions in a new order, some of them cut in two; processing edges follow them.

    What came after a fused instruction comes after its receiving half. Only what overwrites the place in between has
    to come after its sending half too; to ask more would order operations that the program does not order.
    """

    def __init__(self, dag: InstrDag) -> None:
        self._dag = dag
        self._number: list[int] = [0] * len(dag.instrs)
        self._sent: dict[int, int] = {}
        self._instrs: list[Instr] = []

    def place(self, number: int) -> None:
        """The whole instruction comes next."""
        self._add(number, self._dag.instrs[number])

    def place_receive(self, number: int) -> None:
        """Only the receiving half of a fused instruction comes next."""
        self._add(number, unfuse(self._dag.instrs[number])[0])

    def place_send(self, number: int) -> None:
        """The sending half follows."""
        _, send = unfuse(self._dag.instrs[number])
        self._sent[number] = len(self._instrs)
        self._instrs.append(replace(send, after=(self._number[number],)))

    def _add(self, number: int, instr: Instr) -> None:
        after = [self._number[old] for old in instr.after]
        if self._sent:
            after += [
                self._sent[old] for old in instr.after if old in self._sent and overwrites(instr, self._dag.instrs[old])
            ]
        self._number[number] = len(self._instrs)
        after.sort()
        self._instrs.append(Instr(instr.rank, instr.srcs, instr.dsts, tuple(after), None, instr.where))

    def build(self) -> InstrDag:
        return replace(self._dag, instrs=tuple(self._instrs))


def overwrites(instr: Instr, fused: Instr) -> bool:
    """Whether an instruction stores to a chunk that the two halves of a fused one hand on."""
    between = unfuse(fused)[0].dsts[0]
    assert isinstance(between, Span)
    chunks = set(between.indices())
    return any(
        isinstance(target, Span) and target.buffer == between.buffer and not chunks.isdisjoint(target.indices())
        for target in instr.dsts
    )


def assign_channels(dag: InstrDag) -> InstrDag:
    """Directives first, then the lowest channel that every rank of a fused chain can give it."""
    chain_of: dict[int, list[int]] = {}
    chains: list[list[int]] = []
    for i, instr in enumerate(dag.instrs):
        if is_fused(instr):
            chain = chain_of.get(instr.arrivals[0])
            if chain is None:
                chain = []
                chains.append(chain)
            chain.append(i)
            for edge in (*instr.arrivals, *instr.departures):
                chain_of[edge] = chain
    base = [edge.base for edge in dag.edges]
    onward: dict[tuple[int, int, int], int] = {}
    backward: dict[tuple[int, int, int], int] = {}

    def ends(fused: int) -> tuple[int, int, int]:
        instr = dag.instrs[fused]
        return dag.edges[instr.arrivals[0]].src, instr.rank, dag.edges[instr.departures[0]].dst

    def fits(fused: int, channel: int) -> bool:
        src, rank, dst = ends(fused)
        return onward.get((rank, channel, src), dst) == dst and backward.get((rank, channel, dst), src) == src

    def claim(fused: int, channel: int, directed: int) -> None:
        src, rank, dst = ends(fused)
        onward[rank, channel, src] = dst
        backward[rank, channel, dst] = src
        for edge in (*dag.instrs[fused].arrivals, *dag.instrs[fused].departures):
            base[edge] = directed

    cut: set[int] = set()
    directed = [next((b for i in chain for b in _bases(dag, i) if b is not None), None) for chain in chains]
    for chain, wanted in sorted(zip(chains, directed, strict=True), key=lambda pair: pair[1] is None):
        instance = dag.edges[dag.instrs[chain[0]].arrivals[0]].instance
        choices = range(MAX_BASES) if wanted is None else (wanted,)
        chosen = next((b for b in choices if all(fits(i, b * dag.refinement + instance) for i in chain)), choices[0])
        for i in chain:
            channel = chosen * dag.refinement + instance
            if fits(i, channel):
                claim(i, channel, chosen)
            else:
                cut.add(i)
    rebuild = _Rebuild(dag)
    for i in range(len(dag.instrs)):
        if i in cut:
            rebuild.place_receive(i)
            rebuild.place_send(i)
        else:
            rebuild.place(i)
    edges = tuple(
        edge if b is not None and edge.base == b else replace(edge, base=b if b is not None else 0)
        for edge, b in zip(dag.edges, base, strict=True)
    )
    return replace(rebuild.build() if cut else dag, edges=edges)


def _bases(dag: InstrDag, fused: int) -> list[int | None]:
    instr = dag.instrs[fused]
    return [dag.edges[edge].base for edge in (*instr.arrivals, *instr.departures)]


def order(dag: InstrDag, slots: int) -> InstrDag:
    """A global order in which the whole program can run with ``slots`` slots: by readiness, then by urgency.

    This is list scheduling on the machine that will run it. An instruction is placed when what it depends on has been
    placed, its transfer is at the head of its connection, and for what it sends a slot is free and the receiver only
    waits for it. So the order is itself one complete execution, and the schedule cannot deadlock, whatever thread
    blocks do. A fused instruction can get in its own way, as in a ring with one slot; when nothing else can be placed,
    one is cut. That always helps: the earliest operation not yet placed waits only for slots that hold transfers
    whose receivers are ready, or are fused and can be cut. Hence no valid program is refused.
    """
    return _Ordering(dag, slots).run()


class _Ordering:
    def __init__(self, dag: InstrDag, slots: int) -> None:
        self.dag = dag
        self.slots = slots
        count = len(dag.instrs)
        self.receiver = receivers(dag)
        self.connection = self._connections()
        self.in_flight: dict[int, deque[int]] = {c: deque() for c in set(self.connection)}
        self.after_me: list[list[int]] = [[] for _ in range(count)]
        self.missing = [0] * count
        for i, instr in enumerate(dag.instrs):
            self.missing[i] = len(instr.after)
            for before in instr.after:
                self.after_me[before].append(i)
        self.arrived = [0] * count
        self.cut = [False] * count
        self.placed = [False] * count
        self.priority = self._priorities()
        self.ready: list[tuple[tuple[int, int], int]] = []
        self.unposted: dict[int, list[int]] = {}
        self.no_slot: dict[int, list[tuple[tuple[int, int], int]]] = {}
        self.stuck_fused: list[int] = []
        self.rebuild = _Rebuild(dag)

    def _connections(self) -> list[int]:
        """A number for the connection of each edge."""
        numbers: dict[tuple[int, int, int | None], int] = {}
        return [
            numbers.setdefault((edge.src, edge.dst, self.dag.channel(e)), len(numbers))
            for e, edge in enumerate(self.dag.edges)
        ]

    def _priorities(self) -> list[tuple[int, int]]:
        """(depth, - reverse depth): earlier enabled first, then longer still to go (section 5.2, step 1)."""
        depth = [0] * len(self.dag.instrs)
        for i, instr in enumerate(self.dag.instrs):
            here = depth[i]
            for before in instr.after:
                here = max(here, depth[before] + 1)
            depth[i] = here
            for target in instr.dsts:
                if type(target) is Departure:
                    there = self.receiver[target.edge]
                    depth[there] = max(depth[there], here + 1)
        return [(down, -up) for down, up in zip(depth, depths_to_leaf(self.dag), strict=True)]

    def run(self) -> InstrDag:
        instrs = self.dag.instrs
        for i in range(len(instrs)):
            self._consider(i)
        left = len(instrs)
        while left:
            if not self.ready:
                self._cut_one()
                continue
            _, i = heapq.heappop(self.ready)
            if self._can_send(i):
                self._place(i)
                left -= 1
        return self.rebuild.build()

    def _consider(self, i: int) -> None:
        """Queue an instruction whose own rank is done with what comes before, and whose transfers have come."""
        if self.missing[i] == 0 and self.arrived[i] == (type(self.dag.instrs[i].srcs[0]) is Arrival):
            heapq.heappush(self.ready, (self.priority[i], i))

    def _can_send(self, i: int) -> bool:
        """Whether the receiver only waits for this, and a slot is free; if not, remember to come back."""
        for target in self.dag.instrs[i].dsts:
            if type(target) is Departure:
                receiver, connection = self.receiver[target.edge], self.connection[target.edge]
                if self.missing[receiver]:
                    self.unposted.setdefault(receiver, []).append(i)
                elif len(self.in_flight[connection]) >= self.slots:
                    heapq.heappush(self.no_slot.setdefault(connection, []), (self.priority[i], i))
                else:
                    continue
                if not self.cut[i] and type(self.dag.instrs[i].srcs[0]) is Arrival:
                    heapq.heappush(self.stuck_fused, i)
                return False
        return True

    def _cut_one(self) -> None:
        """Nothing can be placed: let one fused instruction receive now and send later."""
        while self.placed[self.stuck_fused[0]] or self.cut[self.stuck_fused[0]]:
            heapq.heappop(self.stuck_fused)
        i = heapq.heappop(self.stuck_fused)
        self.cut[i] = True
        self.rebuild.place_receive(i)
        self._receive(i)
        overwriting = [j for j in self.after_me[i] if overwrites(self.dag.instrs[j], self.dag.instrs[i])]
        for later in self.after_me[i]:
            if later not in overwriting:
                self._release(later)
        self.after_me[i] = overwriting

    def _place(self, i: int) -> None:
        self.placed[i] = True
        if self.cut[i]:
            self.rebuild.place_send(i)
        else:
            self.rebuild.place(i)
            self._receive(i)
        for target in self.dag.instrs[i].dsts:
            if type(target) is Departure:
                queue = self.in_flight[self.connection[target.edge]]
                queue.append(target.edge)
                if len(queue) == 1:
                    self._arrive(target.edge)
        for later in self.after_me[i]:
            self._release(later)

    def _release(self, i: int) -> None:
        """One thing less that an instruction of this rank comes after."""
        self.missing[i] -= 1
        if self.missing[i] == 0:
            self._consider(i)
            for sender in self.unposted.pop(i, ()):
                heapq.heappush(self.ready, (self.priority[sender], sender))

    def _receive(self, i: int) -> None:
        for source in self.dag.instrs[i].srcs:
            if type(source) is Arrival:
                connection = self.connection[source.edge]
                queue = self.in_flight[connection]
                queue.popleft()
                if queue:
                    self._arrive(queue[0])
                waiting = self.no_slot.get(connection)
                if waiting:
                    heapq.heappush(self.ready, heapq.heappop(waiting))

    def _arrive(self, edge: int) -> None:
        receiver = self.receiver[edge]
        self.arrived[receiver] += 1
        self._consider(receiver)


End = tuple[int, bool, int, int | None]
"""One end of a connection: rank, whether it receives, peer, channel."""


def assign_thread_blocks(dag: InstrDag) -> InstrDag:
    """One thread block for each (send peer, receive peer, channel); local ones go where the last is oldest."""

    def ends(instr: Instr) -> list[End]:
        receiving: list[End] = [(instr.rank, True, dag.edges[e].src, dag.channel(e)) for e in instr.arrivals]
        return receiving + [(instr.rank, False, dag.edges[e].dst, dag.channel(e)) for e in instr.departures]

    used = [ends(instr) for instr in dag.instrs]
    partner: dict[End, End] = {}
    for instr, its in zip(dag.instrs, used, strict=True):
        if is_fused(instr):
            first, second = its
            partner[first], partner[second] = second, first
    block_of: dict[End, int] = {}
    blocks = [0] * dag.collective.size
    for instr, its in zip(dag.instrs, used, strict=True):
        for end in its:
            if end not in block_of:
                together = partner.get(end)
                if together is None or together not in block_of:
                    block_of[end] = blocks[instr.rank]
                    blocks[instr.rank] += 1
                else:
                    block_of[end] = block_of[together]
    blocks = [max(1, n) for n in blocks]
    latest = [[-1] * n for n in blocks]
    oldest: list[list[tuple[int, int]]] = [[(-1, b) for b in range(n)] for n in blocks]
    instrs: list[Instr] = []
    for i, instr in enumerate(dag.instrs):
        rank = instr.rank
        if used[i]:
            block = block_of[used[i][0]]
        else:
            heap = oldest[rank]
            while heap[0][0] != latest[rank][heap[0][1]]:
                _, stale = heapq.heappop(heap)
                heapq.heappush(heap, (latest[rank][stale], stale))
            block = heap[0][1]
        latest[rank][block] = i
        instrs.append(Instr(rank, instr.srcs, instr.dsts, instr.after, block, instr.where))
    return replace(dag, instrs=tuple(instrs))
