"""Processes that this one has started, with all that came of them: told of signals, and ended in order."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

GRACE = 2.0  # seconds in which processes may end by themselves, before they are made to
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a process from outside, if nobody handles it, beside Ctrl-C."""

_MOMENT = 0.02  # seconds between two looks at who is left
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_BY_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


class Signalled(BaseException):
    """A signal has come that is to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @classmethod
    def raised(cls, number: int, _frame: FrameType | None) -> None:
        """A handler that raises it."""
        raise cls(number)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals, but those that this process ignores or handles already. Only its main thread can."""
    main = threading.current_thread() is threading.main_thread()
    taken = {number: before for number in numbers if main and (before := signal.getsignal(number)) in _BY_DEFAULT}
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


def die_with(parent: int) -> None:
    """Have the kernel end this process when the one that started it ends, whatever ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was too late to ask
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Have this process be the parent of all descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def bury_orphans(children: Collection[int]) -> None:
    """Wait for what this process has adopted and has ended; ``children`` are those that somebody else waits for."""
    for process, (parent, ended) in _processes().items():
        if ended and parent == os.getpid() and process.pid not in children:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


class _Process(NamedTuple):
    pid: int
    begun: int  # tells it from a later process of that number


class Family:
    """Processes and all that descend from them, but for this one itself.

    Who has lost a parent is found where it was seen before, or has been adopted by one of them.
    """

    def __init__(self, *ancestors: int) -> None:
        self._known = {process for process in _processes() if process.pid in ancestors}

    def running(self) -> set[_Process]:
        """Those that have not ended."""
        living = {process: parent for process, (parent, ended) in _processes().items() if not ended}
        children: dict[int, list[_Process]] = {}
        for process, parent in living.items():
            children.setdefault(parent, []).append(process)
        todo = [process for process in self._known if process in living]
        self._known = set()
        while todo:
            process = todo.pop()
            if process not in self._known:
                self._known.add(process)
                todo += children.get(process.pid, ())
        return {process for process in self._known if process.pid != os.getpid()}

    def tell(self, number: signal.Signals) -> None:
        """Send all a signal."""
        _tell(self.running(), number)

    def end(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Ask all to end, and after a grace make them. ``pause`` waits for seconds; what it raises ends the grace."""
        try:
            self._end(signal.SIGTERM, pause)
        finally:
            self._end(signal.SIGKILL, time.sleep)

    def _end(self, number: signal.Signals, pause: Callable[[float], object]) -> None:
        told: set[_Process] = set()
        deadline = time.monotonic() + GRACE
        while (running := self.running()) and time.monotonic() < deadline:
            _tell(running - told, number)
            told |= running
            pause(_MOMENT)


def _tell(processes: Collection[_Process], number: signal.Signals) -> None:
    """The oldest first, so that a parent knows before it misses a child."""
    for process in sorted(processes, key=lambda process: (process.begun, process.pid)):
        with suppress(ProcessLookupError, PermissionError):  # it has just ended; it is another user's by now
            os.kill(process.pid, number)


def _processes() -> dict[_Process, tuple[int, bool]]:
    """All that there are: their parents, and whether they have ended and nobody has waited for them."""
    found = {}
    with os.scandir("/proc") as entries:
        for pid in (entry.name for entry in entries if entry.name.isdecimal()):
            with suppress(OSError):  # it is gone
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                found[_Process(int(pid), int(fields[19]))] = int(fields[1]), fields[0] in (b"Z", b"X")
    return found
