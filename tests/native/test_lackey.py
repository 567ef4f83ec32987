"""Valgrind counts loads and stores as the kernels do, and as the schedule says: to the byte.

Ranks are threads of a native program that runs plans with AVX2; what lies in buffers and slots counts. Two runs differ
by one call, so that what comes before and after calls drops out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest

from hocket import Program, Schedule
from hocket.algorithms import all_pairs, direct, dpml, knomial, movement_avoiding, ring
from hocket.ir.traffic import Traffic, traffic
from hocket.runtime.plan import lower

ROOT = Path(__file__).parents[2]
SOURCES = (
    *(f"native/cpu/{name}.cpp" for name in ("communicator", "memory", "dispatch", "team", "kernels")),
    "tests/native/native_tests.cpp",
    "tests/native/plain_memcpy.cpp",
)
ACCESS = re.compile(rb" ([LSM]) ([0-9a-f]+),(\d+)\n")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not shutil.which("valgrind") or not shutil.which("g++") or os.uname().machine != "x86_64",
        reason="needs valgrind and g++ on x86-64",
    ),
]


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native tests, their kernels for AVX2 alone, with a memcpy that copies nothing twice."""
    found = tmp_path_factory.mktemp("lackey") / "native_tests"
    options = "-std=c++20 -O2 -march=x86-64-v3 -ffp-contract=off -DHOCKET_ISA=baseline -Inative -pthread"
    subprocess.run(["g++", *options.split(), *SOURCES, "-o", found], cwd=ROOT, check=True)
    return found


def run(command: list[str | Path], log: Path) -> tuple[Traffic, Traffic]:
    """What the kernels counted, and what valgrind saw."""
    said = subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", "--fair-sched=yes", f"--log-file={log}", *command],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    counted, ends = Traffic(), [0]
    for line in said.splitlines():
        kind, *words = line.split()
        if kind == "counted":
            counted += Traffic(int(words[1]), int(words[2]))
        else:
            ends += [int(words[0], 16), int(words[0], 16) + int(words[1])]
    ends.sort()  # between an odd and an even one lies memory that counts
    loaded = stored = 0
    with log.open("rb") as lines:
        for line in lines:
            access = ACCESS.match(line)
            if access is not None and bisect_right(ends, int(access[2], 16)) % 2 == 0:
                size = int(access[3])
                loaded += size * (access[1] != b"S")
                stored += size * (access[1] != b"L")
    log.unlink()
    return counted, Traffic(loaded, stored)


PROGRAMS = (
    ring.all_reduce(3),
    all_pairs.all_reduce(3),
    movement_avoiding.all_reduce(4, sockets=2),
    dpml.all_reduce(4, sockets=2),
    movement_avoiding.reduce_scatter(3),
    movement_avoiding.reduce(4),
    knomial.broadcast(4, 4),
    direct.all_gather(3),
    direct.all_to_all(3),
    all_pairs.one_shot_all_reduce(3),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_valgrind_sees_what_is_counted(program: Program, binary: Path, tmp_path: Path) -> None:
    schedule: Schedule = program.compile()
    ranks, n, tile = schedule.collective.size, 5003, 4096
    plans: list[str | Path] = []
    for rank in range(ranks):
        plans.append(tmp_path / f"plan{rank}")
        (tmp_path / f"plan{rank}").write_bytes(lower(schedule, rank).words)
    of_one, seen_in_one = run([binary, "traffic", "1", str(n), str(tile), *plans], tmp_path / "log")
    of_two, seen_in_two = run([binary, "traffic", "2", str(n), str(tile), *plans], tmp_path / "log")
    said = sum(traffic(schedule, n, 4, apart=False, tile=tile), Traffic())
    assert of_one == of_two - of_one == said
    assert seen_in_two - seen_in_one == said
