"""Ranks that another launcher started: plain processes with the variables that it sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from hocket.errors import BootstrapFailed
from hocket.runtime.launchers import in_mpi, of_mpi, place

Make = Callable[[int, int, str], dict[str, str]]


def torchrun(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"295{job}",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def open_mpi(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "PMIX_RANK": str(rank),
        "PMIX_NAMESPACE": f"prterun-vm-{os.getpid()}{job}@1",
    }


def intel(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(size),
        "I_MPI_HYDRA_UUID": f"7a150000-{os.getpid()}-{job}",
    }


def slurm(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": job,
    }


RANKED = "import hocket, numpy\nwith hocket.init() as c: print(c.rank, c.size, c.all_reduce(numpy.ones(3, 'i4'))[0])"


@pytest.mark.parametrize("make", [torchrun, open_mpi, intel, slurm])
def test_two_jobs_of_a_launcher(make: Make) -> None:
    """Side by side, and of different sizes, so that ranks that met another job's would say so."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", RANKED], env=os.environ | make(rank, size, job), stdout=subprocess.PIPE, text=True
        )
        for job, size in (("17", 2), ("18", 3))
        for rank in range(size)
    ]
    found = [process.communicate(timeout=60)[0] for process in jobs]
    assert found == [f"{rank} {size} {size}\n" for size in (2, 3) for rank in range(size)]


def test_mpich_tells_jobs_apart_by_their_proxy() -> None:
    proxy = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(15, b"hydra_pmi_proxy")
size = int(sys.argv[2])
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True,
         env=os.environ | {"PMI_RANK": str(r), "PMI_SIZE": str(size), "PMI_FD": "9"}) for r in range(size)]
print("".join(process.communicate()[0] for process in ranks), end="")
"""
    jobs = [
        subprocess.Popen([sys.executable, "-c", proxy, RANKED, str(size)], stdout=subprocess.PIPE, text=True)
        for size in (2, 3)
    ]
    found = [process.communicate(timeout=60)[0] for process in jobs]
    assert found == ["".join(f"{rank} {size} {size}\n" for rank in range(size)) for size in (2, 3)]


def test_a_restart_is_another_job() -> None:
    first = torchrun(0, 2, "17")
    again = first | {"TORCHELASTIC_RESTART_COUNT": "1"}
    tokens = {found.token for variables in (first, again) if (found := place(variables))}
    assert len(tokens) == 2


def test_the_innermost_launcher_counts() -> None:
    """torchrun as a step of SLURM or under mpirun; mpirun in a SLURM job; a batch script that is one process alone."""
    everything = slurm(0, 1, "1") | intel(1, 5, "1") | open_mpi(2, 6, "1") | torchrun(3, 7, "17")
    ranks = []
    for made in (torchrun, open_mpi, intel, slurm):
        found = place(everything)
        assert found is not None
        ranks.append((found.rank, found.size))
        everything = {name: value for name, value in everything.items() if name not in made(0, 1, "1")}
    assert ranks == [(3, 7), (2, 6), (1, 5), (0, 1)]
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None
    ours = {"HOCKET_RANK": "0", "HOCKET_SIZE": "2", "HOCKET_RENDEZVOUS": "token"}
    found = place(torchrun(3, 7, "17") | ours)
    assert found is not None
    assert (found.rank, found.size, found.token) == (0, 2, "token")


@pytest.mark.parametrize(
    ("variables", "message", "helps"),
    [
        (torchrun(0, 4, "17") | {"LOCAL_WORLD_SIZE": "2"}, "torchrun started 4 ranks, only 2", "one machine"),
        (open_mpi(3, 4, "1") | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "Open MPI started 4 ranks, only 1", "one machine"),
        (intel(1, 4, "1") | {"MPI_LOCALNRANKS": "2"}, "MPICH started 4 ranks, only 2", "one machine"),
        (slurm(0, 4, "1") | {"SLURM_STEP_NUM_NODES": "2"}, "SLURM started 4 ranks, only some", "one machine"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun says nothing that tells this job", "set HOCKET_RENDEZVOUS"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI says nothing", "HOCKET_RENDEZVOUS"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH says nothing", "HOCKET_RENDEZVOUS"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is no rank of WORLD_SIZE=2", ""),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "no numbers", ""),
    ],
)
def test_what_makes_no_sense_or_is_not_enough(variables: dict[str, str], message: str, helps: str) -> None:
    with pytest.raises(BootstrapFailed) as error:
        place(variables)
    assert message in error.value.reason
    assert helps in (error.value.help or "")


def test_a_token_by_hand() -> None:
    bare = {"RANK": "1", "WORLD_SIZE": "2"}
    found = [place(bare | {"HOCKET_RENDEZVOUS": token}) for token in ("one", "two", "one")]
    assert found[0] == found[2] != found[1]


def hocket_launch(rank: int, size: int, job: str) -> dict[str, str]:
    return {"HOCKET_RANK": str(rank), "HOCKET_SIZE": str(size), "HOCKET_RENDEZVOUS": job}


@pytest.mark.parametrize(
    ("made", "changed", "expected"),
    [
        (open_mpi, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (4, 2)),
        (intel, {"MPI_LOCALNRANKS": "3"}, (4, 3)),
        (slurm, {"SLURM_STEP_NUM_NODES": "2"}, (4, 0)),
        (slurm, {"SLURM_STEP_NUM_NODES": "2", "PMI_RANK": "1", "PMI_SIZE": "4"}, (4, 0)),
        (hocket_launch, {"HOCKET_NODES": "1+1"}, None),
        (open_mpi, {}, (4, 4)),
        (torchrun, {"LOCAL_WORLD_SIZE": "2"}, None),
        (open_mpi, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "HOCKET_RANK": "0"}, None),
    ],
    ids=["Open MPI", "Intel MPI", "SLURM", "SLURM's pmi2", "hocket's", "one machine", "torchrun", "hocket's within it"],
)
def test_ranks_of_mpi(made: Make, changed: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert of_mpi(made(1, 4, "1") | changed) == expected


BY_HAND = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("made", "changed", "expected"),
    [
        (open_mpi, BY_HAND, (1, 4)),
        (intel, {}, (1, 4)),
        (slurm, BY_HAND, None),
        (slurm, {"PMIX_RANK": "1"}, (1, 4)),
        (slurm, {"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),
        (torchrun, {}, None),
        (open_mpi, BY_HAND | {"TORCHELASTIC_RUN_ID": "none"}, None),
        (open_mpi, {"HOCKET_RANK": "0"}, None),
        (intel, {"PMI_RANK": "x"}, None),
    ],
    ids=["by hand", "Intel MPI", "SLURM", "its PMIx", "its pmi2", "torchrun", "torchrun in it", "hocket's", "none"],
)
def test_processes_that_mpi_started(made: Make, changed: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert in_mpi(made(1, 4, "1") | changed) == expected
