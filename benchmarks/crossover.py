"""Where the program for small buffers stops to pay: ``python benchmarks/crossover.py [--ranks P ...] [--json FILE]``.

Of each collective by name that has two programs (hocket/tuning.py), both run in turn on the same buffers, back to back,
in float32. A row has the median microseconds of a call of each over the batches, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator
from hocket.cli.measure import unit
from hocket.tuning import NAMED, default_program

SIZES = tuple(8 << shift for shift in range(18))
BATCHES = 20


def both(comm: Communicator, name: str, sizes: list[int]) -> list[list[float]]:
    """For each size, the median seconds of a call of the small and of the large program."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    schedules = [default_program(name, comm.size, small=small).compile() for small in (True, False)]
    collective, rank = schedules[0].collective, comm.rank
    found = []
    for size in sizes:
        n = unit(collective, size, "float32")
        x = np.ones(collective.input_blocks(rank) * n, np.float32)
        out = np.ones(collective.output_blocks(rank) * n, np.float32)
        calls, seconds = max(3, min(100, (1 << 21) // size)), ([], [])
        for _ in range(BATCHES):
            for schedule, times in zip(schedules, seconds, strict=True):
                comm.run(schedule, x if len(x) else None, out if len(out) else None)
                comm.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    comm.run(schedule, x if len(x) else None, out if len(out) else None)
                times.append((time.perf_counter() - begin) / calls)
        found.append([statistics.median(times) for times in seconds])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    rows = []
    print(f"{'collective':16}{'ranks':>6}{'bytes':>10}{'small us':>12}{'large us':>12}{'ratio':>8}")
    for name in NAMED:
        if default_program(name, 4, small=True).name == default_program(name, 4).name:
            continue
        for ranks in given.ranks:
            results = hocket.spawn(both, ranks, (name, list(SIZES)), threads=1)
            for size, *of_ranks in zip(SIZES, *results, strict=True):
                small, large = (max(times) * 1e6 for times in zip(*of_ranks, strict=True))
                rows.append({"collective": name, "ranks": ranks, "bytes": size, "small_us": small, "large_us": large})
                print(f"{name:16}{ranks:6}{size:10}{small:12.2f}{large:12.2f}{small / large:8.2f}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
