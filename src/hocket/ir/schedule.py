"""Schedule, the paper's MSCCL-IR: ranks, thread blocks, steps, waits (paper section 5).

A plain value: it can be printed, parsed back to an equal value, hashed and compared. Storage is fifo: the sender copies
into a slot of the connection, the receiver reads from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from hocket.collectives import Collective
from hocket.errors import ChannelConflict, InvalidSchedule, StepName, UnmatchedTransfer, Where
from hocket.ir.chunk_dag import Span, buffer_sizes, misplaced, shares_chunk
from hocket.ir.instr_dag import Shape, opcode


class Receive(Struct, frozen=True, gc=False):
    """Operand: the receiving end of the connection from ``peer`` on ``channel``."""

    peer: int
    channel: int

    def __str__(self) -> str:
        return f"<{self.peer}.{self.channel}"


class Send(Struct, frozen=True, gc=False):
    """Operand: the sending end of the connection to ``peer`` on ``channel``."""

    peer: int
    channel: int

    def __str__(self) -> str:
        return f">{self.peer}.{self.channel}"


PROTOCOLS = ("auto", "simple")
"""How arrival is signalled; "auto" leaves it to whatever runs the schedule."""

Source = Span | Receive
Destination = Span | Send


class Wait(Struct, frozen=True, gc=False):
    """Do not begin before ``thread_block`` of the own rank has finished ``step`` of the same tile."""

    thread_block: int
    step: int


class Step(Struct, frozen=True, eq=False, gc=False):
    """``dsts = reduce(srcs)``, once the waits are met, received slots are full and slots to send into are free.

    ``where`` names the operations of the program it came from, in order.
    """

    srcs: tuple[Source, ...]
    dsts: tuple[Destination, ...]
    waits: tuple[Wait, ...] = ()
    where: tuple[Where, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Step and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        """All but where."""
        return self.srcs, self.dsts, self.waits

    @property
    def shape(self) -> Shape:
        received = sum(type(s) is Receive for s in self.srcs)
        sent = sum(type(d) is Send for d in self.dsts)
        return received, len(self.srcs) - received, sent, len(self.dsts) - sent

    @property
    def opcode(self) -> str:
        return opcode(self.shape)

    @property
    def count(self) -> int | None:
        """Chunks the step works on, from its first local operand; None when it has none."""
        for operand in self.srcs + self.dsts:
            if type(operand) is Span:
                return operand.count
        return None

    def __str__(self) -> str:
        """The step without waits: ``rrc <3.0 in[2] -> in[2]``."""
        return f"{self.opcode} {' '.join(map(str, self.srcs))} -> {' '.join(map(str, self.dsts))}"


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Steps in the order they run, and the connections they use: at most one of each in the paper's form."""

    receives: tuple[Receive, ...]
    sends: tuple[Send, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's part: its thread blocks, and the number of its scratch chunks."""

    scratch: int
    thread_blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A value from place ``value`` of a unit goes through place ``location``, which is shorter when sizes are uneven.

    The schedule is refused for sizes where the two lengths differ.
    """

    value: int
    location: int
    where: Where | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Schedule:
    """``slots`` is the least number of slots a connection needs; more never hurt.

    ``collective`` is the refined one: its chunks are those that steps count in.
    """

    name: str
    collective: Collective
    protocol: str
    slots: int
    ranks: tuple[Rank, ...]
    narrowings: tuple[Narrowing, ...] = ()

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """All steps, as (rank, thread block, position, step)."""
        for r, rank in enumerate(self.ranks):
            for b, block in enumerate(rank.thread_blocks):
                for s, step in enumerate(block.steps):
                    yield r, b, s, step

    def step_name(self, rank: int, thread_block: int, step: int) -> StepName:
        found = self.ranks[rank].thread_blocks[thread_block].steps[step]
        return StepName(rank, str(found), thread_block, step, found.where[0] if found.where else None)

    def digest(self) -> str:
        """SHA-256 of the schedule's text without source lines: equal schedules, and only they, have equal digests."""
        from hocket.ir import text

        return hashlib.sha256(text.print_schedule(self, locations=False).encode()).hexdigest()


def verify(schedule: Schedule) -> None:
    """Raise InvalidSchedule, ChannelConflict or UnmatchedTransfer if a rule of the form is broken.

    Whether the schedule does its job (races, deadlock, postcondition) is for ``hocket.verify``.
    """
    collective = schedule.collective
    if len(schedule.ranks) != collective.size:
        raise InvalidSchedule(f"{len(schedule.ranks)} ranks for a collective of {collective.size}")
    if schedule.protocol not in PROTOCOLS:
        raise InvalidSchedule(f"there is no protocol {schedule.protocol!r}")
    if schedule.slots < 1:
        raise InvalidSchedule("a connection has at least one slot")
    sizes = buffer_sizes(collective, [rank.scratch for rank in schedule.ranks])
    traffic: dict[tuple[int, int, int], list[int]] = {}
    for r, rank in enumerate(schedule.ranks):
        alias = collective.alias(r)
        aliased = alias.buffer if alias is not None else None
        owners: dict[tuple[bool, int, int], int] = {}
        for b, block in enumerate(rank.thread_blocks):
            ends: tuple[Receive | Send, ...] = (*block.receives, *block.sends)
            for end in ends:
                key = type(end) is Receive, end.peer, end.channel
                owner = owners.get(key)
                if owner == b:
                    raise InvalidSchedule(f"rank {r}, thread block {b}: connection {end} is named twice")
                if owner is not None:
                    _conflict(schedule, r, end, owner, b)
                owners[key] = b
                if end.peer == r or not 0 <= end.peer < collective.size or end.channel < 0:
                    raise InvalidSchedule(f"rank {r}, thread block {b}: there is no connection {end}")
        lengths = [len(block.steps) for block in rank.thread_blocks]
        for b, block in enumerate(rank.thread_blocks):
            received = {end: traffic.setdefault((end.peer, r, end.channel), [0, 0]) for end in block.receives}
            sent = {end: traffic.setdefault((r, end.peer, end.channel), [0, 0]) for end in block.sends}
            for s, step in enumerate(block.steps):
                if not step.srcs or not step.dsts:
                    raise InvalidSchedule("a step without source or destination", schedule.step_name(r, b, s))
                count: int | None = None
                mixed = False
                for operand in step.srcs + step.dsts:
                    if type(operand) is Span:
                        if wrong := misplaced(operand, sizes):
                            raise InvalidSchedule(wrong, schedule.step_name(r, b, s))
                        if operand.rank != r:
                            raise InvalidSchedule("memory of another rank", schedule.step_name(r, b, s))
                        if operand.buffer == aliased:
                            name = "in" if operand.buffer == "out" else "out"
                            raise InvalidSchedule(
                                f"a step names {operand}, which in-place is memory of {name!r}",
                                schedule.step_name(r, b, s),
                            )
                        mixed = mixed or operand.count != (count or operand.count)
                        count = operand.count
                    elif type(operand) is Receive and operand in received:
                        received[operand][1] += 1
                    elif type(operand) is Send and operand in sent:
                        sent[operand][0] += 1
                    else:
                        raise InvalidSchedule(
                            f"{operand} is not a connection of its thread block", schedule.step_name(r, b, s)
                        )
                if count is None:
                    raise InvalidSchedule(
                        "a step has no local operand to say how many chunks it works on", schedule.step_name(r, b, s)
                    )
                if mixed:
                    raise InvalidSchedule("the spans of a step must be of one length", schedule.step_name(r, b, s))
                if len(step.srcs) > 1 or len(step.dsts) > 1 or type(step.srcs[0]) is type(step.dsts[0]):
                    _check_operands(schedule, r, b, s, step)
                for wait in step.waits:
                    other = wait.thread_block
                    if other == b or not 0 <= other < len(lengths) or not 0 <= wait.step < lengths[other]:
                        raise InvalidSchedule(
                            f"a step waits for {other}.{wait.step}, no step of another thread block",
                            schedule.step_name(r, b, s),
                        )
    for (sender, receiver, channel), (sends, receives) in traffic.items():
        if sends != receives:
            raise UnmatchedTransfer(sender, receiver, channel, sends, receives)


def _check_operands(schedule: Schedule, rank: int, block: int, number: int, step: Step) -> None:
    """A step does one slot operation for each end, and is the same whichever of its chunks it does first."""
    for operands in (step.srcs, step.dsts):
        if len(operands) > 1:
            ends = [operand for operand in operands if type(operand) is not Span]
            if len(ends) > 1 and len(set(ends)) < len(ends):
                raise InvalidSchedule(
                    "a step uses one end of a connection twice", schedule.step_name(rank, block, number)
                )
    for i, target in enumerate(step.dsts):
        if type(target) is not Span:
            continue
        for source in step.srcs:
            # Equal is fine, as in a reduce; and mostly they are one object.
            if source is not target and type(source) is Span and source != target and shares_chunk(source, target):
                raise InvalidSchedule(
                    f"a step reads {source} and writes {target}, which overlap", schedule.step_name(rank, block, number)
                )
        for other in step.dsts[:i]:
            if type(other) is Span and shares_chunk(target, other):
                raise InvalidSchedule(
                    f"a step writes {target} and {other}, which overlap", schedule.step_name(rank, block, number)
                )


def _conflict(schedule: Schedule, rank: int, end: Receive | Send, first: int, second: int) -> None:
    def place(thread_block: int) -> Where | None:
        steps = schedule.ranks[rank].thread_blocks[thread_block].steps
        used = (step.where[-1] for step in steps if end in (*step.srcs, *step.dsts) and step.where)
        return next(used, None)

    direction = "receive from" if type(end) is Receive else "send to"
    raise ChannelConflict(rank, direction, end.peer, end.channel, (first, second), place(first), place(second))
