"""``hocket check`` in other people's CI: many files, formats for machines, verdicts, exit codes, hostile names."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from hocket import Broadcast, Program, chunk, functions
from hocket.algorithms import ring
from hocket.cli import app
from hocket.cli.check import judge
from hocket.cli.compiled import Options
from hocket.cli.reports import MACHINES, Format, as_github, as_json, as_junit, as_sarif
from hocket.cli.result import Report
from hocket.cli.result import Result as Found
from hocket.cli.tables import print_report
from hocket.errors import Diagnostic, InvalidArgument, Label, Location, Race, StepName, UsageError
from hocket.formats.msccl_xml import write
from hocket.formats.picture import draw
from hocket.ir.text import print_stage
from tests.test_errors import HARMLESS, HOSTILE

HOCKET = [sys.executable, "-c", "from hocket.cli import main; main()"]
RING = "hocket.algorithms.ring:all_reduce"
GOOD = write(ring.all_reduce(3).compile(opcodes=True))
REFUTED = GOOD.replace('type="rrcs" srcbuf="i" srcoff="0"', 'type="rrcs" srcbuf="i" srcoff="1"')
FOR_RCCL = write(ring.all_reduce(3).compile(opcodes=True), "rccl")
TEXT = "# after sync\n" + print_stage(ring.all_reduce(3).compile())
ANYTHING = Options(None, None, None)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*words: str, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["check", *words], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def verdicts(*words: str, given: str | None = None, exit_code: int) -> dict[str, str]:
    """The verdict of each target, and the code of its error."""
    done = run(*words, "--json", given=given)
    assert done.exit_code == exit_code, done.output
    found = json.loads(done.stdout)["results"]
    return {r["target"]: " ".join([r["verdict"], *([r["error"]["code"]] if r["error"] else [])]) for r in found}


# Files ------------------------------------------------------------------------------------------------------------


def test_a_bad_file_is_a_row_and_the_others_are_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_LARGEST", 1 << 20)
    files = {"good.xml": GOOD, "bad.xml": REFUTED, "cut.xml": GOOD[:500], "empty.xml": "", "ring.txt": TEXT}
    for name, text in {**files, "notes.txt": "hello\n", "bytes.xml": "<\xff"}.items():
        (folder / name).write_bytes(text.encode("latin-1"))
    (folder / "huge.txt").write_text("schedule ")
    os.truncate("huge.txt", 3 << 30)
    assert verdicts(*files, "notes.txt", "bytes.xml", "huge.txt", "missing.xml", exit_code=2) == {
        "good.xml": "proven",
        "bad.xml": "refuted postcondition",
        "cut.xml": "invalid parse",
        "empty.xml": "invalid parse",
        "ring.txt": "proven",
        "notes.txt": "invalid usage",
        "bytes.xml": "invalid parse",
        "huge.txt": "invalid unreadable",
        "missing.xml": "invalid unreadable",
    }


def test_a_folder_stands_for_the_files_in_it(folder: Path) -> None:
    for name in ("a/b/deep.xml", "a/ring.txt", "a/notes.txt", "a/program.py", ".git/hidden.xml", "a/.hidden.xml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(GOOD if name.endswith(".xml") else TEXT if name == "a/ring.txt" else "raise 1\n")
    os.mkfifo("a/fifo.xml")
    (folder / "a" / "zero.xml").symlink_to("/dev/zero")
    assert verdicts(".", exit_code=0) == {"a/ring.txt": "proven", "a/b/deep.xml": "proven"}
    (folder / "empty").mkdir()
    assert "no text of a schedule in empty" in run("empty").stderr
    assert run("empty").exit_code == 2
    assert run("").exit_code == 2  # what an unset variable becomes is not this folder


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


def test_standard_input_and_pipes_are_read_once(folder: Path) -> None:
    assert verdicts("-", given=GOOD, exit_code=0) == {"-": "proven"}
    assert verdicts("-", given=TEXT, exit_code=0) == {"-": "proven"}
    assert "standard input is neither MSCCL's XML" in run("-", given="").stdout
    done = run("-", given=REFUTED)
    assert "<stdin>:7:7" in done.stdout
    assert 'type="rrcs" srcbuf="i" srcoff="1"' in done.stdout
    closed = shell(f"{shlex.join(HOCKET)} check - --json <&-")
    assert json.loads(closed.stdout)["results"][0]["error"]["message"] == "standard input is closed"
    os.mkfifo("pipe")
    (folder / "bad.xml").write_text(REFUTED)
    done = shell(f"cat bad.xml > pipe & {shlex.join(HOCKET)} check pipe")
    assert done.returncode == 1, done.stderr
    assert " --> pipe:7:7" in done.stdout


def test_what_is_no_parameter_of_a_file_is_a_mistake(folder: Path) -> None:
    (folder / "a.xml").write_text(GOOD)
    assert "files have no parameters, such as ranks=3" in run("a.xml", "ranks=3").stderr
    assert "--target must be one of msccl, rccl, not 'nccl'" in run("a.xml", "--target", "nccl").stderr
    assert "--target is for files" in run(RING, "ranks=3", "--target", "rccl").stderr


def test_a_target_that_does_not_load_a_file_is_a_failure(folder: Path) -> None:
    (folder / "msccl.xml").write_text(GOOD)
    (folder / "rccl.xml").write_text(FOR_RCCL)
    (folder / "ring.txt").write_text(TEXT)
    (folder / "bad.xml").write_text(REFUTED)
    assert set(verdicts("msccl.xml", "rccl.xml", exit_code=0).values()) == {"proven"}
    assert verdicts(".", "--target", "rccl", exit_code=1) == {
        "msccl.xml": "refused target-limit",
        "rccl.xml": "proven",
        "ring.txt": "refused target-limit",
        "bad.xml": "refuted postcondition",
    }
    done = run("msccl.xml", "--target", "rccl")
    why = "rccl: line 2: it demands the attribute outofplace, line 6: its default build does not do rrs"
    assert why in done.stdout.splitlines()[1]
    assert "error[target-limit]: rccl: it demands the attribute outofplace" in done.stdout


# Verdicts ---------------------------------------------------------------------------------------------------------


PROGRAMS = """
from hocket import AllReduce, Program, chunk

