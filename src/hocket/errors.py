"""What went wrong, where, and how it is shown: locations, diagnostics, error classes, one renderer.

Call sites raise an error class with data; the wording lives here, and nowhere else. Each class has a stable
``code`` and derives from the built-in exception that a caller of NumPy, torch or MPI would expect.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import unicodedata
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType, FrameType
from typing import ClassVar, Literal

from msgspec import Struct

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Programs of the library are programs: their lines are what a reader of an error wants to see.
_PROGRAMS = _PACKAGE + "algorithms" + os.sep
_MODULES = (__name__.rpartition(".")[0] + ".",)
_TORCH = ("-packages/torch/", "-packages/typing_extensions.py")
"""Where what a script calls in torch lies, with the wrappers around it."""


@dataclass(frozen=True, slots=True)
class Location:
    """A span of one source line. Lines count from 1, columns from 0 in bytes; ``end_column`` is exclusive.

    ``source`` is that line, where whoever made the location had read it: no file is opened for a location.
    """

    file: str
    line: int
    column: int = 0
    end_column: int | None = None
    source: str | None = field(default=None, compare=False, repr=False)

    def resolve(self) -> Location:
        return self

    @property
    def is_file(self) -> bool:
        """Whether it says that it is in a file, unlike ``<stdin>``."""
        return not self.file.startswith("<")

    @property
    def path(self) -> str:
        """The file as a path from the working folder; absolute outside of it."""
        if not self.is_file:
            return self.file
        try:
            here = os.path.join(Path.cwd(), "")
        except OSError:  # the folder was removed
            return self.file
        path = os.path.normpath(os.path.join(here, self.file))
        return path.removeprefix(here)

    @property
    def span(self) -> tuple[int, int | None]:
        """The first column and that after the last, from 1, in characters as far as the line is known."""
        if self.source is None:
            return self.column + 1, None if self.end_column is None else self.end_column + 1
        before, marked = _split(self.source, self)
        return len(before) + 1, len(before) + 1 + max(1, len(marked))

    def __str__(self) -> str:
        return printable(f"{self.path}:{self.line}:{self.span[0]}")


class _Sourced(Struct, frozen=True, gc=False):
    """A place in a text that this process has read, kept as what is cheap to take and resolved only when printed."""

    def resolve(self) -> Location:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.resolve())

    def __reduce__(self) -> tuple[type[Location], tuple[str, int, int, int | None, str | None]]:
        at = self.resolve()
        return Location, (at.file, at.line, at.column, at.end_column, at.source)


class Site(_Sourced, frozen=True, gc=False):
    """A place in code that this process ran, as (code, instruction offset)."""

    code: CodeType
    lasti: int

    def resolve(self) -> Location:
        number, positions = self.lasti // 2, _positions(self.code)
        line, end_line, column, end_column = positions[number] if number < len(positions) else (None, None, None, None)
        file = self.code.co_filename
        if line is None:
            line, column, end_line = self.code.co_firstlineno, 0, None
        end = end_column if end_line == line else None
        return Location(file, line, column or 0, end, _source(file, line))


_Position = tuple[int | None, int | None, int | None, int | None]

_POSITIONS: dict[int, list[_Position]] = {}
"""Of the instructions of each code object, by its id as long as it lives: equal code may lie in other columns."""


def _positions(code: CodeType) -> list[_Position]:
    found = _POSITIONS.get(id(code))
    if found is None:
        found = _POSITIONS[id(code)] = list(code.co_positions())
        weakref.finalize(code, _POSITIONS.pop, id(code), None)
    return found


class TextSite(_Sourced, frozen=True, gc=False):
    """A place in a text that was given to be read; ``read`` gives the lines of that text, from 1."""

    file: str
    line: int
    column: int
    end_column: int | None
    read: Callable[[int], str]

    def resolve(self) -> Location:
        return Location(self.file, self.line, self.column, self.end_column, self.read(self.line))


Where = Location | Site | TextSite


def caller() -> Site:
    """The innermost frame that is not hocket's own, nor torch's, nor of an import.

    A library algorithm counts as the user's code.
    """
    frame = sys._getframe(1)
    while _is_passed_over(file := frame.f_code.co_filename) or (file == "<string>" and _generated(frame)):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return Site(frame.f_code, frame.f_lasti)


@functools.cache
def _is_passed_over(file: str) -> bool:
    ours = file.startswith((_PACKAGE, "<frozen importlib")) and not file.startswith(_PROGRAMS)
    return ours or any(part in file for part in _TORCH)


def _generated(frame: FrameType) -> bool:
    """Whether code without a file is hocket's: what dataclasses generate belongs to the module that asked for it."""
    return str(frame.f_globals.get("__name__", "")).startswith(_MODULES)


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


