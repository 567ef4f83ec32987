"""hocket beside other libraries, in one run: ``python benchmarks/peers.py --collective all_reduce --ranks 2``.

Makes a virtual environment for each of Open MPI, MPICH, Intel MPI (with mpi4py) and Gloo (torch), kept in ``--cache``;
``PIP_EXTRA_INDEX_URL``, set to PyTorch's index of builds for CPUs, spares torch's CUDA. A library that cannot be
installed or run is counted as missing. peers_worker.py is one rank of one library.

Sizes are bytes of a rank's larger buffer, of float32; the operator is a sum, the root rank 0. Every rank is pinned to a
core. Before each iteration all ranks meet in a barrier of our own; each takes the time of its call, from Python, and
the slowest rank's time counts. Hot: one pair of buffers, again and again. Cold: pairs that were not touched since more
than 4x the last-level cache was. First: those pairs when each is used for the first time, which for some libraries
means page faults, or a registration. A launch gives the median and the 95th percentile of a cell; launches of the
libraries take turns, and a table has the median over launches. Results are checked before and after, exactly.

A ratio is hocket's time to that of the MPI which is fastest in that cell: the geometric mean over launches, launch i of
one to launch i of the other, with a 95 % interval (Student's t of the logarithms). "*": wholly above 1.05. "floor":
how much of the time would be enough to read every input and write every output once, at the bandwidth of a copy with
non-temporal stores by all cores in this run; what stays in a cache can beat it. "bare", on two ranks, is no library: a
function of Python that waits for the other rank, does its half on both ranks' shared buffers and waits again, without
a look at anything: a bound on what a library could do.

Exits with 1 if hocket is missing or anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np
from machine import describe, title
from peers_worker import BLOCKWISE, ITEM, Cell, Job, Result, Team

from hocket import _native
from hocket.cli.bench import sizes

HERE = Path(__file__).parent
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
REGIMES = ("hot", "cold", "first")
BOUND = 1.05
WARMUPS, MOST = 20, 2000
QUICK = {"launches": 3, "seconds": 0.05, "factor": 8.0}
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 0.975, for 1 to 10 degrees of freedom; more are taken for 10, a little too wide."""


class Missing(Exception):
    """A library is not there, or did not finish; the text says why."""


@dataclass(frozen=True)
class Contender:
    """``library`` is a name in peers_worker.LIBRARIES; ``requirements`` are pip's, none: this interpreter has it."""

    name: str
    library: str
    requirements: tuple[str, ...]
    colour: str

    @property
    def is_ours(self) -> bool:
        return self.library.startswith("hocket")

    @property
    def is_mpi(self) -> bool:
        return self.library == "mpi"

    def interpreter(self, cache: Path) -> Path:
        """The Python that has the library; its environment is made where there is none yet. Raises Missing."""
        if not self.requirements:
            return Path(sys.executable)
        place = cache / self.name
        python, ready = place / "bin" / "python", place / "ready"
        wanted = [*self.requirements, f"numpy=={np.__version__}"]
        if not (ready.exists() and ready.read_text().split() == wanted):
            print(f"making an environment for {self.name} in {place}", flush=True)
            venv.create(place, clear=True, with_pip=True)
            run([str(python), "-m", "pip", "install", "--quiet", *wanted], 3600)
            ready.write_text("\n".join(wanted))
        return python

    def launcher(self, python: Path, ranks: int, cores: int) -> list[str]:
        """Starts ranks of the rest of the command line."""
        if not self.is_mpi:
            return launcher(ranks)
        crowded = ranks > cores
        binding = {
            "openmpi": ["--bind-to", "none", "--oversubscribe"] if crowded else ["--bind-to", "core"],
            "mpich": [] if crowded else ["-bind-to", "core"],
        }
        return [str(python.with_name("mpiexec")), "-n", str(ranks), *binding.get(self.name, [])]


With = tuple[Contender, Path]
"""A contender, and the Python that has it."""

CONTENDERS = (
    Contender("hocket", "hocket", (), "#D55E00"),
    Contender("hocket, shared buffers", "hocket-shared", (), "#F0A35E"),
    Contender("bare", "bare", (), "#000000"),
    Contender("openmpi", "mpi", ("openmpi", "mpi4py"), "#0072B2"),
    Contender("mpich", "mpi", ("mpich", "mpi4py"), "#009E73"),
    Contender("impi-rt", "mpi", ("impi-rt", "mpi4py"), "#CC79A7"),
    Contender("gloo", "gloo", ("torch==2.13.0",), "#999999"),
)
OURS = tuple(contender.name for contender in CONTENDERS if contender.is_ours)
COMPARED = (*OURS, "bare")
MPIS = tuple(contender.name for contender in CONTENDERS if contender.is_mpi)


