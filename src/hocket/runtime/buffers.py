"""Which memory is which buffer of a schedule: the arguments of a call are checked, and bound. Nothing is written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket import _native
from hocket.collectives import Alias
from hocket.errors import InvalidArgument, WrongType, caller
from hocket.ir.geometry import check_size
from hocket.ir.schedule import Narrowing, Schedule
from hocket.runtime.counts import Counts

Array = NDArray[np.generic]

# NumPy does not know bfloat16, that of ml_dtypes is found by its name (_code).
_TYPES = {np.dtype(name): code for code, name in enumerate(_native.TYPES) if name != "bfloat16"}


class Bound(NamedTuple):
    """The buffers of one call: the physical input and output, elements of a unit, number of the type (kernels.h).

    ``initial`` is copied into the physical buffer, at byte ``place``, once all ranks agree. ``result`` is what the
    caller gets; where ``taken`` is given, it is copied there at the end, from that byte of the input buffer on. With
    ``units`` of lengths of their own, ``n`` is that of the longest. ``apart``: an in-place schedule is to run with two
    memories. ``element``: what elements are whose type has no number, but one that only tells their size.
    """

    input: Array | None
    output: Array | None
    n: int | None
    type: int
    initial: Array | None = None
    place: int = 0
    result: Array | None = None
    taken: int | None = None
    units: _native.Units | None = None
    apart: bool = False
    element: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffers of a schedule on one rank. ``own`` is the unit of the target where an alias begins. ``name``: what
    errors call the schedule.

    ``moves``: elements are only moved, so they may be of any type. ``splits``: an in-place schedule can run with two
    memories too. ``simple``: input and output are one memory of one size or, where it splits, two, and every size will
    do.
    """

    name: str
    chunks: int
    narrowings: tuple[Narrowing, ...]
    rank: int
    input_blocks: int
    output_blocks: int
    alias: Alias | None
    own: int
    inplace: bool
    moves: bool
    writes_input: bool
    splits: bool
    simple: bool

    def bind(self, x: Array | None, out: Array | None, counts: Counts | None = None) -> Bound:
        """Decide which memory is which buffer. Raises WrongType, InvalidArgument, UnevenSize.

        With ``counts`` the schedule has passed ``check_units``, and arrays have the rows that they say.
        """
        if not self.input_blocks and self.inplace and out is None:
            x, out = None, x
        given = [
            array for name, array in (("x", x), ("out", out)) if array is not None and _check(name, array, self.moves)
        ]
        if not given:
            if self.input_blocks or self.output_blocks:
                raise self._needs("x" if self.input_blocks else "out")
            return Bound(None, None, None, 0)
        dtype = given[0].dtype
        if given[-1].dtype != dtype:
            raise WrongType(f"x is of {dtype}, out of {given[-1].dtype}", caller())
        code = _code(dtype)
        kind = len(_native.TYPES) + dtype.itemsize if code is None else code
        element = str(dtype) if code is None else None
        unit = self.rank if self.alias is None else self.own
        if counts is None:
            n = self._unit(x, out)
            if n is None:
                return Bound(None, None, None, kind)
            check_size(self.name, self.chunks, self.narrowings, n, dtype.itemsize)
            return self._place(x, out, n, kind, unit * n)._replace(element=element)
        if x is None and self.input_blocks:
            raise self._needs("x")
        if counts.agreed is None and x is not None and out is not None and np.may_share_memory(x, out):
            raise InvalidArgument(f"with counts, x and out of {self.name} must lie apart", caller())
        row = math.prod(given[0].shape[1:])
        units = counts.units(row, dtype.itemsize)
        bound = self._place(x, out, counts.largest() * row, kind, counts.own(unit) * row)
        return bound._replace(units=units, element=element)

    def _place(self, x: Array | None, out: Array | None, n: int, kind: int, own: int) -> Bound:
        """``own``: the element of the larger buffer where the block of this rank begins."""
        scratch = np.empty_like(x) if self.writes_input and x is not None else None  # x is not ours to write
        if not self.output_blocks:
            return Bound(x, None, n, kind) if scratch is None else Bound(scratch, None, n, kind, x)
        if out is None:
            assert x is not None
            works_in_x = self.alias is not None and self.input_blocks == self.output_blocks
            out = x if works_in_x else np.empty(_shape(x, self), x.dtype)
        # The root of a broadcast has the result from the start.
        kept = x is out and self.alias is not None and self.alias.target == "in" and not self.writes_input
        if not (out.flags.writeable or kept):
            raise InvalidArgument("the result would go to an array that is read-only", caller())
        if x is None or not self.input_blocks:
            return Bound(None, out, n, kind, result=out)
        if self.alias is None:
            if np.may_share_memory(x, out):
                if not (_begins(x, out, 0) or _begins(out, x, own) or _begins(x, out, own)):
                    raise _overlap()
                scratch = np.empty_like(x)
            if scratch is None:
                return Bound(x, out, n, kind, result=out)
            return Bound(scratch, out, n, kind, x, result=out)
        whole, part = (x, out) if self.alias.target == "in" else (out, x)
        if x is out or _begins(part, whole, own):  # in place as NCCL means it
            if not (whole.flags.writeable or kept):
                raise InvalidArgument("a call in place needs arrays that can be written", caller())
            return Bound(x, None, n, kind, result=out) if whole is x else Bound(None, out, n, kind, result=out)
        if np.may_share_memory(x, out):
            raise _overlap()
        if self.splits:
            return Bound(x, out, n, kind, result=out, apart=True)
        if self.alias.target == "out":
            return Bound(None, out, n, kind, x, own * x.itemsize, out)
        if self.input_blocks == self.output_blocks:
            return Bound(out, None, n, kind, x, result=out)
        if not self.writes_input:
            return Bound(x, None, n, kind, result=out, taken=own * x.itemsize)
        return Bound(np.empty_like(x), None, n, kind, x, result=out, taken=own * x.itemsize)

    def bind_simple(self, x: Array | None, out: Array | None) -> Bound | None:
        """The same, if ``simple``, for arrays that need no second look: plain, writable, apart. None where in doubt.

        Every small call comes here: ``tuple.__new__`` takes half of the time of ``Bound(...)``.
        """
        if type(x) is not np.ndarray:
            return None
        kind = _TYPES.get(x.dtype)
        n, rest = divmod(x.size, self.input_blocks)
        if kind is None or rest:
            return None
        if out is None or out is x:
            found = x, None, n, kind, None, 0, x, None, None, False, None
            return tuple.__new__(Bound, found) if x.flags.carray else None
        if type(out) is not np.ndarray or out.size != x.size or out.dtype != x.dtype or np.may_share_memory(x, out):
            return None
        flags = x.flags
        if not (out.flags.carray and flags.c_contiguous and flags.aligned):
            return None
        return tuple.__new__(Bound, (x, out, n, kind, None, 0, out, None, None, True, None))

    def _needs(self, name: str) -> WrongType:
        return WrongType(f"rank {self.rank} needs {name} in {self.name}", caller())

    def _unit(self, x: Array | None, out: Array | None) -> int | None:
        """Elements of a unit, from whichever array says it; None if this rank has no buffer at all."""
        n = None
        for name, array, blocks in (("x", x, self.input_blocks), ("out", out, self.output_blocks)):
            if array is None:
                if blocks and (name == "x" or n is None):
                    raise self._needs(name)
                continue
            if array.size and not blocks:
                kind = "input" if name == "x" else "output"
                raise InvalidArgument(f"rank {self.rank} has no {kind} in {self.name}: {name} must be None", caller())
            if not blocks:
                continue
            if array.size % blocks:
                raise InvalidArgument(
                    f"{name} has {array.size} elements, which do not make {blocks} blocks of one size", caller()
                )
            if n is not None and array.size != n * blocks:
                raise InvalidArgument(f"x calls for an out of {n * blocks} elements, not {array.size}", caller())
            n = array.size // blocks
        return n


