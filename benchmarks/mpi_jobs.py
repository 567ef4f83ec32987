"""MPIs in virtual environments, their jobs, and programs built from archives: for the benchmarks of MPI."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from peers import Contender, Missing, end, run

import hocket
from hocket.cli.target import parse_size

REQUIREMENTS = {
    "openmpi": ("openmpi", "mpi4py"),
    "mpich": ("mpich", "mpi4py"),
    "impi": ("impi-rt", "impi-devel", "mpi4py"),
}
CORES = len(os.sched_getaffinity(0))
MAKE = ("make", "-j", str(CORES))
BOUND = 1.05
"""A ratio whose whole interval lies above is listed as slower."""
LARGE = 16 << 10
"""Bytes from which on issue 24 asks for a geometric mean."""
COLLECTIVES = ("allreduce", "reduce", "bcast", "allgather", "alltoall")


@dataclass(frozen=True)
class Ended:
    """What a job printed, and its exit status; None: it took too long."""

    status: int | None
    out: str
    err: str

    @property
    def failure(self) -> str:
        """Empty after an exit with 0."""
        return "took too long" if self.status is None else f"exit {self.status}" if self.status else ""

    @property
    def taken(self) -> int:
        """Calls that hocket took, by the rows of its report: calls, bytes, seconds, microseconds a call, "taken"."""
        rows = re.findall(r"^hocket: .* (\d+) +\d+ +[\d.]+ +[\d.]+ +taken", self.err, re.MULTILINE)
        return sum(map(int, rows))


@dataclass(frozen=True)
class Mpi:
    """An MPI in a virtual environment, ``home``, which has mpi4py too."""

    name: str
    home: Path

    @classmethod
    def found(cls, text: str, cache: Path) -> Mpi:
        """From NAME=DIR, or NAME, whose environment is made where it is not there. Raises Missing."""
        name, _, home = text.partition("=")
        if home:
            return cls(name, Path(home).absolute())
        return cls(name, Contender(name, "mpi", REQUIREMENTS[name], "").interpreter(cache).parent.parent)

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python")

    def variables(self) -> dict[str, str]:
        """Of compilers, launchers and jobs."""
        found = {"PATH": f"{self.home / 'bin'}:{os.environ['PATH']}"}
        if self.name == "openmpi":
            found |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
        if self.name == "impi":
            found |= {"I_MPI_ROOT": str(self.home), "LD_LIBRARY_PATH": str(self.home / "lib")}
        return found

    def launcher(self, ranks: int, given: dict[str, str]) -> list[str]:
        """Starts ranks of the rest of the command line, with these variables; on a core each where there are enough."""
        start = [str(self.home / "bin" / "mpiexec"), "-n", str(ranks)]
        if self.name == "openmpi":
            start += ["--bind-to", "core"] if ranks <= CORES else ["--oversubscribe", "--bind-to", "none"]
            return start + [word for item in given.items() for word in ("-x", "=".join(item))]
        start += ["-bind-to", "core"] if self.name == "mpich" and ranks <= CORES else []
        return start + [word for item in given.items() for word in ("-env", *item)]

    def run(self, ranks: int, command: Sequence[str], given: dict[str, str], seconds: float) -> Ended:
        """A job, to its end or for so many seconds."""
        start = [*self.launcher(ranks, given), *command]
        with tempfile.TemporaryDirectory() as work:
            out, err = Path(work, "out"), Path(work, "err")
            with (
                out.open("w") as output,
                err.open("w") as errors,
                subprocess.Popen(
                    start,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    text=True,
                    cwd=work,
                    env=os.environ | self.variables(),
                    start_new_session=True,
                ) as job,
            ):
                try:
                    status: int | None = job.wait(seconds)
                except BaseException as error:
                    end(job)
                    if not isinstance(error, subprocess.TimeoutExpired):
                        raise
                    status = None
            return Ended(status, out.read_text(errors="replace"), err.read_text(errors="replace"))


def with_library(library: Path, options: str) -> dict[str, str]:
    """Variables of a job that has the library under it; ``options``: the value of HOCKET_MPI, "" for none."""
    return {"LD_PRELOAD": str(library.resolve())} | ({"HOCKET_MPI": options} if options else {})


REPORT = {"HOCKET_MPI_REPORT": "1"}
"""For Ended.taken. Then each call is timed, which costs a small one a tenth of its time."""


def given_options(given: argparse.Namespace) -> str:
    """The value of HOCKET_MPI, by the arguments of add_speed_arguments."""
    return "" if given.min_bytes is None else f"min-bytes:{given.min_bytes}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of scripts that run others' programs."""
    parser.add_argument("sources", type=Path, metavar="SOURCES_DIR")
    add_job_arguments(parser)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of all scripts."""
    library = Path(hocket.__file__).with_name("libhocket_mpi.so")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument(
        "--mpi", nargs="+", default=list(REQUIREMENTS), metavar="NAME[=DIR]", help="DIR: its environment"
    )
    parser.add_argument("--library", type=Path, default=library, metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="of a program")
    parser.add_argument(
        "--cache", type=Path, default=home / "hocket-mpi", metavar="DIR", help="environments and builds"
    )


def add_speed_arguments(parser: argparse.ArgumentParser, programs: Sequence[str], launches: int) -> None:
    """Those of scripts that time programs with the library beside the MPI alone."""
    parser.add_argument("--only", nargs="+", choices=programs, default=programs)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--begin", type=parse_size, default=8, metavar="BYTES", help="of a message or block")
    parser.add_argument("--end", type=parse_size, default=16 << 20, metavar="BYTES")
    parser.add_argument("--launches", type=int, default=launches, metavar="N", help="of each program and MPI")
    parser.add_argument("--min-bytes", type=parse_size, metavar="BYTES", help="below which hocket takes no call")
    parser.add_argument("--json", type=Path, metavar="FILE")


def compile_all(mpi: Mpi, commands: Sequence[Sequence[str]]) -> list[Missing]:
    """Run compilers side by side; why those failed that did."""

    def one(command: Sequence[str]) -> Missing | None:
        try:
            run(command, 900, mpi.variables())
        except Missing as why:
            return why
        return None

    with ThreadPoolExecutor(CORES) as pool:
        return [why for why in pool.map(one, commands) if why is not None]


def need(failures: list[Missing]) -> None:
    for why in failures:
        raise why


def build_mpich_coll(mpi: Mpi, place: Path) -> None:
    """Programs that need what MPICH's configure makes (dtpools), or functions that the MPI lacks, are left out."""
    tests = place / "mpich-tests" / "test" / "mpi"
    have = ("STDARG_H", "STRING_H", "UNISTD_H", "SYS_TIME_H", "LONG_LONG_INT", "LONG_DOUBLE", "MPI_WIN_CREATE")
    lines = [f"#define HAVE_{name} 1" for name in have] + ["#define THREAD_PACKAGE_NAME THREAD_PACKAGE_NONE", ""]
    (tests / "include" / "mpitestconf.h").write_text("\n".join(lines))
    (tests / "include" / "mtest_mpix.h").touch()
    compiler = ["mpicc", "-w", "-O1", f"-I{tests / 'include'}"]
    parts = {name: str(tests / f"{name}.o") for name in ("mtest", "mtest_common", "mtest_single", "dtypes")}
    main = {"run_mpitests": str(tests / "run_mpitests.o")}
    sources = {str(tests / "util" / f"{name}.c"): part for name, part in (parts | main).items()}
    need(compile_all(mpi, [[*compiler, "-c", source, "-o", part] for source, part in sources.items()]))
    commands = []
    for source in sorted((tests / "coll").glob("*.c")):
        linked = [*parts.values(), *(() if " main(" in source.read_text() else main.values())]
        commands.append([*compiler, str(source), *linked, "-lm", "-o", str(source.with_suffix(".x"))])
    failures = compile_all(mpi, commands)
    print(f"mpich-coll, {mpi.name}: {len(commands) - len(failures)} of {len(commands)} programs link", flush=True)