Severity = Literal["error", "warning"]


def render(diagnostic: Diagnostic, severity: Severity = "error") -> str:
    """Text of a diagnostic, with the source lines of its labels, in the manner of good compilers."""
    out = [f"{severity}[{diagnostic.code}]: {printable(diagnostic.message)}"]
    placed = [(label.where.resolve(), label) for label in diagnostic.labels]
    if placed:
        main = next((at for at, label in placed if label.primary), placed[0][0])
        width = len(str(max(at.line for at, _ in placed)))
        by_file: dict[str, list[tuple[Location, Label]]] = {main.file: []}
        for at, label in placed:
            by_file.setdefault(at.file, []).append((at, label))
        for file, group in by_file.items():
            out.append(f"{' ' * width}--> {main if file == main.file else group[0][0]}")
            last: int | None = None
            for at, label in sorted(group, key=lambda pair: (pair[0].line, pair[0].column, pair[1].primary)):
                text = printable(label.text)
                if not at.source:
                    out.extend([f"{at.line:>{width}} : {text}"] if text else [])
                    continue
                if at.line != last:
                    out.append(f"{at.line:>{width}} | {printable(at.source, keep=TAB)}")
                last = at.line
                before, marked = (printable(part, keep=TAB) for part in _split(at.source, at))
                mark = ("^" if label.primary else "-") * max(1, _columns(marked))
                indent = "".join(c if c == "\t" else " " * _columns(c) for c in before)
                out.append(f"{' ' * width} | {indent}{mark} {text}")
    out.extend(f"note: {printable(note, keep=LINES)}" for note in diagnostic.notes)
    if diagnostic.help is not None:
        out.append(f"help: {printable(diagnostic.help, keep=LINES)}")
    return "\n".join(out)


TAB, LINES = "\t", "\t\n"


