"""msccl-tools' collectives: buffers at the start, a check at the end, and what hocket calls the same thing."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING

from hocket import collectives
from hocket.errors import InvalidArgument, Site, Unsupported
from hocket.integrations.msccl.chunks import Buffer, Buffers, Chunk, Value, buffer_name

if TYPE_CHECKING:
    from hocket.integrations.msccl.program import MSCCLProgram


class Collective:
    """Base of all, also of the user's: override ``init_buffers`` and ``check``."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.name = "custom"

    def init_buffers(self) -> Buffers:
        """For each rank a dict with lists for ``Buffer.input`` and ``Buffer.output``; one list for both: in place."""
        raise NotImplementedError(f"{type(self).__name__} must define init_buffers()")

    def check(self, prog: MSCCLProgram) -> bool | None:
        """Whether the buffers of a program end as they should; None promises nothing."""
        return None

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        """The one name of a place on ``rank`` that has two."""
        return buffer, index


class _Known(Collective, ABC):
    """A collective that hocket knows too."""

    @abstractmethod
    def same(self) -> collectives.Collective:
        """hocket's value for it."""

    def check(self, prog: MSCCLProgram) -> bool | None:
        wrong = prog.refuted(self.same())
        if wrong is not None:
            print(wrong, file=sys.stderr)
        return wrong is None

    @abstractmethod
    def _chunk(self, rank: int, index: int) -> Chunk:
        """What chunk ``index`` of a rank's input is at the start."""

    def init_buffers(self) -> Buffers:
        same = self.same()
        found: Buffers = []
        for rank in range(same.size):
            full: list[Value | None] = [self._chunk(rank, index) for index in range(same.inputs(rank))]
            empty: list[Value | None] = [None] * same.outputs(rank)
            alias = same.alias(rank)
            if alias is None:
                pass
            elif alias.buffer == "in":
                empty[alias.offset : alias.offset + len(full)] = full
            elif len(empty) == len(full):
                empty = full
            else:
                empty = full[alias.offset : alias.offset + len(empty)]
            found.append({Buffer.input: full, Buffer.output: empty})
        return found

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        alias = self.same().alias(rank)
        if alias is not None and buffer is (Buffer.input if alias.buffer == "in" else Buffer.output):
            return Buffer.output if alias.target == "out" else Buffer.input, alias.offset + index
        return buffer, index


class AllReduce(_Known):
    """``chunk_factor`` counts the chunks of the whole buffer."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "allreduce"

    def same(self) -> collectives.Collective:
        return collectives.AllReduce(self.num_ranks, self.chunk_factor, bool(self.inplace))

    def _chunk(self, rank: int, index: int) -> Chunk:
        return Chunk(rank, index, -1, index)


class AllGather(_Known):
    """``chunk_factor`` counts the chunks of a rank's input."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "allgather"

    def same(self) -> collectives.Collective:
        return collectives.AllGather(self.num_ranks, self.chunk_factor, bool(self.inplace))

    def _chunk(self, rank: int, index: int) -> Chunk:
        return Chunk(rank, index, -1, rank * self.chunk_factor + index)


class ReduceScatter(_Known):
    """``chunk_factor`` counts the chunks of a rank's output."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "reduce_scatter"

    def same(self) -> collectives.Collective:
        return collectives.ReduceScatter(self.num_ranks, self.chunk_factor, bool(self.inplace))

    def _chunk(self, rank: int, index: int) -> Chunk:
        return Chunk(rank, index, *divmod(index, self.chunk_factor))


class AllToAll(_Known):
    """``chunk_factor`` counts the chunks for one destination."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "alltoall"

    def same(self) -> collectives.Collective:
        return collectives.AllToAll(self.num_ranks, self.chunk_factor, bool(self.inplace))

    def _chunk(self, rank: int, index: int) -> Chunk:
        dst, position = divmod(index, self.chunk_factor)
        return Chunk(rank, index, dst, rank * self.chunk_factor + position)


def known(collective: Collective) -> collectives.Collective | None:
    """What hocket calls a collective, if its buffers are those of one that hocket knows."""
    if not isinstance(collective, _Known):
        return None
    kind = type(collective)
    untouched = kind.init_buffers is _Known.init_buffers and kind.get_buffer_index is _Known.get_buffer_index
    return collective.same() if untouched else None


def checks_itself(collective: Collective) -> bool:
    """Whether a collective has a check() of the user's own."""
    return type(collective).check not in (Collective.check, _Known.check)


def share_memory(collective: Collective, buffers: Buffers, site: Site) -> bool:
    """Whether the input and the output that init_buffers() of a collective of the user's made are one list."""
    one = [held.get(Buffer.output) is held.get(Buffer.input) for held in buffers]
    filled = {
        buffer
        for held in buffers
        for buffer, chunks in held.items()
        if buffer is not Buffer.input and chunks is not held.get(Buffer.input) and any(c is not None for c in chunks)
    }
    what = f"init_buffers() of {type(collective).__name__}"
    if len(buffers) != collective.num_ranks:
        raise InvalidArgument(f"{what} made buffers for {len(buffers)} ranks, there are {collective.num_ranks}", site)
    if filled:
        names = " and ".join(sorted(buffer_name(buffer) for buffer in filled))
        raise Unsupported(f"{what}, which fills {names}", site, "only the input holds chunks when a program begins")
    if any(one) and not all(one):
        raise Unsupported(f"{what}, which is in place on some ranks only", site)
    return all(one)