def build_osu(mpi: Mpi, place: Path) -> None:
    sources = place / "osu" / "mpi" / "collective"
    compiler = ["mpicc", "-w", "-O2", str(sources / "osu_coll.c"), "-lm"]
    programs = [source for source in sources.glob("osu_*.c") if source.stem != "osu_coll"]
    need(compile_all(mpi, [[*compiler, str(source), "-o", str(source.with_suffix(".x"))] for source in programs]))


def build_imb(mpi: Mpi, place: Path) -> None:
    flags = ["CC=mpicc", "CXX=mpicxx", "CPPFLAGS=-DCHECK", "CFLAGS=-O1 -w", "CXXFLAGS=-O1 -w"]
    run([*MAKE, "-C", str(place / "imb"), "IMB-MPI1", *flags], 900, mpi.variables())


def build_miniamr(mpi: Mpi, place: Path) -> None:
    run([*MAKE, "-C", str(place / "miniamr" / "ref")], 900, mpi.variables())


BUILDS: dict[str, Callable[[Mpi, Path], None]] = {
    "mpi4py-tests.tar.xz": lambda _, __: None,
    "mpich-coll-tests.tar.xz": build_mpich_coll,
    "osu.tar.xz": build_osu,
    "imb.tar.xz": build_imb,
    "miniamr.tar.xz": build_miniamr,
}


def place(mpi: Mpi, archive: Path, cache: Path) -> Path:
    """Where this very archive, one of BUILDS, is built for an MPI; builds it where it is not yet. Raises Missing."""
    digest = hashlib.sha256(archive.read_bytes() + str(mpi.home).encode()).hexdigest()[:12]
    target = cache / "clients" / f"{mpi.name}-{archive.name.partition('.')[0]}-{digest}"
    if not target.exists():
        print(f"building {archive.name} for {mpi.name}", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        with tarfile.open(archive) as content:
            content.extractall(work, filter="data")
        BUILDS[archive.name](mpi, work)
        work.rename(target)
    return target