def printable(text: str, keep: str = "") -> str:
    """A text with escapes for what acts on a terminal or deceives a reader, as ``repr`` has them: control characters,
    marks that turn the direction of writing, lone surrogates. Only the characters of ``keep`` stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _source(file: str, line: int) -> str | None:
    """A line of code that was run. A file without a folder is one of the working folder, not of ``sys.path``."""
    if file not in linecache.cache:
        try:
            if file.startswith("<") or not Path(file).is_file():
                return None
        except OSError:  # it may not be looked for, as by a process that has changed its user
            return None
    return linecache.getline(file, line).rstrip() or None


def _split(source: str, at: Location) -> tuple[str, str]:
    """What comes before a location in its line, and what it covers there. Its columns count bytes of UTF-8."""
    line = source.encode(errors="replace")
    end = len(line) if at.end_column is None else at.end_column
    return line[: at.column].decode(errors="replace"), line[at.column : end].decode(errors="replace")


def _columns(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


class HocketError(Exception):
    """Base of every error a user can cause. ``code`` is stable; ``diagnostic()`` is the structured message.

    ``refutes``: it is a counterexample, to a program or a schedule that is well formed.
    """

    code: ClassVar[str] = "error"
    refutes: ClassVar[bool] = False

    def diagnostic(self) -> Diagnostic:
        raise AssertionError(f"{type(self).__name__} has no wording")

    def __str__(self) -> str:
        return render(self.diagnostic())

    def __reduce__(self) -> tuple[object, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return _rebuild, (type(self), values)


def _rebuild(cls: type[HocketError], values: dict[str, object]) -> HocketError:
    return cls(**values)


def describe(error: BaseException) -> str:
    """Type and text of an exception, whatever its text does."""
    try:
        text = str(error)
    except Exception as second:
        text = f"its text raised {type(second).__name__}"
    return f"{type(error).__name__}: {text}"


def show_span(rank: int, buffer: str, index: int, count: int = 1) -> str:
    """``rank 1 in[2]`` or ``rank 1 in[2:5]``: how a span of chunks is named to a user."""
    return f"rank {rank} {buffer}[{index}]" if count == 1 else f"rank {rank} {buffer}[{index}:{index + count}]"


# ---------------------------------------------------------------------------------------------------------------
# Mistakes in a program (paper sections 3.1 to 3.3)


@dataclass(eq=False)
class _BadArgument(HocketError):
    message: str
    where: Where | None = None
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        labels = (Label(self.where, "here", True),) if self.where else ()
        return Diagnostic(self.code, self.message, labels, help=self.help)


class InvalidArgument(_BadArgument, ValueError):
    """An argument that nothing could mean: a wrong value where it is first seen."""

    code = "invalid-argument"


class WrongType(_BadArgument, TypeError):
    """An argument of a type that is not what is needed here."""

    code = "wrong-type"


@dataclass(eq=False)
class Unsupported(HocketError, NotImplementedError):
    """Something that means something elsewhere, and that hocket does not do."""

    code = "unsupported"
    what: str
    where: Where
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        message = f"hocket does not support {self.what}"
        return Diagnostic(self.code, message, (Label(self.where, "here", True),), help=self.help)


@dataclass(eq=False)
class MissingPackage(HocketError, ImportError):
    """A package that only some things need is not here. ``extra`` of hocket's own brings it."""

    code = "missing-package"
    what: str
    package: str
    extra: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"{self.what} needs {self.package}, which is not here",
            help=f"pip install 'hocket[{self.extra}]'",
        )


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
    alias: str | None = None
    """The other name of the chunk, where buffers are one memory."""

    def diagnostic(self) -> Diagnostic:
        overwritten, used = self.overwritten.resolve(), self.used.resolve()
        place = f"line {overwritten.line}" if overwritten.file == used.file else str(overwritten)
        return Diagnostic(
            self.code,
            f"{show_span(self.rank, self.buffer, self.index)} was overwritten after this reference was taken",
            (
                Label(self.taken, "reference taken here"),
                Label(self.overwritten, "overwritten here"),
                Label(self.used, "stale use", True),
            ),
            _alias_notes(self.rank, self.buffer, self.index, self.alias),
            help=f"use the reference that {place} returned, or take a new one with chunk(...)",
        )


