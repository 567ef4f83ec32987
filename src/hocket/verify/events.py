"""The event graph of one tile: what each step waits for, an order for a number of slots, and deadlock."""

from __future__ import annotations

from collections.abc import Iterator

from hocket.errors import Deadlock, InvalidSchedule, StepName, WaitKind
from hocket.ir.schedule import Receive, Schedule, Send, Step, ThreadBlock

Order = list[int]
"""Numbers of steps in an order in which they can run."""


class Events:
    """The steps of a schedule, numbered, and the edges between them that do not depend on the number of slots.

    Step ``i`` comes after ``before[i]``: its predecessor in its thread block, the steps it waits for, and the steps
    that send what it receives. Slots add that the k-th send of a connection comes after its (k - slots)-th receive, but
    on the connections of ``in_place``, whose messages need none.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steps: list[Step] = []
        self.rank: list[int] = []
        self.block: list[int] = []
        self.position: list[int] = []
        self.first: list[list[int]] = []
        for r, part in enumerate(schedule.ranks):
            first: list[int] = []
            for b, block in enumerate(part.thread_blocks):
                length = len(block.steps)
                first.append(len(self.steps))
                self.steps += block.steps
                self.block += [b] * length
                self.position += range(length)
            self.first.append(first)
            self.rank += [r] * (len(self.steps) - len(self.rank))
        self.sent: dict[tuple[int, int, int], list[int]] = {}
        self.received: dict[tuple[int, int, int], list[int]] = {}
        self.in_place: set[tuple[int, int, int]] = set()
        self.before: list[list[int]] = [[i - 1] if position else [] for i, position in enumerate(self.position)]
        for r, part in enumerate(schedule.ranks):
            for start, block in zip(self.first[r], part.thread_blocks, strict=True):
                self._add_block(r, start, block)
        self._match_transfers()
        self._after: list[list[int]] = [[] for _ in self.steps]
        for i, before in enumerate(self.before):
            for j in before:
                self._after[j].append(i)

    def _add_block(self, rank: int, start: int, block: ThreadBlock) -> None:
        """The waits of a thread block's steps, and what they send and receive."""
        for into in block.receives:
            self.received[into.peer, rank, into.channel] = []
        for out in block.sends:
            self.sent[rank, out.peer, out.channel] = []
        for i, step in enumerate(block.steps, start):
            if step.waits:
                self.before[i] += [self.first[rank][wait.thread_block] + wait.step for wait in step.waits]
            for source in step.srcs:
                if type(source) is Receive:
                    self.received[source.peer, rank, source.channel].append(i)
            for target in step.dsts:
                if type(target) is Send:
                    self.sent[rank, target.peer, target.channel].append(i)
                    if target.at is not None:
                        self.in_place.add((rank, target.peer, target.channel))

    def _match_transfers(self) -> None:
        """The k-th receive of a connection comes after its k-th send."""
        counts = [step.count for step in self.steps]
        for connection, receives in self.received.items():
            for send, receive in zip(self.sent.get(connection, ()), receives, strict=True):
                count, wanted = counts[send], counts[receive]
                if count != wanted:
                    raise InvalidSchedule(
                        f"a step receives {wanted} chunks where rank {connection[0]} sends {count}: {self.steps[send]}",
                        self.name(receive),
                    )
                self.before[receive].append(send)

    def name(self, i: int) -> StepName:
        """How an error names step ``i``."""
        return self.schedule.step_name(self.rank[i], self.block[i], self.position[i])

    def least_slots(self, limit: int) -> tuple[int, Order]:
        """The least number of slots the schedule can run with, at most ``limit``, and an order for it.

        Raises Deadlock with a cycle of waits for ``limit`` slots.
        """
        order = self._run(1)
        if len(order) == len(self.steps):
            return 1, order
        # A connection has no use for more slots than transfers, and more never hurt.
        lengths = [len(sends) for connection, sends in self.sent.items() if connection not in self.in_place]
        least, most = 2, min(limit, max(lengths, default=1))
        if most > 1:
            order = self._run(most)
        if len(order) < len(self.steps):
            raise self._deadlock(limit, order)
        while least < most:
            middle = (least + most) // 2
            shorter = self._run(middle)
            if len(shorter) == len(self.steps):
                most, order = middle, shorter
            else:
                least = middle + 1
        return most, order

    def _credits(self, slots: int) -> Iterator[tuple[int, int]]:
        """Each receive that frees a slot, and the send that needs it."""
        for connection, receives in self.received.items():
            if connection in self.in_place:
                continue
            yield from zip(receives, self.sent.get(connection, ())[slots:], strict=False)

    def _run(self, slots: int) -> Order:
        """As long an order as there is."""
        missing = [len(before) for before in self.before]
        freed: list[list[int] | None] = [None] * len(missing)
        for receive, send in self._credits(slots):
            missing[send] += 1
            sends = freed[receive]
            if sends is None:
                freed[receive] = [send]
            else:
                sends.append(send)
        ready = [i for i, count in enumerate(missing) if count == 0]
        ready.reverse()
        after = self._after
        order: Order = []
        while ready:
            i = ready.pop()
            order.append(i)
            for j in after[i]:
                missing[j] -= 1
                if missing[j] == 0:
                    ready.append(j)
            for j in freed[i] or ():
                missing[j] -= 1
                if missing[j] == 0:
                    ready.append(j)
        return order

    def _deadlock(self, slots: int, order: Order) -> Deadlock:
        """A shortest cycle of waits through one of the steps that never become ready."""
        done = set(order)
        needs: dict[int, list[tuple[int, WaitKind]]] = {}
        for receive, send in self._credits(slots):
            needs.setdefault(send, []).append((receive, "slot"))
        for i, before in enumerate(self.before):
            if i not in done:
                needs.setdefault(i, []).extend((j, self._why(i, j)) for j in before)
        cycle: list[tuple[int, WaitKind]] = []
        start = next(i for i in range(len(self.steps)) if i not in done)
        seen: dict[int, int] = {}
        at = start
        while at not in seen:
            seen[at] = len(cycle)
            following, why = next((j, why) for j, why in needs[at] if j not in done)
            cycle.append((at, why))
            at = following
        cycle = _shortest(cycle[seen[at] :], needs, done)
        return Deadlock(slots, tuple(self.name(i) for i, _ in cycle), tuple(why for _, why in cycle))

    def _why(self, i: int, j: int) -> WaitKind:
        if self.rank[i] != self.rank[j]:
            return "transfer"
        return "order" if self.block[i] == self.block[j] else "wait"


def _shortest(
    cycle: list[tuple[int, WaitKind]], needs: dict[int, list[tuple[int, WaitKind]]], done: set[int]
) -> list[tuple[int, WaitKind]]:
    """The shortest cycle through the first step of a given one, by breadth-first search."""
    start = cycle[0][0]
    came: dict[int, tuple[int, WaitKind]] = {}
    frontier = [start]
    while frontier:
        following = []
        for i in frontier:
            for j, why in needs.get(i, ()):
                if j == start:
                    path = [(i, why)]
                    while path[-1][0] != start:
                        path.append(came[path[-1][0]])
                    return path[::-1]
                if j not in came and j not in done:
                    came[j] = (i, why)
                    following.append(j)
        frontier = following
    return cycle
