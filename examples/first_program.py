"""A first program: rank 0 collects the sum through scratch, then hands it out. Proven, then run on processes.

python examples/first_program.py
hocket check examples/first_program.py:star ranks=2..9
hocket show examples/first_program.py:star ranks=4 -o star.png
"""

from __future__ import annotations

import numpy as np

import hocket
from hocket import AllReduce, Communicator, Program, Schedule, chunk, prove


def star(ranks: int) -> Program:
    """Everybody sends to rank 0, which adds and sends back: simple, and slow for rank 0."""
    with Program(AllReduce(ranks, inplace=True), name="star") as p:
        for peer in range(1, ranks):
            chunk(peer, "in", 0).copy(0, "sc", peer)
        total = chunk(0, "in", 0)
        for peer in range(1, ranks):
            total = total.reduce(chunk(0, "sc", peer))
        for peer in range(1, ranks):
            total.copy(peer, "in", 0)
    return p


def work(comm: Communicator, schedule: Schedule) -> float:
    """What each process does."""
    x = np.full(1000, float(comm.rank))
    comm.run(schedule, x)
    return float(x[0])


if __name__ == "__main__":
    schedule = star(4).compile()
    print(prove(schedule))
    print(hocket.spawn(work, ranks=4, args=(schedule,)))
