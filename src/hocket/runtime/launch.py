"""Starting ranks: as processes that call a function (``call``), or as processes of any command (``launch``)."""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Pipe
from types import CodeType, FrameType
from typing import BinaryIO, NamedTuple, TypeVar

import cloudpickle

from hocket.errors import PeerFailed, RankFailed
from hocket.runtime.bootstrap import Ends, environment
from hocket.runtime.processes import (
    ENDING,
    GRACE,
    Family,
    Signalled,
    adopt_orphans,
    bury_orphans,
    die_with,
    handling,
)

Result = TypeVar("Result")

_LAST_LINES = 400  # of what a rank said that are kept, in case that it fails
_LONGEST = 4096  # bytes of a line that are kept, and of a progress bar that are passed on before its end


class RemoteTraceback(Exception):
    """The traceback of an exception as its rank printed it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Answer(NamedTuple):
    """What a rank sends back: its result, or its exception (None: it does not pickle) and traceback."""

    result: object
    error: BaseException | None
    report: str | None


def _of_file(name: str, make: Callable[..., CodeType], *args: object) -> CodeType:
    return make(*args).replace(co_filename=name)


def _code(code: CodeType) -> tuple[object, ...]:
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _of_file, (code.co_filename, make, *args)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """As cloudpickle, but functions know the file that they come from, which errors and tracebacks name."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _code})


def _dumps(value: object) -> bytes:
    packed = io.BytesIO()
    _Pickler(packed).dump(value)
    return packed.getvalue()


def call(fn: Callable[..., Result], ranks: int, args: tuple[object, ...]) -> list[Result]:
    """Call ``fn(*args)`` in ``ranks`` new processes that can meet: ``hocket.spawn``. Results in rank order.

    A signal that ends this process ends the ranks first.
    """
    payload = _dumps((fn, args))
    try:
        with handling(Signalled.raised, *ENDING):
            return _call(payload, ranks)
    except Signalled as signalled:
        signal.raise_signal(signalled.number)
        raise


def _call(payload: bytes, ranks: int) -> list[Result]:
    # A fresh interpreter that finds what this one finds. Until it has, Ctrl-C ends it without a word.
    code = (
        "import sys; from signal import *\n"
        "if getsignal(SIGINT) is default_int_handler: signal(SIGINT, SIG_DFL)\n"
        f"sys.path[:] = {sys.path!r}; from hocket.runtime.launch import _serve; _serve({os.getpid()})"
    )
    processes: list[subprocess.Popen[bytes]] = []
    lines: list[Connection] = []
    ends = Ends()
    try:
        for rank, variables in enumerate(environment(ranks, ends)):
            with _starting(rank):
                near, far = Pipe()
                with far:
                    lines.append(near)
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-c", code, str(far.fileno())],
                            pass_fds=(far.fileno(), ends.far.fileno()),
                            env=os.environ | variables,
                            stdin=subprocess.DEVNULL,
                        )
                    )
        for line in lines:
            with suppress(OSError):  # it ended already: reading will tell
                line.send_bytes(payload)
        results: list[Result] = _gather(processes, lines, ends)
        _wait(processes)  # what a rank does at its end is not cut short
        return results
    finally:
        Family(*(process.pid for process in processes if process.poll() is None)).end()
        _wait(processes)
        ends.close()
        for line in lines:
            line.close()


def _gather(processes: Sequence[subprocess.Popen[bytes]], lines: Sequence[Connection], ends: Ends) -> list[Result]:
    answers: dict[int, Result] = {}
    failures: list[BaseException] = []
    deadline: float | None = None
    with selectors.DefaultSelector() as waiting:
        for rank, line in enumerate(lines):
            waiting.register(line, selectors.EVENT_READ, rank)
        while waiting.get_map():
            for key, _ in waiting.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
                rank = int(key.data)
                waiting.unregister(key.fileobj)
                data = _receive(lines[rank])
                answer: _Answer | None = None if data is None else pickle.loads(data)
                if answer is None:
                    code = processes[rank].wait()
                    how = _ending(code, f"exited with code {code} without a result")
                    failures.append(RankFailed(rank, how))
                    ends.tell(rank, how)
                elif answer.report is None:
                    answers[rank] = answer.result  # type: ignore[assignment]
                    ends.tell(rank, "returned")
                else:
                    failures.append(_raised(rank, answer.error, answer.report))
                    if isinstance(answer.error, PeerFailed):  # it may be here before the end of the one it names
                        ends.tell(answer.error.rank, f"was missed by rank {rank}")
                    else:
                        ends.tell(rank, f"raised {type(answer.error).__name__ if answer.error else 'an exception'}")
            if failures and deadline is None:
                deadline = time.monotonic() + GRACE
            if deadline is not None and time.monotonic() >= deadline:
                break
    if failures:
        # Ranks that failed only because another did say so; the first that did not is the cause.
        raise next((error for error in failures if not isinstance(error, PeerFailed)), failures[0])
    return [answers[rank] for rank in range(len(lines))]


