"""Which ranks share a socket of this machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Sequence
from pathlib import Path


def filled(allowed: Sequence[Collection[int]], cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many sockets the ranks fill in their order, as evenly as can be: socket s of m from rank s * p // m on.

    ``allowed``: the processors that each rank may run on. 1 where a rank may run on several sockets, or sockets hold
    other ranks than that. The environment variable HOCKET_SOCKETS, a number, overrides it.
    """
    given = os.environ.get("HOCKET_SOCKETS", "")
    if given.isdecimal():
        return max(1, int(given))
    found: list[str] = []
    for processors in allowed:
        packages = {_package(cpus, number) for number in processors}
        if len(packages) != 1:
            return 1
        found += packages
    starts = [rank for rank in range(1, len(found)) if found[rank] != found[rank - 1]]
    sockets = len(set(found))
    even = [socket * len(found) // sockets for socket in range(1, sockets)]
    return sockets if starts == even else 1


@functools.cache
def _package(cpus: Path, number: int) -> str:
    """The name of a processor's socket; the same for all where the system does not say. Read once in a process."""
    try:
        return (cpus / f"cpu{number}" / "topology" / "physical_package_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
