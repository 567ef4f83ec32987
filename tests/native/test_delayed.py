"""Every library schedule over a transport that is no shared memory: the delayed queue of the native tests.

run_sanitizers.sh runs the same calls under the sanitizers.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.schedules import write

ROOT = Path(__file__).parents[2]
SOURCES = (
    "tests/native/main.cpp",
    "tests/native/delayed.cpp",
    "native/device/kernels.cpp",
    "native/device/dispatch.cpp",
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")]


@pytest.mark.campaign
def test_every_schedule_gives_what_the_reference_says(tmp_path: Path) -> None:
    binary, calls = tmp_path / "native_tests", tmp_path / "calls"
    options = "-std=c++20 -ffp-contract=off -DHOCKET_ISA=baseline -Inative -pthread"
    subprocess.run(["g++", *options.split(), *SOURCES, "-o", binary], cwd=ROOT, check=True)
    count = write(calls)
    said = subprocess.run([binary, "delayed", calls], check=True, capture_output=True, text=True).stdout
    assert count > 1000
    assert said == f"{count} calls\n"
