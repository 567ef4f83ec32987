"""What the runtimes that read MSCCL's XML take: tables of limits, words and opcodes.

From microsoft/msccl (b23e9cd) and ROCm/rccl (0cbce2a).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hocket.collectives import Collective

SLOTS: Mapping[str, int] = MappingProxyType({"Simple": 2, "LL": 8, "LL128": 8})
"""Protocols, and how many operations of each are outstanding on a connection before a send has to wait."""

OPCODES = ("s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs")

COUNT = 71
"""Chunks of a step."""
CHANNELS = 32
PER_CHANNEL = 32
"""Thread blocks of a GPU that send, and as many that receive, on one channel."""
FUSED_REDUCES = 16
"""Reductions into one place that a runtime joins to one."""
OFFSET = 2**15 - 1
"""The largest chunk index: it is kept in 16 bits."""
NODES = 4095
"""Elements that a GPU keeps of a file: all GPUs, its thread blocks, its steps. Of 4096 places the parser needs one."""
CHILDREN = 1024
"""Elements in one element."""
ATTRIBUTES = 16
"""Attributes of an element."""
TEXT = 254
"""Characters of an attribute; there are 255 bytes for it."""
BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """One runtime. ``words`` names the collectives it knows, by hocket's names.

    ``exclusive``: the largest size in a file is the first that is too large, and not the last that is taken (where zero
    stands for no limit). ``both_places``: a file says whether it serves calls in place, and calls out of place.
    ``checks_chunks``: no buffer has more chunks than the loop.
    """

    name: str
    words: Mapping[str, str]
    opcodes: frozenset[str]
    thread_blocks: int
    steps: int
    exclusive: bool
    both_places: bool
    checks_chunks: bool
    note: str | None = None


MSCCL = Target(
    name="msccl",
    words=MappingProxyType(
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
    opcodes=frozenset(OPCODES),
    thread_blocks=216,
    steps=256,
    exclusive=True,
    both_places=False,
    checks_chunks=True,
)

RCCL = Target(
    name="rccl",
    words=MappingProxyType(
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
    # Its default build refuses the fused ones at launch.
    opcodes=frozenset({"s", "r", "cpy", "re"}),
    thread_blocks=64,
    steps=64,
    exclusive=False,
    both_places=True,
    checks_chunks=False,
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
