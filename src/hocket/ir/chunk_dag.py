"""Chunk DAG: what the user said (paper section 4.1).

Nodes are the input of each rank, then copies and reduces in the order of the program. Edges are true dependencies (the
value moves along them) and false ones (a place is reused). Places are *physical*: where a collective is in-place, both
names of a chunk have been turned into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Literal, TypeVar, get_args

from msgspec import Struct

from hocket.collectives import MOST_CHUNKS, BufferName, Collective
from hocket.errors import InvalidSchedule, Where

V = TypeVar("V")


class Span(Struct, frozen=True, gc=False):
    """``count`` chunks of a buffer of a rank, ``stride`` apart (1: contiguous)."""

    rank: int
    buffer: BufferName
    index: int
    count: int = 1
    stride: int = 1

    def indices(self) -> Sequence[int]:
        if self.count == 1:
            return (self.index,)
        return range(self.index, self.index + self.count * self.stride, self.stride)

    def get(self, table: list[V]) -> list[V]:
        """The entries of its chunks in a table of the buffer, as far as that goes."""
        if self.count == 1:
            return [table[self.index]] if self.index < len(table) else []
        return table[self.index : self.index + self.count * self.stride : self.stride]

    def set(self, table: list[V], values: Sequence[V]) -> None:
        """Enter ``values``, one a chunk, in a table of the buffer."""
        if self.count == 1:
            table[self.index] = values[0]
        else:
            table[self.index : self.index + self.count * self.stride : self.stride] = values

    def __str__(self) -> str:
        more = "" if self.count == 1 else f":+{self.count}" + ("" if self.stride == 1 else f"x{self.stride}")
        return f"{self.buffer}[{self.index}{more}]"


class Kind(Enum):
    INPUT = "input"
    COPY = "copy"
    REDUCE = "reduce"


_REDUCE = Kind.REDUCE  # an attribute of an Enum takes longer than a comparison


Storage = Literal["fifo", "pull", "push"]
"""Where a message lies between two ranks: in a slot, in the sender's memory, in the receiver's (``ir/schedule.py``)."""

STORAGES: tuple[Storage, ...] = get_args(Storage)


@dataclass(frozen=True, slots=True)
class Hints:
    """What the user asked of one operation: ``channel=`` and ``parallelize`` (paper section 5.1), and ``storage=``.

    ``instance`` of ``instances`` parallel instances; after replication each operation is one instance.
    """

    channel: int | None = None
    instances: int = 1
    instance: int | None = None
    storage: Storage | None = None


NO_HINTS = Hints()


class ChunkNode(Struct, frozen=True, eq=False, gc=False):
    """One node. ``src`` is None for an input. A reduce reads ``src`` and ``dst`` and writes ``dst``.

    ``true`` and ``false`` are the nodes it depends on, in ascending order, each before this one.
    """

    kind: Kind
    src: Span | None
    dst: Span
    true: tuple[int, ...]
    false: tuple[int, ...]
    hints: Hints = NO_HINTS
    where: Where | None = None

    def __eq__(self, other: object) -> bool:
        return type(other) is ChunkNode and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        """All but where."""
        return self.kind, self.src, self.dst, self.true, self.false, self.hints


@dataclass(frozen=True, slots=True)
class ChunkDag:
    """``nodes[:ranks]`` are the inputs, in rank order, some perhaps of no chunks. ``scratch[r]`` is the number of
    scratch chunks of rank r.

    ``refinement`` is the number of chunks that replication has cut each chunk of the user into.
    """

    name: str
    collective: Collective
    protocol: str
    nodes: tuple[ChunkNode, ...]
    scratch: tuple[int, ...]
    refinement: int = 1

    def operations(self) -> Iterator[tuple[int, ChunkNode]]:
        inputs = self.collective.size
        return enumerate(islice(self.nodes, inputs, None), inputs)


class ChunkDagBuilder:
    """Adds operations one by one and finds what each depends on: the one place where dependencies are computed."""

    def __init__(self, name: str, collective: Collective, protocol: str) -> None:
        self.name = name
        self.collective = collective
        self.protocol = protocol
        self.nodes: list[ChunkNode] = []
        self._writer: list[dict[BufferName, list[int | None]]] = []
        self._readers: list[dict[BufferName, list[list[int] | None]]] = []
        self._alias = [collective.alias(rank) for rank in range(collective.size)]
        self._sizes: list[dict[BufferName, int]] = []
        for rank in range(collective.size):
            inputs, outputs = collective.inputs(rank), collective.outputs(rank)
            self._sizes.append({"in": inputs, "out": outputs})
            span = self.physical(Span(rank, "in", 0, inputs))
            writer: dict[BufferName, list[int | None]] = {"in": [None] * inputs, "out": [None] * outputs, "sc": []}
            writer[span.buffer][span.index : span.index + inputs] = [rank] * inputs
            self._writer.append(writer)
            self._readers.append({"in": [None] * inputs, "out": [None] * outputs, "sc": []})
            self.nodes.append(ChunkNode(Kind.INPUT, None, span, (), ()))

    def size(self, rank: int, buffer: BufferName) -> int | None:
        """Chunks of a buffer under the user's name for it; None for scratch, which grows as it is used."""
        return self._sizes[rank].get(buffer)

    def physical(self, span: Span) -> Span:
        """The span under the one name that its memory has when buffers are aliased."""
        alias = self._alias[span.rank]
        if alias is None or alias.buffer != span.buffer:
            return span
        return Span(span.rank, alias.target, alias.offset + span.index, span.count, span.stride)

    def unwritten(self, span: Span) -> int | None:
        """The first chunk of a physical span, counted within it, that nothing has written; None if all are written."""
        writers = span.get(self._writer[span.rank][span.buffer])
        if len(writers) == span.count and None not in writers:
            return None
        return writers.index(None) if None in writers else len(writers)

    def overwritten(self, span: Span, since: int) -> tuple[int, int] | None:
        """The first chunk of a written physical span, counted within it, that node ``since`` or a later one wrote last,
        and that node."""
        table: list[int] = self._writer[span.rank][span.buffer]  # type: ignore[assignment]
        if span.count == 1 and table[span.index] < since:
            return None
        writers = span.get(table)
        return next(((i, writer) for i, writer in enumerate(writers) if writer >= since), None)

    def add(self, kind: Kind, src: Span, dst: Span, hints: Hints, where: Where | None) -> int:
        """Append an operation on physical spans, of which what is read was written, and return its number."""
        me = len(self.nodes)
        if dst.buffer == "sc":
            self._grow(dst)
        writer, readers = self._writer[src.rank][src.buffer], self._readers[src.rank][src.buffer]
        true = src.get(writer)
        for i in src.indices() if src.count > 1 else (src.index,):
            reading = readers[i]
            if reading is None:
                readers[i] = [me]
            else:
                reading.append(me)
        writer, readers = self._writer[dst.rank][dst.buffer], self._readers[dst.rank][dst.buffer]
        false: list[int | None] = []
        overwritten = true if kind is _REDUCE else false
        for i in dst.indices() if dst.count > 1 else (dst.index,):
            overwritten.append(writer[i])
            writer[i] = me
            reading = readers[i]
            if reading is not None:
                false += reading
                readers[i] = None
        reused = _ascending(set(false).difference(true, (None,))) if false else ()
        self.nodes.append(ChunkNode(kind, src, dst, _ascending(set(true)), reused, hints, where))
        return me

    def _grow(self, span: Span) -> None:
        more = span.index + (span.count - 1) * span.stride + 1 - len(self._writer[span.rank]["sc"])
        if more > 0:
            self._writer[span.rank]["sc"] += [None] * more
            self._readers[span.rank]["sc"] += [None] * more

    def build(self) -> ChunkDag:
        scratch = tuple(len(writer["sc"]) for writer in self._writer)
        return ChunkDag(self.name, self.collective, self.protocol, tuple(self.nodes), scratch)