@dataclass(eq=False)
class UninitializedChunk(HocketError, ValueError):
    """A chunk was read that nothing has written (paper section 3.1)."""

    code = "uninitialized-chunk"
    refutes = True
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
    """What the bounds belong to, with its preposition."""

    def diagnostic(self) -> Diagnostic:
        if self.high is not None and self.high <= self.low:
            bound = "there are no chunks" if self.what == "index" else f"there is no valid {self.what}"
        elif self.high is not None:
            bound = f"must be in [{self.low}, {self.high})"
        else:
            bound = f"must be at least {self.low}"
        within = f" {self.context}" if self.context else ""
        negative = self.value < 0 and self.what in ("rank", "index")
        help_ = f"a negative {self.what} does not count from the end here" if negative else None
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
    """The other reference of a reduce; a copy has none."""

    def diagnostic(self) -> Diagnostic:
        expected, found = counted(self.expected, "chunk"), counted(self.found, "chunk")
        first = Label(self.first, f"a reference to {expected}")
        if self.second is None:
            return Diagnostic(
                self.code,
                f"a reference to {expected} cannot be copied as {found}",
                (first, Label(self.where, f"copied as {found} here", True)),
                help="a copy has the count of its source: leave the count out, or take the source with that count",
            )
        return Diagnostic(
            self.code,
            f"{expected} and {found} cannot be reduced",
            (first, Label(self.second, f"a reference to {found}"), Label(self.where, "reduced here", True)),
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
    whole: bool = False
    """Whether source and destination are the same chunks, rather than some of them."""
    alias: str | None = None
    """The other name of the chunk, where buffers are one memory."""

    def diagnostic(self) -> Diagnostic:
        if self.operation == "reduce":
            help_ = "a chunk cannot be reduced with itself"
        elif self.whole:
            help_ = "the chunks are there already: leave this copy out"
        else:
            help_ = "copy through scratch, or move the parts one by one"
        return Diagnostic(
            self.code,
            f"this {self.operation} reads and writes {show_span(self.rank, self.buffer, self.index)}",
            (Label(self.taken, "source taken here"), Label(self.where, "and written here", True)),
            _alias_notes(self.rank, self.buffer, self.index, self.alias),
            help=help_,
        )


def _alias_notes(rank: int, buffer: str, index: int, alias: str | None) -> tuple[str, ...]:
    if alias is None:
        return ()
    return (f"the collective is in-place: on rank {rank}, {buffer}[{index}] and {alias} are one chunk",)


@dataclass(eq=False)
class OutsideProgram(HocketError, RuntimeError):
    """An operation of the language where no program is being traced, or one of another program."""

    code = "outside-program"
    what: str
    reason: str
    where: Where
    help: str = "write it inside `with Program(collective):`"
    taken: Where | None = None
    """Where the reference comes from, if it is about one."""

    def diagnostic(self) -> Diagnostic:
        taken = () if self.taken is None else (Label(self.taken, "reference taken here"),)
        return Diagnostic(
            self.code, f"{self.what} {self.reason}", (*taken, Label(self.where, "here", True)), help=self.help
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


@dataclass(eq=False)
class ThreadBlockConflict(HocketError, ValueError):
    """Two operations that the user put into one thread block, which has one of each (paper section 5)."""

    code = "thread-block-conflict"
    rank: int
    thread_block: int
    what: str
    first: Where
    second: Where

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"rank {self.rank}: thread block {self.thread_block} would have two {self.what}",
            (Label(self.first, "one here"), Label(self.second, "another here", True)),
            help="give one of them another thread block",
        )


@dataclass(frozen=True, slots=True)
class Flow:
    """How a value came to be: one operation on its way, in the order it happened."""

    where: Where
    text: str


@dataclass(frozen=True, slots=True)
class Partial:
    """What an output lacks, or a part of it, where another place gets it; ``where`` is the operation that stores it."""

    place: str
    holds: str
    where: Where | None


@dataclass(eq=False)
class PostconditionFailed(HocketError, ValueError):
    """The program ends with something else than its collective promises (paper section 3.2)."""

    code = "postcondition"
    refutes = True
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
    untouched: bool = False
    """Whether no operation writes the chunk at all."""
    partials: tuple[Partial, ...] = ()
    right_in_place: bool = False
    """Whether the program is right where input and output are one memory."""

    def diagnostic(self) -> Diagnostic:
        why = ", as nothing is ever written there" if self.untouched else ""
        notes = [f"it holds {self.holds}{why}", f"it must hold {self.expected}"]
        notes += [f"missing: {_some(self.missing)}"] if self.missing else []
        notes += [f"counted more than once: {_some(self.twice)}"] if self.twice else []
        notes += [f"does not belong there: {_some(self.foreign)}"] if self.foreign else []
        verb = "is" if self.others == 1 else "are"
        notes += [f"{counted(self.others, 'more chunk')} {verb} wrong"] if self.others else []
        labels = [Label(flow.where, flow.text, flow is self.history[-1]) for flow in self.history]
        labels += [Label(p.where, f"{p.place} gets {p.holds}") for p in self.partials if p.where is not None]
        return Diagnostic(
            self.code,
            f"{show_span(self.rank, self.buffer, self.index)} does not hold what {self.collective} promises",
            tuple(labels),
            tuple(notes),
            self._help(),
        )

    def _help(self) -> str | None:
        if self.right_in_place:
            return "with inplace=True, where in and out are one memory, this program is right"
        if not self.partials:
            return None
        places = " and ".join(partial.place for partial in self.partials)
        if any(partial.holds == self.expected for partial in self.partials):
            return f"{places} holds it: copy it there"
        return f"add up {places} there" if self.holds == "nothing" else f"reduce {places} into it"


@dataclass(frozen=True, slots=True)
class SummedChunk:
    """An output chunk, how its sum was taken, and the operation that added last."""

    rank: int
    index: int
    tree: str
    where: Where | None


@dataclass(eq=False)
class SumsDiffer(HocketError, ValueError):
    """A program does not keep a contract on the bits of its sums: two are taken differently, or one not in order."""

    code = "sums-differ"
    refutes = True
    collective: str
    contract: str
    chunks: tuple[SummedChunk, ...]

    def diagnostic(self) -> Diagnostic:
        said = {
            "across-ranks": "ranks sum the same chunks in different orders, so their bits may differ",
            "across-sizes": "the order of a sum depends on where an element lies",
            "rank-order": "a sum is not taken in one go from the first rank to the last",
        }
        labels = tuple(
            Label(chunk.where, f"{chunk.tree} ends here", chunk is self.chunks[-1])
            for chunk in self.chunks
            if chunk.where is not None
        )
        notes = tuple(f"{show_span(chunk.rank, 'out', chunk.index)} is {chunk.tree}" for chunk in self.chunks)
        message = f"{self.collective} is not {self.contract}: {said[self.contract]}"
        accept = 'if that will do, say so: reproducible="may-differ", or --allow-differing-sums'
        return Diagnostic(self.code, message, labels, notes, accept if self.contract == "across-ranks" else None)


@dataclass(eq=False)
class CheckFailed(HocketError, ValueError):
    """A collective of the user's has a check of its own, and that says no."""

    code = "check-failed"
    refutes = True
    collective: str
    where: Where

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"check() of {self.collective} does not accept what the buffers hold",
            (Label(self.where, "when the program had come so far", True),),
        )


