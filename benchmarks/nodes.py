"""Programs for several nodes beside those for one: ``HOCKET_NODES=2+2 mpiexec -n 4 python benchmarks/nodes.py``.

A collective by name, which takes a program in two levels, and the same in the program that ranks of one machine take,
make calls in windows that take turns. For each size: microseconds of a call of either, how often the first fits into
the second, with its quartiles over rounds, and the bytes of messages that one call sends between nodes, in all.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np
from machine import describe, title
from mpi4py import MPI

import hocket
from hocket.tuning import default_program, is_small

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
SIDES = ("two levels", "flat")

Call = Callable[[], object]


def sides(comm: hocket.Communicator, name: str, size: int) -> tuple[Call, Call]:
    """Two calls whose larger buffer has ``size`` bytes: by name, and in the program for ranks of one machine."""
    n = max(comm.size, size // 4 // comm.size * comm.size)
    whole, part = np.ones(n, np.float32), np.ones(n // comm.size, np.float32)
    x = part if name == "all_gather" else whole
    out = {"all_gather": whole, "reduce_scatter": part, "all_to_all": np.empty_like(whole)}.get(name, x)
    program = default_program(name, comm.size, small=is_small(name, comm.size, size))
    schedule = program.compile()
    ours = comm.prepare(name, x.size, "float32", in_place=out is x)
    target = out if name != "reduce" or comm.rank == 0 else None
    if name in ("broadcast", "reduce") and comm.rank != 0:
        flat = (x, None) if name == "reduce" else (None, x)
        return (lambda: ours(x, x)), lambda: comm.run(schedule, *flat)
    return (lambda: ours(x, out)), lambda: comm.run(schedule, x, target)


def window(comm: hocket.Communicator, call: Call, calls: int) -> float:
    """Microseconds of a call, by the slowest rank."""
    comm.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    mine = 1e6 * (time.perf_counter() - begun) / calls
    return float(comm.all_reduce(np.array([mine]), op="max")[0])


def crossed(comm: hocket.Communicator, call: Call) -> int:
    """Bytes that one call sends between nodes."""
    before = comm.network_bytes
    call()
    return int(comm.all_reduce(np.array([comm.network_bytes - before]))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", type=int, default=[8 << shift for shift in range(0, 23, 3)])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a window")
    given = parser.parse_args()
    with hocket.init(mpi=MPI.COMM_WORLD) as comm:
        says = comm.rank == 0
        if says:
            print(title(describe() | {"nodes": comm.nodes}), flush=True)
            print(f"{'':16}{'bytes':>10}{SIDES[0]:>12}{SIDES[1]:>12}   ratio{'':16}bytes between nodes", flush=True)
        for name in given.collective:
            logs = []
            for size in given.sizes:
                pair = sides(comm, name, size)
                bytes_each = [crossed(comm, call) for call in pair]
                calls = [max(3, min(2000, int(1e6 * given.seconds / window(comm, call, 3)))) for call in pair]
                took: tuple[list[float], list[float]] = ([], [])
                for number in range(given.rounds):
                    for which in (0, 1) if number % 2 else (1, 0):
                        took[which].append(window(comm, pair[which], calls[which]))
                ratios = [flat / ours for ours, flat in zip(*took, strict=True)]
                low, middle, high = quantiles(ratios, n=4)
                logs.append(math.log(middle))
                if says:
                    print(
                        f"{name:16}{size:10}{median(took[0]):12.1f}{median(took[1]):12.1f}"
                        f"   {middle:.2f} [{low:.2f}, {high:.2f}]   {bytes_each[0]} {bytes_each[1]}",
                        flush=True,
                    )
            if says:
                print(f"{name:16}geometric mean of the ratios: {math.exp(sum(logs) / len(logs)):.2f}", flush=True)


if __name__ == "__main__":
    main()
