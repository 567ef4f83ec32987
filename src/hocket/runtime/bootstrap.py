"""How ranks meet: a Unix socket, and what is passed over it.

Rank 0 listens on an abstract socket, whose name holds a token nobody can guess; nothing lies in a file system. Every
rank sends it one end of its *lifeline*, a socket pair whose other end only that rank holds, so that the kernel tells
all who hold the first end when the rank is gone. Rank 0 hands out all lifelines and a sealed memfd, the shared memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import selectors
import socket
import stat
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from hocket import _native
from hocket.errors import BootstrapFailed, PeerFailed
from hocket.runtime.launchers import RANK, SIZE, TOKEN, Place, place

_LAUNCHER = "HOCKET_LAUNCHER"  # "descriptor:inode" of a socket on which the launcher says that a rank has ended
_BATCH = 128  # descriptors in one message; the kernel takes 253
_MESSAGE = 1 << 16
_meetings = count()  # a program may call init() several times; each rank counts its own calls, in the same order


@dataclass(slots=True)
class Meeting:
    """What a rank has once all have met. Descriptors belong to it until they are taken.

    ``lifelines[r]`` is readable once rank r is gone; -1 for the own rank. ``crowded``: there are more ranks than cores.
    """

    rank: int
    size: int
    memory: int
    lifelines: list[int]
    own_lifeline: socket.socket | None
    crowded: bool


class Ends:
    """A launcher's word to ranks that still wait for each other: one of them has ended, so they never will meet.

    One socket pair a job. All ranks inherit ``far`` and only peek, so that all can read what is written once.
    """

    def __init__(self) -> None:
        self._near, self.far = socket.socketpair()

    def tell(self, rank: int, how: str) -> None:
        """``how``: a verb phrase. The first end counts."""
        with suppress(OSError):
            self._near.send(f"{rank} {how}".encode())
            self._near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._near.close()
        self.far.close()


def environment(ranks: int, ends: Ends) -> list[dict[str, str]]:
    """What a launcher adds to the environment of each of its processes, which inherit ``ends.far``."""
    token = secrets.token_hex(16)
    launcher = f"{ends.far.fileno()}:{os.fstat(ends.far.fileno()).st_ino}"
    return [{RANK: str(rank), SIZE: str(ranks), TOKEN: token, _LAUNCHER: launcher} for rank in range(ranks)]


def _from_launcher(variables: Mapping[str, str] = os.environ) -> dict[int, int | None]:
    """The socket on which the launcher tells of ends, if this process still has it."""
    with suppress(OSError, ValueError):
        descriptor, inode = map(int, variables.get(_LAUNCHER, "").split(":"))
        found = os.fstat(descriptor)
        if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode:
            return {descriptor: None}
    return {}


def meet(timeout: float) -> Meeting:
    """Wait until all ranks are here. One rank alone without a launcher.

    Raises BootstrapFailed, also when they are not all here after ``timeout`` seconds, and PeerFailed when one has ended
    that never will be.
    """
    here = place()
    if here is None:
        return Meeting(0, 1, _memory(), [-1], None, crowded=False)
    return gather(replace(here, token=f"{here.token}/{next(_meetings)}"), timeout, _from_launcher())


def gather(here: Place, timeout: float, watched: Mapping[int, int | None]) -> Meeting:
    """Wait until all ranks of one token are here.

    ``watched`` maps sockets to the rank whose end makes them readable, None where a message on it says which. No rank
    can leave a meeting before all have come, so if one ends while this rank waits for any, they never will meet.
    """
    if here.size == 1:
        return Meeting(0, 1, _memory(), [-1], None, crowded=False)
    near, far = socket.socketpair()
    address = f"\0hocket/{here.token}"
    try:
        with far:
            meeting = _host if here.rank == 0 else _join
            met = meeting(here, address, timeout, far, watched)
    except (OSError, ValueError) as error:
        near.close()
        if isinstance(error, TimeoutError):
            raise _absent(here, timeout, {0}) from error
        raise BootstrapFailed(f"rank {here.rank} could not meet the others: {error}") from error
    except BaseException:
        near.close()
        raise
    met.own_lifeline = near
    os.close(met.lifelines[here.rank])
    met.lifelines[here.rank] = -1
    return met


def _memory() -> int:
    """Shared memory without a name, which nobody can shrink under our feet. Sparse: only what is used takes memory."""
    try:
        descriptor = os.memfd_create("hocket", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _native.FILE_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise BootstrapFailed(
            f"there is no shared memory: {error.strerror}", "a limit on the size of files (ulimit -f) must be lifted"
        ) from error
    return descriptor


def _absent(here: Place, timeout: float, ranks: Collection[int]) -> BootstrapFailed:
    which = ", ".join(map(str, sorted(ranks)))
    return BootstrapFailed(
        f"not all of the {here.size} ranks were here after {timeout:.3g} s: {which} not seen",
        "ranks must be on one machine, in one network namespace",
    )


def _host(here: Place, address: str, timeout: float, own: socket.socket, watched: Mapping[int, int | None]) -> Meeting:
    lifelines = [os.dup(own.fileno())] + [-1] * (here.size - 1)
    cores = set(os.sched_getaffinity(0))
    guests: dict[int, socket.socket] = {}
    strangers: set[socket.socket] = set()  # who have connected and not said hello, or nothing that can be accepted
    memory = -1
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(here.size)
            failed = _await_guests(here, listener, timeout, watched, guests, strangers, lifelines, cores)
            if failed is not None:
                _accept(listener, strangers, timeout)  # who has come in the meantime is to know as well
        if failed is None:
            memory = _memory()
        crowded = here.size > min(len(cores), _quota())
        terms = json.dumps({"failed": _told(failed), "crowded": crowded}).encode()
        for guest in (*guests.values(), *strangers) if failed else guests.values():
            with suppress(ConnectionError):  # it is gone; its lifeline tells, in the first call
                guest.sendall(terms)
                for sent in range(0, 0 if failed else here.size, _BATCH):
                    socket.send_fds(guest, [b"lifelines"], lifelines[sent : sent + _BATCH])
                if failed is None:
                    socket.send_fds(guest, [b"memory"], [memory])
        if failed is not None:
            raise failed
    except BaseException:
        for descriptor in (*lifelines, memory):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        for guest in (*guests.values(), *strangers):
            guest.close()
    return Meeting(0, here.size, memory, lifelines, None, crowded)


def _await_guests(
    here: Place,
    listener: socket.socket,
    timeout: float,
    watched: Mapping[int, int | None],
    guests: dict[int, socket.socket],
    strangers: set[socket.socket],
    lifelines: list[int],
    cores: set[int],
) -> BootstrapFailed | PeerFailed | None:
    """Fill ``guests``, their ``lifelines`` and all their ``cores``. Returns why that cannot be done."""
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as waiting:
        for descriptor in (listener.fileno(), *watched):
            waiting.register(descriptor, selectors.EVENT_READ)
        while len(guests) < here.size - 1:
            ready = {key.fileobj for key, _ in waiting.select(deadline - time.monotonic())}
            failed = _ended(ready, watched)
            if failed is not None:
                return failed
            if not ready and time.monotonic() >= deadline:
                return _absent(here, timeout, set(range(1, here.size)) - guests.keys())
            for rank, guest in guests.items():
                if guest in ready:  # it has nothing more to say
                    return PeerFailed(here.name(rank), "ended while the ranks were meeting")
            for guest in [guest for guest in strangers if guest in ready]:
                data, descriptors = b"", list[int]()
                with suppress(ConnectionError):
                    data, descriptors, _, _ = socket.recv_fds(guest, _MESSAGE, 1)
                if not data:  # who it was is not known; what started it will tell
                    waiting.unregister(guest)
                    strangers.remove(guest)
                    guest.close()
                    continue
                hello = json.loads(data)
                objection = _objection(here, hello, guests)
                if objection is not None:
                    for descriptor in descriptors:
                        os.close(descriptor)
                    return BootstrapFailed(objection)
                strangers.remove(guest)
                guests[hello["rank"]] = guest
                (lifelines[hello["rank"]],) = descriptors
                cores |= set(hello["cores"])
            if listener.fileno() in ready:
                for guest in _accept(listener, strangers, timeout):
                    waiting.register(guest, selectors.EVENT_READ)
    return None


def _accept(listener: socket.socket, strangers: set[socket.socket], timeout: float) -> list[socket.socket]:
    """Add to the strangers who waits at the door."""
    found = []
    with suppress(BlockingIOError):
        while True:
            guest, _ = listener.accept()
            guest.settimeout(timeout)
            if _same_user(guest):
                found.append(guest)
            else:
                guest.close()
    strangers.update(found)
    return found


def _ended(ready: Collection[object], watched: Mapping[int, int | None]) -> BootstrapFailed | PeerFailed | None:
    """The error that says whose end one of the watched sockets reports."""
    for descriptor in watched.keys() & ready:
        with socket.socket(fileno=os.dup(descriptor)) as line:
            rank, text = watched[descriptor], line.recv(_MESSAGE, socket.MSG_PEEK).decode()
        if rank is not None:
            return PeerFailed(rank, "ended before the ranks had met")
        if not text:
            return BootstrapFailed("the launcher ended before the ranks had met")
        number, _, how = text.partition(" ")
        return PeerFailed(int(number), f"{how} before the ranks had met")
    return None


def _told(error: BootstrapFailed | PeerFailed | None) -> list[object] | None:
    return None if error is None else [error.rank if isinstance(error, PeerFailed) else None, error.reason]


def _objection(here: Place, hello: Mapping[str, object], guests: Mapping[int, socket.socket]) -> str | None:
    rank = hello["rank"]
    if hello["protocol"] != _native.PROTOCOL:
        return f"rank {rank} runs another version of hocket"
    if hello["size"] != here.size:
        return f"rank {rank} was told of {hello['size']} ranks, rank 0 of {here.size}"
    if rank == 0 or rank in guests:
        return f"two processes are rank {rank}"
    return None


def _join(here: Place, address: str, timeout: float, own: socket.socket, watched: Mapping[int, int | None]) -> Meeting:
    deadline = time.monotonic() + timeout
    hello = {
        "protocol": _native.PROTOCOL,
        "rank": here.rank,
        "size": here.size,
        "cores": sorted(os.sched_getaffinity(0)),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host, selectors.DefaultSelector() as waiting:
        for descriptor in watched:
            waiting.register(descriptor, selectors.EVENT_READ)
        pause = 0.001
        while True:
            host.settimeout(_left(deadline))
            try:
                host.connect(address)
                break
            except (ConnectionRefusedError, BlockingIOError):  # rank 0 is not there yet, or has its hands full
                ended = _ended({key.fileobj for key, _ in waiting.select(pause)}, watched)
                if ended is not None:
                    raise ended from None
                pause = min(2 * pause, 0.02)
        if not _same_user(host):
            raise BootstrapFailed("somebody else's process took the place of rank 0")

        def gone() -> BootstrapFailed | PeerFailed:
            ended = _ended({key.fileobj for key, _ in waiting.select(0)}, watched)
            return ended or PeerFailed(here.name(0), "ended while the ranks were meeting")

        received: list[int] = []
        try:
            socket.send_fds(host, [json.dumps(hello).encode()], [own.fileno()])
            host.settimeout(_left(deadline))
            answer = host.recv(_MESSAGE)
            if not answer:
                raise gone()
            terms = json.loads(answer)
            if terms["failed"] is not None:
                rank, reason = terms["failed"]
                raise BootstrapFailed(reason) if rank is None else PeerFailed(rank, reason)
            while len(received) < here.size + 1:
                data, descriptors, _, _ = socket.recv_fds(host, 16, _BATCH)
                received += descriptors
                if not data:
                    raise gone()
                if not descriptors:
                    raise BootstrapFailed("no more files can be opened", "ulimit -n must be raised")
        except BaseException as error:
            for descriptor in received:
                os.close(descriptor)
            if isinstance(error, ConnectionError):
                raise gone() from error
            raise
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        return Meeting(here.rank, here.size, received[-1], received[:-1], None, bool(terms["crowded"]))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _same_user(peer: socket.socket) -> bool:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def _quota() -> float:
    """Cores' worth of time that the control group allows; infinite where it does not say."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return float("inf") if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return float("inf")
