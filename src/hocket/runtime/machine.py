"""What ranks share of this machine: its caches, its sockets, its cores."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from hocket import _native
from hocket.errors import BootstrapFailed, counted

_DIGITS = 18  # of what fits in a word


def given_cache_bytes() -> int | None:
    """The bytes that the user says the caches hold, if so. Then no call looks whether its arrays are in a cache, or how
    far other cores are. Raises BootstrapFailed.
    """
    return _given("HOCKET_CACHE_BYTES", "a number of bytes")


def given_sockets() -> int | None:
    """The sockets that the user says the ranks fill, if so. Raises BootstrapFailed."""
    return _given("HOCKET_SOCKETS", "a number")


def _given(variable: str, kind: str) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise BootstrapFailed(f"{variable} must be {kind} of up to {_DIGITS} digits, not {text[:40]!r}")
    return int(text)


def cache_bytes(ranks: int, cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes that the caches of the second and third level of so many ranks hold together (YHCCL, section 4).

    The environment variable HOCKET_CACHE_BYTES, a number, overrides it. All are taken to be like those of cpu0. The
    levels are added, which is a little too much where the third includes the second. Raises BootstrapFailed.
    """
    given = given_cache_bytes()
    return _caches(cpus).bytes(ranks) if given is None else given


@functools.cache
def _caches(cpus: Path) -> _native.Caches:
    """Read once in a process."""
    return _native.find_caches(os.cpu_count() or 1, str(cpus))


def sockets(allowed: Sequence[Collection[int]], cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many sockets the ranks fill in their order, as evenly as can be: socket s of m from rank s * p // m on.

    ``allowed``: the processors that each rank may run on. 1 where a rank may run on several sockets, or sockets hold
    other ranks than that. The environment variable HOCKET_SOCKETS, a number, overrides it. Raises BootstrapFailed.
    """
    given = given_sockets()
    if given is not None:
        return max(1, given)
    found: list[str] = []
    for processors in allowed:
        packages = {_package(cpus, number) for number in processors}
        if len(packages) != 1:
            return 1
        found += packages
    starts = [rank for rank in range(1, len(found)) if found[rank] != found[rank - 1]]
    many = len(set(found))
    even = [socket * len(found) // many for socket in range(1, many)]
    return many if starts == even else 1


@functools.cache
def _package(cpus: Path, number: int) -> str:
    """The name of a processor's socket; the same for all where the system does not say. Read once in a process."""
    try:
        return (cpus / f"cpu{number}" / "topology" / "physical_package_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def cores(allowed: Collection[int]) -> int:
    """How many of the cores that may be used the control group gives time for; all where it does not say."""
    quota = _quota()
    return len(allowed) if quota is None else min(len(allowed), quota)


@functools.cache
def _quota() -> int | None:
    """The cores that the control group gives time for, None where it does not say. Read once in a process."""
    with suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if limit != "max":
            return int(limit) // int(period)
    return None


@functools.cache
def fingerprint(cpus: Path = Path("/sys/devices/system/cpu"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What tells machines apart on which a call takes different times, for people too: the processor, how many cores
    there is time for, on how many sockets, and their caches. Read once in a process."""
    count = os.cpu_count() or 1
    sockets = len({_package(cpus, number) for number in range(count)})
    levels = _caches(cpus).second, _caches(cpus).third
    caches = " + ".join(f"{level.instances} x {level.bytes >> 10} KB" for level in levels)
    here = f"{counted(cores(range(count)), 'core')} on {counted(sockets, 'socket')}"
    return f"{_processor(cpuinfo)}, {here}, {caches} of cache"


_NAMES = ("model name", "CPU implementer", "CPU part")
"""The lines of /proc/cpuinfo that name a processor: one of x86, two of Arm."""


def _processor(cpuinfo: Path) -> str:
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _NAMES:
                found.setdefault(name.strip(), value.strip())
    return " ".join([platform.machine(), *(found[name] for name in _NAMES if name in found)])
