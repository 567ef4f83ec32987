"""Calls by where arrays begin in a page: ``python benchmarks/alignment.py [--json FILE]``.

Two ranks on a core each call collectives by name, out of place but for the Broadcast. Where an input and an output
begin, in bytes from a page: 0, as arrays of peers.py do; 16, as NumPy's of 128 KB and more; 16 and 32, as two arrays of
which one follows the other in the heap. A time is the least over turns of the median of a turn's calls,
in microseconds; in brackets, to that of the first column.
"""

from __future__ import annotations

import argparse
import json
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

PAGE = 4096
BEGINS = ((0, 0), (0, 16), (16, 16), (16, 32))
SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
COLLECTIVES = {"all_reduce": (1, 1), "all_gather": (2, 1), "reduce_scatter": (1, 2), "all_to_all": (1, 1)}
"""What of the larger buffer an input and an output are, one part in so many."""
TURNS, CALLS = 7, 30


def array(nbytes: int, begin: int) -> NDArray[np.float32]:
    whole = np.ones(nbytes + 2 * PAGE, np.uint8)
    at = -whole.ctypes.data % PAGE + begin
    return whole[at : at + nbytes].view(np.float32)


def calls(comm: Communicator, size: int) -> dict[str, list[Callable[[], object]]]:
    found: dict[str, list[Callable[[], object]]] = {
        name: [partial(getattr(comm, name), array(size // i, a), array(size // o, b)) for a, b in BEGINS]
        for name, (i, o) in COLLECTIVES.items()
    }
    return found | {"broadcast": [partial(comm.broadcast, array(size, begin)) for _, begin in BEGINS]}


def job(comm: Communicator) -> dict[str, list[float]]:
    """Microseconds by collective and size, for each of BEGINS."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    found = {}
    for size in SIZES:
        for name, ways in calls(comm, size).items():
            least = [float("inf")] * len(ways)
            for _ in range(TURNS):
                for way, call in enumerate(ways):
                    times = []
                    comm.barrier()
                    for _ in range(CALLS):
                        begun = time.perf_counter()
                        call()
                        times.append(time.perf_counter() - begun)
                    least[way] = min(least[way], statistics.median(times) * 1e6)
            found[f"{name} {size}"] = least
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe() | {"libc": os.confstr("CS_GNU_LIBC_VERSION")}
    print(title(machine))
    print(f"{'':24}" + "".join(f"{f'{a}, {b}':>18}" for a, b in BEGINS))
    found = hocket.spawn(job, 2, threads=1)[0]
    for name, times in found.items():
        print(f"{name:24}" + "".join(f"{time:10.1f} ({time / times[0]:5.2f})" for time in times))
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "us": found}) + "\n")


if __name__ == "__main__":
    main()
