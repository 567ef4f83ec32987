"""Prefix sums, MPI's Scan and Exscan: in the order of ranks, in one step for small buffers, along a chain for large."""

from __future__ import annotations

from hocket import Exscan, Program, Ref, Scan, chunk


def one_shot_scan(ranks: int, instances: int = 1) -> Program:
    """Every rank gets the buffers of all ranks before it and adds them up. In place; scratch for those buffers."""
    with Program(Scan(ranks, inplace=True), name="one_shot_scan", instances=instances) as p:
        _send_on(ranks)
        for r in range(1, ranks):
            _sum_of_scratch(r).reduce(chunk(r, "in", 0)).copy(r, "out", 0)
    return p


def scan(ranks: int, instances: int = 1) -> Program:
    """Every rank adds its buffer to the sum of those before it, and passes that on. In place."""
    with Program(Scan(ranks, inplace=True), name="chain_scan", instances=instances) as p:
        total = chunk(0, "in", 0)
        for r in range(1, ranks):
            total = chunk(r, "in", 0).reduce(total)
    return p


def one_shot_exscan(ranks: int, instances: int = 1) -> Program:
    """Every rank gets the buffers of all ranks before it and adds them up. In place; scratch for those buffers."""
    with Program(Exscan(ranks, inplace=True), name="one_shot_exscan", instances=instances) as p:
        _send_on(ranks)
        for r in range(1, ranks):
            _sum_of_scratch(r).copy(r, "out", 0)
    return p


def exscan(ranks: int, instances: int = 1) -> Program:
    """Every rank keeps the sum of the buffers before it, and passes it on with its own added. In place; scratch for
    one buffer."""
    with Program(Exscan(ranks, inplace=True), name="chain_exscan", instances=instances) as p:
        total = chunk(0, "in", 0)
        for r in range(1, ranks):
            own = chunk(r, "in", 0).copy(r, "sc", 0) if r < ranks - 1 else None
            before = total.copy(r, "out", 0)
            if own is not None:
                total = own.reduce(before)
    return p


def _send_on(ranks: int) -> None:
    """Every rank's buffer goes to scratch of all ranks behind it."""
    for step in range(1, ranks):
        for r in range(ranks - step):
            chunk(r, "in", 0).copy(r + step, "sc", r)


def _sum_of_scratch(rank: int) -> Ref:
    total = chunk(rank, "sc", 0)
    for peer in range(1, rank):
        total = total.reduce(chunk(rank, "sc", peer))
    return total
