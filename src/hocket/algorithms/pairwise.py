"""Pairwise exchange: in each round ranks swap blocks in pairs (Thakur, Rabenseifner and Gropp, IJHPCA'05).

The paper pairs r with r xor s, for powers of two; here the pairs are those of a tournament, so that any p will do.
"""

from __future__ import annotations

from hocket import AllToAll, Program, chunk


def all_to_all(ranks: int, instances: int = 1) -> Program:
    """In round s, r meets the rank with which it adds up to s modulo p - 1; whom that leaves alone meets the last.

    For odd p, one rank more is thought of, whose partner has a pause: p rounds of pairs instead of p - 1.
    """
    players = ranks + ranks % 2
    with Program(AllToAll(ranks), name="pairwise_all_to_all", instances=instances) as p:
        for r in range(ranks):
            chunk(r, "in", r).copy(r, "out", r)
        for step in range(players - 1):
            for r in range(players - 1):
                other = (step - r) % (players - 1)
                peer = players - 1 if other == r else other
                if r < peer < ranks:
                    chunk(r, "in", peer).copy(peer, "out", r)
                    chunk(peer, "in", r).copy(r, "out", peer)
    return p
