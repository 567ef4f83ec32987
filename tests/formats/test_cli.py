"""hocket export, and check, show and run on files of XML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hocket.algorithms import all_to_next, ring
from hocket.cli import app
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_xml import read, write

RING = "hocket.algorithms.ring:all_reduce"


def hocket(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_export_writes_what_write_writes(folder: Path) -> None:
    done = hocket("export", RING, "ranks=4", "channels=2", "--target", "msccl")
    assert done.exit_code == 0
    assert done.stdout == write(ring.all_reduce(4, 2).compile(opcodes=True))
    done = hocket("export", RING, "ranks=4", "channels=2", "-o", "ring.xml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "wrote ring.xml\n")
    assert (folder / "ring.xml").read_text() == write(ring.all_reduce(4, 2).compile(opcodes=True))


def test_export_says_what_became_of_rccl() -> None:
    done = hocket("export", RING, "ranks=2", "--target", "rccl")
    assert done.exit_code == 0
    assert "RCCL dropped MSCCL after ROCm 7.12" in done.stderr
    assert "note" not in hocket("export", RING, "ranks=2").stderr


def test_export_with_all_wishes() -> None:
    done = hocket(
        *("export", RING, "ranks=3", "--target", "rccl", "--protocol", "LL", "--instances", "2", "--out-of-place"),
        *("--min-bytes", "1K", "--max-bytes", "1MB"),
    )
    document = parse_document(done.stdout)
    assert (document.proto, document.inplace, document.outofplace) == ("LL", False, True)
    assert (document.min_bytes, document.max_bytes, document.channels) == (1024, 1 << 20, 2)


def test_a_file_is_exported_again_for_the_other_runtime(folder: Path) -> None:
    hocket("export", RING, "ranks=3", "--protocol", "LL", "--max-bytes", "64K", "-o", "a.xml")
    done = hocket("export", "a.xml", "--target", "rccl", "--min-bytes", "8")
    document = parse_document(done.stdout)
    assert (document.proto, document.min_bytes, document.max_bytes) == ("LL", 8, 65536)
    (folder / "b.xml").write_text(done.stdout)
    again = hocket("export", "b.xml", "--target", "rccl")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "nccl"], "--target must be one of msccl, rccl, not 'nccl'"),
        (["--protocol", "ll"], "--protocol must be one of Simple, LL, LL128, not 'll'"),
        (["--min-bytes", "2K", "--max-bytes", "1K"], "there is no size between 2048 and 1024 bytes"),
        (["--max-bytes", "0"], "there is no size between 0 and 0 bytes"),
        (["--max-bytes", "many"], "'many' is no size"),
        (["-o", "no/such/folder.xml"], "cannot write"),
    ],
)
def test_export_with_what_means_nothing(words: list[str], message: str) -> None:
    done = hocket("export", RING, "ranks=2", *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_limit_is_the_programs_fault_and_names_its_lines() -> None:
    done = hocket("export", RING, "ranks=16", "--target", "rccl")
    assert done.exit_code == 1
    assert "rccl: at most 64 steps in a thread block" in done.stderr
    assert "ring.py" in done.stderr


def test_a_file_is_compiled_already(folder: Path) -> None:
    (folder / "a.xml").write_text(write(ring.all_reduce(2).compile(opcodes=True)))
    for command, words in (
        ("export", ["--instances", "2"]),
        ("export", ["--inplace"]),
        ("check", ["--slots", "3"]),
        ("show", ["--stage", "instr"]),
    ):
        done = hocket(command, "a.xml", *words)
        assert done.exit_code == 2, command
        assert "already" in done.stderr
    assert hocket("show", "a.xml", "ranks=2").exit_code == 2
    assert "is no file of XML" in hocket("check", "a.xml", "b.xml").stderr


def test_check_prints_a_table_and_a_counterexample(folder: Path) -> None:
    good, custom = (write(p.compile(opcodes=True)) for p in (ring.all_reduce(3), all_to_next.all_to_next(2, 2)))
    (folder / "good.xml").write_text(good)
    (folder / "bad.xml").write_text(
        good.replace('type="rrcs" srcbuf="i" srcoff="0"', 'type="rrcs" srcbuf="i" srcoff="1"')
    )
    (folder / "open.xml").write_text(custom.partition("\n")[2])
    (folder / "cut.xml").write_text(good[:500])
    done = hocket("check", "good.xml")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].split() == [
        "good.xml",
        "allreduce,",
        "in",
        "place",
        "3",
        "Simple",
        "3",
        "1",
        "15",
        "14",
        "msccl",
        "proven",
    ]
    done = hocket("check", "good.xml", "bad.xml", "open.xml", "cut.xml")
    assert done.exit_code == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows[1:5]] == ["good.xml", "bad.xml", "open.xml", "cut.xml"]
    assert [row[-1] for row in rows[1:5]] == ["proven", "postcondition", "deadlock", "parse"]
    assert "open.xml: it does not say what outputs must hold" in done.stdout
    assert "error[postcondition]" in done.stderr + done.stdout
    assert "cut.xml, line 6: " in done.stderr + done.stdout


def test_check_as_json(folder: Path) -> None:
    (folder / "a.xml").write_text(write(ring.all_reduce(3).compile(opcodes=True), protocol="LL"))
    (folder / "b.xml").write_text("<algo/>")
    found = json.loads(hocket("check", "a.xml", "b.xml", "--json").stdout)
    assert not found["proven"]
    one, two = found["files"]
    assert (one["verdict"], one["protocol"], one["ranks"], one["steps"]) == ("proven", "LL", 3, 15)
    assert one["refused"].keys() == {"rccl"}
    assert (two["verdict"], two["error"]["code"]) == ("parse", "parse")


def test_show_prints_what_a_file_means_right_or_wrong(folder: Path) -> None:
    text = write(ring.all_reduce(3).compile(opcodes=True))
    wrong = text.replace('type="rrcs" srcbuf="i" srcoff="0"', 'type="rrcs" srcbuf="i" srcoff="1"')
    for content in (text, wrong):
        (folder / "a.xml").write_text(content)
        done = hocket("show", "a.xml", "--rank", "0")
        assert done.exit_code == 0
        assert "block 0 <2.0 >1.0\n    0: send in[2] -> >1.0  # a.xml:5:7\n" in done.stdout
    assert hocket("check", "a.xml").exit_code == 1


def test_run_executes_a_file_on_processes(folder: Path) -> None:
    (folder / "a.xml").write_text(write(ring.all_reduce(3).compile(opcodes=True), "rccl"))
    done = hocket("run", "a.xml", "-n", "3", "--size", "4K", "--iters", "2", "--warmup", "0", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["wrong"], found["bitwise"], found["ranks"]) == (0, True, 3)
    assert hocket("run", "a.xml", "-n", "4").exit_code == 2


def test_a_schedule_as_text_is_exported_too(folder: Path) -> None:
    (folder / "ring.txt").write_text(hocket("show", RING, "ranks=3").stdout)
    assert read(hocket("export", "ring.txt").stdout) == read(write(ring.all_reduce(3).compile(opcodes=True)))
