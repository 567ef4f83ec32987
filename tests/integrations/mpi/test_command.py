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
