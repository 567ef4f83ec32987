"""Channel assignment (paper section 5.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hocket.compiler.rebuild import Rebuild
from hocket.ir.instr_dag import Edge, InstrDag, ends

MAX_BASES = 32
"""Channels tried for a chain of fused instructions before it is cut; MSCCL and RCCL have as many."""


class _Hop(NamedTuple):
    """A fused instruction, the edges it joins, and the ranks it takes its value from, runs on, and passes it to."""

    instr: int
    arrival: int
    departure: int
    src: int
    rank: int
    dst: int


def assign_channels(dag: InstrDag) -> InstrDag:
    """Directives first, then the lowest channel that every rank of a fused chain can give it."""
    edges = dag.edges
    base = [edge.base for edge in edges]
    chains = _chains(dag)
    onward: dict[tuple[int, int, int], int] = {}
    backward: dict[tuple[int, int, int], int] = {}
    taken: set[tuple[int, int, int, int]] = set()  # channel, src, rank and dst that are in both

    def fits(hop: _Hop, channel: int) -> bool:
        _, _, _, src, rank, dst = hop
        return (channel, src, rank, dst) in taken or (
            onward.get((rank, channel, src), dst) == dst and backward.get((rank, channel, dst), src) == src
        )

    cut: set[int] = set()
    directed = [
        next((b for hop in chain for b in (base[hop.arrival], base[hop.departure]) if b is not None), None)
        for chain in chains
    ]
    for chain, wanted in sorted(zip(chains, directed, strict=True), key=lambda pair: pair[1] is None):
        instance = edges[chain[0].arrival].instance
        choices = range(MAX_BASES) if wanted is None else (wanted,)
        chosen = next(
            (b for b in choices if all(fits(hop, b * dag.refinement + instance) for hop in chain)), choices[0]
        )
        channel = chosen * dag.refinement + instance
        for hop in chain:
            if fits(hop, channel):
                _, arrival, departure, src, rank, dst = hop
                if (channel, src, rank, dst) not in taken:
                    taken.add((channel, src, rank, dst))
                    onward[rank, channel, src] = dst
                    backward[rank, channel, dst] = src
                base[arrival] = base[departure] = chosen
            else:
                cut.add(hop.instr)
    assigned = tuple(
        edge
        if edge.base is not None and edge.base == b
        else Edge(edge.src, edge.dst, edge.count, b or 0, edge.instance, edge.where, edge.storage)
        for edge, b in zip(edges, base, strict=True)
    )
    return replace(_cut(dag, cut) if cut else dag, edges=assigned)


def _chains(dag: InstrDag) -> list[list[_Hop]]:
    """Fused instructions that hand on one value, by the order in which the first of each chain stands."""
    chain_of: list[list[_Hop] | None] = [None] * len(dag.edges)
    chains: list[list[_Hop]] = []
    for i, (arrival, departure) in enumerate(zip(*ends(dag), strict=True)):
        if arrival is not None and departure is not None:
            chain = chain_of[arrival]
            if chain is None:
                chain = []
                chains.append(chain)
            into, out = dag.edges[arrival], dag.edges[departure]
            chain.append(_Hop(i, arrival, departure, into.src, into.dst, out.dst))
            chain_of[departure] = chain
    return chains


def _cut(dag: InstrDag, cut: set[int]) -> InstrDag:
    rebuild = Rebuild(dag)
    for i in range(len(dag.instrs)):
        if i in cut:
            rebuild.place_receive(i)
            rebuild.place_send(i)
        else:
            rebuild.place(i)
    return rebuild.build()