def layout_of(schedule: Schedule, rank: int, moves: bool, writes_input: bool, splits: bool) -> Layout:
    """The buffers of ``rank``. ``writes_input``: its steps store to the input buffer; for the rest see Layout."""
    collective = schedule.collective
    inputs, outputs, alias = collective.input_blocks(rank), collective.output_blocks(rank), collective.alias(rank)
    return Layout(
        schedule.name,
        collective.chunks,
        schedule.narrowings,
        rank,
        inputs,
        outputs,
        alias,
        alias.offset // collective.chunks if alias is not None else 0,
        collective.inplace,
        moves,
        writes_input,
        splits,
        splits and alias is not None and alias.target == "in" and inputs == outputs and not schedule.narrowings,
    )


def _code(dtype: np.dtype[np.generic]) -> int | None:
    """The number of a type that kernels can combine; None for another."""
    code = _TYPES.get(dtype)
    if code is None and dtype.name == "bfloat16" and dtype.isnative:
        code = _TYPES[dtype] = _native.TYPES.index("bfloat16")
    return code


def _check(name: str, array: Array, moves: bool) -> bool:
    """Raise if an argument is no array that native code can work on; True otherwise."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        tensor = type(array).__module__.partition(".")[0] == "torch"
        hint = f"{name}.numpy() is an array in the memory of a tensor on the CPU" if tensor else None
        raise WrongType(f"{name} must be a NumPy array, not {name_of(array)}", caller(), hint)
    if array.dtype.hasobject:
        raise WrongType(f"{name} is of {array.dtype}: references mean nothing in another process", caller())
    if not moves and _code(array.dtype) is None:
        raise WrongType(
            f"{name} is of {array.dtype}; only {', '.join(_native.TYPES)} can be combined",
            caller(),
            "collectives that only move data take any type",
        )
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise InvalidArgument(
            f"{name} must be contiguous and aligned", caller(), "np.ascontiguousarray(...) makes a copy that is"
        )
    return True


def name_of(thing: object) -> str:
    """How a user calls the type of a thing."""
    return "None" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def _overlap() -> InvalidArgument:
    return InvalidArgument(
        "x and out overlap", caller(), "they may be the same, or one the own block of the other, or lie apart"
    )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _begins(part: Array, whole: Array, element: int) -> bool:
    """Whether ``part`` lies in the memory of ``whole`` from ``element`` on."""
    return (
        np.may_share_memory(part, whole)
        and _address(part) == _address(whole) + element * whole.itemsize
        and element + part.size <= whole.size
    )


def _shape(x: Array, layout: Layout) -> tuple[int, ...]:
    """Shape of an output that the caller did not give: that of x, or joined along axis 0, or flat."""
    if layout.output_blocks == layout.input_blocks:
        return x.shape
    if x.ndim and x.shape[0] * layout.output_blocks % layout.input_blocks == 0:
        return (x.shape[0] * layout.output_blocks // layout.input_blocks, *x.shape[1:])
    return (x.size // layout.input_blocks * layout.output_blocks,)
