"""A rank's end of a communicator: makes schedules ready, runs calls, and says what went wrong."""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from hocket import _native
from hocket._native import Adoption, Buffer, Fault, Omitted, Outcome, Source
from hocket._native import CallCache as CallCache
from hocket._native import Handle as Handle
from hocket._native import Outlook as Outlook
from hocket.collectives import whole
from hocket.errors import (
    BadConfig,
    BootstrapFailed,
    CallMismatch,
    CallTimeout,
    CommunicatorBusy,
    CommunicatorDead,
    Declined,
    HocketError,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    StepName,
    WrongType,
    caller,
    describe,
)
from hocket.ir.schedule import Schedule, verify
from hocket.ir.traffic import Traffic
from hocket.runtime import adopted, arena, machine, nodes, trace
from hocket.runtime.adopted import Adopted, Region
from hocket.runtime.bootstrap import Meeting, Schedules, gather, no_schedules
from hocket.runtime.buffers import Bound
from hocket.runtime.counts import transfers
from hocket.runtime.launchers import Place
from hocket.runtime.operands import (
    Argument,
    Array,
    Operand,
    Operands,
    Parts,
    address,
    between,
    name_of,
    operand_of,
    operands_of,
)
from hocket.runtime.plan import Plan
from hocket.runtime.plan_cache import PlanCache
from hocket.runtime.tuned import tuned

_OPERATORS = {name: code for code, name in enumerate(_native.OPERATORS)}
_PAIRS = {(code, _OPERATORS[op]) for code, name in enumerate(_native.TYPES) for op in _native.OPERATORS_OF[name]}

_MOST_CALLS = 1024  # that are kept of a schedule
_NAMED = 50  # characters of a name in a word, which may take 12 bytes each
_MOST_RELEASED = 32  # places that fit a word
_EXCHANGES = {_native.SPLIT: "split", _native.ADOPT: "adopt", _native.USE: "use", _native.LOOK: "look"}

