"""The command line: exit codes, what is printed, JSON, pictures, and a newcomer's first mistakes."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import hocket
from hocket.algorithms import all_pairs, hierarchical, ring
from hocket.algorithms.catalogue import CATALOGUE
from hocket.cli import app
from hocket.cli.compiled import Facts
from hocket.cli.measure import Job, count_wrong, show_seconds, show_size
from hocket.cli.target import one_case, parse_size, show_value
from hocket.cli.writing import check_writable
from hocket.collectives import bus_factor
from hocket.compiler.pipeline import PASSES
from hocket.errors import InvalidArgument, OutOfRange, UsageError, WrongType
from hocket.formats.picture import draw, svg
from hocket.ir.text import parse_instr_dag, parse_schedule, print_stage
from hocket.semantics import reference
from hocket.tuning import NAMED

RING = "hocket.algorithms.ring:all_reduce"

PROGRAMS = """
from __future__ import annotations
import functools, os
from hocket import AllReduce, Broadcast, Program, chunk

def ring(ranks: int, channels: int = 1) -> Program:
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="ring") as p:
        for i in range(ranks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c, ch=i % channels)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i, ch=i % channels)
    return p

def short(ranks: int, missing: int = 1):
    with Program(AllReduce(ranks, chunks=ranks, inplace=True)) as p:
        for i in range(ranks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks - (missing if ranks > 3 else 0)):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i)
    return p

def stale():
    with Program(AllReduce(2)) as p:
        a = chunk(0, "in", 0)
        chunk(1, "in", 0).copy(0, "in", 0)
        a.copy(1, "out", 0)
    return p

def shaped(shape: tuple[int, ...], root: int | None = None, scale: float = 1.0, name: str = "x", flip: bool = False):
    with Program(Broadcast(shape, root=root or 0), name=f"{shape} {root} {scale} {name} {flip}") as p:
        for r in range(p.collective.size):
            chunk(root or 0, "in", 0).copy(r, "out", 0)
    return p

def forgetful(ranks: int):
    with Program(AllReduce(ranks)):
        pass

def divides(ranks: int):
    return ranks // 0

