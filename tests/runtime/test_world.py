"""What ranks of a store decide that share no memory, from what each says of MPI."""

from __future__ import annotations

import sys

import msgspec
import pytest

from hocket.errors import CannotShare
from hocket.runtime.world import _decided, _missing, _Word

APART, ADVICE = "rank 0 and rank 1 are on different machines", "do this"
UNASKED = "has no HOCKET_TORCH_MPI=1, which lets hocket begin MPI"
NO_MPI = _Word(why="was not started by MPI")


def decided(*words: _Word) -> dict[str, object]:
    return _decided(APART, ADVICE, [msgspec.to_builtins(word) for word in words])


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ([_Word(1, 2), _Word(0, 2)], True),
        ([_Word(1, 2, job="a"), _Word(0, 2, job="a")], False),
        ([_Word(5, 9, node="x", job="a"), _Word(2, 9, node="y", job="a")], False),
    ],
    ids=["all", "all again", "some"],
)
def test_ranks_that_go_over_mpi(words: list[_Word], first: bool) -> None:
    found = decided(*words)
    assert found["first"] is first
    assert found["ranks"] == [word.rank for word in words]
    assert found["placed"] == [word.node for word in words]
    assert found["token"] != decided(*words)["token"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([_Word(0, 2), _Word(1, 2, "has no mpi4py")], "rank 1 has no mpi4py"),
        ([_Word(0, 2), NO_MPI], "rank 1 was not started by MPI"),
        ([_Word(why=UNASKED), _Word(1, 2)], f"rank 0 {UNASKED}"),
        ([_Word(why=UNASKED), NO_MPI], "rank 1 was not started by MPI"),
        ([_Word(0, 1), _Word(0, 1)], "MPI has started rank 0 as one of 1"),
        ([_Word(0, 2), _Word(0, 2)], "ranks 0 and 1 are both rank 0 of MPI's"),
        ([_Word(0, 9), _Word(1, 9)], "a group of all ranks of MPI's has to do so first"),
        ([_Word(0, 9, job="a"), _Word(1, 9, job="b")], "a group of all ranks of MPI's has to do so first"),
        ([_Word(0, 9, job="a"), _Word(1, 9)], "a group of all ranks of MPI's has to do so first"),
    ],
    ids=[
        "one lacks it",
        "one is not of it",
        "unasked",
        "asked in vain",
        "another launcher's",
        "twice",
        "too early",
        "two jobs",
        "one too early",
    ],
)
def test_ranks_that_do_not(words: list[_Word], why: str) -> None:
    with pytest.raises(CannotShare) as error:
        decided(*words)
    assert error.value.reason == f"{APART}, and cannot go over MPI: {why}"
    assert error.value.help == ADVICE


def test_ranks_without_mpi() -> None:
    with pytest.raises(CannotShare) as error:
        decided(NO_MPI, NO_MPI)
    assert (error.value.reason, error.value.help) == (APART, ADVICE)


def test_no_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert _missing() == "has no mpi4py"
