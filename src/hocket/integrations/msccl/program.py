"""A program of msccl-tools: its operations, the buffers they work on, and what they compile to.

Operations are kept while the program is traced; when it is to be compiled they become a Chunk DAG of hocket's, with the
scratch buffers of a rank laid out one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Self

from hocket import collectives
from hocket.collectives import BufferName, whole
from hocket.errors import (
    CheckFailed,
    Deadlock,
    InvalidArgument,
    OutOfRange,
    OutsideProgram,
    Overlap,
    PostconditionFailed,
    Race,
    Site,
    Unsupported,
    caller,
)
from hocket.formats import msccl_xml
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_targets import SLOTS
from hocket.formats.placement import single_operations
from hocket.integrations.msccl.blocks import Wish, rearrange
from hocket.integrations.msccl.chunks import Buffer, buffer_name
from hocket.integrations.msccl.collectives import Collective, checks_itself, known, share_memory
from hocket.integrations.msccl.lowered import Program, lowered
from hocket.integrations.msccl.topologies import Topology
from hocket.integrations.msccl.traced import as_traced
from hocket.ir.chunk_dag import ChunkDag, ChunkDagBuilder, Hints, Kind, Span
from hocket.ir.schedule import Schedule
from hocket.language import MAX_CHANNEL, MAX_INSTANCES
from hocket.program import compile_chunks
from hocket.verify import Contract, check_program, proven


class ThreadblockPolicy(Enum):
    """Who chooses thread blocks: hocket, or ``sendtb`` and ``recvtb``."""

    auto = "auto"
    manual = "manual"

    def __str__(self) -> str:
        return self.value


MAX_BLOCK = 1 << 16
"""Thread blocks are told apart by numbers below this."""

Write = Callable[[Schedule, str], str]
"""What XML() prints of a schedule for a protocol, Simple, LL or LL128."""


def _write(schedule: Schedule, protocol: str) -> str:
    return msccl_xml.write(schedule, protocol=protocol)


class Place(NamedTuple):
    """A chunk's place, under the one name it has: the index ``at`` in a buffer."""

    rank: int
    buffer: Hashable
    at: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, on ``count`` chunks from each place on. Thread blocks and channel as the user gave them."""

    kind: Kind
    src: Place
    dst: Place
    count: int
    channel: int | None
    send_block: int | None
    receive_block: int | None
    site: Site


class MSCCLProgram:
    """A program, written as the body of a ``with`` statement.

    ``check_xml`` and ``dependence_nop`` change nothing: schedules are always proven, and dependencies always written in
    the way that runtimes take.
    """

    def __init__(
        self,
        name: str,
        topo: Topology,
        collective: Collective,
        instances: int,
        protocol: str = "Simple",
        threadblock_policy: ThreadblockPolicy = ThreadblockPolicy.auto,
        interleaved_replication: bool = True,
        instr_fusion: bool = True,
        check_xml: bool = True,
        dependence_nop: bool = False,
    ) -> None:
        site = caller()
        if not isinstance(collective, Collective):
            raise InvalidArgument(f"a program implements a collective such as AllReduce, not {collective!r}", site)
        if protocol not in SLOTS:
            raise InvalidArgument(f"there is no protocol {protocol!r}", site, f"protocols are {', '.join(SLOTS)}")
        if topo.num_nodes() != collective.num_ranks:
            raise InvalidArgument(
                f"the topology has {topo.num_nodes()} ranks, the collective {collective.num_ranks}", site
            )
        if not 1 <= number("instances", instances, site) <= MAX_INSTANCES:
            raise OutOfRange("instances", instances, 1, MAX_INSTANCES + 1, site)
        self.name = name
        self.topo = topo
        self.collective = collective
        self.num_ranks = topo.num_nodes()
        self.instances = number("instances", instances, site)
        self.protocol = protocol
        self.threadblock_policy = threadblock_policy
        self.interleaved_replication = interleaved_replication
        self.instr_fusion = instr_fusion
        self.check_xml = check_xml
        self.dependence_nop = dependence_nop
        self.operations: list[Operation] = []
        self.refused = False
        """Whether the last Check() said no."""
        self._known = known(collective)
        self.buffers = collective.init_buffers()
        self._in_place = self._known is None and share_memory(collective, self.buffers, site)
        self._written: dict[Place, tuple[int, Site]] = {}
        self._reproducible = _reproducible.get()
        self._compiled: tuple[int, Schedule] | None = None

    def __enter__(self) -> Self:
        if _current.get() is not None:
            raise OutsideProgram("this program", "is inside of another", caller(), "end the other `with` block first")
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.set(None)
        finished = _finished.get()
        if kind is None and finished is not None:
            finished.append(self)

    # Tracing ------------------------------------------------------------------------------------------------

    def place(self, rank: int, buffer: Hashable, index: int, size: int, site: Site) -> Place:
        """Where ``size`` chunks begin; that they exist is checked, not that they hold something."""
        rank, index, size = number("rank", rank, site), number("index", index, site), number("size", size, site)
        if not 0 <= rank < self.num_ranks:
            raise OutOfRange("rank", rank, 0, self.num_ranks, site)
        if size < 1:
            raise OutOfRange("size", size, 1, None, site)
        limit = None
        if buffer is Buffer.input or buffer is Buffer.output:
            limit = len(self.buffers[rank].get(buffer, ()))
        if index < 0 or (limit is not None and index + size > limit):
            context = f"for {buffer_name(buffer)!r} of rank {rank}"
            if limit is None or not 0 <= index < limit:
                raise OutOfRange("index", index, 0, limit, site, context)
            raise OutOfRange("size", size, 1, limit - index + 1, site, f"{context} from index {index}")
        buffer, index = self.collective.get_buffer_index(rank, buffer, index)
        if buffer is Buffer.output and self._in_place:
            buffer = Buffer.input
        return Place(rank, buffer, index)

    def scratch_size(self, rank: int, buffer: Hashable) -> int:
        return len(self.buffers[rank].get(buffer, ()))

    def written(self, place: Place) -> tuple[int, Site] | None:
        """The last operation, by number, that wrote to a place, and where it stands; None for none."""
        return self._written.get(place)

    def add(
        self, kind: Kind, src: Place, dst: Place, size: int, blocks: tuple[int, int], ch: int, taken: Site, site: Site
    ) -> None:
        """Keep an operation and do it on the buffers. ``taken``: where the reference to what is read comes from."""
        if src[:2] == dst[:2] and abs(src.at - dst.at) < size:
            shared = max(src.at, dst.at)
            verb = "copy" if kind is Kind.COPY else "reduce"
            raise Overlap(verb, src.rank, buffer_name(src.buffer), shared, site, taken, src == dst)
        if src.rank != dst.rank and not self.topo.link(src.rank, dst.rank):
            raise InvalidArgument(f"{self.topo.name} has no link from rank {src.rank} to rank {dst.rank}", site)
        operation = Operation(
            kind,
            src,
            dst,
            size,
            _optional("channel", ch, MAX_CHANNEL, site),
            _optional("thread block", blocks[0], MAX_BLOCK, site),
            _optional("thread block", blocks[1], MAX_BLOCK, site),
            site,
        )
        read, held = self.buffers[src.rank][src.buffer], self.buffers[dst.rank].setdefault(dst.buffer, [])
        held.extend([None] * (dst.at + size - len(held)))
        for i in range(size):
            value, before = read[src.at + i], held[dst.at + i]
            assert value is not None, "references are to chunks that hold something, and nothing becomes empty"
            if kind is Kind.REDUCE:
                assert before is not None
                value = before.reduce(dst.rank, value)
            held[dst.at + i] = value
            self._written[dst._replace(at=dst.at + i)] = len(self.operations), site
        self.operations.append(operation)

    # What it came to ----------------------------------------------------------------------------------------

    def check(self) -> bool | None:
        """What ``Collective.check`` says."""
        return self.collective.check(self)

    def refuted(self, contract: collectives.Collective) -> PostconditionFailed | None:
        """Why the program, so far, does not do what a collective of hocket's promises; None if it does."""
        try:
            check_program(self._chunk_dag(contract))
        except PostconditionFailed as error:
            return error
        return None

    def schedule(self) -> Schedule:
        """The program, so far, as a proven schedule.

        Raises PostconditionFailed, CheckFailed, Unsupported, ThreadBlockConflict or ChannelConflict.
        """
        if self._compiled is None or self._compiled[0] != len(self.operations):
            self._compiled = len(self.operations), self._compile()
        return self._compiled[1]

    def generate_xml(self) -> str:
        """The schedule as the XML that MSCCL's runtimes read. Raises what ``schedule`` raises, and TargetLimit."""
        write = _writer.get()
        try:
            return write(self.schedule(), self.protocol)
        except (Deadlock, Race):
            # A transfer of several chunks may be as many of MSCCL's: then the compiler has to know them.
            return write(self._compile(single=True), self.protocol)

    def lower(self) -> Program:
        """What XML() prints, as objects. Raises what ``generate_xml`` raises."""
        return lowered(parse_document(self.generate_xml()))

    def _compile(self, *, single: bool = False) -> Schedule:
        """A schedule; ``single`` cuts operations into those of one chunk."""
        wishes: dict[int, Wish] = {}
        dag = self._chunk_dag(self._contract(), self.instances, wishes)
        chunks = single_operations(dag) if single else dag
        contract = self._reproducible
        schedule = compile_chunks(chunks, slots=SLOTS[self.protocol], opcodes=True, reproducible=contract)
        if wishes or not self.instr_fusion:
            schedule, _ = proven(rearrange(schedule, wishes, self.instr_fusion), contract)
        return schedule

    def _contract(self) -> collectives.Collective:
        """What the schedule has to keep: hocket's collective, or else what the user's check() has accepted."""
        if self._known is not None and not checks_itself(self.collective):
            return self._known
        if checks_itself(self.collective) and not self.check():
            raise CheckFailed(type(self.collective).__name__, caller())
        if self._known is not None and self.refuted(self._known) is None:
            return self._known
        return self._as_traced()

    def _as_traced(self) -> collectives.Collective:
        """A collective that promises what this program does, chunk by chunk of the output."""
        sizes = [[len(held.get(buffer, ())) for held in self.buffers] for buffer in (Buffer.input, Buffer.output)]
        in_place = self._in_place
        if self._known is not None:
            in_place = self._known.inplace
            if in_place and sizes[0] != sizes[1]:
                raise Unsupported(
                    f"a check() of its own on an in-place {self._known.name}, where it accepts something else",
                    caller(),
                    "give it inplace=False, or derive from Collective",
                )
        elif not in_place and not self._uses(Buffer.output) and (self.collective.inplace or not any(sizes[1])):
            # Nothing is ever in the output: what is checked is the input, which is the output at run time.
            in_place, sizes[1] = True, sizes[0]

        anything = collectives.Custom(
            self.num_ranks, inputs=sizes[0], outputs=sizes[1], post=lambda rank, index: None, inplace=in_place
        )
        return as_traced(self._chunk_dag(anything))

    def _uses(self, buffer: Buffer) -> bool:
        return any(buffer in (operation.src.buffer, operation.dst.buffer) for operation in self.operations)

    def _chunk_dag(
        self, contract: collectives.Collective, copies: int = 1, wishes: dict[int, Wish] | None = None
    ) -> ChunkDag:
        """All operations on the buffers of ``contract``; every chunk is cut in as many as there are ``copies``.

        Interleaved, copy j works on the j-th part of each chunk. Else the buffers are cut, and a copy works on its part
        as the program does on the whole; only for AllReduce is that the same, so only there it is done.
        """
        interleaved = self.interleaved_replication or not isinstance(contract, collectives.AllReduce)
        builder = ChunkDagBuilder(self.name, contract.refined(copies), "auto")
        first: list[dict[Hashable, tuple[BufferName, int]]] = []
        for held in self.buffers:
            first.append({Buffer.input: ("in", 0), Buffer.output: ("out", 0)})
            end = 0
            for buffer, values in held.items():
                if buffer not in first[-1]:
                    first[-1][buffer] = "sc", end
                    end += len(values)

        def chunks(place: Place, count: int, copy: int) -> list[Span]:
            buffer, start = first[place.rank][place.buffer]
            if interleaved and copies > 1:  # a step of MSCCL's has chunks that lie side by side
                indices, count = [(start + place.at + i) * copies + copy for i in range(count)], 1
            else:
                share = len(self.buffers[place.rank][place.buffer])
                indices = [start * copies + share * copy + place.at]
            return [builder.physical(Span(place.rank, buffer, index, count)) for index in indices]

        manual = self.threadblock_policy is ThreadblockPolicy.manual
        for operation in self.operations:
            channel = 0 if manual and operation.channel is None else operation.channel
            for copy in range(copies):
                where = Site(operation.site.code, operation.site.lasti)
                if wishes is not None and manual:
                    blocks = (operation.send_block, operation.receive_block)
                    if blocks != (None, None):
                        wishes[id(where)] = Wish(*(None if block is None else (block, copy) for block in blocks))
                hints = Hints(channel, instance=copy if copies > 1 else None)
                spans = (chunks(place, operation.count, copy) for place in (operation.src, operation.dst))
                for src, dst in zip(*spans, strict=True):
                    builder.add(operation.kind, src, dst, hints, where)
        return replace(builder.build(), refinement=copies)


