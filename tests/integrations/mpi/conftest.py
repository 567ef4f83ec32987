"""``mpi``: each MPI that is found. ``library``: hocket's. ``program``: a source of programs/, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integrations.mpi import launch
from tests.integrations.mpi.launch import PROGRAMS, Mpi

Program = Callable[[str], Path]

FOUND = launch.find()
NONE = pytest.param(None, id="none", marks=pytest.mark.skip(reason="no MPI: neither HOCKET_TEST_MPI nor a wheel's"))


@pytest.fixture(scope="session", params=[pytest.param(mpi, id=mpi.name) for mpi in FOUND] or [NONE])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found = request.param
    assert isinstance(found, Mpi)
    return found


@pytest.fixture(scope="session")
def library() -> Path:
    found = launch.library()
    if found is None:
        pytest.skip("hocket has no libhocket_mpi.so here")
    return found


@pytest.fixture(scope="session")
def program(mpi: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of a file in programs/, for the MPI."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[str, Path] = {}

    def compiled(name: str) -> Path:
        if name not in made:
            made[name] = mpi.compile(PROGRAMS / name, folder)
        return made[name]

    return compiled
