"""Calls of an MPI program through hocket's library beside the MPI's own, in turns: ``python benchmarks/mpi_pairs.py``.

mpi_pairs.c has the library under it, and makes turns of about a millisecond of calls through it and of calls of the MPI
itself, in one process. So both meet a machine, whose speed changes by the second, in the same state, and a ratio is
known to a few parts in a hundred; launches of OSU's programs (mpi_speed.py) differ by more. ``--control``: without the
library, so that both turns are the same. ``--fresh``: before each call, and outside its time, each rank stores to what
it sends, as a program does that computes it. OSU's programs do not: a rank that attaches then finds in its own cache
what it has read before.

A ratio is the time through the library to that of the MPI itself: the median over turns of a launch, then the geometric
mean over launches, with a 95 % interval. Below them, geometric means from 16 KB up, as times as fast: as the same MPI,
and as the MPI that is fastest at each size, which is the one with the largest ratio there. So only what was measured in
one process is compared, as launches of the MPIs meet a machine in other states.

``--bare``: in place of the library, what two ranks cannot do without in an Allgather or Alltoall, in each of several
ways: copies through slots in shared memory, or cross-memory attach, with no agreement, no choice and no errors. The
least over the ways at each size is what copies alone take here, by plain code.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from machine import describe, title
from mpi_jobs import (
    BOUND,
    COLLECTIVES,
    LARGE,
    Mpi,
    add_job_arguments,
    add_speed_arguments,
    given_options,
    with_library,
)
from paired import Mean
from peers import HERE, run

from hocket.cli.target import parse_size

BARE = ("cached 16K", "cached 64K", "cached 256K", "nt 16K", "nt 64K", "nt 256K", "cma 0")
"""Stores of the slots' messages, and bytes of one; cma: cross-memory attach."""

Launch = dict[int, list[tuple[float, float]]]
"""By bytes, and then for each turn: microseconds of a call through the library, and of one of the MPI itself."""


def measure(mpi: Mpi, program: Path, collective: str, way: str, given: argparse.Namespace) -> Launch:
    """``way``: of BARE, or "" for the library."""
    variables = {} if given.control or way else with_library(given.library, given_options(given))
    command = [str(program), collective, *map(str, (given.begin, given.end, given.turns, int(given.fresh)))]
    if way:
        stores, chunk = way.split()
        command += [stores, str(parse_size(chunk))]
    ended = mpi.run(given.ranks, command, variables, given.timeout)
    if ended.failure:
        sys.exit(f"{collective}: {ended.failure}\n{ended.err[-2000:]}")
    found: Launch = defaultdict(list)
    for line in ended.out.splitlines():
        size, through, itself = line.split()
        found[int(size)].append((float(through), float(itself)))
    return found


def show(collective: str, way: str, launches: dict[str, list[Launch]]) -> tuple[list[str], dict[int, float]]:
    """What is slower by more than 5 %; and the logarithm of the ratio to the MPI that is fastest at each size."""
    slow = []
    sizes = list(next(iter(launches.values()))[0])
    to_fastest = dict.fromkeys(sizes, -math.inf)
    for name, mine in launches.items():
        through_what = f"bare, {way}," if way else "through the library"
        print(f"\n{collective}, {name}: bytes, us {through_what} and of the MPI itself, ratio")
        logs: dict[int, list[float]] = {}
        for size in sizes:
            through, itself = (
                statistics.median(turn[side] for launch in mine for turn in launch[size]) for side in (0, 1)
            )
            logs[size] = [statistics.median(math.log(a / b) for a, b in launch[size]) for launch in mine]
            to_fastest[size] = max(to_fastest[size], statistics.fmean(logs[size]))
            mean = Mean.of([[log] for log in logs[size]])
            print(f"{size:>9}{through:12.2f}{itself:12.2f}   {mean or math.exp(logs[size][0])}", flush=True)
            if mean and mean.low > BOUND:
                slow.append(f"{collective} {size} {name} {mean}")
        large = [[-logs[size][number] for size in sizes if size >= LARGE] for number in range(len(mine))]
        print(f"from 16 KB up {Mean.of(large) or '-'} times as fast as {name}")
    return slow, to_fastest


def show_fastest(ways: Sequence[dict[int, float]]) -> None:
    """By what ``show`` returned of each way."""
    least = {size: min(way[size] for way in ways) for size in ways[0]}
    if len(ways) > 1:
        rows = (f"{size} {math.exp(log):.2f}" for size, log in least.items())
        print(f"\nthe least over the ways, of the fastest MPI's time at each size: {', '.join(rows)}")
    if large := [-log for size, log in least.items() if size >= LARGE]:
        faster = math.exp(statistics.fmean(large))
        print(f"from 16 KB up {faster:.2f} times as fast as the fastest of all at each size")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_job_arguments(parser)
    add_speed_arguments(parser, COLLECTIVES, launches=5)
    parser.add_argument("--turns", type=int, default=24, metavar="N", help="of either, in a launch")
    parser.add_argument("--fresh", action="store_true", help="each rank stores to what it sends before each call")
    parser.add_argument("--control", action="store_true", help="without the library")
    parser.add_argument("--bare", action="store_true", help="the least that an exchange of two ranks takes, instead")
    given = parser.parse_args()
    if given.bare and (given.ranks != 2 or not set(given.only) <= {"allgather", "alltoall"}):
        parser.error("--bare is for two ranks and --only allgather alltoall")
    return given


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended as after Ctrl-C
    if not given.library.exists():
        sys.exit(f"there is no {given.library}")
    machine = describe() | {
        "ranks": given.ranks,
        "min-bytes": given.min_bytes,
        "control": given.control,
        "fresh": given.fresh,
        "bare": given.bare,
    }
    print(title(machine), flush=True)
    mpis = [Mpi.found(text, given.cache) for text in given.mpi]
    slow, everything = [], {}
    with tempfile.TemporaryDirectory() as work:
        programs = {mpi: Path(work, mpi.name) for mpi in mpis}
        for mpi, program in programs.items():
            run(["mpicc", "-O2", str(HERE / "mpi_pairs.c"), "-o", str(program), "-ldl"], 300, mpi.variables())
        ways = BARE if given.bare else ("",)
        for collective in given.only:
            launches: dict[str, dict[str, list[Launch]]] = {way: {mpi.name: [] for mpi in mpis} for way in ways}
            for number in range(given.launches):
                for way in ways:
                    for mpi in mpis[:: -1 if number % 2 else 1]:
                        launches[way][mpi.name].append(measure(mpi, programs[mpi], collective, way, given))
            shown = [show(collective, way, of_way) for way, of_way in launches.items()]
            slow += [cell for cells, _ in shown for cell in cells]
            show_fastest([ratios for _, ratios in shown])
            everything[collective] = launches
            if given.json is not None:
                given.json.write_text(json.dumps({"machine": machine, "times": everything}) + "\n")
    if not given.bare:
        print(f"\nslower by more than 5 %: {'; '.join(slow) or 'nothing'}")


if __name__ == "__main__":
    main()
