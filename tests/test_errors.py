"""Each bad program and each bad schedule in ``errors/`` is refused with its golden message."""

from __future__ import annotations

import linecache
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import errors, prove
from hocket.errors import (
    Diagnostic,
    HocketError,
    InvalidArgument,
    Label,
    Location,
    Race,
    Site,
    caller,
    printable,
    render,
)
from hocket.ir.text import parse_schedule

HERE = Path(__file__).parent / "errors"
PROGRAMS = sorted(HERE.glob("*.py"))
SCHEDULES = sorted(HERE.glob("*.txt"))
CODES = {
    "channel-conflict",
    "count-mismatch",
    "deadlock",
    "invalid-argument",
    "invalid-schedule",
    "no-link",
    "out-of-range",
    "outside-program",
    "overlap",
    "parse",
    "postcondition",
    "race",
    "stale-chunk",
    "uninitialized-chunk",
    "unmatched-transfer",
}


def refuse(path: Path) -> HocketError:
    """The error of a bad program or of a bad schedule."""
    text = path.read_text()
    try:
        if path.suffix == ".py":
            exec(compile(text, str(path), "exec"), {"__name__": path.stem})
        else:
            prove(parse_schedule(text, path.name))
    except HocketError as error:
        return error
    pytest.fail(f"{path.name} was accepted")


def code_of(path: Path) -> str:
    """The files of an error begin with its code."""
    return next(code for code in CODES if path.stem.startswith(code.replace("-", "_")))


@pytest.mark.parametrize("path", PROGRAMS + SCHEDULES, ids=lambda path: path.name)
def test_golden_message(path: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    error = refuse(path)
    assert error.code == code_of(path)
    assert str(HERE) not in str(error)
    golden(path.with_suffix(".err"), str(error))


@pytest.mark.parametrize("path", PROGRAMS + SCHEDULES, ids=lambda path: path.name)
def test_error_survives_pickling(path: Path) -> None:
    error = refuse(path)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.diagnostic() is not error.diagnostic()


def test_every_code_has_an_example_and_every_message_a_source() -> None:
    assert {code_of(path) for path in PROGRAMS + SCHEDULES} == CODES
    assert {path.stem for path in HERE.glob("*.err")} == {path.stem for path in PROGRAMS + SCHEDULES}


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("StaleChunk", ValueError),
        ("UninitializedChunk", ValueError),
        ("OutOfRange", IndexError),
        ("OutOfRange", ValueError),
        ("CountMismatch", ValueError),
        ("Overlap", ValueError),
        ("OutsideProgram", RuntimeError),
        ("ChannelConflict", ValueError),
        ("PostconditionFailed", ValueError),
        ("Deadlock", ValueError),
        ("Race", ValueError),
        ("ParseError", ValueError),
        ("InvalidArgument", ValueError),
    ],
)
def test_errors_are_also_what_python_would_raise(name: str, base: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), base)
    assert issubclass(getattr(errors, name), HocketError)


def test_codes_are_unique() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, HocketError)]
    codes = [c.code for c in classes if c is not HocketError]
    assert len(set(codes)) == len(codes)


# The renderer -----------------------------------------------------------------------------------------------


def show(source: str, *labels: tuple[int, int, int | None, str, bool]) -> str:
    lines = source.splitlines()
    places = (Location("a.py", line, begin, end, lines[line - 1]) for line, begin, end, _, _ in labels)
    named = zip(places, labels, strict=True)
    return render(Diagnostic("code", "message", tuple(Label(at, text, main) for at, (*_, text, main) in named)))


def test_columns_count_bytes_but_marks_count_characters() -> None:
    source = "é = f(ü); 合.copy(1)\n"
    before = len("é = f(ü); ".encode())
    text = show(source, (1, before, before + len("合.copy(1)".encode()), "here", True))
    line, mark = text.splitlines()[-2:]
    assert line == "1 | é = f(ü); 合.copy(1)"
    # The character 合 is two columns wide on a terminal.
    assert mark == "  |           " + "^" * (len("合.copy(1)") + 1) + " here"


def test_tabs_are_kept_under_tabs() -> None:
    text = show("\tc.copy(1)\n", (1, 1, 10, "here", True))
    assert text.splitlines()[-1] == "  | \t^^^^^^^^^ here"


def test_a_call_over_several_lines_is_marked_to_the_end_of_its_first() -> None:
    text = show("c.copy(\n    1\n)\n", (1, 0, None, "here", True))
    assert text.splitlines()[-2:] == ["1 | c.copy(", "  | ^^^^^^^ here"]


def test_labels_come_in_the_order_of_lines_and_the_head_names_the_primary_one() -> None:
    source = "".join(f"line{n}\n" for n in range(1, 13))
    text = show(source, (12, 0, 6, "third", True), (3, 0, 5, "first", False), (9, 0, 5, "x", False))
    assert text.splitlines() == [
        "error[code]: message",
        "  --> a.py:12:1",
        " 3 | line3",
        "   | ----- first",
        " 9 | line9",
        "   | ----- x",
        "12 | line12",
        "   | ^^^^^^ third",
    ]


