"""How ranks meet: a Unix socket, and what is passed over it.

Rank 0 listens on an abstract socket, whose name holds a token nobody can guess; nothing lies in a file system. Every
rank sends it one end of its *lifeline*, a socket pair whose other end only that rank holds, so that the kernel tells
all who hold the first end when the rank is gone; and its arena, the memory of arrays that it lends. Rank 0 hands out
all of them and the shared memory, every rank says whether it could take them, and only then any goes on: what fails on
one fails on all, for the same reason.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec

from hocket import _native
from hocket.errors import BootstrapFailed, CallTimeout, HocketError, PeerFailed
from hocket.runtime import arena, machine, segments, stores, trace
from hocket.runtime.launchers import RANK, SIZE, TOKEN, Place, place
from hocket.runtime.tuned import difference, tuned
from hocket.tunables import CONFIG, VARIABLE

MOST_RANKS = math.isqrt(_native.MOST_CONNECTIONS)

_Wish = Literal[0, 1, 2]  # when calls are to reach into the memory of other ranks
_NEVER: _Wish = 0
_WHERE_FASTER: _Wish = 1
_ALWAYS: _Wish = 2
_WISHES = {"": _WHERE_FASTER, "never": _NEVER, "always": _ALWAYS}
_LAUNCHER = "HOCKET_LAUNCHER"  # "descriptor:inode" of a socket on which the launcher says that a rank has ended
_BATCH = 128  # descriptors in one message; the kernel takes 253
_MESSAGE = 1 << 16
PROTOCOL = f"{_native.PROTOCOL}.13"  # what all of a meeting must have in common
_LONGEST = 1e6  # seconds that the system can be asked to wait for; what is longer counts as for ever
_LINE = 4000  # characters of an error on its way to other ranks
_PATIENCE = 1.0  # seconds beyond the timeout in which rank 0 may say who was missing
_NAP = 0.05  # seconds after which a rank looks for rank 0 again, should that be unable to ring its bell
_FILES = "a limit on open files (ulimit -n) must be raised"
_meetings = count()  # a program may call init() several times; each rank counts its own calls, in the same order


Word = TypeVar("Word", bound="msgspec.Struct")

Schedules = Callable[[int], str]
"""Of a number of ranks, a digest of what calls by name take besides the default, the same on all ranks."""
Common = Mapping[str, int | str] | str
"""The numbers, and the digest of schedules, that all ranks must have in common, as one has them; or what is wrong with
them, to be told."""


class _Hello(msgspec.Struct):
    """What a rank says when it comes. One of another version may say less."""

    protocol: str
    rank: int
    size: int
    cores: list[int] = []
    witness: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    common: Common = {}


class _Common(msgspec.Struct):
    """What rank 0 says to all that have come. Descriptors come with it, and with messages that follow."""

    cores: int
    sockets: int
    witnesses: list[int]
    token: str


class _Reach(msgspec.Struct):
    """What a rank wishes as to each other's memory, and what all have agreed on."""

    reach: _Wish


class _Failure(msgspec.Struct):
    """Why there is no meeting, in place of what was to be said: a rank if it is of one, what happened, what helps.
    With no reason it says nothing: more descriptors come with it."""

    failed: tuple[int | None, str, str | None] | None = None


class MpiCommunicator(Protocol):
    """A communicator of mpi4py."""

    def Get_rank(self) -> int: ...  # noqa: N802
    def Get_size(self) -> int: ...  # noqa: N802
    def allgather(self, sendobj: bytes) -> list[bytes]: ...
    def Dup(self) -> MpiCommunicator: ...  # noqa: N802
    def Free(self) -> None: ...  # noqa: N802


