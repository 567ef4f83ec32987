"""How ranks of a store meet that may be on several nodes: over MPI then, where all of them have it.

Each says in the store what it has, and rank 0 decides for all: one that cannot go over MPI keeps all from it. MPI is
begun only if the user says so, since it ends processes whose launcher is another MPI's, and at their end they wait for
each other; for all of its ranks at once, since it may wait for them; and once all have said that they can. Groups of
some of them follow that one, which has shown that all are of one world.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from hocket.errors import BootstrapFailed, CannotShare, describe
from hocket.runtime import bootstrap, launchers, nodes, stores
from hocket.runtime.bootstrap import Meeting, Schedules

VARIABLE = "HOCKET_TORCH_MPI"
"""Lets ranks of a store that span machines begin MPI, "1". Where the program has begun it, it is not asked."""

_MODULE = "mpi4py.MPI"
_KNOWN = ("Open MPI", "MPICH", "Intel")
"""What the version of a library says that native code knows (native/mpi/library.cpp)."""
_ELSEHOW = "was not started by MPI"
_UNASKED = f"has no {VARIABLE}=1, which lets hocket begin MPI"


class _Word(msgspec.Struct, frozen=True):
    """What a rank says: which one it is of MPI's, and of how many; ``why`` it cannot go over MPI, a verb phrase;
    ``node``: what HOCKET_NODES has for it; ``job``: see _World."""

    rank: int = 0
    size: int = 0
    why: str = ""
    node: str = ""
    job: str = ""


class _Joint(msgspec.Struct, frozen=True):
    """What all do: their ranks in MPI, and nodes; a text for this meeting; ``first``: they are all ranks of MPI's, of
    which some have not met over it before."""

    ranks: list[int]
    placed: list[str]
    token: str
    first: bool


class _World(msgspec.Struct, frozen=True):
    """What ranks know once all of MPI's have met: a text that only these have, and Meeting.joins."""

    job: str = ""
    joins: bool = True


_world = _World()


def meet(store: stores.Store, rank: int, size: int, timeout: float, schedules: Schedules) -> Meeting:
    """Meet the ranks of a store. Raises what ``bootstrap.meet`` does, CannotShare where there is no way over MPI."""
    global _world
    node = _counted()
    try:
        return bootstrap.meet(timeout, schedules, store, rank, size, node)
    except CannotShare as error:  # only its words are kept: its frames hold the process group
        decide = partial(_decided, error.reason, error.help)
    assert isinstance(node, str)  # else all have raised another error
    with bootstrap.seat(store, rank, size, timeout) as mine:
        joint = _agreed(mine, _ready(node), decide)
        if joint.first:
            joint = _agreed(mine, _begun(node), decide)
    module = import_module(_MODULE)
    try:
        with nodes.part(module.COMM_WORLD, joint.ranks, joint.token) as mpi:
            meeting = nodes.meet(mpi, timeout, schedules, joint.placed, _world.joins)
    except module.Exception as error:
        raise BootstrapFailed(f"MPI failed: {describe(error)}") from error
    if joint.first:
        _world = _World(joint.token, meeting.joins)
    return meeting


def _agreed(mine: stores.Seat, word: _Word, decide: partial[dict[str, Any]]) -> _Joint:
    return msgspec.convert(stores.agree(mine, msgspec.to_builtins(word), decide), _Joint)


def _counted() -> str | BootstrapFailed:
    """The node that this rank counts as of, or what is wrong with what says so."""
    found = launchers.in_mpi()
    try:
        return "" if found is None else nodes.given(found[1])[found[0]]
    except BootstrapFailed as error:  # the others must hear of it
        return error


def _ready(node: str) -> _Word:
    """What this rank has, before MPI has begun or after."""
    if _MODULE in sys.modules:
        return _begun(node)
    found = launchers.in_mpi()
    return _Word(why=_ELSEHOW) if found is None else _Word(*found, _missing(), node)


def _missing() -> str:
    """Why mpi4py cannot be imported, or may not. Nothing of MPI begins."""
    try:
        if find_spec("mpi4py") is None:
            return "has no mpi4py"
        if os.environ.get(VARIABLE) != "1":
            return _UNASKED
        found = find_spec(_MODULE)  # those of wheels look for the library of MPI
        if found is None or found.origin is None:
            return "has an mpi4py for another MPI"
        if not import_module("mpi4py").rc.initialize:
            return "has mpi4py.rc.initialize off"
        ctypes.CDLL(found.origin)
    except Exception as error:  # whatever it is, the others must hear of it
        return f"cannot load MPI: {describe(error)}"
    return ""


def _begun(node: str) -> _Word:
    """What this rank has once mpi4py has begun MPI."""
    try:
        begins = _MODULE not in sys.modules
        mpi = import_module(_MODULE)
        if begins:
            sys.excepthook = partial(_abort, sys.excepthook)
        if not mpi.Is_initialized() or mpi.Is_finalized():
            return _Word(why="has MPI imported, which does not run")
        if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
            return _Word(why="has MPI without MPI_THREAD_MULTIPLE, which calls in the background need")
        version = mpi.Get_library_version().partition("\n")[0]
        if not any(name in version for name in _KNOWN):
            return _Word(why=f"has an MPI that hocket does not know: {version}")
        return _Word(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), "", node, _world.job)
    except Exception as error:  # the others must hear of it
        return _Word(why=f"could not begin MPI: {describe(error)}")


def _abort(reported: Callable[..., object], kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Report an exception that ends this process, and have MPI end the others then: it would wait for them."""
    reported(kind, error, trace)
    import_module("mpi4py.run").set_abort_status(1)


def _decided(apart: str, advice: str | None, said: list[Any]) -> dict[str, Any]:
    """A _Joint, of all words by rank. Raises CannotShare. ``apart``: why they share no memory."""
    words = msgspec.convert(said, list[_Word])
    if all(word.why == _ELSEHOW for word in words):
        raise CannotShare(apart, advice)
    if (why := _objection(words)) is not None:
        raise CannotShare(f"{apart}, and cannot go over MPI: {why}", advice)
    first = any(word.job != words[0].job or not word.job for word in words)
    joint = _Joint([word.rank for word in words], [word.node for word in words], secrets.token_hex(16), first)
    found: dict[str, Any] = msgspec.to_builtins(joint)
    return found


def _objection(words: list[_Word]) -> str | None:
    """Why ranks that say this cannot go over MPI."""
    # What it would not help first.
    for rank, word in sorted(enumerate(words), key=lambda said: said[1].why == _UNASKED):
        if word.why:
            return f"rank {rank} {word.why}"
    for rank, word in enumerate(words):
        if word.size < len(words):
            return f"MPI has started rank {rank} as one of {word.size}"
    known: dict[int, int] = {}
    for rank, word in enumerate(words):
        if (other := known.setdefault(word.rank, rank)) != rank:
            return f"ranks {other} and {rank} are both rank {word.rank} of MPI's"
    if any(word.size != len(words) and (not word.job or word.job != words[0].job) for word in words):
        return "a group of all ranks of MPI's has to do so first"
    return None