Key = tuple[object, ...]
"""A program that is called by name: plain values that mean the same on every rank."""


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A rank's part of a schedule, ready to run: what was ``lowered``, and what native code made of it.

    ``apart`` is for calls whose arrays lie apart though the schedule is in-place. ``calls`` of a schedule that were
    prepared, by what they depend on.
    """

    lowered: Plan
    plan: _native.Plan
    apart: _native.Plan
    calls: dict[tuple[object, ...], PreparedCall] = field(default_factory=dict)


VARIANTS = True, False
"""The zero-copy variants of native/protocol/header.h: arrays that ranks access lie in place, or apart."""


Offered = tuple[Sequence[LoadedPlan | None], _native.Alternatives | None]
"""What a call can run instead where ranks can access each other's arrays: a program, or none, for each of VARIANTS; and
as native code takes them."""


def offer(plans: Sequence[LoadedPlan | None], bound: Bound, shared: bool, private: bool) -> Offered:
    """Of these the programs that work on the memory of x and out alone, and all on the same buffers.

    They are for where all arrays of the call are memory that ranks share, if ``shared``, and where some are not, if
    ``private``.
    """
    chosen: list[LoadedPlan | None] = [None] * len(VARIANTS)
    buffers: tuple[Source, Source] | None = None
    for variant, other in enumerate(plans):
        if other is not None:
            instead = other.lowered.layout.bind(bound.operands)
            if not instead.copies and buffers in (None, (instead.input, instead.output)):
                chosen[variant], buffers = other, (instead.input, instead.output)
    native = [None if other is None else other.plan for other in chosen]
    return chosen, None if buffers is None else _native.Alternatives(native, *buffers, shared, private)


Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., object])


def wait_any(handles: Sequence[Handle[Result]]) -> int:
    """Wait until one of several calls in the background has ended, of any communicators: its index.

    Where several have, that of the first. Does not raise what the call would: ``wait`` of its handle does, at once.
    """
    if not handles:
        raise InvalidArgument("there is no handle to wait for", caller())
    return _native.wait_any(handles)


class PreparedCall(_native.PreparedCall):
    """A collective for which everything is decided but where its arrays lie (``Communicator.prepare``).

    ``call(x, out)`` makes the call, and returns what the method of the collective would. ``x`` and ``out`` are NumPy
    arrays of the type and shape that were prepared, or a ``Buffer`` each, or the address of one, a plain int. They lie
    apart, or in place, as was prepared.
    One that lies apart may also be a list or a tuple of arrays of any shape and buffers, which stand one behind the
    other for what was prepared; unless they lie so in memory, they are copied.
    Whether a call was prepared is a rank's own affair: the others may use the method.

    Raises WrongType or InvalidArgument for arrays that are not as was prepared, and PeerRefused on the other ranks;
    otherwise as ``Communicator.run``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loaded: LoadedPlan,
        bound: Bound,
        terms: _native.Terms,
        offered: Offered,
        counted: _native.Plan | None = None,
    ) -> None:
        x, out = bound.operands.x, bound.operands.out
        plans, alternatives = offered
        lends = loaded.lowered.lends
        super().__init__(
            endpoint.alive(),
            loaded.apart if bound.apart else loaded.plan,
            terms,
            _native.Operands(
                None if x is None else x.native(written=Source.X in bound.writes),
                None if out is None else out.native(written=Source.OUT in bound.writes),
                bound.operands.between,
                bound.operands.omitted,
            ),
            _native.Binding(bound.input, bound.output, bound.initial, bound.result, bound.place, bound.taken),
            alternatives,
            lends,
            counted,
        )
        self._endpoint = endpoint
        self._take_turn, self._refuse, self._no_thread = endpoint._alone, endpoint.refuse, endpoint._no_thread
        self._bound = bound
        self._lowered = loaded.lowered
        self._plans = [None if plan is None else plan.lowered for plan in (None if lends else loaded, *plans)]

    def _raise(self, outcome: Outcome) -> NoReturn:
        self._endpoint._raise(outcome, self._plans)

    def tuned(self, arms: _native.KeyArms, prepare: Callable[[int], PreparedCall], merge: Callable[[], None]) -> None:
        """From now on each call takes one of several arms, this or one that is prepared when it is first taken.

        ``merge``: what the ranks do first where they have agreed to, at the next call.
        """
        self._prepare_arm, self._merge = prepare, merge
        self._arms: list[PreparedCall] = []  # that native code has asked for
        self.tune(arms)

    def _arm(self, number: int, background: bool) -> PreparedCall:
        with self._endpoint.refusing(background):
            found = self._prepare_arm(number)
        self._arms.append(found)
        return found

    def _check(self, x: Argument, out: Argument, background: bool) -> None:
        """Refuse a call on arguments that are not as it was prepared."""
        self._endpoint.alive()
        try:
            self._compare(x, out)
        except Exception as error:
            self._endpoint.refuse(error, background)

    def _compare(self, x: Argument, out: Argument) -> None:
        expected = self._bound.operands
        if out is None and expected.omitted is Omitted.X:
            out = x
        fresh = out is None and expected.omitted is Omitted.FRESH
        used = []
        for name, given, operand in (("x", x, expected.x), ("out", out, None if fresh else expected.out)):
            if operand is None:
                continue
            if given is None:
                raise WrongType(f"{self._lowered.name} was prepared for an {name}, which is None", caller())
            if isinstance(given, int):
                given = Buffer(given, operand.nbytes, operand.type.name)
            written = (Source.X if name == "x" else Source.OUT) in self._bound.writes
            if isinstance(given, list | tuple):
                self._compare_parts(name, given, operand, written)
                continue
            _compare(name, given, operand, written)
            used.append(given)
        if len(used) == 2 and all(given.nbytes for given in used) and expected.between != between(*used):
            how = "apart" if expected.between is None else "in place"
            raise InvalidArgument(f"{self._lowered.name} was prepared for x and out that lie {how}", caller())
        if self._lowered.lends and self._bound.n and not all(self._endpoint.holds(given) for given in used):
            raise _private(self._lowered)

    def _compare_parts(self, name: str, given: Parts, expected: Operand, written: bool) -> None:
        """Raise where a list is not as was prepared."""
        if self._bound.operands.between is not None:
            raise InvalidArgument(f"{self._lowered.name} was prepared to work in place: {name} is no list", caller())
        for number, part in enumerate(given):
            _compare_elements(f"{name}[{number}]", part, expected, written)
        if (nbytes := sum(part.nbytes for part in given)) != expected.nbytes:
            raise InvalidArgument(
                f"the parts of {name} have {nbytes} bytes, and were prepared to have {expected.nbytes}", caller()
            )


def _compare(name: str, given: Array | Buffer, expected: Operand, written: bool) -> None:
    """Raise where an argument is not as it was prepared."""
    found = _compare_elements(name, given, expected, written)
    if isinstance(given, Buffer):
        if given.nbytes != expected.nbytes:
            raise InvalidArgument(
                f"{name} has {given.nbytes} bytes, and was prepared to have {expected.nbytes}", caller()
            )
    elif found.shape != expected.shape:
        raise InvalidArgument(f"{name} is of shape {found.shape}, and was prepared to be of {expected.shape}", caller())


def _compare_elements(name: str, given: Array | Buffer, expected: Operand, written: bool) -> Operand:
    """Raise where an argument, or a part of one, is not what it was prepared to be but for its length."""
    found = operand_of(name, given)
    if found is None:
        raise WrongType(f"{name} is None", caller())
    if (found.type.code, found.type.name) != (expected.type.code, expected.type.name):
        raise WrongType(f"{name} is of {found.type}, and was prepared to be of {expected.type}", caller())
    if written and not found.writeable:
        raise InvalidArgument(f"the result would go to {name}, which is read-only", caller())
    return found


