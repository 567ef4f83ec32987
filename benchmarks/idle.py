"""What waiting costs: ``python benchmarks/idle.py [--seconds S] [--json FILE]``.

The last rank comes S seconds late to a barrier, and to an AllReduce of 8 bytes and of 1 MB; to each, the others come at
once. Prints CPU milliseconds that a waiting rank used for each second of its wait, the median and the range over ranks
and repeats. A rank spins and yields for less than a millisecond, then sleeps and looks for faults 20 times a second.
Exits with 1 if the median of any row is 5 ms a second or more.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator

CALLS = {"barrier": 0, "all_reduce of 8 bytes": 8, "all_reduce of 1 MB": 1 << 20}
RANKS = (2, 4, 8)
BOUND = 5.0  # CPU milliseconds a second


def waits(comm: Communicator, size: int, seconds: float, repeats: int) -> list[float]:
    """CPU milliseconds a second of each wait of this rank; none of the rank that is late."""
    x = np.zeros(size, np.uint8)
    call = functools.partial(comm.all_reduce, x) if size else comm.barrier
    call()
    found = []
    for _ in range(repeats):
        comm.barrier()
        if comm.rank == comm.size - 1:
            time.sleep(seconds)
            call()
            continue
        begun, used = time.perf_counter(), time.process_time()
        call()
        used, waited = time.process_time() - used, time.perf_counter() - begun
        found.append(used * 1e3 / waited)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    print(f"{'call':24}{'ranks':>6}{'CPU ms a second':>18}{'range':>18}")
    rows = []
    for name, size in CALLS.items():
        for ranks in RANKS:
            results = hocket.spawn(waits, ranks, (size, given.seconds, given.repeats))
            used = sorted(value for found in results for value in found)
            rows.append({"call": name, "ranks": ranks, "cpu_ms_a_second": used})
            print(
                f"{name:24}{ranks:6}{statistics.median(used):18.2f}{f'{used[0]:.2f} to {used[-1]:.2f}':>18}", flush=True
            )
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    sys.exit(any(statistics.median(row["cpu_ms_a_second"]) >= BOUND for row in rows))


if __name__ == "__main__":
    main()
