"""Plans that the ranks of a communicator share: whoever first needs a program compiles it, once for all.

They lie in the memory of the meeting, in a part that is read and written but never mapped. Whoever comes first to a
program locks it, which the kernel undoes should that rank end, compiles and proves, and leaves the plans of all ranks.
Nobody depends on it: a rank that waits in vain, or finds what makes no sense, compiles for itself alone.

    how often they began anew, and bytes of the entries (u64 each)
    an entry: digest of its key, bytes of what follows (u64), lengths of the plans (u32 each), the plans, compressed
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import DecodeError, msgpack

from hocket import _native
from hocket.ir.schedule import Schedule
from hocket.runtime.plan import Plan, lower, lower_all

_HEAD = struct.Struct("<QQ")
_ENTRY = struct.Struct("<32sQ")
_ROOM = 64 << 20  # bytes of the entries at most; then they begin anew, and who is late compiles once more
_SHORTEST_NAP, _LONGEST_NAP = 0.001, 0.1  # seconds between two looks for what another rank compiles


class PlanCache:
    """Of one communicator. ``lifelines[r]`` is readable once rank r is gone, -1 where there is none."""

    def __init__(
        self, descriptor: int, rank: int, lifelines: Sequence[int], timeout: float, nodes: Sequence[int] = ()
    ) -> None:
        """``descriptor``: the memory that ranks share, which stays the caller's."""
        self._descriptor = descriptor
        self._rank = rank
        self._size = len(lifelines)
        self._nodes = nodes
        self._patience = timeout / 2  # to be in the call before others have waited too long there
        self._gone = select.poll()
        for other, lifeline in enumerate(lifelines):
            if lifeline >= 0 and (not nodes or nodes[other] == nodes[rank]):  # whoever may hold the lock
                self._gone.register(lifeline, select.POLLIN)
        self._turn, self._used = 0, 0
        self._places: dict[bytes, tuple[int, int]] = {}  # of what follows the heads of entries, by their keys' digests
        self._alone = threading.Lock()  # the lock of the file is the process's

    def get(self, key: str, compiled: Callable[[], Schedule]) -> Plan:
        """The plan of this rank for the schedule that ``compiled`` returns, on whichever rank it is called.

        ``key`` is the same for the same schedule. Raises what ``compiled`` raises.
        """
        if self._size == 1 or not self._alone.acquire(blocking=False):
            return lower(compiled(), self._rank, self._nodes)
        try:
            wanted = hashlib.sha256(key.encode()).digest()
            found = self._found_or_locked(wanted)
            if isinstance(found, Plan):
                return found
            if not found:
                return lower(compiled(), self._rank, self._nodes)
            plans = lower_all(compiled(), range(self._size), self._nodes)
            self._add(wanted, plans)
            return plans[self._rank]
        finally:
            self._unlock()
            self._alone.release()

    def _found_or_locked(self, wanted: bytes) -> Plan | bool:
        """This rank's plan of a key; True if it has the lock and there is none; False if it is to wait no longer."""
        begun = time.monotonic()
        with suppress(OSError):  # a file system without locks
            while True:
                if self._lock(fcntl.LOCK_SH):
                    found = self._find(wanted) or self._lock(fcntl.LOCK_EX)
                    if found:
                        return found
                    self._unlock()
                # Should a rank end, or the one that compiles stop, the call will say so.
                waited = time.monotonic() - begun
                if waited > self._patience or self._gone.poll(1e3 * min(max(_SHORTEST_NAP, waited / 8), _LONGEST_NAP)):
                    break
        return False

    def _lock(self, how: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, how | fcntl.LOCK_NB, 1, _native.PLANS)
        except (BlockingIOError, PermissionError):  # POSIX leaves it to the system which
            return False
        return True

    def _unlock(self) -> None:
        with suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _native.PLANS)

    def _find(self, wanted: bytes) -> Plan | None:
        self._read_on()
        with suppress(KeyError, struct.error, zlib.error, DecodeError):  # there is none, or it is not what a rank left
            at, length = self._places[wanted]
            body = os.pread(self._descriptor, length, at)
            lengths = struct.unpack_from(f"<{self._size}I", body)
            begin = 4 * self._size + sum(lengths[: self._rank])
            return msgpack.decode(zlib.decompress(body[begin : begin + lengths[self._rank]]), type=Plan)
        return None

    def _read_on(self) -> None:
        """Find the places of entries that are new since the last time."""
        head = os.pread(self._descriptor, _HEAD.size, _native.PLANS).ljust(_HEAD.size, b"\0")
        turn, used = _HEAD.unpack(head)
        if turn != self._turn:
            self._turn, self._used, self._places = turn, 0, {}
        while self._used + _ENTRY.size <= min(used, _ROOM):
            at = _native.PLANS + _HEAD.size + self._used
            key, length = _ENTRY.unpack(os.pread(self._descriptor, _ENTRY.size, at).ljust(_ENTRY.size, b"\0"))
            self._places[key] = at + _ENTRY.size, min(length, _ROOM)
            self._used += _ENTRY.size + length

    def _add(self, key: bytes, plans: Sequence[Plan]) -> None:
        """Only with the lock, when nothing is new."""
        packed = [zlib.compress(msgpack.encode(plan), 1) for plan in plans]
        body = struct.pack(f"<{self._size}I", *map(len, packed)) + b"".join(packed)
        entry = _ENTRY.pack(key, len(body)) + body
        turn, used = self._turn, self._used
        if used + len(entry) > _ROOM:
            turn, used = turn + 1, 0
        if len(entry) <= _ROOM:
            with suppress(OSError):  # no room
                os.pwrite(self._descriptor, entry, _native.PLANS + _HEAD.size + used)
                os.pwrite(self._descriptor, _HEAD.pack(turn, used + len(entry)), _native.PLANS)