def launcher(ranks: int) -> list[str]:
    """hocket's own, which any process can be started with."""
    return [sys.executable, "-c", "from hocket.cli import main; main()", "launch", "-n", str(ranks), "--"]


def run(command: Sequence[str], seconds: float, variables: dict[str, str] | None = None) -> None:
    """Run a command to its end. Raises Missing, with the last it said, if it fails or takes longer."""
    with started(command, variables or {}) as running:
        running.finish(seconds)


@dataclass(frozen=True)
class Running:
    """``said``: a file of what it prints."""

    process: subprocess.Popen[str]
    said: IO[str]

    def finish(self, seconds: float) -> None:
        """Wait for its end. Raises Missing, with the last it said, if it fails or takes longer."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Missing(f"took more than {seconds:g} s") from None
        if status:
            self.said.seek(0)
            raise Missing(f"exit {status}: {' | '.join(self.said.read().strip().splitlines()[-3:])}")


@contextmanager
def started(command: Sequence[str], variables: dict[str, str]) -> Iterator[Running]:
    """A process in a session of its own, all of which ends with the block."""
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=os.environ | variables,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Running(process, said)
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """A launcher that is asked to end takes its ranks with it; one that is killed may leave them."""
    with suppress(ProcessLookupError):  # nobody of its session is left
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def cache_bytes() -> int:
    """Of the third-level cache; 32 MB where the system does not say, and no more than there is of it in any machine."""
    return _native.find_caches(os.cpu_count() or 1, "/sys/devices/system/cpu").third.bytes


def build(source: Path, target: Path) -> None:
    """The shared library of peers_native.cpp. Raises Missing."""
    flags = ["-std=c++17", "-O3", "-march=native", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC"]
    flags.append(f"-I{sysconfig.get_path('include')}")
    run([os.environ.get("CXX", "c++"), *flags, "-o", str(target), str(source)], 300)


@dataclass(frozen=True)
class Launches:
    """Starts processes, all in the same manner."""

    given: argparse.Namespace
    cores: list[int]
    cache: int
    work: Path

    def sizes(self, collective: str) -> list[int]:
        """Bytes of the larger buffer, rounded down to whole elements for each rank, but one at least."""
        unit = ITEM * (self.given.ranks if collective in BLOCKWISE else 1)
        asked = sizes(self.given.begin, self.given.end, self.given.factor)
        return list(dict.fromkeys(max(size // unit, 1) * unit for size in asked))

    @contextmanager
    def started(
        self, start: list[str], python: Path, library: str, collective: str, ranks: int, **turns: Any
    ) -> Iterator[tuple[Running, Path]]:
        """Fresh processes, and where rank 0 writes what it has found. ``turns``: what a Job has of these."""
        segment = os.memfd_create("peers")
        work = Path(tempfile.mkdtemp(dir=self.work))
        path, result = work / "job.json", work / "result.json"
        try:
            os.truncate(segment, Team.segment_bytes(ranks, MOST))
            job = Job(
                collective=collective,
                bytes=self.sizes(collective),
                ranks=ranks,
                cores=self.cores,
                cache=self.cache,
                seconds=self.given.seconds,
                warmups=WARMUPS,
                least=self.given.least,
                most=MOST,
                segment=f"/proc/{os.getpid()}/fd/{segment}",
                native=str(self.work / "native.so"),
                result=str(result),
                **turns,
            )
            path.write_text(json.dumps(asdict(job)))
            variables = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
            variables |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
            worker = [str(python), str(HERE / "peers_worker.py"), library, str(path)]
            with started([*start, *worker], variables) as running:
                yield running, result
        finally:
            os.close(segment)
            shutil.rmtree(work)

    def contender(self, contender: Contender, python: Path, collective: str) -> Result:
        """Raises Missing."""
        (found,) = self.side_by_side([(contender, python)], collective)
        return found

    def side_by_side(self, contenders: Sequence[With], collective: str, rounds: int = 1) -> list[Result]:
        """Of jobs that are there at once, and measure each cell in turns. Raises Missing as soon as one fails."""
        ranks, count = self.given.ranks, len(contenders)
        with ExitStack() as jobs:
            pipes = jobs.enter_context(tempfile.TemporaryDirectory(dir=self.work))
            for number, rank in product(range(count), range(ranks)):
                os.mkfifo(f"{pipes}/{number}-{rank}")
            jobs_by_end, results = {}, []
            for number, (contender, python) in enumerate(contenders):
                start = contender.launcher(python, ranks, len(self.cores))
                turns = {"turn": f"{pipes}/{number}", "next": f"{pipes}/{(number + 1) % count}", "first": number == 0}
                job = self.started(start, python, contender.library, collective, ranks, rounds=rounds, **turns)
                running, result = jobs.enter_context(job)
                end_of_it = os.pidfd_open(running.process.pid)
                jobs.callback(os.close, end_of_it)
                jobs_by_end[end_of_it] = running
                results.append(result)
            deadline = time.monotonic() + self.given.timeout
            while jobs_by_end:
                ended, _, _ = select.select(jobs_by_end, [], [], max(0.0, deadline - time.monotonic()))
                if not ended:
                    raise Missing(f"took more than {self.given.timeout:g} s")
                for each in ended:
                    jobs_by_end.pop(each).finish(self.given.timeout)
            raw = [json.loads(result.read_text()) for result in results]
        return [Result(**each | {"cells": [Cell(**cell) for cell in each["cells"]]}) for each in raw]

    def memory(self) -> dict[str, float]:
        """Raises Missing."""
        cores = len(self.cores)
        with self.started(launcher(cores), Path(sys.executable), "memory", "", cores) as (running, result):
            running.finish(self.given.timeout)
            found: dict[str, float] = json.loads(result.read_text())
        return found


@dataclass(frozen=True)
class Ratio:
    """Of one library's time to another's; the ends of the interval are None after a single launch."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """From times by launch."""
        logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
        mean = statistics.fmean(logs)
        if len(logs) == 1:
            return cls(math.exp(mean), None, None)
        half = T95[min(len(logs) - 1, len(T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    @property
    def is_slower(self) -> bool:
        return self.low is not None and self.low > BOUND

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.mean:.2f}{interval}{'*' if self.is_slower else ' '}"


@dataclass(frozen=True)
class Row:
    """One size in one regime: each library's cells, one for each launch. ``floor`` in microseconds."""

    collective: str
    regime: str
    bytes: int
    floor: float
    cells: dict[str, list[Cell]]

    def medians(self, name: str) -> list[float]:
        return [cell.median for cell in self.cells[name]]

    def median(self, name: str) -> float:
        return statistics.median(self.medians(name))

    def p95(self, name: str) -> float:
        return statistics.median(cell.p95 for cell in self.cells[name])

    def fastest_mpi(self) -> str | None:
        return min((name for name in MPIS if name in self.cells), key=self.median, default=None)

    def ratio(self, ours: str, theirs: str | None) -> Ratio | None:
        if ours not in self.cells or theirs not in self.cells:
            return None
        return Ratio.of(self.medians(ours), self.medians(theirs))

    @property
    def wrong(self) -> dict[str, int]:
        found = {name: sum(cell.wrong for cell in cells) for name, cells in self.cells.items()}
        return {name: count for name, count in found.items() if count}

    def as_json(self) -> dict[str, object]:
        mpi = self.fastest_mpi()
        ratios = {name: self.ratio(name, mpi) for name in COMPARED}
        return {
            "collective": self.collective,
            "regime": self.regime,
            "bytes": self.bytes,
            "floor_us": self.floor,
            "fastest_mpi": mpi,
            "ratio": {name: asdict(ratio) for name, ratio in ratios.items() if ratio is not None},
            "libraries": {name: [asdict(cell) for cell in cells] for name, cells in self.cells.items()},
        }


