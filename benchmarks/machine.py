"""What a benchmark ran on, for its table and its JSON."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from hocket import _native


def describe() -> dict[str, object]:
    """The processor, what of it may be used, and how busy it is before the benchmark begins."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "isa": _native.ISA,
    }


def title(machine: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())
