"""What ``counts=`` means on a rank: the rows of its blocks, the arrays that go with them, the units of native code."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from hocket import _native
from hocket.collectives import whole
from hocket.errors import InvalidArgument, caller, counted
from hocket.runtime.operands import Operands


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of each unit of this rank's input and of its output.

    ``agreed``: those of every rank, which all know. Without, a rank knows only what it sends to each rank and gets from
    each.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    agreed: tuple[int, ...] | None = None

    @staticmethod
    def agree(given: object, ranks: int, rank: int, inputs: int, outputs: int) -> Counts:
        """From rows for each rank. ``inputs`` and ``outputs``: units of the buffers of ``rank``, one, all or none."""
        rows = _rows(given, ranks)
        if rows is None:
            raise InvalidArgument(f"counts must be the rows of each of {ranks} ranks, not {given!r}", caller())
        mine, result = (rows if units == ranks else rows[rank : rank + units] for units in (inputs, outputs))
        return Counts(mine, result, rows)

    @staticmethod
    def exchange(given: object, ranks: int) -> Counts:
        """From a pair: the rows that this rank sends to each rank, and those that it gets from each."""
        pair = given if isinstance(given, Sequence | np.ndarray) and len(given) == 2 else (None, None)
        sends, receives = (_rows(rows, ranks) for rows in pair)
        if sends is None or receives is None:
            raise InvalidArgument(
                f"counts must be a pair, the rows to each of {ranks} ranks and those from each, not {given!r}", caller()
            )
        return Counts(sends, receives)

    def shape(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """Of the result, from that of ``x``. Raises InvalidArgument."""
        rows = sum(self.inputs or self.agreed or ())
        if x[:1] != (rows,):
            raise InvalidArgument(f"counts call for an x of {counted(rows, 'row')}, not of shape {x}", caller())
        return (sum(self.outputs), *x[1:])

    def check_out(self, shape: tuple[int, ...]) -> None:
        """Raises InvalidArgument for what no result can be like, of a call that has no ``x``."""
        rows = sum(self.outputs)
        if shape[:1] != (rows,):
            raise InvalidArgument(f"counts call for an out of {counted(rows, 'row')}, not of shape {shape}", caller())

    def bytes(self, operands: Operands) -> int | None:
        """Bytes of a buffer with the blocks of all ranks; None where a rank knows only its own."""
        operand = operands.out if operands.x is None else operands.x
        if self.agreed is None or operand is None:
            return None
        return sum(self.agreed) * math.prod(operand.shape[1:]) * operand.type.itemsize

    def own(self, unit: int) -> int:
        """The row where a unit of the larger buffer begins."""
        return sum(max(self.inputs, self.outputs, key=len)[:unit])

    def units(self, row: int, itemsize: int) -> _native.Units:
        """For native code. ``row``: elements of a row. Raises InvalidArgument for what no memory could hold."""
        if sum(self.known()) * row * itemsize >> 62:
            raise InvalidArgument("counts ask for more than any memory holds", caller())
        inputs, outputs = ([0, *accumulate(n * row * itemsize for n in rows)] for rows in (self.inputs, self.outputs))
        if self.agreed is None:
            elements = [[n * row for n in rows] for rows in (self.inputs, self.outputs)]
            return _native.Units(inputs, outputs, None, json.dumps(elements))
        text = ", ".join(map(str, self.agreed))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return _native.Units(inputs, outputs, int.from_bytes(digest, "little"), text)

    def known(self) -> tuple[int, ...]:
        """Rows of the units that this rank knows of."""
        return self.inputs + self.outputs if self.agreed is None else self.agreed


def transfers(texts: Sequence[str]) -> tuple[int, int, int, int] | None:
    """Of the ``text`` of every rank's units, a transfer of which two ranks expect different sizes.

    As from, to, elements sent, elements expected. None if some text was too long for its line.
    """
    try:
        counts = [json.loads(text) for text in texts]
    except ValueError:
        return None
    ranks = range(len(counts))
    pairs = ((s, r, counts[s][0][r], counts[r][1][s]) for s in ranks for r in ranks)
    return next((pair for pair in pairs if pair[2] != pair[3]), None)


def _rows(given: object, ranks: int) -> tuple[int, ...] | None:
    """Rows for each rank; None for what is not that."""
    if not isinstance(given, Sequence | np.ndarray) or len(given) != ranks:
        return None
    rows = [n for n in map(whole, given) if n is not None and n >= 0]
    return tuple(rows) if len(rows) == ranks else None