class Rings:
    def __call__(self, ranks: int):
        return ring(6 // ranks)

three, rings, halves = functools.partial(ring, 3), Rings(), functools.partial(divides, 2)

def typed(ranks: os.no_such_type, channels=1):
    return ring(ranks, channels)

with Program(Broadcast(2), name="ready") as ready:
    chunk(0, "in", 0).copy(0, "out", 0)
    chunk(0, "in", 0).copy(1, "out", 0)
"""

DEADLOCK = """schedule "both_receive_first"
collective broadcast(ranks=2, chunks=1, root=0)
protocol auto
slots 1
rank 0 scratch 1
  block 0 <1.0 >1.0
    0: recv <1.0 -> sc[0]
    1: send in[0] -> >1.0
rank 1 scratch 1
  block 0 <0.0 >0.0
    0: recv <0.0 -> out[0]
    1: send out[0] -> >0.0
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with a file of programs, good and bad."""
    (tmp_path / "programs.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "programs", raising=False)
    return tmp_path


def run(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def good(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*words: str, exit_code: int = 0) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


# ---------------------------------------------------------------------------------------------------------------
# check


def test_check_says_what_is_proven_and_its_bounds() -> None:
    said = good("check", "programs.py:ring", "ranks=4")
    assert said.startswith("proven for 4 ranks, 2 or more slots: allreduce(ranks=4, chunks=4, inplace)\n")
    assert "4 thread blocks, 1 channel, 28 steps" in said
    assert "\n6 rounds; volume 1.5 and reductions 0.75 buffers on the busiest rank\n" in said


def test_check_of_a_wrong_program_prints_the_counterexample() -> None:
    result = run("check", "programs.py:short", "ranks=4")
    assert result.exit_code == 1
    assert "refuted for ranks=4" in result.stdout
    assert "error[postcondition]" in result.stdout
    assert "Traceback" not in result.output


def test_check_of_a_mistake_shows_the_users_lines() -> None:
    result = run("check", "programs.py:stale")
    assert result.exit_code == 2
    assert "error[stale-chunk]" in result.stdout
    assert "a.copy(1, " in result.stdout


def test_check_of_a_range_prints_a_table() -> None:
    lines = good("check", RING, "ranks=2..7", "channels=1..2").splitlines()
    assert lines[0].split()[:3] == ["ranks", "channels", "collective"]
    assert [line.split()[:2] for line in lines[1:13]] == [[str(r), str(c)] for r in range(2, 8) for c in (1, 2)]
    assert all("proven" in line for line in lines[1:13])
    assert "12 of 12 proven" in lines[-1]
    at = lines[0].index("rounds")
    assert [line[at : at + 6].strip() for line in lines[1:13]] == [str(2 * (r - 1)) for r in range(2, 8) for _ in "cc"]


def test_check_of_a_range_with_a_wrong_case() -> None:
    result = run("check", "programs.py:short", "ranks=2..5")
    assert result.exit_code == 1
    assert "2 of 4 proven" in result.stdout
    assert "refuted for ranks=4" in result.stdout


def test_check_json() -> None:
    found = as_json("check", RING, "ranks=2..3")
    assert (found["version"], found["verdict"], found["error"]) == (1, "proven", None)
    result = found["results"][1]
    assert result.pop("seconds") > 0
    assert result == {
        "target": RING,
        "file": None,
        "parameters": {"ranks": 3},
        "verdict": "proven",
        "facts": {
            "collective": "allreduce(ranks=3, chunks=3, inplace)",
            "ranks": 3,
            "protocol": "auto",
            "thread_blocks": 3,
            "channels": 1,
            "steps": 15,
            "slots": 2,
            "rounds": 4,
            "volume": pytest.approx(4 / 3),
            "reductions": pytest.approx(2 / 3),
            "unit": "buffer",
            "traffic": 14.0,
            "sums": "across-ranks",
        },
        "refusals": None,
        "remarks": {},
        "warnings": [],
        "error": None,
    }
    wrong = as_json("check", "programs.py:short", "ranks=4", exit_code=1)
    assert wrong["verdict"] == wrong["results"][0]["verdict"] == "refuted"
    assert wrong["results"][0]["error"]["code"] == "postcondition"


def test_check_takes_the_text_of_a_schedule(workplace: Path) -> None:
    schedule = ring.all_reduce(3).compile()
    (workplace / "ring.txt").write_text(print_stage(schedule))
    assert good("check", "ring.txt").startswith("proven for 3 ranks, 2 or more slots")
    assert parse_schedule(good("show", "ring.txt")) == schedule
    (workplace / "stuck.txt").write_text(DEADLOCK)
    result = run("check", "stuck.txt")
    assert result.exit_code == 1
    assert "error[deadlock]" in result.stdout


def test_check_takes_options_of_the_compiler() -> None:
    one = as_json("check", RING, "ranks=4", "--slots", "1")["results"][0]["facts"]
    assert one["slots"] == 1
    two = as_json("check", RING, "ranks=4", "--instances", "2", "--protocol", "simple")["results"][0]["facts"]
    assert two["collective"] == "allreduce(ranks=4, chunks=8, inplace)"
    assert two["protocol"] == "simple"
    pairs = "hocket.algorithms.all_pairs:all_reduce"
    slots, peer = (
        as_json("check", pairs, "ranks=4", "--storage", name)["results"][0]["facts"] for name in ("fifo", "peer")
    )
    assert (slots["traffic"], peer["traffic"]) == (18, 8)
    assert (
        "edge 0: 1 -> 0 x1  channel 0  at 1.in[0]"
        in run("show", pairs, "ranks=2", "--storage", "peer", "--diff", "peer").stdout
    )


@pytest.mark.parametrize("ranks", range(2, 9))
def test_traffic_is_that_of_the_literature(ranks: int) -> None:
    """A ring ReduceScatter moves (3p - 1) s bytes, YHCCL's optimum."""
    assert Facts.of(ring.reduce_scatter(ranks).compile()).traffic == pytest.approx(3 * ranks - 1)


def test_values_follow_annotations() -> None:
    def name(*words: str) -> str:
        return str(as_json("show", "programs.py:shaped", *words)["name"])

    assert name("shape=2,3") == "(2, 3) None 1.0 x False"
    assert name("shape=2,2", "root=3", "scale=2", "name=7", "flip=yes") == "(2, 2) 3 2.0 7 True"
    assert name("shape=4,", "root=none") == "(4,) None 1.0 x False"


def test_a_program_in_a_variable_needs_no_function() -> None:
    assert "proven for 2 ranks" in good("check", "programs.py:ready")


def test_any_callable_will_do_and_any_annotation() -> None:
    assert "proven for 3 ranks" in good("check", "programs.py:three")
    assert "proven for 3 ranks" in good("check", "programs.py:rings", "ranks=2")
    assert "proven for 3 ranks" in good("check", "programs.py:typed", "ranks=3", "channels=1")


# ---------------------------------------------------------------------------------------------------------------
# show


def test_show_prints_each_stage() -> None:
    program = ring.all_reduce(3)
    assert parse_schedule(good("show", RING, "ranks=3")) == program.compile()
    assert good("show", RING, "ranks=3", "--stage", "chunk") == print_stage(program.chunk_dag)
    blocks = parse_instr_dag(good("show", RING, "ranks=3", "--stage", "instr"))
    assert len(blocks.blocks) == len(blocks.instrs) > 0


def test_a_wrong_program_can_still_be_seen() -> None:
    assert "reduce" in good("show", "programs.py:short", "ranks=4", "--stage", "chunk")
    assert run("show", "programs.py:short", "ranks=4").exit_code == 1


def test_show_of_one_rank() -> None:
    said = good("show", RING, "ranks=3", "--rank", "1")
    assert "rank 1 scratch 0" in said
    assert "rank 0 scratch" not in said


def test_dump_ir_after_any_pass() -> None:
    for known in PASSES:
        said = good("show", RING, "ranks=3", "--dump-ir", f"after={known.name}")
        assert said.startswith(f"# after {known.name}\n")
    parse_instr_dag(good("show", RING, "ranks=3", "--dump-ir", "after=fuse"))
    said = good("show", RING, "ranks=3", "--dump-ir", "after=lower,rank=2", "--dump-ir", "after=fuse,rank=2")
    assert said.index("# after lower, rank 2") < said.index("# after fuse, rank 2")
    assert "@0" not in said


def test_diff_of_a_pass() -> None:
    lines = good("show", RING, "ranks=3", "--diff", "fuse", "--rank", "0").splitlines()
    assert lines[:2] == ["--- before fuse", "+++ after fuse"]
    assert any(line.startswith("+") and " rrcs " in line for line in lines)
    assert good("show", RING, "ranks=3", "--diff", "replicate") == "replicate changed nothing\n"


def test_time_of_passes() -> None:
    lines = good("show", RING, "ranks=3", "--time").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [known.name for known in PASSES]
    passes = as_json("show", RING, "ranks=3", "--time")["passes"]
    assert passes[3]["name"] == "fuse"
    assert passes[3]["made"] == {"instructions": 15, "transfers": 12}
    assert all(p["seconds"] > 0 for p in passes)


# ---------------------------------------------------------------------------------------------------------------
# Pictures


def svg_texts(path: Path) -> list[str]:
    tree = ElementTree.parse(path)
    return [text for element in tree.iter("{http://www.w3.org/2000/svg}text") if (text := "".join(element.itertext()))]


def test_picture_of_a_schedule(workplace: Path) -> None:
    good("show", "hocket.algorithms.hierarchical:all_reduce", "nodes=2", "gpus=2", "-o", "h.svg")
    texts = svg_texts(workplace / "h.svg")
    assert "hierarchical_all_reduce" in texts
    assert texts.count("rrcs") == 4  # one on each rank
    assert "rrcs: receive, reduce, store, send on" in texts
    assert {"rank 0", "rank 3", "transfer", "wait", "in[0:+2]"} <= set(texts)


def test_picture_of_a_chunk_dag(workplace: Path) -> None:
    good("show", RING, "ranks=3", "--stage", "chunk", "-o", "c.svg")
    texts = svg_texts(workplace / "c.svg")
    assert sum(text.startswith("reduce in[") for text in texts) == 6
    assert sum(text.startswith("copy in[") for text in texts) == 6
    assert "false dependency" in texts


def test_picture_as_png_has_a_sensible_size(workplace: Path) -> None:
    good("show", RING, "ranks=16", "-o", "r.png")
    data = (workplace / "r.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert 500 < height < width < 6100


def test_a_picture_says_what_it_leaves_out(workplace: Path) -> None:
    all_pairs.all_reduce(16).compile().draw(workplace / "large.svg", ranks=range(16))
    (said,) = [text for text in svg_texts(workplace / "large.svg") if text.startswith("Left out")]
    assert "ranks 3 to 15 (93 of 496 thread blocks are drawn)" in said
    draw(ring.all_reduce(12).chunk_dag, workplace / "dag.svg")
    (said,) = [text for text in svg_texts(workplace / "dag.svg") if text.startswith("Left out")]
    assert "nodes that do not carry chunk 0 of an input" in said


def test_ranks_that_do_the_same_are_drawn_once_where_all_have_no_room(workplace: Path) -> None:
    good("show", "ring:all_reduce", "ranks=64", "-o", "ring.svg")
    texts = svg_texts(workplace / "ring.svg")
    assert "rank 0 \u00d764" in texts
    assert not {"rank 1", "rank 63"} & set(texts)
    assert {"send in[63]", "rrcs in[0]", "recv in[1]"} <= set(texts)  # every step has its label
    assert any(text.startswith("Drawn once: ") and text.endswith("1 to 63 as rank 0.") for text in texts)
    assert not any("Left out" in text for text in texts)
    good("show", "ring:all_reduce", "ranks=8", "-o", "small.svg")
    assert {f"rank {rank}" for rank in range(8)} <= set(svg_texts(workplace / "small.svg"))


def test_ranks_that_differ_are_not_folded(workplace: Path) -> None:
    """Not where times differ, nor where a rank does something else."""
    good("show", "chain:broadcast", "ranks=100", "-o", "chain.svg")
    assert {f"rank {rank}" for rank in range(100)} <= set(svg_texts(workplace / "chain.svg"))
    schedule = all_pairs.all_reduce(8).compile()
    first, *others = schedule.ranks
    fewer = replace(first, thread_blocks=first.thread_blocks[1:])
    drawn = svg(replace(schedule, ranks=(fewer, *(others * 2)[:15]), collective=hocket.AllReduce(16, 8, inplace=True)))
    assert "rank 0<" in drawn
    assert "rank 1 \u00d7" in drawn


def test_pictures_of_some_ranks(workplace: Path) -> None:
    good("show", RING, "ranks=8", "--rank", "2", "--rank", "5", "-o", "two.svg")
    texts = svg_texts(workplace / "two.svg")
    assert [text for text in texts if text.startswith("rank ")] == ["rank 2", "rank 5"]
    assert "Only ranks 2, 5." in texts
    for stage in ("chunk", "instr"):
        good("show", RING, "ranks=8", "--stage", stage, "--rank", "2", "-o", "one.svg")
        assert "rank 2" in svg_texts(workplace / "one.svg")
        assert "rank 5" not in svg_texts(workplace / "one.svg")
    with pytest.raises(OutOfRange):
        ring.all_reduce(3).draw("no.svg", ranks=[3])
    with pytest.raises(InvalidArgument, match=r"ends in \.svg"):
        ring.all_reduce(3).draw("no.gif")


def test_names_are_text_in_a_picture() -> None:
    with hocket.Program(hocket.Broadcast(2), name="<b>&\x1b]0;x\x07\ud800") as p:
        hocket.chunk(0, "in", 0).copy(0, "out", 0)
        hocket.chunk(0, "in", 0).copy(1, "out", 0)
    for made in (p, p.compile()):
        drawn = made._repr_svg_()
        assert "&lt;b&gt;&amp;\\x1b]0;x\\x07\\ud800" in drawn
        ElementTree.fromstring(drawn)


def test_pictures_need_matplotlib_only_where_they_are_no_svg(workplace: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from hocket.algorithms import ring\n"
        "from hocket.cli import main\n"
        "ring.all_reduce(2).draw('a.svg')\n"
        "ring.all_reduce(2).compile().draw('b.svg')\n"
        "try: ring.all_reduce(2).draw('a.png')\n"
        "except ImportError as error: print(error)\n"
        "sys.argv = ['hocket', *sys.argv[1:]]\n"
        "main()"
    )
    for words in (["show", RING, "ranks=2", "-o", "c.pdf"], ["bench", "all_reduce", "-n", "2", "--plot", "p.svg"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "error[missing-package]: a .png, unlike an .svg, needs matplotlib, which is not here" in done.stdout
        assert "help: pip install 'hocket[plots]'" in done.stderr
    assert all((workplace / name).exists() for name in ("a.svg", "b.svg"))


def test_a_deadlocked_schedule_can_be_drawn(workplace: Path) -> None:
    draw(parse_schedule(DEADLOCK), workplace / "stuck.svg")
    assert any("4 steps that can never run" in text for text in svg_texts(workplace / "stuck.svg"))


def test_the_same_stage_gives_the_same_bytes(workplace: Path) -> None:
    for name in ("a", "b"):
        draw(hierarchical.all_reduce(2, 2).compile(), workplace / f"{name}.svg")
    assert (workplace / "a.svg").read_bytes() == (workplace / "b.svg").read_bytes()


# ---------------------------------------------------------------------------------------------------------------
# A newcomer's first mistakes


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["check", "program.py:ring"], "there is no file program.py", "did you mean programs.py?"),
        (["check", "programs.py"], "which function of programs.py?", "programs.py:ring ranks=..."),
        (["check", "hocket.algorithms.ring"], "which function of", "hocket.algorithms.ring:all_gather ranks=..."),
        (["check", "programs:ring"], "there is no module", "did you mean programs.py:ring?"),
        (["check", "hocket.algorithms.rnig:all_reduce"], "there is no module", "did you mean ring:all_reduce?"),
        (["check", "rnig:all_reduce"], "there is no module", "did you mean ring:all_reduce?"),
        (["check", "ring:all_reuse"], "ring has no function 'all_reuse'", "did you mean all_reduce?"),
        (["check", "ring"], "which function of ring?", "ring:all_gather ranks=..."),
        (["check", "nothing"], "there is no file or module 'nothing'", "FILE.py:FUNC"),
        (["check", "programs.py:rng", "ranks=2"], "has no function 'rng'", "did you mean ring?"),
        (["check", "programs.py:ring"], "needs ranks", "it is ring(ranks: int, channels: int = 1)"),
        (["check", "programs.py:ring", "rank=2"], "no parameter 'rank'; did you mean ranks?", "it is ring("),
        (["check", "programs.py:ring", "2"], "expected name=value, found '2'", "it is ring("),
        (["check", "programs.py:ring", "ranks=two"], "ranks=two is no int", ""),
        (["check", "programs.py:ring", "ranks=2", "ranks=3"], "ranks is given twice", ""),
        (["check", "programs.py:ring", "ranks=5..2"], "the range ranks=5..2 is empty", "both included"),
        (
            ["check", "programs.py:ring", "ranks=2..1000000000"],
            "with ranks=2..1000000000 there are more than",
            "shorter",
        ),
        (["check", "programs.py:ring", "ranks=2..999", "channels=1..999"], "with channels=1..999 there are", "shorter"),
        (["check", "programs.py:shaped", "shape=4"], "shape=4 is no tuple", "2,3"),
        (["check", "programs.py:forgetful", "ranks=2"], "returned None", "return p"),
        (["check", "programs.py:divides", "ranks=2"], "ZeroDivisionError", "return ranks // 0"),
        (["check", "programs.py:halves"], "ZeroDivisionError", "return ranks // 0"),
        (["check", "programs.py:rings", "ranks=0"], "ZeroDivisionError", "return ring(6 // ranks)"),
        (["check", "os:getcwd"], "os:getcwd returned '/", ""),
        (["check", "math:hypot"], "math:hypot does not say what its parameters are", ""),
        (["check", "builtins:prnt"], "builtins has no function 'prnt'", ""),
        (["check", "broken.py:f"], "SyntaxError", "1 | def f(:\n  |       ^"),
        (["check", "broken_package.m:f"], "importing broken_package: SyntaxError", "def f(:"),
        (["check", "raising_package.m:f"], "importing raising_package: RuntimeError: no", 'raise RuntimeError("no")'),
        (["check", "folder.py:f"], "folder.py is a folder, not a file", "FILE.py:FUNC"),
        *(
            ([*command, "x" * 300 + ".py"], f"the system says of {'x' * 300}.py: File name too long", "")
            for command in (["check"], ["show"], ["export"], ["launch", "-n", "2"], ["msccl"])
        ),
        (["check", "notes.txt"], "neither Python with a function in it nor the text of a schedule", ""),
        (["show", RING, "ranks=2..3"], "one value for each parameter", "only check takes ranges"),
        (["show", RING, "ranks=3", "--dump-ir", "after=fues"], "there is no pass 'fues'", "fuse       receive"),
        (["show", RING, "ranks=3", "--dump-ir", "fuse"], "expected after=PASS", "--dump-ir after=fuse,rank=2"),
        (["show", RING, "ranks=3", "--diff", "sort"], "there is no pass 'sort'", "sync"),
        (["show", RING, "ranks=3", "--rank", "3"], "there is no rank 3", "ranks 0 to 2"),
        (["show", RING, "ranks=3", "-o", "ring.gif"], "ends in .svg, .png, .pdf", ""),
        (["show", RING, "ranks=3", "-o", "no/ring.svg"], "there is no directory no", ""),
        (["demo", "-o", "folder.svg"], "cannot write folder.svg: Is a directory", ""),
        (["bench", "all_reduce", "--plot", "folder.svg"], "cannot write folder.svg: Is a directory", ""),
        (["run", RING, "ranks=2", "--size", "1000TB"], "there is not enough memory: Unable to allocate", ""),
        (["bench", "scan", "-n", "2", "-b", "1000TB", "-e", "1000TB"], "there is not enough memory: Unable", ""),
        (["demo", "--size", "99999999TB"], "no machine has so much memory: 99999999TB", ""),
        (["search", "--collective", "allreduce"], "there is no collective 'allreduce'", "did you mean all_reduce?"),
        (["calibrate", "-o", "this.txt"], "the name of a topology ends in .toml, not 'this.txt'", ""),
        (["calibrate", "-o", "folder.toml"], "cannot write folder.toml: Is a directory", ""),
        (["calibrate", "-o", "notes.txt/this.toml"], "cannot write notes.txt/this.toml: File exists", ""),
        (["check", RING, "ranks=3", "--protocol", "LL9"], "--protocol must be one of auto", ""),
        (["check", RING, "ranks=3", "--storage", "shared"], "--storage must be one of fifo, peer", ""),
        (["check", RING, "ranks=3", "--slots", "0"], "--slots", ""),
        (["run", RING, "ranks=3", "-n", "4"], "the program is for 3 ranks, -n asks for 4", "the same number"),
        (["run", RING, "ranks=3", "--size", "big"], "'big' is no size", "25MB"),
        (["run", RING, "ranks=3", "--dtype", "float8"], "--dtype must be one of bool, int8", ""),
        (["run", RING, "ranks=3", "--op", "mean"], "--op must be one of sum", ""),
        (["run", RING, "ranks=2", "--op", "max", "--dtype", "complex64"], "max is not for complex64", "sum, prod, avg"),
        (["check", RING, "ranks=3", "--instances", "5000"], "--instances", ""),
        (["msccl"], "Missing argument", "SCRIPT.py"),
        (["msccl", "notes.py"], "notes.py made no program", "MSCCLProgram"),
        (["list", "all_reduces"], "no algorithm implements 'all_reduces'", "did you mean AllReduce?"),
        (["launch", "-n", "2", "no.py"], "there is no file no.py", ""),
        (["launch", "-n", "2", "--", "no-such-command"], "there is no command 'no-such-command'", ""),
        (["launch", "-n", "99999", "no.py"], "-n must be a number from 1 to 4096, not 99999", ""),
        (["bench", "all_reduce", "-n", "99999"], "-n must be a number from 1 to 4096, not 99999", ""),
        (["explain", "all_reduce", "-n", "99999"], "-n must be a number from 1 to 64, not 99999", ""),
        (["chekc"], "No such command", ""),
    ],
)
def test_newcomers_mistakes(workplace: Path, words: list[str], message: str, hint: str) -> None:
    (workplace / "broken.py").write_text("def f(:\n")
    (workplace / "notes.txt").write_text("hello\n")
    (workplace / "notes.py").write_text("hello = 1\n")
    for name in ("folder.svg", "folder.toml", "folder.py"):
        (workplace / name).mkdir()
    for name, text in (("broken_package", "def f(:\n"), ("raising_package", 'raise RuntimeError("no")\n')):
        (workplace / "packages" / name).mkdir(parents=True)
        (workplace / "packages" / name / "__init__.py").write_text(text)
    sys.path.insert(0, str(workplace / "packages"))
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert hint in result.output
    assert "Traceback" not in result.output


def test_whether_a_file_can_be_written_is_asked_without_writing_it(workplace: Path) -> None:
    (workplace / "old.svg").write_text("old")
    before = sorted(workplace.iterdir())
    for name in ("old.svg", "new.svg"):
        check_writable(workplace / name)
    assert sorted(workplace.iterdir()) == before
    assert (workplace / "old.svg").read_text() == "old"
    with pytest.raises(UsageError, match=r"cannot write /proc/new\.svg: No such file"):
        check_writable(Path("/proc/new.svg"))


@pytest.mark.parametrize("words", [["list"], ["launch", "-n", "2", "--", "seq", "20"]])
def test_a_full_disk_is_said_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-u", "-m", "hocket", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "error[usage]: the system says: No space left on device\n")


def test_a_terminal_need_not_have_all_characters() -> None:
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    words = [sys.executable, "-m", "hocket", "list", "all_reduce"]
    done = subprocess.run(words, env=env, capture_output=True, check=True)
    assert b"hops ? 2 * floor_log2(p)" in done.stdout
    assert b"Tr\xe4ff" in done.stdout


def test_files_are_written_in_utf8_whatever_the_locale() -> None:
    told = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    words = ["export", RING, "ranks=2", "-o", "two.xml"]
    subprocess.run([sys.executable, *told, "-m", "hocket", *words], check=True)


def test_starting_loads_neither_pictures_nor_native_code() -> None:
    code = (
        "import sys, hocket.cli\n"
        "print([m for m in sys.modules if m.startswith(('matplotlib', 'hocket._native', 'hocket.runtime'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------------------------------------------------------
# On processes


def test_sizes() -> None:
    assert [parse_size(text) for text in ("8", "4K", "64MB", "1.5k", "2GiB")] == [8, 4096, 64 << 20, 1536, 2 << 30]
    assert [show_size(n) for n in (8, 4096, 25 << 20)] == ["8 B", "4 KB", "25 MB"]
    assert [show_seconds(t) for t in (1.5, 0.0123, 4.2e-6, 3e-8)] == ["1.50 s", "12.3 ms", "4.20 us", "30 ns"]
    with pytest.raises(UsageError):
        parse_size("64 sheep")
    assert good("export", RING, "ranks=2", "--max-bytes", "128 MB") == good(
        "export", RING, "ranks=2", "--max-bytes", "134217728"
    )


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_factor(hocket.AllReduce(4)) == 1.5
    assert (
        bus_factor(hocket.AllGather(4)) == bus_factor(hocket.ReduceScatter(4)) == bus_factor(hocket.AllToAll(4)) == 0.75
    )
    assert bus_factor(hocket.Broadcast(4)) == bus_factor(hocket.Reduce(4)) == 1
    assert bus_factor(hocket.Custom(2, inputs=1, outputs=1, post=lambda rank, index: None)) is None


def test_any_part_of_an_input_can_be_made_anywhere() -> None:
    job = Job(ring.all_reduce(2).compile(), 1_000_000, "float32", "sum", 1, 0)
    whole = job.input(1)
    assert np.array_equal(whole[300_000:300_100], job.values(1, 300_000, 300_100))
    assert np.array_equal(whole, job.input(1))
    assert not np.array_equal(whole, job.input(0))
    assert abs(float(whole.mean())) < 0.01
    assert -1 <= whole.min() < -0.99
    assert 0.99 < whole.max() <= 1


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float32", "sum"),
        ("int64", "sum"),
        ("float64", "min"),
        ("uint8", "prod"),
        ("float16", "prod"),
        ("bfloat16", "avg"),
        ("complex64", "prod"),
        ("int32", "bxor"),
        ("float64_int32", "minloc"),
    ],
)
def test_every_wrong_element_is_counted(dtype: str, op: str) -> None:
    schedule = ring.all_reduce(3).compile()
    job = Job(schedule, 100, dtype, op, 1, 0)
    out = reference(schedule, [job.input(rank) for rank in range(3)], op)[1]
    assert count_wrong(job, 1, out) == 0
    column = out["index"] if out.dtype.names else out
    column[[0, 42, 99]] += np.array(1, column.dtype)
    assert count_wrong(job, 1, out) == 3