def current() -> MSCCLProgram | None:
    """The program whose block is being run."""
    return _current.get()


@contextmanager
def recording(finished: list[MSCCLProgram], write: Write, reproducible: Contract | None) -> Iterator[None]:
    """Every program that ends meanwhile is added to ``finished``, and XML() prints what ``write`` makes of it.

    ``reproducible`` is what they must keep, as of ``hocket.Program``.
    """
    tokens = _finished.set(finished), _writer.set(write), _reproducible.set(reproducible), _current.set(None)
    try:
        yield
    finally:
        _finished.reset(tokens[0])
        _writer.reset(tokens[1])
        _reproducible.reset(tokens[2])
        _current.reset(tokens[3])


_current: ContextVar[MSCCLProgram | None] = ContextVar("hocket_msccl_program", default=None)
_finished: ContextVar[list[MSCCLProgram] | None] = ContextVar("hocket_msccl_finished", default=None)
_writer: ContextVar[Write] = ContextVar("hocket_msccl_writer", default=_write)
_reproducible: ContextVar[Contract | None] = ContextVar("hocket_msccl_reproducible", default=None)


def number(what: str, value: object, site: Site) -> int:
    if type(value) is int:  # nearly always, and soon found out
        return value
    found = whole(value)
    if found is None:
        raise InvalidArgument(f"{what} must be a whole number, not {value!r}", site)
    return found


def _optional(what: str, value: object, limit: int, site: Site) -> int | None:
    """A number, or None for the -1 that stands for no wish."""
    wish = number(what, value, site)
    if wish == -1:
        return None
    if not 0 <= wish < limit:
        raise OutOfRange(what, wish, 0, limit, site)
    return wish