def _some(items: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


# ---------------------------------------------------------------------------------------------------------------
# What users name


@dataclass(eq=False)
class UsageError(HocketError, ValueError):
    """A command line, or the name of a program, that means nothing. The exit code of the command line is 2."""

    code = "usage"
    message: str
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, self.message, help=self.help)


@dataclass(eq=False)
class UserCodeFailed(UsageError):
    """The user's file or function raised an exception that is not one of ours."""

    code = "user-code"
    where: Where | None = None

    def diagnostic(self) -> Diagnostic:
        labels = (Label(self.where, "raised here", True),) if self.where is not None else ()
        return Diagnostic(self.code, self.message, labels, help=self.help)


class Unreadable(UsageError):
    """A file that cannot be read."""

    code = "unreadable"


# ---------------------------------------------------------------------------------------------------------------
# Faults of a schedule, which its proof finds


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


WaitKind = Literal["slot", "transfer", "order", "wait"]

_WAITS: dict[WaitKind, str] = {
    "slot": "waits for a free slot: the oldest full one is received by ({})",
    "transfer": "waits for what is sent by ({})",
    "order": "comes after ({}) in its thread block",
    "wait": "waits for ({}) in another thread block",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of ``low`` to ``high`` bytes, both included, on a runtime; None is no limit."""

    runtime: str
    low: int
    high: int | None


@dataclass(eq=False)
class Deadlock(HocketError, ValueError):
    """A cycle of waits: from some point on no step is ready.

    ``cycle[i]`` waits for ``cycle[i + 1]`` because of ``because[i]``, the last one for the first. ``calls`` are those
    in which that happens, where it depends on their size.
    """

    code = "deadlock"
    refutes = True
    slots: int
    cycle: tuple[StepName, ...]
    because: tuple[WaitKind, ...]
    calls: tuple[Calls, ...] = ()

    def diagnostic(self) -> Diagnostic:
        # Of steps in a row in one thread block the first and the last say it all.
        ends = [i for i, why in enumerate(self.because) if not (why == "order" and self.because[i - 1] == "order")]
        steps = [self.cycle[i] for i in ends]
        notes = []
        for n, i in enumerate(ends):
            following = (n + 1) % len(ends) + 1
            notes.append(f"({n + 1}) {self.cycle[i]}\n      {_WAITS[self.because[i]].format(following)}")
        if self.calls:
            notes.append(f"in calls {_show_calls(self.calls)}")
        these = f"these {len(steps)} steps wait" if len(steps) > 1 else "this step waits"
        return Diagnostic(
            self.code,
            f"with {counted(self.slots, 'slot')} {these} for {'each other' if len(steps) > 1 else 'itself'}",
            _step_labels(steps),
            tuple(notes),
            "a file that does not serve them is right: see minBytes and maxBytes" if self.calls else None,
        )


def _show_calls(calls: Sequence[Calls]) -> str:
    """``of 8 to 64 bytes on msccl and rccl, of 256 bytes or more on rccl``."""
    runtimes: dict[str, list[str]] = {}
    for each in calls:
        size = f"of {each.low} bytes or more" if each.high is None else f"of {each.low} to {each.high} bytes"
        runtimes.setdefault(size, []).append(each.runtime)
    return ", ".join(f"{size} on {' and '.join(names)}" for size, names in runtimes.items())


@dataclass(eq=False)
class UnmatchedTransfer(HocketError, ValueError):
    """A connection is sent into more often than it is received from, or the reverse: it would not end a call empty."""

    code = "unmatched-transfer"
    refutes = True
    sender: int
    receiver: int
    channel: int
    sends: int
    receives: int
    alone: StepName
    """The first step whose message has no other end."""

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"rank {self.sender} sends {_often(self.sends)} to rank {self.receiver} on channel {self.channel}, "
            f"which receives {_often(self.receives)}",
            _step_labels((self.alone,)),
            (f"the first without its other end is {self.alone}",),
        )


def _often(n: int) -> str:
    return ("never", "once", "twice")[n] if n < 3 else f"{n} times"


SIZES_HELP = "a range is written 32KB..3MB, both included, ..4KB, 1MB.. or 64KB, where K = 1024"


def counted(n: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``, ``3 processes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{n} {noun}{plural * (n != 1)}"


@dataclass(eq=False)
class Race(HocketError, ValueError):
    """Two accesses to one chunk, at least one a write, that nothing orders."""

    code = "race"
    refutes = True
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
        shown = self.text[:240].rstrip()
        begin = len(shown) - len(shown.lstrip())
        word = len(shown[begin:].partition(" ")[0])
        column, end = (len(shown[:n].encode(errors="replace")) for n in (begin, begin + word))
        at = Location(self.source, self.line, column, end, shown)
        return Diagnostic(self.code, self.reason[:240], (Label(at, "here" if shown else "", True),))


@dataclass(eq=False)
class InvalidSchedule(HocketError, ValueError):
    """A schedule that breaks a rule of its own form: an index beyond its buffer, a wait for no step."""

    code = "invalid-schedule"
    reason: str
    step: StepName | None = None

    def diagnostic(self) -> Diagnostic:
        if self.step is None:
            return Diagnostic(self.code, self.reason)
        return Diagnostic(self.code, self.reason, _step_labels((self.step,)), (str(self.step),))


@dataclass(eq=False)
class TargetLimit(HocketError, ValueError):
    """A schedule is right, but another runtime cannot take it. ``where`` are lines of what it cannot take."""

    code = "target-limit"
    target: str
    reason: str
    where: tuple[Where, ...] = ()

    def diagnostic(self) -> Diagnostic:
        labels = {at.resolve(): Label(at, "from here") for at in self.where}
        return Diagnostic(self.code, f"{self.target}: {self.reason}", tuple(labels.values()))


@dataclass(eq=False)
class BadTopology(HocketError, ValueError):
    """A topology that does not exist, or a file that describes none."""

    code = "topology"
    reason: str
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, self.reason, help=self.help)


@dataclass(eq=False)
class BadTable(HocketError, ValueError):
    """A file that is not the table of a tuner, or cannot be read or written."""

    code = "tuning-table"
    reason: str
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, self.reason, help=self.help)


@dataclass(eq=False)
class NoLink(HocketError, ValueError):
    """A transfer between two ranks that nothing of the topology joins; ``send``: which of ``Program.from_sends``."""

    code = "no-link"
    topology: str
    source: int
    target: int
    where: Where | None = None
    send: int | None = None

    def diagnostic(self) -> Diagnostic:
        labels = (Label(self.where, "this transfer", True),) if self.where else ()
        message = f"no link of {self.topology} leads from rank {self.source} to {self.target}"
        return Diagnostic(self.code, message if self.send is None else f"send {self.send}: {message}", labels)


# ---------------------------------------------------------------------------------------------------------------
# Faults of a run


@dataclass(eq=False)
class UnevenSize(HocketError, ValueError):
    """For this size a value would go through a place that is shorter or longer than the value is."""

    code = "uneven-size"
    schedule: str
    n: int
    chunks: int
    value: int
    location: int
    where: Where | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"{self.schedule} cannot run on units of {self.n} elements: cut into {self.chunks} chunks, "
            f"chunk {self.value} and chunk {self.location} differ in length, and one goes where the other lies",
            (Label(self.where, "moved here", True),) if self.where else (),
            help="use a size that divides evenly, or move the value through scratch",
        )


@dataclass(eq=False)
class UnevenCounts(HocketError, ValueError):
    """The program moves a value into a unit that may have another length than its own."""

    code = "uneven-counts"
    schedule: str
    first: str
    second: str
    where: Where | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"{self.schedule} cannot run with counts: {self.first} and {self.second} may differ in length, and one "
            f"goes where the other lies",
            (Label(self.where, "moved here", True),) if self.where else (),
            help="keep every value in units of its own, or move it through a scratch chunk of its own",
        )


@dataclass(eq=False)
class CallMismatch(HocketError, ValueError):
    """Ranks entered the same call with different arguments. Nothing was touched; the communicator can go on.

    ``rank`` differs from the first; None where ranks do not expect the same of each other, then ``transfer`` is an
    example, if known: from, to, elements sent, elements expected. ``callers``: a sender and a receiver, if the calls
    are theirs alone.
    """

    code = "call-mismatch"
    rank: int | None
    differs: tuple[str, ...]
    calls: tuple[str, ...]
    transfer: tuple[int, int, int, int] | None = None
    callers: tuple[int, ...] = ()

    def diagnostic(self) -> Diagnostic:
        callers = self.callers or range(len(self.calls))
        notes = tuple(f"rank {rank} calls {call}" for rank, call in zip(callers, self.calls, strict=True))
        if self.callers:
            what = " and ".join(self.differs)
            message = f"rank {callers[0]} does not send what rank {callers[1]} receives: they differ in {what}"
            return Diagnostic(self.code, message, notes=notes)
        return Diagnostic(
            self.code,
            f"the ranks do not make the same call: {self._difference()}",
            notes=notes,
            help="every rank must make the same call with the same size, type and operator, in the same order",
        )

    def _difference(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank} differs in {' and '.join(self.differs)}"
        if self.transfer is None:
            return "some rank does not send what another expects"
        source, target, sent, expected = self.transfer
        return f"rank {source} sends {counted(sent, 'element')} to rank {target}, which expects {expected}"


@dataclass(eq=False)
class PeerRefused(HocketError, ValueError):
    """Another rank's arguments were wrong. Nothing was touched; the communicator can go on."""

    code = "peer-refused"
    rank: int
    reason: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, f"rank {self.rank} could not take part in this call: {self.reason}")