def floor_bytes(collective: str, ranks: int, size: int) -> int:
    """Every input read once and every output written once, over all ranks, where the larger buffer has ``size``.

    A broadcast works in place, so its root writes nothing.
    """
    buffers = {"all_reduce": 2 * ranks, "all_to_all": 2 * ranks, "broadcast": ranks}
    return buffers.get(collective, ranks + 1) * size


def rows(collective: str, ranks: int, results: dict[str, list[Result]], bandwidth: float) -> list[Row]:
    """By size, then regime, from the launches of each library; ``bandwidth`` in 1e9 bytes a second."""
    cells: dict[tuple[str, int], dict[str, list[Cell]]] = {}
    for name, launches in results.items():
        for result in launches:
            for cell in result.cells:
                cells.setdefault((cell.regime, cell.bytes), {}).setdefault(name, []).append(cell)
    return [
        Row(collective, regime, size, floor_bytes(collective, ranks, size) / bandwidth / 1e3, found)
        for (regime, size), found in cells.items()
    ]


def speedup(found: Sequence[Row], ours: str, theirs: str | None) -> float | None:
    """Geometric mean over rows of how many times faster than one library, or the fastest MPI of each (None)."""
    ratios = [row.ratio(ours, theirs or row.fastest_mpi()) for row in found]
    known = [ratio.mean for ratio in ratios if ratio is not None]
    return 1 / statistics.geometric_mean(known) if known else None


