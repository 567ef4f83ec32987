"""Jobs whose ranks are on several machines, each a network namespace (machines.py), over each MPI by TCP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from select import select

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import PROGRAMS, Mpi, begin, end, wait
from tests.integrations.mpi.machines import Machines, machines, why_not
from tests.integrations.mpi.test_nodes import JOBS
from tests.integrations.mpi.test_programs import TAKE_ALL, ends_well, taken
from tests.limits import scaled

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def there_are_namespaces() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def start(mpi: Mpi, on: Machines, ranks: tuple[int, ...], *command: str, **variables: str) -> subprocess.Popen[str]:
    """A job of Python, with so many ranks on each machine."""
    if mpi.abi or mpi.folder != Path(sys.prefix) or find_spec("mpi4py") is None:
        pytest.skip("the MPI is not that of an mpi4py in this environment")
    words = on.command(mpi, ranks, {"PYTHONPATH": str(ROOT), **variables}, [sys.executable, *command])
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    )


@pytest.mark.parametrize("ranks", [(2, 2), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("names", JOBS, ids=" ".join)
def test_ranks_on_several_machines(mpi: Mpi, names: tuple[str, ...], ranks: tuple[int, ...], tmp_path: Path) -> None:
    with machines(len(ranks), tmp_path) as on:
        done = wait(start(mpi, on, ranks, str(PROGRAMS / "nodes.py"), *names), 240)
    assert done.code == 0, done.text
    assert done.output.count("right") == sum(ranks), done.text


@pytest.mark.parametrize(("ranks", "name"), [((2, 2), "collectives.c"), ((1, 1), "progress.c")], ids=str)
def test_programs_of_mpi(
    mpi: Mpi, library: Path, program: Program, ranks: tuple[int, ...], name: str, tmp_path: Path
) -> None:
    """Unchanged, with hocket's library."""
    arguments = ["401", "1"] if name == "collectives.c" else []
    variables = {**TAKE_ALL, "LD_PRELOAD": str(library)}
    with machines(len(ranks), tmp_path) as on:
        words = on.command(mpi, ranks, variables, [str(program(name)), *arguments])
        done = ends_well(wait(begin(words), 240))
    assert taken(done), done.text
    assert not any("communicator: " in line for line in done.report), done.text


@pytest.mark.parametrize("ranks", [(2, 1), (1, 1, 1)], ids=str)
def test_programs(mpi: Mpi, ranks: tuple[int, ...], tmp_path: Path) -> None:
    with machines(len(ranks), tmp_path) as on:
        done = wait(start(mpi, on, ranks, "-m", "tests.property.on_nodes", "60", "7"), 240)
    assert done.code == 0, done.text
    assert "bit-equal" in done.output, done.text


@pytest.mark.parametrize("ranks", [(2, 2), (2, 1, 1)], ids=str)
def test_a_network_that_is_cut(mpi: Mpi, ranks: tuple[int, ...], tmp_path: Path) -> None:
    """In mid-call: every rank raises within its timeout and some tenths, and names a rank of another machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with machines(len(ranks), tmp_path) as on, pipe.open("r+b", buffering=0) as said:
        job = start(mpi, on, ranks, str(PROGRAMS / "nodes.py"), "cut", HOCKET_TEST_PIPE=str(pipe))

        def heard() -> str:
            if not select([said], [], [], scaled(60))[0]:
                pytest.fail("\n".join(end(job)))
            return said.readline().decode()  # byte by byte: more may be there

        assert heard() == "calls\n"
        on.cut(on.names[0])
        raised = [heard() for _ in range(sum(ranks))]
    job.communicate()  # it has ended with its machines
    machine = [number for number, count in enumerate(ranks) for _ in range(count)]
    for words_of_rank in raised:
        match = re.match(r"(\d) (\S+) .*?rank (\d) ", words_of_rank)
        assert match is not None, words_of_rank
        rank, seconds, named = int(match[1]), float(match[2]), int(match[3])
        assert seconds < scaled(4), raised
        assert machine[rank] != machine[named], raised
