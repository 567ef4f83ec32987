"""Which rank this process is, by the environment that a launcher gave it, and under which token the ranks meet.

The first of these that gives a rank counts, the innermost first: hocket's own launcher, torchrun (or RANK and
WORLD_SIZE set by hand), Open MPI, MPICH or Intel MPI, SLURM's srun.

A token must be the same on all ranks of a job and differ between any two jobs that run on a machine at once. It names a
socket; who may use that is decided by the user's id, not by the token. HOCKET_RENDEZVOUS alone gives a token to a
launcher that has none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import BootstrapFailed

RANK, SIZE, TOKEN = "HOCKET_RANK", "HOCKET_SIZE", "HOCKET_RENDEZVOUS"
MACHINES = (
    "ranks share memory: start all on one machine, go over MPI by mpi4py, or give the ranks of each machine a store of "
    "their own to init()"
)
"""What to do where ranks are on several machines."""

Variables = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, and under which token the ranks meet.

    ``called``: the ranks' numbers in errors, where those are not their own. ``lent``: a descriptor that this rank gives
    the others instead of that of its arena. ``all``: the ranks of all nodes, where these are those of one.
    """

    rank: int
    size: int
    token: str
    called: tuple[int, ...] = ()
    lent: int | None = None
    all: int | None = None

    def name(self, rank: int) -> int:
        """The number of a rank in errors."""
        return self.called[rank] if self.called else rank


@dataclass(frozen=True, slots=True)
class _Launcher:
    """``token`` gives what tells one job from another, empty if nothing does.

    ``local`` gives the ranks on this machine: empty if that is not known, 0 if they are not all.
    """

    name: str
    rank: str
    size: str
    local: Callable[[Variables], str]
    token: Callable[[Variables], str]

    def ranks(self, variables: Variables) -> tuple[int, int, int] | None:
        """This one, how many there are, and how many of them on this machine; None where it has started none."""
        if self.rank not in variables or self.size not in variables:
            return None
        try:
            rank, size = int(variables[self.rank]), int(variables[self.size])
            local = int(self.local(variables) or size)
        except ValueError as error:
            raise BootstrapFailed(f"{self.name} gave {self.rank} and {self.size} that are no numbers") from error
        if not 0 <= rank < size:
            raise BootstrapFailed(f"{self.rank}={rank} is no rank of {self.size}={size}")
        return rank, size, local

    def place(self, variables: Variables) -> Place | None:
        found = self.ranks(variables)
        if found is None:
            return None
        rank, size, local = found
        if local < size:
            raise BootstrapFailed(
                f"{self.name} started {size} ranks, only {local or 'some'} of them on this machine", MACHINES
            )
        token = variables.get(TOKEN) or self.token(variables)
        if size > 1 and not token:
            raise BootstrapFailed(
                f"{self.name} says nothing that tells this job from another",
                f"set {TOKEN} to the same text on all ranks, and to another one for each job",
            )
        return Place(rank, size, hashlib.sha256(f"{self.name}\n{token}".encode()).hexdigest()[:32])


def _first(*names: str) -> Callable[[Variables], str]:
    return lambda variables: next((variables[name] for name in names if variables.get(name)), "")


def _torchrun(variables: Variables) -> str:
    """The agent holds the port, so no other job of this machine has it; a restart keeps it."""
    run = variables.get("TORCHELASTIC_RUN_ID", "none")
    port = variables.get("MASTER_PORT", "")
    if run == "none" and not port:
        return ""
    return "\n".join((run, variables.get("TORCHELASTIC_RESTART_COUNT", ""), variables.get("MASTER_ADDR", ""), port))


def _hydra(variables: Variables) -> str:
    """MPICH's ranks on a machine descend from one proxy; nothing in their environment is the job's own."""
    return _first("I_MPI_HYDRA_UUID", "PMI_JOBID")(variables) or _ancestor("hydra_pmi_proxy")


def _hydra_local(variables: Variables) -> str:
    """SLURM speaks its language, too (``srun --mpi=pmi2``)."""
    return _first("MPI_LOCALNRANKS")(variables) or _slurm_local(variables)


def _ancestor(name: str) -> str:
    """Process id and start time of the nearest ancestor of that name."""
    pid = os.getpid()
    with suppress(OSError):
        while pid > 1:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            fields = tail.split()  # from the third on: state, parent, ...
            if head.partition("(")[2] == name:
                return f"{pid} {fields[19]}"
            pid = int(fields[1])
    return ""


def _slurm(variables: Variables) -> str:
    job, step = variables.get("SLURM_JOB_ID", ""), variables.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job and step else ""


def _slurm_local(variables: Variables) -> str:
    return "" if _first("SLURM_STEP_NUM_NODES", "SLURM_NNODES")(variables) in ("", "1") else "0"


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", _first("LOCAL_WORLD_SIZE"), _torchrun),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        _first("OMPI_COMM_WORLD_LOCAL_SIZE"),
        _first("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", _hydra_local, _hydra),
    _Launcher("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _slurm_local, _slurm),
)


def place(variables: Variables = os.environ) -> Place | None:
    """The place a launcher gave this process; None without a launcher. Raises BootstrapFailed if it makes no sense."""
    if RANK not in variables and SIZE not in variables:
        # A batch script has SLURM_PROCID too, but no number of tasks of a step: there it is one process alone.
        found = next((found for one in _LAUNCHERS if (found := one.place(variables))), None)
        if found is not None or TOKEN not in variables:
            return found
    try:
        rank, size, token = int(variables[RANK]), int(variables[SIZE]), variables[TOKEN]
    except (KeyError, ValueError) as error:
        raise BootstrapFailed(f"{RANK}, {SIZE} and {TOKEN} belong together, as a launcher sets them") from error
    if not 0 <= rank < size or not token:
        raise BootstrapFailed(f"{RANK}={rank} is no rank of {SIZE}={size}")
    return Place(rank, size, token)


def in_mpi(variables: Variables = os.environ) -> tuple[int, int] | None:
    """Which rank of MPI's this process is, and of how many, where mpiexec has started it, or srun with PMI.

    RANK and WORLD_SIZE, which torch wants, may be set besides. But what torchrun starts is no process of MPI's.
    """
    if RANK in variables or "TORCHELASTIC_RUN_ID" in variables:
        return None
    for one in _LAUNCHERS[1:]:
        with suppress(BootstrapFailed):
            found = one.ranks(variables)
            if found is not None:
                # srun without PMI: there MPI may end the process that wants to begin.
                return found[:2] if one.name != "SLURM" or "PMIX_RANK" in variables else None
    return None


def of_mpi(variables: Variables = os.environ) -> tuple[int, int] | None:
    """How many ranks a launcher of MPI has started, and how many of them on this machine; None where none has."""
    if RANK in variables:
        return None
    found = next(((one, ranks) for one in _LAUNCHERS if (ranks := one.ranks(variables)) is not None), None)
    return None if found is None or found[0].name == "torchrun" else found[1][1:]
