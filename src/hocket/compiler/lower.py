"""Lowering: chunk operations become instructions (paper section 4.2).

A remote copy becomes send and recv, a remote reduce send and rrc, a local operation one instruction. An operation has
at most one instruction on a rank, so a dependency between operations is one between their instructions on that rank.
"""

from __future__ import annotations

from hocket.ir.chunk_dag import ChunkDag, ChunkNode, Kind
from hocket.ir.instr_dag import Arrival, Departure, Edge, Instr, InstrDag


def lower(dag: ChunkDag) -> InstrDag:
    """Expand each operation; communication edges join the two ends of a transfer, processing edges order a rank."""
    instrs: list[Instr] = []
    edges: list[Edge] = []
    # The instructions that read and that write for each node; inputs have neither.
    reader: list[int] = [0] * len(dag.nodes)
    writer: list[int] = [0] * len(dag.nodes)
    nodes = dag.nodes
    inputs = dag.collective.size

    def on(rank: int, node: int) -> int:
        return writer[node] if nodes[node].dst.rank == rank else reader[node]

    def producers(node: ChunkNode, rank: int) -> set[int]:
        return {writer[d] for d in node.true if d >= inputs and nodes[d].dst.rank == rank}

    for number, node in dag.operations():
        src, dst, here = node.src, node.dst, len(instrs)
        assert src is not None
        where = () if node.where is None else (node.where,)
        before = {on(dst.rank, d) for d in node.false if d >= inputs}
        before |= producers(node, dst.rank)
        if src.rank == dst.rank:
            srcs = (src,) if node.kind is Kind.COPY else (dst, src)
            instrs.append(Instr(dst.rank, srcs, (dst,), tuple(sorted(before)), None, where))
            reader[number] = writer[number] = here
            continue
        edge = len(edges)
        hints = node.hints
        edges.append(Edge(src.rank, dst.rank, src.count, hints.channel, hints.instance or 0, node.where))
        needed = tuple(sorted(producers(node, src.rank)))
        instrs.append(Instr(src.rank, (src,), (Departure(edge),), needed, None, where))
        received = (Arrival(edge),) if node.kind is Kind.COPY else (Arrival(edge), dst)
        instrs.append(Instr(dst.rank, received, (dst,), tuple(sorted(before)), None, where))
        reader[number], writer[number] = here, here + 1
    return InstrDag(dag.name, dag.collective, dag.protocol, dag.refinement, tuple(instrs), tuple(edges), dag.scratch)
