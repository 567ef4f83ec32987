"""What the buffers of an msccl-tools program hold while it is traced: chunks, and sums of chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum


class Buffer(Enum):
    """The buffers of a rank. Anything else that is used as one is the name of a scratch buffer."""

    input = "i"
    output = "o"
    scratch = "s"

    def __str__(self) -> str:
        return self.value

    def __lt__(self, other: Buffer) -> bool:
        return self.value < other.value


def buffer_name(buffer: Hashable) -> str:
    """How an error names a buffer."""
    names: dict[Hashable, str] = {Buffer.input: "in", Buffer.output: "out", Buffer.scratch: "scratch"}
    return names.get(buffer) or str(buffer)


@dataclass(eq=False)
class Chunk:
    """An input chunk: where it was, and (-1: anywhere) where it shall be. Equal is what comes from the same place."""

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    def reduce(self, dst: int, chunk: Chunk | ReduceChunk) -> ReduceChunk:
        """The sum of two, made on rank ``dst``."""
        return ReduceChunk(dst, [self]).reduce(dst, chunk)

    def _key(self) -> tuple[int, int]:
        return self.origin_rank, self.origin_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Chunk) -> bool:
        return self._key() < other._key()


@dataclass(eq=False)
class ReduceChunk:
    """A sum of chunks. Equal are sums of the same chunks, each as often, wherever they were made."""

    creation_rank: int
    chunks: list[Chunk]

    def reduce(self, dst: int, chunk: Chunk | ReduceChunk) -> ReduceChunk:
        """The sum with one more, or with another sum."""
        more = chunk.chunks if isinstance(chunk, ReduceChunk) else [chunk]
        return ReduceChunk(self.creation_rank, self.chunks + more)

    def sort(self) -> None:
        self.chunks.sort()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and Counter(self.chunks) == Counter(other.chunks)

    def __hash__(self) -> int:
        return hash(frozenset(Counter(self.chunks).items()))


Value = Chunk | ReduceChunk
Buffers = list[dict[Hashable, list[Value | None]]]
"""For each rank its buffers; None where nothing has been written."""
