"""Direct algorithms: every block goes straight to where it is wanted, so it crosses one link.

All ranks can reach each other at one price, as within a machine or behind one switch: good for blocks of any size.
Ranks are taken in order from the own one on, so that not all begin with the same peer (the pairwise exchange of MPI
libraries; Thakur, Rabenseifner and Gropp, IJHPCA'05).
"""

from __future__ import annotations

from math import isqrt

from hocket import AllGather, AllToAll, Custom, Gather, Program, ReduceScatter, Scatter, chunk


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


def all_gather(ranks: int, instances: int = 1) -> Program:
    """Every rank sends its block to every other. In place."""
    with Program(AllGather(ranks, inplace=True), name="direct_all_gather", instances=instances) as p:
        for step in range(1, ranks):
            for r in range(ranks):
                chunk(r, "in", 0).copy((r + step) % ranks, "out", r)
    return p


def reduce_scatter(ranks: int, instances: int = 1) -> Program:
    """Every rank gets its block of every other, and adds them up in the order of ranks. Scratch for all blocks."""
    with Program(ReduceScatter(ranks), name="direct_reduce_scatter", instances=instances) as p:
        for step in range(1, ranks):
            for r in range(ranks):
                peer = (r + step) % ranks
                chunk(r, "in", peer).copy(peer, "sc", r)
        for r in range(ranks):
            terms = [chunk(r, "in", r) if peer == r else chunk(r, "sc", peer) for peer in range(ranks)]
            total = terms[0].copy(r, "out", 0)
            for term in terms[1:]:
                total = total.reduce(term)
    return p


def gather(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """Every rank sends its block to the root. In place."""
    with Program(Gather(ranks, inplace=True, root=root), name="direct_gather", instances=instances) as p:
        for step in range(1, ranks):
            r = (root + step) % ranks
            chunk(r, "in", 0).copy(root, "out", r)
    return p


def scatter(ranks: int, root: int = 0, instances: int = 1) -> Program:
    """The root sends every rank its block. In place."""
    with Program(Scatter(ranks, inplace=True, root=root), name="direct_scatter", instances=instances) as p:
        for step in range(1, ranks):
            r = (root + step) % ranks
            chunk(root, "in", r).copy(r, "out", 0)
    return p
