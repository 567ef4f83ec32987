"""A rank's end of a communicator: checks a call's arguments, finds its buffers, runs it, and says what went wrong."""

from __future__ import annotations

import atexit
import json
import operator
import os
import secrets
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket
from typing import Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from hocket import _native
from hocket._native import Fault, Outcome
from hocket.collectives import Alias
from hocket.errors import (
    BootstrapFailed,
    CallMismatch,
    CallTimeout,
    CommunicatorBusy,
    CommunicatorDead,
    HocketError,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    StepName,
    WrongType,
    caller,
)
from hocket.ir.geometry import check_size
from hocket.ir.schedule import Schedule, verify
from hocket.runtime.bootstrap import Meeting, gather
from hocket.runtime.launchers import Place
from hocket.runtime.plan import lower

Array = NDArray[np.generic]

# NumPy does not know bfloat16, that of ml_dtypes is found by its name (_code).
_TYPES = {np.dtype(name): code for code, name in enumerate(_native.TYPES) if name != "bfloat16"}
_OPERATORS = {name: code for code, name in enumerate(_native.OPERATORS)}
_PAIRS = {(code, _OPERATORS[op]) for code, name in enumerate(_native.TYPES) for op in _native.OPERATORS_OF[name]}
# How often to spin and to yield before sleeping, by whether ranks outnumber cores. Yielding soon costs nothing on an
# idle core and much less where ranks share one with anything: 8 bytes on two ranks of a busy machine took 25 us rather
# than the 280 us of 2000 spins, and no more on pinned ones.
_PATIENCE = {False: (100, 200), True: (0, 20)}


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a schedule means on this rank, found once. ``own`` is the unit of the target where an alias begins.

    ``moves``: elements are only moved, so they may be of any type; ``averages``: a sum can be made an average.
    ``simple``: input and output are one memory of one size, and every size will do.
    """

    schedule: weakref.ref[Schedule]
    plan: _native.Plan
    input_blocks: int
    output_blocks: int
    alias: Alias | None
    own: int
    inplace: bool
    moves: bool
    averages: bool
    writes_input: bool
    simple: bool


class _Bound(NamedTuple):
    """The buffers of one call: the physical input and output, elements of a unit, number of the type (kernels.h).

    ``initial`` is copied into the physical buffer, at byte ``place``, once all ranks agree. ``result`` is what the
    caller gets; ``taken`` of the input buffer is copied there at the end.
    """

    input: Array | None
    output: Array | None
    n: int | None
    type: int
    initial: Array | None = None
    place: int = 0
    result: Array | None = None
    taken: slice | None = None


Result = TypeVar("Result")


class Handle(Generic[Result]):
    """A call that goes on in the background. Its arrays are the call's until it is done."""

    def __init__(self, flight: _native.Flight, finish: Callable[[Outcome | None], Result]) -> None:
        """``finish`` makes of the outcome what the call returns, or raises."""
        self._flight: _native.Flight | None = flight
        self._finish = finish
        self._result: Result
        self._error: Exception | None = None

    def done(self) -> bool:
        """Whether the call has ended: ``wait`` does not wait any more. Does not raise."""
        if self._flight is not None and self._flight.done():
            self._end()
        return self._flight is None

    def wait(self) -> Result:
        """Wait for the end of the call. Returns and raises what the call would, as often as it is asked."""
        self._end()
        if self._error is not None:
            raise self._error
        return self._result

    def _end(self) -> None:
        if self._flight is None:
            return
        outcome = self._flight.wait()
        try:
            self._result = self._finish(outcome)
        except Exception as error:
            self._error = error
        self._flight = None
        del self._finish


