"""The global order of instructions (paper section 5.2, steps 1 and 3)."""

from __future__ import annotations

import heapq

import numpy as np

from hocket.compiler.rebuild import Rebuild, overwrites
from hocket.ir.instr_dag import InstrDag, at_edges, connections, depths_to_leaf, ends


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
    """Instructions are queued by their place in the order of urgency, a single number, and found again from it."""

    def __init__(self, dag: InstrDag, slots: int) -> None:
        self.dag = dag
        self.slots = slots
        count = len(dag.instrs)
        arrivals, departures = ends(dag)
        receiver, connection = at_edges(len(dag.edges), arrivals), connections(dag)
        self.takes = [None if edge is None else connection[edge] for edge in arrivals]
        self.gives = [None if edge is None else connection[edge] for edge in departures]
        self.receiver = [None if edge is None else receiver[edge] for edge in departures]
        # Lists, because no more is in flight than there are slots, and there are many connections.
        self.in_flight: list[list[int]] = [[] for _ in range(max(connection, default=-1) + 1)]
        self.after_me: list[list[int]] = [[] for _ in range(count)]
        for i, before in enumerate(dag.after):
            for earlier in before:
                self.after_me[earlier].append(i)
        # What an instruction still waits for: those of its rank that come before, and its transfer.
        self.missing = [
            len(before) + (arrival is not None) for before, arrival in zip(dag.after, arrivals, strict=True)
        ]
        self.cut = bytearray(count)
        self.placed = bytearray(count)
        self.by_urgency = self._by_urgency(depths_to_leaf(dag, departures, receiver))
        self.urgency = [0] * count
        for place, i in enumerate(self.by_urgency):
            self.urgency[i] = place
        self.ready: list[int] = []
        self.unposted: dict[int, list[int]] = {}
        self.no_slot: dict[int, list[int]] = {}
        self.stuck_fused: list[int] = []
        self.rebuild = Rebuild(dag)

    def _by_urgency(self, to_leaf: list[int]) -> list[int]:
        """By (depth, - reverse depth): earlier enabled first, then longer still to go (paper section 5.2, step 1)."""
        depth = [0] * len(self.dag.instrs)
        for i, before in enumerate(self.dag.after):
            here = depth[i]
            for earlier in before:
                if depth[earlier] >= here:
                    here = depth[earlier] + 1
            depth[i] = here
            receiver = self.receiver[i]
            if receiver is not None and depth[receiver] <= here:
                depth[receiver] = here + 1
        found: list[int] = np.lexsort((-np.array(to_leaf, np.int64), np.array(depth, np.int64))).tolist()
        return found

    def run(self) -> InstrDag:
        self.ready = [self.urgency[i] for i, missing in enumerate(self.missing) if not missing]
        heapq.heapify(self.ready)
        left = len(self.missing)
        while left:
            if not self.ready:
                self._cut_one()
                continue
            i = self.by_urgency[heapq.heappop(self.ready)]
            if self._can_send(i):
                self._place(i)
                left -= 1
        return self.rebuild.build()

    def _can_send(self, i: int) -> bool:
        """Whether the receiver, if there is one, only waits for this, and a slot is free; if not, remember to come
        back."""
        receiver, connection = self.receiver[i], self.gives[i]
        if receiver is None or connection is None:
            return True
        if self.missing[receiver] > 1:
            self.unposted.setdefault(receiver, []).append(i)
        elif len(self.in_flight[connection]) >= self.slots:
            heapq.heappush(self.no_slot.setdefault(connection, []), self.urgency[i])
        else:
            return True
        if self.takes[i] is not None and not self.cut[i]:
            heapq.heappush(self.stuck_fused, i)
        return False

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
        receiver, connection = self.receiver[i], self.gives[i]
        if receiver is not None and connection is not None:
            queue = self.in_flight[connection]
            queue.append(receiver)
            if len(queue) == 1:
                self._release(receiver)
        for later in self.after_me[i]:
            self._release(later)

    def _receive(self, i: int) -> None:
        connection = self.takes[i]
        if connection is not None:
            queue = self.in_flight[connection]
            queue.pop(0)
            if queue:
                self._release(queue[0])
            waiting = self.no_slot.get(connection)
            if waiting:
                heapq.heappush(self.ready, heapq.heappop(waiting))

    def _release(self, i: int) -> None:
        """One thing less that an instruction waits for."""
        self.missing[i] -= 1
        if self.missing[i] == 0:
            heapq.heappush(self.ready, self.urgency[i])
        elif self.missing[i] == 1 and i in self.unposted:
            for sender in self.unposted.pop(i):
                heapq.heappush(self.ready, self.urgency[sender])
