"""Slots or the kernel's copies, on ordinary arrays: ``python benchmarks/reaching.py [--collective C] [--ranks P]``.

Calls on one pair of arrays again and again, which nobody changes in between, on two communicators of one job in turns:
one made with HOCKET_REACH=never, and one with HOCKET_REACH=always. A call takes as long as its slowest rank. A turn is
ten calls through slots, ten more, and ten that attach, and counts with its medians. Where the first ten took 1.3 times
as long as at best, slots were slow. A row is of the turns where they were, or were not: the median of the second ten,
and what attaching takes of it, the median over the turns of a job, of these the median over jobs, and their range,
which is the noise.
``--changed``: each rank stores to every line of its input before each call, as most programs have done.
``--pages huge``, ``small``: arrays lie in pages of 2 MB, or of 4 KB; else where NumPy has them, whose arrays of
4 MB and more are in huge ones where the kernel gives those to whoever asks. ``--small N``: those of the first N ranks
lie in pages of 4 KB all the same. Where a call takes slots anyhow (hocket/tuning.py: declined), both are the same:
below 64 KB unless HOCKET_TUNABLES=cma_bytes=0 is given, and below 256 KB where ranks share cores (cma_crowded_bytes).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from machine import describe, title
from numpy.typing import NDArray

import hocket
from hocket import Communicator

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
HUGE = 2 << 20  # bytes of a huge page
LINE = 64  # bytes of a cache line
REACH = "never", "always"
CALLS, WARMUP = 10, 5
SLOW = 1.3  # times what calls through slots take at best
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


Turn = tuple[float, ...]
"""Seconds of a call through slots, of another, and of one that attaches; medians."""


def turns(
    comm: Communicator, name: str, sizes: list[int], count: int, pages: str, small: int, changed: bool
) -> list[list[Turn]]:
    """On this rank, by size."""
    if comm.rank < small:
        pages = "small"
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    ways = []
    for reach in REACH:
        os.environ["HOCKET_REACH"] = reach
        ways.append(hocket.init(threads=1))
    found = []
    for size in sizes:
        whole = size // 4 // comm.size * comm.size
        x = ones(whole // comm.size if name == "all_gather" else whole, pages)
        out = ones(whole // comm.size if name == "reduce_scatter" else whole, pages)
        arrays = [x] if name == "broadcast" else [x, out]
        calls = [partial(getattr(way, name), *arrays) for way in (ways[0], *ways)]
        measure = partial(median_of, comm, lines=x[:: LINE // x.itemsize] if changed else x[:0])
        found.append([tuple(map(measure, calls)) for _ in range(WARMUP + count)][WARMUP:])
    return found


def median_of(comm: Communicator, call: Callable[[], object], lines: NDArray[np.float32]) -> float:
    """Seconds of a call; ``lines`` are stored to before each."""
    seconds = []
    for _ in range(CALLS):
        lines += 1
        comm.barrier()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return float(comm.all_reduce(np.array(statistics.median(seconds)), op="max"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=COLLECTIVES, default="all_to_all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="262144,2097152,33554432", help="bytes of the larger array, with commas")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=30, help="of a job")
    parser.add_argument("--pages", choices=("numpy", *ADVICE), default="numpy", help="that arrays lie in")
    parser.add_argument("--small", type=int, default=0, metavar="N", help="ranks whose arrays lie in pages of 4 KB")
    parser.add_argument("--changed", action="store_true", help="inputs, before each call")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    machine = describe()
    print(title(machine))
    how = given.collective, sizes, given.turns, given.pages, given.small, given.changed
    jobs = [hocket.spawn(turns, given.ranks, how, threads=1)[0] for _ in range(given.jobs)]
    print(f"{given.collective} on {given.ranks} ranks")
    print(f"{'bytes':>12}{'state':>8}{'turns':>8}{'slots, us':>12}{'attach':>24}")
    for at, size in enumerate(sizes):
        slow = SLOW * min(before for job in jobs for before, _, _ in job[at])
        for state in ("fast", "slow"):
            met = [[turn for turn in job[at] if (turn[0] > slow) == (state == "slow")] for job in jobs]
            met = [turns for turns in met if turns]
            if not met:
                continue
            parts = sorted(statistics.median(attach / slots for _, slots, attach in turns) for turns in met)
            slots = statistics.median(slots for turns in met for _, slots, _ in turns) * 1e6
            attach = f"{statistics.median(parts):.2f} [{parts[0]:.2f}, {parts[-1]:.2f}]"
            print(f"{size:12}{state:>8}{sum(map(len, met)):8}{slots:12.1f}{attach:>24}")
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "sizes": sizes, "turns": jobs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
