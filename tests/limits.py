"""Limits of time: those of an idle machine, and longer ones where tests share their cores."""

from __future__ import annotations

import os
from pathlib import Path


def scaled(seconds: float) -> float:
    """``seconds`` on a machine with a core for every thread that is ready to run, three times their share else."""
    ready = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1  # without this one
    return seconds * max(1.0, 3 * ready / len(os.sched_getaffinity(0)))