def partial(ranks: int):
    with Program(AllReduce(ranks, inplace=True)) as p:
        if ranks > 2:
            chunk(1, "in", 0).copy(0, "in", 0)
        if ranks == 2:
            for r in range(2):
                chunk(r, "in", 0).copy(r, "sc", 0)
            chunk(1, "in", 0).reduce(chunk(0, "sc", 0)).copy(0, "in", 0)
    return p

def index():
    with Program(AllReduce(2)) as p:
        chunk(0, "in", 0.5)
    return p

def broken(ranks: int):
    raise RuntimeError("first\\nsecond")
"""


def test_one_verdict_and_one_schema_for_programs_and_files(folder: Path) -> None:
    (folder / "programs.py").write_text(PROGRAMS)
    (folder / "bad.xml").write_text(REFUTED)
    (folder / "cut.xml").write_text(GOOD[:500])
    program = json.loads(run("programs.py:partial", "ranks=1..3", "--format", "json").stdout)
    files = json.loads(run("bad.xml", "cut.xml", "--format", "json").stdout)
    usage = json.loads(run("programs.py:nothing", "--format", "json").stdout)
    option = json.loads(run("--slots", "0", "bad.xml", "--format=json").stdout)
    assert program.keys() == files.keys() == usage.keys() == option.keys()
    assert [r["verdict"] for r in program["results"]] == ["proven", "proven", "refuted"]
    assert [r["verdict"] for r in files["results"]] == ["refuted", "invalid"]
    assert {frozenset(r) for r in program["results"] + files["results"]} == {frozenset(files["results"][0])}
    errors = [program["results"][2]["error"], *(r["error"] for r in files["results"]), usage["error"], option["error"]]
    assert [error["code"] for error in errors] == ["postcondition", "postcondition", "parse", "usage", "usage"]
    assert {frozenset(error) for error in errors} == {frozenset(errors[0])}
    assert [(e["file"], e["line"], e["column"]) for e in errors[:3]] == [
        ("programs.py", 7, 13),
        ("bad.xml", 7, 7),
        ("cut.xml", 6, 7),
    ]
    assert (program["verdict"], files["verdict"], usage["verdict"]) == ("refuted", "invalid", "invalid")
    assert usage["error"]["help"] == "it has partial, index, broken"
    assert "--slots" in option["error"]["message"]


def test_exit_codes(folder: Path) -> None:
    (folder / "programs.py").write_text(PROGRAMS)
    codes = {
        ("programs.py:partial", "ranks=1"): 0,
        ("programs.py:partial", "ranks=1..3"): 1,
        ("programs.py:index",): 2,
        ("programs.py:broken", "ranks=1..2"): 2,
        ("programs.py:nothing",): 2,
    }
    assert {words: run(*words).exit_code for words in codes} == codes


def test_what_is_wrong_while_a_file_is_imported_is_reported_too(folder: Path) -> None:
    (folder / "programs.py").write_text(PROGRAMS + "\nindex()\n")
    (folder / "syntax.py").write_text("def f(:\n")
    for name, code, place in (("programs", "invalid-argument", (16, 9)), ("syntax", "user-code", (1, 7))):
        done = run(f"{name}.py:f", "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.exit_code, error["code"], error["file"]) == (2, code, f"{name}.py")
        assert (error["line"], error["column"]) == place
        assert f" --> {name}.py:{place[0]}:{place[1]}" in run(f"{name}.py:f").stderr


def test_a_case_that_cannot_be_judged_does_not_end_the_others(folder: Path) -> None:
    (folder / "programs.py").write_text(PROGRAMS)
    found = json.loads(run("programs.py:broken", "ranks=1..2", "--json").stdout)["results"]
    assert [r["error"]["code"] for r in found] == ["user-code", "user-code"]
    assert found[0]["error"]["message"] == "tracing programs.py:broken: RuntimeError: first\nsecond"
    assert "invalid for ranks=1" in run("programs.py:broken", "ranks=1..2").stdout


# The table --------------------------------------------------------------------------------------------------------


def terminal(report: Report, width: int) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=width, force_terminal=True, color_system=None))
    return stream.getvalue()


def test_no_cell_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a_ring_with_a_name_that_is_longer_than_half_of_a_terminal_is_wide.xml"
    for name in (long, "b.xml"):
        (folder / name).write_text(GOOD)
    report = judge([long, "b.xml"], ANYTHING, [])
    for width in (80, 60, 200):
        lines = terminal(report, width).splitlines()
        assert max(map(len, lines[: lines.index("")])) <= width
        assert "…" not in "".join(lines)
        ends = [m.start() for m in re.finditer(r"(?<=\s)\S", lines[0])]
        first = "".join(line[: ends[0]].strip() for line in lines[1 : lines.index("")])
        assert first == f"{long}b.xml"
        for word in ("msccl", "proven", "outofplace,", "default", "build"):
            assert word in " ".join(lines)
    narrow = terminal(report, 80)
    assert "2 of 2 proven. A wider terminal shows traffic, channels" in narrow
    assert "A wider terminal" not in terminal(report, 200)
    cases = judge(["ring:all_reduce", "ranks=2..3"], ANYTHING, [])
    assert "Slots: the least that are enough. A wider terminal" in terminal(cases, 80)
    assert "Volume and reductions: of the busiest rank, in buffers. Traffic:" in terminal(cases, 200)
    monkeypatch.setenv("COLUMNS", "80")
    piped = run(long, "b.xml").stdout.splitlines()
    assert piped[1].split()[:12] == [
        long,
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


def test_a_table_of_cases_fits_too(folder: Path) -> None:
    (folder / "programs.py").write_text(PROGRAMS.replace("partial(ranks: int)", "partial(ranks: int, steps: int = 0)"))
    report = judge(["programs.py:partial", "ranks=1..2", "steps=7..8"], ANYTHING, [])
    lines = terminal(report, 40).splitlines()
    assert max(map(len, lines[:5])) <= 40
    assert lines[0].split() == ["ranks", "steps", "collective", "verdict"]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "7"], ["1", "8"], ["2", "7"], ["2", "8"]]


# Formats ----------------------------------------------------------------------------------------------------------


WARNING = Diagnostic("no-promise", "50%, of:\nit", (), ("a note",), "some help")


def hostile_report() -> Report:
    """Results of every verdict, with names and texts that no format may pass on as they are."""
    at = Location("a: b,%.py", 3, 4, 7, "    boo\x1b[31m")
    named = Location("/proc/self/environ", 1)
    step = StepName(0, f"send {HOSTILE}", 0, 0, named)
    invalid = InvalidArgument(f"100%,\r\n: {HOSTILE}", at, "help ::error::")
    race = Race(0, "in", 0, step, step, "reads", "writes")
    return Report(
        (
            Found("good.xml", "good.xml", seconds=0.5, refusals={"msccl": (), "rccl": ("no",)}),
            replace(Found(f"{HOSTILE}.xml", f"{HOSTILE}.xml"), warnings=(WARNING,)),
            Found("a.py:f", "a.py", {"ranks": 3}, error=invalid),
            Found("schedule.txt", "schedule.txt", error=race),
            Found("-", None, error=race),
        )
    )


def test_json_is_ascii_and_keeps_all_places() -> None:
    found = json.loads(as_json(hostile_report()))
    assert as_json(hostile_report()).isascii()
    invalid, race = found["results"][2]["error"], found["results"][3]["error"]
    assert (invalid["file"], invalid["line"], invalid["column"], invalid["end_column"]) == ("a: b,%.py", 3, 5, 8)
    assert invalid["labels"][0]["source"] == "    boo\x1b[31m"
    # A file that only a text names is no place for an annotation.
    assert (race["file"], race["line"]) == ("schedule.txt", None)
    assert race["labels"][0]["file"] == "/proc/self/environ"


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as GitHub's runner reads it."""
    match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
    assert match is not None, line
    properties = dict(word.split("=", 1) for word in match[2].split(","))

    def plain(text: str) -> str:
        for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(code, character)
        return text

    return match[1], {key: plain(value) for key, value in properties.items()}, plain(match[3])


