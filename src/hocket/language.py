"""The language: chunk, copy, reduce, parallelize (paper section 3, Table 1).

A program is traced: Python runs it once, and every operation becomes a node of the Chunk DAG. References are checked
while tracing, so that a mistake is reported at the line that makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import SupportsIndex

from msgspec import Struct

from hocket.collectives import BUFFERS, BufferName, Collective, whole
from hocket.errors import (
    CountMismatch,
    InvalidArgument,
    NoLink,
    OutOfRange,
    OutsideProgram,
    Overlap,
    Site,
    StaleChunk,
    UninitializedChunk,
    Where,
    caller,
)
from hocket.ir.chunk_dag import STORAGES, ChunkDag, ChunkDagBuilder, Hints, Kind, Span, Storage
from hocket.topology import Topology

Position = SupportsIndex | tuple[SupportsIndex, ...]
"""A rank or an index: a number, or a tuple flattened row-major by the shape of the collective."""

Wishes = tuple[int | None, Storage | None]
"""The directives ``ch`` and ``storage`` of an operation."""

MAX_SCRATCH = 1 << 24
"""Scratch chunks of one rank; an index beyond is a mistake, not a wish."""

MAX_CHANNEL = 1 << 16

MAX_INSTANCES = 1 << 10
"""Parallel instances of one operation, over all fragments that it lies in."""


class Tracer:
    """Records one program. Active between ``start`` and ``stop``, in the thread (context) that started it."""

    def __init__(self, name: str, collective: Collective, protocol: str, topology: Topology | None = None) -> None:
        self.collective = collective
        self._topology = topology
        self.factor = 1
        self._ranks = collective.size
        self._builder = ChunkDagBuilder(name, collective, protocol)
        self._hints: dict[tuple[int | None, int, Storage | None], Hints] = {}
        self._places: dict[tuple[int, str, int, int], tuple[Span, Span]] = {}
        self._token: Token[Tracer | None] | None = None

    def start(self) -> None:
        self._token = _active.set(self)

    def stop(self) -> None:
        assert self._token is not None
        _active.reset(self._token)
        self._token = None

    def chunk_dag(self) -> ChunkDag:
        return self._builder.build()

    def reference(self, rank: Position, buffer: str, index: Position, count: SupportsIndex, site: Site) -> Ref:
        span, physical = self._place(rank, buffer, index, count, site)
        missing = self._builder.unwritten(physical)
        if missing is not None:
            raise UninitializedChunk(span.rank, span.buffer, span.index + missing, site)
        return Ref(self, span, physical, len(self._builder.nodes), site)

    def copy(self, source: Ref, rank: Position, buffer: str, index: Position, wishes: Wishes, site: Site) -> Ref:
        self._check_usable(source, site)
        span, physical = self._place(rank, buffer, index, source.span.count, site)
        self._check_apart("copy", source, span, physical, site)
        return self._add(Kind.COPY, source.physical, span, physical, wishes, site)

    def reduce(self, target: Ref, source: Ref, wishes: Wishes, site: Site) -> Ref:
        self._check_usable(target, site)
        self._check_usable(source, site)
        if target.span.count != source.span.count:
            raise CountMismatch(target.span.count, source.span.count, site, target.taken, source.taken)
        self._check_apart("reduce", source, target.span, target.physical, site)
        return self._add(Kind.REDUCE, source.physical, target.span, target.physical, wishes, site)

    def _add(self, kind: Kind, src: Span, span: Span, dst: Span, wishes: Wishes, site: Site) -> Ref:
        topology = self._topology
        if topology is not None and src.rank != dst.rank and topology.route(src.rank, dst.rank) is None:
            raise NoLink(topology.name, src.rank, dst.rank, site)
        ch, storage = wishes
        if ch is not None and type(ch) is not int:
            ch = _number("channel", ch, site)
        if storage is not None and not isinstance(storage, str):  # it may have no hash
            raise _no_storage(storage, site)
        key = ch, self.factor, storage
        hints = self._hints.get(key)
        if hints is None:
            if ch is not None and not 0 <= ch < MAX_CHANNEL:
                raise OutOfRange("channel", ch, 0, MAX_CHANNEL, site)
            if storage not in (None, *STORAGES):
                raise _no_storage(storage, site)
            hints = self._hints[key] = Hints(channel=ch, instances=self.factor, storage=storage)
        node = self._builder.add(kind, src, dst, hints, site)
        return Ref(self, span, dst, node + 1, site)

    def _place(
        self, rank: Position, buffer: str, index: Position, count: SupportsIndex, site: Site
    ) -> tuple[Span, Span]:
        """The span that a program names, and the memory that it is."""
        if not (type(rank) is type(index) is type(count) is int and type(buffer) is str):
            span = self._span(rank, buffer, index, count, site)
            rank, buffer, index, count = span.rank, span.buffer, span.index, span.count
        key = rank, buffer, index, count
        found = self._places.get(key)
        if found is None:
            span = self._span(rank, buffer, index, count, site)
            found = self._places[key] = span, self._builder.physical(span)
        return found

    def _span(self, rank: Position, buffer: str, index: Position, count: SupportsIndex, site: Site) -> Span:
        if not isinstance(buffer, str) or buffer not in BUFFERS:
            names = ", ".join(map(repr, BUFFERS))
            raise InvalidArgument(f"there is no buffer {buffer!r}", site, f"buffers are {names}")
        name: BufferName = buffer
        ranks = self._ranks
        r = rank if type(rank) is int else self._flatten("rank", rank, site)
        if not 0 <= r < ranks:
            raise OutOfRange("rank", r, 0, ranks, site)
        i = index if type(index) is int else self._flatten("index", index, site)
        n = count if type(count) is int else _number("count", count, site)
        size = self._builder.size(r, name)
        limit = MAX_SCRATCH if size is None else size
        if n < 1:
            raise OutOfRange("count", n, 1, None, site)
        if not 0 <= i < limit:
            raise OutOfRange("index", i, 0, limit, site, f"for {name!r} of rank {r}")
        if i + n > limit:
            raise OutOfRange("count", n, 1, limit - i + 1, site, f"for {name!r} of rank {r} from index {i}")
        return Span(r, name, i, n)

    def _flatten(self, what: str, position: Position, site: Site) -> int:
        if not isinstance(position, tuple):
            return _number(what, position, site)
        shape = self.collective.shape
        if len(position) != len(shape):
            raise InvalidArgument(
                f"a {what} of {len(position)} numbers, but the collective's ranks have the shape {shape}",
                site,
                "give the collective a shape, as in AllToAll((nodes, gpus))",
            )
        numbers = tuple(_number(what, part, site) for part in position)
        flat = 0
        for at, (n, extent) in enumerate(zip(numbers, shape, strict=True)):
            if not 0 <= n < extent:
                raise OutOfRange(what, n, 0, extent, site, f"at position {at} of {numbers}")
            flat = flat * extent + n
        return flat

    def _check_usable(self, ref: Ref, site: Site) -> None:
        if not isinstance(ref, Ref):
            raise InvalidArgument(f"a reference to chunks is needed here, not {ref!r}", site)
        active = _active.get()
        if active is None:
            help_ = "use it inside of the `with` block that it was taken in"
            raise OutsideProgram("this reference", "is used outside of its program", site, help_, ref.taken)
        if active is not self or ref.tracer is not self:
            help_ = "take a reference in this program, with chunk(...)"
            raise OutsideProgram("this reference", "belongs to another program", site, help_, ref.taken)
        written = ref.born < len(self._builder.nodes)  # else nothing has been since
        found = self._builder.overwritten(ref.physical, ref.born) if written else None
        if found is not None:
            i, writer = found
            overwritten = self._builder.nodes[writer].where
            assert overwritten is not None
            span, index = ref.span, ref.span.index + i
            alias = f"{ref.physical.buffer}[{ref.physical.index + i}]" if ref.physical != span else None
            raise StaleChunk(span.rank, span.buffer, index, ref.taken, overwritten, site, alias)

    def _check_apart(self, operation: str, source: Ref, span: Span, dst: Span, site: Site) -> None:
        """Whether a source shares no chunk with the destination ``span``, whose memory is ``dst``."""
        src = source.physical
        if src.rank == dst.rank and src.buffer == dst.buffer:
            first = max(src.index, dst.index)
            if first < min(src.index + src.count, dst.index + dst.count):
                index = source.span.index + first - src.index
                other = f"{span.buffer}[{span.index + first - dst.index}]"
                alias = other if span.buffer != source.span.buffer else None
                raise Overlap(operation, src.rank, source.span.buffer, index, site, source.taken, src == dst, alias)


_active: ContextVar[Tracer | None] = ContextVar("hocket_tracer", default=None)


class Ref(Struct, frozen=True, eq=False, gc=False):
    """The chunks that a place holds now; it goes stale when the place is overwritten (paper section 3.3)."""

    tracer: Tracer
    span: Span
    physical: Span
    born: int
    taken: Where

    def copy(
        self,
        rank: Position,
        buffer: str,
        index: Position | None = None,
        count: SupportsIndex | None = None,
        *,
        ch: int | None = None,
        sz: SupportsIndex | None = None,
        storage: Storage | None = None,
    ) -> Ref:
        """Copy these chunks to ``buffer[index]`` of ``rank`` and return a reference to the copy.

        Without an index the same one is meant. ``count`` (or ``sz``), if given, must be that of this reference.
        ``ch`` is the channel on which the chunks travel. ``storage`` is what is best where the program is compiled for
        storage "peer": that the sender stores to the receiver's memory ("push"), the receiver reads the sender's
        ("pull"), or that the chunks go through a slot of the connection ("fifo").
        """
        site = caller()
        for given in (count, sz):
            if given is not None and (n := _number("count", given, site)) != self.span.count:
                raise CountMismatch(self.span.count, n, site, self.taken)
        return self.tracer.copy(self, rank, buffer, self.span.index if index is None else index, (ch, storage), site)

    def reduce(self, other: Ref, *, ch: int | None = None, storage: Storage | None = None) -> Ref:
        """Add ``other`` to these chunks, in place, and return a reference to the result. ``storage``: see ``copy``."""
        return self.tracer.reduce(self, other, (ch, storage), caller())

    def __repr__(self) -> str:
        return f"<chunks rank {self.span.rank} {self.span}>"


def chunk(
    rank: Position, buffer: str, index: Position, count: SupportsIndex = 1, *, sz: SupportsIndex | None = None
) -> Ref:
    """A reference to ``count`` chunks from ``buffer[index]`` of ``rank``, as the program has left them so far.

    Buffers are ``"in"``, ``"out"`` and ``"sc"`` (scratch). Raises OutOfRange, UninitializedChunk or OutsideProgram.
    """
    site = caller()
    tracer = _active.get()
    if tracer is None:
        raise OutsideProgram("chunk()", "was called while no program is being traced", site)
    return tracer.reference(rank, buffer, index, count if sz is None else sz, site)


def parallelize(n: SupportsIndex) -> AbstractContextManager[None]:
    """Split every operation of the block into ``n`` instances that run in parallel (paper section 5.1)."""
    site = caller()
    tracer = _active.get()
    if tracer is None:
        raise OutsideProgram("parallelize()", "was called while no program is being traced", site)
    factor = _number("parallelize", n, site)
    if not 1 <= factor <= MAX_INSTANCES // tracer.factor:
        raise OutOfRange("parallelize", factor, 1, MAX_INSTANCES // tracer.factor + 1, site)
    return _fragment(tracer, factor)


@contextmanager
def _fragment(tracer: Tracer, factor: int) -> Iterator[None]:
    outer = tracer.factor
    tracer.factor = outer * factor
    try:
        yield
    finally:
        tracer.factor = outer


def _no_storage(storage: object, site: Site) -> InvalidArgument:
    return InvalidArgument(f"there is no storage {storage!r}", site, f"storages are {', '.join(map(repr, STORAGES))}")


def _number(what: str, value: object, site: Site) -> int:
    number = value if type(value) is int else whole(value)
    if number is None:
        raise InvalidArgument(f"{what} must be a whole number, not {value!r}", site)
    return number
