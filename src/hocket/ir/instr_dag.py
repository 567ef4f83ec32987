"""Instruction DAG: instructions of single ranks, joined by edges (paper section 4.2).

An instruction is ``dsts = reduce(srcs)``: it reads each source once, combines them, and writes the result to each
destination. An operand is a local span of chunks or one end of a communication edge. The paper's eight opcodes are
eight shapes of this form (``opcode``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from operator import attrgetter

from msgspec import Struct

from hocket.collectives import Collective
from hocket.errors import InvalidSchedule, Where
from hocket.ir.chunk_dag import Sizes, Span, Storage, buffer_sizes, misplaced


class Arrival(Struct, frozen=True, gc=False):
    """Operand: the receiving end of a communication edge."""

    edge: int

    def __str__(self) -> str:
        return f"<{self.edge}"


class Departure(Struct, frozen=True, gc=False):
    """Operand: the sending end of a communication edge."""

    edge: int

    def __str__(self) -> str:
        return f">{self.edge}"


Source = Span | Arrival
Destination = Span | Departure

Shape = tuple[int, int, int, int]
"""Received, local sources; sent, local destinations."""

OPCODES: dict[Shape, str] = {
    (0, 1, 1, 0): "send",
    (1, 0, 0, 1): "recv",
    (0, 1, 0, 1): "copy",
    (0, 2, 0, 1): "reduce",
    (1, 1, 0, 1): "rrc",
    (1, 0, 1, 1): "rcs",
    (1, 1, 1, 0): "rrs",
    (1, 1, 1, 1): "rrcs",
}
"""The paper's names for the shapes it knows (Table 1 and section 4.2)."""


def opcode(shape: Shape) -> str:
    """The paper's name of a shape, or a spelled-out one for the general form."""
    named = OPCODES.get(shape)
    return named if named is not None else "r{}l{}-s{}l{}".format(*shape)


