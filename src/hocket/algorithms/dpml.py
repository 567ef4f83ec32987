"""DPML in two levels (Bayatpour et al., SC'17; YHCCL, section 5.1): an AllReduce with few steps in a row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hocket import AllReduce, Program, Ref, chunk
from hocket.algorithms.movement_avoiding import by_socket


def all_reduce(ranks: int, sockets: int = 2, instances: int = 1) -> Program:
    """In each socket one rank adds up a chunk of its neighbours, and the chunk's own rank adds up what these have.

    That rank then stores the sum for all others at once. One socket would be two-shot all-pairs. In place.
    """
    groups = by_socket(ranks, sockets)
    scratch = [count() for _ in range(ranks)]
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="dpml_all_reduce", instances=instances) as p:
        for own, members in enumerate(groups):
            for place, rank in enumerate(members):
                total = _add(chunk(rank, "in", rank), members, rank, rank, scratch[rank], 2 + own)
                for group in groups:
                    if group is members:
                        continue
                    leader = group[place % len(group)]
                    part = chunk(leader, "in", rank)
                    if len(group) > 1:  # each connection has one message, which so can wait in its slot
                        ch = 2 + own + place // len(group) * len(groups)
                        part = part.copy(leader, "sc", next(scratch[leader]))
                        part = _add(part, group, leader, rank, scratch[leader], ch)
                    total = total.reduce(part.copy(rank, "sc", next(scratch[rank]), ch=1))
                for step in range(1, ranks):
                    total.copy((rank + step) % ranks, "in", rank)
    return p


def _add(total: Ref, group: range, leader: int, index: int, scratch: Iterator[int], ch: int) -> Ref:
    """``total``, at the leader of a group, with chunk ``index`` of its other ranks."""
    for peer in group:
        if peer != leader:
            total = total.reduce(chunk(peer, "in", index).copy(leader, "sc", next(scratch), ch=ch))
    return total