@dataclass(eq=False)
class Declined(HocketError, RuntimeError):
    """A rank would rather not make this call, and no rank has. Nothing was touched; the communicator can go on."""

    code = "declined"
    rank: int
    reason: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, f"rank {self.rank} declined this call: {self.reason}")


@dataclass(eq=False)
class PeerFailed(HocketError, RuntimeError):
    """Another rank ended, failed or left while it was needed. The communicator is dead afterwards.

    ``step`` is where this rank stood, ``peer`` the rank that step waited for; both None between calls.
    """

    code = "peer-failed"
    rank: int
    reason: str
    step: StepName | None = None
    peer: int | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, f"rank {self.rank} {self.reason}", *_standing(self.step, self.peer))


@dataclass(eq=False)
class CallTimeout(HocketError, TimeoutError):
    """Nothing moved for as long as ``timeout`` allows. The communicator is dead afterwards."""

    code = "timeout"
    rank: int
    seconds: float
    step: StepName | None = None
    peer: int | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"waited {self.seconds:.3g} s for rank {self.rank} in vain",
            *_standing(self.step, self.peer),
            help="where a rank may be late for longer, give hocket.init, or prepare, another timeout",
        )


def _standing(step: StepName | None, peer: int | None) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    if step is None:
        return (), ()
    return _step_labels((step,)), (f"waiting for rank {peer} at {step}",)


