"""Averages beside sums: ``python benchmarks/averages.py [--ranks P] [--bytes N] [--dtype T]``.

Ranks call all_reduce, reduce_scatter and reduce with "sum" and with "avg" in turns, in place, on pairs of arrays of N
bytes: private ones, and then shared ones. A call takes as long as its slowest rank. A row has the median over the jobs
of the median time of a sum, and what an average takes of it, with the range over the jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator

COLLECTIVES = ("all_reduce", "reduce_scatter", "reduce")
OPERATORS = ("sum", "avg")

Cell = tuple[str, bool, str]
"""Collective, whether its arrays are shared, operator."""


def times(comm: Communicator, nbytes: int, dtype: str, warmup: int, calls: int) -> dict[Cell, list[float]]:
    """Seconds of each call of this rank."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    found: dict[Cell, list[float]] = {}
    n = nbytes // np.dtype(dtype).itemsize // comm.size * comm.size
    for shared in (False, True):
        allocate = comm.empty if shared else np.empty
        x = allocate(n, dtype)
        part = allocate(n // comm.size, dtype)
        for name in COLLECTIVES:
            for call in range(-warmup, calls):
                for op in OPERATORS:
                    x.fill(1)
                    comm.barrier()
                    begin = time.perf_counter()
                    getattr(comm, name)(x, *([part] if name == "reduce_scatter" else []), op=op)
                    if call >= 0:
                        found.setdefault((name, shared, op), []).append(time.perf_counter() - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=25 << 20)
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float32")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    given = parser.parse_args()
    print(title(describe()))
    jobs = []
    for _ in range(given.jobs):
        ranks = hocket.spawn(times, given.ranks, (given.bytes, given.dtype, given.warmup, given.calls), threads=1)
        jobs.append({cell: float(np.median(np.max([rank[cell] for rank in ranks], axis=0))) for cell in ranks[0]})
    print(f"{given.bytes} bytes of {given.dtype} on {given.ranks} ranks\n{'':24}{'sum, us':>12}{'avg / sum':>24}")
    for name in COLLECTIVES:
        for shared in (False, True):
            sums = [job[name, shared, "sum"] for job in jobs]
            parts = sorted(job[name, shared, "avg"] / one for job, one in zip(jobs, sums, strict=True))
            ratio = f"{statistics.median(parts):.2f} [{parts[0]:.2f}, {parts[-1]:.2f}]"
            print(f"{name:16}{'shared' if shared else 'private':8}{statistics.median(sums) * 1e6:12.1f}{ratio:>24}")


if __name__ == "__main__":
    main()
