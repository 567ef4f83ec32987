"""Schedule, the paper's MSCCL-IR: ranks, thread blocks, steps, waits (paper section 5).

A plain value: it can be printed, parsed back to an equal value, hashed and compared.

A message goes through a slot of its connection (storage fifo): the sender stores it there, the receiver loads it. Or it
lies in place (storage peer), ``at`` a span of one of the two ranks' input or output, which both ends name. In the
sender's memory it is *pulled*: the step that sends has only that span as source, and moves nothing, it says that the
value is there; the step that receives reads it. In the receiver's memory it is *pushed*: the step that sends stores it
there; the step that receives has only that span as destination, and moves nothing, it learns that the value is there.
All messages of a connection are of one kind; those in place have no slots, and any number may be outstanding.

A rank touches another's memory only between that rank's beginning a call and leaving it: all have begun before any
step, and a rank leaves when its steps are done and what is pulled from it has been received.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

from msgspec import Struct, structs

from hocket.collectives import BufferName, Collective
from hocket.errors import ChannelConflict, InvalidSchedule, Location, StepName, UnmatchedTransfer, Where
from hocket.ir.chunk_dag import Span, buffer_sizes, misplaced, shares_chunk
from hocket.ir.instr_dag import Shape, opcode


class Receive(Struct, frozen=True, gc=False):
    """Operand: the receiving end of the connection from ``peer`` on ``channel``; a message is ``at``, or in a slot."""

    peer: int
    channel: int
    at: Span | None = None

    @property
    def pulls(self) -> bool:
        """Whether the message is read from the memory of the peer."""
        return self.at is not None and self.at.rank == self.peer

    def __str__(self) -> str:
        return f"<{self.peer}.{self.channel}{_place(self.at)}"


class Send(Struct, frozen=True, gc=False):
    """Operand: the sending end of the connection to ``peer`` on ``channel``; a message is ``at``, or in a slot."""

    peer: int
    channel: int
    at: Span | None = None

    @property
    def pushes(self) -> bool:
        """Whether the message is stored to the memory of the peer."""
        return self.at is not None and self.at.rank == self.peer

    def __str__(self) -> str:
        return f">{self.peer}.{self.channel}{_place(self.at)}"


def _place(at: Span | None) -> str:
    return "" if at is None else f"@{at.rank}.{at}"


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
        """Chunks the step works on, from its first operand that is a place in memory; None when it has none."""
        for operand in self.srcs + self.dsts:
            place = operand if type(operand) is Span else operand.at  # type: ignore[union-attr]
            if place is not None:
                return place.count
        return None

    @property
    def moves(self) -> bool:
        """False for a step that only says, or learns, that a message is in place: it accesses no memory."""
        source, target = self.srcs[0], self.dsts[0]
        if type(target) is Send and target.at is not None and not target.pushes:
            return False
        return type(source) is not Receive or source.at is None or source.pulls

    def reads(self) -> tuple[Span, ...]:
        """The memory it reads, of its own rank or another."""
        return _touched(self.srcs) if self.moves else ()

    def writes(self) -> tuple[Span, ...]:
        """The memory it stores to, of its own rank or another."""
        return _touched(self.dsts) if self.moves else ()

    def __str__(self) -> str:
        """The step without waits: ``rrc <3.0 in[2] -> in[2]``."""
        return f"{self.opcode} {' '.join(map(str, self.srcs))} -> {' '.join(map(str, self.dsts))}"


def _touched(operands: Sequence[Source | Destination]) -> tuple[Span, ...]:
    places = (operand if isinstance(operand, Span) else operand.at for operand in operands)
    return tuple([place for place in places if place is not None])


class ThreadBlock(Struct, frozen=True, gc=False):
    """Steps in the order they run, and the connections they use: at most one of each in the paper's form.

    A connection is named here without the places of its messages.
    """

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
    where: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        blocks = sum(len(rank.thread_blocks) for rank in self.ranks)
        steps = sum(1 for _ in self.steps())
        return f"<Schedule {self.name!r}: {self.collective}, {blocks} thread blocks, {steps} steps>"

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def text(self) -> str:
        """What ``hocket show`` prints: ``hocket.parse_schedule`` makes an equal schedule of it."""
        from hocket.ir.text import print_schedule

        return print_schedule(self)

    def draw(self, path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None) -> None:
        """Write a picture of its steps over logical time, of all ranks or of some: .svg, .png or .pdf."""
        from hocket.formats.picture import draw

        draw(self, Path(path), ranks)

    def _repr_svg_(self) -> str:
        """The picture in a notebook."""
        from hocket.formats.picture import svg

        return svg(self)

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """All steps, as (rank, thread block, position, step)."""
        for r, rank in enumerate(self.ranks):
            for b, block in enumerate(rank.thread_blocks):
                for s, step in enumerate(block.steps):
                    yield r, b, s, step

    def in_place(self) -> bool:
        """Whether any message lies in place, so that the schedule needs memory that other ranks can reach."""
        return any(
            not isinstance(operand, Span) and operand.at is not None
            for _, _, _, step in self.steps()
            for operand in (*step.srcs, *step.dsts)
        )

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
    size = schedule.collective.size
    if len(schedule.ranks) != size:
        raise InvalidSchedule(f"{len(schedule.ranks)} ranks for a collective of {size}")
    if schedule.protocol not in PROTOCOLS:
        raise InvalidSchedule(f"there is no protocol {schedule.protocol!r}")
    if schedule.slots < 1:
        raise InvalidSchedule("a connection has at least one slot")
    form = _Form(schedule)
    for rank in range(size):
        form.check_rank(rank)
    form.check_connections()


_Messages = list[Span | None]
"""Where the messages at one end of a connection lie, in order."""

_Ends = dict[tuple[bool, int, int], tuple[int, _Messages]]
"""A rank's ends of connections, by whether it receives, peer and channel: the thread block, and the messages so far."""

