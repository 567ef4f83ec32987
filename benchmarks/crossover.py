"""Which program of a collective is fastest, by size: ``python benchmarks/crossover.py [--ranks P ...] [--json FILE]``.

Of each collective by name, the programs that the choice is made from (hocket/tuning.py) run in turn on the same
buffers, back to back, in float32. A row has the microseconds of a call of the first, and the time of each other in
units of that: medians over batches, in each of which all have run, of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator, Program
from hocket.algorithms import all_pairs, chain, direct, knomial, movement_avoiding, recursive_halving, ring, tree
from hocket.cli.measure import unit

BATCHES = 20
TILES = {"16 KB tiles": 16 << 10, "32 KB tiles": 32 << 10}
"""Tiles of candidates, in bytes; others have what the runtime chooses."""

CANDIDATES: dict[str, dict[str, Callable[[int], Program]]] = {
    "all_reduce": {
        "one-shot": all_pairs.one_shot_all_reduce,
        "all pairs": all_pairs.all_reduce,
        "chains": movement_avoiding.all_reduce,
        "ring": ring.all_reduce,
        "halving": recursive_halving.all_reduce,
    },
    "all_gather": {"direct": direct.all_gather, "ring": ring.all_gather},
    "reduce_scatter": {"direct": direct.reduce_scatter, "ring": ring.reduce_scatter},
    "broadcast": {
        "flat": lambda p: knomial.broadcast(p, max(2, p)),
        "32 KB tiles": lambda p: knomial.broadcast(p, max(2, p)),
        "tree": tree.broadcast,
        "chain": chain.broadcast,
    },
    "reduce": {
        "flat": lambda p: knomial.reduce(p, max(2, p)),
        "16 KB tiles": lambda p: knomial.reduce(p, max(2, p)),
        "32 KB tiles": lambda p: knomial.reduce(p, max(2, p)),
        "tree": tree.reduce,
        "chain": chain.reduce,
    },
}


def measure(comm: Communicator, name: str, sizes: list[int]) -> list[list[list[float]]]:
    """For each size and program, the seconds of a call in each batch."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    schedules = [(make(comm.size).compile(), TILES.get(label)) for label, make in CANDIDATES[name].items()]
    collective, rank = schedules[0][0].collective, comm.rank
    found = []
    for size in sizes:
        n = unit(collective, size, "float32")
        x = np.ones(collective.input_blocks(rank) * n, np.float32)
        out = np.ones(collective.output_blocks(rank) * n, np.float32)
        calls = max(3, min(100, (1 << 21) // size))
        seconds: list[list[float]] = [[] for _ in schedules]
        for _ in range(BATCHES):
            for (schedule, tile), times in zip(schedules, seconds, strict=True):
                comm.run(schedule, x if len(x) else None, out if len(out) else None, tile=tile)
                comm.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    comm.run(schedule, x if len(x) else None, out if len(out) else None, tile=tile)
                times.append((time.perf_counter() - begin) / calls)
        found.append(seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--collective", choices=CANDIDATES, nargs="+", default=list(CANDIDATES))
    parser.add_argument("--begin", type=int, default=8, metavar="BYTES")
    parser.add_argument("--end", type=int, default=1 << 20, metavar="BYTES")
    parser.add_argument("--step", type=int, default=2, metavar="FACTOR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    sizes = [given.begin]
    while sizes[-1] * given.step <= given.end:
        sizes.append(sizes[-1] * given.step)
    rows = []
    for name in given.collective:
        programs = list(CANDIDATES[name])
        print(f"{name:16}{'ranks':>6}{'bytes':>10}" + "".join(f"{program:>12}" for program in programs))
        for ranks in given.ranks:
            results = hocket.spawn(measure, ranks, (name, sizes), threads=1)
            for size, *of_ranks in zip(sizes, *results, strict=True):
                slowest = np.max(of_ranks, axis=0)  # by program and batch
                first = float(np.median(slowest[0])) * 1e6
                ratios = np.median(slowest / slowest[0], axis=1).tolist()
                times = dict(zip(programs, ratios, strict=True))
                rows.append({"collective": name, "ranks": ranks, "bytes": size, "us": first, "times": times})
                print(f"{'':16}{ranks:6}{size:10}{first:12.1f}" + "".join(f"{r:12.2f}" for r in ratios[1:]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