def _key(x: Array | None, out: Array | None, op: object, tile: object) -> tuple[object, ...] | None:
    """All that a prepared call of a schedule depends on; None for arrays that need a second look."""
    if type(x) is not np.ndarray or type(op) is not str or (tile is not None and type(tile) is not int):
        return None
    given = x.shape, _type_key(x.dtype), x.flags.writeable, op, tile
    if out is None:
        return given
    if type(out) is not np.ndarray or np.may_share_memory(x, out):
        return None
    return *given, out.shape, _type_key(out.dtype), out.flags.writeable


def _type_key(dtype: np.dtype[np.generic]) -> object:
    """Equal for types that have the same name too: structures that are aligned or not are equal to NumPy."""
    return dtype if dtype.isbuiltin == 1 else (dtype, str(dtype))


def _private(plan: Plan) -> InvalidArgument:
    return InvalidArgument(
        f"the messages of {plan.name} lie in its arrays, which must be memory that ranks share",
        caller(),
        "comm.empty(shape, dtype) makes such arrays",
    )


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

    def __init__(self, meeting: Meeting, timeout: float, threads: int | None, schedules: Schedules) -> None:
        """Takes the meeting's descriptors over. ``timeout``: seconds without progress after which a call fails.

        ``threads``: how many share a call's thread blocks; None: one a core. ``schedules``: as ``meet`` takes it, for
        communicators made of this one.
        """
        self.rank, self.size = meeting.rank, meeting.size
        self.oversubscribed = meeting.cores == 0
        numbers = tuned()
        policy = self.tuned = numbers.policy
        self.tuner = numbers.tuner
        spins, yields = policy.patience(crowded=self.oversubscribed, nodes=bool(meeting.nodes))
        # The thread of a call is the one that moves its messages between nodes.
        self.threads = 1 if meeting.nodes else threads or max(1, meeting.cores)
        self.caches = machine.cache_bytes(meeting.size)
        self.sockets, self.attaches, self.long_headers = meeting.sockets, bool(meeting.processes), meeting.long_headers
        self.nodes, self._mpi, self._joins = meeting.nodes, meeting.mpi, meeting.joins
        self._trace = trace.start(meeting.rank, meeting.size, meeting.memory, self.threads)
        try:
            self._member: _native.Member | None = _native.Member(
                rank=meeting.rank,
                size=meeting.size,
                descriptor=meeting.memory,
                lifelines=meeting.lifelines,
                arenas=meeting.arenas,
                arena=arena.own(),
                processes=meeting.processes,
                always_attaches=meeting.always,
                crowded=self.oversubscribed,
                spins=spins,
                yields=yields,
                timeout=timeout,
                threads=self.threads,
                team_bytes=policy.team_bytes,
                cache_bytes=self.caches,
                looks=machine.given_cache_bytes() is None,
                recorder=None if self._trace is None else self._trace.recorder,
                tunables=numbers.native,
                nodes=meeting.nodes,
                mpi=0 if meeting.mpi is None else nodes.address(meeting.mpi),
                latency=meeting.emulated[0],
                bandwidth=meeting.emulated[1],
            )
        except (RuntimeError, MemoryError, ValueError) as error:
            meeting.leave()
            why = str(error) if isinstance(error, ValueError) else f"it has no room for the shared memory: {error}"
            raise BootstrapFailed(f"rank {meeting.rank} cannot take part: {why}") from error
        _native.let_go()
        self._lifelines = meeting.lifelines  # the member's, and good while it lives
        self._cores, self._token = meeting.cores, meeting.token
        self._timeout, self._schedules = timeout, schedules
        self._ended = ""
        self.at_close: Callable[[], None] = lambda: None
        self._pairs: list[Endpoint] = []
        self._regions: dict[int, Region] = {}  # that are adopted, by place
        self._next_place = _native.ADOPTED
        self._released: list[int] = []  # places that the others may still have mapped
        self._asked: dict[tuple[str, tuple[int, ...]], count[int]] = {}  # for communicators of its ranks, by kind
        self._loaded: dict[int, tuple[weakref.ref[Schedule], LoadedPlan]] = {}
        self._programs: dict[Key, LoadedPlan] = {}
        self._shared = PlanCache(meeting.memory, meeting.rank, meeting.lifelines, timeout, meeting.nodes)
        self._calls: weakref.WeakSet[PreparedCall] = weakref.WeakSet()
        self._caches: list[CallCache] = []
        if self._trace is not None:  # once: when this is closed, forgotten, or the process ends
            self._write_trace = weakref.finalize(self, self._trace.write)
        _endpoints.add(self)

    def cached(
        self, slow_path: Callable[..., object], tensors: type | None = None, lock: Lock | None = None
    ) -> CallCache:
        """See ``Communicator.cached``. Without ``tensors``, its calls are on arrays, and told apart by their shapes."""
        cache = CallCache(self.alive(), slow_path, tensors, lock)
        self._caches.append(cache)
        return cache

    def run(
        self, schedule: Schedule, x: Array | None, out: Array | None, op: str, tile: int | None, async_: bool
    ) -> object:
        """See ``Communicator.run``."""
        try:
            loaded = self._of(schedule)
            key = _key(x, out, op, tile)
            call = None if key is None else loaded.calls.get(key)
            if call is None:
                call = self.prepare(loaded, loaded.lowered.layout.bind(operands_of(x, out)), op, tile)
                if key is not None and len(loaded.calls) < _MOST_CALLS:
                    loaded.calls[key] = call
        except Exception as error:
            self.refuse(error, async_)
        return call.start(x, out) if async_ else call(x, out)

    def prepare(
        self,
        loaded: LoadedPlan,
        bound: Bound,
        op: str,
        tile: int | None = None,
        offered: Offered = ((None, None), None),
        timeout: float | None = None,
        scale: float | None = None,
        counted: _native.Plan | None = None,
    ) -> PreparedCall:
        """A call that everything is known of but where its arrays lie. Raises WrongType, InvalidArgument.

        ``timeout``: seconds, None for that of this communicator. ``scale``: what a sum is multiplied by. ``counted``:
        what an exchange without counts runs where other ranks give theirs.
        """
        if scale is not None:
            if not isinstance(scale, int | float) or op != "sum":
                raise InvalidArgument(f"scale must be a number, of op sum, not {scale!r} of {op!r}", caller())
            op, scale = "avg", float(scale)
        code = _OPERATORS.get(op) if isinstance(op, str) else None
        if code is None:
            raise InvalidArgument(f"op must be one of {', '.join(_OPERATORS)}, not {op!r}", caller())
        if tile is not None and (type(tile) is not int or tile < 64 or tile & (tile - 1) or tile > 1 << 28):
            raise InvalidArgument(f"tile must be a power of two from 64 bytes to 256 MB, not {tile!r}", caller())
        plan, layout, kind = loaded.lowered, loaded.lowered.layout, bound.type
        if not layout.moves and bound.n is not None and (kind.code, code) not in _PAIRS:
            raise WrongType(f"{kind} has no {op}, only {', '.join(_native.OPERATORS_OF[kind.name])}", caller())
        if op == "avg" and not plan.averages:
            raise InvalidArgument(f"{layout.name} does not sum over all ranks, so there is no avg", caller())
        if plan.lends and self.nodes:
            raise InvalidArgument(f"the messages of {plan.name} lie in its arrays, and nodes share no memory", caller())
        if plan.lends:
            if bound.n and bound.copies:
                how = "in place" if layout.inplace else "with x and out apart"
                raise InvalidArgument(f"the messages of {plan.name} lie in its arrays: it works {how} only", caller())
            if bound.n and bound.operands.omitted is Omitted.FRESH:
                raise _private(plan)
            native = _native.Alternatives([loaded.plan, None], bound.input, bound.output, shared=True, private=True)
            offered = (loaded, None), native
        element = kind.name if kind.opaque and bound.n is not None else None
        element = element if scale is None else f"sum times {scale!r}"
        terms = _native.Terms(bound.n, kind.code, code, tile or 0, element, bound.units, timeout or 0.0, scale)
        call = PreparedCall(self, loaded, bound, terms, offered, counted)
        self._calls.add(call)
        if self._member is None:  # another thread has closed this
            call.release()
        return call

    def shares(self, operands: Operands, x: Array | None, out: Array | None) -> bool:
        """Whether all arrays of a call, those that it looks at, are memory that ranks share."""
        if operands.omitted is Omitted.FRESH:
            return False
        written = x if operands.omitted is Omitted.X else out
        used = None if operands.x is None else x, None if operands.out is None else written
        return all(self.holds(array) for array in used if array is not None)

    def holds(self, array: Array | Buffer) -> bool:
        """Whether it lies in memory that ranks share."""
        return self.alive().holds(address(array))

    def expects(self, loaded: LoadedPlan, bound: Bound) -> Outlook | None:
        """How a call would run; None where not all ranks know their sizes."""
        if bound.n is None:
            return None
        return self.alive().outlook(loaded.plan, bound.n, bound.type.code, 0, input=True, output=True)

    def outlook(self, schedule: Schedule, n: int, tile: int | None = None) -> Outlook:
        """How a call on units of n float32 would run, without ``out``; no other rank takes part."""
        loaded = self._of(schedule)
        layout = loaded.lowered.layout
        in_place = layout.alias is not None and layout.input_blocks == layout.output_blocks
        plan = loaded.apart if layout.alias is not None and not in_place else loaded.plan
        arrays = layout.input_blocks > 0, layout.output_blocks > 0 and not in_place
        return self.alive().outlook(plan, n, _native.TYPES.index("float32"), tile or 0, *arrays)

    def barrier(self, async_: bool, timeout: float | None) -> Handle[None] | None:
        """See ``Communicator.barrier``."""
        if async_:
            return self.alive().start_barrier(self, timeout or 0.0)
        outcome = self._alone().barrier(timeout or 0.0)
        if outcome is not None:
            self._raise(outcome)
        return None

    def traffic(self) -> Traffic:
        """See ``Communicator.traffic``."""
        own = self.alive().traffic()
        return sum((pair.traffic() for pair in self._pairs), Traffic(own.loaded, own.stored))

    def adopt(self, descriptor: int | None, address: int, nbytes: int) -> Adopted:
        """See ``Communicator.adopt``."""
        member = self._alone()
        if self.nodes:
            self.refuse(InvalidArgument("ranks on several nodes share no memory", caller()))
        with self.refusing():
            own = None if descriptor is None else adopted.region(descriptor, address, nbytes)
            if own is not None and (member.holds(own.address) or any(map(own.overlaps, self._regions.values()))):
                raise InvalidArgument("ranks share some of these bytes already", caller())
        place, released = self._next_place, self._released[:_MOST_RELEASED]
        word = None if own is None else (place, own.pages, own.skip)
        said = self._said((word, released), _native.ADOPT)
        others = self._mapped(own, {rank: theirs for rank, (theirs, _) in enumerate(said) if theirs})
        gone = [Adoption(rank, place) for rank, (_, places) in enumerate(said) for place in places if rank != self.rank]
        found = (0, 0) if own is None else (own.address, own.nbytes)
        outcome = member.adopt([*gone, *others], place, *found)
        if outcome is not None:
            self._raise(outcome)
        del self._released[: len(released)]
        if own is not None:
            self._regions[place] = own
            self._next_place += own.pages[1]
        return Adopted(self, None if own is None else place)

    def disown(self, place: int) -> None:
        """See ``Adopted.close``."""
        if self._member is None:
            return
        outcome = self._alone().release(place)
        if outcome is not None:
            self._raise(outcome)
        del self._regions[place]
        self._released.append(place)

    def _mapped(self, own: Region | None, said: Mapping[int, adopted.Word]) -> list[Adoption]:
        """What the other ranks adopt, once all ranks have mapped it."""
        others: list[Adoption] = []
        failed: Exception | None = None
        if said and self.size > 1:
            with self._met("adopt", tuple(range(self.size)), None if own is None else own.descriptor) as meeting:
                try:
                    for rank, (place, pages, skip) in said.items():
                        if rank != self.rank:
                            mapped = _native.SharedPages(meeting.arenas[rank], *pages)
                            others.append(Adoption(rank, place, mapped, skip))
                except RuntimeError as error:
                    failed = MemoryError(str(error))
                finally:
                    meeting.undo()
        if failed is not None:
            self.refuse(failed)
        self._said(None, _native.ADOPT)
        return others

    def _said(self, word: object, digest: int) -> list[Any]:
        """What every rank said in a call that exchanges words: plain values."""
        said = self._alone().exchange(json.dumps(word), digest)
        if isinstance(said, Outcome):
            self._raise(said)
        return [json.loads(text) for text in said]

    def split(self, color: int | None, key: int) -> Endpoint | None:
        """See ``Communicator.split``."""
        self._alone()
        try:
            numbers = [None if color is None else operator.index(color), operator.index(key)]
        except TypeError:
            self.refuse(WrongType(f"color and key must be integers, not {name_of(color)} and {name_of(key)}", caller()))
        if any(number is not None and number.bit_length() > 63 for number in numbers):
            self.refuse(InvalidArgument("color and key must be integers of 64 bits", caller()))
        said = self._said(numbers, _native.SPLIT)
        if color is None:
            return None
        ranks = sorted((k, rank) for rank, (c, k) in enumerate(said) if c == numbers[0])
        return self._gathered("split", tuple(rank for _, rank in ranks))

    def subgroup(self, ranks: Sequence[int], tag: str) -> Endpoint:
        """See ``Communicator.subgroup``."""
        self.alive()
        if not isinstance(tag, str):
            raise WrongType(f"tag must be a text, not {name_of(tag)}", caller())
        given = [whole(rank) for rank in ranks] if isinstance(ranks, Iterable) else []
        called = tuple(rank for rank in given if rank is not None and 0 <= rank < self.size)
        if self.rank not in called or len(set(called)) < len(given):
            raise InvalidArgument(
                f"ranks must be different ones in [0, {self.size}), this one, {self.rank}, among them, not {ranks!r}",
                caller(),
            )
        return self._gathered(f"subgroup {tag}", called)

    def pair(self, sender: int, receiver: int) -> Endpoint:
        """A communicator of these two ranks, the sender its rank 0, that ends with this one. Both ask for it, once.

        This rank is one of them, or both. Raises CallTimeout and PeerFailed, with ranks of this communicator.
        """
        called = (sender, receiver) if sender != receiver else (sender,)
        pair = self._gathered("pair", called, ends_with_this=True)
        self._pairs.append(pair)
        return pair

    def _gathered(self, kind: str, called: tuple[int, ...], ends_with_this: bool = False) -> Endpoint:
        """These ranks as a communicator, in this order, once all of them ask for one of this kind.

        What they ask for again is another one, unless it ends with this one: then a second thread is too many.
        """
        schedules = no_schedules if ends_with_this else self._schedules
        if self.nodes and {self.nodes[rank] for rank in called} != {self.nodes[self.rank]}:
            return self._gathered_across(kind, called, ends_with_this, schedules)
        with self._met(kind, called, once=ends_with_this, schedules=schedules) as meeting:
            meeting.cores = min(meeting.cores, self._cores)
            if ends_with_this and meeting.size > 1:
                os.close(meeting.lifelines[meeting.rank])
                meeting.lifelines[meeting.rank] = -1
                other = 1 - meeting.rank
                os.dup2(self._lifelines[called[other]], meeting.lifelines[other], inheritable=False)
            return Endpoint(meeting, self._timeout, self.threads, self._schedules)

    def _gathered_across(self, kind: str, called: tuple[int, ...], once: bool, schedules: Schedules) -> Endpoint:
        """The same of ranks of several nodes, over MPI, which waits without a limit for those that do not ask."""
        _member, mpi = self.alive(), self._mpi
        assert mpi is not None
        number = self._next(kind, called, once)
        try:
            with nodes.part(mpi, called, repr((kind, called, number))) as part:
                placed = [str(self.nodes[rank]) for rank in called]
                meeting = nodes.meet(part, self._timeout, schedules, placed, self._joins)
        except BadConfig:
            raise
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.abort("was interrupted" if interrupted else f"could not meet: {describe(error)}")
            raise
        meeting.cores = min(meeting.cores, self._cores)
        return Endpoint(meeting, self._timeout, self.threads, self._schedules)

    def _next(self, kind: str, called: tuple[int, ...], once: bool) -> int:
        """How often these ranks were asked for before. ``once``: they must not have been; raises CommunicatorBusy."""
        number = next(self._asked.setdefault((kind, called), count()))
        if number and once:
            raise CommunicatorBusy
        return number

    @contextmanager
    def _met(
        self,
        kind: str,
        called: tuple[int, ...],
        lent: int | None = None,
        once: bool = False,
        schedules: Schedules = no_schedules,
    ) -> Iterator[Meeting]:
        """The next meeting of this kind of these ranks, in this order. What fails in it ends this communicator.

        ``lent``: a file instead of the arena. ``once``: there is one such meeting; raises CommunicatorBusy.
        ``schedules``: what this rank says of those it goes by. Its own BadConfig, which all are told of, ends nothing.
        """
        _member = self.alive()  # keeps the lifelines
        number = self._next(kind, called, once)
        token = hashlib.sha256(repr((self._token, kind, called, number)).encode()).hexdigest()[:32]
        try:
            here = Place(called.index(self.rank), len(called), token, called, lent)
            # The own lifeline tells of an end by another thread of this process.
            yield gather(here, self._timeout, {self._lifelines[rank]: rank for rank in called}, schedules)
        except PeerFailed as error:
            self.lose(error.rank, error.reason, called)
        except CallTimeout as error:
            self.time_out(error.rank, error.seconds)
        except BadConfig:  # a rank whose file says something else, or nothing wrong, ends this communicator
            raise
        except BaseException as error:  # the others wait for this rank, and see its end by this communicator's lifeline
            interrupted = isinstance(error, KeyboardInterrupt)
            self.abort("was interrupted" if interrupted else f"could not meet: {getattr(error, 'reason', error)}")
            raise

    def time_out(self, rank: int, seconds: float) -> NoReturn:
        """End this communicator, as a rank was waited for in vain outside of its calls. Raises CallTimeout."""
        self.fail(rank, "was waited for in vain")
        raise CallTimeout(rank, seconds) from None

    def lose(self, rank: int, reason: str, others: Sequence[int] = ()) -> NoReturn:
        """End this communicator, as a rank was seen to be lost outside of its calls. Raises PeerFailed.

        It may have given up because of another, which it or one of the others has said: the error is of that one then.
        """
        found = next(filter(None, map(self.alive().ended, (rank, *others))), None)
        if found is not None:
            rank, reason = found.rank, found.text
        self.fail(rank, reason)
        raise PeerFailed(rank, reason) from None

    def close(self, drain: bool = False) -> None:
        """See ``Communicator.close``. A rank that still needs this one raises PeerFailed."""
        member = self._member
        if member is not None:
            if drain:
                member.land()
            member.leave()
            self._release("it was closed")
            for pair in self._pairs:
                pair.close()
            self.at_close()

    def abort(self, reason: str) -> None:
        """End the communicator on every rank: they raise PeerFailed with this reason, a verb phrase."""
        if not isinstance(reason, str):
            raise _no_text(reason)
        self.fail(self.rank, reason)

    def fail(self, culprit: int, reason: str) -> None:
        """End the communicator on every rank, because of what a rank did: a verb phrase."""
        if self._member is not None:
            self._member.fail(culprit, reason)
            self._release(f"rank {culprit} {reason}")
            for pair in self._pairs:
                pair.abort(reason)

    def forked(self) -> None:
        """In a child after fork: the communicator is the parent's, and so are its threads and its life."""
        if self._member is not None:
            self._member.forked()
            if self._trace is not None:
                self._write_trace.detach()
        self._release("it belongs to the process that this one was forked from")

    def _release(self, why: str) -> None:
        if self._member is None:
            return
        self._member.land()  # the end of the communicator ends them
        self._ended = why
        self._member = None
        for cache in self._caches:
            cache.clear()
        for call in list(self._calls):
            call.release()
        self._loaded.clear()
        self._programs.clear()
        if self._trace is not None:
            self._write_trace()

    def alive(self) -> _native.Member:
        """Its native part, until it has ended. Raises CommunicatorDead."""
        if self._member is None:
            raise CommunicatorDead(self._ended)
        return self._member

    def _alone(self) -> _native.Member:
        """Once nothing goes on in the background: calls have one order. Whoever is interrupted here makes no call."""
        try:
            member = self.alive()
            member.land()
        except BaseException as error:  # mostly what a signal handler raises
            self.abort("was interrupted" if isinstance(error, KeyboardInterrupt) else f"raised {describe(error)}")
            raise
        return member

    def _no_thread(self, reason: str) -> NoReturn:
        """There is no thread for a call in the background: the others, who wait for it, must hear of it."""
        self.abort(f"could not start a thread: {reason}")
        raise CommunicatorDead(self._ended)

    def program(self, call: str, key: Key, compiled: Callable[[], Schedule]) -> LoadedPlan:
        """A program of calls by name, in errors ``call``: the rank that needs it first compiles it for all."""
        found = self._programs.get(key)
        if found is None:
            member = self.alive()
            if self._trace is not None:  # it tells more of the steps than a plan does
                found = self._load(compiled(), call)
            else:
                found = self._ready(member, self._shared.get(str(key), compiled), call)
            self._programs[key] = found
        return found

    def agree(self, schedule: Schedule, sizes: str) -> None:
        """Return once all ranks have said the same: a call of all. Raises CallMismatch."""
        word = {"schedule": schedule.digest(), "sizes": sizes, "name": schedule.name[:_NAMED]}
        said = self._said(word, _native.USE)
        for rank, other in enumerate(said):
            differs = tuple(what for what in ("schedule", "sizes") if other[what] != said[0][what])
            if differs:
                calls = (f"use ({each['name']} [{each['schedule'][:16]}], {each['sizes']})" for each in said)
                raise CallMismatch(rank, differs, tuple(calls))

    def _of(self, schedule: Schedule) -> LoadedPlan:
        found = self._loaded.get(id(schedule))
        return self._load(schedule) if found is None else found[1]

    def _load(self, schedule: Schedule, call: str | None = None) -> LoadedPlan:
        self.require_fit(schedule, call)
        found = self._ready(self.alive(), self._shared.get(schedule.digest(), lambda: schedule), call)
        if self._trace is not None:
            self._trace.knows(schedule, found.plan, found.apart)
        key, loaded = id(schedule), self._loaded
        loaded[key] = weakref.ref(schedule, lambda _: loaded.pop(key, None) and None), found
        return found

    def require_fit(self, schedule: Schedule, call: str | None = None) -> None:
        """Raises WrongType and InvalidArgument for what these ranks cannot run, and what ``verify`` raises."""
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
                f"{call or schedule.name} uses channel {highest}; between {self.size} ranks there are {channels}",
                caller(),
            )

    def _ready(self, member: _native.Member, plan: Plan, call: str | None) -> LoadedPlan:
        name = call or f"{plan.name} [{plan.digest:016x}]"
        native = member.plan(plan.words, plan.digest, name)
        apart = native if plan.apart is None else member.plan(plan.apart, plan.digest, name)
        return LoadedPlan(plan if call is None else plan.called(call), native, apart)

    def refuse(self, error: Exception, async_: bool = False) -> NoReturn:
        """Tell the others that this rank cannot take part in this call, and raise.

        Once they know; with ``async_`` at once: they learn of it when it is this call's turn.
        """
        why = error.diagnostic().message if isinstance(error, HocketError) else describe(error)
        if async_:
            self.alive().start_refusal(self, why)
            raise error
        outcome = self._alone().refuse(why)
        if outcome.fault is not Fault.REFUSED:
            self._raise(outcome)
        raise error

    @contextmanager
    def refusing(self, async_: bool = False) -> Iterator[None]:
        """What is raised here makes the other ranks raise PeerRefused in their next call."""
        try:
            yield
        except Exception as error:
            self.refuse(error, async_)

    def decline(self, reason: str) -> NoReturn:
        """See ``Communicator.decline``."""
        if not isinstance(reason, str):
            self.refuse(_no_text(reason))
        self._raise(self._alone().refuse(reason, declines=True))

    def _raise(self, outcome: Outcome, plans: Sequence[Plan | None] = (None,)) -> NoReturn:
        """``plans``: by the way that a call goes, through slots or as VARIANTS says."""
        step: StepName | None = None
        peer: int | None = None
        if outcome.stall is not None and (plan := plans[outcome.variant]) is not None:
            step, peer = plan.step_name(outcome.stall.block, outcome.stall.step), outcome.stall.peer
        if outcome.fault is Fault.MISMATCH:
            raise _mismatch(outcome)
        if outcome.fault is Fault.REFUSED:
            raise PeerRefused(outcome.rank, outcome.text)
        if outcome.fault is Fault.DECLINED:
            raise Declined(outcome.rank, outcome.text)
        if outcome.fault is Fault.MEMORY:
            raise MemoryError(outcome.text)
        if outcome.fault is Fault.PEER:
            raise PeerFailed(outcome.rank, outcome.text, step, peer)
        if outcome.fault is Fault.TIMEOUT:
            raise CallTimeout(outcome.rank, outcome.waited, step, peer)
        if outcome.fault is Fault.BUSY:
            raise CommunicatorBusy
        raise CommunicatorDead(self._ended or f"rank {outcome.rank} {outcome.text}")


