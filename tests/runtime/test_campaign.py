"""A sample of the fault campaign; its full form is ``python -m tests.runtime.campaign``."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "words",
    [
        *(("kills", "12"), ("disagree", "100"), ("limits", "8")),
        *(pytest.param(words, marks=pytest.mark.campaign) for words in (("stops", "6"), ("exits", "24"))),
    ],
    ids=lambda words: words[0],
)
def test_a_sample(words: tuple[str, str]) -> None:
    seed = str(random.randrange(1 << 32))
    found = subprocess.run(  # apart, because it forks
        [sys.executable, "-m", "tests.runtime.campaign", *words, "--seed", seed],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, f"seed {seed}\n{found.stdout}{found.stderr}"