@pytest.mark.parametrize(
    "words",
    [
        (RING, "ranks=3", "--size", "100K"),
        ("hocket.algorithms.two_step:all_to_all", "nodes=2", "gpus=2", "--size", "3M", "--dtype", "int32"),
        ("programs.py:shaped", "shape=3,", "--size", "1", "--dtype", "float64", "--op", "max"),
        (RING, "ranks=3", "--size", "100K", "--dtype", "bfloat16", "--op", "avg"),
        (RING, "ranks=3", "--size", "100K", "--dtype", "complex64", "--op", "prod"),
        (RING, "ranks=3", "--size", "100K", "--dtype", "float32_int32", "--op", "maxloc"),
    ],
    ids=["ring", "alltoall", "broadcast", "average", "complex", "pairs"],
)
def test_run(words: tuple[str, ...]) -> None:
    found = as_json("run", *words, "--iters", "3", "--warmup", "1")
    assert found["wrong"] == 0
    assert found["iterations"] == 3
    assert 0 < found["median"] <= found["p95"]
    assert found["algbw"] == pytest.approx(found["bytes"] / found["median"] / 1e9)
    assert found["bitwise"] is (found["bytes"] <= 1 << 20)


def test_launch_passes_output_and_exit_code_on(workplace: Path) -> None:
    script = "import sys, hocket\nwith hocket.init() as comm:\n    print(comm.size, *sys.argv[1:], '-n')\n"
    (workplace / "hello.py").write_text(script)
    start = [sys.executable, "-c", "from hocket.cli import main; main()", "launch", "-n", "2"]
    done = subprocess.run([*start, "hello.py", "--flag", "x"], capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines()) == ["[0] 2 --flag x -n", "[1] 2 --flag x -n"]
    assert done.returncode == 0
    done = subprocess.run([*start, "--", "false"], capture_output=True, text=True, check=False)
    assert done.returncode == 1


