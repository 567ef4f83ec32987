"""What went wrong, where, and how it is shown: locations, diagnostics, error classes, one renderer.

Call sites raise an error class with data; the wording lives here (design: one home for it). Each class has a stable
``code`` and derives from the built-in exception that a caller of NumPy, torch or MPI would expect.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice
from types import CodeType
from typing import ClassVar

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Programs of the library are programs: their lines are what a reader of an error wants to see.
_PROGRAMS = _PACKAGE + "algorithms" + os.sep
_is_user_code: dict[CodeType, bool] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """A span of one source line. Lines count from 1, columns from 0; ``end_column`` is exclusive."""

    file: str
    line: int
    column: int = 0
    end_column: int | None = None

    def resolve(self) -> Location:
        return self

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in running code, kept as (code, instruction offset): cheap to take, resolved only when printed."""

    code: CodeType
    lasti: int

    def resolve(self) -> Location:
        line, end_line, column, end_column = next(
            islice(self.code.co_positions(), self.lasti // 2, None), (None, None, None, None)
        )
        if line is None:
            return Location(self.code.co_filename, self.code.co_firstlineno)
        return Location(self.code.co_filename, line, column or 0, end_column if end_line == line else None)

    def __str__(self) -> str:
        return str(self.resolve())

    def __reduce__(self) -> tuple[type[Location], tuple[str, int, int, int | None]]:
        at = self.resolve()
        return Location, (at.file, at.line, at.column, at.end_column)


Where = Location | Site


def caller() -> Site:
    """The innermost frame that is not hocket's own; a library algorithm counts as the user's code."""
    frame = sys._getframe(1)
    while True:
        code = frame.f_code
        user = _is_user_code.get(code)
        if user is None:
            name = code.co_filename
            user = _is_user_code[code] = not name.startswith(_PACKAGE) or name.startswith(_PROGRAMS)
        if user or frame.f_back is None:
            return Site(code, frame.f_lasti)
        frame = frame.f_back


@dataclass(frozen=True, slots=True)
class Label:
    """A place and what happened there. The primary label is underlined with ``^``."""

    where: Where
    text: str
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error, ready to be rendered: a headline, the places that matter, notes and a way out."""

    code: str
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None


def render(diagnostic: Diagnostic) -> str:
    """Text of a diagnostic, with the source lines of its labels, in the manner of good compilers."""
    out = [f"error[{diagnostic.code}]: {diagnostic.message}"]
    placed = [(label.where.resolve(), label) for label in diagnostic.labels]
    if placed:
        main = next((at for at, label in placed if label.primary), placed[0][0])
        width = len(str(max(at.line for at, _ in placed)))
        by_file: dict[str, list[tuple[Location, Label]]] = {main.file: []}
        for at, label in placed:
            by_file.setdefault(at.file, []).append((at, label))
        for file, group in by_file.items():
            head = main if file == main.file else group[0][0]
            out.append(f"{' ' * width}--> {os.path.basename(file)}:{head.line}:{head.column + 1}")
            last: int | None = None
            for at, label in sorted(group, key=lambda pair: (pair[0].line, pair[0].column, pair[1].primary)):
                source = linecache.getline(at.file, at.line).rstrip("\n")
                if at.line != last:
                    out.append(f"{at.line:>{width}} | {source}".rstrip())
                last = at.line
                end = at.end_column if at.end_column is not None else max(len(source), at.column + 1)
                mark = ("^" if label.primary else "-") * max(1, end - at.column)
                out.append(f"{' ' * width} | {' ' * at.column}{mark} {label.text}")
    out.extend(f"note: {note}" for note in diagnostic.notes)
    if diagnostic.help is not None:
        out.append(f"help: {diagnostic.help}")
    return "\n".join(out)


class HocketError(Exception):
    """Base of every error a user can cause. ``code`` is stable; ``diagnostic()`` is the structured message."""

    code: ClassVar[str] = "error"

    def diagnostic(self) -> Diagnostic:
        raise AssertionError(f"{type(self).__name__} has no wording")

    def __str__(self) -> str:
        return render(self.diagnostic())

    def __reduce__(self) -> tuple[object, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return _rebuild, (type(self), values)


def _rebuild(cls: type[HocketError], values: dict[str, object]) -> HocketError:
    return cls(**values)


def show_span(rank: int, buffer: str, index: int, count: int = 1) -> str:
    """``rank 1 in[2]`` or ``rank 1 in[2:5]``: how a span of chunks is named to a user."""
    return f"rank {rank} {buffer}[{index}]" if count == 1 else f"rank {rank} {buffer}[{index}:{index + count}]"


# ---------------------------------------------------------------------------------------------------------------
# Mistakes in a program (paper sections 3.1 to 3.3)


@dataclass(eq=False)
class InvalidArgument(HocketError, ValueError):
    """An argument that no program could mean: a wrong type or value where it is first seen."""

    code = "invalid-argument"
    message: str
    where: Where | None = None
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        labels = (Label(self.where, "here", True),) if self.where else ()
        return Diagnostic(self.code, self.message, labels, help=self.help)


@dataclass(eq=False)
class StaleChunk(HocketError, ValueError):
    """A reference was used after its place was overwritten (paper section 3.3)."""

    code = "stale-chunk"
    rank: int
    buffer: str
    index: int
    taken: Where
    overwritten: Where
    used: Where

    def diagnostic(self) -> Diagnostic:
        line = self.overwritten.resolve().line
        return Diagnostic(
            self.code,
            f"{show_span(self.rank, self.buffer, self.index)} was overwritten after this reference was taken",
            (
                Label(self.taken, "reference taken here"),
                Label(self.overwritten, "overwritten here"),
                Label(self.used, "stale use", True),
            ),
            help=f"use the reference that line {line} returned, or take a new one with chunk(...)",
        )


@dataclass(eq=False)
class UninitializedChunk(HocketError, ValueError):
    """A chunk was read that nothing has written (paper section 3.1)."""

    code = "uninitialized-chunk"
    rank: int
    buffer: str
    index: int
    where: Where | None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"{show_span(self.rank, self.buffer, self.index)} holds nothing yet",
            (Label(self.where, "read here", True),) if self.where is not None else (),
            help="copy a chunk there first; only the input buffer is filled when a program begins",
        )


@dataclass(eq=False)
class OutOfRange(HocketError, IndexError, ValueError):
    """A rank, index, count or channel beyond its bounds; negative ones too."""

    code = "out-of-range"
    what: str
    value: int
    low: int
    high: int | None
    where: Where
    context: str = ""

    def diagnostic(self) -> Diagnostic:
        if self.high is not None and self.high <= self.low:
            bound = f"there is no valid {self.what}"
        elif self.high is not None:
            bound = f"must be in [{self.low}, {self.high})"
        else:
            bound = f"must be at least {self.low}"
        within = f" for {self.context}" if self.context else ""
        help_ = "negative positions do not count from the end here" if self.value < 0 else None
        return Diagnostic(
            self.code, f"{self.what} {self.value}{within}: {bound}", (Label(self.where, "here", True),), help=help_
        )


@dataclass(eq=False)
class CountMismatch(HocketError, ValueError):
    """Two spans that must be of one length are not."""

    code = "count-mismatch"
    expected: int
    found: int
    where: Where
    first: Where
    second: Where | None = None

    def diagnostic(self) -> Diagnostic:
        labels = [Label(self.first, f"a reference to {self.expected}")]
        if self.second is not None:
            labels.append(Label(self.second, f"a reference to {self.found}"))
        return Diagnostic(
            self.code,
            f"{self.expected} chunk{'s' * (self.expected != 1)} on one side, {self.found} on the other",
            (*labels, Label(self.where, "combined here", True)),
            help="take both references with the same count",
        )


@dataclass(eq=False)
class Overlap(HocketError, ValueError):
    """Source and destination of one operation share a chunk."""

    code = "overlap"
    operation: str
    rank: int
    buffer: str
    index: int
    where: Where
    taken: Where

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"this {self.operation} reads and writes {show_span(self.rank, self.buffer, self.index)}",
            (Label(self.taken, "source taken here"), Label(self.where, "and written here", True)),
            help="copy through scratch, or move the parts one by one"
            if self.operation == "copy"
            else "a chunk cannot be reduced with itself",
        )


@dataclass(eq=False)
class OutsideProgram(HocketError, RuntimeError):
    """An operation of the language where no program is being traced, or one of another program."""

    code = "outside-program"
    what: str
    reason: str
    where: Where

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"{self.what} {self.reason}",
            (Label(self.where, "here", True),),
            help="write it inside `with Program(collective):`",
        )


@dataclass(eq=False)
class ChannelConflict(HocketError, ValueError):
    """One end of a connection in two thread blocks (paper section 5: a connection has one sender and one receiver)."""

    code = "channel-conflict"
    rank: int
    direction: str
    peer: int
    channel: int
    thread_blocks: tuple[int, int]
    first: Where | None = None
    second: Where | None = None

    def diagnostic(self) -> Diagnostic:
        labels = []
        if self.first is not None:
            labels.append(Label(self.first, f"thread block {self.thread_blocks[0]}"))
        if self.second is not None:
            labels.append(Label(self.second, f"thread block {self.thread_blocks[1]}", True))
        a, b = self.thread_blocks
        return Diagnostic(
            self.code,
            f"rank {self.rank}: thread blocks {a} and {b} both {self.direction} rank {self.peer} "
            f"on channel {self.channel}",
            tuple(labels),
            help="give one of them another channel",
        )


@dataclass(frozen=True, slots=True)
class Flow:
    """How a value came to be: one operation on its way, in the order it happened."""

    where: Where
    text: str


@dataclass(eq=False)
class PostconditionFailed(HocketError, ValueError):
    """The program ends with something else than its collective promises (paper section 3.2)."""

    code = "postcondition"
    collective: str
    rank: int
    buffer: str
    index: int
    holds: str
    expected: str
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    history: tuple[Flow, ...] = ()
    others: int = 0

    def diagnostic(self) -> Diagnostic:
        notes = [f"it holds {self.holds}", f"it must hold {self.expected}"]
        notes += [f"missing: {_some(self.missing)}"] if self.missing else []
        notes += [f"counted twice: {_some(self.twice)}"] if self.twice else []
        notes += [f"does not belong there: {_some(self.foreign)}"] if self.foreign else []
        notes += [f"{self.others} more chunks are wrong"] if self.others else []
        labels = tuple(
            Label(flow.where, flow.text, flow is self.history[-1]) for flow in self.history
        )
        return Diagnostic(
            self.code,
            f"{show_span(self.rank, self.buffer, self.index)} does not hold what {self.collective} promises",
            labels,
            tuple(notes),
        )


def _some(items: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


# ---------------------------------------------------------------------------------------------------------------
# Faults of a schedule (design: the proof)


@dataclass(frozen=True, slots=True)
class StepName:
    """A step, as an error names it: what it does first, its place in the schedule after."""

    rank: int
    operation: str
    thread_block: int
    step: int
    where: Where | None

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where is not None else ""
        return f"rank {self.rank}: {self.operation}{at}, thread block {self.thread_block} step {self.step}"


@dataclass(eq=False)
class Deadlock(HocketError, ValueError):
    """A cycle of waits: from some point on no step is ready. ``cycle[i]`` waits for ``cycle[i + 1]``, ``because[i]``."""

    code = "deadlock"
    slots: int
    cycle: tuple[StepName, ...]
    because: tuple[str, ...]

    def diagnostic(self) -> Diagnostic:
        notes = [f"{step}\n      {why}" for step, why in zip(self.cycle, self.because, strict=True)]
        labels = _step_labels(self.cycle)
        return Diagnostic(
            self.code,
            f"with {self.slots} slot{'s' * (self.slots != 1)} these {len(self.cycle)} steps wait for each other",
            labels,
            tuple(notes),
        )


@dataclass(eq=False)
class UnmatchedTransfer(HocketError, ValueError):
    """A connection is sent into more often than it is received from, or the reverse: it would not end a call empty."""

    code = "unmatched-transfer"
    sender: int
    receiver: int
    channel: int
    sends: int
    receives: int

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"rank {self.sender} sends {self.sends} times to rank {self.receiver} on channel {self.channel}, "
            f"which receives {self.receives} times",
        )


@dataclass(eq=False)
class Race(HocketError, ValueError):
    """Two accesses to one chunk, at least one a write, that nothing orders."""

    code = "race"
    rank: int
    buffer: str
    index: int
    first: StepName
    second: StepName
    first_access: str
    second_access: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"two unordered accesses to {show_span(self.rank, self.buffer, self.index)}",
            _step_labels((self.first, self.second)),
            (f"{self.first} {self.first_access} it", f"{self.second} {self.second_access} it"),
            help="make one of them wait for the other",
        )


def _step_labels(steps: Sequence[StepName]) -> tuple[Label, ...]:
    seen: dict[Location, Label] = {}
    for step in steps:
        if step.where is not None:
            at = step.where.resolve()
            seen.setdefault(at, Label(at, step.operation, not seen))
    return tuple(seen.values())


@dataclass(eq=False)
class ParseError(HocketError, ValueError):
    """Text that is no IR, with its line. Lines count from 1."""

    code = "parse"
    source: str
    line: int
    text: str
    reason: str

    def diagnostic(self) -> Diagnostic:
        notes = (f"the line is: {self.text[:120]}",) if self.text else ()
        return Diagnostic(self.code, f"{self.source}, line {self.line}: {self.reason}", notes=notes)


@dataclass(eq=False)
class InvalidSchedule(HocketError, ValueError):
    """A schedule that breaks a rule of its own form: an index beyond its buffer, a wait for a step that is not there."""

    code = "invalid-schedule"
    reason: str
    step: StepName | None = None

    def diagnostic(self) -> Diagnostic:
        if self.step is None:
            return Diagnostic(self.code, self.reason)
        return Diagnostic(self.code, self.reason, _step_labels((self.step,)), (str(self.step),))
