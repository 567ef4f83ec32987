"""``hocket mpi`` before a launcher; and files of plans that are damaged, or are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import Mpi, wait
from tests.integrations.mpi.test_programs import TAKE_ALL, ends_well, taken

ROOT = Path(__file__).parents[3]


def test_it_puts_hocket_under_a_program(mpi: Mpi, library: Path, program: Program) -> None:
    job = subprocess.Popen(
        [sys.executable, "-m", "hocket", "mpi", "--report", *mpi.command(2, {}), str(program("order.c"))],
        env={**mpi.environment, "HOCKET_MPI": "min-bytes:0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    done = ends_well(wait(job, 120))
    assert taken(done), done.text


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "bcast", "allgather", "alltoall"])
def test_calls_beside_those_of_the_mpi_itself(mpi: Mpi, library: Path, program: Program, collective: str) -> None:
    """What benchmarks/mpi_pairs.py compares: calls that are taken, and ones that the library does not see."""
    pairs = program(str(ROOT / "benchmarks" / "mpi_pairs.c"))
    done = mpi.run(pairs, collective, "4096", "8192", "3", "1", library=library, variables=TAKE_ALL)
    assert done.code == 0, done.text
    found = [tuple(map(float, line.split())) for line in done.output.splitlines()]
    assert [size for size, _, _ in found] == [4096] * 3 + [8192] * 3
    assert all(through > 0 and itself > 0 for _, through, itself in found)
    assert len(taken(done)) == 1, done.text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data, "taken"),
        (lambda data: data[:-1], "there are no plans for so many ranks"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "there are no plans for so many ranks"),
        (lambda data: b"", "there are no plans for so many ranks"),
        (lambda data: data[: len(data) // 2] + b"\x7f" * (len(data) - len(data) // 2), "declined"),
    ],
    ids=["none", "cut off", "another version", "empty", "overwritten behind the first"],
)
def test_damaged_plans_are_not_run(
    mpi: Mpi, library: Path, program: Program, tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    bare = tmp_path / "bare" / library.name
    bare.parent.mkdir()
    bare.symlink_to(library)
    plans = library.with_name("mpi_plans") / "2.plans"
    (tmp_path / plans.name).write_bytes(damage(plans.read_bytes()))
    variables = {**TAKE_ALL, "HOCKET_MPI_PLANS": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "none")}
    done = ends_well(mpi.run(program("order.c"), library=bare, variables=variables))
    assert any(said in line for line in done.report), done.text
    assert ("broadcast" in taken(done)) == (said == "taken"), done.text
