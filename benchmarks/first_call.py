"""How long a job takes to begin: ``python benchmarks/first_call.py [--ranks 2,64] [--repeats N] [--json FILE]``.

"meet" is ``hocket.init`` and a barrier. Then each of the calls is made for the first time, which compiles its program,
and once more; that of 8 KB 300 times more, as many of those touch memory for the first time. Seconds are from when the
first rank begins until the last has ended, with a barrier before; CPU seconds are those of all ranks together, and
depend less on what else the machine does. That processes start is not counted. Medians of N jobs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator

RANKS = (2, 4, 8, 16, 32, 64, 128)
CALLS = {"8 B": 8, "8 KB": 8 << 10, "1 MB": 1 << 20, "1 MB shared": 1 << 20}
"""AllReduces of so many bytes: a program for small buffers, one for large ones, one for arrays of ``comm.empty``."""
TURNS = {"first": 1, "again": 1, "300 more": 300}

Span = tuple[float, float, float]
"""When something began and ended on a rank, and the CPU seconds that it took there."""


def measured(begin: Callable[[], object]) -> Span:
    used, begun = time.process_time(), time.monotonic()
    begin()
    return begun, time.monotonic(), time.process_time() - used


def repeat(times: int, call: Callable[[], object]) -> None:
    for _ in range(times):
        call()


def job(comm: Communicator) -> dict[str, Span]:
    """What a rank measures. ``comm`` is that of ``spawn``: those that are measured here come after all imports."""
    found = {}
    met: list[Communicator] = []
    comm.barrier()
    found["meet"] = measured(lambda: (met.append(hocket.init()), met[0].barrier()))
    (comm,) = met
    for name, size in CALLS.items():
        x = comm.empty(size // 8, np.float64) if "shared" in name else np.empty(size // 8)
        x[:] = comm.rank
        for turn, calls in TURNS.items():
            if calls == 1 or name == "8 KB":
                comm.barrier()
                found[f"{name}, {turn}"] = measured(partial(repeat, calls, partial(comm.all_reduce, x)))
    comm.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=RANKS)
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    print(f"{'ranks':>6}  {'what':24}{'seconds':>10}{'CPU seconds':>14}")
    rows = []
    for ranks in given.ranks:
        jobs = [hocket.spawn(job, ranks) for _ in range(given.repeats)]
        for what in jobs[0][0]:
            spans = [[found[what] for found in ranks_found] for ranks_found in jobs]
            seconds = median(max(end for _, end, _ in of) - min(begin for begin, _, _ in of) for of in spans)
            cpu = median(sum(used for _, _, used in of) for of in spans)
            rows.append({"ranks": ranks, "what": what, "seconds": seconds, "cpu_seconds": cpu})
            print(f"{ranks:6}  {what:24}{seconds:10.4f}{cpu:14.3f}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
