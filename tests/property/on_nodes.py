"""Schedules on ranks of several nodes: ``mpiexec -n RANKS python -m tests.property.on_nodes [RANDOM [EVERY [N ...]]]``.

Library algorithms, one ``EVERY`` so many of them, at all placements of so many ranks on nodes, on each number N of
elements; and random programs, each at a placement drawn for it. Ranks of one machine are told that they are not on one
(HOCKET_NODES); those of several are where they are. What each call must give is as in on_processes.py. Rank 0 prints
what was run.
"""

from __future__ import annotations

import os
import random
import sys
import time

from mpi4py import MPI

import hocket
from hocket.runtime.nodes import VARIABLE
from tests.property import on_processes
from tests.property.on_processes import Run, compare, library_runs, worker

PLACEMENTS = {2: ("1+1",), 3: ("3", "2+1", "0,1,0"), 4: ("2+2", "3+1", "1+1+1+1"), 6: ("3+3", "2+2+2", "2+3+1")}
"""By the number of ranks, what HOCKET_NODES says."""
SIZES = (0, 1, 3, 20011)


def check(title: str, placement: str, runs: list[Run]) -> None:
    """Run all on ranks at one placement, and have rank 0 compare."""
    begun = time.perf_counter()
    os.environ[VARIABLE] = placement
    with hocket.init(60, mpi=MPI.COMM_WORLD) as comm:
        results = MPI.COMM_WORLD.gather(worker(comm, runs))
        MPI.COMM_WORLD.Barrier()  # nobody leaves who is still needed
    if results is not None:
        compare(runs, results)
        seconds = time.perf_counter() - begun
        print(f"{title:8} {placement:8} {len(runs):5} calls bit-equal  {seconds:6.1f} s", flush=True)


def main(random_programs: int = 500, every: int = 1, *sizes: int) -> None:
    ranks = MPI.COMM_WORLD.Get_size()
    mine = [run for run in library_runs(sizes or SIZES, every) if run.schedule.collective.size == ranks]
    slots = [run for run in mine if not run.schedule.in_place()]  # nodes share no memory that messages could lie in
    os.environ.pop(VARIABLE, None)
    with hocket.init(60, mpi=MPI.COMM_WORLD) as comm:
        placed = len(comm.nodes) > 1
    for placement in ("",) if placed else PLACEMENTS[ranks]:
        check("library", placement, slots)
    rng = random.Random(ranks)
    drawn: dict[str, list[Run]] = {}
    for run in on_processes.random_runs(random_programs):
        if run.schedule.collective.size == ranks and not run.schedule.in_place():
            placement = "" if placed else ",".join(str(rng.randrange(3)) for _ in range(ranks))
            drawn.setdefault(placement, []).append(run)
    for placement, runs in drawn.items():
        check("random", placement, runs)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
