"""A rank's end of a communicator: makes schedules ready, runs calls, and says what went wrong."""

from __future__ import annotations

import atexit
import inspect
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
from typing import Generic, NoReturn, TypeVar, cast

import numpy as np

from hocket import _native
from hocket._native import Fault, Outcome
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
from hocket.ir.geometry import check_units
from hocket.ir.schedule import Schedule, verify
from hocket.ir.traffic import Traffic
from hocket.runtime import arena, caches, trace
from hocket.runtime.bootstrap import Meeting, gather
from hocket.runtime.buffers import Array, Bound, Layout, layout_of, name_of
from hocket.runtime.counts import Counts, transfers
from hocket.runtime.launchers import Place
from hocket.runtime.plan import Plan, lower, lower_apart

_OPERATORS = {name: code for code, name in enumerate(_native.OPERATORS)}
_PAIRS = {(code, _OPERATORS[op]) for code, name in enumerate(_native.TYPES) for op in _native.OPERATORS_OF[name]}
_ORDERED = ("min", "max")  # of two zeros they give the first, or the second
# How often to spin and to yield before sleeping, by whether ranks outnumber cores. Yielding soon costs nothing on an
# idle core and much less where ranks share one with anything: 8 bytes on two ranks of a busy machine took 25 us rather
# than the 280 us of 2000 spins, and no more on pinned ones.
_PATIENCE = {False: (100, 200), True: (0, 20)}


@dataclass(slots=True)
class _Prepared:
    """What a schedule means on this rank, found once.

    ``apart`` is for calls whose arrays lie apart though the schedule is in-place. ``averages``: a sum can be made an
    average. ``lends``: messages lie in the arrays. ``uneven``: it is known that it can run with counts.
    """

    schedule: weakref.ref[Schedule]
    plan: _native.Plan
    apart: _native.Plan
    layout: Layout
    averages: bool
    lends: bool
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Lent:
    """How ranks access each other's arrays: these are in place; every rank ``fetches`` all that it wants."""

    inplace: bool
    fetches: bool


LENT = Lent(True, False), Lent(False, False), Lent(True, True), Lent(False, True)
"""The ways of native/cpu/communicator.h but that through slots."""

Lending = Callable[[bool, Lent, bool], Schedule | None]
"""The schedule, if any, of a call whose ranks access each other's arrays: by whether it would else take one round, how
they do, and whether arrays are private, so that the system has to copy."""

_Schedules = tuple[Schedule | None, Schedule | None, Schedule | None, Schedule | None, Schedule | None]
"""By the way that a call goes: through slots, or as LENT says."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a call would run. ``touched``: bytes on all ranks; ``streams``: it stores past the caches."""

    candidate: _native.Candidate
    touched: int
    streams: bool
    threads: int


Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., object])


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


def brief(method: Method) -> Method:
    """The same method of Communicator, but a call with arrays alone takes a shorter way to ``_call``."""
    signature = inspect.signature(method)
    given = {name: parameter.default for name, parameter in signature.parameters.items()}
    options = {"async_": False, "op": "sum", "root": 0, "counts": None, "reproducible": None}
    arguments = method.__name__, None, None, *({**options, **given}[name] for name in options)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    doc = f"{method.__name__}{inspect.Signature(bare)}\n--\n\n{inspect.getdoc(method)}"
    return cast("Method", _native.brief(method, "_call", arguments, doc))


