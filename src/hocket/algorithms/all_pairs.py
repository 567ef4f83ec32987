"""All Pairs AllReduce (paper section 7.1.2): two communication steps, for small buffers."""

from __future__ import annotations

from hocket import AllReduce, Program, chunk


def all_reduce(ranks: int, instances: int = 1) -> Program:
    """Rank r gathers chunk r of every rank in scratch, sums it, and sends the sum to all. In place."""
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="all_pairs_all_reduce", instances=instances) as p:
        for r in range(ranks):
            for peer in range(ranks):
                if peer != r:
                    chunk(peer, "in", r).copy(r, "sc", peer)
        for r in range(ranks):
            total = chunk(r, "in", r)
            for peer in range(ranks):
                if peer != r:
                    total = total.reduce(chunk(r, "sc", peer))
            for peer in range(ranks):
                if peer != r:
                    total.copy(peer, "in", r)
    return p
