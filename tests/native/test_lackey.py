"""Valgrind counts loads and stores as the kernels do, and as the schedule says: to the byte.

Ranks are threads of a native program that runs plans with AVX2. What lies in buffers and slots counts, less that each
byte of them is set once before.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hocket import Program, Schedule
from hocket.algorithms import direct, movement_avoiding, ring
from hocket.ir.traffic import Traffic, traffic
from hocket.runtime.plan import lower

ROOT = Path(__file__).parents[2]
SOURCES = (
    *(path for path in ROOT.glob("native/*/*.cpp") if path.parent.name not in ("python", "mpi")),
    *(ROOT / "tests/native" / name for name in ("main.cpp", "plans.cpp", "traffic.cpp", "lackey/plain_memcpy.cpp")),
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
    """What they ask of the native tests: kernels for AVX2 alone, a memcpy that copies nothing twice, always called."""
    built = tmp_path_factory.mktemp("lackey")
    options = "-std=c++20 -O2 -march=x86-64-v3 -mmemcpy-strategy=libcall:-1:noalign -DHOCKET_ISA=baseline -Inative -c"

    def compiled(source: Path) -> Path:
        target = built / f"{source.stem}.o"
        subprocess.run(["g++", *options.split(), source, "-o", target], cwd=ROOT, check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, SOURCES))
    subprocess.run(["g++", "-pthread", *objects, "-o", built / "native_tests"], check=True)
    return built / "native_tests"


def run(command: list[str | Path], log: Path) -> tuple[Traffic, Traffic]:
    """What the kernels counted, and what valgrind saw."""
    said = subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", "--fair-sched=yes", f"--log-file={log}", *command],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    counted, ends, set_before = Traffic(), [0], 0
    for line in said.splitlines():
        kind, *words = line.split()
        if kind == "counted":
            counted += Traffic(int(words[1]), int(words[2]))
        else:
            ends += [int(words[0], 16), int(words[0], 16) + int(words[1])]
            set_before += int(words[1])
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
    return counted, Traffic(loaded, stored - set_before)


PROGRAMS = (ring.all_reduce(2), movement_avoiding.all_reduce(3, sockets=2), direct.all_gather(3))


@pytest.mark.campaign
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_valgrind_sees_what_is_counted(program: Program, binary: Path, tmp_path: Path) -> None:
    schedule: Schedule = program.compile()
    ranks, n, tile = schedule.collective.size, 1003, 1024
    plans: list[str | Path] = []
    for rank in range(ranks):
        plans.append(tmp_path / f"plan{rank}")
        (tmp_path / f"plan{rank}").write_bytes(lower(schedule, rank).words)
    counted, seen = run([binary, "traffic", str(n), str(tile), *plans], tmp_path / "log")
    assert counted == seen == sum(traffic(schedule, n, 4, apart=False), Traffic())
