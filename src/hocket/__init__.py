"""Write, prove, compile and run collective communication.

A ``Program`` says how chunks travel between ranks: ``chunk`` takes a reference, ``copy`` and ``reduce`` move it,
``parallelize`` splits. ``Program.compile`` makes a proven ``Schedule`` of it; ``prove`` proves one that came from
elsewhere, ``parse_schedule`` reads its text. ``init`` or ``spawn`` bring processes of one machine together, and their
``Communicator`` calls collectives by name, or runs a schedule. ``hocket.algorithms`` is the library of programs,
``hocket.errors`` has every error. The command line is ``hocket``, or ``python -m hocket``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from hocket.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Collective,
    Custom,
    Exscan,
    Gather,
    Reduce,
    ReduceScatter,
    Scan,
    Scatter,
)
from hocket.errors import HocketError, NativeMissing
from hocket.ir.schedule import Schedule
from hocket.ir.text import parse_schedule
from hocket.language import Ref, chunk, parallelize
from hocket.program import Program
from hocket.verify import Proof, prove

if TYPE_CHECKING:
    from hocket.communicator import Adopted as Adopted
    from hocket.communicator import Buffer as Buffer
    from hocket.communicator import Communicator as Communicator
    from hocket.communicator import Handle as Handle
    from hocket.communicator import PreparedCall as PreparedCall
    from hocket.communicator import init as init
    from hocket.communicator import spawn as spawn
    from hocket.communicator import wait_any as wait_any

__version__ = "0.1.0"

_RUNTIME = ["Adopted", "Buffer", "Communicator", "Handle", "PreparedCall", "init", "spawn", "wait_any"]

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "Broadcast",
    "Collective",
    "Custom",
    "Exscan",
    "Gather",
    "HocketError",
    "Program",
    "Proof",
    "Reduce",
    "ReduceScatter",
    "Ref",
    "Scan",
    "Scatter",
    "Schedule",
    "chunk",
    "parallelize",
    "parse_schedule",
    "prove",
]
if PathFinder.find_spec("hocket._native", __path__) is not None:  # else `from hocket import *` would fail
    __all__ += _RUNTIME


def __getattr__(name: str) -> object:
    """The runtime is loaded when it is first asked for: writing and proving need no native code."""
    if name in _RUNTIME:
        return getattr(import_module("hocket.communicator"), name)
    if name == "_native":  # whoever imports it first gets it, or an error that says what to do
        try:
            return import_module("hocket._native")
        except ModuleNotFoundError as error:
            if error.name != "hocket._native":
                raise
            raise NativeMissing from None
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
