"""Memory that others made, and that ranks read and write in place from then on (``Communicator.adopt``).

Who has it says where it lies and in which file. Which place of the file that is, the kernel says: so an address that is
no mapping of that file is found out, as is a file that others could not map. The others get its descriptor in a meeting
(bootstrap.py), map it, and only when all have does the first array in it count as shared.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from hocket.collectives import whole
from hocket.errors import InvalidArgument, WrongType, caller
from hocket.runtime import segments
from hocket.runtime.operands import address as address_of

if TYPE_CHECKING:
    from hocket.runtime.execution import Endpoint

Word = tuple[int, tuple[int, int], int]
"""What a rank says of what it adopts: its place in the rank's arena; place and bytes of its pages in the file; where in
these it begins."""


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of this process that others can map: ``skip`` bytes into ``pages``, a place in the file and bytes."""

    descriptor: int
    address: int
    nbytes: int
    pages: tuple[int, int]
    skip: int

    def overlaps(self, other: Region) -> bool:
        """Whether the two have an address in common."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


class Adopted:
    """Memory that a communicator has adopted, until ``close``, or the end of the communicator. Also a context manager.

    It must stay mapped until then: what is put at its address later would be taken for it.
    """

    def __init__(self, endpoint: Endpoint, place: int | None) -> None:
        self._endpoint = endpoint
        self._place = place

    def close(self) -> None:
        """Arrays in it are ordinary ones from here on; closing twice is allowed.

        This rank alone; the others let go of it when memory is adopted next, or when they leave the communicator. Waits
        for calls in the background. Raises CommunicatorBusy where another thread is in a call.
        """
        if self._place is not None:
            self._endpoint.disown(self._place)
            self._place = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def region(descriptor: object, address: object, nbytes: object) -> Region:
    """Raises WrongType and InvalidArgument for what cannot be adopted."""
    file, begin, length = whole(descriptor), whole(address), whole(nbytes)
    if file is None or begin is None or length is None:
        raise WrongType("descriptor, address and nbytes must be integers", caller())
    if length < 1:
        raise InvalidArgument(f"nbytes must be positive, not {length}", caller())
    try:
        found = os.fstat(file)
        if not segments.ours(file):
            raise InvalidArgument(f"descriptor {file} is no file of this user, which others could map", caller())
        with mmap.mmap(file, 1) as trial:  # to store, as others will
            mappings = list(_mappings())
            there = address_of(np.frombuffer(trial, np.uint8))
        name = next(mapping.file for mapping in mappings if mapping.begin <= there < mapping.end)
    except (OSError, OverflowError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"descriptor {file} cannot be mapped so that all may store: {error}", caller()) from error
    place = _place(mappings, name, begin, length)
    if place is None:
        raise InvalidArgument(
            f"the {length} bytes at {begin:#x} are no shared, writeable mapping of descriptor {file}", caller()
        )
    if found.st_size < place + length:
        raise InvalidArgument(f"the file ends after {found.st_size} bytes, before byte {place + length}", caller())
    page = max(found.st_blksize, mmap.PAGESIZE)
    first = place // page * page
    return Region(file, begin, length, (first, -(-(place + length - first) // page) * page), place - first)


@dataclass(frozen=True, slots=True)
class _Mapping:
    begin: int
    end: int
    flags: str
    place: int
    file: tuple[str, str]  # device and inode


def _mappings() -> Iterator[_Mapping]:
    """Those of this process, in order of address. Raises OSError where there is no /proc."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, flags, place, *file = line.split()[:5]
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        yield _Mapping(begin, end, flags, int(place, 16), (file[0], file[1]))


def _place(mappings: Iterable[_Mapping], file: tuple[str, str], begin: int, length: int) -> int | None:
    """Where in the file the bytes at an address lie; None if not all of them do, one after the other."""
    place, at = None, begin
    for mapping in mappings:
        if not mapping.begin <= at < mapping.end:
            continue
        here = mapping.place + begin - mapping.begin
        if mapping.file != file or mapping.flags != "rw-s" or here != (here if place is None else place):
            return None
        place, at = here, mapping.end
        if at >= begin + length:
            return place
    return None
