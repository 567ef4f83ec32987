"""Which memory is which buffer of a schedule: the arguments of a call are checked, and bound. Nothing is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hocket import _native
from hocket._native import Omitted, Source
from hocket.collectives import Alias
from hocket.errors import InvalidArgument, WrongType, caller
from hocket.ir.geometry import check_size
from hocket.ir.schedule import Narrowing
from hocket.runtime.counts import Counts
from hocket.runtime.operands import NO_TYPE, ElementType, Operand, Operands


@dataclass(frozen=True, slots=True)
class Bound:
    """Which memory is which buffer of a schedule, in a call on ``operands``.

    ``n``: elements of a unit; with ``units`` of lengths of their own, of the longest. None if this rank has no buffer.
    The first buffer gets a copy of ``initial``, at byte ``place``, once all ranks agree. ``result`` is what the caller
    gets; where ``taken`` is given, it is copied there at the end, from that byte of the input buffer on. ``apart``: an
    in-place schedule is to run with two memories. ``writes``: which of x and out are written.
    """

    operands: Operands
    type: ElementType
    n: int | None
    input: Source = Source.NOTHING
    output: Source = Source.NOTHING
    initial: Source = Source.NOTHING
    result: Source = Source.NOTHING
    place: int = 0
    taken: int | None = None
    units: _native.Units | None = None
    apart: bool = False
    writes: tuple[Source, ...] = ()

    @property
    def copies(self) -> bool:
        """Whether it takes more than the memory of x and out."""
        return self.initial is not Source.NOTHING or self.taken is not None or self.apart

    def lies(self, inplace: bool) -> bool:
        """Whether x and out lie in place, or apart; what is one array alone lies in both ways."""
        alone = self.operands.x is None or self.result is Source.NOTHING
        return alone or (self.operands.between is not None) is inplace


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffers of a schedule on one rank. ``name``: what errors call the schedule.

    ``moves``: elements are only moved, so they may be of any type. ``splits``: an in-place schedule can run with two
    memories too. ``writes_input``: its steps store to the input buffer.
    """

    name: str
    chunks: int
    narrowings: tuple[Narrowing, ...]
    rank: int
    input_blocks: int
    output_blocks: int
    alias: Alias | None
    inplace: bool
    moves: bool
    writes_input: bool
    splits: bool

    def bind(self, operands: Operands, counts: Counts | None = None) -> Bound:
        """Decide which memory is which buffer. Raises WrongType, InvalidArgument, UnevenSize.

        With ``counts`` the schedule has passed ``check_units``, and arrays have the rows that they say.
        """
        x, out = operands.x, operands.out
        if not self.input_blocks and self.inplace and out is None:
            operands = Operands(None, x, omitted=Omitted.X)
            x, out = None, x
        given = [operand for operand in (x, out) if operand is not None]
        if not given:
            if self.input_blocks or self.output_blocks:
                raise self._needs("x" if self.input_blocks else "out")
            return Bound(operands, NO_TYPE, None)
        kind = given[0].type
        for name, operand in (("x", x), ("out", out)):
            if operand is not None and operand.type.opaque and not self.moves:
                raise WrongType(
                    f"{name} is of {operand.type}; only {', '.join(_native.TYPES)} can be combined",
                    caller(),
                    "collectives that only move data take any type",
                )
        if given[-1].type != kind:
            raise WrongType(f"x is of {kind}, out of {given[-1].type}", caller())
        unit = self.rank if self.alias is None else self.alias.offset // self.chunks
        if counts is None:
            n = self._unit(x, out)
            if n is None:
                return Bound(operands, kind, None)
            check_size(self.name, self.chunks, self.narrowings, n, kind.itemsize)
            return self._place(operands, kind, n, unit * n)
        if x is None and self.input_blocks:
            raise self._needs("x")
        if counts.agreed is None and operands.between is not None:
            raise InvalidArgument(f"with counts, x and out of {self.name} must lie apart", caller())
        row = math.prod(given[0].shape[1:])
        units = counts.units(row, kind.itemsize)
        return replace(self._place(operands, kind, max(counts.known()) * row, counts.own(unit) * row), units=units)

    def _place(self, operands: Operands, kind: ElementType, n: int, own: int) -> Bound:
        """``own``: the element of the larger buffer where the block of this rank begins."""
        nothing, from_x, to_out, scratch = Source.NOTHING, Source.X, Source.OUT, Source.SCRATCH
        x, out = operands.x, operands.out
        copied = self.writes_input and x is not None  # x is not ours to write
        if not self.output_blocks:
            if copied:
                return Bound(operands, kind, n, scratch, initial=from_x)
            return Bound(operands, kind, n, from_x if x is not None else nothing)
        if out is None:
            assert x is not None
            if self.alias is not None and self.input_blocks == self.output_blocks:
                out, operands = x, Operands(x, x, 0, Omitted.X)
            else:
                out = Operand(_shape(x, self), kind)
                operands = Operands(x, out, omitted=Omitted.FRESH)
        between, item = operands.between, kind.itemsize
        # The root of a broadcast has the result from the start.
        same = between == 0 and x is not None and x.size == out.size
        kept = same and self.alias is not None and self.alias.target == "in" and not self.writes_input
        if not (out.writeable or kept):
            raise InvalidArgument("the result would go to an array that is read-only", caller())
        bound = Bound(operands, kind, n, result=to_out, writes=() if kept else (to_out,))
        if x is None or not self.input_blocks:
            return replace(bound, output=to_out)
        if self.alias is None:
            if between is not None and not (
                (between == 0 and x.size <= out.size)
                or (between == -own * item and own + x.size <= out.size)
                or (between == own * item and own + out.size <= x.size)
            ):
                raise _overlap()
            if copied or between is not None:
                return replace(bound, input=scratch, output=to_out, initial=from_x)
            return replace(bound, input=from_x, output=to_out)
        targets_in = self.alias.target == "in"
        (whole, part), ahead = ((x, out), between) if targets_in else ((out, x), None if between is None else -between)
        first = from_x if targets_in else to_out
        if same or (ahead is not None and ahead == own * item and own + part.size <= whole.size):  # as NCCL means it
            if not (whole.writeable or kept):
                raise InvalidArgument("a call in place needs arrays that can be written", caller())
            bound = replace(bound, writes=() if kept else (first, to_out))
            return replace(bound, input=first) if targets_in else replace(bound, output=first)
        if between is not None:
            raise _overlap()
        return self._apart(bound, own * item)

    def _apart(self, bound: Bound, place: int) -> Bound:
        """An in-place schedule, of x and out that lie apart. ``place``: that of the own block in the larger buffer."""
        from_x, to_out = Source.X, Source.OUT
        if self.splits:
            return replace(bound, input=from_x, output=to_out, apart=True)
        assert self.alias is not None
        if self.alias.target == "out":
            return replace(bound, output=to_out, initial=from_x, place=place)
        if self.input_blocks == self.output_blocks:
            return replace(bound, input=to_out, initial=from_x)
        if not self.writes_input:
            return replace(bound, input=from_x, taken=place)
        return replace(bound, input=Source.SCRATCH, initial=from_x, taken=place)

    def _needs(self, name: str) -> WrongType:
        return WrongType(f"rank {self.rank} needs {name} in {self.name}", caller())

    def _unit(self, x: Operand | None, out: Operand | None) -> int | None:
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


def _overlap() -> InvalidArgument:
    return InvalidArgument(
        "x and out overlap", caller(), "they may be the same, or one the own block of the other, or lie apart"
    )


def _shape(x: Operand, layout: Layout) -> tuple[int, ...]:
    """Shape of an output that the caller did not give: that of x, or joined along axis 0, or flat."""
    if layout.output_blocks == layout.input_blocks:
        return x.shape
    if x.shape and x.shape[0] * layout.output_blocks % layout.input_blocks == 0:
        return (x.shape[0] * layout.output_blocks // layout.input_blocks, *x.shape[1:])
    return (x.size // layout.input_blocks * layout.output_blocks,)
