"""A call in the background beside a synchronous one: ``python benchmarks/background.py [--sizes 8,4K] [--launches N]``.

Both are of one prepared all_reduce on private arrays, in turns: ``call(x, out)``, and ``call.start(x, out).wait()``
with nothing in between. Microseconds are medians over turns of a hundred calls each, a ratio is that of the two in one
launch, with a 95 % interval over launches.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median

import numpy as np
from machine import describe, title
from paired import Mean

import hocket
from hocket import Communicator
from hocket.tunables import parse_size, show_size

CALLS = 100

Times = tuple[float, float]
"""Seconds of a synchronous call, and of one in the background."""


def job(comm: Communicator, size: int, turns: int) -> Times:
    x = np.ones(size // 4, np.float32)
    out = np.empty_like(x)
    call = comm.prepare("all_reduce", x.shape, x.dtype)
    took: tuple[list[float], list[float]] = [], []
    for _ in range(turns):
        for background, times in enumerate(took):
            comm.barrier()
            begun = time.perf_counter()
            if background:
                for _ in range(CALLS):
                    call.start(x, out).wait()
            else:
                for _ in range(CALLS):
                    call(x, out)
            times.append((time.perf_counter() - begun) / CALLS)
    warm = turns // 10
    return median(took[0][warm:]), median(took[1][warm:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [parse_size(word) for word in text.split(",")], default=(8, 4096))
    parser.add_argument("--launches", type=int, default=6, metavar="N")
    parser.add_argument("--turns", type=int, default=200, metavar="N", help="of each, in a launch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    print(f"{'bytes':>8}{'us':>10}{'background':>12}   ratio")
    rows = []
    for size in given.sizes:
        launches = [hocket.spawn(job, given.ranks, (size, given.turns))[0] for _ in range(given.launches)]
        ratio = Mean.of([[math.log(background / at_once)] for at_once, background in launches])
        at_once, background = (1e6 * median(times) for times in zip(*launches, strict=True))
        print(f"{show_size(size):>8}{at_once:10.2f}{background:12.2f}   {ratio}", flush=True)
        rows.append({"bytes": size, "launches": launches})
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
