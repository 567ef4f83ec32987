"""hocket: write, prove, compile and run collective communication."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hocket.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Collective,
    Custom,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from hocket.errors import HocketError
from hocket.ir.schedule import Schedule
from hocket.ir.text import parse_schedule
from hocket.language import Ref, chunk, parallelize
from hocket.program import Program
from hocket.verify import Proof, prove

if TYPE_CHECKING:
    from hocket.communicator import Communicator as Communicator
    from hocket.communicator import Handle as Handle
    from hocket.communicator import init as init
    from hocket.communicator import spawn as spawn

__version__ = "0.1.0"

# What is imported above is public too, but `from hocket import *` has to work where no native code was built.
__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "Broadcast",
    "Collective",
    "Custom",
    "Gather",
    "HocketError",
    "Program",
    "Proof",
    "Reduce",
    "ReduceScatter",
    "Ref",
    "Scatter",
    "Schedule",
    "chunk",
    "parallelize",
    "parse_schedule",
    "prove",
]


def __getattr__(name: str) -> object:
    """The runtime is loaded when it is first asked for: writing, proving and simulating need no native code."""
    if name in ("Communicator", "Handle", "init", "spawn"):
        return getattr(import_module("hocket.communicator"), name)
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
