# ruff: noqa: A001, N802, N803, N806, PIE808
# The names are the paper's.
"""Hierarchical AllReduce as Figure 3 of MSCCLang prints it, for N nodes of G ranks.

Line 12 of Figure 3a reads ``[i+n*G for i in range(N)]``, with an ``n`` left over from the loop before; here it is
what it must be, ``[g+i*G ...]``. As printed, hocket refuses it: rank 0 would not hold the sum.

    python examples/figure3.py
    hocket check examples/figure3.py:program N=2..4 G=2..4
    hocket show examples/figure3.py:program N=2 G=3 -o figure3.png
"""

from __future__ import annotations

import numpy as np

import hocket
from hocket import AllReduce, Communicator, Program, Schedule, chunk, prove


# Figure 3a
def HierarchicalAllReduce(N: int, G: int) -> None:
    # intra-node ReduceScatter
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        ReduceScatter(local_ranks, 0, N)

    # inter-node ReduceScatter + AllGather
    for g in range(G):
        cross_ranks = [g + i * G for i in range(N)]
        ReduceScatter(cross_ranks, g * N, 1)
        AllGather(cross_ranks, g * N, 1)

    # intra-node AllGather
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        AllGather(local_ranks, 0, N)


# Figure 3b
def ReduceScatter(ranks: list[int], offset: int, count: int) -> None:
    R = len(ranks)
    for r in range(0, R):
        index = offset + r * count
        c = chunk(ranks[(r + 1) % R], "in", index, count)
        for step in range(1, R):
            next = ranks[(step + r + 1) % R]
            c = chunk(next, "in", index, count).reduce(c)


def AllGather(ranks: list[int], offset: int, count: int) -> None:
    R = len(ranks)
    for r in range(0, R):
        index = offset + r * count
        c = chunk(ranks[r], "in", index, count)
        for step in range(1, R):
            next = ranks[(step + r) % R]
            c = c.copy(next, "in", index, count)


def program(N: int, G: int) -> Program:
    """The figure as a program: in place, N*G chunks."""
    with Program(AllReduce((N, G), chunks=N * G, inplace=True), name="figure_3") as p:
        HierarchicalAllReduce(N, G)
    return p


def work(comm: Communicator, schedule: Schedule) -> bool:
    """Sum one buffer over all processes; whether NumPy agrees."""
    inputs = [np.random.default_rng(rank).integers(0, 100, 100_003) for rank in range(comm.size)]
    expected = np.sum(inputs, axis=0)
    return np.array_equal(comm.run(schedule, inputs[comm.rank]), expected)


if __name__ == "__main__":
    schedule = program(2, 2).compile()
    print(prove(schedule))
    print("NumPy agrees on each rank:", hocket.spawn(work, ranks=4, args=(schedule,)))
