"""benchmarks/peers.py with hocket alone, and what it does with a library that computes something wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    return peers


@pytest.fixture
def worker(peers: ModuleType) -> ModuleType:
    return sys.modules["peers_worker"]


def alone(peers: ModuleType, worker: ModuleType, work: Path, size: int, wrong: int) -> Any:
    """The cells of one rank, in this process, with a library that leaves the last ``wrong`` elements of sums alone."""

    class Careless(worker.Library):  # type: ignore[misc, name-defined]
        rank, version = 0, "1"

        def bind(self, collective: str, x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> Any:
            right = len(out) - wrong
            return partial(np.copyto, out[:right], x[:right]), out

        def alone(self) -> Careless:
            return self

    native, segment = work / "native.so", work / "segment"
    peers.build(BENCHMARKS / "peers_native.cpp", native)
    segment.write_bytes(bytes(worker.Team.segment_bytes(1, 50)))
    job = worker.Job(
        collective="all_reduce",
        bytes=[size],
        ranks=1,
        cores=[0],
        cache=1 << 16,
        seconds=0.001,
        warmups=20,
        least=5,
        most=50,
        segment=str(segment),
        native=str(native),
        result="",
    )
    return worker.compare(job, Careless())


@pytest.mark.parametrize("wrong", [0, 1])
def test_wrong_elements_are_counted_in_every_cell(
    peers: ModuleType, worker: ModuleType, tmp_path: Path, wrong: int
) -> None:
    result = alone(peers, worker, tmp_path, 4096, wrong)
    assert [(cell.regime, cell.bytes, cell.wrong) for cell in result.cells] == [
        ("python", 4, 2 * wrong),
        ("hot", 4096, 2 * wrong),
        ("first", 4096, wrong),
        ("cold", 4096, 2 * wrong),
    ]
    (row, *_) = peers.rows("all_reduce", 1, {"hocket": [result]}, 1.0)
    assert row.wrong == ({"hocket": 2} if wrong else {})


def test_expected_results_tell_blocks_and_ranks_apart(worker: ModuleType) -> None:
    ranks, elements = 3, 12
    given = np.stack([worker.values(rank, 0, elements) for rank in range(ranks)])
    want: dict[str, Callable[[int], np.ndarray[Any, Any] | None]] = {
        "all_reduce": lambda rank: given.sum(axis=0),
        "all_gather": lambda rank: given[:, :4].ravel(),
        "reduce_scatter": lambda rank: given.sum(axis=0)[4 * rank : 4 * rank + 4],
        "broadcast": lambda rank: given[0],
        "reduce": lambda rank: given.sum(axis=0) if rank == 0 else None,
        "all_to_all": lambda rank: given[:, 4 * rank : 4 * rank + 4].ravel(),
    }
    assert len(np.unique(given.reshape(-1, 4), axis=0)) == ranks * ranks
    for collective, result in want.items():
        for rank in range(ranks):
            np.testing.assert_array_equal(worker.expected(collective, rank, ranks, elements), result(rank))


def test_ratio_has_the_interval_of_student(peers: ModuleType) -> None:
    ratio = peers.Ratio.of([1.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    assert ratio.mean == pytest.approx(2)
    half = 4.303 * np.log(2) / np.sqrt(3)
    assert (ratio.low, ratio.high) == pytest.approx((2 / np.exp(half), 2 * np.exp(half)))
    assert not ratio.is_slower
    assert peers.Ratio.of([1.2, 1.21], [1.0, 1.0]).is_slower
    assert peers.Ratio.of([3.0], [2.0]).low is None


def test_jobs_of_a_ring_take_turns(worker: ModuleType, tmp_path: Path) -> None:
    jobs, cells, found = 3, 5, []
    for number in range(jobs):
        os.mkfifo(tmp_path / f"{number}-0")

    def measure(number: int) -> None:
        turn, following = (str(tmp_path / str(n % jobs)) for n in (number, number + 1))
        turns = worker.Turns(SimpleNamespace(turn=turn, next=following, first=number == 0), 0)
        for cell in range(cells):
            with turns:
                found.append((cell, number))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(measure, range(jobs)))
    assert found == list(product(range(cells), range(jobs)))


def test_jobs_side_by_side(peers: ModuleType, tmp_path: Path) -> None:
    class Failing(peers.Contender):  # type: ignore[misc, name-defined]
        def launcher(self, python: Path, ranks: int, cores: int) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('it fails')"]

    peers.build(BENCHMARKS / "peers_native.cpp", tmp_path / "native.so")
    given = Namespace(ranks=1, begin="8", end="8", factor=2.0, seconds=0.001, least=2, timeout=60.0)
    launches = peers.Launches(given, [min(os.sched_getaffinity(0))], 1 << 16, tmp_path)
    hocket = peers.CONTENDERS[0], Path(sys.executable)
    two = launches.side_by_side([hocket, hocket], "all_reduce", rounds=2)
    wanted = [(regime, number) for number in range(2) for regime in ("python", "hot", "first", "cold")]
    assert [[(cell.regime, cell.round) for cell in result.cells] for result in two] == [wanted] * 2
    failing = Failing("failing", "hocket", (), ""), Path(sys.executable)
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with pytest.raises(peers.Missing, match="exit 1: it fails"):
        launches.side_by_side([hocket, failing], "all_reduce")
    assert children.read_text() == before


@pytest.mark.campaign
def test_a_library_that_cannot_be_installed_or_run_is_missing(peers: ModuleType, tmp_path: Path) -> None:
    report = peers.Report({})
    absent = peers.Contender("absent", "mpi", (str(tmp_path / "absent.whl"),), "k")
    with report.noting(absent, "all"):
        absent.interpreter(tmp_path)
    with report.noting(absent, "reduce"):
        peers.run([sys.executable, "-c", "import sys; sys.exit('no such thing')"], 60)
    with report.noting(absent, "broadcast"):
        peers.run([sys.executable, "-c", "import signal; signal.pause()"], 0.5)
    assert [entry["collective"] for entry in report.missing] == ["all", "reduce", "broadcast"]
    assert report.missing[1]["why"] == "exit 1: no such thing"
    assert report.missing[2]["why"] == "took more than 0.5 s"
    assert report.lacks(absent, "reduce")
    assert not report.lacks(absent, "all_reduce")


@pytest.mark.campaign
@pytest.mark.parametrize("collective", ["broadcast", "reduce_scatter"])
def test_hocket_alone(tmp_path: Path, collective: str) -> None:
    """Two sizes on three ranks, two launches."""
    saved, drawn = tmp_path / "out.json", tmp_path / "out.png"
    words = "--only hocket --ranks 3 --begin 8 --end 4K --factor 512 --launches 2 --seconds 0.001"
    files = ["--json", saved, "--plot", drawn]
    command = [sys.executable, BENCHMARKS / "peers.py", "--collective", collective, *words.split(), *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 missing, 0 wrong" in done.stdout
    assert drawn.stat().st_size > 0
    found = json.loads(saved.read_text())
    assert found["missing"] == []
    least, small, large = (12, 12, 4092) if collective == "reduce_scatter" else (4, 8, 4096)
    assert [(row["regime"], row["bytes"]) for row in found["rows"]] == [
        ("python", least),
        *((regime, size) for size in (small, large) for regime in ("hot", "first", "cold")),
    ]
    for row in found["rows"]:
        cells = row["libraries"]["hocket"]
        assert len(cells) == 2
        assert all(0 < cell["p5"] <= cell["median"] <= cell["p95"] and cell["wrong"] == 0 for cell in cells)
        assert row["fastest_mpi"] is None
        assert row["floor_us"] > 0
    assert all(rate > 0 for launch in found["memory"][collective] for rate in launch.values())


@pytest.mark.campaign
def test_what_two_cores_must_do_is_right(tmp_path: Path) -> None:
    """Short messages beside the arrays, long ones in them, in whole lines or not."""
    saved = tmp_path / "out.json"
    words = "--collective all --only bare --begin 12 --end 160K --factor 22.8 --launches 1 --seconds 0.001"
    command = [sys.executable, BENCHMARKS / "peers.py", *words.split(), "--json", saved]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 missing, 0 wrong" in done.stdout
    found = {
        (row["collective"], row["bytes"]) for row in json.loads(saved.read_text())["rows"] if row["regime"] == "cold"
    }
    assert len(found) == 6 * 4
    assert ("all_reduce", 141904) in found
