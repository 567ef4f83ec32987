"""What ``hocket search`` chose for this machine, through HOCKET_CONFIG, against the default choice:
``python benchmarks/sim_search.py hocket.toml [--collective all_reduce]``.

Two ranks, private arrays, in place, float32, hot, cross-memory attach off. For each size the least and the median over
batches of the slowest rank's mean, with the file and without it in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator
from hocket.tunables import CONFIG

SIZES = tuple(1 << shift for shift in range(10, 27, 2))
ROUNDS, BATCHES = 4, 16
WARM = 0.05  # seconds in which a core that was idle comes up to speed


def timed(comm: Communicator, name: str) -> list[tuple[str, list[float]]]:
    """For each size the program, and the seconds of a call in each batch."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        pass
    found = []
    for size in SIZES:
        x, call, calls, seconds = np.empty(size // 4, np.float32), getattr(comm, name), max(1, (1 << 19) // size), []
        for batch in range(BATCHES + 1):
            x[:] = 1
            call(x)
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(min(calls, 100)):
                call(x)
            if batch:
                seconds.append((time.perf_counter() - begin) / min(calls, 100))
        found.append((comm.explain(name, size).program, seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--collective", default="all_reduce", choices=("all_reduce", "all_to_all"))
    given = parser.parse_args()
    os.environ["HOCKET_REACH"] = "never"
    print(title(describe()))
    batches: dict[tuple[bool, int], list[float]] = {}
    programs: dict[tuple[bool, int], str] = {}
    for _ in range(ROUNDS):
        for configured in (False, True):
            os.environ[CONFIG] = str(given.config) if configured else ""
            results = hocket.spawn(timed, 2, (given.collective,), threads=1)
            for size, *of_ranks in zip(SIZES, *results, strict=True):
                programs[configured, size] = of_ranks[0][0]
                slowest = np.max([seconds for _, seconds in of_ranks], axis=0) * 1e6
                batches.setdefault((configured, size), []).extend(map(float, slowest))
    print(f"{'bytes':>10}  {'default':30} {'least':>9} {'median':>9}  {'searched':30} {'least':>9} {'median':>9}  gain")
    for size in SIZES:
        cells = []
        for configured in (False, True):
            values = batches[configured, size]
            cells.append(f"{programs[configured, size]:30} {min(values):9.2f} {statistics.median(values):9.2f}")
        gain = min(batches[False, size]) / min(batches[True, size])
        print(f"{size:10}  {cells[0]}  {cells[1]}  {gain:.2f}")


if __name__ == "__main__":
    main()
