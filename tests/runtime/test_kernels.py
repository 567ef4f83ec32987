"""Every kernel against NumPy and the reference, for all instruction sets here: random bits, odd lengths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hocket import Communicator, _native, semantics
from hocket.semantics import average, combine_arrays
from tests.runtime.cases import PAIRS, UFUNCS, data, kind_of, same

Array = NDArray[np.generic]

EXACT = ("band", "bor", "bxor", "land", "lor", "lxor", "minloc", "maxloc")
LENGTHS = (0, 1, 2, 3, 17, 64, 250, 1031)
AHEAD: tuple[dict[str, int], ...] = ({}, {"ahead": 4 << 10}, {"ahead": 256}, {"stored_ahead": 2 << 10})


def call(isa: str, dtype: str, op: str, sources: list[Array], destinations: int) -> list[Array]:
    results = [np.full_like(sources[0], 1) for _ in range(destinations)]
    _native.reduce(results, sources, _native.TYPES.index(dtype), _native.OPERATORS.index(op), isa)
    return results


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_kernels(dtype: str, op: str) -> None:
    for size, (k, m), isa in product(LENGTHS, ((1, 2), (2, 1), (2, 2), (3, 1), (5, 3)), _native.ISAS):
        sources = [data(seed, size, dtype) for seed in range(k)]
        kept = [source.tobytes() for source in sources]
        with np.errstate(all="ignore"):
            expected = combine_arrays(op)(*sources) if k > 1 else sources[0]
        for found in call(isa, dtype, op, sources, m):
            assert same(found, expected).all(), (isa, size, k, m)
        assert [source.tobytes() for source in sources] == kept
        if k == 2:  # in place
            code = _native.TYPES.index(dtype), _native.OPERATORS.index(op)
            _native.reduce([sources[1]], sources, *code, isa)
            assert same(sources[1], expected).all()


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "sum"), ("float16", "max"), ("complex128", "prod"), ("float64_int32", "minloc")]
)
def test_long_ones(dtype: str, op: str) -> None:
    """Whatever begins where, whichever are stored non-temporally, and however early operands are prefetched."""
    code = _native.TYPES.index(dtype), _native.OPERATORS.index(op)
    itemsize = kind_of(dtype).itemsize
    lengths = (4000, 4 << 10, 12 << 10, 40_000)
    for nbytes, k, m, isa, apart in product(lengths, (1, 2, 3), (1, 2, 3), _native.ISAS, (0, 1)):
        size = nbytes // itemsize + 3
        sources = [data(seed, size, dtype) for seed in range(k)]
        with np.errstate(all="ignore"):
            expected = combine_arrays(op)(*sources) if k > 1 else sources[0]
        for last, ahead in product(range(1 << m), AHEAD):
            memory = [np.full(size + 64 // itemsize + m + 9, 1, kind_of(dtype)) for d in range(m)]
            begins = [-whole.ctypes.data % 64 // itemsize + d * apart for d, whole in enumerate(memory)]
            places = [whole[begin : begin + size] for begin, whole in zip(begins, memory, strict=True)]
            _native.reduce(places, sources, *code, isa, last, **ahead)
            for begin, place, whole in zip(begins, places, memory, strict=True):
                assert same(place, expected).all(), (isa, size, k, m, last, apart, ahead)
                for around in (whole[:begin], whole[begin + size :]):
                    assert (around == np.ones(1, kind_of(dtype))).all()


@pytest.mark.parametrize("isa", _native.ISAS)
def test_copies(isa: str) -> None:
    """Of every length at which another way is taken, wherever in a line they begin, or in a page behind their source;
    to where they are nothing happens."""
    short = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192)
    sizes = (*short, 2047, 2048, 2049, 4095, 4096, 4097, 9000)
    code = _native.TYPES.index("uint8"), _native.OPERATORS.index("sum")
    begins = ((64, 0), (64, 1), (64, 40), (4096, 0), (4096, 1), (4096, 16), (4096, 63), (4096, 64))
    for size, (unit, start) in product(sizes, begins):
        source = data(size, size + 7, "uint8")[7:]
        memory = np.full(size + unit + 128, 0x5A, np.uint8)
        behind = source.ctypes.data if unit == 4096 else 0
        begin = (behind - memory.ctypes.data) % unit + start
        place = memory[begin : begin + size]
        for ahead in AHEAD:
            place[:] = 0
            _native.reduce([place], [source], *code, isa, **ahead)
            _native.reduce([place], [place], *code, isa, **ahead)
            assert (place == source).all(), (size, unit, start, ahead)
        assert (memory[:begin] == 0x5A).all()
        assert (memory[begin + size :] == 0x5A).all()


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_non_temporal_stores(dtype: str, op: str) -> None:
    """The same bits and nothing else, wherever destinations begin, and whichever of them are stored so."""
    code = _native.TYPES.index(dtype), _native.OPERATORS.index(op)
    itemsize, guard = kind_of(dtype).itemsize, 128
    forms = ((1, (0,)), (1, (1,)), (1, (5,)), (2, (0, 0)), (2, (3, 0)), (2, (0, 3)), (3, (0, 0, 1)))
    for (m, starts), size, k, isa in product(forms, (1, 17, 250, 1031), (1, 2, 3), _native.ISAS):
        sources = [data(seed, size, dtype) for seed in range(k)]
        plain = call(isa, dtype, op, sources, 1)[0]
        for last in range(1, 1 << m):
            memory = [np.full(size * itemsize + 3 * guard, 0x5A, np.uint8) for _ in range(m)]
            begins = [-memory[d].ctypes.data % 64 + 64 + starts[d] * itemsize for d in range(m)]
            places = [memory[d][begins[d] : begins[d] + size * itemsize].view(kind_of(dtype)) for d in range(m)]
            _native.reduce(places, sources, *code, isa, last)
            for whole, begin, place in zip(memory, begins, places, strict=True):
                assert same(place, plain).all(), (isa, size, k, m, starts, last)
                assert (whole[:begin] == 0x5A).all()
                assert (whole[begin + size * itemsize :] == 0x5A).all()


def test_complex_numbers_that_lie_across_lines() -> None:
    """Aligned for their parts only: a line begins in the middle of a number, which is not torn."""
    a, b = data(1, 101, "complex128"), data(2, 101, "complex128")
    (expected,) = call(_native.ISA, "complex128", "prod", [a, b], 1)
    memory = np.zeros(101 * 16 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + 8
    place = memory[begin : begin + 101 * 16].view("complex128")
    for isa in _native.ISAS:
        place[:] = 0
        code = _native.TYPES.index("complex128"), _native.OPERATORS.index("prod")
        _native.reduce([place], [a, b], *code, isa, 1)
        assert same(place, expected).all()


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_against_numpy(dtype: str, op: str) -> None:
    """Two operands as NumPy combines them; it leaves open which zero is smaller and whether products are fused."""
    a, b = data(1, 1031, dtype), data(2, 1031, dtype)
    with np.errstate(all="ignore"):
        expected = UFUNCS[op](a, b)
    (found,) = call(_native.ISA, dtype, op, [a, b], 1)
    if op in ("min", "max"):
        zero = np.zeros(1, dtype)
        with np.errstate(all="ignore"):
            assert (same(found, expected) | ((found == zero) & (expected == zero))).all()
    elif kind_of(dtype).kind == "c" and op == "prod":
        finite = np.isfinite(expected) & np.isfinite(found)
        assert finite.sum() > 100
        eps = float(np.finfo(dtype).eps)
        with np.errstate(all="ignore"):
            close = np.abs(found - expected) <= 4 * eps * np.abs(a) * np.abs(b) + np.finfo(dtype).tiny
        assert close[finite].all()
    else:
        assert same(found, expected).all()


def test_every_value_of_16_data() -> None:
    """Conversions from and to 16 bits, all values: x + 0 and x * 1 are x, and all sums of neighbours."""
    for dtype, isa in product(("float16", "bfloat16"), _native.ISAS):
        every: Array = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        one = np.ones(1 << 16, dtype)
        assert same(call(isa, dtype, "prod", [every, one], 1)[0], every).all()
        with np.errstate(all="ignore"):
            for shift in (1, 2, 1000, 0x3C01, 0x8001):
                other = np.roll(every, shift)
                for op in ("sum", "prod"):
                    expected = combine_arrays(op)(every, other)
                    assert same(call(isa, dtype, op, [every, other], 1)[0], expected).all(), (dtype, isa, shift)


def test_16_bits_round_once() -> None:
    """1 and four quarters of its last place: rounding after each would lose them all."""
    for dtype, isa in product(("float16", "bfloat16"), _native.ISAS):
        eps = float(np.spacing(np.array(1, dtype))) if dtype == "float16" else 2.0**-7
        sources = [np.full(5, value, dtype) for value in (1, eps / 4, eps / 4, eps / 4, eps / 4)]
        assert (call(isa, dtype, "sum", sources, 1)[0] == np.array(1 + eps, dtype)).all()


@pytest.mark.parametrize("dtype", [dtype for dtype, op in PAIRS if op == "avg"])
def test_averages(dtype: str) -> None:
    """The sum as it would be stored, divided or multiplied; of one source, the source."""
    code = _native.TYPES.index(dtype), _native.OPERATORS.index("avg")
    scales = [(1, 1.0), (2, 1.0), (3, 1.0), (7, 1.0), (1000, 1.0), (1, 0.7), (1, -3e-5)]
    for size, (ranks, factor), k, isa in product((*LENGTHS, 5000), scales, (1, 2, 3), _native.ISAS):
        sources = [data(seed, size, dtype) for seed in range(k)]
        with np.errstate(all="ignore"):
            expected = average(combine_arrays("sum")(*sources), ranks, factor)
        for m, last in ((1, 0), (1, 1), (2, 3), (3, 2)):
            places = [np.zeros_like(expected) for _ in range(m)]
            _native.reduce(places, sources, *code, isa, last, ranks, factor)
            for found in places:
                assert same(found, expected).all(), (isa, size, ranks, k, m)
        _native.reduce([sources[0]], sources, *code, isa, divisor=ranks, factor=factor)
        assert same(sources[0], expected).all(), (isa, size, ranks, k)


@pytest.mark.parametrize(("dtype", "op"), [pair for pair in PAIRS if pair[1] in EXACT])
def test_what_is_exact_needs_no_order(dtype: str, op: str) -> None:
    """Associative and commutative, bit by bit: no two ranks have an index in common."""
    a, b, c = (data(seed, 1031, dtype) for seed in range(3))
    combine = combine_arrays(op)
    expected = combine(a, b, c)
    for found in (combine(combine(a, b), c), combine(a, combine(b, c)), combine(c, b, a), combine(b, a, c)):
        assert same(found, expected).all()


@pytest.mark.parametrize("isa", _native.ISAS)
def test_ties_take_the_lowest_index(isa: str) -> None:
    """A NaN goes before all numbers, and of several the one with the lowest index."""
    for name in (name for name, operators in _native.OPERATORS_OF.items() if "minloc" in operators):
        sources = [np.array([(5, i), (i % 2, 9 - i), (-i, -i)], kind_of(name)) for i in range(4)]
        assert call(isa, name, "minloc", sources, 1)[0].tolist() == [(5, 0), (0, 7), (-3, -3)]
        assert call(isa, name, "maxloc", sources, 1)[0].tolist() == [(5, 0), (1, 6), (0, 0)]
        if name.startswith("float"):
            sources[1]["value"][0] = sources[3]["value"][0] = np.nan
            for op in ("minloc", "maxloc"):
                (found,) = call(isa, name, op, sources, 1)
                assert np.isnan(found["value"][0])
                assert found["index"][0] == 1


def test_what_is_not_there() -> None:
    x = np.ones(3, np.int32)
    with pytest.raises(ValueError, match="does not have this operator"):
        call(_native.ISA, "int32", "avg", [x, x], 1)
    with pytest.raises(ValueError, match="does not have this instruction set"):
        call("avx1024", "int32", "sum", [x, x], 1)


def test_the_documented_table() -> None:
    table = (Communicator.run.__doc__ or "").split("=\n")[2]
    rows = [re.split("  +", line.strip()) for line in table.splitlines()[:-1]]
    documented = {name: tuple(ops.split(", ")) for names, ops in rows for name in names.split(", ")}
    assert documented == _native.OPERATORS_OF


def test_the_row_of_types_in_the_readme() -> None:
    """Groups of types with their operators; "also": those of the group before, and more."""
    row = re.search(r"\| combine \| (.*) \|\n", (Path(__file__).parents[2] / "README.md").read_text())
    assert row is not None
    documented: dict[str, tuple[str, ...]] = {}
    operators: tuple[str, ...] = ()
    for group in re.sub(r" \(.*?\)", "", row[1]).split("; "):
        names, ops = group.split(": ")
        more = tuple(ops.removeprefix("also ").split(", "))
        operators = operators + more if ops.startswith("also ") else more
        for name in names.split(", "):
            if match := re.fullmatch(r"(\w+?)8 to \w+64", name):
                documented |= {f"{match[1]}{bits}": operators for bits in (8, 16, 32, 64)}
            else:
                documented[name] = operators
    assert documented == _native.OPERATORS_OF


def test_the_reference_combines_the_same_types() -> None:
    assert set(semantics.ACCUMULATORS) == set(_native.TYPE_BYTES) == set(_native.TYPES)
    with pytest.raises(KeyError):
        combine_arrays("sum")(np.zeros(3, "S1"), np.zeros(3, "S1"))


def test_choosing_an_instruction_set() -> None:
    code = "from hocket import _native; print(_native.ISA)"

    def ask(isa: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"HOCKET_ISA": isa}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert [ask(isa).stdout.strip() for isa in ("", *_native.ISAS)] == [_native.ISAS[0], *_native.ISAS]
    assert "HOCKET_ISA names no instruction set" in ask("avx1024").stderr
