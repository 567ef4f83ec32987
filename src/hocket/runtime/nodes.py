"""How ranks on several nodes meet: over MPI, and on each node as ranks of one always do (bootstrap.py).

A node is the ranks that can share memory, found by what that takes and not by a name. Two exchanges over MPI: of who is
where, and of whether the ranks of every node have met; so what fails on one fails on all. Three more join leaders
(lifelines.py).
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import msgspec

from hocket.errors import BootstrapFailed, HocketError, describe
from hocket.runtime import launchers, machine, stores, trace
from hocket.runtime.bootstrap import (
    MOST_RANKS,
    PROTOCOL,
    Common,
    Meeting,
    MpiCommunicator,
    Schedules,
    check_common,
    common_of,
    gather,
)
from hocket.runtime.launchers import Place
from hocket.runtime.lifelines import Leader, Offer, connections

VARIABLE = "HOCKET_NODES"
"""Has ranks count as those of several nodes, for tests and experiments: "2+2", or the node of each rank, "0,1,0"."""

NETWORK = "HOCKET_NETWORK"
"""Has messages between nodes take longer, for experiments: "latency:20us,bandwidth:1GB/s", of each node."""
_UNITS = {
    "latency": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    "bandwidth": {"B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9},
}


_TAGS = 1 << 15  # that MPI promises


class _Hello(msgspec.Struct):
    """What a rank says first. ``machine``: the same on ranks that can share memory. ``node``: what tells those of one
    machine apart that are told not to. ``emulated``: see Meeting."""

    protocol: str
    machine: str
    node: str
    token: str
    common: Common
    emulated: tuple[float, float] = (0.0, 0.0)


class _Met(msgspec.Struct):
    """Whether a rank has met those of its node: the cores of each of these; or why not, and what helps. ``first``: what
    others of the node say then follows from that."""

    cores: int = 0
    failed: tuple[str, str | None] | None = None
    first: bool = False


def address(mpi: MpiCommunicator) -> int:
    """Where the handle of a communicator lies, as long as it lives."""
    from mpi4py import MPI

    found: int = MPI._addressof(mpi)
    return found


def world() -> MpiCommunicator | None:
    """That of all ranks, where a launcher of MPI has started them on several nodes and there is mpi4py."""
    job = launchers.of_mpi()
    if job is None or (job[0] == job[1] and not os.environ.get(VARIABLE)):
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # it finds no MPI
        return None
    found: MpiCommunicator = MPI.COMM_WORLD
    return found if found.Get_size() == job[0] else None  # else its launcher is another MPI's


def given(size: int) -> list[str]:
    """The node of each rank, as HOCKET_NODES has it. Raises BootstrapFailed."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return [""] * size
    nodes = names(text, size + 1)
    if len(nodes) != size:
        raise BootstrapFailed(
            f"{VARIABLE}={text[:40]} does not say where each of {size} ranks is", f'such as "{size - 1}+1"'
        )
    return nodes


@contextmanager
def part(mpi: MpiCommunicator, ranks: Sequence[int], name: str) -> Iterator[MpiCommunicator]:
    """A communicator of some ranks of another, which all ask for it by one name; freed at the end."""
    from mpi4py import MPI

    whole = cast("MPI.Intracomm", mpi)
    all_ranks = whole.Get_group()
    group = all_ranks.Incl(ranks)
    try:
        found: MpiCommunicator = whole.Create_group(group, zlib.crc32(name.encode()) % _TAGS)
    finally:
        group.Free()
        all_ranks.Free()
    try:
        yield found
    finally:
        found.Free()


def meet(
    mpi: MpiCommunicator,
    timeout: float,
    schedules: Schedules,
    placed: Sequence[str] | None = None,
    joins: bool = True,
) -> Meeting:
    """Meet the ranks of a communicator of MPI, which all call this: waits for them without a limit, as MPI does.

    ``placed``: the node that each counts as of, in place of what HOCKET_NODES says. ``joins``: leaders try to reach
    each other.
    Raises BootstrapFailed, on all of them if on one, and on a rank what ``schedules`` raises there.
    """
    from mpi4py import MPI

    rank, size = mpi.Get_rank(), mpi.Get_size()
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise BootstrapFailed("MPI was initialised without MPI_THREAD_MULTIPLE", "calls in the background need it")
    if size > MOST_RANKS:
        raise BootstrapFailed(f"there are too many ranks: no more than {MOST_RANKS} can meet")
    known: str | HocketError
    raised: BaseException | None = None
    node, emulated = "", (0.0, 0.0)
    try:
        trace.begin(rank)
        known = schedules(size)
        node = (given(size) if placed is None else placed)[rank]
        emulated = _emulated(os.environ.get(NETWORK, ""))
    except HocketError as error:
        known = raised = error
    except BaseException as error:  # the others must hear of it
        known, raised = BootstrapFailed(_why(error)), error
    where = repr(sorted(stores.identity().items()))
    mine = _Hello(PROTOCOL, where, node, secrets.token_hex(16), common_of(Place(rank, size, ""), known), emulated)
    hellos = [msgspec.json.decode(said, type=_Hello) for said in mpi.allgather(msgspec.json.encode(mine))]
    others = [r for r in range(size) if hellos[r].protocol != hellos[0].protocol]
    if others:
        raise BootstrapFailed(f"rank {others[0]} runs another version of hocket than rank 0")
    try:
        check_common([hello.common for hello in hellos])
    except BootstrapFailed:
        if raised is not None:  # it says more than what all were told
            raise raised from None
        raise
    others = [r for r in range(size) if hellos[r].emulated != hellos[0].emulated]
    if others:
        raise BootstrapFailed(f"rank {others[0]} has another {NETWORK} than rank 0")
    nodes = numbered([(hello.machine, hello.node) for hello in hellos])
    mates = tuple(r for r in range(size) if nodes[r] == nodes[rank])
    here = Place(mates.index(rank), len(mates), hellos[mates[0]].token, mates, all=size)
    local, cores = _met(mpi, timeout, here, sum(hello.machine == where for hello in hellos))
    if not any(nodes):
        return local
    local.cores, local.token, local.nodes, local.emulated = cores, hellos[0].token, nodes, emulated
    try:
        return _across(mpi, local, mates, joins)
    except BaseException:
        local.undo()
        raise


