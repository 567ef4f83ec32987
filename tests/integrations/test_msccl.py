"""Programs written for msccl-tools run unchanged and come out right; wrong ones are refused, with the line."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hocket import prove
from hocket.cli import app
from hocket.collectives import Custom
from hocket.errors import HocketError
from hocket.formats import msccl_xml
from hocket.formats.msccl_xml import read
from hocket.integrations.msccl.program import MSCCLProgram
from hocket.integrations.msccl.script import run_script
from hocket.ir.schedule import Schedule
from hocket.semantics import reference
from hocket.verify import kept
from tests.reference import check, inputs

HERE = Path(__file__).parent / "msccl"
RIGHT = [
    ("all_pairs_allreduce", "3 1 interleaved"),
    ("all_pairs_allreduce", "4 2 interleaved"),
    ("all_pairs_allreduce", "4 3 blocked"),
    ("allgather_all_pairs", "2 1 1"),
    ("allgather_all_pairs", "4 2 3"),
    ("allgather_inplace", "2 1 1"),
    ("allgather_inplace", "5 3 2"),
    ("alltoall_inplace", "4 1"),
    ("alltoall_inplace", "3 4"),
    ("bounce", "2000 1100"),
    ("custom_reduce", ""),
    ("custom_send", ""),
    ("dgx1_tree", ""),
    ("few_slots", "8 Simple"),
    ("few_slots", "36 LL"),
    ("figure3", "2 3 1"),
    ("figure3", "2 3 2"),
    ("figure3", "2 3 2 --blocked"),
    ("figure3", "3 2 4"),
    ("four_operations", ""),
    ("halving_doubling", "4 1"),
    ("halving_doubling", "8 2"),
    ("lowered", ""),
    ("many_flows", ""),
    ("names", ""),
    ("other_places", ""),
    ("partial_reduce", "4 --skip 1"),
    ("partial_reduce", "5 --skip 2"),
    ("partly", ""),
    ("pipeline", "3 3 2"),
    ("reduce_scatter_inplace", "2 1 1"),
    ("reduce_scatter_inplace", "4 3 2"),
    ("ring_allreduce", "4 1 1"),
    ("ring_allreduce", "4 4 2 --protocol Simple"),
    ("ring_allreduce", "4 1 2 --plain"),
    ("ring_allreduce", "5 2 3 --protocol LL"),
    ("rings_of_nodes", ""),
    ("star", ""),
    ("three_step_alltoall", "3 2"),
    ("three_step_alltoall", "3 4 --links 2"),
    ("twice", ""),
    ("two_step_alltoall", "2 3 1"),
    ("two_step_alltoall", "3 2 2"),
]
WRONG = sorted((HERE / "wrong").glob("*.py"))


def write(schedule: Schedule, protocol: str) -> str:
    return msccl_xml.write(schedule, protocol=protocol)


def run(name: str, words: str = "") -> list[MSCCLProgram]:
    return run_script(HERE / "right" / f"{name}.py", words.split(), write)


def execute(schedule: Schedule) -> None:
    """Run a schedule on arrays, in several orders and with the least slots; its collective says what must come out."""
    collective = schedule.collective
    if not isinstance(collective, Custom):
        check(schedule, 24)
        return
    n = 24
    arrays = inputs(schedule, n)
    units = [array.reshape(-1, n) for array in arrays]
    for seed in (None, 0, 1):
        outputs = reference(schedule, [array.copy() for array in arrays], seed=seed)
        for rank, row in enumerate(collective.table):
            for index, terms in enumerate(row):
                if terms is not None:
                    wanted = sum(units[r][i] for r, i in terms)
                    np.testing.assert_array_equal(outputs[rank][index * n : index * n + n], wanted)


@pytest.mark.parametrize(("name", "words"), RIGHT)
def test_right_program(name: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own assertions hold, each schedule computes what it shall, and what XML() prints is a schedule as right."""
    programs = run(name, words)
    assert programs
    assert not any(program.refused for program in programs)
    for program in programs:
        prove(program.schedule())
        if program.num_ranks < 100:
            execute(program.schedule())
    printed, said = capfd.readouterr()
    assert said == ""
    files = [text + "</algo>" for text in printed.split("</algo>")[:-1]]
    assert ("XML()" in (HERE / "right" / f"{name}.py").read_text()) == bool(files)
    for text in files:
        execute(read(text))


