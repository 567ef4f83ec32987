# ruff: noqa: N803
# The names are the paper's.
"""Two-Step AllToAll as Figure 9 of MSCCLang prints it, for N nodes of G ranks.

What goes to another node is gathered on the local rank of the same column and sent in one piece. The coalesced send
belongs into the loop over m, and only where the nodes differ.

    python examples/figure9.py
    hocket check examples/figure9.py:program N=1..4 G=1..4
"""

from __future__ import annotations

import numpy as np

import hocket
from hocket import AllToAll, Communicator, Program, Schedule, chunk, prove


def alltoall(N: int, G: int) -> None:
    for n in range(N):
        for g in range(G):
            for m in range(N):
                for i in range(G):
                    c = chunk((m, i), "in", (n, g))
                    if n == m:
                        c.copy((n, g), "out", (m, i))
                    else:
                        c.copy((m, g), "sc", (n, i))

                # Coalesced IB send
                if n != m:
                    c = chunk((m, g), "sc", n * G, sz=G)
                    c.copy((n, g), "out", m * G)


def program(N: int, G: int) -> Program:
    """The figure as a program: one chunk for each destination."""
    with Program(AllToAll((N, G)), name="figure_9") as p:
        alltoall(N, G)
    return p


def work(comm: Communicator, schedule: Schedule) -> list[int]:
    """Each rank sends its own number, times ten, plus that of the destination."""
    return comm.run(schedule, 10 * comm.rank + np.arange(comm.size)).tolist()


if __name__ == "__main__":
    schedule = program(2, 2).compile()
    print(prove(schedule))
    for rank, received in enumerate(hocket.spawn(work, ranks=4, args=(schedule,))):
        print(f"rank {rank} received {received}")
