"""Programs of MPI, as they are, on the MPI alone and with hocket under them: each checks what it gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import PROGRAMS, Done, Mpi

TAKE_ALL = {"HOCKET_MPI": "min-bytes:0", "HOCKET_MPI_REPORT": "1"}
CAMPAIGN = pytest.mark.campaign

TAKEN = {
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_block"),
    *("gather", "scatter", "all_to_all", "all_to_all_v", "barrier"),
}


def ends_well(done: Done) -> Done:
    """Fail unless all ranks ended well, and made checks. What MPI_THREAD_MULTIPLE lacks is skipped."""
    if "skipped: " in done.output:
        pytest.skip("the MPI provides no MPI_THREAD_MULTIPLE")
    assert done.code == 0, done.text
    found = re.search(r"^checks: (\d+)$", done.output, re.MULTILINE)
    assert found is not None, done.text
    assert int(found[1]) > 0, done.text
    return done


def taken(done: Done) -> set[str]:
    """The collectives of which the report says that calls were taken."""
    lines = [line.split() for line in done.report]
    return {name for name in TAKEN for words in lines if name in words and "taken" in words}


def cases(*given: tuple[str, int, tuple[str, ...]]) -> list[object]:
    return [pytest.param(*case, id=f"{Path(case[0]).stem}-{case[1]}") for case in given]


FEW = cases(
    ("collectives.c", 2, ("151", "1")),
    ("collectives.c", 3, ("401", "3")),
    ("oddities.c", 2, ()),
    ("oddities.c", 3, ("bcast_as_bytes", "vector_in_bcast", "intercommunicator", "chain", "from_anybody", "barrier")),
    ("progress.c", 2, ()),
    ("threads.c", 2, ()),
    ("order.c", 3, ()),
)
MANY = cases(
    ("collectives.c", 2, ("1", "0")),
    ("collectives.c", 3, ("3", "0")),
    ("collectives.c", 4, ("11", "0")),
    ("collectives.c", 5, ("11", "0")),
    ("oddities.c", 2, ("many_communicators",)),
    ("oddities.c", 3, ()),
    ("oddities.c", 4, ()),
    ("oddities.c", 5, ()),
    ("progress.c", 3, ()),
    ("progress.c", 4, ()),
    ("threads.c", 3, ()),
    ("threads.c", 4, ()),
    ("order.c", 2, ()),
    ("order.c", 4, ()),
    ("order.c", 5, ()),
)


@pytest.mark.parametrize(("name", "ranks", "arguments"), FEW)
def test_with_hocket(
    mpi: Mpi, library: Path, program: Program, name: str, ranks: int, arguments: tuple[str, ...]
) -> None:
    done = mpi.run(program(name), *arguments, ranks=ranks, library=library, variables=TAKE_ALL)
    assert taken(ends_well(done)), done.text


@CAMPAIGN
@pytest.mark.parametrize(("name", "ranks", "arguments"), MANY)
@pytest.mark.timeout(3000)
def test_many_with_hocket(
    mpi: Mpi, library: Path, program: Program, name: str, ranks: int, arguments: tuple[str, ...]
) -> None:
    done = mpi.run(program(name), *arguments, ranks=ranks, library=library, variables=TAKE_ALL, timeout=2000)
    assert taken(ends_well(done)), done.text


@CAMPAIGN
@pytest.mark.parametrize(("name", "ranks", "arguments"), FEW)
def test_alone(mpi: Mpi, program: Program, name: str, ranks: int, arguments: tuple[str, ...]) -> None:
    """What the programs expect is what the MPI does."""
    done = ends_well(mpi.run(program(name), *arguments, ranks=ranks))
    assert done.report == []


@CAMPAIGN
@pytest.mark.parametrize(("name", "ranks", "arguments"), FEW)
def test_by_the_defaults(
    mpi: Mpi, library: Path, program: Program, name: str, ranks: int, arguments: tuple[str, ...]
) -> None:
    ends_well(mpi.run(program(name), *arguments, ranks=ranks, library=library))


def test_progress_over_tcp(mpi: Mpi, library: Path, program: Program) -> None:
    variables = {**TAKE_ALL, **mpi.tcp}
    done = mpi.run(program("progress.c"), "isend", "issend", "unreceived", library=library, variables=variables)
    assert taken(ends_well(done)), done.text


def test_every_collective_is_taken(mpi: Mpi, library: Path, program: Program) -> None:
    done = mpi.run(program("collectives.c"), "151", "7", library=library, variables=TAKE_ALL)
    assert taken(ends_well(done)) == TAKEN


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, {"first": 8, "taken": 12}),
        ({"HOCKET_MPI_COMPARE": "1"}, {"first": 8, "taken": 6, "compared": 6}),
        ({"HOCKET_MPI": "min-bytes:0"}, {"taken": 20}),
        ({"HOCKET_MPI": "min-bytes:1G"}, {"small": 20}),
        ({"HOCKET_MPI": "min-bytes:0,min-bytes:all_reduce=1G"}, {"small": 20}),
        ({"HOCKET_REPRODUCIBLE": "rank-order"}, {"taken": 20}),
        ({"HOCKET_MPI": "min-bytes:much"}, {}),
        ({"HOCKET_MPI": "min-bytes:17179869184G"}, {}),  # 0 in a word
        ({"HOCKET_REACH": "sometimes"}, {}),
        ({"HOCKET_CACHE_BYTES": "32M"}, {}),
        ({"HOCKET_CACHE_BYTES": ""}, {"first": 8, "taken": 12}),
    ],
    ids=lambda given: ",".join(f"{name}={value}" for name, value in given.items()) or "defaults",
)
def test_the_report_counts_every_call(
    mpi: Mpi, library: Path, program: Program, options: dict[str, str], rows: dict[str, int]
) -> None:
    variables = {"HOCKET_MPI_REPORT": "1", **options}
    done = ends_well(mpi.run(program("repeat.c"), "20", "200000", library=library, variables=variables))
    found = re.findall(r"MPI_COMM_WORLD +2 +all_reduce +(\d+) +(\d+) .* (\w+)$", "\n".join(done.report), re.MULTILINE)
    assert {why: int(calls) for calls, _, why in found} == rows, done.text
    assert all(int(nbytes) == 1_600_000 * int(calls) for calls, nbytes, _ in found)
    assert any("makes no sense" in line for line in done.report) == (not rows)


def test_a_barrier_has_no_bytes(mpi: Mpi, library: Path, program: Program) -> None:
    variables = {"HOCKET_MPI_REPORT": "1"}
    done = ends_well(mpi.run(program("oddities.c"), "barrier", library=library, variables=variables))
    assert set(re.findall(r" barrier +\d+ +(\d+) ", "\n".join(done.report))) == {"0"}, done.text


def test_off_is_off(mpi: Mpi, library: Path, program: Program) -> None:
    variables = {"HOCKET_MPI": "off", "HOCKET_MPI_REPORT": "1"}
    done = mpi.run(program("order.c"), library=library, variables=variables)
    assert taken(ends_well(done)) == set()


def test_sums_in_the_order_of_ranks(mpi: Mpi, library: Path, program: Program) -> None:
    variables = {**TAKE_ALL, "HOCKET_REPRODUCIBLE": "rank-order"}
    done = mpi.run(program("order.c"), "rank-order", ranks=3, library=library, variables=variables)
    assert taken(ends_well(done)) >= {"all_reduce", "reduce"}


@pytest.mark.parametrize("options", [TAKE_ALL, {}], ids=["everything", "defaults"])
def test_errors_are_those_of_the_mpi(mpi: Mpi, library: Path, program: Program, options: dict[str, str]) -> None:
    alone = ends_well(mpi.run(program("errors.c")))
    done = ends_well(mpi.run(program("errors.c"), library=library, variables=options))
    assert done.output == alone.output


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=CAMPAIGN), pytest.param(5, marks=CAMPAIGN)])
@pytest.mark.parametrize("name", ["mpif.f", "module.f90", "in_place.f90"])
def test_fortran(mpi: Mpi, library: Path, program: Program, name: str, ranks: int) -> None:
    if why := mpi.no_fortran(Path(name).suffix):
        pytest.skip(why)
    ends_well(mpi.run(program(name), ranks=ranks))
    done = mpi.run(program(name), ranks=ranks, library=library, variables=TAKE_ALL)
    assert taken(ends_well(done)), done.text


def test_every_source_is_run() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    for path in PROGRAMS.iterdir():
        assert path.suffix == ".h" or f'"{path.name}"' in here, f"no test runs {path.name}"


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=CAMPAIGN)])
def test_mpi4py(mpi: Mpi, library: Path, ranks: int) -> None:
    python = mpi.folder / "bin" / "python"
    if mpi.abi or not any(mpi.folder.glob("lib/python*/site-packages/mpi4py")):
        pytest.skip(f"beside {mpi.name} there is no mpi4py")
    script = str(PROGRAMS / "arrays.py")
    done = mpi.run(python, script, ranks=ranks, library=library, variables=TAKE_ALL)
    assert taken(ends_well(done)) >= TAKEN - {"gather", "scatter", "reduce_scatter", "all_to_all_v"}, done.text
