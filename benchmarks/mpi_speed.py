"""MPI programs with hocket under them beside the same without: ``python benchmarks/mpi_speed.py SOURCES_DIR``.

OSU's Allreduce, Reduce, Bcast, Allgather and Alltoall; miniAMR; a data-parallel step through mpi4py (mpi_step.py).
SOURCES_DIR, environments and builds: as for mpi_clients.py. Launches without and with the library take turns, for each
MPI, and the order changes every time. OSU's figure is the mean over calls, then over ranks.

A ratio is the time with the library to that without: the geometric mean over launches, each of one to the same of the
other, with a 95 % interval; those wholly above 1.05 are listed at the end. "not slower from": from that size up no
interval lies wholly above 1; with ``--min-bytes 0`` that is the crossover. Means are over sizes from 16 KB up, as times
as fast: as the same MPI alone, and as the MPI that is fastest alone at each size.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import describe, title
from mpi_clients import REFINE
from mpi_jobs import (
    BOUND,
    COLLECTIVES,
    LARGE,
    REPORT,
    Ended,
    Mpi,
    add_arguments,
    add_speed_arguments,
    given_options,
    place,
    with_library,
)
from paired import Mean

PROGRAMS = (*COLLECTIVES, "miniamr", "step")

Times = dict[str, float]
"""Of one launch, by size or by part of a program."""


def command(mpi: Mpi, program: str, given: argparse.Namespace) -> list[str]:
    """Raises Missing."""
    if program == "step":
        return [mpi.python, str(Path(__file__).with_name("mpi_step.py")), str(given.steps)]
    if program == "miniamr":
        where = place(mpi, given.sources / "miniamr.tar.xz", given.cache)
        dimensions = ["--npx", str(given.ranks), "--npy", "1", "--npz", "1"]
        return [str(where / "miniamr" / "ref" / "miniAMR.x"), *dimensions, *REFINE.split()]
    where = place(mpi, given.sources / "osu.tar.xz", given.cache)
    sizes = ["-m", f"{given.begin}:{given.end}", "-M", str(4 * given.ranks * given.end)]
    return [str(where / "osu" / "mpi" / "collective" / f"osu_{program}.x"), *sizes, *given.osu.split()]


def times(program: str, ended: Ended) -> Times:
    """Microseconds, of miniAMR seconds, of a step milliseconds."""
    if program == "miniamr":
        summary = re.search(r"^Summary: .*", ended.out, re.MULTILINE)
        parts = re.findall(r"(time|comm|red|refine) ([\d.]+)", summary[0] if summary else "")
    else:
        parts = re.findall(r"^([\w-]+) +([\d.]+)", ended.out, re.MULTILINE)
    if ended.failure or not parts:
        sys.exit(f"{program}: {ended.failure or 'no figures'}\n{ended.out[-2000:]}{ended.err[-2000:]}")
    return {name: float(value) for name, value in parts}


def ratio(ours: Sequence[Times], theirs: Sequence[Times], names: Sequence[str]) -> Mean | None:
    """Over names in each launch, then over launches."""
    logs = [
        [math.log(a[name] / b[name]) for name in names if a[name] and b[name]]
        for a, b in zip(ours, theirs, strict=True)
    ]
    return Mean.of(logs)


class Found:
    """The launches of one program, by MPI and whether the library was under it."""

    def __init__(self, program: str, mpis: Sequence[Mpi]) -> None:
        self.program = program
        self.launches: dict[str, dict[bool, list[Times]]] = {mpi.name: {False: [], True: []} for mpi in mpis}
        self.taken = dict.fromkeys(self.launches, 0)
        self.slow: list[str] = []  # what is slower by more than BOUND, once lines() has been asked

    def median(self, mpi: str, library: bool, name: str) -> float:
        return statistics.median(launch[name] for launch in self.launches[mpi][library])

    def fastest(self, names: Sequence[str]) -> list[Times]:
        """Launches without the library, at each name those of the MPI whose median is the least."""
        best = {name: min(self.launches, key=lambda mpi: self.median(mpi, False, name)) for name in names}
        count = min(len(sides[False]) for sides in self.launches.values())
        return [
            {name: self.launches[mpi][False][number][name] for name, mpi in best.items()} for number in range(count)
        ]

    def lines(self, mpi: str) -> Iterator[str]:
        sides = self.launches[mpi]
        names = list(sides[False][0])
        unit = {"miniamr": "s", "step": "ms"}.get(self.program, "us")
        yield f"\n{self.program}, {mpi}, {unit} without and with, {self.taken[mpi]} calls of a launch taken"
        slower: list[int] = []
        for name in names:
            mean = ratio(sides[True], sides[False], [name])
            without, under = (f"{self.median(mpi, library, name):12.2f}" for library in (False, True))
            yield f"{name:>12}{without}{under}   {mean or ''}"
            if mean and mean.low > BOUND:
                self.slow.append(f"{self.program} {name} {mpi} {mean}")
            if mean and mean.low > 1 and name.isdigit():
                slower.append(int(name))
        if self.program not in COLLECTIVES:
            return
        sizes = [int(name) for name in names]
        yield f"not slower from {min((size for size in sizes if size > max(slower, default=0)), default='no size')}"
        large = [name for name in names if int(name) >= LARGE]
        beside = {mpi: sides[False]} | ({"the fastest": self.fastest(large)} if len(self.launches) > 1 else {})
        for other, theirs in beside.items():
            mean = ratio(theirs, sides[True], large)
            yield f"from 16 KB up {mean or '-'} times as fast as {other}"


def measure(found: Found, mpis: Sequence[Mpi], given: argparse.Namespace) -> None:
    preloaded = with_library(given.library, given_options(given))
    commands = {mpi: command(mpi, found.program, given) for mpi in mpis}
    for launch in range(given.launches):
        for mpi in mpis[:: -1 if launch % 2 else 1]:
            for library in (False, True)[:: -1 if launch % 2 else 1]:
                ended = mpi.run(given.ranks, commands[mpi], preloaded if library else {}, given.timeout)
                found.launches[mpi.name][library].append(times(found.program, ended))
    for mpi in mpis:
        ended = mpi.run(given.ranks, commands[mpi], preloaded | REPORT, given.timeout)
        times(found.program, ended)
        found.taken[mpi.name] = ended.taken


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    add_speed_arguments(parser, PROGRAMS, launches=7)
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="data-parallel, of a launch")
    parser.add_argument("--osu", default="", metavar="OPTIONS", help="further ones of OSU's programs: '-i 20 -x 5'")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended as after Ctrl-C
    if not given.library.exists():
        sys.exit(f"there is no {given.library}")
    machine = describe() | {"ranks": given.ranks, "min-bytes": given.min_bytes}
    print(title(machine), flush=True)
    mpis = [Mpi.found(text, given.cache) for text in given.mpi]
    everything = {}
    slow = []
    for program in given.only:
        found = Found(program, mpis)
        measure(found, mpis, given)
        for mpi in mpis:
            print("\n".join(found.lines(mpi.name)), flush=True)
        slow += found.slow
        everything[program] = {mpi: {"without": it[False], "with": it[True]} for mpi, it in found.launches.items()}
        if given.json is not None:
            given.json.write_text(json.dumps({"machine": machine, "times": everything}, indent=1) + "\n")
    print(f"\nslower by more than 5 %: {'; '.join(slow) or 'nothing'}")


if __name__ == "__main__":
    main()
