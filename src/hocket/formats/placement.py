"""The same program with its input and output in one memory, or apart: calls ask a runtime for either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from hocket.ir.chunk_dag import NO_HINTS, ChunkDag, ChunkDagBuilder, ChunkNode, Kind, Span, shares_chunk


def single_operations(dag: ChunkDag) -> ChunkDag:
    """The same program with every operation cut into operations on one chunk."""
    builder = ChunkDagBuilder(dag.name, dag.collective, dag.protocol)
    for _, node in dag.operations():
        for part in _cut(node):
            assert part.src is not None
            builder.add(part.kind, part.src, part.dst, part.hints, part.where)
    return replace(builder.build(), refinement=dag.refinement)


def _cut(node: ChunkNode) -> list[ChunkNode]:
    assert node.src is not None
    pairs = zip(_chunks(node.src), _chunks(node.dst), strict=True)
    return [structs.replace(node, src=src, dst=dst) for src, dst in pairs]


def _chunks(span: Span) -> list[Span]:
    return [Span(span.rank, span.buffer, index) for index in span.indices()]


# ---------------------------------------------------------------------------------------------------------------


def apart(dag: ChunkDag) -> ChunkDag:
    """The out-of-place form of an in-place program; it never writes to an input.

    What is written where the input lies goes to the output, or to scratch where the output has no such chunk. What is
    added to an input chunk is added to a copy of it; what only reads it still does.
    """
    return _Apart(dag).run()


class _Apart:
    def __init__(self, dag: ChunkDag) -> None:
        self._dag = dag
        self._old = dag.collective
        self._builder = ChunkDagBuilder(dag.name, dag.collective.placed(False), dag.protocol)
        self._written: set[Span] = set()

    def run(self) -> ChunkDag:
        for _, node in self._dag.operations():
            assert node.src is not None
            if all(_moves_as_one(span, place) for span in (node.src, node.dst) for place in (self._holds, self._keeps)):
                self._operation(node)
            else:
                for part in _cut(node):
                    self._operation(part)
        for rank in range(self._old.size):
            buffer, offset = self._old.place(rank, "out")
            for index in range(self._old.outputs(rank)):
                result = Span(rank, buffer, offset + index)
                if self._holds(result) != self._keeps(result):
                    self._builder.add(Kind.COPY, self._holds(result), self._keeps(result), NO_HINTS, None)
        return self._builder.build()

    def _operation(self, node: ChunkNode) -> None:
        assert node.src is not None
        held, kept = self._holds(node.dst), self._keeps(node.dst)
        if node.kind is Kind.REDUCE and held != kept:
            self._builder.add(Kind.COPY, held, kept, node.hints, node.where)
        self._builder.add(node.kind, self._holds(node.src), kept, node.hints, node.where)
        self._written.update(_chunks(node.dst))

    def _holds(self, span: Span) -> Span:
        """Where the value of a place lies now: with the input until the place is written."""
        buffer, offset = self._old.place(span.rank, "in")
        index = span.index - offset
        begins = span.buffer == buffer and 0 <= index < self._old.inputs(span.rank)
        if begins and _chunks(span)[0] not in self._written:
            return structs.replace(span, buffer="in", index=index)
        return self._keeps(span)

    def _keeps(self, span: Span) -> Span:
        """Where what is written to a place is kept."""
        if span.buffer == "sc":
            return span
        buffer, offset = self._old.place(span.rank, "out")
        index = span.index - offset
        if span.buffer == buffer and 0 <= index < self._old.outputs(span.rank):
            return structs.replace(span, buffer="out", index=index)
        return structs.replace(span, buffer="sc", index=self._dag.scratch[span.rank] + span.index)


def _moves_as_one(span: Span, place: Callable[[Span], Span]) -> bool:
    """Whether all chunks of a span go where the span goes."""
    return list(map(place, _chunks(span))) == _chunks(place(span))


# ---------------------------------------------------------------------------------------------------------------


def together(dag: ChunkDag, *, copied: bool) -> ChunkDag | None:
    """The in-place form of an out-of-place program: with a copy of the input to read from if ``copied``, which always
    does, or without, which does if nothing is overwritten too early. None if an operation would overwrite its source.
    """
    builder = ChunkDagBuilder(dag.name, dag.collective.placed(True), dag.protocol)
    shared = [copied and builder.collective.alias(rank) is not None for rank in range(dag.collective.size)]
    for rank, moves in enumerate(shared):
        for index in range(dag.collective.inputs(rank) if moves else 0):
            original = builder.physical(Span(rank, "in", index))
            builder.add(Kind.COPY, original, Span(rank, "sc", dag.scratch[rank] + index), NO_HINTS, None)

    def place(span: Span) -> Span:
        if span.buffer == "in" and shared[span.rank]:
            return structs.replace(span, buffer="sc", index=dag.scratch[span.rank] + span.index)
        return builder.physical(span)

    for _, node in dag.operations():
        assert node.src is not None
        src, dst = place(node.src), place(node.dst)
        if src == dst and node.kind is Kind.COPY:
            continue
        if shares_chunk(src, dst):
            return None
        builder.add(node.kind, src, dst, node.hints, node.where)
    return builder.build()