class Endpoint:
    """One rank of a communicator. Calls on it have one order, the same on every rank."""

    def __init__(self, meeting: Meeting, timeout: float, threads: int = 1) -> None:
        """Takes the meeting's descriptors over. ``timeout``: seconds without progress after which a call fails.

        ``threads``: how many share a call's thread blocks.
        """
        self.rank = meeting.rank
        self.size = meeting.size
        spins, yields = _PATIENCE[meeting.crowded]
        self._own_lifeline: socket | None = meeting.own_lifeline
        try:
            self._member: _native.Member | None = _native.Member(
                meeting.rank, meeting.size, meeting.memory, meeting.lifelines, spins, yields, timeout, threads
            )
        except (RuntimeError, MemoryError) as error:
            meeting.leave()
            raise BootstrapFailed(f"rank {meeting.rank} has no room for the shared memory: {error}") from error
        self.threads = threads
        self._flights: deque[_native.Flight] = deque()  # in the background, oldest first
        self._lifelines = meeting.lifelines  # the member's, and good while it lives
        self._crowded = meeting.crowded
        self._timeout = timeout
        self._ended = ""
        self._prepared: dict[int, _Prepared] = {}
        _endpoints.add(self)

    def run(
        self, schedule: Schedule, x: Array | None, out: Array | None, op: str, tile: int | None = None
    ) -> Array | None:
        """See ``Communicator.run``."""
        member = self._alone()
        try:
            prepared, bound, code = self._check(schedule, x, out, op, tile)
        except Exception as error:
            self.refuse(error)
        source, target, n, kind, initial, place, result, taken = bound
        outcome = member.run(prepared.plan, source, target, n, kind, code, tile or 0, initial, place)
        if outcome is None and taken is None and op != "avg":
            return result
        return self._end(outcome, schedule, bound, op)

    def start(
        self, schedule: Schedule, x: Array | None, out: Array | None, op: str, tile: int | None = None
    ) -> Handle[Array | None]:
        """The same in the background. Raises at once for wrong arguments; the other ranks learn of it in their turn."""
        member = self._alive()
        try:
            prepared, bound, code = self._check(schedule, x, out, op, tile)
            source, target, n, kind, initial, place, _, _ = bound
            flight = member.start(prepared.plan, source, target, n, kind, code, tile or 0, initial, place)
        except Exception as error:
            self.refuse(error, async_=True)
        return Handle(self._launched(flight), lambda outcome: self._end(outcome, schedule, bound, op))

    def _check(
        self, schedule: Schedule, x: Array | None, out: Array | None, op: str, tile: int | None
    ) -> tuple[_Prepared, _Bound, int]:
        """All that a call needs, and the number of its operator. Nothing is written here."""
        prepared = self._prepared.get(id(schedule)) or self._prepare(schedule)
        code = _OPERATORS.get(op)
        if code is None:
            raise InvalidArgument(f"op must be one of {', '.join(_OPERATORS)}, not {op!r}", caller())
        if tile is not None and (type(tile) is not int or tile < 64 or tile & (tile - 1) or tile > 1 << 28):
            raise InvalidArgument(f"tile must be a power of two from 64 bytes to 256 MB, not {tile!r}", caller())
        bound = self._bind_simple(x, out, prepared) if prepared.simple else None
        if bound is None:
            bound = self._bind(schedule, prepared, x, out)
        if not prepared.moves and bound.n is not None and (bound.type, code) not in _PAIRS:
            name = _native.TYPES[bound.type]
            raise WrongType(f"{name} has no {op}, only {', '.join(_native.OPERATORS_OF[name])}", caller())
        if op == "avg" and not prepared.averages:
            raise InvalidArgument(f"{schedule.name} does not sum over all ranks, so there is no avg", caller())
        return prepared, bound, code

    def _end(self, outcome: Outcome | None, schedule: Schedule, bound: _Bound, op: str) -> Array | None:
        """What a call returns, or raises."""
        if outcome is not None:
            self._raise(outcome, schedule)
        result = bound.result
        if bound.taken is not None:
            assert bound.input is not None
            assert result is not None
            result.reshape(-1)[:] = bound.input.reshape(-1)[bound.taken]
        if op == "avg" and result is not None:  # nobody else needs it any more: peers read slots only
            _native.divide(result, bound.type, self.size)
        return result

    def barrier(self) -> None:
        """Return once every rank is here."""
        self._end_barrier(self._alone().barrier())

    def start_barrier(self) -> Handle[None]:
        """The same in the background."""
        return Handle(self._launched(self._alive().start_barrier()), self._end_barrier)

    def _end_barrier(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._raise(outcome, None)

    def split(self, color: int | None, key: int) -> Endpoint | None:
        """See ``Communicator.split``."""
        member = self._alone()
        try:
            word = [None if color is None else operator.index(color), operator.index(key), secrets.token_hex(16)]
        except TypeError:
            self.refuse(WrongType(f"color and key must be integers, not {_name(color)} and {_name(key)}", caller()))
        said = member.exchange(json.dumps(word))
        if isinstance(said, Outcome):
            self._raise(said, None)
        if color is None:
            return None
        words = [json.loads(text) for text in said]
        ranks = sorted((k, rank) for rank, (c, k, _) in enumerate(words) if c == word[0])
        called = tuple(rank for _, rank in ranks)
        here = Place(called.index(self.rank), len(called), words[called[0]][2], called)
        try:
            meeting = gather(here, self._timeout, {self._lifelines[r]: r for r in called if r != self.rank})
            meeting.crowded |= self._crowded
            return Endpoint(meeting, self._timeout, self.threads)
        except PeerFailed as error:
            outcome = member.barrier()  # the one it names may have given up only because of another
            if outcome is not None and outcome.rank != error.rank:
                error = PeerFailed(outcome.rank, outcome.text)
            self._fail(error.rank, error.reason)
            raise error from None
        except BaseException as error:  # the others wait for this rank, and see its end by this communicator's lifeline
            interrupted = isinstance(error, KeyboardInterrupt)
            self.abort("was interrupted" if interrupted else f"could not split: {getattr(error, 'reason', error)}")
            raise

    def close(self) -> None:
        """Leave. A rank that still needs this one raises PeerFailed."""
        if self._member is not None:
            self._member.leave()
            self._release("it was closed")

    def abort(self, reason: str) -> None:
        """End the communicator on every rank: they raise PeerFailed with this reason, a verb phrase."""
        self._fail(self.rank, reason)

    def _fail(self, culprit: int, reason: str) -> None:
        if self._member is not None:
            self._member.fail(culprit, reason)
            self._release(f"rank {culprit} {reason}")

    def forked(self) -> None:
        """In a child after fork: the communicator is the parent's, and so are its threads and its life."""
        if self._member is not None:
            self._member.forked()
            self._flights.clear()
        self._release("it belongs to the process that this one was forked from")

    def _release(self, why: str) -> None:
        if self._member is None:
            return
        for flight in list(self._flights):  # the end of the communicator ends them
            flight.wait()
        self._flights = deque()  # the last one would keep the member; another thread may look at the old ones
        self._member = None
        self._ended = why
        self._prepared.clear()
        if self._own_lifeline is not None:
            self._own_lifeline.close()

    def _alive(self) -> _native.Member:
        if self._member is None:
            raise CommunicatorDead(self._ended)
        return self._member

    def _alone(self) -> _native.Member:
        """Once nothing goes on in the background: calls have one order."""
        member = self._alive()
        flights = self._flights
        if flights:
            flights[-1].wait()
            flights.clear()
        return member

    def _launched(self, flight: _native.Flight) -> _native.Flight:
        """Keep a call in the background, and so its arrays, until it is done."""
        flights = self._flights
        while flights and flights[0].done():
            flights.popleft()
        flights.append(flight)
        return flight

    def _prepare(self, schedule: Schedule) -> _Prepared:
        if not isinstance(schedule, Schedule):
            raise WrongType(
                f"a communicator runs a Schedule, not {_name(schedule)}", caller(), "compile a program with .compile()"
            )
        collective = schedule.collective
        if collective.size != self.size:
            raise InvalidArgument(
                f"{schedule.name} is for {collective.size} ranks, this communicator has {self.size}", caller()
            )
        verify(schedule)
        channels = _native.MOST_CONNECTIONS // self.size**2
        ends = (end for rank in schedule.ranks for block in rank.thread_blocks for end in block.sends)
        highest = max((end.channel for end in ends), default=0)
        if highest >= channels:
            raise InvalidArgument(
                f"{schedule.name} uses channel {highest}; between {self.size} ranks there are {channels}", caller()
            )
        plan = lower(schedule, self.rank)
        alias = collective.alias(self.rank)
        key = id(schedule)
        prepared = self._prepared
        found = _Prepared(
            weakref.ref(schedule, lambda _: prepared.pop(key, None) and None),
            self._alive().plan(plan.words, plan.digest, plan.name),
            collective.input_blocks(self.rank),
            collective.output_blocks(self.rank),
            alias,
            alias.offset // collective.chunks if alias is not None else 0,
            collective.inplace,
            not collective.reduces() and all(len(step.srcs) == 1 for _, _, _, step in schedule.steps()),
            collective.averages(),
            plan.writes_input,
            alias is not None
            and alias.target == "in"
            and collective.input_blocks(self.rank) == collective.output_blocks(self.rank)
            and not schedule.narrowings,
        )
        prepared[key] = found
        return found

    def _bind(self, schedule: Schedule, p: _Prepared, x: Array | None, out: Array | None) -> _Bound:
        """Decide which memory is which buffer. Nothing is written here."""
        if not p.input_blocks and p.inplace and out is None:
            x, out = None, x
        given = [array for name, array in (("x", x), ("out", out)) if array is not None and _check(name, array, p)]
        if not given:
            if p.input_blocks or p.output_blocks:
                raise WrongType(
                    f"rank {self.rank} needs {'x' if p.input_blocks else 'out'} in {schedule.name}", caller()
                )
            return _Bound(None, None, None, 0)
        dtype = given[0].dtype
        if given[-1].dtype != dtype:
            raise WrongType(f"x is of {dtype}, out of {given[-1].dtype}", caller())
        code = _code(dtype)
        kind = len(_native.TYPES) + dtype.itemsize if code is None else code
        n = self._unit(schedule, p, x, out)
        if n is None:
            return _Bound(None, None, None, kind)
        check_size(schedule, n, dtype.itemsize)
        scratch = np.empty_like(x) if p.writes_input and x is not None else None  # x is not ours to write
        if not p.output_blocks:
            return _Bound(x, None, n, kind) if scratch is None else _Bound(scratch, None, n, kind, x)
        if out is None:
            assert x is not None
            works_in_x = p.alias is not None and p.input_blocks == p.output_blocks
            out = x if works_in_x else np.empty(_shape(x, p), dtype)
        if not out.flags.writeable:
            raise InvalidArgument("the result would go to an array that is read-only", caller())
        if x is None or not p.input_blocks:
            return _Bound(None, out, n, kind, result=out)
        if p.alias is None:
            if x is out or _begins(x, out, 0) or _begins(out, x, self.rank * n) or _begins(x, out, self.rank * n):
                scratch = np.empty_like(x)
            elif np.may_share_memory(x, out):
                raise _overlap()
            if scratch is None:
                return _Bound(x, out, n, kind, result=out)
            return _Bound(scratch, out, n, kind, x, result=out)
        own = p.own * n
        whole, part = (x, out) if p.alias.target == "in" else (out, x)
        if x is out or _begins(part, whole, own):  # in place as NCCL means it
            if not whole.flags.writeable:
                raise InvalidArgument("a call in place needs arrays that can be written", caller())
            return _Bound(x, None, n, kind, result=out) if whole is x else _Bound(None, out, n, kind, result=out)
        if np.may_share_memory(x, out):
            raise _overlap()
        if p.alias.target == "out":
            return _Bound(None, out, n, kind, x, own * dtype.itemsize, out)
        if p.input_blocks == p.output_blocks:
            return _Bound(out, None, n, kind, x, result=out)
        if not p.writes_input:
            return _Bound(x, None, n, kind, result=out, taken=slice(own, own + out.size))
        return _Bound(np.empty_like(x), None, n, kind, x, result=out, taken=slice(own, own + out.size))

    def _bind_simple(self, x: Array | None, out: Array | None, p: _Prepared) -> _Bound | None:
        """The same for arrays that need no second look: plain, writable, apart. None where in doubt."""
        if type(x) is not np.ndarray:
            return None
        kind = _TYPES.get(x.dtype)
        n, rest = divmod(x.size, p.input_blocks)
        if kind is None or rest:
            return None
        if out is None or out is x:
            return _Bound(x, None, n, kind, None, 0, x) if x.flags.carray else None
        if type(out) is not np.ndarray or out.size != x.size or out.dtype != x.dtype or np.may_share_memory(x, out):
            return None
        flags = x.flags
        if not (out.flags.carray and flags.c_contiguous and flags.aligned):
            return None
        return _Bound(out, None, n, kind, x, 0, out)

    def _unit(self, schedule: Schedule, p: _Prepared, x: Array | None, out: Array | None) -> int | None:
        """Elements of a unit, from whichever array says it; None if this rank has no buffer at all."""
        n = None
        for name, array, blocks in (("x", x, p.input_blocks), ("out", out, p.output_blocks)):
            if array is None:
                if blocks and (name == "x" or n is None):
                    raise WrongType(f"rank {self.rank} needs {name} in {schedule.name}", caller())
                continue
            if array.size and not blocks:
                kind = "input" if name == "x" else "output"
                raise InvalidArgument(
                    f"rank {self.rank} has no {kind} in {schedule.name}: {name} must be None", caller()
                )
            if not blocks:
                continue
            if array.size % blocks:
                raise InvalidArgument(
                    f"{name} has {array.size} elements, which do not make {blocks} blocks of one size", caller()
                )
            if n is not None and array.size != n * blocks:
                raise InvalidArgument(f"x calls for an out of {n * blocks} elements, not {array.size}", caller())
            n = array.size // blocks
        return n

    def refuse(self, error: Exception, async_: bool = False) -> NoReturn:
        """Tell the others that this rank cannot take part in this call, and raise.

        Once they know; with ``async_`` at once: they learn of it when it is this call's turn.
        """
        if async_:
            self._launched(self._alive().start_refusal(_why(error)))
            raise error
        outcome = self._alone().refuse(_why(error))
        if outcome is not None and outcome.fault is not Fault.REFUSED:
            self._raise(outcome, None)
        raise error

    def _raise(self, outcome: Outcome, schedule: Schedule | None) -> NoReturn:
        step: StepName | None = None
        peer: int | None = None
        if outcome.stall is not None and schedule is not None:
            block, number, _, peer = outcome.stall
            step = schedule.step_name(self.rank, block, number)
        if outcome.fault is Fault.MISMATCH:
            raise _mismatch(outcome)
        if outcome.fault is Fault.REFUSED:
            raise PeerRefused(outcome.rank, outcome.text)
        if outcome.fault is Fault.MEMORY:
            raise MemoryError(outcome.text)
        if outcome.fault is Fault.PEER:
            raise PeerFailed(outcome.rank, outcome.text, step, peer)
        if outcome.fault is Fault.TIMEOUT:
            raise CallTimeout(outcome.rank, outcome.waited, step, peer)
        if outcome.fault is Fault.BUSY:
            raise CommunicatorBusy
        raise CommunicatorDead(self._ended or f"rank {outcome.rank} {outcome.text}")


def _why(error: Exception) -> str:
    return error.diagnostic().message if isinstance(error, HocketError) else f"{type(error).__name__}: {error}"


def _mismatch(outcome: Outcome) -> CallMismatch:
    said = outcome.said
    sized = next((s for s in said if s.size_known), said[0])
    first, other = said[0], said[outcome.rank]
    differs = [
        what
        for what, different in (
            ("schedule", first.digest != other.digest),
            ("size", other.size_known and sized.n != other.n),
            ("type", other.size_known and sized.type != other.type),
            ("operator", first.op != other.op),
            ("tile", first.tile != other.tile),
        )
        if different
    ]
    calls = []
    for s in said:
        name = s.text.decode(errors="replace")
        if s.digest <= 1:  # no schedule
            calls.append("split" if s.digest else name)
            continue
        opaque = s.type - len(_native.TYPES)
        kind = _native.TYPES[s.type] if opaque < 0 else f"{opaque}-byte elements"
        size = f"{s.n} x {kind} a unit, " if s.size_known else ""
        tile = f", tile {s.tile}" if s.tile else ""
        calls.append(f"{name} [{s.digest:016x}] ({size}{_native.OPERATORS[s.op]}{tile})")
    return CallMismatch(outcome.rank, tuple(differs), tuple(calls))


def _code(dtype: np.dtype[np.generic]) -> int | None:
    """The number of a type that kernels can combine; None for another."""
    code = _TYPES.get(dtype)
    if code is None and dtype.name == "bfloat16" and dtype.isnative:
        code = _TYPES[dtype] = _native.TYPES.index("bfloat16")
    return code


def _check(name: str, array: Array, p: _Prepared) -> bool:
    """Raise if an argument is no array that native code can work on; True otherwise."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise WrongType(f"{name} must be a NumPy array, not {_name(array)}", caller())
    if array.dtype.hasobject:
        raise WrongType(f"{name} is of {array.dtype}: references mean nothing in another process", caller())
    if not p.moves and _code(array.dtype) is None:
        raise WrongType(
            f"{name} is of {array.dtype}; only {', '.join(_native.TYPES)} can be combined",
            caller(),
            "collectives that only move data take any type",
        )
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise InvalidArgument(
            f"{name} must be contiguous and aligned", caller(), "np.ascontiguousarray(...) makes a copy that is"
        )
    return True


def _name(thing: object) -> str:
    return "None" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def _overlap() -> InvalidArgument:
    return InvalidArgument(
        "x and out overlap", caller(), "they may be the same, or one the own block of the other, or lie apart"
    )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _begins(part: Array, whole: Array, element: int) -> bool:
    """Whether ``part`` lies in the memory of ``whole`` from ``element`` on."""
    return (
        np.may_share_memory(part, whole)
        and _address(part) == _address(whole) + element * whole.itemsize
        and element + part.size <= whole.size
    )


def _shape(x: Array, p: _Prepared) -> tuple[int, ...]:
    """Shape of an output that the caller did not give: that of x, or joined along axis 0, or flat."""
    if p.output_blocks == p.input_blocks:
        return x.shape
    if x.ndim and x.shape[0] * p.output_blocks % p.input_blocks == 0:
        return (x.shape[0] * p.output_blocks // p.input_blocks, *x.shape[1:])
    return (x.size // p.input_blocks * p.output_blocks,)


_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _forget_in_child() -> None:
    for endpoint in list(_endpoints):
        endpoint.forked()


def _leave_at_exit() -> None:
    """A rank whose script ends leaves; one whose script raised tells the others why."""
    error = getattr(sys, "last_value", None)
    for endpoint in list(_endpoints):
        if error is None:
            endpoint.close()
        else:
            endpoint.abort(f"raised {type(error).__name__}: {error}")


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_leave_at_exit)
