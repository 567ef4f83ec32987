"""A sample of the soak; its full form is ``python -m tests.runtime.soak``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.runtime.soak import Use, growth


@pytest.mark.campaign
def test_a_sample() -> None:
    options = "--small 3000 --large 12 --communicators 10 --laps 8"
    command = [sys.executable, "-m", "tests.runtime.soak", *options.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_growth_is_noticed() -> None:
    use = Use(own=100 << 20, mapped=10 << 20, files=1 << 20, descriptors=50, threads=20)
    assert growth([use] * 20) == []
    for field, much in (("own", 1 << 19), ("mapped", 1 << 19), ("files", 4096), ("descriptors", 1), ("threads", 1)):
        uses = [replace(use, **{field: getattr(use, field) + much * lap}) for lap in range(20)]
        assert [line.split()[0] for line in growth(uses)] == [field]
