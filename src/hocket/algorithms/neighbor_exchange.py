"""Neighbour exchange (Chen, Zhang, Zhang and Yuan, HPC Asia'05): an AllGather in p / 2 rounds between neighbours."""

from __future__ import annotations

from hocket import AllGather, Program, chunk


def all_gather(ranks: int, instances: int = 1) -> Program:
    """Pairs swap blocks; then each rank swaps the newest two with its neighbours in turn. An even number of ranks."""
    if ranks % 2:
        raise ValueError(f"neighbour exchange takes an even number of ranks, not {ranks}")
    with Program(AllGather(ranks), name="neighbor_exchange_all_gather", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", r).copy(r ^ 1, "out", r)
        newest = [r // 2 * 2 for r in range(ranks)]
        for step in range(1, ranks // 2):
            for even in range(0, ranks, 2):
                odd = (even - 1 if step % 2 else even + 1) % ranks
                chunk(even, "out", newest[even], 2).copy(odd, "out", newest[even])
                chunk(odd, "out", newest[odd], 2).copy(even, "out", newest[odd])
                newest[even], newest[odd] = newest[odd], newest[even]
    return p
