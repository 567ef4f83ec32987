"""Lowering: chunk operations become instructions (paper section 4.2).

A remote copy becomes send and recv, a remote reduce send and rrc, a local operation one instruction. An operation has
at most one instruction on a rank, so a dependency between operations is one between their instructions on that rank.
"""

from __future__ import annotations

from hocket.errors import Where
from hocket.ir.chunk_dag import ChunkDag, Kind
from hocket.ir.instr_dag import Arrival, Departure, Edge, Instr, InstrDag


def lower(dag: ChunkDag) -> InstrDag:
    """Expand each operation; communication edges join the two ends of a transfer, processing edges order a rank."""
    instrs: list[Instr] = []
    after: list[tuple[int, ...]] = []
    edges: list[Edge] = []
    nodes, inputs, copy = dag.nodes, dag.collective.size, Kind.COPY
    # The instructions that read and that write for each node, and the rank that is written; inputs have no instruction.
    reader: list[int] = [0] * len(nodes)
    writer: list[int] = [0] * len(nodes)
    home = [node.dst.rank for node in nodes]

    for number, node in dag.operations():
        src, dst, here = node.src, node.dst, len(instrs)
        assert src is not None
        rank = dst.rank
        where: tuple[Where, ...] = () if node.where is None else (node.where,)
        before: list[int] = []
        needed: list[int] = []
        for d in node.true:
            if d >= inputs:
                (before if home[d] == rank else needed).append(writer[d])
        for d in node.false:
            if d >= inputs:
                before.append(writer[d] if home[d] == rank else reader[d])
        if src.rank == rank:
            instrs.append(Instr(rank, (src,) if node.kind is copy else (dst, src), (dst,), where))
            after.append(_ascending(before))
            reader[number] = writer[number] = here
            continue
        edge = len(edges)
        hints = node.hints
        edges.append(Edge(src.rank, rank, src.count, hints.channel, hints.instance or 0, node.where, hints.storage))
        instrs.append(Instr(src.rank, (src,), (Departure(edge),), where))
        after.append(_ascending(needed))
        arrival = Arrival(edge)
        instrs.append(Instr(rank, (arrival,) if node.kind is copy else (arrival, dst), (dst,), where))
        after.append(_ascending(before))
        reader[number], writer[number] = here, here + 1
    return InstrDag(
        dag.name, dag.collective, dag.protocol, dag.refinement, tuple(instrs), tuple(after), tuple(edges), dag.scratch
    )


def _ascending(numbers: list[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers))) if len(numbers) > 1 else tuple(numbers)