@dataclass(slots=True)
class Meeting:
    """What a rank has once all have met. Descriptors belong to it until they are taken.

    ``lifelines[r]`` is readable once rank r is gone; the own one is the other end, -1 for a rank alone. ``arenas`` are
    the memory that ranks lend, -1 for the own rank. ``cores``: those of each rank, of all that they may use together; 0
    where there are more ranks than cores. ``sockets``: those that the ranks fill. ``processes``: the numbers of the
    ranks' processes, if all may access each other's memory, else none; ``always``: wherever they can, they do.
    ``token``: a secret of these ranks, from which they make those of their next meetings. ``nodes``: that of each rank,
    numbered by their lowest ranks, where there are several; then ``mpi`` has these ranks, and is this meeting's own,
    and ``emulated`` are the seconds and the bytes a second of a network that is only emulated, 0 for none; ``joins``:
    the leaders of all nodes have lifelines with each other; ``long_headers``: as in hocket.tuning.Call.
    """

    rank: int
    size: int
    memory: int
    lifelines: list[int]
    arenas: list[int]
    cores: int
    token: str
    sockets: int = 1
    processes: list[int] = field(default_factory=list)
    always: bool = False
    nodes: tuple[int, ...] = ()
    mpi: MpiCommunicator | None = None
    emulated: tuple[float, float] = (0.0, 0.0)
    joins: bool = False
    long_headers: bool = False

    def leave(self) -> None:
        """Close all but the memory and the arenas."""
        for lifeline in self.lifelines:
            if lifeline >= 0:
                os.close(lifeline)

    def undo(self) -> None:
        """Close all."""
        self.leave()
        for descriptor in (self.memory, *self.arenas):
            if descriptor >= 0:
                os.close(descriptor)


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


@contextmanager
def seat(store: stores.Store, rank: int, size: int, timeout: float) -> Iterator[stores.Seat]:
    """A place at a store, where a launcher's word of a rank that has ended is heard."""
    watched = _from_launcher()
    with selectors.DefaultSelector() as waiting:
        for descriptor in watched:
            waiting.register(descriptor, selectors.EVENT_READ)
        yield stores.Seat(store, rank, size, timeout, lambda pause: _raise_ended(waiting.select(pause), watched))


def meet(
    timeout: float,
    schedules: Schedules,
    store: stores.Store | None = None,
    rank: int = 0,
    size: int = 1,
    node: str | BootstrapFailed = "",
) -> Meeting:
    """Wait until all ranks are here: those of a store, or those of a launcher; one rank alone with neither.

    Raises BootstrapFailed, also when they are not all here after ``timeout`` seconds, PeerFailed when one has ended
    that never will be, InvalidArgument where HOCKET_TRACE names no file that can be written, and what ``schedules``
    raises, once all know. ``node``: as ``stores.place`` has it.
    """
    begun, watched = time.monotonic(), _from_launcher()
    here = Place(rank, size, "")
    if store is None:
        here = place() or here
        here = replace(here, token=f"{here.token}/{next(_meetings)}")
    if here.size > MOST_RANKS:
        raise BootstrapFailed(f"there are too many ranks: no more than {MOST_RANKS} can share memory")
    trace.begin(here.rank)
    if store is not None:
        with seat(store, rank, size, timeout) as mine:
            here = stores.place(mine, PROTOCOL, node)
    return gather(here, timeout, watched, schedules, spent=time.monotonic() - begun)


def no_schedules(_ranks: int) -> str:
    """What ranks say that take the default alone."""
    return ""


def gather(
    here: Place,
    timeout: float,
    watched: Mapping[int, int | None],
    schedules: Schedules = no_schedules,
    spent: float = 0.0,
) -> Meeting:
    """Wait until all ranks of one token are here and have what they need. ``spent``: seconds of ``timeout`` that are
    over.

    ``watched`` maps sockets to the rank whose end makes them readable, None where a message on it says which. No rank
    can leave a meeting before all have come, so if one ends while this rank waits for any, they never will meet.
    """
    if here.size == 1:
        tuned()
        schedules(1)
        arena.own()
        memory, cores = _memory(here), machine.cores(os.sched_getaffinity(0))
        return Meeting(0, 1, memory, [-1], [-1], cores, secrets.token_hex(16))
    known: str | HocketError
    try:
        known = schedules(here.size)
    except HocketError as error:
        known = error
    try:
        usable = sorted(os.sched_getaffinity(0))
        hello = _Hello(PROTOCOL, here.rank, here.size, usable, _native.WITNESS, common_of(here, known))
        met = (_host if here.rank == 0 else _join)(here, hello, timeout, spent, watched)
    except HocketError:
        if isinstance(known, HocketError):  # it says more than what all were told
            raise known from None
        raise
    except (OSError, ValueError) as error:
        raise _meant(here, timeout, error) from error
    os.close(met.arenas[here.rank])
    met.arenas[here.rank] = -1
    return met