@dataclass(eq=False)
class CommunicatorDead(HocketError, RuntimeError):
    """A communicator was used after it was closed or had failed."""

    code = "communicator-dead"
    reason: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code, f"this communicator is dead: {self.reason}", help="make a new one with hocket.init()"
        )


@dataclass(eq=False)
class CommunicatorBusy(HocketError, RuntimeError):
    """Two threads made a call on one communicator at the same time."""

    code = "communicator-busy"

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            "another thread is in a call on this communicator",
            help="calls on a communicator have one order, the same on every rank: make them from one thread",
        )


@dataclass(eq=False)
class NativeMissing(HocketError, ImportError):
    """The runtime was asked for where hocket was installed without its native module."""

    code = "native-missing"

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            "running needs hocket's native module, which was not installed for this Python",
            notes=("writing, proving, drawing and exporting programs work without it",),
            help="install hocket on Linux, with a C++20 compiler and without HOCKET_NATIVE=0",
        )


@dataclass(eq=False)
class BootstrapFailed(HocketError, RuntimeError):
    """The ranks could not meet."""

    code = "bootstrap"
    reason: str
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, self.reason, help=self.help)


@dataclass(eq=False)
class BadConfig(BootstrapFailed):
    """What is wrong with the file that HOCKET_CONFIG names, and where; ``cause``: with what an entry names."""

    code = "config"
    where: Location | None = None
    cause: HocketError | None = None

    def diagnostic(self) -> Diagnostic:
        said = "here" if self.cause is None else "this entry"
        labels = [] if self.where is None else [Label(self.where, said, True)]
        if self.cause is None:
            return Diagnostic(self.code, self.reason, tuple(labels), help=self.help)
        found = self.cause.diagnostic()
        labels += (Label(label.where, label.text) for label in found.labels)
        return Diagnostic(self.code, f"{self.reason}: {found.message}", tuple(labels), found.notes, found.help)


