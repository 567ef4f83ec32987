"""A rank that ends in the middle ends the job as it does without hocket, and nothing of hocket's is left."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import Done, Mpi, end, placed, wait
from tests.integrations.mpi.test_programs import TAKE_ALL, ends_well, taken
from tests.limits import scaled

BOUND = 20.0  # seconds in which a job must have ended: launchers allow ranks some to end by themselves


def left() -> set[str]:
    """Files of hocket's in shared memory; MPIs leave some of their own there."""
    return {path.name for path in Path("/dev/shm").iterdir() if "hocket" in path.name.lower()}


# Which of the ranks' statuses mpiexec ends with is up to hydra's timing, with hocket and without: those of the ranks
# that it kills count or not.
BY_TIMING: dict[str, set[int | None]] = {
    "exit": {3, signal.SIGKILL, signal.SIGTERM},
    "leave": {0, signal.SIGKILL, signal.SIGTERM},
}


def ended(run: Callable[[], Done]) -> Done:
    """A job's end. Of jobs with a rank that exits, hydra alone leaves one in sixty hanging: those are run again."""
    for _ in range(2):
        done = run()
        if done.code is not None:
            return done
    return run()


def outcome(done: Done) -> str:
    return "hangs" if done.code is None else "ends well" if done.code == 0 else "fails"


@pytest.mark.parametrize(
    ("how", "when", "ranks"),
    [
        *(("kill", "calls", 2), ("abort", "calls", 3), ("exit", "calls", 2), ("leave", "calls", 2)),
        *(
            pytest.param(how, when, ranks, marks=pytest.mark.campaign)
            for how in ("kill", "abort", "exit", "leave")
            for when in ("first", "calls", "setup")
            for ranks in (2, 4)
        ),
    ],
)
def test_a_rank_that_ends(mpi: Mpi, library: Path, program: Program, how: str, when: str, ranks: int) -> None:
    before = left()
    run = partial(mpi.run, program("faults.c"), how, when, ranks=ranks, timeout=BOUND)
    alone = ended(run)
    done = ended(partial(run, library=library, variables=TAKE_ALL))
    same = done.code == alone.code or {done.code, alone.code} <= BY_TIMING.get(how, set())
    assert same, f"without hocket: {alone.text}\nwith it: {done.text}"
    assert left() <= before


def test_a_job_that_is_ended(mpi: Mpi, library: Path, program: Program) -> None:
    before = left()
    job = mpi.start(program("faults.c"), "stay", "calls", library=library, variables=TAKE_ALL)
    assert job.stdout is not None
    ranks = [int(re.fullmatch(r"process (\d+)\n", job.stdout.readline())[1]) for _ in range(2)]  # type: ignore[index]
    with ExitStack() as opened:
        ends = [opened.enter_context(os.fdopen(os.pidfd_open(rank))) for rank in ranks]
        end(job)
        limit = time.monotonic() + scaled(BOUND)
        for rank in ends:  # it is readable once the process has ended
            assert select.select([rank], [], [], limit - time.monotonic())[0], "a rank goes on"
    assert job.returncode != 0
    assert left() <= before


def test_two_jobs_at_once(mpi: Mpi, library: Path, program: Program) -> None:
    before = left()
    jobs = [mpi.start(program("collectives.c"), "401", str(i), library=library, variables=TAKE_ALL) for i in range(2)]
    for job in jobs:
        ends_well(wait(job, 120))
    assert left() <= before


def test_files_may_not_be_as_long(mpi: Mpi, library: Path, program: Program) -> None:
    """A limit that the MPI itself does not meet: a process that goes beyond it is ended by a signal."""
    given = ("-c", 'ulimit -f 100000000; exec "$@"', "sh", str(program("collectives.c")), "151", "1")
    done = ends_well(mpi.run("sh", *given, library=library, variables=TAKE_ALL))
    assert taken(done) == set()
    assert any("there is no memory to share" in line for line in done.report), done.text


APART = """
if [ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ]; then
    exec unshare --mount --ipc --uts --pid --fork \\
        sh -c 'mount -t tmpfs none /dev/shm; hostname other; exec "$@"' sh "$@"
fi
exec "$@"
"""


@pytest.mark.campaign
def test_ranks_in_containers(mpi: Mpi, library: Path, program: Program, tmp_path: Path) -> None:
    """Rank 1 is a node, in namespaces of its own. Where the MPI alone cannot start there, nor can it with hocket."""
    namespaces = ["unshare", "--mount", "--ipc", "--uts", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(namespaces, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("namespaces cannot be made here")
    given = ("-c", APART, "sh", str(program("collectives.c")), "401", "1")
    alone = mpi.run("sh", *given, ranks=3, variables=mpi.tcp)
    plans = placed("0,1,0", tmp_path)["HOCKET_MPI_PLANS"]
    variables = {**mpi.tcp, **TAKE_ALL, "HOCKET_MPI_PLANS": plans}
    done = mpi.run("sh", *given, ranks=3, library=library, variables=variables)
    assert outcome(done) == outcome(alone), f"without hocket: {alone.text}\nwith it: {done.text}"
    if alone.code == 0:
        assert taken(ends_well(done)), done.text


def test_a_program_without_mpi_is_left_alone(library: Path) -> None:
    given = {**os.environ, "LD_PRELOAD": str(library)}
    started = subprocess.run(["/bin/echo", "here"], env=given, capture_output=True, text=True, check=True)
    assert started.stdout == "here\n"
    assert started.stderr == ""