_NO_END: tuple[int, _Messages] = (-1, [])


class _Form:
    """Checks ranks one by one, and then whether both ends of each connection agree."""

    def __init__(self, schedule: Schedule) -> None:
        collective = schedule.collective
        self._schedule = schedule
        self._sizes = buffer_sizes(collective, [rank.scratch for rank in schedule.ranks])
        aliases = (collective.alias(rank) for rank in range(collective.size))
        self._aliases = [None if alias is None else alias.buffer for alias in aliases]
        # By sender, receiver and channel.
        self._sent: dict[tuple[int, int, int], _Messages] = {}
        self._received: dict[tuple[int, int, int], _Messages] = {}

    def check_rank(self, rank: int) -> None:
        blocks = self._schedule.ranks[rank].thread_blocks
        ends = self._ends(rank)
        lengths = [len(block.steps) for block in blocks]
        own = {buffer: chunks for buffer, chunks in self._sizes[rank].items() if buffer != self._aliases[rank]}
        for b, block in enumerate(blocks):
            for s, step in enumerate(block.steps):
                wrong = self._wrong_step(step, rank, b, ends, own) or _wrong_wait(step, b, lengths)
                if wrong is not None:
                    raise InvalidSchedule(wrong, self._schedule.step_name(rank, b, s))

    def check_connections(self) -> None:
        for connection, messages in self._sent.items():
            _check_traffic(self._schedule, connection, messages, self._received.pop(connection, []))
        for connection, messages in self._received.items():
            _check_traffic(self._schedule, connection, [], messages)

    def _ends(self, rank: int) -> _Ends:
        """What the thread blocks of a rank say that they own."""
        owned: _Ends = {}
        for b, block in enumerate(self._schedule.ranks[rank].thread_blocks):
            ends: tuple[Receive | Send, ...] = (*block.receives, *block.sends)
            for end in ends:
                key = receives, peer, channel = type(end) is Receive, end.peer, end.channel
                if key in owned:
                    owner = owned[key][0]
                    if owner == b:
                        raise InvalidSchedule(f"rank {rank}, thread block {b}: connection {end} is named twice")
                    _conflict(self._schedule, rank, end, owner, b)
                if peer == rank or not 0 <= peer < len(self._sizes) or channel < 0 or end.at is not None:
                    raise InvalidSchedule(f"rank {rank}, thread block {b}: there is no connection {end}")
                messages: _Messages = []
                owned[key] = b, messages
                if receives:
                    self._received[peer, rank, channel] = messages
                else:
                    self._sent[rank, peer, channel] = messages
        return owned

    def _wrong_step(self, step: Step, rank: int, block: int, ends: _Ends, own: Mapping[BufferName, int]) -> str | None:
        """What is wrong with what a step does; its messages are noted in ``ends``. ``own``: sizes of its memory."""
        if not step.srcs or not step.dsts:
            return "a step without source or destination"
        counts: set[int] = set()
        in_place = False
        for operand in step.srcs + step.dsts:
            if isinstance(operand, Span):
                place = operand
                if place.rank != rank:
                    return "memory of another rank"
                if place.count == place.stride == 1 and 0 <= place.index < own.get(place.buffer, 0):
                    counts.add(1)
                    continue
            else:
                owner, messages = ends.get((type(operand) is Receive, operand.peer, operand.channel), _NO_END)
                if owner != block:
                    return f"{operand} is not a connection of its thread block"
                messages.append(operand.at)
                if operand.at is None:
                    continue
                place, in_place = operand.at, True
                if place.rank not in (rank, operand.peer) or place.buffer == "sc":
                    return f"the message of {operand} is in no input or output of its two ranks"
            if wrong := self._wrong_place(place):
                return wrong
            counts.add(place.count)
        if not counts:
            return "a step has no local operand to say how many chunks it works on"
        if len(counts) > 1:
            return "the spans of a step must be of one length"
        return (_wrong_in_place(step) if in_place else None) or _wrong_overlap(step, in_place)

    def _wrong_place(self, place: Span) -> str | None:
        if wrong := misplaced(place, self._sizes):
            return wrong
        if place.buffer == self._aliases[place.rank]:
            name = "in" if place.buffer == "out" else "out"
            return f"a step names {place}, which in-place is memory of {name!r}"
        return None


