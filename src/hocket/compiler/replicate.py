"""Replication: `parallelize(n)` and instances (paper section 5.1, "Chunk Parallelization").

Every chunk becomes L chunks, L being the least common multiple of all factors; instance j of n of an operation works on
the j-th n-th of each of its chunks. Where factors differ and counts are more than one, that share is neither one span
nor a strided one, and the instance becomes one operation for each chunk.

A refined program is just a longer program, so dependencies are found anew by the same code; nothing after this pass
knows of instances, but for the channels, which two instances never share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from hocket.ir.chunk_dag import ChunkDag, ChunkDagBuilder, Span, buffer_sizes


def replicate(dag: ChunkDag, instances: int) -> ChunkDag:
    """Cut chunks so that each instance of an operation works on chunks of its own."""
    finer = lcm(instances, *(instances * node.hints.instances for _, node in dag.operations()))
    if finer == 1:
        return dag
    buffer_sizes(dag.collective.refined(finer), [chunks * finer for chunks in dag.scratch])  # refuses absurd ones
    builder = ChunkDagBuilder(dag.name, dag.collective.refined(finer), dag.protocol)
    for _, node in dag.operations():
        assert node.src is not None
        factor = node.hints.instances * instances
        for j in range(factor):
            hints = replace(node.hints, instances=factor, instance=j)
            parts = zip(_part(node.src, finer, factor, j), _part(node.dst, finer, factor, j), strict=True)
            for src, dst in parts:
                builder.add(node.kind, src, dst, hints, node.where)
    return replace(builder.build(), refinement=finer)


def _part(span: Span, finer: int, factor: int, instance: int) -> Iterator[Span]:
    """The share of an instance in a span: one span, or one a chunk where neither form of span can hold it."""
    width = finer // factor
    start = span.index * finer + instance * width
    if factor == 1:
        yield Span(span.rank, span.buffer, start, span.count * finer)
    elif span.count == 1:
        yield Span(span.rank, span.buffer, start, width)
    elif width == 1:
        yield Span(span.rank, span.buffer, start, span.count, finer)
    else:
        for i in range(span.count):
            yield Span(span.rank, span.buffer, start + i * finer, width)
