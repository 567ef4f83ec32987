"""Runs on processes against the reference, bit by bit: many schedules and sizes for one start of the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hocket import Communicator, Schedule, _native
from hocket.collectives import members
from hocket.ir.geometry import chunk_length
from hocket.runtime.operands import dtype_of
from hocket.semantics import reference

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Run:
    """One call. ``n``: elements of a unit; ``form``: "own" lets the call find its output, "apart" gives one, "lent" has
    both in the arena, in place where the schedule is."""

    schedule: Schedule
    n: int
    dtype: str = "float32"
    op: str = "sum"
    tile: int | None = None
    form: str = "own"


FLOATS = [np.dtype(name) for name in ("float16", ml_dtypes.bfloat16, "float32", "float64")]

PAIRS = tuple((dtype, op) for dtype, ops in _native.OPERATORS_OF.items() for op in ops)
"""Every type with every operator it has."""


def kind_of(name: str) -> np.dtype[np.generic]:
    """The type of a name: of a pair too, of which NumPy knows no name, and of what is only moved."""
    return dtype_of(name) if name in _native.TYPES else np.dtype(name)


def bits(array: Array) -> bytes:
    """What it holds. What is between the fields of pairs NumPy does not copy."""
    parts = [array[name] for name in array.dtype.names or ()] or [array]
    return b"".join(part.tobytes() for part in parts)


def data(rank: int, size: int, name: str) -> Array:
    """The same bits for the same rank, wherever they are made: random ones, and all that is special put in."""
    rng, dtype = np.random.default_rng(rank), kind_of(name)
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    values: Array = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).copy()
    if dtype.names == ("value", "index"):  # values that are equal to those of others
        values["value"] = data(rank, size, dtype["value"].name)
        values["value"][::3] = rng.integers(-1, 2, len(values[::3]))
        values["index"] = 8 * rng.integers(0, 5, size) + rank
        return values
    if dtype.kind in "iu":
        values[::3] = rng.integers(0, 2, len(values[::3]))
    parts = values.view(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else values
    if parts.dtype in FLOATS:
        with np.errstate(all="ignore"):
            tiny = (np.array(1e-308 if parts.itemsize == 8 else 1e-38) / 3).astype(parts.dtype)
        parts[::2] = rng.standard_normal(len(parts)).astype(parts.dtype)[::2]
        for offset, special in enumerate((np.inf, -np.inf, np.nan, 0.0, -0.0, tiny, -tiny)):
            parts[(offset + 7 * rank) % 29 :: 29] = special
            parts[(3 * offset + 5 * rank) % 31 :: 31] = special
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
        if run.form == "lent":
            x, out = lent(comm, run, x)
        elif blocks and (run.form == "apart" or x is None):
            out = np.zeros(blocks * run.n, kind_of(run.dtype))
        found = comm.run(run.schedule, x, out, op=run.op, tile=run.tile)
        what = (number, run.schedule.name, run.n, run.dtype, run.op, run.tile, run.form)
        assert (found is None) == (not blocks), what
        if out is not None:
            assert found is out, what
        if x is not None and (found is None or not np.may_share_memory(found, x)):
            assert bits(x) == bits(inputs[comm.rank]), ("x was written", what)
        if found is not None:
            found = found.reshape(-1)
            assert expected.shape == found.shape, what
            wrong = np.flatnonzero(~(same(found, expected) | ~promised(run, comm.rank)))
            assert not wrong.size, (what, wrong[0], expected[wrong[0]], found[wrong[0]])
    return len(runs)


def lent(comm: Communicator, run: Run, x: Array | None) -> tuple[Array | None, Array | None]:
    """The input and the output of a call, in the arena."""
    collective, rank = run.schedule.collective, comm.rank
    alias = collective.alias(rank)
    lengths = {"in": collective.input_blocks(rank) * run.n, "out": collective.output_blocks(rank) * run.n}
    buffers = {name: comm.empty(length, kind_of(run.dtype)) for name, length in lengths.items()}
    if alias is not None:
        start = alias.offset // collective.chunks * run.n
        buffers[alias.buffer] = buffers[alias.target][start : start + lengths[alias.buffer]]
    buffers["out"][:] = 0
    if x is not None:
        buffers["in"][:] = x
    source = buffers["in"] if collective.input_blocks(rank) else None
    return source, buffers["out"] if collective.output_blocks(rank) else None


def promised(run: Run, rank: int) -> NDArray[np.bool_]:
    """Which elements of the output the collective says anything about."""
    collective, itemsize = run.schedule.collective, kind_of(run.dtype).itemsize
    q = chunk_length(collective.chunks, run.n, itemsize)
    lengths = [
        min((i + 1) * q, run.n) - min(i * q, run.n)
        for i in (collective.position(index) for index in range(collective.outputs(rank)))
    ]
    said = [collective.required(rank, index) is not None for index in range(collective.outputs(rank))]
    return np.repeat(said, lengths)


def same(found: Array, expected: Array) -> NDArray[np.bool_]:
    """Which elements are equal in every bit, or both NaN: which NaN comes of two is up to the processor."""
    assert found.dtype == expected.dtype
    if found.dtype.names == ("value", "index"):
        equal = [same(found[name].copy(), expected[name].copy()) for name in found.dtype.names]
        return np.asarray(equal[0] & equal[1])
    if found.dtype.kind == "c":
        parts = (array.view(f"f{array.itemsize // 2}") for array in (found, expected))
        return same(*parts).reshape(-1, 2).all(axis=1)
    if found.itemsize in (1, 2, 4, 8):
        equal: NDArray[np.bool_] = np.equal(*(array.view(f"u{array.itemsize}") for array in (found, expected)))
    else:
        raw = (array.view(np.uint8).reshape(len(array), array.itemsize) for array in (found, expected))
        equal = np.equal(*raw).all(axis=1)
    if found.dtype not in FLOATS or equal.all():
        return equal
    with np.errstate(all="ignore"):
        return equal | ((found != found) & (expected != expected))


def _first(least: bool) -> Callable[[Array, Array], Array]:
    """Of two arrays of pairs, by the places of their values in the sorted list of all; NaN is before all numbers."""

    def pick(a: Array, b: Array) -> Array:
        values = np.concatenate([a["value"], b["value"]])
        places = np.unique(values, return_inverse=True)[1] * (1 if least else -1)
        places[values != values] = -len(values)
        x, y = np.split(places, 2)
        return np.where((x < y) | ((x == y) & (a["index"] < b["index"])), a, b)

    return pick


UFUNCS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": lambda a, b: ((a != 0) & (b != 0)).astype(a.dtype),
    "lor": lambda a, b: ((a | b) != 0).astype(a.dtype),
    "lxor": lambda a, b: ((a != 0) != (b != 0)).astype(a.dtype),
    "minloc": _first(True),
    "maxloc": _first(False),
}


def count_unlike_numpy(schedule: Schedule, op: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
    """How many elements NumPy contradicts, block by block of the unrefined collective.

    What is only moved, integers, min and max must be equal. A sum or product may differ from that in float64 or
    complex128 by the rounding of each step, p * eps * sum|x|; where it overflows, or a product comes near to that or to
    zero, no bound holds and nothing is said.
    """
    collective, wrong = schedule.collective, 0
    for rank, output in enumerate(outputs):
        n = len(output) // max(1, collective.output_blocks(rank))
        for block in range(collective.output_blocks(rank)):
            terms = collective.required(rank, block * collective.chunks)
            if terms is None:
                continue
            parts = []
            for source, index in members(terms):
                start = index // collective.chunks * n
                parts.append(inputs[source][start : start + n])
            with np.errstate(all="ignore"):
                like = _like_numpy(output[block * n : (block + 1) * n], parts, op)
            wrong += int(np.sum(~like))
    return wrong


def _like_numpy(found: Array, parts: list[Array], op: str) -> NDArray[np.bool_]:
    """For each element whether it is what ``op`` makes of ``parts``, in any order."""
    dtype, ufunc, divisor = found.dtype, UFUNCS[op], len(parts) if op == "avg" else 1
    if len(parts) == 1 or not (dtype in FLOATS or dtype.kind == "c"):
        return same(found, functools.reduce(ufunc, parts))
    wide = [part.astype(np.complex128 if dtype.kind == "c" else np.float64) for part in parts]
    expected = functools.reduce(ufunc, wide)
    got = found.astype(expected.dtype)
    if op in ("min", "max"):
        return np.asarray((got == expected) | ((got != got) & (expected != expected)))
    magnitudes = [np.abs(part) for part in wide]
    size = functools.reduce(ufunc, magnitudes)
    limits = ml_dtypes.finfo(dtype)
    said = size <= float(limits.max) / 4
    if op == "prod":
        said &= (np.min(magnitudes, axis=0) >= 0.25) & (np.max(magnitudes, axis=0) <= 4)
    # A product of complex numbers rounds three times a part, an average once more than its sum.
    steps = 4 * len(parts) if dtype.kind == "c" else len(parts) + 1 if op == "avg" else len(parts)
    bound = steps * float(limits.eps) * size / divisor + float(limits.smallest_subnormal)
    return np.asarray(~said | (np.abs(got - expected / divisor) <= bound))