def test_places_in_two_files_are_shown_apart() -> None:
    one, two = Location("one.py", 1, 0, 5, "first"), Location("two.py", 2, 0, 6, "second")
    assert render(Diagnostic("code", "message", (Label(one, "a"), Label(two, "b", True)))).splitlines() == [
        "error[code]: message",
        " --> two.py:2:1",
        "2 | second",
        "  | ^^^^^^ b",
        " --> one.py:1:1",
        "1 | first",
        "  | ----- a",
    ]


def test_a_line_that_was_not_read_has_its_text_beside_it() -> None:
    labels = (Label(Location("gone.py", 7, 4, 9), "here", True),)
    assert render(Diagnostic("code", "message", labels)).splitlines()[1:] == [" --> gone.py:7:5", "7 : here"]


def site(file: str) -> Site:
    """A place in code that claims to come from a file."""
    scope: dict[str, Callable[[], Site]] = {}
    exec(compile("def here(caller):\n    return caller()\n", file, "exec"), scope)
    return scope["here"](caller)  # type: ignore[call-arg]


def test_a_place_is_a_path_from_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "a.py").write_text("one\n    return two\n")
    monkeypatch.chdir(tmp_path)
    assert str(site(str(tmp_path / "a.py"))) == "a.py:2:12"
    assert str(Location("./folder/../a.py", 1)) == "a.py:1:1"
    monkeypatch.chdir(folder)
    assert str(site(str(tmp_path / "a.py"))) == f"{tmp_path}/a.py:2:12"
    assert str(Location("<stdin>", 1)) == "<stdin>:1:1"
    assert str(Location("a.py", 1, 3, 4, "é b")) == "a.py:1:3"  # columns count bytes, what is shown characters


def test_code_with_a_bare_file_name_is_not_looked_up_in_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.py").write_text("one\nsomething else\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert site("elsewhere.py").resolve().source is None
    monkeypatch.chdir(tmp_path)
    assert site("elsewhere.py").resolve().source == "something else"


# What a text says is only text ------------------------------------------------------------------------------


RACE = """schedule "broadcast"
collective broadcast(ranks=2, chunks=1, root=0)
protocol auto
slots 2
rank 0 scratch 0
  block 0 >1.0
    0: send in[0] -> >1.0
  block 1
    0: copy in[0] -> out[0]
rank 1 scratch 1
  block 0 <0.0
    0: recv <0.0 -> sc[0]  # FILE:1:1
  block 1
    0: copy sc[0] -> out[0]  # FILE:2:1
"""


@pytest.mark.parametrize("file", ["/proc/self/environ", "/dev/zero", "fifo", "secret.txt", "../secret.txt"])
def test_a_place_that_a_text_names_is_not_opened(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    (tmp_path / "secret.txt").write_text("a secret\nanother\n")
    with pytest.raises(Race) as caught:
        prove(parse_schedule(RACE.replace("FILE", file)))
    text = str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    assert f"{os.path.normpath(tmp_path / file).removeprefix(f'{tmp_path}/')}:1:1" in text
    assert "secret" not in text.replace("secret.txt", "")
    assert "PATH=" not in text


def test_lines_of_code_that_was_run_survive_pickling_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gone.py"
    path.write_text("one\ntwo\n")
    at = pickle.loads(pickle.dumps(site(str(path))))
    path.unlink()
    linecache.checkcache()
    assert (at.line, at.source) == (2, "two")


HOSTILE = "a\x1b[31mb\x07c\nd\u202ee\u2066f\x9b1mg\ud800h"
HARMLESS = r"a\x1b[31mb\x07c\nd\u202ee\u2066f\x9b1mg\ud800h"


def test_nothing_in_an_error_acts_on_a_terminal() -> None:
    assert printable(HOSTILE) == HARMLESS
    assert printable("ä 合 e\u0301") == "ä 合 e\u0301"
    at = Location(f"{HOSTILE}.py", 1, 2, 3, f"x\t{HOSTILE}")
    text = render(Diagnostic("code", HOSTILE, (Label(at, HOSTILE, True),), (f"one\n{HOSTILE}",), HOSTILE))
    assert text.replace("\n", "").replace("\t", "").isprintable()
    assert text.splitlines()[0] == f"error[code]: {HARMLESS}"
    assert text.count(HARMLESS) == 4


def test_caller_is_the_line_of_the_user_even_behind_generated_code() -> None:
    from hocket import Broadcast

    here = caller().resolve().line
    with pytest.raises(InvalidArgument) as caught:
        Broadcast(2, root=2)
    assert caught.value.where is not None
    assert caught.value.where.resolve().line == here + 2
    assert caught.value.where.resolve().file == __file__


def test_a_library_algorithm_counts_as_the_users_code() -> None:
    from hocket.algorithms import ring

    node = ring.all_reduce(2).chunk_dag.nodes[2]
    assert node.where is not None
    assert node.where.resolve().file == ring.__file__