def _raised(rank: int, error: BaseException | None, report: str) -> BaseException:
    if error is None:
        return RankFailed(rank, "raised an exception that cannot be pickled", report)
    error.__cause__ = RemoteTraceback(report)
    error.add_note(f"raised on rank {rank}")
    return error


def _receive(line: Connection) -> bytes | None:
    """What the other end sent; None if it ended first."""
    try:
        return line.recv_bytes()
    except (EOFError, OSError):
        return None


def _serve(parent: int) -> None:
    """The life of a process that ``call`` started; its line to the parent is the first argument."""
    die_with(parent)
    line = Connection(int(sys.argv.pop()))
    os.set_inheritable(line.fileno(), False)
    os.register_at_fork(after_in_child=line.close)  # a child does not answer for this rank
    payload = _receive(line)
    if payload is None:
        os._exit(1)  # the parent is gone
    try:
        fn, args = pickle.loads(payload)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as it was started, and no module has set another
            signal.signal(signal.SIGINT, signal.default_int_handler)
        packed = _dumps(_Answer(fn(*args), None, None))
    except BaseException as error:
        report = traceback.format_exc()
        try:
            pickle.loads(packed := _dumps(_Answer(None, error, report)))
        except Exception:
            packed = _dumps(_Answer(None, None, report))
    with suppress(OSError):
        line.send_bytes(packed)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """For processes that end, or were made to; one of another user could not be."""
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _ending(code: int, exited: str) -> str:
    if code >= 0:
        return exited
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time ones have no names
        return f"was ended by signal {-code}"


