"""How a unit of n elements is cut into chunks (design section 3, "Uneven sizes"); native/core cuts it the same way."""

from __future__ import annotations

from hocket.collectives import Collective
from hocket.errors import UnevenSize
from hocket.ir.schedule import Schedule


def chunk_length(chunks: int, n: int, itemsize: int) -> int:
    """Elements of a full chunk of a unit of ``n`` elements: an even share, rounded up to 64 bytes."""
    line = max(1, 64 // itemsize)
    share = -(-n // chunks)
    return -(-share // line) * line


def bounds(collective: Collective, n: int, itemsize: int, index: int) -> slice:
    """Elements of chunk ``index`` of an input or output buffer; the last chunks of a unit are shorter or empty."""
    unit, position = divmod(index, collective.chunks)
    q = chunk_length(collective.chunks, n, itemsize)
    return slice(unit * n + min(position * q, n), unit * n + min((position + 1) * q, n))


def check_size(schedule: Schedule, n: int, itemsize: int) -> None:
    """Raise UnevenSize if a unit of ``n`` elements cannot be cut so that every value fits where it goes.

    Elements whose size does not divide 64 bytes are only ever moved, and cut as bytes.
    """
    if not itemsize or 64 % itemsize:
        n, itemsize = n * itemsize, 1
    for narrowing in schedule.narrowings:
        value, location = (
            bounds(schedule.collective, n, itemsize, place) for place in (narrowing.value, narrowing.location)
        )
        if value.stop - value.start != location.stop - location.start:
            raise UnevenSize(
                schedule.name, n, schedule.collective.chunks, narrowing.value, narrowing.location, narrowing.where
            )
