"""A sample of random calls; ``python -m tests.integrations.mpi.random_calls`` makes more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import Mpi
from tests.integrations.mpi.random_calls import compared
from tests.integrations.mpi.test_programs import taken

MANY = pytest.mark.campaign


@pytest.mark.parametrize(
    ("ranks", "calls"),
    [(2, 100), (3, 50), *(pytest.param(*case, marks=MANY) for case in ((2, 10000), (4, 2000), (5, 2000)))],
)
@pytest.mark.timeout(9000)
def test_a_sample(mpi: Mpi, library: Path, program: Program, ranks: int, calls: int, tmp_path: Path) -> None:
    seed = random.randrange(1 << 31)
    ended = compared(mpi, program("random_calls.c"), library, ranks=ranks, calls=calls, seed=seed, folder=tmp_path)
    for name, done in ended.items():
        assert done.code == 0, f"seed {seed}, {name}\n{done.text}"
        assert "checks: " in done.output
    assert taken(ended["everything"]), ended["everything"].text
