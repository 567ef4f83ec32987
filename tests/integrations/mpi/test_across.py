"""Programs of MPI, as they are, with hocket under them on ranks that are told that they are on several nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import Mpi, end, placed
from tests.integrations.mpi.random_calls import compared
from tests.integrations.mpi.test_faults import BOUND, BY_TIMING, ended, left
from tests.integrations.mpi.test_programs import CAMPAIGN, TAKE_ALL, TAKEN, ends_well, taken
from tests.limits import scaled

Placed = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    """Variables of a placement. Its plans are made once."""
    folder = tmp_path_factory.mktemp("plans")
    return lambda placement: placed(placement, folder)


def ranks_on(variables: dict[str, str]) -> int:
    placement = variables["HOCKET_NODES"]
    return placement.count(",") + 1 if "," in placement else sum(map(int, placement.split("+")))


def once(mpi: Mpi) -> None:
    if mpi.abi:
        pytest.skip("as by the MPI's own ABI")


def cases(*given: tuple[str, str, tuple[str, ...]]) -> list[object]:
    return [pytest.param(*case, id=f"{Path(case[0]).stem}-{case[1]}") for case in given]


FEW = cases(
    ("collectives.c", "2+2", ("1501", "1")),
    ("collectives.c", "2+1+1", ("1501", "3")),
    ("oddities.c", "1+1", ("bcast_as_bytes", "vector_in_bcast", "intercommunicator", "from_anybody", "freed_early")),
    ("progress.c", "1+1", ()),
    ("threads.c", "1+1", ()),
    ("order.c", "2+1", ()),
)
MANY = cases(
    ("collectives.c", "1+1", ("11", "0")),
    ("collectives.c", "0,1,0", ("11", "0")),
    ("collectives.c", "2+2", ("31", "0")),
    ("collectives.c", "2+1+1", ("31", "0")),
    ("collectives.c", "0,1,0,1", ("31", "0")),
    ("collectives.c", "1+1+1+1+1", ("61", "0")),
    ("oddities.c", "1+1", ()),
    ("oddities.c", "2+1", ()),
    ("oddities.c", "2+2", ()),
    ("progress.c", "2+1", ()),
    ("progress.c", "2+2", ()),
    ("threads.c", "2+1", ()),
    ("threads.c", "2+2", ()),
    ("order.c", "1+1", ()),
    ("order.c", "2+2", ()),
)


def with_hocket(
    mpi: Mpi, library: Path, program: Program, on: Placed, name: str, placement: str, arguments: tuple[str, ...]
) -> None:
    given = on(placement)
    variables = {**TAKE_ALL, **given}
    done = mpi.run(program(name), *arguments, ranks=ranks_on(given), library=library, variables=variables, timeout=1000)
    assert taken(ends_well(done)), done.text


@pytest.mark.parametrize(("name", "placement", "arguments"), FEW)
def test_with_hocket(
    mpi: Mpi, library: Path, program: Program, on: Placed, name: str, placement: str, arguments: tuple[str, ...]
) -> None:
    with_hocket(mpi, library, program, on, name, placement, arguments)


@CAMPAIGN
@pytest.mark.parametrize(("name", "placement", "arguments"), MANY)
@pytest.mark.timeout(3000)
def test_many_with_hocket(
    mpi: Mpi, library: Path, program: Program, on: Placed, name: str, placement: str, arguments: tuple[str, ...]
) -> None:
    with_hocket(mpi, library, program, on, name, placement, arguments)


def test_every_collective_is_taken(mpi: Mpi, library: Path, program: Program, on: Placed) -> None:
    variables = {**TAKE_ALL, **on("2+1")}
    done = mpi.run(program("collectives.c"), "401", "7", ranks=3, library=library, variables=variables)
    assert taken(ends_well(done)) == TAKEN
    assert re.search(r"broadcast .* root$", "\n".join(done.report), re.MULTILINE), done.text  # rank 2's


@pytest.mark.parametrize(
    ("ranks", "variables", "rows"),
    [
        (2, {"HOCKET_NODES": "1+1"}, {"first": 8, "taken": 12}),
        (2, {"HOCKET_NODES": "1+1", "HOCKET_MPI": "min-bytes:0"}, {"taken": 20}),
        (2, {"HOCKET_NODES": "1+1", "HOCKET_MPI": "min-bytes:1G"}, {"small": 20}),
        (2, {"HOCKET_NODES": "one,one"}, {"first": 8, "taken": 12}),
        (2, {"HOCKET_NODES": "2+2"}, {"first": 8, "communicator: HOCKET_NODES does not say where each rank is": 12}),
        (2, {"HOCKET_NODES": "1+1", "HOCKET_MPI": "min-bytes:all_reduce=8K"}, {"small": 20}),
        (2, {"HOCKET_NODES": "1+one"}, {}),
        (
            3,
            {"HOCKET_NODES": "1+2"},
            {"first": 8, "communicator: no plans for its nodes: hocket mpi --prepare 1+2": 12},
        ),
    ],
    ids=lambda given: ",".join(given.values()) if isinstance(given, dict) and "HOCKET_NODES" in given else "",
)
def test_the_report_says_why(
    mpi: Mpi, library: Path, program: Program, ranks: int, variables: dict[str, str], rows: dict[str, int]
) -> None:
    once(mpi)
    if mpi.kind == "impi" and variables == {"HOCKET_NODES": "1+1"}:
        rows = {"first": 8, "small": 12}  # it was not measured on nodes
    variables = {"HOCKET_MPI_REPORT": "1", **variables}
    done = ends_well(mpi.run(program("repeat.c"), "20", "1000", ranks=ranks, library=library, variables=variables))
    found = re.findall(
        r"MPI_COMM_WORLD +\d +all_reduce +(\d+) +\d+ +\S+ +\S+ +(.*)$", "\n".join(done.report), re.MULTILINE
    )
    assert {why: int(calls) for calls, why in found} == rows, done.text


def test_long_sums_between_nodes_are_the_mpis(mpi: Mpi, library: Path, program: Program) -> None:
    """By the defaults; hocket's were measured to be slower on four nodes."""
    if mpi.kind == "impi":
        pytest.skip("nothing is taken of Intel MPI, which was not measured on nodes")
    variables = {"HOCKET_MPI_REPORT": "1", "HOCKET_NODES": "1+1"}
    pairs = program(str(Path(__file__).parents[3] / "benchmarks" / "mpi_pairs.c"))
    for size, why in (("4096", "taken"), ("1048576", "large")):
        done = mpi.run(pairs, "allreduce", size, size, "3", "0", library=library, variables=variables)
        assert done.code == 0, done.text
        assert re.search(f"all_reduce .* {why}$", "\n".join(done.report), re.MULTILINE), done.text


