"""Each bad program and each bad schedule in ``errors/`` is refused with its golden message."""

from __future__ import annotations

import linecache
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import errors, prove
from hocket.errors import Diagnostic, HocketError, InvalidArgument, Label, Location, caller, render
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
def test_golden_message(path: Path, golden: Callable[[Path, str], None]) -> None:
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


def show(path: Path, source: str, *labels: tuple[int, int, int | None, str, bool]) -> str:
    path.write_text(source)
    linecache.checkcache(str(path))
    places = tuple(Label(Location(str(path), *at), text, main) for *at, text, main in labels)  # type: ignore[arg-type]
    return render(Diagnostic("code", "message", places))


def test_columns_count_bytes_but_marks_count_characters(tmp_path: Path) -> None:
    source = "é = f(ü); 合.copy(1)\n"
    before = len("é = f(ü); ".encode())
    text = show(tmp_path / "a.py", source, (1, before, before + len("合.copy(1)".encode()), "here", True))
    line, mark = text.splitlines()[-2:]
    assert line == "1 | é = f(ü); 合.copy(1)"
    # The character 合 is two columns wide on a terminal.
    assert mark == "  |           " + "^" * (len("合.copy(1)") + 1) + " here"


def test_tabs_are_kept_under_tabs(tmp_path: Path) -> None:
    text = show(tmp_path / "a.py", "\tc.copy(1)\n", (1, 1, 10, "here", True))
    assert text.splitlines()[-1] == "  | \t^^^^^^^^^ here"


def test_a_call_over_several_lines_is_marked_to_the_end_of_its_first(tmp_path: Path) -> None:
    text = show(tmp_path / "a.py", "c.copy(\n    1\n)\n", (1, 0, None, "here", True))
    assert text.splitlines()[-2:] == ["1 | c.copy(", "  | ^^^^^^^ here"]


def test_labels_come_in_the_order_of_lines_and_the_head_names_the_primary_one(tmp_path: Path) -> None:
    source = "".join(f"line{n}\n" for n in range(1, 13))
    text = show(tmp_path / "a.py", source, (12, 0, 6, "third", True), (3, 0, 5, "first", False), (9, 0, 5, "x", False))
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


def test_places_in_two_files_are_shown_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("first\n")
    two.write_text("\nsecond\n")
    labels = (Label(Location(str(one), 1, 0, 5), "a"), Label(Location(str(two), 2, 0, 6), "b", True))
    assert render(Diagnostic("code", "message", labels)).splitlines() == [
        "error[code]: message",
        " --> two.py:2:1",
        "2 | second",
        "  | ^^^^^^ b",
        " --> one.py:1:1",
        "1 | first",
        "  | ----- a",
    ]


def test_a_line_that_cannot_be_read_has_its_text_beside_it(tmp_path: Path) -> None:
    labels = (Label(Location(str(tmp_path / "gone.py"), 7, 4, 9), "here", True),)
    assert render(Diagnostic("code", "message", labels)).splitlines()[1:] == [" --> gone.py:7:5", "7 : here"]


def test_a_bare_file_name_is_not_looked_up_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("something else\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = render(Diagnostic("code", "message", (Label(Location("elsewhere.py", 1), "here", True),)))
    assert "something else" not in text


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