def test_demo(workplace: Path) -> None:
    said = good("demo", "--size", "1MB")
    for step in ("1 trace", "2 compile", "3 prove", "4 run", "5 look"):
        assert step in said
    assert "proven for 6 ranks, 2 or more slots" in said
    assert "= rrcs" in said
    assert "0 wrong" in said
    assert "rank 5" in svg_texts(workplace / "hocket-demo.svg")


def test_json_has_the_dumps_and_diffs_that_were_asked_for() -> None:
    found = json.loads(good("show", RING, "ranks=3", "--dump-ir", "after=fuse,rank=1", "--diff", "fuse", "--json"))
    (dump,) = found["dumps"]
    assert (dump["after"], dump["ranks"]) == ("fuse", [1])
    assert "@1 rrs" in dump["text"]
    assert "@0" not in dump["text"]
    (diff,) = found["diffs"]
    assert diff["pass"] == "fuse"
    assert diff["lines"][:2] == ["--- before fuse", "+++ after fuse"]


def test_what_show_prints_is_a_schedule_that_check_takes(tmp_path: Path) -> None:
    text = tmp_path / "ring.txt"
    text.write_text(good("show", RING, "ranks=3", "--dump-ir", "after=sync"))
    assert text.read_text().startswith("# after sync\n")
    assert good("check", str(text)).startswith("proven for 3 ranks")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ('chunk(0, "input", 0)', "there is no buffer 'input'"),
        ('chunk(0, "in", 0.5)', "index must be a whole number, not 0.5"),
        ("Custom(2, inputs=1, outputs=1, post=lambda rank, index: 7)", "post(0, 0) must be a set of input chunks"),
        ("Custom(2, inputs=1, outputs=1, post=7)", "post must be a function of rank and index, not 7"),
    ],
)
def test_an_invalid_argument_in_a_program_is_shown_where_it_is(workplace: Path, statement: str, said: str) -> None:
    lines = ["from hocket import *", "def bad(ranks: int):", "    with Program(AllReduce(ranks)) as p:"]
    (workplace / "bad.py").write_text("\n".join([*lines, f"        {statement}", "    return p", ""]))
    for words in (["check"], ["show"], ["run", "--size", "8"], ["export"]):
        result = run(*words, "bad.py:bad", "ranks=2")
        assert result.exit_code == 2  # nothing was judged
        assert said in result.output
        assert f"\n4 |         {statement}\n  |         {'^' * len(statement)} here" in result.output
    assert run("check", RING, "ranks=0").exit_code == 2


