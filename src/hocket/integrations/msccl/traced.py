"""A collective that promises what a traced program does: for programs that only a check of the user's has judged."""

from __future__ import annotations

from hocket.collectives import BufferName, Contribution, Custom
from hocket.errors import Unsupported, Where
from hocket.ir.chunk_dag import ChunkDag, Kind


def as_traced(dag: ChunkDag) -> Custom:
    """The custom collective of a Chunk DAG, with the end of the program for its postcondition.

    Raises Unsupported if an output chunk counts an input chunk twice.
    """
    collective = dag.collective
    assert isinstance(collective, Custom)
    assert dag.refinement == 1
    held = _held(dag)

    def post(rank: int, index: int) -> frozenset[Contribution] | None:
        buffer, offset = collective.place(rank, "out")
        terms = held.get((rank, buffer, offset + index))
        if terms is None or isinstance(terms, frozenset):
            return terms
        raise Unsupported("an output that counts a chunk twice, under a check() of its own", terms)

    return Custom(
        collective.ranks,
        inputs=collective.input_chunks,
        outputs=collective.output_chunks,
        post=post,
        inplace=collective.inplace,
    )


def _held(dag: ChunkDag) -> dict[tuple[int, BufferName, int], frozenset[Contribution] | Where]:
    """What each place that holds something adds up at the end, or where one chunk was added up twice."""
    held: dict[tuple[int, BufferName, int], frozenset[Contribution] | Where] = {}
    for rank in range(dag.collective.size):
        buffer, offset = dag.collective.place(rank, "in")
        for index in range(dag.collective.inputs(rank)):
            held[rank, buffer, offset + index] = frozenset([(rank, index)])
    for _, node in dag.operations():
        assert node.src is not None
        assert node.where is not None
        src, dst = node.src, node.dst
        for read, written in zip(src.indices(), dst.indices(), strict=True):
            value = held[src.rank, src.buffer, read]
            if node.kind is Kind.REDUCE and isinstance(value, frozenset):
                before = held[dst.rank, dst.buffer, written]
                if not isinstance(before, frozenset):
                    value = before
                else:
                    value = node.where if before & value else before | value
            held[dst.rank, dst.buffer, written] = value
    return held
