"""hocket mpi: programs of MPI, unchanged, with hocket's library under them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from hocket import _native
from hocket.cli.console import say
from hocket.cli.progress import working
from hocket.cli.target import values
from hocket.errors import UsageError
from hocket.plan_files import has, write
from hocket.runtime import nodes
from hocket.runtime.bootstrap import MOST_RANKS
from hocket.tunables import CONFIG, VARIABLE

_PRELOAD = "LD_PRELOAD"
_LAUNCHERS = re.compile(r"(mpiexec|mpirun|orterun|prterun)\b")
"""Names of what says which MPI it is of: a program must not be started to be asked."""
_HYDRA = re.compile(r"HYDRA|Intel\(R\) MPI")
_OPEN_MPI = re.compile(r"Open MPI|OpenRTE|PRRTE")
_EACH = re.compile(r"--?(?:ppn|perhost|npernode|ntasks-per-node)=?(\d*)")
"""Ranks on each node, one node after the other."""
_TASKS = re.compile(r"(\d{1,4})(?:\(x(\d{1,4})\))?")
"""Of SLURM_TASKS_PER_NODE, 4(x2),3: so many, on so many nodes (sbatch(1))."""
_NUMBER = re.compile(r"--?(?:n|np|ntasks)=?(\d*)")
_UNASKED_RANKS = max(64, os.cpu_count() or 1)
"""Plans of more are made by --prepare alone: they take minutes, for which a job is not to wait."""


def library_path() -> Path:
    """What is preloaded."""
    return Path(_native.__file__).with_name("libhocket_mpi.so")


def start(command: Sequence[str], *, report: bool, compare: bool) -> NoReturn:
    """Become the command, so that its exit status, signals and input are its own. Raises UsageError."""
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"there is no command {command[0]!r}")
    environment = dict(os.environ)
    for name in (VARIABLE, CONFIG):
        if environment.get(name):
            say(Console(stderr=True), f"note: MPI programs do not go by {name}: their plans were made beforehand")
    environment |= {f"HOCKET_MPI_{name}": "1" for name, on in (("REPORT", report), ("COMPARE", compare)) if on}
    words, environment = with_library(command, _version(program), environment)
    ranks = ranks_of(command, environment)
    provide(ranks, nodes_of(command, environment, ranks))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
        signal.signal(ignored, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, words, environment)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror}") from None


def _version(program: str) -> str:
    """What a launcher says it is; empty for anything else."""
    if not _LAUNCHERS.match(Path(program).name):
        return ""
    question = [program, "--version"]
    return subprocess.run(question, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def with_library(
    command: Sequence[str], version: str, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that preload the library in the ranks: there alone, where the launcher can do
    that. Variables of hocket go the same way, as they must be the same on all machines. Raises UsageError."""
    if any(word == _PRELOAD or word.startswith(f"{_PRELOAD}=") for word in command):
        raise UsageError(f"the command sets {_PRELOAD} itself", "set it before hocket mpi, which keeps what it has")
    preload = ":".join(filter(None, (str(library_path()), environment.get(_PRELOAD))))
    given = {name: value for name, value in environment.items() if name.startswith("HOCKET_") and value}
    given[_PRELOAD] = preload
    launcher, *arguments = command
    if _HYDRA.search(version):
        options = [word for name, value in given.items() for word in ("-genv", name, value)]
    elif _OPEN_MPI.search(version):
        options = [word for name, value in given.items() for word in ("-x", f"{name}={value}")]
    else:
        return list(command), {**environment, _PRELOAD: preload}
    return [launcher, *options, *arguments], dict(environment)


