"""The arguments of a call: ``x`` and ``out`` as arrays, or as addresses, and what is known of them without either."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hocket import _native
from hocket._native import Buffer as Buffer
from hocket._native import Omitted as Omitted
from hocket.errors import InvalidArgument, WrongType, caller

Array = NDArray[np.generic]
Parts = list[Array] | list[Buffer] | list[Array | Buffer] | tuple[Array | Buffer, ...]
"""What stands for an array: its parts one behind the other, wherever they lie."""
Argument = Array | Buffer | Parts | int | None


@dataclass(frozen=True, slots=True)
class ElementType:
    """The type of the elements of a call.

    ``code``: its number (kernels.h), or for a type that has none one that only tells its size. ``dtype``: None where
    NumPy does not know the type.
    """

    name: str
    code: int
    itemsize: int
    dtype: np.dtype[np.generic] | None = field(compare=False)

    @property
    def opaque(self) -> bool:
        """Whether kernels can only move it."""
        return self.code >= len(_native.TYPES)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Operand:
    """What a call knows of ``x`` or of ``out`` but where it lies: a contiguous array."""

    shape: tuple[int, ...]
    type: ElementType
    writeable: bool = True

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.type.itemsize

    def native(self, *, written: bool) -> _native.Operand:
        """As native code takes it."""
        return _native.Operand(self.type.dtype, self.shape, self.nbytes, written)


@dataclass(frozen=True, slots=True)
class Operands:
    """``x`` and ``out`` of a call, None where it has none, or does not look at it.

    ``between``: bytes from x to out where they overlap; None where they lie apart. ``omitted``: what ``out`` is where
    the caller gives none.
    """

    x: Operand | None
    out: Operand | None
    between: int | None = None
    omitted: Omitted = Omitted.REFUSED


FOREIGN = frozenset({"bfloat16"})
"""Types of ml_dtypes, found by their names, so that hocket need not import it."""


def dtype_of(name: str) -> np.dtype[np.generic]:
    """NumPy's type of a name of native/device/kernels.h that NumPy knows: a number, or a value and its index."""
    value = name.removesuffix("_int32")
    return np.dtype(name) if value == name else np.dtype([("value", value), ("index", "int32")], align=True)


_NAMED = {
    name: ElementType(name, code, _native.TYPE_BYTES[name], None if name in FOREIGN else dtype_of(name))
    for code, name in enumerate(_native.TYPES)
}
_TYPES = {kind.dtype: kind for kind in _NAMED.values() if kind.dtype is not None}
NO_TYPE = _NAMED["bool"]
"""Of a call without buffers."""


def element_type(dtype: object) -> ElementType:
    """Of a NumPy type, or of the name of one in _native.TYPES. Raises WrongType."""
    if isinstance(dtype, str) and dtype in _NAMED:
        return _NAMED[dtype]
    known = numpy_type(dtype)
    return _TYPES.get(known) or _other_type("x", known)


def numpy_type(dtype: object) -> np.dtype[np.generic]:
    """Of a NumPy type, or what NumPy takes for one. Raises WrongType."""
    try:
        return np.dtype(dtype)  # type: ignore[call-overload, no-any-return]
    except TypeError as error:
        raise WrongType(f"dtype must be a NumPy type, not {dtype!r}", caller()) from error


def _other_type(name: str, dtype: np.dtype[np.generic]) -> ElementType:
    """One that is not in _TYPES. ``name``: of the array, for errors."""
    if dtype.hasobject:
        raise WrongType(f"{name} is of {dtype}: references mean nothing in another process", caller())
    if dtype.name in FOREIGN and dtype.isnative:
        found = _TYPES[dtype] = replace(_NAMED[dtype.name], dtype=dtype)
        return found
    return ElementType(str(dtype), len(_native.TYPES) + dtype.itemsize, dtype.itemsize, dtype)


def operand_of(name: str, array: Array | Buffer | None) -> Operand | None:
    """What an argument is but where it lies. Raises if it is nothing that native code can work on."""
    if array is None:
        return None
    if isinstance(array, Buffer):
        return _operand_of_buffer(name, array)
    # NumPy imports numpy.ma where it is first asked for: not for a call on an ordinary array.
    plain = type(array) is np.ndarray or (isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray))
    if not plain:
        tensor = type(array).__module__.partition(".")[0] == "torch"
        hint = f"{name}.numpy() is an array in the memory of a tensor on the CPU" if tensor else None
        raise WrongType(f"{name} must be a NumPy array, not {name_of(array)}", caller(), hint)
    kind = _TYPES.get(array.dtype) or _other_type(name, array.dtype)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise InvalidArgument(
            f"{name} must be contiguous and aligned", caller(), "np.ascontiguousarray(...) makes a copy that is"
        )
    return Operand(array.shape, kind, flags.writeable)


def _operand_of_buffer(name: str, buffer: Buffer) -> Operand:
    if buffer.dtype not in _native.TYPES:
        types = ", ".join(_native.TYPES)
        raise WrongType(f"{name} is a Buffer of {buffer.dtype!r}, which is none of {types}", caller())
    kind = _NAMED[buffer.dtype]
    if buffer.nbytes % kind.itemsize:
        raise InvalidArgument(f"{name} has {buffer.nbytes} bytes, which are no whole number of {kind}", caller())
    if buffer.address % min(kind.itemsize, 4) or (buffer.nbytes and not buffer.address):
        raise InvalidArgument(f"{name} must have an address that is aligned for {kind}", caller())
    return Operand((buffer.nbytes // kind.itemsize,), kind)


def operands_of(x: Array | None, out: Array | None) -> Operands:
    """Of the arrays that a call is given."""
    known = operand_of("x", x), operand_of("out", out)
    return Operands(*known, None if x is None or out is None else between(x, out))


def between(x: Array | Buffer, out: Array | Buffer) -> int | None:
    """Bytes from x to out where they are the same, or overlap."""
    if x is out:
        return 0
    ahead = address(out) - address(x)
    return ahead if x.nbytes and out.nbytes and -out.nbytes < ahead < x.nbytes else None


def address(given: Array | Buffer) -> int:
    """Where it begins."""
    return given.address if isinstance(given, Buffer) else int(given.__array_interface__["data"][0])


def name_of(thing: object) -> str:
    """How a user calls the type of a thing."""
    return "None" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
