"""HOCKET_TRACE=FILE: a timeline of every rank, thread block and step, in the JSON of Chrome and Perfetto.

All ranks of a job write into one file. Each records in memory (native/runtime/recorder.h) and appends what it has when
a communicator is closed or the process ends, under a lock. The file is a JSON array with an event on each line, whole
after each append; what a rank left behind that was killed while it wrote is cut off by the next. Rank 0 empties the
file before the ranks meet.

A process is a rank. It has a track for the calls of each communicator, where a call begins with the time that it waits
for all ranks to enter it, and one for each thread block: there a call, and in it the steps, with gaps where a step
waits. A step that only says, or learns, that a message lies in an array moves no bytes. Arrows are messages. Times are
of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from pathlib import Path

from hocket import _native
from hocket._native import CallEvent, StepEvent
from hocket.errors import InvalidArgument, caller
from hocket.ir.memory import apart
from hocket.ir.schedule import Rank, Receive, Schedule, Send, Step
from hocket.trace_events import (
    CLOSE,
    FOR_MESSAGES,
    MOST_CALLS,
    MOST_STEPS,
    NEXT,
    OPEN,
    TRACKS,
    arrow,
    describe,
    head,
    names,
    us,
)

VARIABLE = "HOCKET_TRACE"

_WAITS = (FOR_MESSAGES, "for all to enter", "for all to enter and for partners to be done")
"""What the ranks of a call wait for, by its rounds (native/core/interpreter.h)."""

_LONGEST = 1 << 16  # bytes of an event
_NUMBERS = (1 << 53) - 1  # the numbers that JSON keeps exactly

_communicators = count()
_begun: tuple[Path, int] | None = None  # the file, and the rank of this process where it first met others


def begin(rank: int) -> None:
    """Make sure that this process can write its trace; called before the ranks of a job meet.

    Raises InvalidArgument where HOCKET_TRACE names no file that can be written.
    """
    global _begun
    name = os.environ.get(VARIABLE)
    if not name or _begun is not None:
        return
    path = Path(name).absolute()
    try:
        if path.exists() and not path.is_file():
            raise InvalidArgument(f"{VARIABLE} is {name!r}, which is no regular file", caller())
        with path.open("ab") as file:
            if rank == 0:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(0)
    except OSError as error:
        raise InvalidArgument(
            f"{VARIABLE} is {name!r}, which cannot be written: {error.strerror}",
            caller(),
            "name a file in a directory that is there, such as trace.json",
        ) from None
    _begun = path, rank


def start(rank: int, size: int, memory: int, threads: int) -> Trace | None:
    """Record a new communicator, if this process traces. ``memory``: the descriptor of the memory its ranks share."""
    if _begun is None:
        return None
    shared = os.fstat(memory)
    recorder = _native.Recorder(threads, MOST_CALLS, MOST_STEPS)
    return Trace(*_begun, next(_communicators), rank, size, (shared.st_dev, shared.st_ino), recorder, {})


@dataclass(frozen=True, slots=True)
class Trace:
    """What one communicator does. ``number`` tells it from others of this process, ``job`` from all of the machine."""

    path: Path
    process: int
    number: int
    rank: int
    size: int
    job: tuple[int, int]
    recorder: _native.Recorder
    plans: dict[int, tuple[Schedule, Rank]]

    def knows(self, schedule: Schedule, plan: _native.Plan, in_two: _native.Plan) -> None:
        """Remember what the events of plans mean: this rank's part, and the same with its buffers apart."""
        part = schedule.ranks[self.rank]
        self.plans[plan.number] = schedule, part
        if in_two is not plan:
            other = apart(schedule.collective, self.rank, part)
            assert other is not None
            self.plans[in_two.number] = schedule, other

    def write(self) -> None:
        """Append what was recorded to the file. Only warns if that fails: the work of the rank is done."""
        try:
            _append(self.path, list(self._events()))
        except OSError as error:
            warnings.warn(f"{VARIABLE}: {self.path} cannot be written: {error.strerror}", RuntimeWarning, stacklevel=2)

    def _events(self) -> Iterator[str]:
        """The events, each as JSON on one line."""
        found = self.recorder.read()
        calls = {call.number: call for call in found.calls}
        yield from self._names()
        for call in calls.values():
            yield from self._call(call)
        for thread, steps in enumerate(found.steps):
            yield from self._steps(thread, steps, calls)
        end = max((call.end for call in calls.values()), default=0)
        for what, many in (("calls", found.dropped_calls), ("steps", found.dropped_steps)):
            if many:
                text = f"no room for {many} more {what}"
                yield f'{self._head("i", 0, end)},"s":"p","name":"{text}","args":{{"dropped_{what}":{many}}}}}'

    def _head(self, phase: str, track: int, at: int) -> str:
        """How an event begins. Track 0 is that of the calls, b + 1 that of thread block b."""
        return head(phase, os.getpid(), self.number * TRACKS + track, at)

    def _names(self) -> Iterator[str]:
        """How the process and its tracks are called, and their order."""
        blocks = max((len(part.thread_blocks) for _, part in self.plans.values()), default=0)
        where = f"communicator {self.number}, rank {self.rank} of {self.size}: " if self.number else ""
        tracks = [f"{where}calls", *(f"{where}tb {block}" for block in range(blocks))]
        return names(os.getpid(), f"rank {self.process}", self.process, self.number * TRACKS, tracks)

    def _call(self, call: CallEvent) -> Iterator[str]:
        """A call on the track of calls, and on that of each of its thread blocks."""
        about: dict[str, object] = {"call": call.number, "communicator": hash(self.job) & _NUMBERS, "rank": self.rank}
        blocks = 0
        name = "barrier" if call.plan == _native.BARRIER else "exchange"  # of words: split, adopt, use, look
        if found := self.plans.get(call.plan):
            schedule, part = found
            blocks = len(part.thread_blocks)
            size = call.unit * schedule.collective.most_blocks()
            name = f"{schedule.name} ({size} B)"
            about |= {"schedule": schedule.name, "bytes": size, "tile_bytes": call.tile, "tiles": call.tiles}
            about |= {"threads": call.threads, "waits": _WAITS[call.rounds], "non_temporal": call.streams}
            about |= {"ranks": self.size, "in_place": schedule.in_place()}
        if call.fault is not _native.Fault.NONE:
            about["fault"] = call.fault.name
        rest = f'"cat":"call","name":{json.dumps(name)},"args":{json.dumps(about)}}}'
        yield f'{self._head("X", 0, call.begin)},"dur":{us(call.end - call.begin)},{rest}'
        if call.agreed:
            waited = us(call.agreed - call.begin)
            yield f'{self._head("X", 0, call.begin)},"dur":{waited},"cat":"call","name":"all ranks enter"}}'
            for block in range(blocks):
                yield f'{self._head("X", block + 1, call.agreed)},"dur":{us(call.end - call.agreed)},{rest}'

    def _steps(self, thread: int, steps: Sequence[StepEvent], calls: dict[int, CallEvent]) -> Iterator[str]:
        """The steps of a thread, each followed by the ends of the arrows that begin or end in it."""
        described = cache(lambda plan, block, step: describe(self.plans[plan][1], block, step))
        ends_of = cache(lambda plan, block: _ends(self.plans[plan][1], block))
        for event in steps:
            call = calls.get(event.call)
            if call is None:  # it had not ended
                continue
            text = described(call.plan, event.block, event.step)
            ends = ends_of(call.plan, event.block)[event.step]
            yield (
                f'{self._head("X", event.block + 1, event.begin)},"dur":{us(event.end - event.begin)},{text}'
                f'"tile":{event.tile},"bytes":{event.bytes},"call":{event.call},"thread":{thread}}}}}'
            )
            for end in ends if not call.rounds else ():  # there ranks wait for no single message
                path = (end.peer, self.rank) if end.receives else (self.rank, end.peer)
                message = event.tile * end.messages + end.number
                number = hash((*self.job, event.call, *path, end.channel, message)) & _NUMBERS
                track = self.number * TRACKS + event.block + 1
                yield arrow("f" if end.receives else "s", os.getpid(), track, event.begin, number)


