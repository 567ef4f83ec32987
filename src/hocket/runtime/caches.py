"""How much the caches of this machine hold."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from hocket.errors import BootstrapFailed

_FALLBACK = {2: 1 << 20, 3: 32 << 20}
"""Bytes of a cache of the second and the third level, shared by one core and by all, where sysfs does not say."""

MOST_OF_A_PROCESSOR = 32 << 20
"""Bytes of a cache of the third level for each processor that shares it; few have as much. A virtual machine may say
that it has all that its host has, for two processors of a hundred."""

_MOST_INDICES = 8  # caches of one processor; there are three to five
_VARIABLE = "HOCKET_CACHE_BYTES"
_DIGITS = 18  # of what fits in a word
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def given() -> int | None:
    """The bytes that the user says there are, if so. Then no call looks whether its arrays are in a cache.

    Raises BootstrapFailed.
    """
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise BootstrapFailed(f"{_VARIABLE} must be a number of bytes of up to {_DIGITS} digits, not {text[:40]!r}")
    return int(text)


def capacity(ranks: int, cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes that the caches of the second and third level of so many ranks hold together (YHCCL, section 4).

    The environment variable HOCKET_CACHE_BYTES, a number, overrides it. All are taken to be like those of cpu0. The
    levels are added, which is a little too much where the third includes the second. Raises BootstrapFailed.
    """
    said = given()
    if said is not None:
        return said
    return sum(size * min(ranks, instances) for size, instances in _levels(cpus))


@functools.cache
def _levels(cpus: Path) -> tuple[tuple[int, int], ...]:
    """For the second and the third level, the bytes of a cache and how many there are. Read once in a process."""
    total = os.cpu_count() or 1
    found = {2: (_FALLBACK[2], total), 3: (_FALLBACK[3], 1)}
    for number in range(_MOST_INDICES):
        cache = cpus / "cpu0" / "cache" / f"index{number}"
        try:
            level, kind, size, shared = (
                (cache / name).read_text(encoding="utf-8").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            if int(level) in found and kind != "Instruction":
                sharers = _length(shared)
                bytes_ = min(int(size[:-1]) * _UNITS[size[-1]], sharers * MOST_OF_A_PROCESSOR)
                found[int(level)] = bytes_, max(1, total // sharers)
        except (OSError, ValueError, LookupError):
            continue
    return tuple(found.values())


def _length(ranges: str) -> int:
    """How many numbers a list such as 0-3,8 has."""
    ends = [part.partition("-")[::2] for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, last in ends)