def _step_with(schedule: Schedule, rank: int, end: Send | Receive, number: int) -> StepName:
    """The step that moves a message, by its number, at one end of a connection."""
    places = (
        (b, s)
        for b, block in enumerate(schedule.ranks[rank].thread_blocks)
        for s, step in enumerate(block.steps)
        for operand in (*step.srcs, *step.dsts)
        if type(operand) is type(end) and (operand.peer, operand.channel) == (end.peer, end.channel)
    )
    return schedule.step_name(rank, *next(islice(places, number, None)))


def _check_traffic(schedule: Schedule, connection: tuple[int, int, int], sent: _Messages, received: _Messages) -> None:
    """Both ends agree about the messages, and all are of one kind."""
    sender, receiver, channel = connection
    if len(sent) != len(received):
        matched = min(len(sent), len(received))
        if len(sent) > matched:
            alone = _step_with(schedule, sender, Send(receiver, channel), matched)
        else:
            alone = _step_with(schedule, receiver, Receive(sender, channel), matched)
        raise UnmatchedTransfer(sender, receiver, channel, len(sent), len(received), alone)
    if sent != received:
        number = next(i for i, (one, other) in enumerate(zip(sent, received, strict=True)) if one != other)
        raise InvalidSchedule(
            f"message {number} of the connection from rank {sender} to rank {receiver} on channel {channel} is in one "
            "place for one end, in another for the other"
        )
    if len(sent) > 1 and len({None if at is None else at.rank for at in sent}) > 1:
        raise InvalidSchedule(
            f"the connection from rank {sender} to rank {receiver} on channel {channel} carries messages of several "
            "kinds: all are in slots, pulled, or pushed"
        )


