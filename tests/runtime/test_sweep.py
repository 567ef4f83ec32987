"""A sample of the sweep over all types; its full form is ``python -m tests.runtime.sweep``."""

from __future__ import annotations

import numpy as np
import pytest

from hocket import _native
from hocket.semantics import reference
from hocket.tuning import NAMED
from tests.runtime.cases import count_unlike_numpy, data
from tests.runtime.sweep import COMBINING, PREFIX, RANKS, Stretch, everything, expected, run, sample, schedule_of


@pytest.mark.parametrize("ranks", [pytest.param(n, marks=[pytest.mark.campaign] if n > 1 else []) for n in RANKS])
def test_a_sample(ranks: int) -> None:
    cases = list(sample(ranks))
    columns, lines = run(ranks, cases)
    assert not lines
    assert sum(column.calls for column in columns.values()) == len(cases)
    assert not any(column.wrong for column in columns.values())


@pytest.mark.parametrize("ranks", [pytest.param(n, marks=pytest.mark.campaign) for n in (2, 3)])
@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"HOCKET_CACHE_BYTES": "0"}, id="results"),
        pytest.param({"HOCKET_TUNABLES": "apart_ticks=1,apart_message_bytes=1,apart_combined_bytes=1"}, id="messages"),
        pytest.param({"HOCKET_CACHE_BYTES": "0", "HOCKET_TUNABLES": "prefetch_ahead_bytes=256"}, id="prefetched"),
    ],
)
def test_a_sample_with_non_temporal_stores(
    ranks: int, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    columns, lines = run(ranks, list(sample(ranks)))
    assert not lines
    assert not any(column.wrong for column in columns.values())


def test_the_sample_has_every_type_and_operator() -> None:
    every = {(case.name, case.dtype, case.op) for case in everything()}
    for name in NAMED:
        assert {dtype for called, dtype, _ in every if called == name} >= set(_native.TYPES)
    for name in (*COMBINING, *PREFIX):
        for dtype, operators in _native.OPERATORS_OF.items():
            wanted = set(operators) - ({"avg"} if name in PREFIX else set())
            assert {op for called, kind, op in every if (called, kind) == (name, dtype)} == wanted
    for ranks in (2, 3):
        assert {(case.name, case.dtype, case.op) for case in sample(ranks)} == every


@pytest.mark.parametrize(
    ("name", "dtype", "op", "n"),
    [
        ("all_reduce", "float32", "avg", 100_003),
        ("reduce_scatter", "bfloat16", "sum", 70_001),
        ("all_gather", "S3", "sum", 40_001),
        ("scatter", "i1,f8,S3", "sum", 33_333),
    ],
)
def test_what_repeats_has_a_result_that_repeats(name: str, dtype: str, op: str, n: int) -> None:
    """The reference of the whole is what the reference of one period says; any element that is not is counted."""
    schedule = schedule_of(name, 3)
    stretch = Stretch(schedule.collective, np.dtype(dtype), n)
    assert stretch.short < n
    small, results = expected(name, 3, stretch.short, dtype, op)
    inputs = [np.empty(schedule.collective.input_blocks(r) * n, dtype) for r in range(3)]
    for x, part in zip(inputs, small, strict=True):
        stretch.fill(x, part)
    with np.errstate(all="ignore"):
        outputs = reference(schedule, inputs, op)
    for out, part in zip(outputs, results, strict=True):
        assert stretch.count_wrong(out, part) == 0
    out = outputs[0]
    for at in (0, len(out) // 2, len(out) - 1):
        kept = out[at : at + 1].copy()
        out[at : at + 1].view(np.uint8)[:] ^= 1
        assert stretch.count_wrong(out, results[0]) >= 1, at
        out[at : at + 1] = kept
    # A piece of a chunk that lies elsewhere.
    out[-3000:] = out[-4024:-1024].copy()
    assert stretch.count_wrong(out, results[0]) > 0


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_numpy_contradicts(op: str) -> None:
    """A result that is a little further off than rounding can bring it."""
    inputs = [data(r, 1000, "float32") for r in range(3)]
    with np.errstate(all="ignore"):
        outputs = reference(schedule_of("all_reduce", 3), inputs, op)
    assert count_unlike_numpy(schedule_of("all_reduce", 3), op, inputs, outputs) == 0
    with np.errstate(all="ignore"):
        bent = [out * np.float32(1 + 1e-5) for out in outputs]
    assert count_unlike_numpy(schedule_of("all_reduce", 3), op, inputs, bent) > 30
