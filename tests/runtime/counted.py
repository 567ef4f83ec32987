"""Calls with ``counts=`` on processes: against the reference, NumPy and even calls; and ones that disagree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket import Communicator, Schedule
from hocket.errors import CallMismatch
from hocket.semantics import reference
from hocket.tuning import default_program, is_small
from tests.runtime.cases import UFUNCS, bits, data, kind_of, same

Array = NDArray[np.generic]

ROOTED = ("gather", "scatter")
COUNTED = ("all_gather", "reduce_scatter", "all_to_all", *ROOTED)
"""The collectives that take counts."""


@dataclass(frozen=True)
class Case:
    """A call. ``counts``: a row of them, or for all_to_all one for each rank, what it sends.

    ``odd``: a rank that counts otherwise, for each (place, more) of ``changes``; then all must raise. ``uncounted``:
    ranks of an all_to_all that give no counts; their blocks are of one size.
    """

    name: str
    counts: tuple[tuple[int, ...], ...]
    row: tuple[int, ...]
    dtype: str
    op: str
    root: int
    form: str
    background: bool
    odd: int | None = None
    changes: tuple[tuple[int, int], ...] = ()
    uncounted: tuple[int, ...] = ()


@cache
def schedule_of(name: str, ranks: int, root: int, small: bool) -> Schedule:
    return default_program(name, ranks, root, small=small).compile()


def counts_of(case: Case, rank: int) -> Any:
    """What a rank passes as counts."""
    return (case.counts[rank], np.array(case.counts)[:, rank]) if case.name == "all_to_all" else list(case.counts[0])


def keywords(case: Case, rank: int) -> dict[str, Any]:
    """What a rank passes beside its arrays."""
    found: dict[str, Any] = {}
    if rank not in case.uncounted:
        found["counts"] = counts_of(case, rank)
    if case.name in ROOTED:
        found["root"] = case.root
    if case.name == "reduce_scatter":
        found["op"] = case.op
    return found


def inputs(case: Case, ranks: int) -> tuple[list[Array], list[list[int]]]:
    """The input of each rank, and the rows of its units."""
    units = [list(row) for row in case.counts] if case.name == "all_to_all" else [list(case.counts[0])] * ranks
    if case.name in ("all_gather", "gather"):
        units = [[n] for n in case.counts[0]]
    if case.name == "scatter":
        units = [row if r == case.root else [] for r, row in enumerate(units)]
    return [
        data(r, sum(rows) * int(np.prod(case.row)), case.dtype).reshape(sum(rows), *case.row)
        for r, rows in enumerate(units)
    ], units


def from_numpy(case: Case, xs: list[Array], rank: int) -> Array | None:
    """The result on a rank, where NumPy gives the same bits."""
    counts = case.counts[0]
    match case.name:
        case "all_gather" | "gather":
            return np.concatenate(xs)
        case "scatter":
            return np.split(xs[case.root], np.cumsum(counts)[:-1])[rank]
        case "all_to_all":
            return np.concatenate(
                [np.split(x, np.cumsum(row)[:-1])[rank] for x, row in zip(xs, case.counts, strict=True)]
            )
        case _ if xs[0].dtype.kind in "iu":
            total = reduce(UFUNCS[case.op], xs)
            return np.asarray(np.split(total, np.cumsum(counts)[:-1])[rank])
    return None


def call(comm: Communicator, case: Case) -> None:
    """Make a call in the form it says, and compare with the reference to the bit, with NumPy, with an even call."""
    rank, ranks = comm.rank, comm.size
    xs, units = inputs(case, ranks)
    writes = case.name != "gather" or rank == case.root
    reads = case.name != "scatter" or rank == case.root
    row = int(np.prod(case.row))
    size = sum(case.counts[0]) * row * kind_of(case.dtype).itemsize  # all to all has one program
    expected = None
    if writes:
        with np.errstate(all="ignore"):
            flat = reference(
                schedule_of(case.name, ranks, case.root, is_small(case.name, ranks, size)),
                [x.reshape(-1) for x in xs],
                case.op,
                units=[[n * row for n in rows] for rows in units],
            )[rank]
        rows = sum(case.counts[0]) if "gather" in case.name else case.counts[0][rank]
        if case.name == "all_to_all":
            rows = sum(sent[rank] for sent in case.counts)
        expected = flat.reshape(rows, *case.row)
        independent = from_numpy(case, xs, rank)
        assert independent is None or same(independent.reshape(-1), flat).all()

    begin = sum(case.counts[0][:rank])
    own = slice(begin, begin + case.counts[0][rank])
    x: Array | None = xs[rank].copy()
    out: Array | None = None
    if case.form == "apart" or (case.form == "in place" and case.name == "all_to_all"):
        out = np.zeros(expected.shape, kind_of(case.dtype)) if expected is not None else None
        x.flags.writeable = False
    elif case.form == "in place" and reads and writes:
        if case.name in ("all_gather", "gather"):
            out = np.zeros((sum(case.counts[0]), *case.row), kind_of(case.dtype))
            out[own] = x
            x = out[own]
        else:
            out = x[own]
    if not reads:  # says what to allocate, or is not needed
        x = None if out is not None else np.zeros((sum(case.counts[0]), *case.row), kind_of(case.dtype))
    collective = getattr(comm, case.name)
    if case.background:
        found = collective(x, out, async_=True, **keywords(case, rank)).wait()
    else:
        found = collective(x, out, **keywords(case, rank))
    assert (found is None) == (not writes)
    if expected is not None:
        assert found.shape == expected.shape
        assert out is None or found is out
        assert same(found.reshape(-1), expected.reshape(-1)).all(), (found, expected)
    if reads and case.form != "in place" and not (case.form == "own" and rank in case.uncounted):
        assert x is not None
        assert bits(x) == bits(xs[rank]), "x was written"
    if len({n for row in case.counts for n in row}) == 1:
        again = {name: value for name, value in keywords(case, rank).items() if name != "counts"}
        fresh = xs[rank].copy() if reads else np.zeros((sum(case.counts[0]), *case.row), kind_of(case.dtype))
        even = collective(fresh, None if expected is None else np.zeros_like(expected), **again)
        assert expected is None or bits(even) == bits(found)


def disagree(comm: Communicator, case: Case) -> None:
    """A call that one rank makes with other counts: CallMismatch for all, nothing written, and on it goes."""
    rank, ranks = comm.rank, comm.size
    given, counts = keywords(case, rank), counts_of(case, rank)
    x = inputs(case, ranks)[0][rank]
    if rank == case.odd:
        changed = [list(row) for row in (counts if case.name == "all_to_all" else [counts])]
        for place, more in case.changes:
            changed[0][place] += more
        given["counts"] = counts = changed if case.name == "all_to_all" else changed[0]
        cut = case.name in ("reduce_scatter", "scatter", "all_to_all")
        x = np.ones((sum(changed[0]) if cut else changed[0][rank], *case.row), case.dtype)
    if case.name == "all_to_all":
        rows = int(sum(counts[1]))
    else:
        rows = sum(counts) if case.name in ("all_gather", "gather") else counts[rank]
    out = np.full((rows, *case.row), 77, case.dtype)
    before = x.tobytes()
    try:
        getattr(comm, case.name)(x if case.name != "scatter" or rank == case.root else None, out, **given)
    except CallMismatch as mismatch:
        error = mismatch
    else:
        raise AssertionError("no error")
    # Ranks that think of different sizes may also have chosen different programs.
    assert error.differs in (("counts",), ("schedule", "counts"))
    if case.name == "all_to_all":
        assert case.odd is not None
        place, more = min(case.changes)
        sent, row = case.counts[case.odd][place], int(np.prod(case.row))
        assert error.transfer == (case.odd, place, (sent + more) * row, sent * row)
    assert error.rank == (None if case.name == "all_to_all" else case.odd or 1)
    assert (out == 77).all()
    assert x.tobytes() == before
    assert comm.all_gather(np.array([rank])).tolist() == list(range(ranks))