def ranks_of(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """As many as a launcher is told to start; 0 where that cannot be seen. Of each of the programs that colons separate
    the first number counts: those behind it may be the program's own."""
    found, counted = 0, False
    for word, following in zip(command, [*command[1:], ""], strict=True):
        match = _NUMBER.fullmatch(word)
        number = match and (match[1] or following)
        if word == ":":
            counted = False
        elif number and number.isdecimal() and not counted:
            found, counted = found + int(number), True
    said = environment.get("SLURM_NTASKS", "")
    return found or (int(said) if said.isdecimal() else 0)


def nodes_of(command: Sequence[str], environment: Mapping[str, str], ranks: int) -> tuple[int, ...]:
    """The node of each, as HOCKET_NODES, a launcher's options or SLURM say; none where they do not, or there is one."""
    found = [nodes.names(environment.get(nodes.VARIABLE, ""), ranks + 1)]
    words = command[1:]
    options = True  # what follows a program's name is its own
    for word, following in zip(words, [*words, ""][1:], strict=True):
        options = word == ":" or (options and shutil.which(word) is None)
        match = _EACH.fullmatch(word) if options else None
        each = match and (match[1] or following)
        if each and each.isdecimal() and int(each):
            found.append([str(rank // int(each)) for rank in range(ranks)])
    tasks = [_TASKS.fullmatch(part) for part in environment.get("SLURM_TASKS_PER_NODE", "").split(",")]
    counts = chain.from_iterable([part[1]] * int(part[2] or 1) for part in tasks if part is not None)
    found.append(nodes.names("+".join(counts), ranks + 1))
    known = next((placed for placed in found if len(placed) == ranks), [])
    return nodes.numbered(known) if len(set(known)) > 1 else ()


def _cache() -> Path:
    """Where the library looks at last (native/mpi/plan_file.cpp). Raises UsageError."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "hocket" / "mpi_plans"
    if home := os.environ.get("HOME"):
        return Path(home) / ".cache" / "hocket" / "mpi_plans"
    raise UsageError("neither XDG_CACHE_HOME nor HOME says where to keep plans")


def provide(ranks: int, placed: Sequence[int] = ()) -> None:
    """Make the plans for a job, where there are none: the library runs without, but then takes no call.

    ``placed``: the node of each rank, where they seem to be on several: those for one node are made too, as launchers
    may start all on one machine.
    """
    if 1 < ranks <= _UNASKED_RANKS:
        _provide(ranks, ())
        if placed:
            _provide(ranks, placed)


def _provide(ranks: int, placed: Sequence[int]) -> None:
    given = os.environ.get("HOCKET_MPI_PLANS")
    known = [library_path().with_name("mpi_plans"), *([Path(given)] if given else [])]
    if any(has(directory, ranks, placed) for directory in known):
        return
    errors = Console(stderr=True)
    where = f" on {len(set(placed))} nodes" if placed else ""
    try:
        cache = _cache()
        if not has(cache, ranks, placed):
            say(errors, f"making plans for {ranks} ranks{where}, this once: {cache}")
            _make(cache, ranks, placed)
    except UsageError as error:
        say(errors, f"note: no plans for {ranks} ranks{where}, whose calls are left to the MPI: {error.message}")


def prepare_plans(wanted: str) -> None:
    """Make the plans for a number of ranks, for each of a range, or for ranks on nodes, and say where.

    Raises UsageError.
    """
    cache = _cache()
    found: list[tuple[object, tuple[int, ...]]] = []
    if "+" in wanted or "," in wanted:
        placed = nodes.numbered(nodes.names(wanted, MOST_RANKS))
        if len(set(placed)) < 2:
            raise UsageError(f"--prepare={wanted} does not say how many ranks are on each node", 'such as "2+2"')
        found.append((len(placed), placed))
    else:
        found += [(ranks, ()) for ranks in values("--prepare", wanted, int)]
    for ranks, placed in found:
        if not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
            raise UsageError(f"--prepare takes numbers of ranks from 2 to {MOST_RANKS}, not {ranks}")
        say(Console(stderr=True), f"wrote {_make(cache, ranks, placed)}")


def _make(cache: Path, ranks: int, placed: Sequence[int]) -> Path:
    try:
        with working(f"making plans for {ranks} ranks"):
            return write(cache, ranks, placed)
    except OSError as error:
        raise UsageError(f"cannot write to {cache}: {error.strerror}") from None
