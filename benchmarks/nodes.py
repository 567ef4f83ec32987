"""Programs for several nodes beside those for one: ``HOCKET_NODES=2+2 mpiexec -n 4 python benchmarks/nodes.py``.

A collective by name, which takes a program in two levels, the same in the program that ranks of one machine take, and
the MPI's own collective make calls in windows that take turns. For each size: microseconds of a call of each, how often
the first fits into the second and the third, with quartiles over rounds, and the bytes of messages that one call of the
first two sends between nodes, in all.
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
SIDES = ("two levels", "flat", "MPI's own")

Call = Callable[[], object]
Buffer = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def sides(comm: hocket.Communicator, name: str, size: int) -> tuple[Call, ...]:
    """Calls whose larger buffer has ``size`` bytes: by name, in the program for one machine, and the MPI's own."""
    n = max(comm.size, size // 4 // comm.size * comm.size)
    whole, part = np.ones(n, np.float32), np.ones(n // comm.size, np.float32)
    x = part if name == "all_gather" else whole
    out = {"all_gather": whole, "reduce_scatter": part, "all_to_all": np.empty_like(whole)}.get(name, x)
    program = default_program(name, comm.size, small=is_small(name, comm.size, size))
    schedule = program.compile()
    ours = comm.prepare(name, x.size, "float32", in_place=out is x)
    target = out if name != "reduce" or comm.rank == 0 else None
    flat: tuple[Buffer | None, Buffer | None] = (x, target)
    if name in ("broadcast", "reduce") and comm.rank != 0:
        flat = (x, None) if name == "reduce" else (None, x)
    return lambda: ours(x, out), lambda: comm.run(schedule, *flat), mpi_call(name, x, out)


def mpi_call(name: str, x: Buffer, out: Buffer) -> Call:
    world = MPI.COMM_WORLD
    if name == "broadcast":
        return lambda: world.Bcast(x)
    if name == "reduce":
        return lambda: world.Reduce(MPI.IN_PLACE if world.rank == 0 else x, x)
    if name == "all_reduce":
        return lambda: world.Allreduce(MPI.IN_PLACE, x)
    call = {"all_gather": world.Allgather, "reduce_scatter": world.Reduce_scatter_block, "all_to_all": world.Alltoall}
    return lambda: call[name](x, out)


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
            heads = "".join(f"{side:>12}" for side in SIDES)
            print(f"{'':16}{'bytes':>10}{heads}   flat{'':16}MPI's own{'':11}bytes between nodes", flush=True)
        for name in given.collective:
            logs: tuple[list[float], ...] = ([], [])
            for size in given.sizes:
                calls = sides(comm, name, size)
                bytes_each = [crossed(comm, call) for call in calls[:2]]
                turns = [max(3, min(2000, int(1e6 * given.seconds / window(comm, call, 3)))) for call in calls]
                took: tuple[list[float], ...] = ([], [], [])
                for number in range(given.rounds):
                    for which in sorted(range(3), reverse=number % 2 == 0):
                        took[which].append(window(comm, calls[which], turns[which]))
                ratios = ""
                for log, others in zip(logs, took[1:], strict=True):
                    low, middle, high = quantiles((b / a for a, b in zip(took[0], others, strict=True)), n=4)
                    log.append(math.log(middle))
                    ratios += f"   {middle:5.2f} [{low:.2f}, {high:.2f}]"
                if says:
                    times = "".join(f"{median(found):12.1f}" for found in took)
                    print(f"{name:16}{size:10}{times}{ratios}   {bytes_each[0]} {bytes_each[1]}", flush=True)
            if says:
                means = " ".join(f"{math.exp(sum(log) / len(log)):.2f}" for log in logs)
                print(f"{name:16}geometric means of the ratios: {means}", flush=True)


if __name__ == "__main__":
    main()
