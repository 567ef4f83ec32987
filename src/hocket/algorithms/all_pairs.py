"""All Pairs: every rank exchanges with every other at once, for small buffers.

The AllReduce of paper section 7.1.2 takes two communication steps, and is known as two-shot; one-shot takes one.
"""

from __future__ import annotations

from hocket import AllReduce, Program, chunk


def all_reduce(ranks: int, instances: int = 1, *, inplace: bool = True) -> Program:
    """Rank r gathers chunk r of every rank in scratch, sums it, and sends the sum to all."""
    with Program(
        AllReduce(ranks, chunks=ranks, inplace=inplace), name="all_pairs_all_reduce", instances=instances
    ) as p:
        for r in range(ranks):
            for peer in range(ranks):
                if peer != r:
                    chunk(peer, "in", r).copy(r, "sc", peer)
        for r in range(ranks):
            total = chunk(r, "in", r)
            if not inplace:
                total = total.copy(r, "out", r)
            for peer in range(ranks):
                if peer != r:
                    total = total.reduce(chunk(r, "sc", peer))
            for peer in range(ranks):
                if peer != r:
                    total.copy(peer, "out", r)
    return p


def one_shot_all_reduce(ranks: int, instances: int = 1, *, inplace: bool = True) -> Program:
    """Every rank gets every buffer and adds them up in the order of ranks. Scratch for all buffers."""
    with Program(AllReduce(ranks, inplace=inplace), name="one_shot_all_reduce", instances=instances) as p:
        for step in range(1, ranks):
            for r in range(ranks):
                chunk(r, "in", 0).copy((r + step) % ranks, "sc", r)
        for r in (*range(1, ranks), 0):
            total, *rest = [chunk(r, "in", 0) if peer == r else chunk(r, "sc", peer) for peer in range(ranks)]
            if r == 0 and not inplace:
                total = total.copy(r, "out", 0)
            for term in rest:
                total = total.reduce(term)
            if r != 0:
                total.copy(r, "out", 0)
    return p