def test_an_instruction_dag_can_be_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "instr.svg"
    good("show", RING, "ranks=3", "--stage", "instr", "-o", str(picture))
    assert "communication edge" in picture.read_text()


# ---------------------------------------------------------------------------------------------------------------
# The library, help and completion


def test_list_names_what_other_commands_take() -> None:
    found = as_json("list")
    assert len(found) == len(CATALOGUE)
    for algorithm, said in zip(CATALOGUE, found, strict=True):
        assert said["collective"] == algorithm.collective.__name__
        assert said["source"] == algorithm.source
        assert said["ranks"] == algorithm.takes.words
        assert {"hops", "rounds", "volume", "reductions", "scratch"} <= said.keys()
        given = algorithm.cases(8)[0]
        assert given.keys() <= said["parameters"].keys()
        words = [f"{name}={show_value(value)}" for name, value in given.items()]
        assert one_case(said["name"], words).load().name == algorithm.factory(**given).name
    assert [a["name"] for a in as_json("list", "AllToNext")] == ["all_to_next:all_to_next"]
    assert as_json("list", "all_gather") == as_json("list", "allgather")


def test_list_fits_on_a_terminal() -> None:
    result = CliRunner().invoke(app, ["list", "all_reduce"], env={"COLUMNS": "80"})
    assert "\n  ring:all_reduce ranks=... channels=1 instances=1\n      ranks: any; hops 2" in result.stdout
    assert "\u2026" not in result.stdout