def test_every_right_program_is_run() -> None:
    assert {path.stem for path in (HERE / "right").glob("*.py")} == {name for name, _ in RIGHT} | {"beside"}


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_program(
    path: Path,
    golden: Callable[[Path, str], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the original takes without a word, or with one that does not help, is refused with the lines that matter."""
    monkeypatch.chdir(path.parent)
    try:
        programs = run_script(path, [], write)
    except HocketError as error:
        text = str(error)
    else:
        assert any(program.refused for program in programs), f"{path.name} was accepted"
        text = capfd.readouterr().err
    assert str(HERE) not in text
    assert f"--> {path.name}:" in text
    golden(path.with_suffix(".err"), text)


# What is kept -----------------------------------------------------------------------------------------------


def blocks(xml: str, rank: int) -> list[tuple[str, str, list[str]]]:
    """Send peer, receive peer and types of steps of each thread block."""
    gpu = ET.fromstring(xml).findall("gpu")[rank]
    return [(tb.attrib["send"], tb.attrib["recv"], [step.attrib["type"] for step in tb]) for tb in gpu]


def test_thread_blocks_are_those_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = run("all_pairs_allreduce", "4 1 interleaved")
    for rank, gpu in enumerate(program.schedule().ranks):
        found = [
            ({end.peer for end in block.sends}, {end.peer for end in block.receives}) for block in gpu.thread_blocks
        ]
        # One for each peer, both ways; where the peer would be the rank itself, one for local reductions alone.
        assert found == [(set(), set()) if peer == rank else ({peer}, {peer}) for peer in range(4)]
        local = [sum(step.opcode == "reduce" for step in block.steps) for block in gpu.thread_blocks]
        assert local == [3, 3, 3, 3]


def test_instances_have_thread_blocks_and_channels_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = run("ring_allreduce", "4 2 3")
    for gpu in program.schedule().ranks:
        channels = [{end.channel for end in (*block.sends, *block.receives)} for block in gpu.thread_blocks]
        assert sorted(next(iter(those)) for those in channels) == list(range(6))
        assert all(len(those) == 1 for those in channels)


def test_without_instr_fusion_nothing_is_fused(capsys: pytest.CaptureFixture[str]) -> None:
    (fused,) = run("ring_allreduce", "4 1 1")
    (plain,) = run("ring_allreduce", "4 1 1 --plain")
    assert {step.opcode for _, _, _, step in fused.schedule().steps()} == {"send", "recv", "rcs", "rrs", "rrcs"}
    assert {step.opcode for _, _, _, step in plain.schedule().steps()} == {"send", "recv", "rrc"}


def test_replication_that_is_not_interleaved_keeps_spans_whole(capsys: pytest.CaptureFixture[str]) -> None:
    counts = [
        {step.count for program in run("figure3", words) for _, _, _, step in program.schedule().steps()}
        for words in ("3 2 2", "3 2 2 --blocked")
    ]
    assert counts == [{1}, {1, 3}]


def test_a_check_of_ones_own_may_accept_more_than_the_collective(capsys: pytest.CaptureFixture[str]) -> None:
    names = [run("partial_reduce", f"4 --skip {n}")[0].schedule().collective.name for n in (0, 1)]
    assert names == ["allreduce", "custom"]


def test_xml_does_not_depend_on_the_hash_seed() -> None:
    script = str(HERE / "right" / "all_pairs_allreduce.py")
    command = [sys.executable, "-c", "from hocket.cli import main; main()", "msccl", script, "4", "2", "interleaved"]
    files = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert files[0] == files[1] != b""


# Running -----------------------------------------------------------------------------------------------------


def test_modules_and_arguments_are_as_before(tmp_path: Path) -> None:
    installed = tmp_path / "msccl"
    (installed / "language").mkdir(parents=True)
    (installed / "__init__.py").write_text("raise AssertionError('the installed one')")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, msccl.language as ml\n"
        "assert sys.argv[1:] == ['a', '-b']\n"
        "assert sys.path[0] == sys.argv[0].rpartition('/')[0]\n"
        "assert ml.XML and __name__ == '__main__'\n"
        "sys.argv.append('more')\n"
    )
    argv, path, marker = list(sys.argv), list(sys.path), object()
    sys.modules["msccl.fake"] = marker  # type: ignore[assignment]
    try:
        assert run_script(script, ["a", "-b"], write) == []
        assert sys.modules.pop("msccl.fake") is marker
    finally:
        sys.modules.pop("msccl.fake", None)
    assert sys.argv == argv
    assert sys.path == path
    assert not [name for name in sys.modules if name.partition(".")[0] == "msccl"]


def hocket(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["msccl", *words])
    return result.exit_code, result.stdout, result.stderr


def test_command_prints_xml_and_what_was_proven() -> None:
    code, out, err = hocket(str(HERE / "right" / "twice.py"))
    assert code == 0
    assert ET.fromstring(out).attrib["coll"] == "alltoall"
    assert err == "twice: proven for 3 ranks, any number of slots: alltoall\n"


def test_command_writes_for_a_target_and_for_sizes() -> None:
    script = str(HERE / "right" / "ring_allreduce.py")
    code, out, err = hocket("--target", "rccl", "--min-bytes", "64K", "--max-bytes", "1MB", script, "4", "2", "1")
    assert code == 0
    attributes = ET.fromstring(out).attrib
    assert (attributes["minBytes"], attributes["maxBytes"]) == ("65536", "1048576")
    assert {step for _, _, steps in blocks(out, 0) for step in steps} <= {"s", "r", "cpy", "re", "nop"}
    assert err.startswith("note: RCCL")


def test_command_accepts_different_orders_of_sums_where_that_is_said() -> None:
    script = str(HERE / "wrong" / "sums_in_different_orders.py")
    assert hocket(script)[0] == 1
    code, out, err = hocket("--allow-differing-sums", script)
    assert (code, err) == (0, "one_shot: proven for 3 ranks, any number of slots: allreduce\n")
    assert kept(read(out, reproducible="may-differ")) == "may-differ"


def test_command_fails_as_the_script_does(tmp_path: Path) -> None:
    code, _, err = hocket(str(HERE / "right" / "ring_allreduce.py"), "4")
    assert code == 2
    assert "the following arguments are required" in err
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(7)")
    assert hocket(str(script))[0] == 7
    script.write_text("print('before')\nnames = []\nnames[3]")
    code, out, err = hocket(str(script))
    assert (code, out) == (1, "before\n")
    assert "IndexError" in err
    assert "names[3]" in err
    assert hocket(str(tmp_path / "none.py"))[0] == 2


def test_command_proves_what_the_script_did_not_ask_about(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    head = (
        "from msccl.language import *\nfrom msccl.topologies import *\nfrom msccl.language.collectives import *\n"
        "with MSCCLProgram('p', fully_connected(2), AllGather(2, 1, True), 1):\n"
        "    chunk(0, Buffer.output, 0).copy(1)\n"
    )
    script.write_text(head)
    code, _, err = hocket(str(script))
    assert code == 1
    assert "error[postcondition]: rank 0 out[1]" in err
    script.write_text(head + "    print(Check())\n")
    code, out, err = hocket(str(script))
    assert (code, out) == (1, "False\n")
    assert err.count("error[postcondition]") == 1
    script.write_text(head + "    chunk(1, Buffer.output, 1).copy(0)\n")
    assert hocket(str(script))[0] == 0
