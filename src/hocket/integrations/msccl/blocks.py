"""Thread blocks as a program asks for them: sendtb and recvtb, on a schedule that hocket has compiled.

Steps move between the thread blocks of their rank. They keep an order in which the schedule runs, so it still does; the
waits between them are found anew, from what they read and write. Who calls this proves the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hocket.collectives import BufferName
from hocket.errors import ChannelConflict, ThreadBlockConflict, Where
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Rank, Receive, Schedule, Send, Step, ThreadBlock, Wait
from hocket.verify.events import Events

Block = tuple[int, int]
"""A thread block of the user's, and for which of the program's instances."""


class Wish(NamedTuple):
    """The thread blocks that one operation asks for: of the sender, or of a local operation, and of the receiver."""

    sender: Block | None
    receiver: Block | None


_NONE = Wish(None, None)

End = Send | Receive


def rearrange(schedule: Schedule, wishes: Mapping[int, Wish], fused: bool) -> Schedule:
    """The schedule with steps in the thread blocks that are wished for, the others where they were.

    ``wishes`` has the ``id`` of each operation's location. A fused step is cut where its two halves belong to different
    thread blocks, or where ``fused`` is false. Raises ChannelConflict for a connection that would have two thread
    blocks, ThreadBlockConflict for a thread block that would have two connections to send on, or to receive on.
    """
    steps = _in_order(schedule)
    handed_on = {id(where) for _, _, step in steps for where in step.where}
    assert handed_on.issuperset(wishes), "the compiler hands on locations as they are"
    owners = _owners(len(schedule.ranks), steps, wishes)
    parts: list[list[tuple[int, Block | None, Step]]] = [[] for _ in schedule.ranks]
    for rank, old, step in steps:
        for part in _cut(step, owners[rank], fused):
            ends = _ends(part)
            own = owners[rank].get(ends[0]) if ends else wishes.get(id(part.where[0]), _NONE).sender
            parts[rank].append((old, own, part))
    ranks = [Rank(rank.scratch, _blocks(parts[r])) if parts[r] else rank for r, rank in enumerate(schedule.ranks)]
    return replace(schedule, ranks=tuple(ranks))


def _in_order(schedule: Schedule) -> list[tuple[int, int, Step]]:
    """Rank, thread block and step of all steps, in an order in which they can run: the earliest possible first."""
    events = Events(schedule)
    slots, order = events.least_slots(schedule.slots)
    before = [list(those) for those in events.before]
    for connection, receives in events.received.items():
        for receive, send in zip(receives, events.sent[connection][slots:], strict=False):
            before[send].append(receive)
    depth = [0] * len(order)
    for i in order:
        depth[i] = max((depth[j] + 1 for j in before[i]), default=0)
    return [(events.rank[i], events.block[i], events.steps[i]) for i in sorted(order, key=lambda i: (depth[i], i))]


def _ends(step: Step) -> list[End]:
    return [operand for operand in (*step.srcs, *step.dsts) if not isinstance(operand, Span)]


def _owners(ranks: int, steps: list[tuple[int, int, Step]], wishes: Mapping[int, Wish]) -> list[dict[End, Block]]:
    """For each rank the thread blocks of those ends of connections that somebody has wishes for."""
    found: list[dict[End, tuple[Block, Where]]] = [{} for _ in range(ranks)]
    used: dict[tuple[int, Block, type[End]], tuple[End, Where]] = {}
    for rank, _, step in steps:
        ends = _ends(step)
        for half, end in enumerate(ends):
            where = step.where[half]  # a fused step comes from the operation that it receives, then from the other
            wish = wishes.get(id(where), _NONE)
            block = wish.sender if isinstance(end, Send) else wish.receiver
            if block is None:
                continue
            first, before = found[rank].setdefault(end, (block, where))
            if first != block:
                verb = "send to" if isinstance(end, Send) else "receive from"
                raise ChannelConflict(rank, verb, end.peer, end.channel, (first[0], block[0]), before, where)
            _check_one(rank, block, end, where, used)
    return [{end: block for end, (block, _) in of_rank.items()} for of_rank in found]


def _check_one(
    rank: int, block: Block, end: End, where: Where, used: dict[tuple[int, Block, type[End]], tuple[End, Where]]
) -> None:
    """A thread block has one rank to send to, one to receive from, and one channel."""
    other, before = used.setdefault((rank, block, type(end)), (end, where))
    if other.peer != end.peer:
        what = "ranks to send to" if isinstance(end, Send) else "ranks to receive from"
        raise ThreadBlockConflict(rank, block[0], what, before, where)
    for kind in (Send, Receive):
        other, before = used.get((rank, block, kind), (end, where))
        if other.channel != end.channel:
            raise ThreadBlockConflict(rank, block[0], "channels", before, where)


def _cut(step: Step, owner: Mapping[End, Block], fused: bool) -> list[Step]:
    """A step, or the receive and the send that it was fused from."""
    ends = _ends(step)
    if len(ends) < 2 or (fused and owner.get(ends[0]) == owner.get(ends[1])):
        return [step]
    # What an rrs does not store is stored again: the program said so, and nobody needs the place.
    local = next(operand for operand in (*step.dsts, *step.srcs) if isinstance(operand, Span))
    return [
        Step(step.srcs, (local,), (), step.where[:1]),
        Step((local,), (ends[1],) if isinstance(ends[1], Send) else (), (), step.where[1:]),
    ]


def _blocks(steps: list[tuple[int, Block | None, Step]]) -> tuple[ThreadBlock, ...]:
    """The thread blocks of a rank, with the waits that its steps, which are in an order that keeps all values, need."""
    wished = sorted({own for _, own, _ in steps if own is not None})
    others = sorted({old for old, own, _ in steps if own is None})
    keys: list[Block | int] = [*wished, *others]
    numbers = {key: n for n, key in enumerate(keys)}
    made: list[list[Step]] = [[] for _ in numbers]
    known: list[dict[int, int]] = [{} for _ in numbers]  # the last step of others that a thread block has waited for
    then: dict[Wait, tuple[int, dict[int, int]]] = {}  # what was known when a step began, in their order
    writer: dict[tuple[BufferName, int], Wait] = {}
    readers: dict[tuple[BufferName, int], list[Wait]] = {}
    for number, (old, own, step) in enumerate(steps):
        block = numbers[old if own is None else own]
        me = Wait(block, len(made[block]))
        needed: set[Wait] = set()
        for source in step.srcs:
            for place in _places(source):
                if place in writer:
                    needed.add(writer[place])
                readers.setdefault(place, []).append(me)
        for target in step.dsts:
            for place in _places(target):
                if place in writer:
                    needed.add(writer[place])
                needed.update(readers.pop(place, ()))
                writer[place] = me
        waits: list[Wait] = []
        clock = known[block]
        # Later steps know more, so what they imply need not be waited for again.
        needed.discard(me)
        for wait in sorted(needed, key=lambda wait: then[wait][0], reverse=True):
            if wait.thread_block != block and clock.get(wait.thread_block, -1) < wait.step:
                waits.append(wait)
                for other, last in (*then[wait][1].items(), (wait.thread_block, wait.step)):
                    clock[other] = max(clock.get(other, -1), last)
        then[me] = number, dict(clock)
        waits.sort(key=lambda wait: (wait.thread_block, wait.step))
        made[block].append(Step(step.srcs, step.dsts, tuple(waits), step.where))
    return tuple(_block(those) for those in made)


def _places(operand: Span | Send | Receive) -> list[tuple[BufferName, int]]:
    return [(operand.buffer, index) for index in operand.indices()] if isinstance(operand, Span) else []


def _block(steps: list[Step]) -> ThreadBlock:
    receives = {source: None for step in steps for source in step.srcs if isinstance(source, Receive)}
    sends = {target: None for step in steps for target in step.dsts if isinstance(target, Send)}
    return ThreadBlock(tuple(receives), tuple(sends), tuple(steps))
