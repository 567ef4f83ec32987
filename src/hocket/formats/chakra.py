"""Execution traces of MLCommons Chakra, as ASTRA-sim reads them for a custom collective: a file for each rank.

A file is messages of protobuf, each after its length: GlobalMetadata, then a Node for each send, receive and
computation (mlcommons/chakra, schema/protobuf/et_def.proto). A trace has sizes: it is of one call. It knows neither
tiles nor slots: every message is whole, and a send waits for no slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hocket.errors import InvalidArgument, caller
from hocket.ir.schedule import Receive, Schedule, Send, Step, Wait

COMPUTE, SEND, RECEIVE = 4, 5, 6
"""COMP_NODE, COMM_SEND_NODE and COMM_RECV_NODE of NodeType."""

_SCHEMA = "1.0.2-chakra.0.0.4"
"""What converters of ASTRA-sim's own (astra-sim/collectiveapi) say of the files that it reads."""


def traces(schedule: Schedule, size: int) -> Iterator[bytes]:
    """The file of each rank, in order, for a call of ``size`` bytes in a rank's larger buffer.

    Chunks are even shares of it; a message is rounded up to a whole byte. Raises InvalidArgument for no bytes.
    """
    if size < 1:
        raise InvalidArgument(f"a trace is of a call of at least a byte, not {size}", caller())
    collective = schedule.collective
    larger = max(max(collective.inputs(r), collective.outputs(r)) for r in range(collective.size)) or 1
    sends = (send for part in schedule.ranks for block in part.thread_blocks for send in block.sends)
    channels = 1 + max((send.channel for send in sends), default=0)
    about = (("schema", _SCHEMA), ("schedule", schedule.name), ("collective", str(collective)))
    head = _text(1, "0.0.4") + b"".join(_text(2, _attribute(name, 29, value)) for name, value in about)
    for rank in range(collective.size):
        nodes = _Nodes(schedule, rank, size, larger, channels).all()
        yield b"".join(_varint(len(message)) + message for message in (head, *nodes))


class _Nodes:
    """Those of one rank, numbered thread block by thread block."""

    def __init__(self, schedule: Schedule, rank: int, size: int, larger: int, channels: int) -> None:
        self._rank = rank
        self._size, self._larger, self._channels = size, larger, channels
        self._blocks = [block.steps for block in schedule.ranks[rank].thread_blocks]
        self._number = 0
        self._moved: Counter[Receive | Send] = Counter()

    def all(self) -> Iterator[bytes]:
        """At least one: ASTRA-sim ends with a rank whose trace has none."""
        last: dict[Wait, list[int]] = {}
        number = 0
        for b, steps in enumerate(self._blocks):
            for s, step in enumerate(steps):
                stages = [len(stage) for stage in _stages(step) if stage]
                number += sum(stages)
                last[Wait(b, s)] = list(range(number - stages[-1], number))
        for b, steps in enumerate(self._blocks):
            for s, step in enumerate(steps):
                before = [*step.waits, *([Wait(b, s - 1)] if s else [])]
                needed = sorted({node for name in before for node in last[name]})
                yield from self._step(f"{b}.{s} {step.opcode}", step, needed)
        if not number:
            yield self._node("nothing", COMPUTE, [])

    def _step(self, name: str, step: Step, needed: list[int]) -> Iterator[bytes]:
        """What it receives, then what it computes, then what it sends: each stage needs all of the one before."""
        for stage in filter(None, _stages(step)):
            first = self._number
            for end in stage:
                if end is None:
                    yield self._node(name, COMPUTE, needed)
                else:
                    yield self._message(name, end, step.count or 0, needed)
            needed = list(range(first, self._number))

    def _message(self, name: str, end: Receive | Send, chunks: int, needed: list[int]) -> bytes:
        """A tag tells a message from all others between the two ranks: its channel and its number there."""
        connection = type(end)(end.peer, end.channel)
        tag = end.channel + self._channels * self._moved[connection]
        self._moved[connection] += 1
        sends = isinstance(end, Send)
        source, target = (self._rank, end.peer) if sends else (end.peer, self._rank)
        size = -(-self._size * chunks // self._larger)
        attributes = (("comm_size", 9, size), ("comm_src", 7, source), ("comm_dst", 7, target), ("comm_tag", 7, tag))
        return self._node(name, SEND if sends else RECEIVE, needed, attributes)

    def _node(
        self, name: str, kind: int, needed: Iterable[int], attributes: Iterable[tuple[str, int, int]] = ()
    ) -> bytes:
        number = self._number
        self._number += 1
        # What it needs are data_deps, whichever its reason: some readers know no ctrl_deps.
        parts = [_whole(1, number), _text(2, name), _whole(3, kind), _text(5, b"".join(map(_varint, needed)))]
        parts += [_text(10, _attribute(*attribute)) for attribute in (("is_cpu_op", 27, 0), *attributes)]
        return b"".join(parts)


def _stages(step: Step) -> tuple[list[Receive | Send | None], ...]:
    """Ends of connections that receive, None if it computes or copies, ends that send."""
    receives = [source for source in step.srcs if isinstance(source, Receive)]
    sends = [target for target in step.dsts if isinstance(target, Send)]
    works = len(step.srcs) > 1 or not (receives or sends)
    return [*receives], [None] * works, [*sends]


# ---------------------------------------------------------------------------------------------------------------
# Protobuf's wire format


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    """Also of a message within a message, and of a list of numbers."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _attribute(name: str, field: int, value: str | int) -> bytes:
    """An AttributeProto; ``field`` says which of its values: 7 int32, 9 int64, 27 bool, 29 string."""
    return _text(1, name) + (_text(field, value) if isinstance(value, str) else _whole(field, value))
