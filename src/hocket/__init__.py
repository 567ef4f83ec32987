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
from hocket.language import Ref, chunk, parallelize
from hocket.program import Program
from hocket.verify import Proof, prove

if TYPE_CHECKING:
    from hocket.communicator import Communicator, init, spawn

__version__ = "0.1.0"

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "Broadcast",
    "Collective",
    "Communicator",
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
    "init",
    "parallelize",
    "prove",
    "spawn",
]


def __getattr__(name: str) -> object:
    """The runtime is loaded when it is first asked for: writing, proving and simulating need no native code."""
    if name in ("Communicator", "init", "spawn"):
        return getattr(import_module("hocket.communicator"), name)
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
