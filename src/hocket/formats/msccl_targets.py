"""What the runtimes that read MSCCL's XML take: tables of limits, words and opcodes.

From microsoft/msccl (b23e9cd) and ROCm/rccl (0cbce2a). Behind each rule stands the file it is from: topo.cc, xml.cc and
xml.h in msccl's src/graph, msccl.h in its src/include; msccl_parser.cc, msccl_setup.cc and msccl_lifecycle.cc in RCCL's
src/misc/msccl, msccl_parser.h and msccl_struct.h in its src/include/msccl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hocket.collectives import Collective

SLOTS: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})
"""Protocols, and how many operations of each are outstanding on a connection before a send has to wait."""

OPCODES = ("s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs")
"""topo.cc, msccl_parser.cc"""
READS = frozenset({"s", "cpy", "re", "rrc", "rrs", "rrcs"})
"""Opcodes whose source means something."""
WRITES = frozenset({"r", "cpy", "re", "rrc", "rcs", "rrcs"})
RECEIVES = frozenset({"r", "rrc", "rcs", "rrs", "rrcs"})
SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
UNBOUNDED = frozenset({"rrc"})
"""Opcodes whose offsets nobody looks at (topo.cc, msccl_parser.cc)."""

COUNT = 71
"""Chunks of a step (msccl.h, msccl_struct.h)."""
CHANNELS = 32
"""MAXCHANNELS of both."""
PER_CHANNEL = 32
"""Thread blocks of a GPU that send, and as many that receive, on one channel (msccl.h, msccl_struct.h)."""
AWAITED = 128
"""Thread blocks that others may wait for, those of the lowest numbers: kept in 8 bits (msccl.h, msccl_struct.h)."""
FUSED_REDUCES = 16
"""Reductions into one place that a runtime joins to one (msccl.h, msccl_struct.h)."""
OFFSET = 2**15 - 1
"""The largest chunk index: it is kept in 16 bits (msccl.h, msccl_struct.h)."""
NODES = 4095
"""Elements that a GPU keeps of a file: all GPUs, its thread blocks, its steps. Of 4096 places the parser needs one
(xml.h, msccl_parser.h)."""
CHILDREN = 1024
"""Elements in one element (xml.h, msccl_parser.h)."""
ATTRIBUTES = 16
"""Attributes of an element (xml.h, msccl_parser.h)."""
TEXT = 254
"""Bytes of an attribute; there is room for 255 (xml.h, msccl_parser.h)."""
BYTES = 2**63 - 1
DEFAULT_BYTES = 1 << 27
"""The size from which on a call is too large for a file of MSCCL that does not say (topo.cc)."""
SCRATCH = 1 << 40
"""Bytes of scratch that no GPU has."""


@dataclass(frozen=True, slots=True)
class Target:
    """One runtime. ``words`` names the collectives it knows, by hocket's names.

    ``exclusive``: the largest size in a file is the first that is too large, and not the last that is taken (where zero
    stands for no limit). ``both_places``: a file says whether it serves calls in place, and calls out of place.
    ``shares``: by its words, the buffer that holds the share of one rank; all others, if they are not empty, have the
    chunks of the loop; None where that is not checked. ``apart``: what may not be called in place. ``reserves``:
    scratch is allocated once, for the largest call, and not when a call needs it. ``warp``: nthreads is a multiple.
    """

    name: str
    words: Mapping[str, str]
    opcodes: frozenset[str]
    thread_blocks: int
    steps: int
    exclusive: bool
    both_places: bool
    reserves: bool
    shares: Mapping[str, str] | None = None
    apart: frozenset[str] = frozenset()
    warp: int | None = None
    note: str | None = None


MSCCL = Target(
    name="msccl",
    words=MappingProxyType(  # topo.cc
        {
            "allreduce": "allreduce",
            "allgather": "allgather",
            "reducescatter": "reduce_scatter",
            "alltoall": "alltoall",
            "broadcast": "broadcast",
            "reduce": "reduce",
            "gather": "custom",
            "scatter": "custom",
            "alltonext": "custom",
            "custom": "custom",
        }
    ),
    opcodes=frozenset(OPCODES),  # topo.cc
    thread_blocks=216,  # msccl.h
    steps=256,  # msccl.h
    exclusive=True,  # src/graph/tuning.cc, src/collectives/all_to_all.cc
    both_places=False,  # topo.cc
    reserves=True,  # src/init.cc, src/enqueue.cc
    shares=MappingProxyType({"allgather": "i", "reduce_scatter": "o"}),  # topo.cc
    apart=frozenset({"alltoall"}),  # src/nccl.h.in; all_to_all.cc does not compare
    warp=32,  # topo.cc
)

RCCL = Target(
    name="rccl",
    words=MappingProxyType(  # msccl_parser.cc
        {
            "allreduce": "allreduce",
            "allgather": "allgather",
            "reducescatter": "reducescatter",
            "alltoall": "alltoall",
            "broadcast": "broadcast",
            "reduce": "reduce",
            "gather": "gather",
            "scatter": "scatter",
        }
    ),
    opcodes=frozenset({"s", "r", "cpy", "re"}),  # msccl_setup.cc: its default build refuses the fused ones at launch
    thread_blocks=64,  # msccl_struct.h
    steps=64,  # msccl_struct.h
    exclusive=False,  # msccl_lifecycle.cc
    both_places=True,  # msccl_parser.cc
    reserves=False,  # msccl_setup.cc
    note="RCCL dropped MSCCL after ROCm 7.12: from RCCL 2.28.3 on its calls to load such files do nothing",
)

TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in (MSCCL, RCCL)})


def loop_chunks(collective: Collective, word: str) -> int:
    """``nchunksperloop``: the chunks that the bytes of a call are divided by.

    Those bytes are all of a rank's larger buffer, but for gather and scatter one rank's block.
    """
    if word in ("gather", "scatter"):
        return collective.chunks
    return max(max(collective.inputs(rank), collective.outputs(rank)) for rank in range(collective.size))


# What an operation of a FIFO carries ----------------------------------------------------------------------------

FIFO_BYTES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "msccl": MappingProxyType({"Simple": 4 << 19, "LL": (64 << 10) // 2, "LL128": 614400 // 16 * 15}),
        "rccl": MappingProxyType({"Simple": 4 << 19, "LL": (32 << 10) // 2, "LL128": 57344 // 8 * 7}),
    }
)
"""By runtime and protocol, with buffers of default size (computeBuffSizes in both src/init.cc; 1/8 of a buffer is a
step, and MSCCL_CHUNKSTEPS of Simple are 4). Half of LL is flags; of LL128, a word in each line of 16, for RCCL of 8
(NCCL_LL128_LINEELEMS). A step of cnt chunks is cut into operations of as many as that holds, of COUNT at most and of 1
at least (mscclSetupCount in RCCL's msccl_setup.cc, computeColl in msccl's src/enqueue.cc)."""
