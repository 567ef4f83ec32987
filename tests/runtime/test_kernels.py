"""Every kernel against NumPy and the reference, for all instruction sets here: random bits, odd lengths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hocket import Communicator, _native
from hocket.semantics import average, combine_arrays

Array = NDArray[np.generic]

assert ml_dtypes.bfloat16  # NumPy knows the type by name once it is imported
PAIRS = [(dtype, op) for dtype, ops in _native.OPERATORS_OF.items() for op in ops]
LENGTHS = (0, 1, 2, 3, 17, 64, 1031)
NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}


def bits(seed: int, size: int, name: str) -> Array:
    """Random bits, thus NaN, infinities and subnormals of 16-bit floats; the others, and -0.0, are put in."""
    rng, dtype = np.random.default_rng(seed), np.dtype(name)
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    values: Array = rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)
    parts = values.view(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else values
    if parts.dtype.kind in "fV":
        with np.errstate(all="ignore"):
            ordinary = rng.standard_normal(len(parts)).astype(parts.dtype)
            tiny = (np.array(np.finfo(np.float32).tiny if parts.dtype.itemsize < 8 else 1e-308) / 3).astype(parts.dtype)
        parts[::2] = ordinary[::2]
        for offset, special in enumerate((np.inf, -np.inf, np.nan, 0.0, -0.0, tiny, -tiny)):
            parts[(offset + 7 * seed) % 29 :: 29] = special
            parts[(3 * offset + 5 * seed) % 31 :: 31] = special
    return values


def same(found: Array, expected: Array) -> NDArray[np.bool_]:
    """Equal in every bit, or both NaN, whatever is in them."""
    assert found.dtype == expected.dtype
    if found.dtype.kind == "c":
        found, expected = (a.view(f"f{a.itemsize // 2}") for a in (found, expected))
    equal: NDArray[np.bool_] = found.view(f"u{found.itemsize}") == expected.view(f"u{expected.itemsize}")
    with np.errstate(all="ignore"):
        return equal | ((found != found) & (expected != expected))


def call(isa: str, dtype: str, op: str, sources: list[Array], destinations: int) -> list[Array]:
    results = [np.full_like(sources[0], 1) for _ in range(destinations)]
    _native.reduce(results, sources, _native.TYPES.index(dtype), _native.OPERATORS.index(op), isa)
    return results


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_kernels(dtype: str, op: str) -> None:
    for size, (k, m), isa in product(LENGTHS, ((1, 2), (2, 1), (2, 2), (3, 1), (5, 3)), _native.ISAS):
        sources = [bits(seed, size, dtype) for seed in range(k)]
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


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_against_numpy(dtype: str, op: str) -> None:
    """Two operands as NumPy combines them; it leaves open which zero is smaller and whether products are fused."""
    a, b = bits(1, 1031, dtype), bits(2, 1031, dtype)
    with np.errstate(all="ignore"):
        expected = NUMPY[op](a, b)
    (found,) = call(_native.ISA, dtype, op, [a, b], 1)
    if op in ("min", "max"):
        zero = np.zeros(1, dtype)
        with np.errstate(all="ignore"):
            assert (same(found, expected) | ((found == zero) & (expected == zero))).all()
    elif np.dtype(dtype).kind == "c" and op == "prod":
        finite = np.isfinite(expected) & np.isfinite(found)
        assert finite.sum() > 100
        eps = float(np.finfo(dtype).eps)
        with np.errstate(all="ignore"):
            close = np.abs(found - expected) <= 4 * eps * np.abs(a) * np.abs(b) + np.finfo(dtype).tiny
        assert close[finite].all()
    else:
        assert same(found, expected).all()


def test_every_value_of_16_bits() -> None:
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
def test_division(dtype: str) -> None:
    for size, ranks, isa in product(LENGTHS, (1, 2, 3, 7, 1000), _native.ISAS):
        values = bits(3, size, dtype)
        with np.errstate(all="ignore"):
            expected = average(values, ranks)
        _native.divide(values, _native.TYPES.index(dtype), ranks, isa)
        assert same(values, expected).all(), (isa, size, ranks)


def test_what_is_not_there() -> None:
    x = np.ones(3, np.int32)
    with pytest.raises(ValueError, match="does not have this operator"):
        call(_native.ISA, "int32", "avg", [x, x], 1)
    with pytest.raises(ValueError, match="does not have this instruction set"):
        call("avx1024", "int32", "sum", [x, x], 1)
    with pytest.raises(ValueError, match="no division"):
        _native.divide(x, _native.TYPES.index("int32"), 2)


def test_the_documented_table() -> None:
    rows = re.findall(r"^ *\| ([a-z0-9, ]+) \| ([a-z, ]+) \|$", Communicator.run.__doc__ or "", re.MULTILINE)
    documented = {name: tuple(ops.split(", ")) for names, ops in rows[1:] for name in names.split(", ")}
    assert documented == _native.OPERATORS_OF


def test_choosing_an_instruction_set() -> None:
    code = "from hocket import _native; print(_native.ISA)"

    def ask(isa: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"HOCKET_ISA": isa}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert [ask(isa).stdout.strip() for isa in ("", *_native.ISAS)] == [_native.ISAS[0], *_native.ISAS]
    assert "HOCKET_ISA names no instruction set" in ask("avx1024").stderr
