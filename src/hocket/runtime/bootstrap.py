"""How ranks meet: a launcher's environment, a Unix socket, and what is passed over it.

Rank 0 listens on an abstract socket, whose name holds a token nobody can guess; nothing lies in a file system. Every
rank sends it one end of its *lifeline*, a socket pair whose other end only that rank holds, so that the kernel tells
all who hold the first end when the rank is gone. Rank 0 hands out all lifelines and a sealed memfd, the shared memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hocket import _native
from hocket.errors import BootstrapFailed

_RANK, _SIZE, _TOKEN = "HOCKET_RANK", "HOCKET_SIZE", "HOCKET_RENDEZVOUS"
_BATCH = 128  # descriptors in one message; the kernel takes 253
_MESSAGE = 1 << 16
_meetings = count()  # a program may call init() several times; each rank counts its own calls, in the same order


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, and under which token the ranks meet."""

    rank: int
    size: int
    token: str


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


def environment(ranks: int) -> list[dict[str, str]]:
    """What a launcher adds to the environment of each of its processes."""
    token = secrets.token_hex(16)
    return [{_RANK: str(rank), _SIZE: str(ranks), _TOKEN: token} for rank in range(ranks)]


def place(variables: Mapping[str, str] = os.environ) -> Place | None:
    """The place a launcher gave this process; None without a launcher. Raises BootstrapFailed if it makes no sense."""
    given = [name for name in (_RANK, _SIZE, _TOKEN) if name in variables]
    if not given:
        return None
    try:
        rank, size, token = int(variables[_RANK]), int(variables[_SIZE]), variables[_TOKEN]
    except (KeyError, ValueError) as error:
        raise BootstrapFailed(f"{_RANK}, {_SIZE} and {_TOKEN} belong together, as a launcher sets them") from error
    if not 0 <= rank < size or not token:
        raise BootstrapFailed(f"{_RANK}={rank} is no rank of {_SIZE}={size}")
    return Place(rank, size, token)


def meet(timeout: float) -> Meeting:
    """Wait until all ranks are here. One rank alone without a launcher.

    Raises BootstrapFailed, also when they are not all here after ``timeout`` seconds.
    """
    here = place()
    if here is None or here.size == 1:
        return Meeting(0, 1, _memory(), [-1], None, crowded=False)
    near, far = socket.socketpair()
    deadline = time.monotonic() + timeout
    address = f"\0hocket/{here.token}/{next(_meetings)}"
    try:
        with far:
            hello = {
                "protocol": _native.PROTOCOL,
                "rank": here.rank,
                "size": here.size,
                "cores": sorted(os.sched_getaffinity(0)),
            }
            met = _host(here, address, deadline, far) if here.rank == 0 else _join(here, address, deadline, far, hello)
    except (OSError, ValueError) as error:
        near.close()
        if isinstance(error, TimeoutError):
            raise BootstrapFailed(f"not all of the {here.size} ranks were here after {timeout:.3g} s") from error
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


def _host(here: Place, address: str, deadline: float, own: socket.socket) -> Meeting:
    lifelines = [os.dup(own.fileno())] + [-1] * (here.size - 1)
    guests: dict[int, socket.socket] = {}
    memory = -1
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(here.size)
            cores = [set(os.sched_getaffinity(0))]
            problem = None
            while len(guests) < here.size - 1 and problem is None:
                listener.settimeout(_left(deadline))
                guest, _ = listener.accept()
                if not _same_user(guest):
                    guest.close()
                    continue
                guest.settimeout(_left(deadline))
                data, descriptors, _, _ = socket.recv_fds(guest, _MESSAGE, 1)
                if not data:  # it ended; what started it will tell
                    guest.close()
                    continue
                hello = json.loads(data)
                rank = hello["rank"]
                problem = _objection(here, hello, guests)
                guests[rank] = guest
                lifelines[rank] = descriptors[0]
                cores.append(set(hello["cores"]))
        crowded = here.size > min(len(set().union(*cores)), _quota())
        memory = _memory() if problem is None else -1
        for guest in guests.values():
            guest.sendall(json.dumps({"problem": problem, "crowded": crowded}).encode())
            for sent in range(0, 0 if problem else here.size, _BATCH):
                socket.send_fds(guest, [b"lifelines"], lifelines[sent : sent + _BATCH])
            if problem is None:
                socket.send_fds(guest, [b"memory"], [memory])
        if problem is not None:
            raise BootstrapFailed(problem)
    except BaseException:
        for descriptor in (*lifelines, memory):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        for guest in guests.values():
            guest.close()
    return Meeting(0, here.size, memory, lifelines, None, crowded)


def _objection(here: Place, hello: Mapping[str, object], guests: Mapping[int, socket.socket]) -> str | None:
    rank = hello["rank"]
    if hello["protocol"] != _native.PROTOCOL:
        return f"rank {rank} runs another version of hocket"
    if hello["size"] != here.size:
        return f"rank {rank} was told of {hello['size']} ranks, rank 0 of {here.size}"
    if rank == 0 or rank in guests:
        return f"two processes are rank {rank}"
    return None


def _join(here: Place, address: str, deadline: float, own: socket.socket, hello: Mapping[str, object]) -> Meeting:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
        pause = 0.001
        while True:
            host.settimeout(_left(deadline))
            try:
                host.connect(address)
                break
            except (ConnectionRefusedError, BlockingIOError):  # rank 0 is not there yet, or has its hands full
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        if not _same_user(host):
            raise BootstrapFailed("somebody else's process took the place of rank 0")
        host.settimeout(_left(deadline))
        socket.send_fds(host, [json.dumps(hello).encode()], [own.fileno()])
        host.settimeout(_left(deadline))
        answer = host.recv(_MESSAGE)
        if not answer:
            raise BootstrapFailed("rank 0 ended while the ranks were meeting")
        terms = json.loads(answer)
        if terms["problem"] is not None:
            raise BootstrapFailed(terms["problem"])
        received: list[int] = []
        try:
            while len(received) < here.size + 1:
                data, descriptors, _, _ = socket.recv_fds(host, 16, _BATCH)
                received += descriptors
                if not data or not descriptors:
                    raise BootstrapFailed("rank 0 ended while the ranks were meeting, or descriptors ran out")
        except BaseException:
            for descriptor in received:
                os.close(descriptor)
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
