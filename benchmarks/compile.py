"""How compiling and proving scale: CPU seconds and peak memory, from tracing a program to its proven schedule.

    python benchmarks/compile.py [PROGRAM ...] [--most RANKS] [--json FILE] [--plot FILE]

Each row is a fresh process that does what a user does, ``algorithm(ranks).compile()``, and measures ``process_time``.
The column "proof" is the part of the total that is the proof, measured by doing it once more: the postcondition of the
program, then the form, deadlock, races and postcondition of the schedule. "MB" is the peak of resident memory above
what it was with hocket imported. The exponent is the slope between the first and the last row of a program, on
logarithmic axes over chunk-operations (the sum of counts). Exits with 1 if a bound is broken. 1024 ranks, which want
some GB and minutes, are left out unless ``--most 1024`` asks for them.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import hocket
from hocket.algorithms import all_pairs, hierarchical, recursive_halving, ring, two_step
from hocket.verify import prove

GPUS = 8
"""Ranks of a node, where a program has nodes."""

EXPONENT = 1.15
"""At most, for time and for memory."""


def bounce(hops: int) -> hocket.Program:
    """One chunk, back and forth between two ranks."""
    with hocket.Program(hocket.AllReduce(2, inplace=True), name="bounce") as program:
        c = hocket.chunk(0, "in", 0).reduce(hocket.chunk(1, "in", 0))
        for hop in range(hops):
            c = c.copy((hop + 1) % 2, "in")
    return program


@dataclass(frozen=True)
class Series:
    """One program over growing sizes. ``seconds`` and ``megabytes`` bound some of them.

    ``storage`` is what it is compiled for.
    """

    build: Callable[[int], hocket.Program]
    sizes: tuple[int, ...]
    seconds: dict[int, float]
    megabytes: dict[int, float]
    storage: str = "fifo"


RANKS = (64, 128, 256, 1024)

SERIES: dict[str, Series] = {
    "ring": Series(ring.all_reduce, RANKS, {128: 1.5, 256: 6.0, 1024: 100.0}, {1024: 8e3}),
    "hierarchical": Series(lambda n: hierarchical.all_reduce(n // GPUS, GPUS), RANKS, {128: 1.0, 256: 4.0}, {}),
    "halving-doubling": Series(recursive_halving.all_reduce, RANKS, {128: 1.0, 256: 4.0}, {}),
    "all-pairs": Series(all_pairs.all_reduce, RANKS[:3], {256: 8.0}, {}),
    "all-pairs-peer": Series(all_pairs.all_reduce, RANKS[:3], {256: 12.0}, {}, storage="peer"),
    "two-step": Series(lambda n: two_step.all_to_all(n // GPUS, GPUS), RANKS, {256: 8.0}, {}),
    "bounce": Series(bounce, (500, 1000, 2000), {2000: 0.1}, {}),
}


@dataclass(frozen=True)
class Row:
    """One measurement. ``size`` is ranks, for "bounce" hops; times are CPU seconds, memory is in units of 1e6 bytes."""

    program: str
    size: int
    operations: int
    trace: float
    compile: float
    proof: float
    megabytes: float

    @property
    def total(self) -> float:
        return self.trace + self.compile

    def broken(self) -> bool:
        series = SERIES[self.program]
        too_slow = self.total > series.seconds.get(self.size, math.inf)
        return too_slow or self.megabytes > series.megabytes.get(self.size, math.inf)


def peak() -> float:
    """Peak resident memory of this process alone; ``getrusage`` would count what it was forked from."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


def measure(program: str, size: int) -> Row:
    before = peak()
    start = process_time()
    built = SERIES[program].build(size)
    traced = process_time()
    schedule = built.compile(storage=SERIES[program].storage)
    compiled = process_time()
    megabytes = peak() - before
    gc.disable()  # as in ``compile``
    again = process_time()
    prove(schedule)
    proof = process_time() - again
    operations = sum(node.dst.count for _, node in built.chunk_dag.operations())
    return Row(program, size, operations, traced - start, compiled - traced, proof, megabytes)


def measure_apart(program: str, size: int) -> Row:
    command = [sys.executable, __file__, program, "--row", str(size)]
    return Row(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def slope(rows: list[Row], value: Callable[[Row], float]) -> float:
    first, last = rows[0], rows[-1]
    return math.log(value(last) / value(first)) / math.log(last.operations / first.operations)


def plot(rows: dict[str, list[Row]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, memory = figure.subplots(1, 2)
    for name, its in rows.items():
        at = [row.operations for row in its]
        times.plot(at, [row.total for row in its], marker="o", label=name)
        memory.plot(at, [row.megabytes for row in its], marker="o", label=name)
    for axes, label in ((times, "CPU seconds, trace to proven schedule"), (memory, "peak memory, MB")):
        axes.set(xlabel="chunk-operations", ylabel=label, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    times.legend()
    figure.savefig(file)


def main() -> int:
    parser = argparse.ArgumentParser(description="How compiling and proving scale.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(SERIES))
    parser.add_argument("--most", type=int, default=256, metavar="RANKS", help="leave out more ranks than this (256)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.programs or list(SERIES)
    if unknown := set(names) - set(SERIES):
        parser.error(f"there is no program {min(unknown)!r}; there are {', '.join(SERIES)}")
    if options.row is not None:
        print(json.dumps(asdict(measure(names[0], options.row))))
        return 0

    rows: dict[str, list[Row]] = {}
    head = ("program", "ranks", "chunk-ops", "trace", "compile", "(proof)", "total", "bound", "us/op", "MB")
    print("{:16} {:>6} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7}".format(*head), flush=True)
    for name in names:
        series = SERIES[name]
        for size in series.sizes:
            if name != "bounce" and size > options.most:
                continue
            row = measure_apart(name, size)
            rows.setdefault(name, []).append(row)
            bound = series.seconds.get(size)
            print(
                f"{name:16} {size:6} {row.operations:10} {row.trace:8.3f} {row.compile:8.3f} {row.proof:8.3f} "
                f"{row.total:8.3f} {'' if bound is None else bound:>7} {row.total / row.operations * 1e6:7.1f} "
                f"{row.megabytes:7.0f}{'  over its bound' if row.broken() else ''}",
                flush=True,
            )
    exponents = {}
    for name, its in rows.items():
        if len(its) > 1:
            time, memory = slope(its, lambda row: row.total), slope(its, lambda row: row.megabytes)
            exponents[name] = {"time": time, "memory": memory}
            print(f"{name:16} exponent of time {time:.2f}, of memory {memory:.2f}")
    if options.json:
        saved = {"rows": [asdict(row) for its in rows.values() for row in its], "exponents": exponents}
        options.json.write_text(json.dumps(saved, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    steep = any(value > EXPONENT for found in exponents.values() for value in found.values())
    return int(steep or any(row.broken() for its in rows.values() for row in its))


if __name__ == "__main__":
    sys.exit(main())