def show(value: float) -> str:
    return f"{value:.{1 if value < 1000 else 0}f}"


def show_speedups(found: Sequence[Row]) -> None:
    for ours in COMPARED:
        said = []
        for name, theirs in (("the fastest MPI", None), ("gloo", "gloo")):
            times = speedup(found, ours, theirs)
            if times is not None:
                said.append(f"{times:.2f}x as fast as {name}")
        if said:
            print(f"{ours}, geometric mean over {len(found)} sizes: {', '.join(said)}")


def show_rows(found: Sequence[Row], names: Sequence[str], ranks: int) -> None:
    """A table of one collective in one regime."""
    print(f"\n{found[0].collective}, {ranks} ranks, {found[0].regime}: median us, p95 us, floor")
    print(
        f"{'bytes':>10}" + "".join(f"{name:>25}" for name in names) + "".join(f"{n + ' / MPI':>29}" for n in COMPARED)
    )
    for row in found:
        line = f"{row.bytes:10}"
        for name in names:
            share = f"{row.floor / row.median(name):.0%}"
            line += f"{show(row.median(name)):>10}{show(row.p95(name)):>10}{share:>5}"
        line += "".join(f"{row.ratio(ours, row.fastest_mpi()) or ''!s:>29}" for ours in COMPARED)
        print(line + f"  {row.fastest_mpi() or ''}", flush=True)
        for name, count in row.wrong.items():
            print(f"{name}: {count} WRONG elements")
    show_speedups(found)