def test_a_program_of_the_library_may_be_named_as_it_is_listed(workplace: Path) -> None:
    assert good("check", "ring:all_reduce", "ranks=3") == good("check", RING, "ranks=3")
    (workplace / "ring.py").write_text(PROGRAMS)
    result = run("check", "ring:ring", "ranks=3")
    assert result.exit_code == 2
    assert "did you mean ring.py:ring?" in result.stderr
    sys.path.insert(0, str(workplace))  # what the library does not have may be in a module of the same name
    assert "proven for 3 ranks" in good("check", "ring:ring", "ranks=3")
    assert good("check", "ring:all_reduce", "ranks=3") == good("check", RING, "ranks=3")


def test_protocols_in_any_case() -> None:
    for name in ("ll", "LL", "Ll128", "simple"):
        assert 'proto="' + {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[name.lower()] + '"' in good(
            "export", RING, "ranks=3", "--protocol", name
        )
    assert as_json("check", RING, "ranks=3", "--protocol", "SIMPLE")["results"][0]["facts"]["protocol"] == "simple"


@pytest.mark.parametrize("command", [None, *(known.name for known in app.registered_commands)])
def test_help_shows_its_brackets_and_cuts_nothing(command: str | None) -> None:
    name = (command or "").rstrip("_")
    result = CliRunner().invoke(app, [*([name] if name else []), "--help"], env={"COLUMNS": "80"}, terminal_width=80)
    assert result.exit_code == 0, result.output
    assert not [line for line in result.output.splitlines() if len(line) > 80 or "  ..." in line or "\u2026" in line]
    assert "begins with ." not in result.output
    if name == "launch":
        assert "begins with [rank]." in result.output
    if name == "show":
        assert "after=PASS[,rank=N]" in result.output
    if name in ("check", "show", "run", "export", "bench"):
        assert "[NAME=VALUE]" in result.output
    if name == "bench":
        assert all(re.search(rf"\b{collective}\b", result.output) for collective in NAMED)
    if not name:
        (listing,) = re.findall(r"Commands:\n((?:.+\n)+)", result.output)
        assert not [line for line in listing.splitlines() if line.endswith("...") or not line.startswith("  ")]


def test_python_m_hocket() -> None:
    done = subprocess.run([sys.executable, "-m", "hocket", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{hocket.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "hocket", "chekc"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_shell_can_complete_commands_and_options(workplace: Path) -> None:
    """What the script that --install-completion installs asks for."""
    (workplace / "hocket").write_text("from hocket.cli import main\nmain()\n")
    for line, offered in (("hocket ex", {"export", "explain"}), ("hocket show --st", {"--stage", "--storage"})):
        env = os.environ | {"_HOCKET_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([sys.executable, "hocket"], env=env, capture_output=True, text=True, check=False)
        assert set(done.stdout.split()) == offered, done.stderr


# ---------------------------------------------------------------------------------------------------------------
# Schedules and programs as objects


def test_schedules_print_as_text_and_show_themselves(tmp_path: Path) -> None:
    schedule = ring.all_reduce(3).compile()
    assert repr(schedule) == (
        "<Schedule 'ring_all_reduce': allreduce(ranks=3, chunks=3, inplace), 3 thread blocks, 15 steps>"
    )
    assert schedule.text() == print_stage(schedule)
    assert str(schedule) + "\n" == schedule.text()
    assert parse_schedule(str(schedule)) == schedule
    schedule.draw(tmp_path / "ring.svg")
    assert (tmp_path / "ring.svg").read_text() == schedule._repr_svg_()
    schedule.draw(str(tmp_path / "one.svg"), ranks=[1])
    assert "rank 0" not in svg_texts(tmp_path / "one.svg")


def test_programs_print_and_draw_what_they_say_right_or_wrong(tmp_path: Path) -> None:
    with hocket.Program(hocket.AllReduce(2), name="half") as half:
        hocket.chunk(0, "in", 0).copy(0, "out", 0)
        assert repr(half) == "<Program 'half': allreduce(ranks=2, chunks=1), 1 operations>"
    assert half.text() == print_stage(half.chunk_dag) == f"{half}\n"
    half.draw(tmp_path / "half.svg")
    assert (tmp_path / "half.svg").read_text() == half._repr_svg_()
    assert "copy out[0]" in svg_texts(tmp_path / "half.svg")


@pytest.mark.parametrize("thing", [ring.all_reduce(2), None, "schedule"])
def test_only_a_schedule_can_be_proven(thing: object) -> None:
    with pytest.raises(WrongType, match=rf"takes a Schedule, not {type(thing).__name__}(.|\n)*program\.compile\(\)"):
        hocket.prove(thing)  # type: ignore[arg-type]
