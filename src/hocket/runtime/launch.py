"""Starting ranks: as processes that call a function (``call``), or as processes of any command (``launch``)."""

from __future__ import annotations

import ctypes
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, TextIO, TypeVar

import cloudpickle

from hocket.errors import PeerFailed, RankFailed
from hocket.runtime.bootstrap import Ends, environment

Result = TypeVar("Result")

_GRACE = 2.0  # seconds in which the other ranks may end by themselves, once one has failed
_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1


class RemoteTraceback(Exception):
    """The traceback of an exception as its rank printed it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Failure(NamedTuple):
    rank: int
    error: BaseException


class _Answer(NamedTuple):
    """What a rank sends back: its result, or its exception (None: it does not pickle) and traceback."""

    result: object
    error: BaseException | None
    report: str | None


def call(fn: Callable[..., Result], ranks: int, args: tuple[object, ...]) -> list[Result]:
    """Call ``fn(*args)`` in ``ranks`` new processes that can meet: ``hocket.spawn``. Results in rank order."""
    payload = cloudpickle.dumps((fn, args))
    # A fresh interpreter that finds what this one finds.
    code = f"import sys; sys.path[:] = {sys.path!r}; from hocket.runtime.launch import _serve; _serve()"
    processes: list[subprocess.Popen[bytes]] = []
    lines: list[socket.socket] = []
    ends = Ends()
    try:
        for variables in environment(ranks, ends):
            near, far = socket.socketpair()
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
                line.sendall(_LENGTH.pack(len(payload)) + payload)
        results: list[Result] = _gather(processes, lines, ends)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):  # what a rank does at its end is not cut short
                process.wait(_GRACE)
        return results
    finally:
        _end(processes)
        ends.close()
        for line in lines:
            line.close()


def _gather(processes: Sequence[subprocess.Popen[bytes]], lines: Sequence[socket.socket], ends: Ends) -> list[Result]:
    answers: dict[int, Result] = {}
    failures: list[_Failure] = []
    deadline: float | None = None
    with selectors.DefaultSelector() as waiting:
        for rank, line in enumerate(lines):
            waiting.register(line, selectors.EVENT_READ, rank)
        while waiting.get_map():
            for key, _ in waiting.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
                rank = int(key.data)
                waiting.unregister(key.fileobj)
                answer = _receive(lines[rank])
                if answer is None:
                    how = _ending(processes[rank].wait())
                    failures.append(_Failure(rank, RankFailed(rank, how)))
                    ends.tell(rank, how)
                elif answer.report is None:
                    answers[rank] = answer.result  # type: ignore[assignment]
                    ends.tell(rank, "returned")
                else:
                    failures.append(_Failure(rank, _raised(rank, answer.error, answer.report)))
                    if isinstance(answer.error, PeerFailed):  # it may be here before the end of the one it names
                        ends.tell(answer.error.rank, f"was missed by rank {rank}")
                    else:
                        ends.tell(rank, f"raised {type(answer.error).__name__ if answer.error else 'an exception'}")
            if failures and deadline is None:
                deadline = time.monotonic() + _GRACE
            if deadline is not None and time.monotonic() >= deadline:
                break
    if failures:
        # Ranks that failed only because another did say so; the first that did not is the cause.
        raise next((f for f in failures if not isinstance(f.error, PeerFailed)), failures[0]).error
    return [answers[rank] for rank in range(len(lines))]


def _raised(rank: int, error: BaseException | None, report: str) -> BaseException:
    if error is None:
        return RankFailed(rank, "raised an exception that cannot be pickled", report)
    error.__cause__ = RemoteTraceback(report)
    error.add_note(f"raised on rank {rank}")
    return error


def _receive(line: socket.socket) -> _Answer | None:
    """What a rank sent; None if it ended first."""
    data = _read(line)
    return None if data is None else pickle.loads(data)


def _read(line: socket.socket) -> bytes | None:
    with suppress(ConnectionError):
        head = line.recv(_LENGTH.size, socket.MSG_WAITALL)
        if len(head) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            data = bytearray()
            while len(data) < length and (part := line.recv(min(length - len(data), 1 << 20))):
                data += part
            if len(data) == length:
                return bytes(data)
    return None


def _serve() -> None:
    """The life of a process that ``call`` started; its line to the parent is the first argument."""
    _die_with_parent()
    line = socket.socket(fileno=int(sys.argv.pop()))
    line.set_inheritable(False)
    os.register_at_fork(after_in_child=line.close)  # a child does not answer for this rank
    answer = _Answer(None, None, None)
    try:
        data = _read(line)
        if data is None:
            os._exit(1)  # the parent is gone
        fn, args = pickle.loads(data)
        packed = cloudpickle.dumps(_Answer(fn(*args), None, None))
    except BaseException as error:
        report = traceback.format_exc()
        try:
            pickle.loads(packed := cloudpickle.dumps(_Answer(None, error, report)))
        except Exception:
            packed = cloudpickle.dumps(answer._replace(report=report))
    with suppress(OSError):
        line.sendall(_LENGTH.pack(len(packed)) + packed)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends, whatever ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"was ended by {_signal(code)}" if code < 0 else f"exited with code {code} without a result"


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:  # real-time ones have no names
        return f"signal {-code}"


def _end(processes: Sequence[subprocess.Popen[bytes]], grace: float = _GRACE, group: bool = False) -> None:
    """Ask what still runs to end, then make it; wait for all."""

    def tell(number: signal.Signals) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                if group:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    if any(process.poll() is None for process in processes):
        tell(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    if group or any(process.poll() is None for process in processes):
        tell(signal.SIGKILL)  # with `group` also what a rank started and left behind
    for process in processes:
        process.wait()


@dataclass(slots=True)
class _Stream:
    """One output of one rank, on its way to ours."""

    rank: int
    source: BinaryIO
    sink: TextIO
    last: deque[str]
    rest: bytes = field(default=b"")

    def pump(self) -> bool:
        """Pass on whole lines, with the rank before each; False at the end."""
        data = os.read(self.source.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data and self.rest:
            lines, self.rest = [self.rest], b""
        for line in lines:
            text = line.decode(errors="replace")
            self.last.append(text)
            self.sink.write(f"[{self.rank}] {text}\n")
        self.sink.flush()
        return bool(data)


def launch(command: Sequence[str], ranks: int) -> int:
    """Run a command as ``ranks`` processes that can meet; a Python file is run by this interpreter.

    Each line of their output is passed on with ``[rank] `` before it. When one fails the others are ended, its last
    words are repeated at the end, and its exit code is returned (128 + n for signal n). Ctrl-C is passed on. 0 if all
    is well.
    """
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    processes: list[subprocess.Popen[bytes]] = []
    errors: list[deque[str]] = [deque(maxlen=400) for _ in range(ranks)]
    failed: list[tuple[int, int]] = []
    interrupted = False
    ends = Ends()
    try:
        with ExitStack() as opened:
            outputs = opened.enter_context(selectors.DefaultSelector())
            for rank, variables in enumerate(environment(ranks, ends)):
                process = subprocess.Popen(
                    words,
                    env={"PYTHONUNBUFFERED": "1"} | os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(ends.far.fileno(),),
                    process_group=0,  # so that a signal reaches it once, and its children with it
                    preexec_fn=_die_with_parent,
                )
                processes.append(process)
                ending = opened.enter_context(os.fdopen(os.pidfd_open(process.pid), "rb", 0))
                outputs.register(ending, selectors.EVENT_READ, rank)
                assert process.stdout is not None
                assert process.stderr is not None
                for source, sink, last in (
                    (process.stdout, sys.stdout, deque[str](maxlen=1)),
                    (process.stderr, sys.stderr, errors[rank]),
                ):
                    stream = _Stream(rank, source, sink, last)  # type: ignore[arg-type]
                    outputs.register(source, selectors.EVENT_READ, stream)
            deadline: float | None = None
            running = set(range(ranks))
            while running and (deadline is None or time.monotonic() < deadline):
                try:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    for rank in _pump(outputs, left) or ():
                        code = processes[rank].wait()
                        running.discard(rank)
                        ends.tell(rank, f"was ended by {_signal(code)}" if code < 0 else f"exited with code {code}")
                        if code:
                            failed.append((rank, code))
                            deadline = deadline or time.monotonic() + _GRACE
                except KeyboardInterrupt:
                    if interrupted:
                        break
                    interrupted = True
                    deadline = time.monotonic() + 2 * _GRACE
                    for process in processes:
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGINT)
            _end(processes, group=True)
            while _pump(outputs, 0.0) is not None:
                pass
    finally:
        _end(processes, group=True)
        ends.close()
        for process in processes:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    if interrupted:
        return 128 + signal.SIGINT
    if not failed:
        return 0
    # Ranks that failed only because another did say so; the first that did not is the cause.
    consequence = f"{PeerFailed.__module__}.{PeerFailed.__name__}:"
    rank, code = next((f for f in failed if not any(consequence in line for line in errors[f[0]])), failed[0])
    words_of = list(errors[rank])
    start = max((i for i, line in enumerate(words_of) if line.startswith("Traceback")), default=len(words_of) - 20)
    how = f"was ended by {_signal(code)}" if code < 0 else f"failed with exit code {code}"
    print(f"\nrank {rank} {how}", *words_of[max(0, start) :], sep="\n", file=sys.stderr, flush=True)
    return code if code > 0 else 128 - code


def _pump(outputs: selectors.BaseSelector, wait: float | None) -> list[int] | None:
    """Wait for output, which is passed on, and for ranks to end, which are returned; None if nothing came."""
    ready = outputs.select(wait)
    ended: list[int] = []
    for key, _ in ready:
        if isinstance(key.data, int):
            ended.append(key.data)
            outputs.unregister(key.fileobj)
        elif not key.data.pump():
            outputs.unregister(key.fileobj)
    return sorted(ended) if ready else None