def test_github() -> None:
    lines = as_github(hostile_report()).splitlines()
    assert lines[-1] == "2 of 5 proven"
    assert all(line.isprintable() for line in lines)
    (warning, of_warning, said), (error, of_error, why), (_, of_race, _), (_, of_stdin, _) = map(parsed, lines[:-1])
    assert (warning, error) == ("warning", "error")
    assert of_warning == {"file": f"{HARMLESS}.xml", "title": f"no-promise: {HARMLESS}.xml"}
    assert said == r"50%, of:\nit" + "\nnote: a note\nhelp: some help"
    assert of_error == {
        "file": "a: b,%.py",
        "line": "3",
        "col": "5",
        "endColumn": "8",
        "title": "invalid-argument: a.py:f ranks=3",
    }
    assert why == rf"100%,\r\n: {HARMLESS}" + "\nhelp: help ::error::"
    assert of_race == {"file": "schedule.txt", "title": "race: schedule.txt"}
    assert of_stdin == {"title": "race: -"}


def test_sarif() -> None:
    found = json.loads(as_sarif(hostile_report()))
    assert found["version"] == "2.1.0"
    assert found["$schema"].endswith("/sarif-schema-2.1.0.json")
    (sarif,) = found["runs"]
    driver = sarif["tool"]["driver"]
    assert driver["name"] == "hocket"
    assert [rule["id"] for rule in driver["rules"]] == ["no-promise", "invalid-argument", "race"]
    assert sarif["invocations"] == [{"executionSuccessful": True, "exitCode": 2, "toolConfigurationNotifications": []}]
    assert [result["level"] for result in sarif["results"]] == ["warning", "error", "error", "error"]
    for result in sarif["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        (location,) = result["locations"]  # GitHub refuses a file of results without one
        for place in (location, *result["relatedLocations"]):
            physical = place["physicalLocation"]
            assert re.fullmatch(r"[\w.%~/:@!$&'()*+,;=-]+", physical["artifactLocation"]["uri"], re.ASCII)
            assert physical["region"]["startLine"] >= 1
    placed = sarif["results"][1]["locations"][0]["physicalLocation"]
    assert placed["artifactLocation"]["uri"] == "a%3A%20b%2C%25.py"
    assert placed["region"] == {
        "startLine": 3,
        "startColumn": 5,
        "endColumn": 8,
        "snippet": {"text": r"    boo\x1b[31m"},
    }
    notes = json.loads(as_sarif(Report(error=UsageError("no"))))["runs"][0]["invocations"][0]
    assert (notes["executionSuccessful"], notes["exitCode"]) == (False, 2)
    assert notes["toolConfigurationNotifications"][0]["message"]["text"] == "no"


def test_junit() -> None:
    text = as_junit(hostile_report())
    suites = ElementTree.fromstring(text)
    (suite,) = suites
    for counted in (suites, suite):
        assert [counted.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["5", "2", "1", "0"]
        assert float(counted.get("time") or "") == 0.5
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "good.xml",
        f"{HARMLESS}.xml",
        "a.py:f ranks=3",
        "schedule.txt",
        "-",
    ]
    assert [[child.tag for child in case] for case in cases] == [
        [],
        ["system-out"],
        ["error"],
        ["failure"],
        ["failure"],
    ]
    (error,) = cases[2]
    assert error.get("type") == "invalid-argument"
    assert error.get("message") == rf"100%,\r\n: {HARMLESS}"
    assert r"3 |     boo\x1b[31m" in (error.text or "")
    (usage,) = ElementTree.fromstring(as_junit(Report(error=UsageError("no"))))
    assert (usage.get("errors"), usage[0][0].get("message")) == ("1", "no")


@pytest.mark.parametrize("form", [form for form in Format if form in MACHINES])
def test_a_mistake_on_the_command_line_has_the_format_too(form: Format) -> None:
    for words in (["--no-such-option"], [], ["nothing"], ["a.xml", "--target", "nccl"]):
        done = run(*words, "--format", form.value)
        assert done.exit_code == 2
        assert done.stderr == ""
        if form in (Format.json, Format.sarif):
            json.loads(done.stdout)
        elif form is Format.junit:
            ElementTree.fromstring(done.stdout)
        else:
            assert done.stdout.startswith("::error title=usage::")


# Hostile names ----------------------------------------------------------------------------------------------------


def assert_harmless(text: str) -> None:
    assert text.replace("\n", "").isprintable(), [c for c in text if not c.isprintable()]


def test_nothing_in_a_file_or_its_name_acts_on_the_terminal(folder: Path) -> None:
    name = HOSTILE.replace("\ud800", "") + "[/x].xml"
    bad = '<algo name="&#10;x" proto="Simple" coll="\x85\u202e[/x]" nchannels="1" nchunksperloop="2" ngpus="2"'
    (folder / name).parent.mkdir()
    (folder / name).write_text(REFUTED)
    (folder / "coll.xml").write_text(GOOD.partition("\n")[2].replace('coll="allreduce"', 'coll="\u202e[/x]&#9;"'))
    (folder / "cut.xml").write_text(bad)
    (folder / "programs.py").write_text('def f():\n    raise ValueError("\\x1b[31m\\x07\\u202e[/x]")\n')
    schedule = TEXT.replace('"ring_all_reduce"', r'"\u001b[31m\u0007\n\u202e[/x]"').replace(
        "ring.py", "\x1b[31m\x07[/x].py"
    )
    (folder / "names.txt").write_text(schedule)
    wrong = schedule.replace("rrcs <2.0 in[0] ->", "rrcs <2.0 in[1] ->")
    (folder / "wrong.txt").write_text(wrong)
    for form in Format:
        for words in ([name, "coll.xml", "cut.xml", "wrong.txt"], ["programs.py:f"], ["names.txt"], ["wrong.txt"]):
            done = run(*words, "--format", form.value)
            assert_harmless(done.output)
    report = judge([name, "coll.xml", "cut.xml", "wrong.txt"], ANYTHING, [])
    assert_harmless(terminal(report, 80))
    assert_harmless(CliRunner().invoke(app, ["show", "names.txt"]).output)


def test_names_in_a_picture_are_text(folder: Path) -> None:
    with Program(Broadcast(1), name=f"{HOSTILE}$\\frac$") as p:
        chunk(0, "in", 0).copy(0, "out", 0)
    for number, stage in enumerate((p.compile(), p.chunk_dag)):
        path = folder / f"{number}.svg"
        draw(stage, path)
        texts = [
            "".join(element.itertext()) for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
        ]
        assert f"{HARMLESS}$\\frac$" in texts
        assert_harmless("".join(texts))


def test_labels_of_code_and_texts_say_where_in_one_form(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "bad.xml").write_text(REFUTED)
    (folder / "sub" / "programs.py").write_text(PROGRAMS)
    (folder / "sub" / "cut.txt").write_text(TEXT[:200])
    assert " --> sub/bad.xml:7:7" in run("sub/bad.xml").stdout
    assert " --> sub/programs.py:7:13" in run("sub/programs.py:partial", "ranks=3").stdout
    assert re.search(r" --> sub/cut.txt:\d+:\d+\n", run(str(folder / "sub" / "cut.txt")).stdout)
    outside = "/usr/lib/a.py"
    label = Label(Location(outside, 1, 0, 1, "x"), "here", True)
    found: Mapping[str, Any] = json.loads(
        as_json(Report((Found("x", None, warnings=(Diagnostic("c", "m", (label,)),)),)))
    )
    assert found["results"][0]["warnings"][0]["file"] == outside