@pytest.mark.parametrize(
    ("placement", "calls"),
    [
        ("2+2", 40),
        *(pytest.param(*case, marks=CAMPAIGN) for case in (("1+1", 10000), ("2+1+1", 2000), ("0,1,0", 2000))),
    ],
)
@pytest.mark.timeout(9000)
def test_random_calls(
    mpi: Mpi, library: Path, program: Program, on: Placed, placement: str, calls: int, tmp_path: Path
) -> None:
    once(mpi)
    given = on(placement)
    source, ranks = program("random_calls.c"), ranks_on(given)
    ended = compared(mpi, source, library, ranks=ranks, calls=calls, seed=calls, folder=tmp_path, variables=given)
    for name, done in ended.items():
        assert done.code == 0, f"{name}\n{done.text}"
        assert "checks: " in done.output
    assert taken(ended["everything"]), ended["everything"].text


@pytest.mark.parametrize(
    ("how", "when", "placement"),
    [
        ("kill", "calls", "2+1"),
        *(
            pytest.param(how, when, placement, marks=CAMPAIGN)
            for how in ("kill", "abort", "exit", "leave")
            for when in ("first", "calls", "setup")
            for placement in ("1+1", "2+2")
        ),
    ],
)
def test_a_rank_that_ends(
    mpi: Mpi, library: Path, program: Program, on: Placed, how: str, when: str, placement: str
) -> None:
    once(mpi)
    given = on(placement)
    before = left()
    run = partial(mpi.run, program("faults.c"), how, when, ranks=ranks_on(given), timeout=BOUND)
    alone = ended(run)
    done = ended(partial(run, library=library, variables={**TAKE_ALL, **given}))
    same = done.code == alone.code or {done.code, alone.code} <= BY_TIMING.get(how, set())
    assert same, f"without hocket: {alone.text}\nwith it: {done.text}"
    assert left() <= before


@CAMPAIGN
def test_survivors_go_on_with_the_mpi(mpi: Mpi, library: Path, program: Program, on: Placed, tmp_path: Path) -> None:
    """Those of both nodes leave hocket's call. What the MPI's own then comes to, MPI by MPI: most wait for ever."""
    once(mpi)
    said = tmp_path / "said"
    unnoticed = f'"$@" 2>> {said} || sleep 60'  # by the launcher, which would end the others
    command = "-c", unnoticed, "sh", str(program("faults.c")), "kill", "calls"
    job = mpi.start("sh", *command, ranks=3, library=library, variables={**TAKE_ALL, **on("1+2")})
    limit = time.monotonic() + scaled(BOUND)
    try:
        while (text := said.read_text() if said.exists() else "").count("rank 2 has ended") < 2:
            assert time.monotonic() < limit, text
            time.sleep(0.1)
    finally:
        end(job)
