"""Groups of torch.distributed whose ranks are told that they are on several nodes, started as users start them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integrations.mpi.launch import Mpi, wait
from tests.integrations.mpi.machines import machines, why_not
from tests.limits import scaled

ROOT = Path(__file__).parents[3]
RECOVERS = {"openmpi": "--enable-recovery"}
"""How mpiexec leaves the other ranks alone when one is killed. MPICH's `-disable-auto-cleanup` does not always: it
ends them where it sees the dead rank's socket closed first, and they spin in MPI_Test for ever where that rank was
killed while it put a message into their queue."""


def job(mpi: Mpi, folder: Path, *names: str) -> tuple[dict[str, str], list[str]]:
    """Variables and command of a rank of tests.integrations.torch.nodes, whose number MPI says (docs/pytorch.md)."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if mpi.abi or mpi.folder != Path(sys.prefix) or find_spec("mpi4py") is None:
        pytest.skip("the MPI is not that of an mpi4py in this environment")
    variables = {
        "HOCKET_STRICT": "1",
        "HOCKET_TORCH_MPI": "1",
        "HOCKET_TEST_STORE": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    of = "OMPI_COMM_WORLD" if mpi.kind == "openmpi" else "PMI"
    line = f"RANK=${of}_RANK WORLD_SIZE=${of}_SIZE exec {sys.executable} -W ignore -m tests.integrations.torch.nodes $*"
    return variables, ["sh", "-c", line, "sh", *names]


def start(mpi: Mpi, placement: str, folder: Path, *names: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Such a job of ranks that count as those of several nodes."""
    variables, program = job(mpi, folder, *names)
    first, *others = mpi.command(sum(map(int, placement.split("+"))), variables | {"HOCKET_NODES": placement})
    return started(mpi, [first, *options, *others, *program])


def started(mpi: Mpi, words: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words,
        env=mpi.environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("placement", "names"),
    [
        ("1+1", ("begun", "fails", "functions", "groups", "trains")),
        ("2+2", ("miscounted", "unasked", "lacks", "follows", "functions", "groups", "trains")),
        pytest.param("2+1+1", ("lacks", "follows", "functions", "groups", "trains"), marks=pytest.mark.campaign),
    ],
)
def test_groups_on_several_nodes(mpi: Mpi, placement: str, names: tuple[str, ...], tmp_path: Path) -> None:
    done = wait(start(mpi, placement, tmp_path, *names), 240)
    assert done.code == 0, done.text
    assert done.output.count("right") == sum(map(int, placement.split("+"))), done.text


@pytest.mark.campaign
def test_groups_on_several_machines(mpi: Mpi, tmp_path: Path) -> None:
    """Each is a network namespace, and nobody is told anything."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    variables, program = job(mpi, tmp_path, "lacks", "follows", "functions", "groups", "trains")
    with machines(2, tmp_path) as on:
        done = wait(started(mpi, on.command(mpi, (2, 2), variables, program)), 240)
    assert done.code == 0, done.text
    assert done.output.count("right") == 4, done.text


def test_a_rank_that_raises(mpi: Mpi, tmp_path: Path) -> None:
    """The others, which have no business with it, are ended: its end does not wait for theirs."""
    done = wait(start(mpi, "1+1", tmp_path, "raises"), 60)
    assert done.code != 0, done.text
    assert "KeyError: 'wanted'" in done.text
    assert "right" not in done.output, done.text


def test_a_rank_that_is_killed(mpi: Mpi, tmp_path: Path) -> None:
    if mpi.kind not in RECOVERS:
        pytest.skip("its launcher ends the other ranks")
    done = wait(start(mpi, "1+1+1", tmp_path, "killed", options=(RECOVERS[mpi.kind],)), 120)
    for rank in range(2):
        said = tmp_path / f"knew{rank}"
        assert said.exists(), done.text
        match = re.match(r"(\S+) all_reduce: error\[peer-failed\]: rank 2 ", said.read_text())
        assert match is not None, said.read_text()
        assert float(match[1]) < scaled(5)
