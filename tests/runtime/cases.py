"""Runs on processes against the reference, bit by bit: many schedules and sizes for one start of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket import Communicator, Schedule
from hocket.ir.geometry import chunk_length
from hocket.semantics import reference

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Run:
    """One call. ``n``: elements of a unit; ``form``: "own" lets the call find its output, "apart" gives one."""

    schedule: Schedule
    n: int
    dtype: str = "float32"
    op: str = "sum"
    tile: int | None = None
    form: str = "own"


def data(rank: int, size: int, dtype: str) -> Array:
    """The same bits for the same rank, wherever they are made. With NaN and both infinities where they exist."""
    rng = np.random.default_rng(rank)
    if dtype.startswith("int"):
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, size, dtype=dtype, endpoint=True)
    values = rng.standard_normal(size).astype(dtype)
    if size > 20:
        values[7 * rank % size], values[11 * rank % size] = np.inf, np.nan
    return values


def check(comm: Communicator, runs: Sequence[Run]) -> int:
    """Make the calls; each rank compares its output with the reference. Returns their number."""
    for number, run in enumerate(runs):
        collective = run.schedule.collective
        inputs = [data(r, collective.input_blocks(r) * run.n, run.dtype) for r in range(comm.size)]
        with np.errstate(all="ignore"):
            expected = reference(run.schedule, inputs, run.op)[comm.rank]
        x = inputs[comm.rank].copy() if collective.input_blocks(comm.rank) else None
        blocks = collective.output_blocks(comm.rank)
        out = None
        if blocks and (run.form == "apart" or x is None):
            out = np.zeros(blocks * run.n, run.dtype)
        found = comm.run(run.schedule, x, out, op=run.op, tile=run.tile)
        what = (number, run.schedule.name, run.n, run.dtype, run.op, run.tile, run.form)
        assert (found is None) == (not blocks), what
        if out is not None:
            assert found is out, what
        if x is not None and found is not x:
            assert x.tobytes() == inputs[comm.rank].tobytes(), ("x was written", what)
        if found is not None:
            same_bits(expected, found.reshape(-1), promised(run, comm.rank), what)
    return len(runs)


def promised(run: Run, rank: int) -> NDArray[np.bool_]:
    """Which elements of the output the collective says anything about."""
    collective, itemsize = run.schedule.collective, np.dtype(run.dtype).itemsize
    q = chunk_length(collective.chunks, run.n, itemsize)
    lengths = [
        min((i + 1) * q, run.n) - min(i * q, run.n)
        for i in (collective.position(index) for index in range(collective.outputs(rank)))
    ]
    said = [collective.required(rank, index) is not None for index in range(collective.outputs(rank))]
    return np.repeat(said, lengths)


def same_bits(expected: Array, found: Array, promised: NDArray[np.bool_], what: object) -> None:
    """NaNs may differ in payload: which one of two a sum keeps is up to the processor."""
    assert expected.shape == found.shape == promised.shape, what
    same = expected.view(f"u{expected.itemsize}") == found.view(f"u{found.itemsize}")
    wrong = np.flatnonzero(~(same | (np.isnan(expected) & np.isnan(found)) | ~promised))
    assert not wrong.size, (what, wrong[0], expected[wrong[0]], found[wrong[0]])