def _host(here: Place, hello: _Hello, timeout: float, spent: float, watched: Mapping[int, int | None]) -> Meeting:
    host = _Host(here, timeout, spent, watched)
    created: int | BootstrapFailed = -1
    own: socket.socket | None = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setblocking(False)
        try:
            try:
                listener.bind(_address(here))
            except OSError as error:
                raise _meant(here, timeout, error) from error
            listener.listen(here.size)
            _ring(here)
            created = _created(here)  # while others are on their way
            hellos = [hello, *host.await_hellos(listener)]
            check_common([hello.common for hello in hellos], here.name)
            if isinstance(created, BootstrapFailed):  # only now, like all else that may fail: all are here to be told
                raise created
            own, far = socket.socketpair()
            host.lifelines[0] = far.detach()
            host.arenas[0] = os.dup(_lent(here))
            usable = [hello.cores for hello in hellos]
            cores, sockets = machine.cores(set().union(*usable)) // here.size, machine.sockets(usable)
            token, witnesses = secrets.token_hex(16), [hello.witness for hello in hellos]
            host.hand_out(_Common(cores, sockets, witnesses, token), created)
            processes = _attachable(here.rank, host.lifelines, witnesses)
            wishes = [_wish(here, processes), *host.await_answers()]
            agreed = max(wishes) if all(wishes) else _NEVER
            host.dismiss(_Reach(agreed))
        except BaseException as error:
            for descriptor in (*host.lifelines, *host.arenas, created if isinstance(created, int) else -1):
                if descriptor >= 0:
                    os.close(descriptor)
            if own is not None:
                own.close()
            host.dismiss(_told(here, _meant(here, timeout, error)), listener)
            raise
    with own:
        os.dup2(own.fileno(), host.lifelines[0], inheritable=False)
    processes, always = processes if agreed else [], agreed == _ALWAYS
    return Meeting(0, here.size, created, host.lifelines, host.arenas, cores, token, sockets, processes, always)


def _memory(here: Place) -> int:
    ranks = here.all or here.size
    return segments.create(ranks, here.token, on_several_nodes=ranks != here.size)


def _created(here: Place) -> int | BootstrapFailed:
    """The descriptor of the memory of a meeting, or why there is none."""
    try:
        return _memory(here)
    except BootstrapFailed as error:
        return BootstrapFailed(f"rank {here.name(here.rank)}: {error.reason}", error.help)


