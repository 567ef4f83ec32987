"""Slots or the kernel's copies, on ordinary arrays: ``python benchmarks/reaching.py [--collective C] [--ranks P]``.

Calls on one pair of arrays again and again, which nobody changes in between, by jobs of two kinds in turns: with
HOCKET_REACH=never, and with HOCKET_REACH=always. A call takes as long as its slowest rank. A row has the median over
the jobs of the median time with slots, and what the other takes of it, with the range over the jobs, which is the
noise. ``--pages huge``, ``small``: arrays lie in pages of 2 MB, or of 4 KB; else where NumPy has them, whose arrays of
4 MB and more are in huge ones where the kernel gives those to whoever asks. Where a call takes slots anyhow
(hocket/tuning.py: declined), both are the same: below 64 KB unless HOCKET_TUNABLES=cma_bytes=0 is given, and below
256 KB where ranks share cores (cma_crowded_bytes).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import time
from pathlib import Path

import numpy as np
from machine import describe, title
from numpy.typing import NDArray

import hocket
from hocket import Communicator

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
HUGE = 2 << 20  # bytes of a huge page
REACH = {"slots": "never", "attach": "always"}
ADVICE = {"huge": mmap.MADV_HUGEPAGE, "small": mmap.MADV_NOHUGEPAGE}


def ones(count: int, pages: str) -> NDArray[np.float32]:
    """An array where a huge page begins, or could, or where NumPy has it."""
    if pages not in ADVICE:
        return np.ones(count, np.float32)
    memory = mmap.mmap(-1, 4 * count + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(ADVICE[pages])
    whole = np.frombuffer(memory, np.uint8)
    found = whole[-whole.ctypes.data % HUGE :][: 4 * count].view(np.float32)
    found.fill(1)
    return found


def times(
    comm: Communicator, name: str, sizes: list[int], warmup: int, calls: int, pages: str
) -> list[NDArray[np.float64]]:
    """Seconds of each call of this rank, by size."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    found = []
    for size in sizes:
        whole = size // 4 // comm.size * comm.size
        x = ones(whole // comm.size if name == "all_gather" else whole, pages)
        out = ones(whole // comm.size if name == "reduce_scatter" else whole, pages)
        arrays = [x] if name == "broadcast" else [x, out]
        seconds = np.empty(calls)
        for call in range(-warmup, calls):
            comm.barrier()
            begin = time.perf_counter()
            getattr(comm, name)(*arrays)
            if call >= 0:
                seconds[call] = time.perf_counter() - begin
        found.append(seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=COLLECTIVES, default="all_to_all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="262144,2097152,33554432", help="bytes of the larger array, with commas")
    parser.add_argument("--jobs", type=int, default=5, help="of each kind")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--pages", choices=("numpy", *ADVICE), default="numpy", help="that arrays lie in")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    machine = describe()
    print(title(machine))
    medians: dict[str, list[list[float]]] = {kind: [] for kind in REACH}  # seconds, by job and size
    for _ in range(given.jobs):
        for kind, value in REACH.items():
            os.environ["HOCKET_REACH"] = value
            how = given.collective, sizes, given.warmup, given.calls, given.pages
            ranks = hocket.spawn(times, given.ranks, how, threads=1)
            medians[kind].append([float(np.median(np.max(calls, axis=0))) for calls in zip(*ranks, strict=True)])
    print(f"{given.collective} on {given.ranks} ranks\n{'bytes':>12}{'slots, us':>12}{'attach':>24}")
    for at, size in enumerate(sizes):
        slots = [job[at] for job in medians["slots"]]
        parts = sorted(job[at] / other for job, other in zip(medians["attach"], slots, strict=True))
        attach = f"{statistics.median(parts):.2f} [{parts[0]:.2f}, {parts[-1]:.2f}]"
        print(f"{size:12}{statistics.median(slots) * 1e6:12.1f}{attach:>24}")
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "sizes": sizes, "seconds": medians}, indent=2) + "\n")


if __name__ == "__main__":
    main()
