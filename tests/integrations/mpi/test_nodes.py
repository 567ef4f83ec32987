"""Jobs whose ranks are told that they are on several nodes, over each MPI."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integrations.mpi.launch import PROGRAMS, Mpi

ROOT = Path(__file__).parents[3]
PLACEMENTS = {"1+1": 2, "2+1": 3, "0,1,0": 3, "1+1+1": 3, "2+2": 4, "0,1,1,1": 4}
"""What HOCKET_NODES says, and of how many ranks."""
JOBS = (
    ("collectives", "crosses", "with_headers", "differ", "parts", "finds"),
    ("large",),
    ("raises",),
    ("leaves",),
    ("stops",),
)
"""Functions of programs/nodes.py that a job calls, one after the other."""


def run(mpi: Mpi, ranks: int, placement: str, *command: str, timeout: float = 240) -> None:
    """A job of Python, all of whose ranks must print that they are right, or one what was run."""
    if mpi.abi or mpi.folder != Path(sys.prefix) or find_spec("mpi4py") is None:
        pytest.skip("the MPI is not that of an mpi4py in this environment")
    variables = {"HOCKET_NODES": placement, "PYTHONPATH": str(ROOT)}
    done = mpi.run(sys.executable, *command, ranks=ranks, variables=variables, timeout=timeout)
    assert done.code == 0, done.text
    assert "right" in done.output or "bit-equal" in done.output, done.text


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("names", JOBS, ids=" ".join)
def test_ranks_on_several_nodes(mpi: Mpi, names: tuple[str, ...], placement: str) -> None:
    run(mpi, PLACEMENTS[placement], placement, str(PROGRAMS / "nodes.py"), "places", *names)


def test_what_ends_a_meeting(mpi: Mpi) -> None:
    run(mpi, 3, "2+1", str(PROGRAMS / "nodes.py"), "meets")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_programs_at_random_placements(mpi: Mpi, ranks: int) -> None:
    run(mpi, ranks, "", "-m", "tests.property.on_nodes", "60", "7")