def _across(mpi: MpiCommunicator, local: Meeting, mates: Sequence[int], joins: bool) -> Meeting:
    """The meeting of all, made of that of this node's ranks, which knows the nodes already."""
    from mpi4py import MPI

    rank, size = mpi.Get_rank(), mpi.Get_size()
    own = mpi.Dup()
    cast("MPI.Comm", own).Set_errhandler(MPI.ERRORS_RETURN)
    lifelines, arenas = [-1] * size, [-1] * size
    for i, r in enumerate(mates):
        lifelines[r], arenas[r] = local.lifelines[i], local.arenas[i]
    if joins:
        far, joins = _joined(mpi, local.nodes, local.token)
        for r, lifeline in far.items():
            lifelines[r] = lifeline
    local.rank, local.size, local.lifelines, local.arenas = rank, size, lifelines, arenas
    local.sockets, local.processes, local.mpi, local.joins = 1, [], own, joins
    local.long_headers = has_long_headers(MPI.Get_library_version())
    return local


def has_long_headers(version: str) -> bool:
    """Whether an MPI is fast with several messages behind a header: MPICH was found not to be
    (benchmarks/results/nodes.md), others than these were not measured."""
    return version.startswith(("Open MPI", "Intel"))


def _met(mpi: MpiCommunicator, timeout: float, here: Place, sharing: int) -> tuple[Meeting, int]:
    """What the ranks of this node have met to, and the fewest cores of a rank on any. Raises what ``meet`` does.

    ``sharing``: ranks of this machine, also those that count as of other nodes.
    """
    local: Meeting | None = None
    raised: BaseException | None = None
    try:
        local = gather(here, timeout, {})
        own = local.cores if sharing == here.size else machine.cores(os.sched_getaffinity(0)) // sharing
        word = _Met(own)
    except BaseException as error:  # the others must hear of it
        raised = None if isinstance(error, HocketError) else error
        if isinstance(error, HocketError):
            said = error.diagnostic()
            word = _Met(failed=(said.message, said.help))
        else:
            word = _Met(failed=(f"rank {mpi.Get_rank()} {_why(error)}", None), first=True)
    mets = [msgspec.json.decode(said, type=_Met) for said in mpi.allgather(msgspec.json.encode(word))]
    failures = sorted((met for met in mets if met.failed is not None), key=lambda met: not met.first)
    failed = failures[0].failed if failures else None
    if local is None or failed is not None:
        if local is not None:
            local.undo()
        if raised is not None:
            raise raised
        raise BootstrapFailed(*(failed or ("", None)))
    return local, min(met.cores for met in mets)


def _joined(mpi: MpiCommunicator, nodes: Sequence[int], secret: str) -> tuple[dict[int, int], bool]:
    """This rank's lifelines with ranks of other nodes, and whether all leaders have theirs.

    ``secret``: that of this meeting.
    """
    rank, leaders = mpi.Get_rank(), [nodes.index(node) for node in range(max(nodes) + 1)]
    mine = Leader(nodes[rank], leaders, secret) if rank in leaders else None
    try:
        said = mpi.allgather(msgspec.json.encode(Offer() if mine is None else mine.offer()))
        offers = [msgspec.json.decode(said[leader], type=Offer) for leader in leaders]
        said = mpi.allgather(b"1" if mine is not None and mine.connect(offers) else b"")
        connected = [bool(said[leader]) for leader in leaders]
        said = mpi.allgather(b"1" if mine is not None and mine.accept(connected) else b"")
        accepted = [bool(said[leader]) for leader in leaders]
        return {} if mine is None else mine.keep(accepted), sum(accepted) == connections(len(leaders))
    finally:
        if mine is not None:
            mine.close()


def _why(error: BaseException) -> str:
    """What the others are told of what is no error of hocket's: a verb phrase."""
    return "was interrupted" if isinstance(error, KeyboardInterrupt) else f"raised {describe(error)}"


def names(text: str, most: int) -> list[str]:
    """The node of each rank, as "2+2" or "0,1,0" say it; in the former no more than ``most`` ranks on one."""
    nodes = text.split(",")
    if "," not in text:
        parts = text.split("+")
        if all(part.isdecimal() for part in parts):
            nodes = [str(node) for node, part in enumerate(parts) for _ in range(min(int(part), most))]
    return nodes


def numbered(nodes: Sequence[Hashable]) -> tuple[int, ...]:
    """Numbers in place of what nodes are told apart by, in the order of their lowest ranks."""
    places = list(dict.fromkeys(nodes))
    return tuple(map(places.index, nodes))


def _emulated(text: str) -> tuple[float, float]:
    """Seconds and bytes a second of each node, as HOCKET_NETWORK has them. Raises BootstrapFailed."""
    found = {"latency": 0.0, "bandwidth": 0.0}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition(":")
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(\D+)", value)
        factor = None if match is None else _UNITS.get(name, {}).get(match[2])
        if match is None or factor is None:
            raise BootstrapFailed(f"{NETWORK}={text[:60]} is not understood", 'such as "latency:20us,bandwidth:1GB/s"')
        found[name] = float(match[1]) * factor
    return found["latency"], found["bandwidth"]