@contextmanager
def _starting(rank: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RankFailed(rank, f"could not be started: {error.strerror}") from error


@dataclass(slots=True)
class _Stream:
    """One output of one rank, on its way to ours.

    Whole lines are passed on, with the rank before each. So is what a carriage return begins or ends, and the next one
    is to be shown over: with a carriage return behind it, also before its own end has come.
    """

    rank: int
    source: BinaryIO
    sink: BinaryIO
    last: deque[bytes]  # lines
    parts: list[bytes] = field(default_factory=list)  # of the line that has not ended
    returned: bool = False  # it is one that is shown over and over
    shown: bytes = b""  # what of it was passed on last

    def pump(self) -> bool:
        """Pass on what has come; False at the end."""
        data = os.read(self.source.fileno(), 1 << 16)
        *ended, rest = re.split(rb"([\r\n])", data)
        for text, end in zip(ended[::2], ended[1::2], strict=True):
            self.parts.append(text)
            self._pass_on(end)
        self.parts.append(rest)
        if not data and any(self.parts):
            self._pass_on(b"\n")
        elif self.returned and sum(map(len, self.parts)) <= _LONGEST:
            self._show(b"".join(self.parts))
        self.sink.flush()
        return bool(data)

    def _pass_on(self, end: bytes) -> None:
        line = b"".join(self.parts)
        self.parts.clear()
        if end == b"\r":
            self._show(line)
        elif line or not self.returned:
            self.sink.write(b"[%d] %s\n" % (self.rank, line))
            self.last.append(line[:_LONGEST])
        else:  # the two ends of one line
            self.sink.write(b"\n")
            self.last.append(self.shown[:_LONGEST])
        self.returned = end == b"\r"
        self.shown = self.shown if self.returned else b""

    def _show(self, line: bytes) -> None:
        if line and line != self.shown:
            self.sink.write(b"[%d] %s\r" % (self.rank, line))
            self.shown = line


class _Job:
    """The processes of ``launch``. Every child of this process is one of the job."""

    def __init__(self, ranks: int) -> None:
        self.failed: list[tuple[int, int]] = []  # ranks and their exit codes, in order
        self.signal = 0  # that came first, to end all
        self._family = Family(os.getpid())
        self._ends = Ends()
        self._outputs = selectors.DefaultSelector()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors = [deque[bytes](maxlen=_LAST_LINES) for _ in range(ranks)]
        self._deadline = math.inf  # for the ranks to end by themselves
        self._running = set(range(ranks))

    def run(self, words: Sequence[str]) -> None:
        """Start all, and return when they have ended, and what they have started."""
        try:
            try:
                self._start(words)
                with handling(self._bury, signal.SIGCHLD), handling(self._suspend, signal.SIGTSTP):
                    self._attend()
                self._running.clear()  # who ends from now on has been told to
                self._family.end(self._pump)
                self._drain()
            except Signalled as signalled:  # maybe while nobody reads what we write
                self.signal = self.signal or signalled.number
                self._running.clear()
                with suppress(Signalled):
                    self._family.end()
                with suppress(Signalled, OSError):
                    self._drain()
        finally:
            self._family.end()
            self._close()

    def last_words(self, rank: int) -> list[str]:
        """What a rank said last on its standard error: from the latest traceback on, if there is one."""
        lines = [line.decode(errors="replace") for line in self._errors[rank]]
        start = max((i for i, line in enumerate(lines) if line.startswith("Traceback")), default=len(lines) - 20)
        return lines[max(0, start) :]

    def follows(self, rank: int) -> bool:
        """Whether a rank says that it failed because another did."""
        consequence = f"{PeerFailed.__module__}.{PeerFailed.__name__}:".encode()
        return any(consequence in line for line in self._errors[rank])

    def _start(self, words: Sequence[str]) -> None:
        for rank, variables in enumerate(environment(len(self._errors), self._ends)):
            with _starting(rank):
                process = subprocess.Popen(
                    words,
                    env={"PYTHONUNBUFFERED": "1"} | os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(self._ends.far.fileno(),),
                    process_group=0,  # so that Ctrl-C on a terminal reaches it once, by us
                    preexec_fn=partial(die_with, os.getpid()),
                )
                self._processes.append(process)
                self._outputs.register(os.pidfd_open(process.pid), selectors.EVENT_READ, rank)
            assert process.stdout is not None
            assert process.stderr is not None
            for source, sink, last in (
                (process.stdout, sys.stdout.buffer, deque[bytes](maxlen=1)),
                (process.stderr, sys.stderr.buffer, self._errors[rank]),
            ):
                self._outputs.register(source, selectors.EVENT_READ, _Stream(rank, source, sink, last))  # type: ignore[arg-type]

    def _attend(self) -> None:
        """Return when all have ended, or should have."""
        while self._running and time.monotonic() < self._deadline:
            try:
                self._pump(self._deadline - time.monotonic())
            except Signalled as signalled:
                first = self.signal == 0
                self.signal = self.signal or signalled.number
                if not first or signalled.number != signal.SIGINT:
                    raise
                self._deadline = time.monotonic() + 2 * GRACE
                self._family.tell(signal.SIGINT)

    def _pump(self, wait: float) -> bool:
        """Pass on what is written, and note what ranks end; False if nothing came in so many seconds."""
        ready = self._outputs.select(None if wait == math.inf else max(0.0, wait))
        ended = []
        for key, _ in ready:
            if isinstance(key.data, _Stream):
                if not key.data.pump():
                    self._outputs.unregister(key.fileobj)
            else:
                self._outputs.unregister(key.fileobj)
                os.close(key.fd)
                ended.append(int(key.data))
        for rank in sorted(ended):
            code = self._processes[rank].wait()
            self._ends.tell(rank, _ending(code, f"exited with code {code}"))
            if code and rank in self._running:
                self.failed.append((rank, code))
                self._deadline = min(self._deadline, time.monotonic() + GRACE)
            self._running.discard(rank)
        return bool(ready)

    def _drain(self) -> None:
        while self._pump(0.0):
            pass

    def _bury(self, _number: int, _frame: FrameType | None) -> None:
        bury_orphans([process.pid for process in self._processes])

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z, and what follows it."""
        self._family.tell(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._family.tell(signal.SIGCONT)

    def _close(self) -> None:
        _wait(self._processes)
        for process in self._processes:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for key in self._outputs.get_map().values():
            if isinstance(key.data, int):
                os.close(key.fd)
        self._outputs.close()
        self._ends.close()


def launch(command: Sequence[str], ranks: int) -> int:
    """Run a command as ``ranks`` processes that can meet; a Python file is run by this interpreter.

    Each line of their output is passed on with ``[rank] `` before it. When one fails the others are ended, its last
    words are repeated at the end, and its exit code is returned (128 + n for signal n). 0 if all is well. Ctrl-C is
    passed on; other signals that end this process end the ranks first. It needs a process of its own, since all that
    descends from this one is taken to be of the ranks.
    """
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    adopt_orphans()
    job = _Job(ranks)
    with handling(Signalled.raised, signal.SIGINT, *ENDING):
        job.run(words)
    if job.signal:
        return 128 + job.signal
    if not job.failed:
        return 0
    # Ranks that failed only because another did say so; the first that did not is the cause.
    rank, code = next((found for found in job.failed if not job.follows(found[0])), job.failed[0])
    how = _ending(code, f"failed with exit code {code}")
    print(f"\nrank {rank} {how}", *job.last_words(rank), sep="\n", file=sys.stderr, flush=True)
    return code if code > 0 else 128 - code