def _wrong_in_place(step: Step) -> str | None:
    """What says that a message is in place does nothing else, and so does what learns it."""
    offers = any(type(target) is Send and target.at is not None and not target.pushes for target in step.dsts)
    if offers and any(type(d) is not Send or step.srcs != (d.at,) for d in step.dsts):
        return "a step that offers a place of its rank to be read does nothing else"
    learns = any(type(source) is Receive and source.at is not None and not source.pulls for source in step.srcs)
    if learns and (len(step.srcs) > 1 or step.dsts != tuple([s.at for s in step.srcs if type(s) is Receive])):
        return "a step that learns of a place of its rank that was stored to does nothing else"
    return None


def _wrong_overlap(step: Step, in_place: bool) -> str | None:
    """A step does one slot operation for each end, and is the same whichever of its chunks it does first."""
    if not in_place and len(step.srcs) == len(step.dsts) == 1 and type(step.srcs[0]) is not type(step.dsts[0]):
        return None
    for operands in (step.srcs, step.dsts):
        if len(operands) > 1:
            ends = [(operand.peer, operand.channel) for operand in operands if not isinstance(operand, Span)]
            if len(ends) > 1 and len(set(ends)) < len(ends):
                return "a step uses one end of a connection twice"
    if in_place:
        reads, writes = step.reads(), step.writes()
    else:
        reads, writes = (tuple([o for o in operands if isinstance(o, Span)]) for operands in (step.srcs, step.dsts))
    if len(writes) < 2 and (not reads or reads == writes):
        return None
    if _apart([*writes, *set(reads).difference(writes)]):
        return None
    written: dict[tuple[int, BufferName], list[Span]] = {}
    for target in writes:
        others = written.setdefault((target.rank, target.buffer), [])
        for other in others:
            if shares_chunk(target, other):
                return f"a step writes {target} and {other}, which overlap"
        others.append(target)
    for source in reads:
        for target in written.get((source.rank, source.buffer), ()):
            # Equal is fine, as in a reduce; and mostly they are one object.
            if source is not target and source != target and shares_chunk(source, target):
                return f"a step reads {source} and writes {target}, which overlap"
    return None


def _apart(spans: list[Span]) -> bool:
    """Whether each span ends before the next one of its buffer begins, as in what the compiler makes.

    Spans with a stride may also lie between each other's chunks: this does not tell them apart.
    """
    spans.sort(key=lambda span: (span.rank, span.buffer, span.index))
    return all(
        (one.rank, one.buffer) != (other.rank, other.buffer) or one.indices()[-1] < other.index
        for one, other in pairwise(spans)
    )


def _wrong_wait(step: Step, block: int, lengths: Sequence[int]) -> str | None:
    """``lengths``: steps of each thread block of the rank."""
    for wait in step.waits:
        other = wait.thread_block
        if other == block or not 0 <= other < len(lengths) or not 0 <= wait.step < lengths[other]:
            return f"a step waits for {other}.{wait.step}, no step of another thread block"
    return None


def _conflict(schedule: Schedule, rank: int, end: Receive | Send, first: int, second: int) -> None:
    def place(thread_block: int) -> Where | None:
        steps = schedule.ranks[rank].thread_blocks[thread_block].steps
        used = (step.where[-1] for step in steps if any(map(is_end, (*step.srcs, *step.dsts))) and step.where)
        return next(used, None)

    def is_end(operand: Source | Destination) -> bool:
        return not isinstance(operand, Span) and structs.replace(operand, at=None) == end

    direction = "receive from" if type(end) is Receive else "send to"
    raise ChannelConflict(rank, direction, end.peer, end.channel, (first, second), place(first), place(second))