def plot(tables: dict[str, list[Row]], path: Path, ranks: int) -> None:
    """Time over size, a row for each collective and a column for each regime."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(REGIMES), 4.5 * len(tables)), layout="constrained")
    axes = figure.subplots(len(tables), len(REGIMES), squeeze=False)
    for line, (collective, found) in zip(axes, tables.items(), strict=True):
        for area, regime in zip(line, REGIMES, strict=True):
            here = [row for row in found if row.regime == regime]
            for contender in CONTENDERS:
                known = [row for row in here if contender.name in row.cells]
                if not known:
                    continue
                at, medians = [row.bytes for row in known], [row.median(contender.name) for row in known]
                tails = [row.p95(contender.name) for row in known]
                area.plot(at, medians, marker="o", markersize=3, color=contender.colour, label=contender.name)
                area.fill_between(at, medians, tails, color=contender.colour, alpha=0.15, linewidth=0)
            area.plot([row.bytes for row in here], [row.floor for row in here], "k:", label="floor")
            area.set_title(f"{collective}, {ranks} ranks, {regime}: us of the slowest rank, median to p95", fontsize=9)
            area.set_xscale("log", base=2)
            area.set_yscale("log")
            area.set_ylim(bottom=0.1)
            area.set_xlabel("bytes of a rank's larger buffer")
            area.grid(alpha=0.3)
            area.legend(fontsize=8)
    figure.savefig(path, dpi=150)


class Report:
    """What was found so far. ``missing``: a library that fails in one launch has no part in any of the collective."""

    def __init__(self, machine: dict[str, object]) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.missing: list[dict[str, str]] = []
        self._machine = machine
        self._versions: dict[str, str] = {}
        self._memory: dict[str, list[dict[str, float]]] = {}
        self._alone: dict[str, dict[str, list[float]]] = {}

    @contextmanager
    def noting(self, contender: Contender, collective: str) -> Iterator[None]:
        """Whether a library is missing."""
        try:
            yield
        except Missing as why:
            print(f"missing: {contender.name}, {collective}: {why}", flush=True)
            self.missing.append({"library": contender.name, "collective": collective, "why": str(why)})

    def lacks(self, contender: Contender, collective: str) -> bool:
        return any((m["library"], m["collective"]) == (contender.name, collective) for m in self.missing)

    @property
    def wrong(self) -> int:
        """Elements, of all libraries."""
        return sum(sum(row.wrong.values()) for found in self.tables.values() for row in found)

    def add(
        self, collective: str, ranks: int, results: dict[str, list[Result]], memory: list[dict[str, float]]
    ) -> None:
        """Take in and print all launches of a collective."""
        self._versions |= {name: launches[0].version for name, launches in results.items()}
        self._memory[collective] = memory
        self._alone[collective] = {name: [result.alone for result in launches] for name, launches in results.items()}
        rates = {name: statistics.median(rate[name] for rate in memory) for name in memory[0]}
        found = self.tables[collective] = rows(collective, ranks, results, rates["non_temporal"])
        for regime in REGIMES:
            show_rows([row for row in found if row.regime == regime], list(results), ranks)
        (least,) = (row for row in found if row.regime == "python")
        spoken = (
            f"{name} {statistics.median(self._alone[collective][name]):.2f}, {least.median(name):.2f}"
            for name in results
        )
        print(f"\n4 bytes from Python, us, of a rank alone and of {ranks}: {'; '.join(spoken)}")
        print("memory, GB/s loaded and stored: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
        print(f"floor: {floor_bytes(collective, ranks, 1)} x bytes at the last of these rates", flush=True)

    def as_json(self) -> dict[str, object]:
        speedups = [
            {"collective": collective, "regime": regime, "library": ours}
            | {against: speedup([row for row in found if row.regime == regime], ours, name)}
            for collective, found in self.tables.items()
            for regime in REGIMES
            for ours in COMPARED
            for against, name in (("fastest_mpi", None), ("gloo", "gloo"))
        ]
        return {
            "machine": self._machine,
            "versions": self._versions,
            "memory": self._memory,
            "missing": self.missing,
            "alone_us": self._alone,
            "speedups": speedups,
            "rows": [row.as_json() for found in self.tables.values() for row in found],
        }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=(*COLLECTIVES, "all"), default="all_reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--begin", default="8", metavar="BYTES")
    parser.add_argument("--end", default="256M", metavar="BYTES")
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--launches", type=int, default=5, metavar="N", help="of each library and collective")
    parser.add_argument("--seconds", type=float, default=0.2, help="of calls in a cell of a launch")
    parser.add_argument("--least", type=int, default=10, metavar="N", help="calls in a cell, however long they take")
    parser.add_argument("--quick", action="store_true", help=", ".join(f"{k} {v:g}" for k, v in QUICK.items()))
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="of a launch")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "hocket-peers", metavar="DIR", help="of environments")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes are ended as after Ctrl-C
    machine = describe() | {"last-level cache": cache_bytes(), "ranks": given.ranks}
    print(title(machine), flush=True)
    report = Report(machine)
    with tempfile.TemporaryDirectory() as work:
        build(HERE / "peers_native.cpp", Path(work) / "native.so")
        launches = Launches(given, sorted(os.sched_getaffinity(0)), cache_bytes(), Path(work))
        pythons = {}
        for contender in CONTENDERS:
            if contender.name in given.only and (given.ranks == 2 or contender.name != "bare"):
                with report.noting(contender, "all"):
                    pythons[contender] = contender.interpreter(given.cache)
        for collective in COLLECTIVES if given.collective == "all" else (given.collective,):
            found: dict[Contender, list[Result]] = {contender: [] for contender in pythons}
            memory = []
            for _ in range(given.launches):
                for contender in [contender for contender in found if not report.lacks(contender, collective)]:
                    with report.noting(contender, collective):
                        found[contender].append(launches.contender(contender, pythons[contender], collective))
                memory.append(launches.memory())
            whole = {c.name: its for c, its in found.items() if not report.lacks(c, collective)}
            if whole:
                report.add(collective, given.ranks, whole, memory)
            if given.json is not None:
                given.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
            if given.plot is not None and report.tables:
                plot(report.tables, given.plot, given.ranks)
    print(f"\n{len(report.missing)} missing, {report.wrong} wrong")
    sys.exit(report.wrong > 0 or any(entry["library"] in OURS for entry in report.missing))


if __name__ == "__main__":
    main()
