"""MPIs that are found, programs compiled for each, and jobs of them with and without hocket's library.

``HOCKET_TEST_MPI`` names the directories of MPIs, separated by colons, each with ``bin/mpicc`` and ``bin/mpiexec``; by
default it is that of the environment in which the tests run, where a wheel has installed one.
``HOCKET_TEST_MPI_LIBRARY`` is the path of the library; by default it is the one in the package.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from hocket import plan_files
from hocket.runtime import nodes
from tests.limits import scaled

PROGRAMS = Path(__file__).parent / "programs"
MOST_RANKS = 64
KINDS = {"Open MPI": "openmpi", "Intel": "impi", "HYDRA": "mpich"}
OURS = "hocket: "


@dataclass(frozen=True)
class Done:
    """How a job ended. ``code`` is mpiexec's exit status, None where it had not ended in time."""

    code: int | None
    output: str
    errors: str

    @property
    def text(self) -> str:
        return f"status {self.code}\n{self.output}\n{self.errors}"

    @property
    def report(self) -> list[str]:
        """The lines that begin as hocket's do."""
        return [line.removeprefix(OURS) for line in self.errors.splitlines() if line.startswith(OURS)]


@dataclass(frozen=True)
class Mpi:
    """An MPI: ``kind`` is openmpi, mpich or impi; ``abi``: programs are built for the standard's ABI."""

    folder: Path
    kind: str
    abi: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}-abi" if self.abi else self.kind

    @cached_property
    def environment(self) -> dict[str, str]:
        given = {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        if self.kind == "impi":
            given |= {"I_MPI_ROOT": str(self.folder), "LD_LIBRARY_PATH": f"{self.folder}/lib"}
        return given

    def compile(self, source: Path, into: Path) -> Path:
        """The program of a file in C or Fortran."""
        program = into / f"{source.stem}-{self.name}"
        compiler = {".f": "mpif90", ".f90": "mpif90"}.get(source.suffix, "mpicc_abi" if self.abi else "mpicc")
        flags = ["-std=gnu11", "-Wall", "-pthread"]
        if compiler == "mpif90":
            # mpif.h and Intel MPI's module declare no choice of buffers.
            modules = [f"-I{self._modules}"] if self._modules else []
            flags = ["-w", "-fallow-argument-mismatch", f"-J{into}", *modules]
        done = subprocess.run(
            [f"{self.folder}/bin/{compiler}", "-O2", "-g", *flags, str(source), "-o", str(program), "-lm"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return program

    @cached_property
    def _modules(self) -> Path | None:
        """Where the module is that this gfortran can read: Intel MPI has one for each of its versions."""
        ours = subprocess.run(["gfortran", "-dumpversion"], capture_output=True, text=True, check=True).stdout
        found = {
            int(path.parent.name.partition(".")[0]): path.parent
            for path in (self.folder / "include" / "mpi").glob("gfortran/*/mpi.mod")
        }
        fitting = [version for version in found if version <= int(ours.partition(".")[0])]
        return found[max(fitting)] if fitting else None

    def no_fortran(self, suffix: str) -> str | None:
        """Why programs in Fortran cannot be compiled; None where they can."""
        if shutil.which("gfortran") is None:
            return "gfortran is not installed"
        if self.abi or not (self.folder / "bin" / "mpif90").exists():
            return f"{self.name} has no Fortran"
        return None if suffix == ".f" or self._modules is not None else f"{self.name} has no mpi.mod of gfortran"

    @property
    def tcp(self) -> dict[str, str]:
        """Variables with which ranks of one machine talk by TCP, as those of several do."""
        return {
            "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"},
            "mpich": {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"},
            "impi": {
                "I_MPI_FABRICS": "ofi",
                "FI_PROVIDER": "tcp",
                "FI_PROVIDER_PATH": f"{self.folder}/lib",
            },
        }[self.kind]

    def command(self, ranks: int, variables: Mapping[str, str]) -> list[str]:
        """mpiexec, up to where a program follows."""
        if self.kind == "openmpi":
            given = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
            return [f"{self.folder}/bin/mpiexec", "--oversubscribe", "--bind-to", "none", *given, "-n", str(ranks)]
        given = [word for name, value in variables.items() for word in ("-env", name, value)]
        return [f"{self.folder}/bin/mpiexec", *given, "-n", str(ranks)]

    def start(
        self,
        program: Path | str,
        *arguments: str,
        ranks: int = 2,
        library: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        given = {**(variables or {}), **({"LD_PRELOAD": str(library)} if library else {})}
        return begin([*self.command(ranks, given), str(program), *arguments], self.environment)

    def run(
        self,
        program: Path | str,
        *arguments: str,
        ranks: int = 2,
        library: Path | None = None,
        variables: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> Done:
        """A job to its end, or to that of the time."""
        started = self.start(program, *arguments, ranks=ranks, library=library, variables=variables)
        return wait(started, timeout)


def begin(words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A job, whose output is kept for ``wait``; without an environment it has that of this process."""
    return subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def wait(job: subprocess.Popen[str], timeout: float) -> Done:
    """What a job comes to. One that does not end in time is ended."""
    try:
        output, errors = job.communicate(timeout=scaled(timeout))
        return Done(job.returncode, output, errors)
    except subprocess.TimeoutExpired:
        output, errors = end(job)
        return Done(None, output, errors)


def end(job: subprocess.Popen[str]) -> tuple[str, str]:
    """End a job: mpiexec ends its ranks, where it is given the time to."""
    job.send_signal(signal.SIGTERM)
    try:
        return job.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        return job.communicate()


def find() -> list[Mpi]:
    """The MPIs to be tried."""
    named = os.environ.get("HOCKET_TEST_MPI")
    found = []
    for folder in map(Path, named.split(":") if named else [sys.prefix]):
        if not all((folder / "bin" / tool).exists() for tool in ("mpicc", "mpiexec")):
            assert not named, f"HOCKET_TEST_MPI: there is no bin/mpicc or bin/mpiexec in {folder}"
            continue
        kind = kind_of(folder)
        found.append(Mpi(folder, kind))
        if (folder / "bin" / "mpicc_abi").exists():
            found.append(Mpi(folder, kind, abi=True))
    return found


def kind_of(folder: Path) -> str:
    """Which MPI is there."""
    bare = Mpi(folder, "mpich").environment
    said = subprocess.run(
        [f"{folder}/bin/mpiexec", "--version"], env=bare, capture_output=True, text=True, check=False
    ).stdout
    kind = next((KINDS[word] for word in KINDS if re.search(word, said)), None)
    assert kind is not None, f"an MPI that these tests do not know: {said}"
    return kind


def placed(placement: str, folder: Path) -> dict[str, str]:
    """Variables with which ranks count as those of nodes, 2+2 or 0,1,0, and find plans for these.

    In ``folder``, also those of the communicators of programs/check.h.
    """
    ranks = nodes.names(placement, MOST_RANKS)
    for part in (ranks, ranks[::-1], ranks[::2], ranks[1::2]):
        numbers = nodes.numbered(part)
        if any(numbers) and not plan_files.has(folder, len(part), numbers):
            plan_files.write(folder, len(part), numbers)
    return {nodes.VARIABLE: placement, "HOCKET_MPI_PLANS": str(folder)}


def library() -> Path | None:
    """hocket's library for MPI, None where there is none."""
    if named := os.environ.get("HOCKET_TEST_MPI_LIBRARY"):
        assert Path(named).exists(), f"HOCKET_TEST_MPI_LIBRARY: there is no {named}"
        return Path(named)
    native = find_spec("hocket._native")
    if native is None or native.origin is None:
        return None
    path = Path(native.origin).with_name("libhocket_mpi.so")
    return path if path.exists() else None
