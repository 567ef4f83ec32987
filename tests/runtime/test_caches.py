"""What the caches hold, from a made-up sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hocket
from hocket import Communicator
from hocket.errors import BootstrapFailed
from hocket.runtime.machine import cache_bytes

KB, MB = 1 << 10, 1 << 20


def machine(
    tmp_path: Path, cpus: int, caches: list[tuple[str, str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.delenv("HOCKET_CACHE_BYTES", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    for number, values in enumerate(caches):
        index = tmp_path / "cpu0" / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (index / name).write_text(value + "\n")
    return tmp_path


def test_two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the second level is that of two threads of a core; more ranks than caches have no more of them."""
    caches = [
        ("1", "Data", "32K", "0,32"),
        ("1", "Instruction", "32K", "0,32"),
        ("2", "Unified", "512K", "0,32"),
        ("3", "Unified", "16M", "0-15,32-47"),
    ]
    cpus = machine(tmp_path, 64, caches, monkeypatch)
    assert [cache_bytes(ranks, cpus) for ranks in (1, 2, 8, 32, 64)] == [
        16 * MB + 512 * KB,
        32 * MB + 2 * 512 * KB,
        32 * MB + 8 * 512 * KB,
        32 * MB + 32 * 512 * KB,
        32 * MB + 32 * 512 * KB,
    ]


def test_a_virtual_machine_that_says_what_its_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [("2", "Unified", "2048K", "0"), ("3", "Unified", "491520K", "0-1")]
    assert cache_bytes(2, machine(tmp_path, 2, caches, monkeypatch)) == 2 * 32 * MB + 2 * 2 * MB


@pytest.mark.parametrize("size", ["", "much", "4X", "0K"])
def test_nothing_there(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says nothing, or nothing that makes sense, has the usual."""
    cpus = machine(tmp_path, 4, [("3", "Unified", size, "0-3")] if size else [], monkeypatch)
    assert cache_bytes(8, cpus) == 32 * MB + 4 * MB


def test_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE_BYTES", "0")
    assert cache_bytes(2) == 0


def of_rank_1(comm: Communicator, variable: str, text: str) -> str:
    os.environ[variable] = text if comm.rank == 1 else ""
    with pytest.raises(BootstrapFailed) as error:
        hocket.init()
    comm.barrier()  # both have been told
    return error.value.reason


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 19, "-1", "32M", "\u0663"])
def test_given_in_vain(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE_BYTES", text)
    with pytest.raises(BootstrapFailed, match="HOCKET_CACHE_BYTES must be a number of bytes of up to 18 digits, not "):
        hocket.init()


@pytest.mark.parametrize(
    ("variable", "kind"), [("HOCKET_CACHE_BYTES", "a number of bytes"), ("HOCKET_SOCKETS", "a number")]
)
def test_given_in_vain_by_one_rank(variable: str, kind: str) -> None:
    said = f"rank 1: {variable} must be {kind} of up to 18 digits, not '32M'"
    assert hocket.spawn(of_rank_1, 2, (variable, "32M")) == [said] * 2
