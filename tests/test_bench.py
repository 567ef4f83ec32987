"""``hocket bench``: sizes, what it finds at each, the table, JSON, a plot, and command lines that mean nothing."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import hocket
from hocket.algorithms import ring
from hocket.cli import app
from hocket.cli.bench import Sweep, sizes
from hocket.cli.measure import Job, Speed, buffers, count_wrong
from hocket.errors import UsageError
from hocket.semantics import reference
from hocket.tuning import NAMED

QUICK = ("--iters", "2", "--warmup", "0")

WRONG = """
from hocket import AllReduce, Program, chunk

def ring(ranks: int):
    with Program(AllReduce(ranks, inplace=True)) as p:
        c = chunk(0, "in", 0)
        for r in range(1, ranks):
            c = chunk(r, "in", 0).reduce(c)
    return p
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(*words: str) -> Result:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def as_json(*words: str) -> Any:
    result = bench(*words, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_sizes() -> None:
    assert sizes("8", "64", 2) == [8, 16, 32, 64]
    assert sizes("1K", "1M", 32) == [1024, 32768, 1 << 20]
    assert sizes("100", "300", 2) == [100, 200]
    assert sizes("7", "7", 2) == [7]
    assert sizes("1", "4", 1.01) == [1, 2, 3, 4]  # never the same size twice


def test_json() -> None:
    found = as_json("all_reduce", "-n", "2", "-b", "8", "-e", "64", "-f", "2", "--dtype", "int32", "--op", "max")
    assert {key: found[key] for key in ("program", "ranks", "dtype", "op", "iterations", "warmup", "wrong")} == {
        "program": "one_shot_all_reduce",
        "ranks": 2,
        "dtype": "int32",
        "op": "max",
        "iterations": 2,
        "warmup": 0,
        "wrong": 0,
    }
    assert [(row["bytes"], row["count"]) for row in found["sizes"]] == [(8, 2), (16, 4), (32, 8), (64, 16)]
    busbws = []
    for row in found["sizes"]:
        for place in (row["out_of_place"], row["in_place"]):
            assert list(place) == ["median", "p95", "algbw", "busbw", "wrong"]
            assert 0 < place["median"] <= place["p95"]
            assert place["algbw"] == pytest.approx(row["bytes"] / place["median"] / 1e9)
            assert place["busbw"] == pytest.approx(place["algbw"])  # 2 (p - 1) / p
            assert place["wrong"] == 0
            busbws.append(place["busbw"])
    assert found["average_busbw"] == pytest.approx(sum(busbws) / len(busbws))


@pytest.mark.parametrize("name", NAMED)
def test_every_collective_is_right_at_every_size(name: str) -> None:
    found = as_json(name, "-n", "3", "-b", "1", "-e", "100K", "-f", "50")
    assert found["wrong"] == 0
    assert found["op"] == ("sum" if "reduce" in name or "scan" in name else "none")
    counts = [row["count"] for row in found["sizes"]]
    assert len(counts) == len(set(counts)) >= 3
    assert counts[0] == 1
    assert max(row["bytes"] for row in found["sizes"]) <= 100 << 10


@pytest.mark.campaign
@pytest.mark.parametrize(
    "words",
    [
        ("all_reduce", "hocket.algorithms.all_pairs:all_reduce", "ranks=3", "-n", "3", "--dtype", "float16"),
        ("all_to_all", "hocket.algorithms.two_step:all_to_all", "nodes=2", "gpus=2"),
        ("all_gather", "hocket.algorithms.sccl:all_gather"),
        ("broadcast", "hocket.algorithms.chain:broadcast", "ranks=3", "root=1"),
        ("reduce", "hocket.algorithms.chain:reduce", "ranks=3", "root=2", "--op", "avg"),
        ("gather", "hocket.algorithms.tree:gather", "ranks=3", "root=1"),
        ("scatter", "hocket.algorithms.tree:scatter", "ranks=3", "root=1", "--dtype", "bool"),
    ],
    ids=lambda words: words[0],
)
def test_a_given_program(words: tuple[str, ...]) -> None:
    found = as_json(*words, "-b", "4K", "-e", "8K")
    assert found["wrong"] == 0
    assert len(found["sizes"]) == 2
    assert found["program"] != as_json(words[0], "-n", "2", "-b", "8", "-e", "8")["program"]


def test_one_rank() -> None:
    assert as_json("all_reduce", "-n", "1", "-b", "64", "-e", "64")["average_busbw"] == 0


def test_the_table_has_a_line_for_each_size() -> None:
    result = bench("reduce_scatter", "-n", "2", "-b", "64", "-e", "256", *QUICK)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "direct_reduce_scatter on 2 processes, 2 calls each"
    speed = "time p95 algbw busbw #wrong"
    assert " ".join(lines[2].split()) == f"size count type redop out of place: {speed} in place: {speed}"
    rows = [line.split() for line in lines[4:7]]
    assert [row[:4] for row in rows] == [[str(n), str(n // 8), "float32", "sum"] for n in (64, 128, 256)]
    assert all(len(row) == 14 and row[8] == row[13] == "0" for row in rows)
    assert lines[-1].endswith("; 0 wrong")


@pytest.mark.parametrize("name", ["bench.svg", "bench.png"])
def test_plot(workplace: Path, name: str) -> None:
    assert bench("broadcast", "-n", "2", "-b", "8", "-e", "16", "--plot", name, *QUICK).exit_code == 0
    if name.endswith("svg"):
        assert ElementTree.parse(workplace / name).getroot().tag.endswith("svg")
    else:
        data = (workplace / name).read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert struct.unpack(">II", data[16:24]) == (1500, 600)


def test_what_is_wrong_is_counted_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Sweep.measure

    def spoilt(sweep: Sweep) -> list[Any]:
        rows = measure(sweep)
        object.__setattr__(rows[0], "wrongs", (3, 1))
        return rows

    monkeypatch.setattr(Sweep, "measure", spoilt)
    result = bench("all_reduce", "-n", "2", "-b", "8", "-e", "16", *QUICK)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].endswith("; 4 wrong")


def test_moved_elements_must_be_exact() -> None:
    """What is only moved may not even differ by rounding."""
    schedule = ring.all_gather(2).compile()
    job = Job(schedule, 10, "float32", "sum", 1, 0)
    out = reference(schedule, [job.input(rank) for rank in range(2)])[0]
    assert count_wrong(job, 0, out) == 0
    out[3] *= 1 + 2.0**-23
    assert count_wrong(job, 0, out) == 1


def test_in_place_is_that_of_nccl() -> None:
    job = Job(ring.all_gather(2).compile(), 10, "float32", "sum", 1, 0)
    x, out = buffers(hocket.AllGather(2, inplace=True), job, 1)
    assert x.ctypes.data == out[10:].ctypes.data
    x, out = buffers(hocket.ReduceScatter(2, inplace=True), job, 1)
    assert out.ctypes.data == x[10:].ctypes.data
    x, out = buffers(hocket.AllGather(2), job, 1)
    assert x.ctypes.data not in (out.ctypes.data, out[10:].ctypes.data)


def test_the_slowest_rank_counts() -> None:
    speed = Speed.of(hocket.AllReduce(2), 1000, [[1e-6, 5e-6, 1e-6], [2e-6, 1e-6, 3e-6]])
    assert speed.median == 3e-6
    assert speed.algbw == speed.busbw == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["all_redcue"], "there is no collective 'all_redcue'", "did you mean all_reduce?"),
        (["x"], "there is no collective 'x'", "it is one of all_reduce, "),
        (["all_reduce", "-b", "0"], "-b must be at least one byte", ""),
        (["all_reduce", "-b", "1M", "-e", "1K"], "there is no size from -b 1M to -e 1K", "largest"),
        (["all_reduce", "-b", "big"], "'big' is no size", "25MB"),
        (["all_reduce", "-f", "1"], "-f must be more than 1, not 1", ""),
        (["all_reduce", "-f", "nan"], "-f must be more than 1", ""),
        (["all_reduce", "-n", "0"], "-n", ""),
        (["all_reduce", "--iters", "0"], "--iters", ""),
        (["all_reduce", "--dtype", "float8"], "--dtype must be one of bool", ""),
        (["all_reduce", "--op", "mean"], "--op must be one of sum", ""),
        (["all_reduce", "--op", "avg", "--dtype", "int32"], "avg is not for int32", "sum, prod, min, max, band"),
        (["all_gather", "--op", "sum"], "all_gather only moves data: it takes no --op", ""),
        (["all_reduce", "--plot", "a.gif"], "ends in .svg, .png, .pdf", ""),
        (["all_reduce", "--plot", "no/a.svg"], "there is no directory no", ""),
        (["all_reduce", "-n", "2", "-e", "8", "--plot", "a" * 300 + ".svg"], "File name too long", ""),
        (["all_gather", "hocket.algorithms.ring:all_reduce", "ranks=2"], "implements allreduce, not all_gather", ""),
        (["all_reduce", "hocket.algorithms.ring:all_reduce", "ranks=2", "-n", "3"], "-n asks for 3", "same number"),
        (["all_reduce", "hocket.algorithms.ring:all_reduce", "ranks=2..3"], "one value for each parameter", ""),
        (["all_reduce", "ranks=2"], "there is no file or module 'ranks=2'", "FILE.py:FUNC"),
    ],
)
def test_mistakes(words: list[str], message: str, hint: str) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert hint in result.stderr


def test_a_program_that_is_wrong_is_refuted_and_not_run(workplace: Path) -> None:
    (workplace / "wrong.py").write_text(WRONG)
    result = bench("all_reduce", "wrong.py:ring", "ranks=2")
    assert result.exit_code == 1
    assert "error" in result.stderr


def test_sweep_refuses_before_it_starts_anything() -> None:
    with pytest.raises(UsageError):
        Sweep.of("all_reduce", ring.all_reduce(2).compile(), 4, [8], "float32", None, 1, 0)