@dataclass(eq=False)
class CannotShare(BootstrapFailed):
    """The ranks have met, but they are not in one place: every rank raises this."""

    code = "cannot-share"


@dataclass(eq=False)
class RankFailed(HocketError, RuntimeError):
    """A process started by ``spawn`` ended without a result. ``report`` is what it said, if anything."""

    code = "rank-failed"
    rank: int
    how: str
    report: str = ""

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, f"rank {self.rank} {self.how}", notes=(self.report,) if self.report else ())


# ---------------------------------------------------------------------------------------------------------------
# Of the backend of torch.distributed


@dataclass(eq=False)
class TorchVersion(HocketError, ImportError):
    """The backend reaches into private parts of torch, and was not tested with this version."""

    code = "torch-version"
    found: str
    supported: tuple[str, ...]

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"hocket.torch works with torch {', '.join(self.supported)}, not with {self.found}",
            help="without HOCKET=1, and without hocket.torch, torch is as it was",
        )


@dataclass(eq=False)
class ServerVersion(HocketError, ImportError):
    """An inference server is not as it was when hocket's plug-in for it was written."""

    code = "server-version"
    server: str
    found: str
    how: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"hocket does not know {self.server} {self.found}: {self.how}",
            help=f"{self.server} is as it was without HOCKET=1, or with {self.server.upper()}_PLUGINS set to others",
        )


@dataclass(eq=False)
class NotAccelerated(HocketError, RuntimeError):
    """HOCKET_STRICT=1, and hocket does not do what it was asked for."""

    code = "not-accelerated"
    collective: str
    reason: str

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            self.code,
            f"hocket does no {self.collective} here: {self.reason}",
            help="without HOCKET_STRICT it falls back",
        )


def torch_text(collective: str, error: HocketError) -> str:
    """What a DistBackendError says. That of a timeout has the words that callers of torch look for."""
    return f"{collective}: Timed out {error}" if isinstance(error, CallTimeout) else f"{collective}: {error}"


def torch_late(collective: str, seconds: float) -> str:
    """The same of a wait with a limit. The call goes on."""
    return f"{collective}: Timed out after {seconds:.3g} s of waiting for it"