def _ascending(nodes: set[int | None]) -> tuple[int, ...]:
    """Of nodes among which None is not."""
    return tuple(sorted(nodes)) if len(nodes) > 1 else tuple(nodes)  # type: ignore[arg-type]


def verify(dag: ChunkDag) -> None:
    """Raise InvalidSchedule if the DAG breaks a rule of its own form."""
    ranks = dag.collective.size
    sizes = buffer_sizes(dag.collective, dag.scratch)
    for i, node in enumerate(dag.nodes):
        if (node.kind is Kind.INPUT) != (i < ranks) or (node.src is None) != (i < ranks):
            raise InvalidSchedule(f"node {i}: the first {ranks} nodes, and no others, are inputs")
        if any(not 0 <= d < i for d in (*node.true, *node.false)):
            raise InvalidSchedule(f"node {i} depends on a node that is not before it")
        for span in (node.src, node.dst):
            empty = node.kind is Kind.INPUT and not dag.collective.inputs(node.dst.rank)
            if span is not None and not empty and (wrong := misplaced(span, sizes)):
                raise InvalidSchedule(f"node {i}: {wrong}")
        if node.src is not None and node.src.count != node.dst.count:
            raise InvalidSchedule(f"node {i} moves {node.src.count} chunks into {node.dst.count}")


Sizes = tuple[dict[BufferName, int], ...]
"""For each rank the number of chunks of each physical buffer."""


def buffer_sizes(collective: Collective, scratch: Sequence[int]) -> Sizes:
    """The sizes of all buffers; ``scratch`` has one entry a rank. Raises InvalidSchedule if they are absurd."""
    sizes: Sizes = tuple(
        {"in": collective.inputs(rank), "out": collective.outputs(rank), "sc": scratch[rank]}
        for rank in range(collective.size)
    )
    total = sum(sum(buffers.values()) for buffers in sizes)
    if total > MOST_CHUNKS:
        raise InvalidSchedule(f"its buffers have more than {MOST_CHUNKS} chunks in all")
    return sizes


def misplaced(span: Span, sizes: Sizes) -> str | None:
    """What is wrong with a physical span; None if it lies within its buffer."""
    size = sizes[span.rank].get(span.buffer) if 0 <= span.rank < len(sizes) else None
    if size is None:
        return f"there is no {span.buffer!r} on rank {span.rank}"
    if span.count < 1 or span.stride < 1 or not 0 <= span.index <= size - 1 - (span.count - 1) * span.stride:
        return f"{span} is outside the {size} chunks of rank {span.rank}"
    return None


def shares_chunk(span: Span, other: object) -> bool:
    """Whether another operand is a span that has a chunk in common with this one."""
    if type(other) is not Span or other.rank != span.rank or other.buffer != span.buffer:
        return False
    if span.count == other.count == 1:
        return span.index == other.index
    one, two = span.indices(), other.indices()
    if one[-1] < two[0] or two[-1] < one[0]:
        return False
    shorter, longer = (one, two) if len(one) <= len(two) else (two, one)
    return any(index in longer for index in shorter)
