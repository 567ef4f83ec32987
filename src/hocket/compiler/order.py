"""The global order of instructions (paper section 5.2, steps 1 and 3)."""

from __future__ import annotations

import heapq
from collections import deque

from hocket.compiler.rebuild import Rebuild, overwrites
from hocket.ir.instr_dag import Arrival, Departure, InstrDag, depths_to_leaf, receivers


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
        self.rebuild = Rebuild(dag)

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
