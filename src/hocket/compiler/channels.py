"""Channel assignment (paper section 5.2)."""

from __future__ import annotations

from dataclasses import replace

from hocket.compiler.fuse import is_fused
from hocket.compiler.rebuild import Rebuild
from hocket.ir.instr_dag import InstrDag

MAX_BASES = 32
"""Channels tried for a chain of fused instructions before it is cut; MSCCL and RCCL have as many."""


def assign_channels(dag: InstrDag) -> InstrDag:
    """Directives first, then the lowest channel that every rank of a fused chain can give it."""
    chain_of: dict[int, list[int]] = {}
    chains: list[list[int]] = []
    for i, instr in enumerate(dag.instrs):
        if is_fused(instr):
            chain = chain_of.get(instr.arrivals[0])
            if chain is None:
                chain = []
                chains.append(chain)
            chain.append(i)
            for edge in (*instr.arrivals, *instr.departures):
                chain_of[edge] = chain
    base = [edge.base for edge in dag.edges]
    onward: dict[tuple[int, int, int], int] = {}
    backward: dict[tuple[int, int, int], int] = {}

    def ends(fused: int) -> tuple[int, int, int]:
        instr = dag.instrs[fused]
        return dag.edges[instr.arrivals[0]].src, instr.rank, dag.edges[instr.departures[0]].dst

    def fits(fused: int, channel: int) -> bool:
        src, rank, dst = ends(fused)
        return onward.get((rank, channel, src), dst) == dst and backward.get((rank, channel, dst), src) == src

    def claim(fused: int, channel: int, directed: int) -> None:
        src, rank, dst = ends(fused)
        onward[rank, channel, src] = dst
        backward[rank, channel, dst] = src
        for edge in (*dag.instrs[fused].arrivals, *dag.instrs[fused].departures):
            base[edge] = directed

    cut: set[int] = set()
    directed = [next((b for i in chain for b in _bases(dag, i) if b is not None), None) for chain in chains]
    for chain, wanted in sorted(zip(chains, directed, strict=True), key=lambda pair: pair[1] is None):
        instance = dag.edges[dag.instrs[chain[0]].arrivals[0]].instance
        choices = range(MAX_BASES) if wanted is None else (wanted,)
        chosen = next((b for b in choices if all(fits(i, b * dag.refinement + instance) for i in chain)), choices[0])
        for i in chain:
            channel = chosen * dag.refinement + instance
            if fits(i, channel):
                claim(i, channel, chosen)
            else:
                cut.add(i)
    rebuild = Rebuild(dag)
    for i in range(len(dag.instrs)):
        if i in cut:
            rebuild.place_receive(i)
            rebuild.place_send(i)
        else:
            rebuild.place(i)
    edges = tuple(
        edge if b is not None and edge.base == b else replace(edge, base=b if b is not None else 0)
        for edge, b in zip(dag.edges, base, strict=True)
    )
    return replace(rebuild.build() if cut else dag, edges=edges)


def _bases(dag: InstrDag, fused: int) -> list[int | None]:
    instr = dag.instrs[fused]
    return [dag.edges[edge].base for edge in (*instr.arrivals, *instr.departures)]