class _Host:
    """Rank 0's side of a meeting."""

    def __init__(self, here: Place, timeout: float, spent: float, watched: Mapping[int, int | None]) -> None:
        self.lifelines = [-1] * here.size
        self.arenas = [-1] * here.size
        self._hellos: dict[int, _Hello] = {}  # of those that have come
        self._here = here
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout - spent
        self._watched = watched
        self._guests: dict[int, socket.socket] = {}
        self._strangers: set[socket.socket] = set()  # who have connected and not said hello
        self._foreign: set[int] = set()  # other users who knocked

    def await_hellos(self, listener: socket.socket) -> list[_Hello]:
        """Fill ``lifelines`` and ``arenas``. Returns what these ranks have said, in their order."""
        with selectors.PollSelector() as waiting:  # takes no descriptor: there may be no more
            for descriptor in (listener.fileno(), *self._watched):
                waiting.register(descriptor, selectors.EVENT_READ)
            while len(self._guests) < self._here.size - 1:
                ready = self._wait(waiting, set(range(1, self._here.size)) - self._guests.keys())
                for rank, guest in self._guests.items():
                    if guest.fileno() in ready:  # it has nothing to say but that it gives up
                        self._hear(rank, guest, _Failure)
                for guest in [guest for guest in self._strangers if guest.fileno() in ready]:
                    if not self._introduce(guest):
                        waiting.unregister(guest)
                        guest.close()
                    self._strangers.remove(guest)
                if listener.fileno() in ready:
                    for guest in self._accept(listener):
                        waiting.register(guest, selectors.EVENT_READ)
        return [self._hellos[rank] for rank in range(1, self._here.size)]

    def hand_out(self, common: _Common, memory: int) -> None:
        """Give every guest all lifelines, all arenas and the memory."""
        descriptors = [*self.lifelines, *self.arenas, memory]
        for guest in self._guests.values():
            with suppress(ConnectionError):  # it is gone: await_answers will see
                for sent in range(0, len(descriptors), _BATCH):
                    batch = descriptors[sent : sent + _BATCH]
                    _send(guest, _Failure() if sent else common, batch, self._deadline)

    def await_answers(self) -> list[_Wish]:
        """Return once every guest has said that it has all: what they wish as to each other's memory."""
        pending, wishes = dict(self._guests), list[_Wish]()
        with selectors.PollSelector() as waiting:
            for descriptor in (*(guest.fileno() for guest in pending.values()), *self._watched):
                waiting.register(descriptor, selectors.EVENT_READ)
            while pending:
                ready = self._wait(waiting, pending)
                for rank in [rank for rank, guest in pending.items() if guest.fileno() in ready]:
                    guest = pending.pop(rank)
                    waiting.unregister(guest)
                    wishes.append(self._hear(rank, guest, _Reach).reach)
        return wishes

    def dismiss(self, word: msgspec.Struct, listener: socket.socket | None = None) -> None:
        """Say a last word to all that are here, also to those at the door."""
        at_door: Iterable[socket.socket] = () if listener is None else self._accept(listener)
        with suppress(OSError):  # there may be no more files
            for guest in chain(self._guests.values(), tuple(self._strangers), at_door):
                with guest, suppress(OSError):
                    _send(guest, word, [], self._deadline + _PATIENCE)

    def _wait(self, waiting: selectors.BaseSelector, missing: Collection[int]) -> set[int]:
        left = self._deadline - time.monotonic()
        events = waiting.select(min(max(0.0, left), _LONGEST))
        _raise_ended(events, self._watched)
        if not events and time.monotonic() >= self._deadline:
            users = ", ".join(map(str, sorted(self._foreign)))
            also = f"; a process of another user ({users}) was, and is no rank" if users else ""
            raise _absent(self._here, self._timeout, missing, also)
        return {key.fd for key, _ in events}

    def _hear(self, rank: int, guest: socket.socket, kind: type[Word]) -> Word:
        data = b""
        with suppress(ConnectionError):
            data = guest.recv(_MESSAGE)
        if not data:
            raise PeerFailed(self._here.name(rank), "ended while the ranks were meeting")
        return _heard(data, kind)

    def _introduce(self, guest: socket.socket) -> bool:
        """Make a stranger a guest; False if it left without a word, or says what no rank would.

        Of one that left, what started it will tell who it was. Until then it is a stranger, and is told if all fails.
        """
        data, descriptors, flags = b"", list[int](), 0
        with suppress(ConnectionError):
            data, descriptors, flags, _ = socket.recv_fds(guest, _MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
        hello: _Hello | None = None
        with ExitStack() as undone:
            for descriptor in descriptors:
                undone.callback(os.close, descriptor)
            with suppress(ValueError):
                hello = _heard(data, _Hello)
            if hello is not None:
                _check_hello(self._here, hello, self._hellos)
                if flags & socket.MSG_CTRUNC:
                    raise BootstrapFailed("rank 0 can open no more files", _FILES)
            if hello is None or not 0 < hello.rank < self._here.size or not _are_of_rank(descriptors):
                return False
            undone.pop_all()
        self._guests[hello.rank] = guest
        self.lifelines[hello.rank], self.arenas[hello.rank] = descriptors
        self._hellos[hello.rank] = hello
        return True

    def _accept(self, listener: socket.socket) -> Iterator[socket.socket]:
        with suppress(BlockingIOError):
            while True:
                guest, _ = listener.accept()
                user = _credentials(guest)[1]
                if user == os.geteuid():
                    self._strangers.add(guest)
                    yield guest
                else:
                    self._foreign.add(user)
                    guest.close()


def _join(here: Place, hello: _Hello, timeout: float, spent: float, watched: Mapping[int, int | None]) -> Meeting:
    deadline = time.monotonic() + timeout - spent
    received: list[int] = []
    own: socket.socket | None = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host, selectors.PollSelector() as waiting:
        for watch in watched:
            waiting.register(watch, selectors.EVENT_READ)
        _connect(host, here, deadline, waiting, watched)

        def hear(kind: type[Word]) -> Word:
            host.settimeout(_left(deadline + _PATIENCE))
            data = b""
            for _ in range(2):  # an error may come before the last word of a host that left, and only once
                with suppress(ConnectionError):
                    data, descriptors, flags, _ = socket.recv_fds(host, _MESSAGE, _BATCH, socket.MSG_CMSG_CLOEXEC)
                    received.extend(descriptors)
                    if flags & socket.MSG_CTRUNC:
                        raise BootstrapFailed(f"rank {here.name(here.rank)} can open no more files", _FILES)
                    break
            if not data:
                _raise_ended(waiting.select(0), watched)
                raise PeerFailed(here.name(0), "ended while the ranks were meeting")
            return _heard(data, kind)

        try:
            own, far = socket.socketpair()
            with far, suppress(ConnectionError):  # it may have said why it left
                _send(host, hello, [far.fileno(), _lent(here)], deadline)
            met = hear(_Common)
            while len(received) < 2 * here.size + 1:
                hear(_Failure)
            for descriptor in received[here.size : -1]:
                segments.check(descriptor)
            segments.check(received[-1], here.token)
            processes = _attachable(here.rank, received[: here.size], met.witnesses)
            with suppress(ConnectionError):
                _send(host, _Reach(_wish(here, processes)), [], deadline)
            agreed = hear(_Reach).reach
        except BaseException as error:
            for descriptor in received:
                os.close(descriptor)
            if own is not None:
                own.close()
            with suppress(OSError):
                _send(host, _told(here, _meant(here, timeout, error)), [], deadline + _PATIENCE)
            raise
    lifelines, arenas = received[: here.size], received[here.size : -1]
    with own:
        os.dup2(own.fileno(), lifelines[here.rank], inheritable=False)
    meeting = Meeting(here.rank, here.size, received[-1], lifelines, arenas, met.cores, met.token, met.sockets)
    return replace(meeting, processes=processes if agreed else [], always=agreed == _ALWAYS)


def check_common(said: Sequence[Common], name: Callable[[int], int] = int) -> None:
    """Raise BootstrapFailed unless all ranks go by the same numbers and schedules: they would come to different slots,
    tiles and messages. Only once all are here to be told. ``name``: the number of a rank in errors.
    """
    mine = said[0]
    for rank, theirs in enumerate(said):
        if isinstance(mine, str) or isinstance(theirs, str):
            raise BootstrapFailed(mine if isinstance(mine, str) else str(theirs))
        if mine[CONFIG] != theirs.get(CONFIG):
            raise BootstrapFailed(
                f"rank {name(rank)} takes other schedules than rank {name(0)}",
                f"{CONFIG}, its file, and what that names must be the same on all ranks",
            )
        found = difference(mine, theirs)
        if found is not None:
            raise BootstrapFailed(
                f"rank {name(rank)} is tuned otherwise than rank {name(0)}: {found}",
                f"{VARIABLE} and hocket's version must be the same on all ranks; hocket info lists the numbers",
            )


def _attachable(rank: int, lifelines: Sequence[int], witnesses: Sequence[int]) -> list[int]:
    """The processes of all ranks, if this one may read and write the memory of all others; none else."""
    if len(lifelines) > tuned().policy.cma_ranks:
        return []
    processes = [_maker(lifeline) for lifeline in lifelines]
    others = (r for r in range(len(lifelines)) if r != rank)
    return processes if all(_native.can_attach(processes[r], witnesses[r]) for r in others) else []


def _wish(here: Place, processes: Sequence[int]) -> _Wish:
    """What this rank wishes as to reaching into those processes: what HOCKET_REACH says, if there are any.

    Raises BootstrapFailed for variables that make no sense, while all can still be told.
    """
    given = os.environ.get("HOCKET_REACH", "")
    try:
        if given not in _WISHES:
            raise BootstrapFailed(f"HOCKET_REACH must be never or always, not {given[:40]!r}")
        machine.given_cache_bytes()
        machine.given_sockets()
    except BootstrapFailed as error:
        raise BootstrapFailed(f"rank {here.name(here.rank)}: {error.reason}") from error
    return _WISHES[given] if processes else _NEVER


def common_of(here: Place, schedules: str | HocketError) -> Common:
    """What this rank says of itself that all must have alike. ``schedules``: their digest, or why there is none."""
    try:
        if isinstance(schedules, HocketError):
            raise schedules
        return {**tuned().common, CONFIG: schedules}
    except HocketError as error:
        said = error.diagnostic()
        at = "".join(f" ({label.where})" for label in said.labels if label.primary)
        hint = "" if said.help is None else f" ({said.help})"
        return _clean(f"rank {here.name(here.rank)}: {said.message}{at}{hint}")


def _lent(here: Place) -> int:
    """The descriptor of what this rank lends. Raises BootstrapFailed."""
    if here.lent is not None:
        return here.lent
    try:
        return arena.own().descriptor
    except BootstrapFailed as error:
        raise BootstrapFailed(f"rank {here.name(here.rank)}: {error.reason}", error.help) from error


def _connect(
    host: socket.socket,
    here: Place,
    deadline: float,
    waiting: selectors.BaseSelector,
    watched: Mapping[int, int | None],
) -> None:
    with ExitStack() as meanwhile:
        bell: socket.socket | None = None  # what rank 0 rings once it listens
        for attempt in count():
            host.settimeout(_left(deadline))
            with suppress(ConnectionRefusedError, BlockingIOError):  # rank 0 is not there yet, or has its hands full
                host.connect(_address(here))
                break
            if attempt == 0:  # and look again: rank 0 may have come before there was a bell
                with suppress(OSError):  # this rank can have none: no more files, say
                    bell = meanwhile.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                    bell.setblocking(False)
                    bell.bind(_address(here, here.rank))
                    waiting.register(bell, selectors.EVENT_READ)
                    meanwhile.callback(waiting.unregister, bell)
                continue
            _raise_ended(waiting.select(_NAP), watched)
            if bell is not None:
                with suppress(BlockingIOError):
                    bell.recv(1)
    user = _credentials(host)[1]
    if user != os.geteuid():
        raise BootstrapFailed(
            f"what listens as rank {here.name(0)} is a process of another user ({user}) than rank"
            f" {here.name(here.rank)} ({os.geteuid()})",
            stores.USERS,
        )


def _ring(here: Place) -> None:
    """Tell those that wait for rank 0, and have a bell, that it listens now."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.setblocking(False)
        for rank in range(1, here.size):
            with suppress(OSError):  # it does not wait
                line.sendto(b".", _address(here, rank))


def _taken(here: Place) -> BootstrapFailed:
    """Who has the name that rank 0 is to listen by, as far as a connection tells."""
    user: int | None = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other, suppress(OSError):
        other.setblocking(False)
        other.connect(_address(here))
        user = _credentials(other)[1]
    if user == os.geteuid():
        return BootstrapFailed(f"two processes are rank {here.name(0)}")
    whose = "another process" if user is None else f"a process of another user ({user})"
    return BootstrapFailed(
        f"{whose} has taken the name by which the ranks of this job would find rank {here.name(0)}",
        f"{TOKEN}, another text and the same on all ranks, gives the job another name",
    )


def _are_of_rank(descriptors: Sequence[int]) -> bool:
    """Whether these are a lifeline and an arena."""
    return len(descriptors) == 2 and stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode) and segments.ours(descriptors[1])


def _address(here: Place, rank: int = 0) -> str:
    """The name of the socket that rank 0 listens on, or of another's bell."""
    return f"\0hocket/{here.token}" + (f"/{rank}" if rank else "")


def _send(line: socket.socket, word: msgspec.Struct, descriptors: Sequence[int], deadline: float) -> None:
    data = msgspec.json.encode(word)
    while True:
        line.settimeout(_left(deadline))
        try:
            if descriptors:
                socket.send_fds(line, [data], descriptors)
            else:
                line.sendall(data)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:  # a user's descriptors on the way are limited as open ones are
                raise
        time.sleep(0.001)


def _raise_ended(events: Sequence[tuple[selectors.SelectorKey, int]], watched: Mapping[int, int | None]) -> None:
    """Raise the error that says whose end one of the watched sockets reports."""
    for descriptor in watched.keys() & {key.fd for key, _ in events}:
        rank = watched[descriptor]
        if rank is not None:
            raise PeerFailed(rank, "ended or gave up before the ranks had met")
        with socket.socket(fileno=os.dup(descriptor)) as line:
            text = line.recv(_MESSAGE, socket.MSG_PEEK).decode()
        if not text:
            raise BootstrapFailed("the launcher ended before the ranks had met")
        number, _, how = text.partition(" ")
        raise PeerFailed(int(number), f"{how} before the ranks had met")


def _told(here: Place, error: BaseException) -> _Failure:
    """An error as it travels."""
    if isinstance(error, BootstrapFailed):
        return _Failure((None, _clean(error.reason), error.help))
    if isinstance(error, PeerFailed):
        return _Failure((error.rank, _clean(error.reason), None))
    if isinstance(error, CallTimeout):
        return _Failure((error.rank, "was waited for in vain", None))
    how = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"raised {type(error).__name__}"
    return _Failure((here.name(here.rank), f"{how} while the ranks were meeting", None))


def _clean(text: str) -> str:
    """As much of a text as travels, without what UTF-8 has no code for, such as bytes of a file name."""
    return text[:_LINE].encode(errors="backslashreplace").decode()


def _heard(data: bytes, kind: type[Word]) -> Word:
    """A message. Raises the error that it tells of, and ValueError for what is no message of that kind."""
    try:
        failed = msgspec.json.decode(data, type=_Failure).failed
        if failed is None:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("what came is no message of a meeting") from None
    rank, reason, helps = failed
    raise BootstrapFailed(reason, helps) if rank is None else PeerFailed(rank, reason)


def _absent(here: Place, timeout: float, missing: Collection[int], also: str = "") -> HocketError:
    """Who was not there in time. Ranks that have met before wait as they do in a call."""
    names = set(map(here.name, missing))
    return CallTimeout(min(names), timeout) if here.called else stores.absent(here.size, timeout, names, also)


def _meant(here: Place, timeout: float, error: BaseException) -> BaseException:
    """What an error of the system, or a message that makes no sense, means for this meeting; others as they are."""
    if isinstance(error, HocketError) or not isinstance(error, OSError | ValueError):
        return error
    if isinstance(error, TimeoutError):
        return _absent(here, timeout, {0})
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return _taken(here)
    why = os.strerror(number) if number else str(error)
    helps = _FILES if number in (errno.EMFILE, errno.ENFILE) else None
    return BootstrapFailed(f"rank {here.name(here.rank)} could not meet the others: {why}", helps)


def _check_hello(here: Place, hello: _Hello, known: Collection[int]) -> None:
    rank = hello.rank
    if not 0 <= rank < hello.size:
        return  # it is no rank at all
    if hello.protocol != PROTOCOL:
        raise BootstrapFailed(f"rank {rank} runs another version of hocket")
    if hello.size != here.size:
        raise BootstrapFailed(f"rank {rank} was told of {hello.size} ranks, rank 0 of {here.size}")
    if rank == 0 or rank in known:
        raise BootstrapFailed(f"two processes are rank {rank}")


def _left(deadline: float) -> float | None:
    """Seconds, for a socket. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left if left < _LONGEST else None


def _maker(lifeline: int) -> int:
    """The process that made a socket pair, of which this is an end."""
    end = socket.socket(fileno=lifeline)
    try:
        return _credentials(end)[0]
    finally:
        end.detach()


def _credentials(end: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", credentials)
    return process, user
