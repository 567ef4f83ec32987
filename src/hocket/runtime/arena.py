"""The arena of this process: arrays that other ranks read and write in place (``Communicator.empty``)."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence

import numpy as np

from hocket import _native
from hocket.collectives import whole
from hocket.errors import InvalidArgument, WrongType, caller
from hocket.runtime import segments
from hocket.runtime.operands import Array, name_of, numpy_type


@functools.cache
def own() -> _native.Arena:
    """The one of this process, made when first needed. Raises BootstrapFailed where there is no shared memory."""
    return _native.Arena(segments.create_arena())


def empty(shape: object, dtype: object) -> Array:
    """See ``Communicator.empty``."""
    kind = numpy_type(dtype)
    if kind.hasobject:
        raise WrongType(f"dtype is {kind}: references mean nothing in another process", caller())
    found = lengths(shape)
    size = math.prod(found) * kind.itemsize
    if size > _native.FILE_BYTES:
        raise MemoryError(f"an array of {size} bytes")
    return np.ndarray(found, kind, memoryview(own().allocate(size)))


def lengths(shape: object) -> tuple[int, ...]:
    """Of a shape, or of one length. Raises WrongType, InvalidArgument."""
    given = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    found = []
    for length in map(whole, given):
        if length is None:
            raise WrongType(f"shape must be an integer or a sequence of them, not {name_of(shape)} {shape!r}", caller())
        if length < 0:
            raise InvalidArgument(f"shape must not be negative, not {shape!r}", caller())
        found.append(length)
    return tuple(found)


def _forget_in_child() -> None:
    """What this process has inherited is its own from here on; what it makes, it makes in an arena of its own."""
    if own.cache_info().currsize:
        own().forked()
        own.cache_clear()


os.register_at_fork(after_in_child=_forget_in_child)
