"""What ``MSCCLProgram.lower`` returns: what XML() prints, as the objects that msccl-tools have for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hocket.formats.msccl_document import Document, Place
from hocket.formats.msccl_targets import READS, WRITES
from hocket.integrations.msccl.chunks import Buffer


class Instruction(Enum):
    """What a step does, by its word in a file."""

    nop = "nop"
    send = "s"
    recv = "r"
    recv_copy_send = "rcs"
    recv_reduce_send = "rrs"
    recv_reduce_copy = "rrc"
    recv_reduce_copy_send = "rrcs"
    copy = "cpy"
    reduce = "re"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """``size`` chunks of a rank, from ``index`` on."""

    rank: int
    buffer: Buffer
    index: int
    size: int


@dataclass(eq=False)
class Op:
    """A step. ``src`` and ``dst`` are places on its rank; what it receives or sends has none."""

    inst: Instruction
    rank: int
    src: ChunkRef | None
    dst: ChunkRef | None
    step: int
    tb: int
    channel: int
    depends: list[Op] = field(default_factory=list, repr=False)


@dataclass(eq=False)
class Threadblock:
    """Its steps in order; ``send`` and ``recv`` are ranks, or -1."""

    id: int
    channel: int
    send: int
    recv: int
    ops: list[Op]


@dataclass
class Gpu:
    """A rank: its thread blocks, and the chunks of its buffers."""

    rank: int
    threadblocks: list[Threadblock]
    input_chunks: int
    output_chunks: int
    scratch_chunks: int


@dataclass
class Program:
    """A whole file."""

    name: str
    collective: str
    inplace: bool
    protocol: str
    gpus: list[Gpu]


def lowered(document: Document) -> Program:
    """The same in other words."""
    gpus = [
        Gpu(r, _thread_blocks(document, r), *(gpu.chunks[key] for key in "ios")) for r, gpu in enumerate(document.gpus)
    ]
    return Program(document.name, document.coll, document.inplace, document.proto, gpus)


def _thread_blocks(document: Document, rank: int) -> list[Threadblock]:
    found: list[Threadblock] = []
    for b, block in enumerate(document.gpus[rank].blocks):
        send, recv = (-1 if peer is None else peer for peer in (block.send, block.recv))
        ops = []
        for s, step in enumerate(block.steps):
            src = _chunks(rank, step.src, step.count) if step.type in READS else None
            dst = _chunks(rank, step.dst, step.count) if step.type in WRITES else None
            ops.append(Op(Instruction(step.type), rank, src, dst, s, b, block.channel))
        found.append(Threadblock(b, block.channel, send, recv, ops))
    for made, block in zip(found, document.gpus[rank].blocks, strict=True):
        for op, step in zip(made.ops, block.steps, strict=True):
            if step.depends is not None:
                other, number = step.depends
                op.depends.append(found[other].ops[number])
    return found


def _chunks(rank: int, place: Place, count: int) -> ChunkRef:
    return ChunkRef(rank, Buffer(place[0]), place[1], count)
