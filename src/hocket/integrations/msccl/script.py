"""Running a script that was written for msccl-tools."""

from __future__ import annotations

import functools
import heapq
import json
import runpy
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType

from hocket.errors import Unsupported, caller
from hocket.integrations.msccl import chunks, collectives, language, lowered, program, routines, topologies
from hocket.integrations.msccl.program import MSCCLProgram, Write, recording
from hocket.verify import Contract

# The star imports of the original hand on what it imports itself, and programs have come to use that.
_LANGUAGE: dict[str, object] = {
    "Buffer": chunks.Buffer,
    "Check": language.Check,
    "Chunk": chunks.Chunk,
    "Enum": Enum,
    "Instruction": lowered.Instruction,
    "MSCCLProgram": program.MSCCLProgram,
    "ReduceChunk": chunks.ReduceChunk,
    "Ref": language.Ref,
    "ThreadblockPolicy": program.ThreadblockPolicy,
    "XML": language.XML,
    "chunk": language.chunk,
    "create_scratch": language.create_scratch,
    "dataclass": dataclass,
    "defaultdict": defaultdict,
    "field": field,
    "functools": functools,
    "heapq": heapq,
    "json": json,
}
_COLLECTIVES: dict[str, object] = {
    kind.__name__: kind
    for kind in (
        collectives.AllGather,
        collectives.AllReduce,
        collectives.AllToAll,
        collectives.Collective,
        collectives.ReduceScatter,
    )
}
_TOPOLOGIES: dict[str, object] = {
    made.__name__: made
    for made in (
        topologies.Topology,
        topologies.dgx1,
        topologies.dgx2,
        topologies.dgx_a100,
        topologies.distributed_fully_connected,
        topologies.distributed_hub_and_spoke,
        topologies.fully_connected,
        topologies.hub_and_spoke,
        topologies.line,
        topologies.nvlink_only,
        topologies.ring,
        topologies.star,
    )
}
_ROUTINES: dict[str, object] = {
    routine.__name__: routine for routine in (routines.allgather_ring_inplace, routines.allreduce_ring_inplace)
}
_MODULES: dict[str, dict[str, object]] = {
    "msccl": {},
    "msccl.collectives": {},
    "msccl.language": _LANGUAGE,
    "msccl.language.buffer": _LANGUAGE,
    "msccl.language.chunk": _LANGUAGE,
    "msccl.language.collectives": _LANGUAGE | _COLLECTIVES,
    "msccl.language.ir": _LANGUAGE,
    "msccl.language.routines": _LANGUAGE | _COLLECTIVES | _TOPOLOGIES | _ROUTINES,
    "msccl.language.types": _LANGUAGE,
    "msccl.topologies": _TOPOLOGIES,
    "msccl.topologies.distributed": _TOPOLOGIES,
    "msccl.topologies.generic": _TOPOLOGIES,
    "msccl.topologies.nvidia": _TOPOLOGIES,
    "msccl.topologies.topology": _TOPOLOGIES,
}
"""The modules that a script finds. ``msccl.collectives``, of the synthesizer, is only ever imported by programs."""


def run_script(
    script: Path, arguments: Sequence[str], write: Write, reproducible: Contract | None = None
) -> list[MSCCLProgram]:
    """Run a script as Python itself would, and return the programs that it finished, in order.

    XML() prints what ``write`` makes of a schedule and a protocol (``hocket.formats.msccl_xml.write`` for a target).
    ``reproducible`` is what the programs must keep, as of ``hocket.Program``.
    Only its own exceptions, SystemExit among them, come out of it, and errors of hocket's.
    """
    finished: list[MSCCLProgram] = []
    with _installed(), _command_line(script, arguments), recording(finished, write, reproducible):
        runpy.run_path(str(script), run_name="__main__")
    return finished


@contextmanager
def _installed() -> Iterator[None]:
    """``msccl`` is ours meanwhile; what was there before, an installed one too, is back afterwards."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "msccl"}
    for name, offered in _MODULES.items():
        module = ModuleType(name)
        module.__path__ = []  # a package in which nothing is looked for
        module.__dict__.update(offered)
        module.__dict__["__getattr__"] = functools.partial(_missing, name)
        parent, _, child = name.rpartition(".")
        if parent and child not in _MODULES[parent]:  # chunk is a module and a function
            setattr(sys.modules[parent], child, module)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "msccl"]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _missing(module: str, name: str) -> object:
    if name.startswith("__"):  # what Python itself asks every module for
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise Unsupported(f"{module}.{name}", caller())


@contextmanager
def _command_line(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
