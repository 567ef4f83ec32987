"""Direct algorithms: every block goes straight to where it is wanted, so it crosses one link.

All ranks can reach each other at one price, as within a machine or behind one switch: good for blocks of any size.
Ranks are taken in order from the own one on, so that not all begin with the same peer (the pairwise exchange of MPI
libraries; Thakur, Rabenseifner and Gropp, IJHPCA'05).
"""

from __future__ import annotations

from math import isqrt

from hocket import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Custom,
    Gather,
    Program,
    Reduce,
    ReduceScatter,
    Ref,
    Scatter,
    chunk,
)


def all_to_all(ranks: int, instances: int = 1) -> Program:
    """In step s, rank r sends to rank r + s and receives from rank r - s; step 0 is a local copy."""
    with Program(AllToAll(ranks), name="direct_all_to_all", instances=instances) as p:
        for step in range(ranks):
            for r in range(ranks):
                peer = (r + step) % ranks
                chunk(r, "in", peer).copy(peer, "out", r)
    return p


def all_to_all_v(counts: tuple[int, ...], instances: int = 1) -> Program:
    """An AllToAll of unequal blocks: ``counts[r * p + d]`` chunks go from rank r to rank d, perhaps none."""
    ranks = isqrt(len(counts))
    if ranks * ranks != len(counts) or not counts:
        raise ValueError(f"counts is a square table, row by row: {len(counts)} numbers are none")
    sent = [counts[r * ranks : (r + 1) * ranks] for r in range(ranks)]
    start = [[sum(sent[r][:d]) for d in range(ranks)] for r in range(ranks)]
    wanted = [[(r, start[r][d] + i) for r in range(ranks) for i in range(sent[r][d])] for d in range(ranks)]
    collective = Custom(
        ranks, inputs=[sum(row) for row in sent], outputs=[len(row) for row in wanted], post=lambda d, i: {wanted[d][i]}
    )
    with Program(collective, name="direct_all_to_all_v", instances=instances) as p:
        for step in range(ranks):
            for r in range(ranks):
                peer = (r + step) % ranks
                if sent[r][peer]:
                    at = sum(sent[source][peer] for source in range(r))
                    chunk(r, "in", start[r][peer], sent[r][peer]).copy(peer, "out", at)
    return p


def all_reduce(ranks: int, instances: int = 1, *, inplace: bool = True) -> Program:
    """Rank r gets slice r of all others, adds it up in the order of ranks, and sends the sum to all."""
    with Program(AllReduce(ranks, ranks, inplace=inplace), name="direct_all_reduce", instances=instances) as p:
        for r, terms in _slices(ranks):
            total = _sum(terms, r) if ranks > 1 else terms[0]
            if ranks > 1 or not inplace:
                total = total.copy(r, "out", r)
            for step in range(1, ranks):
                total.copy((r + step) % ranks, "out", r)
    return p


def reduce(ranks: int, root: int = 0, instances: int = 1, *, inplace: bool = True) -> Program:
    """Rank r gets slice r of all others, adds it up in the order of ranks, and sends the sum to the root."""
    with Program(Reduce(ranks, ranks, inplace=inplace, root=root), name="direct_reduce", instances=instances) as p:
        for r, terms in _slices(ranks):
            if ranks > 1:
                _sum(terms, r).copy(root, "out", r)
            elif not inplace:
                terms[0].copy(root, "out", r)
    return p


def broadcast(ranks: int, root: int = 0, instances: int = 1, *, inplace: bool = True) -> Program:
    """Rank r gets slice r of the root and sends it to all others, as the root does with its own.

    With storage peer, all at once read a slice in the memory of the root and store it in that of all others. The root's
    own slice comes last: first it says that the others may read theirs.
    """
    with Program(
        Broadcast(ranks, ranks, inplace=inplace, root=root), name="direct_broadcast", instances=instances
    ) as p:
        for step in range(1, ranks + 1):
            r = (root + step) % ranks
            part = chunk(root, "in", r)
            if r != root:
                part = part.copy(r, "out", r, storage="pull")
            elif not inplace:
                part.copy(r, "out", r)
            for further in range(1, ranks):
                peer = (r + further) % ranks
                if peer != root or not inplace:
                    part.copy(peer, "out", r)
    return p


def all_gather(ranks: int, instances: int = 1, *, inplace: bool = True) -> Program:
    """Every rank sends its block to every other."""
    with Program(AllGather(ranks, inplace=inplace), name="direct_all_gather", instances=instances) as p:
        for step in range(inplace, ranks):
            for r in range(ranks):
                chunk(r, "in", 0).copy((r + step) % ranks, "out", r)
    return p


def reduce_scatter(ranks: int, instances: int = 1, *, inplace: bool = False) -> Program:
    """Every rank gets its block of every other, and adds them up in the order of ranks. Scratch for all blocks."""
    with Program(ReduceScatter(ranks, inplace=inplace), name="direct_reduce_scatter", instances=instances) as p:
        for r, terms in _slices(ranks):
            if ranks > 1:
                _sum(terms, r).copy(r, "out", 0)
            elif not inplace:
                terms[0].copy(r, "out", 0)
    return p


def gather(ranks: int, root: int = 0, instances: int = 1, *, inplace: bool = True) -> Program:
    """Every rank sends its block to the root."""
    with Program(Gather(ranks, inplace=inplace, root=root), name="direct_gather", instances=instances) as p:
        for step in range(inplace, ranks):
            r = (root + step) % ranks
            chunk(r, "in", 0).copy(root, "out", r)
    return p


def scatter(ranks: int, root: int = 0, instances: int = 1, *, inplace: bool = True) -> Program:
    """The root sends every rank its block. With storage peer every rank reads it there, all at once."""
    with Program(Scatter(ranks, inplace=inplace, root=root), name="direct_scatter", instances=instances) as p:
        for step in range(inplace, ranks):
            r = (root + step) % ranks
            chunk(root, "in", r).copy(r, "out", 0, storage="pull")
    return p


def _slices(ranks: int) -> list[tuple[int, list[Ref]]]:
    """Every rank r gets chunk r of the input of every other in scratch. For each the terms of its sum, by rank."""
    for step in range(1, ranks):
        for r in range(ranks):
            peer = (r + step) % ranks
            chunk(r, "in", peer).copy(peer, "sc", r)
    return [
        (r, [chunk(r, "in", r) if peer == r else chunk(r, "sc", peer) for peer in range(ranks)]) for r in range(ranks)
    ]


def _sum(terms: list[Ref], rank: int) -> Ref:
    """The sum of terms on a rank, in their order. Scratch, because the own term may not be the first."""
    total = terms[0].copy(rank, "sc", rank)
    for term in terms[1:]:
        total = total.reduce(term)
    return total