class Endpoint:
    """One rank of a communicator. Calls on it have one order, the same on every rank."""

    def __init__(self, meeting: Meeting, timeout: float, threads: int | None = None) -> None:
        """Takes the meeting's descriptors over. ``timeout``: seconds without progress after which a call fails.

        ``threads``: how many share a call's thread blocks; None: one a core.
        """
        self.rank = meeting.rank
        self.size = meeting.size
        self.crowded = meeting.cores == 0
        spins, yields = _PATIENCE[self.crowded]
        self.threads = threads or max(1, meeting.cores)
        self.caches = caches.capacity(meeting.size)
        self.sockets = meeting.sockets
        self.reaches = bool(meeting.processes)
        self._own_lifeline: socket | None = meeting.own_lifeline
        self._trace = trace.start(meeting.rank, meeting.size, meeting.memory, self.threads)
        try:
            self._member: _native.Member | None = _native.Member(
                meeting.rank,
                meeting.size,
                meeting.memory,
                meeting.lifelines,
                meeting.arenas,
                arena.own(),
                meeting.processes,
                meeting.always,
                spins,
                yields,
                timeout,
                self.threads,
                self.caches,
                not caches.given(),
                None if self._trace is None else self._trace.recorder,
            )
        except (RuntimeError, MemoryError) as error:
            meeting.leave()
            raise BootstrapFailed(f"rank {meeting.rank} has no room for the shared memory: {error}") from error
        self._flights: deque[_native.Flight] = deque()  # in the background, oldest first
        self._lifelines = meeting.lifelines  # the member's, and good while it lives
        self._cores = meeting.cores
        self._timeout = timeout
        self._ended = ""
        self._prepared: dict[int, _Prepared] = {}
        self._known: _native.Known | None = None
        if self._trace is not None:  # once: when this is closed, forgotten, or the process ends
            self._write_trace = weakref.finalize(self, self._trace.write)
        _endpoints.add(self)

    def known(self, long_way: Callable[..., object]) -> Callable[..., object]:
        """Make ``long_way`` short for calls that it has made before: what its ``run`` is given as ``key`` is the key.

        Keys are the arguments of ``long_way``: eight, the second and third of them arrays or None, and equal where the
        others are the same objects. Arrays are equal where they have the same type and shape and lie to each other in
        the same way.
        """
        self._known = _native.Known(self._alive(), long_way, self._raise)
        return self._known.call

    def run(
        self,
        schedule: Schedule,
        x: Array | None,
        out: Array | None,
        op: str,
        tile: int | None = None,
        counts: Counts | None = None,
        lending: Lending | None = None,
        key: tuple[object, ...] | None = None,
    ) -> Array | None:
        """See ``Communicator.run``. With ``counts``, arrays have as many rows as they say; ``key``: see ``known``.

        ``lending`` gives what to run instead where ranks can access each other's arrays.
        """
        member = self._alone()
        try:
            prepared, bound, code = self._check(schedule, x, out, op, tile, counts)
            schedules, offer = self._offer(schedule, prepared, bound, x, op, lending)
        except Exception as error:
            self.refuse(error)
        source, target, n, kind, initial, place, result, taken, units, apart = bound
        plan = prepared.apart if apart else prepared.plan
        outcome = member.run(plan, source, target, n, kind, code, tile or 0, initial, place, units, offer)
        if outcome is not None or taken is not None or op == "avg":
            result = self._end(outcome, schedules, bound, op)
        if key is not None and units is None and n is not None and self._known is not None:
            begin = None if taken is None or source is None else taken.start * source.itemsize
            arrays = (source, target, n, tile or 0, kind, code, initial, place, result, begin)
            self._known.learn(key, plan, schedules, *arrays, op == "avg", offer)
        return result

    def start(
        self,
        schedule: Schedule,
        x: Array | None,
        out: Array | None,
        op: str,
        tile: int | None = None,
        counts: Counts | None = None,
        lending: Lending | None = None,
    ) -> Handle[Array | None]:
        """The same in the background. Raises at once for wrong arguments; the other ranks learn of it in their turn."""
        member = self._alive()
        try:
            prepared, bound, code = self._check(schedule, x, out, op, tile, counts)
            schedules, offer = self._offer(schedule, prepared, bound, x, op, lending)
            source, target, n, kind, initial, place, _, _, units, apart = bound
            plan = prepared.apart if apart else prepared.plan
            flight = member.start(plan, source, target, n, kind, code, tile or 0, initial, place, units, offer)
        except Exception as error:
            self.refuse(error, async_=True)
        return Handle(self._launched(flight), lambda outcome: self._end(outcome, schedules, bound, op))

    def _check(
        self,
        schedule: Schedule,
        x: Array | None,
        out: Array | None,
        op: str,
        tile: int | None,
        counts: Counts | None,
    ) -> tuple[_Prepared, Bound, int]:
        """All that a call needs, and the number of its operator. Nothing is written here."""
        prepared = self._prepared.get(id(schedule)) or self._prepare(schedule)
        code = _OPERATORS.get(op)
        if code is None:
            raise InvalidArgument(f"op must be one of {', '.join(_OPERATORS)}, not {op!r}", caller())
        if tile is not None and (type(tile) is not int or tile < 64 or tile & (tile - 1) or tile > 1 << 28):
            raise InvalidArgument(f"tile must be a power of two from 64 bytes to 256 MB, not {tile!r}", caller())
        layout = prepared.layout
        bound = layout.bind_simple(x, out) if layout.simple and counts is None else None
        if bound is None:
            if counts is not None and not prepared.uneven:
                check_units(schedule)
                prepared.uneven = True
            bound = layout.bind(schedule, x, out, counts)
        if not layout.moves and bound.n is not None and (bound.type, code) not in _PAIRS:
            name = _native.TYPES[bound.type]
            raise WrongType(f"{name} has no {op}, only {', '.join(_native.OPERATORS_OF[name])}", caller())
        if op == "avg" and not prepared.averages:
            raise InvalidArgument(f"{schedule.name} does not sum over all ranks, so there is no avg", caller())
        return prepared, bound, code

    def _offer(
        self, schedule: Schedule, prepared: _Prepared, bound: Bound, x: Array | None, op: str, lending: Lending | None
    ) -> tuple[_Schedules, _native.Offer | None]:
        """What else a call can run, and on what, where ranks can access each other's arrays."""
        if prepared.lends:
            if bound.n and (bound.initial is not None or bound.taken is not None or bound.apart):
                how = "in place" if schedule.collective.inplace else "with x and out apart"
                raise InvalidArgument(
                    f"the messages of {schedule.name} lie in its arrays: it works {how} only", caller()
                )
            arrays = [array for array in (bound.input, bound.output) if array is not None]
            if bound.n and not all(map(arena.own().holds, arrays)):
                raise InvalidArgument(
                    f"the messages of {schedule.name} lie in its arrays, which must be memory that ranks share",
                    caller(),
                    "comm.empty(shape, dtype) makes such arrays",
                )
            return (None, schedule, None, None, None), ((prepared.plan, None, None, None), bound.input, bound.output)
        given = [array for array in (x, bound.result) if array is not None]
        schedules: list[Schedule | None] = [None] * len(LENT)
        plans: list[_native.Plan | None] = [None] * len(LENT)
        buffers: tuple[Array | None, Array | None] | None = None
        reached = not all(map(arena.own().holds, given))
        may = not reached or (self.reaches and op not in _ORDERED)
        if lending is not None and bound.n is not None and given and may:
            instead_of = self._alive().candidate(prepared.plan, bound.n, bound.type, 0)
            for way, lent in enumerate(LENT):
                if len(given) == 2 and np.may_share_memory(given[0], given[1]) is not lent.inplace:
                    continue
                other = lending(instead_of.one_round, lent, reached)
                if other is None:
                    continue
                ready = self._prepared.get(id(other)) or self._prepare(other)
                instead = ready.layout.bind(other, x, bound.result)
                lies = instead.input, instead.output
                copied = instead.initial is not None or instead.taken is not None or instead.apart
                if not copied and (buffers is None or all(map(operator.is_, buffers, lies))):
                    schedules[way], plans[way], buffers = other, ready.plan, lies
        in_place, apart, fetched_in_place, fetched_apart = schedules
        found = schedule, in_place, apart, fetched_in_place, fetched_apart
        return found, None if buffers is None else ((plans[0], plans[1], plans[2], plans[3]), *buffers)

    def _end(self, outcome: Outcome | None, schedules: _Schedules, bound: Bound, op: str) -> Array | None:
        """What a call returns, or raises."""
        if outcome is not None and outcome.fault is not Fault.NONE:
            self._raise(outcome, schedules)
        result = bound.result
        if bound.taken is not None and outcome is None:
            assert bound.input is not None
            assert result is not None
            result.reshape(-1)[:] = bound.input.reshape(-1)[bound.taken]
        if op == "avg" and result is not None:  # nobody else needs it any more
            _native.divide(result, bound.type, self.size)
        return result

    def outlook(self, schedule: Schedule, n: int, tile: int | None = None) -> Outlook:
        """How a call on units of n float32 would run, without ``out``; no other rank takes part."""
        member = self._alive()
        prepared = self._prepared.get(id(schedule)) or self._prepare(schedule)
        layout = prepared.layout
        in_place = layout.alias is not None and layout.input_blocks == layout.output_blocks
        plan = prepared.apart if layout.alias is not None and not in_place else prepared.plan
        candidate = member.candidate(plan, n, _native.TYPES.index("float32"), tile or 0)
        touched = member.touched(candidate, layout.input_blocks > 0, layout.output_blocks > 0 and not in_place)
        return Outlook(candidate, touched, touched > self.caches, member.threads(candidate))

    def empty(self, shape: object, dtype: object) -> Array:
        """See ``Communicator.empty``."""
        self._alive()
        return arena.empty(shape, dtype)

    def barrier(self) -> None:
        """Return once every rank is here."""
        self._end_barrier(self._alone().barrier())

    def start_barrier(self) -> Handle[None]:
        """The same in the background."""
        return Handle(self._launched(self._alive().start_barrier()), self._end_barrier)

    def _end_barrier(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._raise(outcome)

    def traffic(self) -> Traffic:
        """See ``Communicator.traffic``."""
        return Traffic(*self._alive().traffic())

    def split(self, color: int | None, key: int) -> Endpoint | None:
        """See ``Communicator.split``."""
        member = self._alone()
        try:
            word = [None if color is None else operator.index(color), operator.index(key), secrets.token_hex(16)]
        except TypeError:
            self.refuse(WrongType(f"color and key must be integers, not {name_of(color)} and {name_of(key)}", caller()))
        said = member.exchange(json.dumps(word))
        if isinstance(said, Outcome):
            self._raise(said)
        if color is None:
            return None
        words = [json.loads(text) for text in said]
        ranks = sorted((k, rank) for rank, (c, k, _) in enumerate(words) if c == word[0])
        called = tuple(rank for _, rank in ranks)
        here = Place(called.index(self.rank), len(called), words[called[0]][2], called)
        try:
            meeting = gather(here, self._timeout, {self._lifelines[r]: r for r in called if r != self.rank})
            meeting.cores = min(meeting.cores, self._cores)
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
            if self._trace is not None:
                self._write_trace.detach()
        self._release("it belongs to the process that this one was forked from")

    def _release(self, why: str) -> None:
        if self._member is None:
            return
        for flight in list(self._flights):  # the end of the communicator ends them
            flight.wait()
        self._flights = deque()  # the last one would keep the member; another thread may look at the old ones
        self._member = None
        if self._known is not None:
            self._known.clear()
        self._ended = why
        self._prepared.clear()
        if self._own_lifeline is not None:
            self._own_lifeline.close()
        if self._trace is not None:
            self._write_trace()

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
                f"a communicator runs a Schedule, not {name_of(schedule)}",
                caller(),
                "compile a program with .compile()",
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
        member = self._alive()
        plan, apart = lower(schedule, self.rank), lower_apart(schedule, self.rank)
        native = self._made(member, schedule, plan)
        key = id(schedule)
        prepared = self._prepared
        found = _Prepared(
            weakref.ref(schedule, lambda _: prepared.pop(key, None) and None),
            native,
            native if apart is None else self._made(member, schedule, apart),
            layout_of(schedule, self.rank, plan.writes_input, apart is not None),
            collective.averages(),
            schedule.in_place(),
        )
        prepared[key] = found
        return found

    def _made(self, member: _native.Member, schedule: Schedule, plan: Plan) -> _native.Plan:
        made = member.plan(plan.words, plan.digest, plan.name)
        if self._trace is not None:
            self._trace.knows(made, schedule, plan.part)
        return made

    def refuse(self, error: Exception, async_: bool = False) -> NoReturn:
        """Tell the others that this rank cannot take part in this call, and raise.

        Once they know; with ``async_`` at once: they learn of it when it is this call's turn.
        """
        if async_:
            self._launched(self._alive().start_refusal(_why(error)))
            raise error
        outcome = self._alone().refuse(_why(error))
        if outcome is not None and outcome.fault is not Fault.REFUSED:
            self._raise(outcome)
        raise error

    def _raise(self, outcome: Outcome, schedules: _Schedules = (None,) * 5) -> NoReturn:
        schedule = schedules[outcome.way]
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
    recounted = (first.counted, first.counts) != (other.counted, other.counts) and not (
        first.pairwise and other.pairwise
    )
    differs = [
        what
        for what, different in (
            ("schedule", first.digest != other.digest),
            ("counts", recounted),
            ("size", other.size_known and sized.n != other.n and not recounted and not other.pairwise),
            ("type", other.size_known and sized.type != other.type),
            ("operator", first.op != other.op),
            ("tile", first.tile != other.tile),
        )
        if different
    ]
    calls = []
    texts = [s.text.decode(errors="replace") for s in said]
    for s, text in zip(said, texts, strict=True):
        name, _, counts = text.partition("\n")
        if s.digest <= 1:  # no schedule
            calls.append("split" if s.digest else name)
            continue
        opaque = s.type - len(_native.TYPES)
        kind = _native.TYPES[s.type] if opaque < 0 else f"{opaque}-byte elements"
        size = f"{s.n} x {kind} a unit, " if s.size_known else ""
        tile = f", tile {s.tile}" if s.tile else ""
        counts = f", counts {counts}" if s.counted else ""
        calls.append(f"{name} [{s.digest:016x}] ({size}{_native.OPERATORS[s.op]}{tile}{counts})")
    if differs:
        return CallMismatch(outcome.rank, tuple(differs), tuple(calls))
    return CallMismatch(None, ("counts",), tuple(calls), transfers([text.partition("\n")[2] for text in texts]))


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
