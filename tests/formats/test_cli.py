"""hocket export, and check, show and run on files of XML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hocket.algorithms import all_to_next, ring
from hocket.cli import app
from hocket.errors import SumsDiffer
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_xml import read, write
from hocket.verify import kept
from tests.formats.test_operations import exchange
from tests.verify.test_sums import everyone_for_itself

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


def test_a_file_that_deadlocks_in_large_calls_is_exported_for_small_ones(folder: Path) -> None:
    (folder / "a.xml").write_text(exchange(9, "LL", 'minBytes="0"'))
    done = hocket("export", "a.xml")
    assert done.exit_code == 1
    assert "note: in calls of 294930 to 134217720 bytes on msccl" in done.stderr
    done = hocket("export", "a.xml", "--max-bytes", "256K", "-o", "b.xml")
    assert done.exit_code == 0, done.stderr
    assert hocket("check", "b.xml").exit_code == 0
    assert hocket("check", "a.xml").exit_code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "nccl"], "--target must be one of msccl, rccl, not 'nccl'"),
        (["--protocol", "lll"], "--protocol must be one of Simple, LL, LL128, not 'lll'"),
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


def test_many_files_are_exported_to_a_folder(folder: Path) -> None:
    text = write(ring.all_reduce(3).compile(opcodes=True))
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "a.xml").write_text(text)
    (folder / "sub" / "ring.txt").write_text(hocket("show", RING, "ranks=3").stdout)
    (folder / "sub" / "cut.xml").write_text(text[:500])
    done = hocket("export", "sub", "--target", "rccl", "-o", "out/new")
    assert done.exit_code == 2
    assert "--> sub/cut.xml:6:7" in done.stderr
    assert sorted(str(path) for path in Path("out").rglob("*.xml")) == ["out/new/deep/a.xml", "out/new/ring.xml"]
    assert hocket("check", "out", "--target", "rccl").exit_code == 0
    both = ["export", "sub/deep/a.xml", "sub/ring.txt"]
    assert "several files are written to a folder" in hocket(*both).stderr
    assert hocket(*both, "-o", "two").exit_code == 0
    assert sorted(path.name for path in Path("two").iterdir()) == ["a.xml", "ring.xml"]
    (folder / "a.xml").write_text(text)
    assert "would both be written to same/a.xml" in hocket("export", "a.xml", "sub/deep/a.xml", "-o", "same").stderr
    (folder / "two" / "a.xml").unlink()
    assert "wrote two/a.xml" in hocket("export", "sub/deep/a.xml", "-o", "two").stderr  # as with several
    (folder / "file").touch()
    assert "cannot make the folder file" in hocket(*both, "-o", "file").stderr


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
    assert "files have no parameters, such as ranks=2" in hocket("check", "a.xml", "ranks=2").stderr


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
    row = ["good.xml", "allreduce,", "in", "place", "3", "Simple", "3", "1", "15", "14", "msccl", "proven"]
    assert done.stdout.splitlines()[1].split()[: len(row)] == row
    why = "rccl: line 2: it demands the attribute outofplace, line 6: its default build does not do rrs"
    assert why in done.stdout.splitlines()[1]
    done = hocket("check", "good.xml", "bad.xml", "open.xml", "cut.xml")
    assert done.exit_code == 2
    rows = done.stdout.splitlines()[1:5]
    assert [row.split()[0] for row in rows] == ["good.xml", "bad.xml", "open.xml", "cut.xml"]
    for row, verdict in zip(
        rows, ("proven ", "refuted: postcondition", "proven, no-promise", "invalid: parse"), strict=True
    ):
        assert verdict in row
    assert "open.xml: warning[no-promise]: it does not say what outputs must hold" in done.stdout
    assert "error[postcondition]" in done.stdout
    assert "--> cut.xml:6:7" in done.stdout
    assert hocket("check", "good.xml", "bad.xml").exit_code == 1


def test_check_as_json(folder: Path) -> None:
    (folder / "a.xml").write_text(write(ring.all_reduce(3).compile(opcodes=True), protocol="LL"))
    (folder / "b.xml").write_text("<algo/>")
    found = json.loads(hocket("check", "a.xml", "b.xml", "--json").stdout)
    assert found["verdict"] == "invalid"
    one, two = found["results"]
    assert (one["verdict"], one["facts"]["protocol"], one["facts"]["ranks"], one["facts"]["steps"]) == (
        "proven",
        "LL",
        3,
        15,
    )
    assert one["refusals"]["msccl"] == []
    assert one["refusals"]["rccl"]
    assert (two["verdict"], two["error"]["code"]) == ("invalid", "parse")


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


# Ranks that add up in different orders ----------------------------------------------------------------------------

EACH = ("tests.verify.test_sums:everyone_for_itself", "ranks=3")
DIFFERS = (
    "warning[sums-differ]: allreduce is not across-ranks: ranks sum the same chunks in different orders, so their bits "
    "may differ\n"
)


def test_a_program_may_leave_different_bits_only_where_that_is_said() -> None:
    for command in ("check", "run", "export"):
        done = hocket(command, *EACH)
        assert done.exit_code == 1
        assert "help: if that will do, say so" in done.stdout + done.stderr
    done = hocket("check", *EACH, "--allow-differing-sums")
    assert done.exit_code == 0
    assert "; sums: may-differ\n" in done.stdout
    found = json.loads(hocket("check", *EACH, "--allow-differing-sums", "--json").stdout)
    assert (found["verdict"], found["results"][0]["facts"]["sums"]) == ("proven", "may-differ")
    done = hocket("run", *EACH, "--allow-differing-sums", "--size", "4K", "--iters", "1", "--json")
    assert (done.exit_code, json.loads(done.stdout)["wrong"], done.stderr) == (0, 0, "")


def test_a_file_that_leaves_different_bits_is_proven_with_a_warning(folder: Path) -> None:
    assert hocket("export", *EACH, "--allow-differing-sums", "-o", "each.xml").exit_code == 0
    done = hocket("check", "each.xml")
    assert done.exit_code == 0
    assert "  proven, sums-differ  " in done.stdout.splitlines()[1]
    assert DIFFERS in done.stdout
    assert "each.xml:" in done.stdout
    for rank, tree in ((0, "((r0 + r1) + r2)"), (2, "((r2 + r0) + r1)")):
        assert f"note: rank {rank} out[0] is {tree}\n" in done.stdout
    assert "warning" not in hocket("check", "each.xml", "--allow-differing-sums").stdout
    found = json.loads(hocket("check", "each.xml", "--json").stdout)
    (file,) = found["results"]
    assert (found["verdict"], file["verdict"], file["facts"]["sums"]) == ("proven", "proven", "may-differ")
    (warning,) = file["warnings"]
    assert warning["code"] == "sums-differ"
    assert warning["text"].startswith(DIFFERS)


@pytest.mark.parametrize("command", [("run", "--size", "4K", "--iters", "1"), ("export", "--target", "rccl")])
def test_such_a_file_runs_and_is_exported_again(folder: Path, command: tuple[str, ...]) -> None:
    (folder / "each.xml").write_text(
        write(everyone_for_itself(3, "may-differ").compile(opcodes=True), reproducible="may-differ")
    )
    done, quiet = (hocket(command[0], "each.xml", *command[1:], *more) for more in ((), ("--allow-differing-sums",)))
    assert (done.exit_code, quiet.exit_code) == (0, 0)
    assert DIFFERS in done.stderr
    assert "warning" not in quiet.stderr
    assert "\n  0 wrong" in done.stdout or done.stdout == quiet.stdout


def test_in_python_a_file_must_keep_what_a_schedule_must() -> None:
    schedule = everyone_for_itself(3).compile(opcodes=True, reproducible="may-differ")
    with pytest.raises(SumsDiffer):
        write(schedule)
    text = write(schedule, reproducible="may-differ")
    with pytest.raises(SumsDiffer):
        read(text)
    assert kept(read(text, reproducible="may-differ")) == "may-differ"