def _no_text(reason: object) -> WrongType:
    return WrongType(f"the reason must be a text, not {name_of(reason)}", caller())


def _mismatch(outcome: Outcome) -> CallMismatch:
    said = outcome.said
    texts = [[*s.text.split("\n", 2), "", ""][:3] for s in said]
    sized = next((s for s in said if s.size_known), said[0])
    first, other = said[0], said[outcome.rank]
    recounted = (first.counted, first.counts) != (other.counted, other.counts) and not (
        first.pairwise and other.pairwise
    )
    names = [_EXCHANGES.get(s.digest, text[0]) for s, text in zip(said, texts, strict=True)]
    known, alike = sized.type < len(_native.TYPES), sized.element == other.element
    differs = [
        what
        for what, different in (
            ("counts", recounted),
            ("size", other.size_known and sized.n != other.n and not recounted and not other.pairwise),
            ("type", other.size_known and (sized.type != other.type or not (known or alike))),
            ("operator", first.op != other.op or (sized.type == other.type and known and not alike)),
            ("tile", first.tile != other.tile),
        )
        if different
    ]
    if first.digest != other.digest:
        called = _differs(names[0], names[outcome.rank])
        if called is not None or not differs:  # else they take other programs because of what differs
            differs.insert(0, called or "schedule")
    calls = []
    for s, name, (_, counts, element) in zip(said, names, texts, strict=True):
        if s.digest == 0 or s.digest in _EXCHANGES:
            calls.append(name)
            continue
        kind, op = element, _native.OPERATORS[s.op]
        if s.type < len(_native.TYPES):
            kind, op = _native.TYPES[s.type], element or op
        size = f"{s.n} x {kind} a unit, " if s.size_known else ""
        tile = f", tile {s.tile}" if s.tile else ""
        counts = f", counts {counts}" if s.counted else ""
        calls.append(f"{name} ({size}{op}{tile}{counts})")
    if differs:
        return CallMismatch(outcome.rank, tuple(differs), tuple(calls))
    return CallMismatch(None, ("counts",), tuple(calls), transfers([counts for _, counts, _ in texts]))


def _differs(name: str, other: str) -> str | None:
    """In what two names of calls differ: those of schedules end in their digest, those of calls by name do not."""
    if name == other:
        return None
    if name.endswith("]") or other.endswith("]"):
        return "schedule"
    return "arguments" if name.partition("(")[0] == other.partition("(")[0] else "collective"


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
            endpoint.abort(f"raised {describe(error)}")


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_leave_at_exit)
