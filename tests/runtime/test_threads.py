"""Ranks of several threads: the same results, the same faults, and no more threads than asked for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.errors import CallMismatch, InvalidArgument, PeerFailed
from hocket.runtime import machine

ROWS = 1 << 19  # of 4 bytes: more than enough to be spread


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def family(comm: Communicator) -> int:
    """Every collective in and out of the background; returns how many threads were started for it."""
    size, rank = comm.size, comm.rank
    before = tasks()
    rows = ROWS // size * size
    everyone = [np.arange(rows, dtype=np.int32) * (r + 1) for r in range(size)]
    x, total, block = everyone[rank], sum(everyone), slice(rank * (rows // size), (rank + 1) * (rows // size))
    assert np.array_equal(comm.all_reduce(x.copy()), total)
    started = tasks() - before
    assert np.array_equal(comm.all_reduce(x.copy(), async_=True).wait(), total)
    assert np.array_equal(comm.reduce_scatter(x), total[block])
    assert np.array_equal(comm.all_gather(x), np.concatenate(everyone))
    assert np.array_equal(comm.all_to_all(x, np.empty_like(x)), np.concatenate([e[block] for e in everyone]))
    assert np.array_equal(comm.broadcast(x.copy(), root=size - 1), everyone[-1])
    reduced = comm.reduce(x.copy(), root=size - 1)
    assert reduced is None if rank < size - 1 else np.array_equal(reduced, total)
    gathered = comm.gather(x)
    assert gathered is None if rank else np.array_equal(gathered, np.concatenate(everyone))
    assert np.array_equal(comm.scatter(x), everyone[0][block])
    assert comm.all_reduce(np.ones(1))[0] == size  # a small one between
    return started


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_family(threads: int) -> None:
    assert hocket.spawn(family, 3, threads=threads) == [threads - 1] * 3


def test_the_family_with_non_temporal_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE_BYTES", "0")
    assert hocket.spawn(family, 3, threads=2) == [1] * 3


def killed(comm: Communicator) -> str:
    if comm.rank == 1:
        comm.all_reduce(np.ones(ROWS))
        os._exit(3)
    comm.all_reduce(np.ones(ROWS))
    with pytest.raises(PeerFailed) as caught:
        comm.all_reduce(np.ones(ROWS))
    Path(os.environ["HOCKET_TEST_NOTE"]).write_text(str(caught.value))
    raise caught.value


def test_a_rank_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TEST_NOTE", str(tmp_path / "note"))
    with pytest.raises(hocket.HocketError):
        hocket.spawn(killed, 2, threads=2)
    assert "rank 1 has ended" in (tmp_path / "note").read_text()


def disagreeing(comm: Communicator) -> bool:
    """Ranks that say different numbers find out in the first call that is spread."""
    other = hocket.init(threads=1 + comm.rank)
    x = np.ones(ROWS)
    with pytest.raises(CallMismatch):
        other.all_reduce(x)
    return bool((x == 1).all() and other.all_reduce(np.ones(1))[0] == comm.size)


def test_ranks_that_disagree() -> None:
    assert hocket.spawn(disagreeing, 2) == [True, True]


@pytest.mark.parametrize("threads", [0, -1, 1.5, "many", None])
def test_what_is_no_number_of_threads(threads: int) -> None:
    with pytest.raises(InvalidArgument, match="threads must be"):
        hocket.init(threads=threads)


def automatic(comm: Communicator, cores: int) -> int:
    """How many threads are started for a call, where there seem to be so many cores."""
    machine.cores = lambda allowed: cores
    with hocket.init() as other:
        before = tasks()
        assert other.all_reduce(np.ones(ROWS, np.int32))[-1] == comm.size
        return tasks() - before


@pytest.mark.parametrize(
    ("cores", "started"),
    [(1, 0), (4, 1), *(pytest.param(*given, marks=pytest.mark.campaign) for given in ((2, 0), (3, 0), (7, 2)))],
)
def test_auto(cores: int, started: int) -> None:
    assert hocket.spawn(automatic, 2, (cores,)) == [started] * 2