class Instr(Struct, frozen=True, eq=False, gc=False):
    """What one instruction does. ``where`` names the operations it came from, in order."""

    rank: int
    srcs: tuple[Source, ...]
    dsts: tuple[Destination, ...]
    where: tuple[Where, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Instr and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        """All but where."""
        return self.rank, self.srcs, self.dsts

    @property
    def arrivals(self) -> tuple[int, ...]:
        return tuple([s.edge for s in self.srcs if type(s) is Arrival])

    @property
    def departures(self) -> tuple[int, ...]:
        return tuple([d.edge for d in self.dsts if type(d) is Departure])

    @property
    def shape(self) -> Shape:
        received, sent = len(self.arrivals), len(self.departures)
        return received, len(self.srcs) - received, sent, len(self.dsts) - sent


class Edge(Struct, frozen=True, eq=False, gc=False):
    """A communication edge: one transfer of ``count`` chunks between two ranks.

    ``base`` is the channel the user asked for, or has been given, before instances are told apart; instance j of a
    program refined L times lies on channel ``base * L + j``. None: not assigned yet. ``storage`` is what the user would
    rather have; ``at`` is where the message lies, if not in a slot (``ir/schedule.py``).
    """

    src: int
    dst: int
    count: int
    base: int | None
    instance: int
    where: Where | None = None
    storage: Storage | None = None
    at: Span | None = None

    def __eq__(self, other: object) -> bool:
        return type(other) is Edge and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        """All but where."""
        return self.src, self.dst, self.count, self.base, self.instance, self.storage, self.at


@dataclass(frozen=True, slots=True)
class InstrDag:
    """``instrs`` are in a topological order of all edges; that order is the schedule's once ``order`` has run.

    ``after[i]`` are the processing edges of instruction i: those of the same rank, ascending, that must come first.
    ``blocks[i]`` is its thread block; empty until they are assigned. ``refinement`` is the number of chunks each chunk
    of the user was cut into (L above).
    """

    name: str
    collective: Collective
    protocol: str
    refinement: int
    instrs: tuple[Instr, ...]
    after: tuple[tuple[int, ...], ...]
    edges: tuple[Edge, ...]
    scratch: tuple[int, ...]
    blocks: tuple[int, ...] = ()

    def channel(self, edge: int) -> int | None:
        e = self.edges[edge]
        return None if e.base is None else e.base * self.refinement + e.instance


Ends = list[int | None]
"""For each instruction the edge at which it receives, or at which it sends; None where it does not."""


def ends(dag: InstrDag) -> tuple[Ends, Ends]:
    """Arrivals and departures of a DAG made by the compiler: at most one of each an instruction, named first."""
    sources = [instr.srcs[0] for instr in dag.instrs]
    targets = [instr.dsts[0] for instr in dag.instrs]
    return (
        [source.edge if type(source) is Arrival else None for source in sources],
        [target.edge if type(target) is Departure else None for target in targets],
    )


def at_edges(edges: int, ends: Ends) -> list[int]:
    """The inverse: for each edge the instruction at this end of it."""
    found = [0] * edges
    for i, edge in enumerate(ends):
        if edge is not None:
            found[edge] = i
    return found


_CONNECTION = attrgetter("src", "dst", "base", "instance")


def connections(dag: InstrDag) -> list[int]:
    """For each edge a number for its connection, from 0 in the order of first use: transfers between the same ranks on
    one channel share it."""
    numbers: defaultdict[tuple[int, int, int | None, int], int] = defaultdict(count().__next__)
    return [numbers[key] for key in map(_CONNECTION, dag.edges)]


def depths_to_leaf(dag: InstrDag, departures: Ends, receiver: list[int]) -> list[int]:
    """Reverse depth: the longest path from each instruction to a leaf, over communication and processing edges."""
    depth = [0] * len(dag.instrs)
    for i in range(len(dag.instrs) - 1, -1, -1):
        edge = departures[i]
        here = depth[i]
        if edge is not None and depth[receiver[edge]] >= here:
            here = depth[i] = depth[receiver[edge]] + 1
        for before in dag.after[i]:
            if depth[before] <= here:
                depth[before] = here + 1
    return depth


def verify(dag: InstrDag) -> None:
    """Raise InvalidSchedule if the DAG breaks a rule of its own form."""
    ranks = dag.collective.size
    if dag.refinement < 1 or len(dag.scratch) != ranks:
        raise InvalidSchedule(f"{len(dag.scratch)} sizes of scratch for {ranks} ranks, refinement {dag.refinement}")
    if len(dag.after) != len(dag.instrs) or (dag.blocks and len(dag.blocks) != len(dag.instrs)):
        raise InvalidSchedule("not every instruction has its processing edges and, once assigned, its thread block")
    sizes = buffer_sizes(dag.collective, dag.scratch)
    for number, edge in enumerate(dag.edges):
        _check_edge(dag, number, edge, sizes)
    sent: list[int | None] = [None] * len(dag.edges)
    received: list[int | None] = [None] * len(dag.edges)
    for i, instr in enumerate(dag.instrs):
        if any(not 0 <= d < i or dag.instrs[d].rank != instr.rank for d in dag.after[i]):
            raise InvalidSchedule(f"instruction {i} comes after one that is not before it on its rank")
        if not instr.srcs or not instr.dsts:
            raise InvalidSchedule(f"instruction {i} has no source or no destination")
        counts = set()
        for operand in (*instr.srcs, *instr.dsts):
            if isinstance(operand, Span):
                counts.add(_checked_span(i, instr, operand, sizes))
            else:
                counts.add(_checked_end(dag, i, operand, received if type(operand) is Arrival else sent))
        if len(counts) != 1:
            raise InvalidSchedule(f"instruction {i} mixes spans of {sorted(counts)} chunks")
    for number, (s, r) in enumerate(zip(sent, received, strict=True)):
        if s is None or r is None or s >= r:
            raise InvalidSchedule(f"edge {number} is not sent before it is received")


def _check_edge(dag: InstrDag, number: int, edge: Edge, sizes: Sizes) -> None:
    ranks = dag.collective.size
    if not (0 <= edge.src < ranks and 0 <= edge.dst < ranks and edge.src != edge.dst and edge.count >= 1):
        raise InvalidSchedule(f"edge {number} moves {edge.count} chunks from rank {edge.src} to rank {edge.dst}")
    if not 0 <= edge.instance < dag.refinement:
        raise InvalidSchedule(f"edge {number} is of instance {edge.instance}, there are {dag.refinement}")
    if edge.at is not None:
        if edge.at.rank not in (edge.src, edge.dst) or edge.at.count != edge.count:
            raise InvalidSchedule(f"edge {number} moves {edge.count} chunks through {edge.at} of rank {edge.at.rank}")
        if wrong := misplaced(edge.at, sizes):
            raise InvalidSchedule(f"edge {number}: {wrong}")


def _checked_span(i: int, instr: Instr, span: Span, sizes: Sizes) -> int:
    """The chunks of a local operand of instruction i."""
    if wrong := misplaced(span, sizes):
        raise InvalidSchedule(f"instruction {i}: {wrong}")
    if span.rank != instr.rank:
        raise InvalidSchedule(f"instruction {i} of rank {instr.rank} uses memory of rank {span.rank}")
    return span.count


def _checked_end(dag: InstrDag, i: int, end: Arrival | Departure, ends: list[int | None]) -> int:
    """The chunks that instruction i sends or receives, which is noted in ``ends``, by edge."""
    if not 0 <= end.edge < len(dag.edges) or ends[end.edge] is not None:
        raise InvalidSchedule(f"instruction {i}: edge {end.edge} is missing or used twice")
    edge = dag.edges[end.edge]
    if (edge.dst if type(end) is Arrival else edge.src) != dag.instrs[i].rank:
        raise InvalidSchedule(f"instruction {i} is not at the end of edge {end.edge}")
    ends[end.edge] = i
    return edge.count