@dataclass(frozen=True, slots=True)
class _End:
    """What a step sends or receives: message ``number`` of ``messages`` on a connection in each tile."""

    receives: bool
    peer: int
    channel: int
    number: int
    messages: int


def _ends(part: Rank, block: int) -> list[list[_End]]:
    """Of each step. A connection belongs to one thread block, so its messages are in the order of that."""
    used = [_connections(step) for step in part.thread_blocks[block].steps]
    messages = Counter(chain.from_iterable(used))
    numbers = {connection: count() for connection in messages}
    return [[_End(*each, next(numbers[each]), messages[each]) for each in connections] for connections in used]


def _connections(step: Step) -> list[tuple[bool, int, int]]:
    """Whether it receives on each, the peer, and the channel; wherever the messages lie."""
    ends = [end for end in (*step.srcs, *step.dsts) if isinstance(end, Receive | Send)]
    return [(isinstance(end, Receive), end.peer, end.channel) for end in ends]


def _append(path: Path, events: Sequence[str]) -> None:
    """Add events to the array in a file, which may be empty or end in the middle of a line."""
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - _LONGEST)
        file.seek(start)
        tail = file.read()
        whole = len(tail) - len(CLOSE) if tail.endswith(CLOSE) else tail.rfind(NEXT)
        file.truncate(start + whole if whole > 0 else 0)
        file.write((NEXT if whole > 0 else OPEN) + NEXT.join(event.encode() for event in events) + CLOSE)
