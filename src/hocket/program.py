"""Program: trace, compile, prove. The facade of the compiler."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from types import TracebackType
from typing import Self

from hocket.collectives import BufferName, Collective, members, whole
from hocket.compiler.pipeline import Observer, Options, run_passes
from hocket.errors import InvalidArgument, NoLink, OutsideProgram, caller
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.collector import collector_paused
from hocket.ir.schedule import PROTOCOLS, Schedule
from hocket.ir.text import print_stage
from hocket.language import MAX_INSTANCES, Tracer, chunk
from hocket.topology import Topology
from hocket.verify import CONTRACTS, check_program, proven
from hocket.verify import Contract as Contract

STORAGES = ("fifo", "peer")
"""Where a compiled program's messages lie: all in slots, or in place where they can."""


Send = tuple[int, int, int, int] | tuple[int, int, int, int, str]
"""Of a solver: step, chunk, source, target, and "reduce" where the target adds it to its own."""


class Program:
    """A collective algorithm, written as the body of a ``with`` statement (paper section 3).

    ``name`` is what pictures and errors call it; ``protocol`` is how arrival is signalled ("auto" lets the runtime
    choose); ``instances`` replicates the whole program (paper section 5.1). ``reproducible`` is a contract on the bits
    of its sums that it must keep (``hocket.verify.Contract``), by default "across-ranks" for an AllReduce. With a
    ``topology``, a transfer between ranks that no link of it joins raises NoLink.
    """

    def __init__(
        self,
        collective: Collective,
        *,
        name: str | None = None,
        protocol: str = "auto",
        instances: int = 1,
        reproducible: Contract | None = None,
        topology: Topology | None = None,
    ) -> None:
        if not isinstance(collective, Collective):
            raise InvalidArgument(
                f"a program implements a collective such as AllReduce(4), not {collective!r}", caller()
            )
        self.collective = collective
        if name is not None and not isinstance(name, str):
            raise InvalidArgument(f"a program's name is a string, not {name!r}", caller())
        self.name = name if name is not None else collective.name
        self.protocol = _protocol(protocol)
        self.instances = _positive("instances", instances, MAX_INSTANCES)
        self.reproducible = _contract(reproducible)
        if topology is not None and not isinstance(topology, Topology):
            raise InvalidArgument(f"a topology is one of hocket.topology, such as ndv4(), not {topology!r}", caller())
        if topology is not None and topology.ranks < collective.size:
            raise InvalidArgument(f"{topology.name} has {topology.ranks} ranks, not {collective.size}", caller())
        self._tracer = Tracer(self.name, collective, self.protocol, topology)
        self._pause = ExitStack()
        self._state = "new"

    @classmethod
    def from_sends(
        cls,
        collective: Collective,
        sends: Iterable[Send],
        *,
        name: str | None = None,
        topology: Topology | None = None,
    ) -> Program:
        """The program that the output of a solver (SCCL, TACCL, TE-CCL, TACOS) stands for: sends of single chunks.

        ``sends`` are (step, chunk, source, target), or (step, chunk, source, target, "reduce") where the target adds
        the chunk to its own. All sends of a step read what was there before it, so that two ranks may exchange what
        they have; what arrives at one place in one step arrives in the order of the list. Where data only moves, chunks
        are numbered through the inputs of all ranks, those of rank 0 first; where it is summed, a chunk is a place of
        the input that all ranks have. Whether the collective comes of it, ``compile`` proves.
        Raises InvalidArgument or NoLink with the position of the send in ``sends``, from 0.
        """
        program = cls(collective, name=name, topology=topology)
        read = _read_sends(collective, sends, topology)
        with program:
            places = _Places(collective)
            for _, step in groupby(sorted(read, key=lambda sent: sent.step), key=lambda sent: sent.step):
                places.trace(list(step))
            places.copy_to_outputs()
        return program

    def __enter__(self) -> Self:
        if self._state != "new":
            raise OutsideProgram(
                "this program", "has been traced already", caller(), "make a new one, in a function that returns it"
            )
        self._state = "tracing"
        self._pause.enter_context(collector_paused())
        self._tracer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tracer.stop()
        self._pause.close()
        self._state = "traced"

    def __repr__(self) -> str:
        dag = self.chunk_dag
        return f"<Program {self.name!r}: {self.collective}, {len(dag.nodes) - self.collective.size} operations>"

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def text(self) -> str:
        """The text of its Chunk DAG: each operation, and what it depends on."""
        return print_stage(self.chunk_dag)

    def draw(self, path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None) -> None:
        """Write a picture of its Chunk DAG, on all ranks or on some: .svg, .png or .pdf.

        It shows what the program says, so a wrong one can be drawn too; ``compile().draw(path)`` shows what runs.
        """
        from hocket.formats.picture import draw

        draw(self.chunk_dag, Path(path), ranks)

    def _repr_svg_(self) -> str:
        """The picture in a notebook."""
        from hocket.formats.picture import svg

        return svg(self.chunk_dag)

    @property
    def chunk_dag(self) -> ChunkDag:
        """What the program says: its Chunk DAG (paper section 4.1), whether or not it is correct."""
        return self._tracer.chunk_dag()

    def compile(
        self,
        *,
        protocol: str | None = None,
        instances: int | None = None,
        reproducible: Contract | None = None,
        slots: int = 2,
        opcodes: bool = False,
        storage: str = "fifo",
        observer: Observer | None = None,
    ) -> Schedule:
        """Compile to a schedule that is proven: postcondition, no race, no deadlock with ``slots`` or more slots.

        ``protocol``, ``instances`` and ``reproducible`` override the program's. The least number of slots that the
        schedule needs, at most ``slots``, is found and recorded in it. ``opcodes``: only instructions that the paper
        has a name for, and one connection each way in a thread block, for runtimes that have no others.
        ``storage="peer"``: messages lie in the input or output of one of their two ranks wherever they can, for arrays
        that other ranks can reach (``Communicator.empty``); all others, and all with "fifo", go through slots.
        ``observer(name, before, after, seconds)`` sees every pass.
        Raises PostconditionFailed with the lines that made it so, SumsDiffer if the program does not keep its contract.
        """
        if self._state == "tracing":
            raise OutsideProgram(
                "compile()", "was called inside of the program it compiles", caller(), "call it after the `with` block"
            )
        dag = replace(self.chunk_dag, protocol=_protocol(protocol) if protocol is not None else self.protocol)
        factor = self.instances if instances is None else _positive("instances", instances, MAX_INSTANCES)
        return compile_chunks(
            dag,
            instances=factor,
            slots=_positive("slots", slots),
            opcodes=opcodes,
            in_place=_in_place(storage, opcodes),
            reproducible=self.reproducible if reproducible is None else _contract(reproducible),
            observer=observer,
        )


@dataclass(frozen=True, slots=True)
class _Sent:
    """A send of a solver; ``number`` is its position in the list."""

    number: int
    step: int
    chunk: int
    source: int
    target: int
    adds: bool


def _chunks(collective: Collective) -> int:
    """How many chunks the sends of a collective may name: places where it sums, otherwise inputs of all ranks."""
    inputs = [collective.inputs(rank) for rank in range(collective.size)]
    return max(inputs) if collective.reduces() else sum(inputs)


def _read_sends(collective: Collective, sends: Iterable[Send], topology: Topology | None) -> list[_Sent]:
    if not isinstance(sends, Iterable):
        raise InvalidArgument(f"sends are a list of (step, chunk, source, target), not {sends!r}", caller())
    limits = (None, _chunks(collective), collective.size, collective.size)
    read = [_read_send(number, send, limits) for number, send in enumerate(sends)]
    for sent in read:
        if topology is not None and topology.route(sent.source, sent.target) is None:
            raise NoLink(topology.name, sent.source, sent.target, caller(), sent.number)
    return read


def _read_send(number: int, send: object, limits: Sequence[int | None]) -> _Sent:
    words = tuple(send) if isinstance(send, Iterable) and not isinstance(send, str) else ()
    if len(words) not in (4, 5):
        form = '(step, chunk, source, target) or (step, chunk, source, target, "reduce")'
        raise InvalidArgument(f"send {number} must be {form}, not {send!r}", caller())
    numbers: list[int] = []
    for what, word, limit in zip(("step", "chunk", "source", "target"), words[:4], limits, strict=True):
        found = whole(word)
        if found is None:
            raise InvalidArgument(f"send {number}: its {what} must be a whole number, not {word!r}", caller())
        if limit is not None and not 0 <= found < limit:
            raise InvalidArgument(f"send {number}: its {what} must be in [0, {limit}), not {found}", caller())
        numbers.append(found)
    step, moved, source, target = numbers
    if source == target:
        raise InvalidArgument(f"send {number}: rank {source} sends to itself", caller())
    if len(words) == 5 and not (isinstance(words[4], str) and words[4] == "reduce"):
        raise InvalidArgument(f'send {number}: its fifth word must be "reduce", not {words[4]!r}', caller())
    return _Sent(number, step, moved, source, target, len(words) == 5)


_Cell = tuple[int, int]
"""A chunk of a rank: (rank, chunk)."""

_Place = tuple[BufferName, int]


class _Places:
    """Where each rank has which chunks, and must have them, while the sends of a solver are traced step by step."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        starts = [0, *accumulate(collective.inputs(rank) for rank in range(collective.size))]
        summed = collective.reduces()
        self._has: dict[_Cell, _Place] = {}
        self._wanted: defaultdict[_Cell, dict[int, None]] = defaultdict(dict)  # indices of the output, each once
        for rank in range(collective.size):
            for i in range(collective.inputs(rank)):
                self._has[rank, i if summed else starts[rank] + i] = "in", i
            for index in range(collective.outputs(rank)):
                for source, i in members(collective.required(rank, index) or ()):
                    self._wanted[rank, i if summed else starts[source] + i][index] = None
        self._scratch = [0] * collective.size
        self._spare: dict[_Cell, _Place] = {}

    def trace(self, sends: Sequence[_Sent]) -> None:
        """Trace the sends of one step, each of which reads what was there before the step.

        What arrives at a cell is traced after all sends from it. Where cells wait for each other in a circle, what one
        of them holds is copied to scratch first, and sent from there.
        """
        into: defaultdict[_Cell, list[_Sent]] = defaultdict(list)
        out_of: defaultdict[_Cell, dict[int, _Sent]] = defaultdict(dict)
        for sent in sends:
            self._check(sent)
            into[sent.target, sent.chunk].append(sent)
            out_of[sent.source, sent.chunk][sent.number] = sent
        kept: dict[_Cell, _Place] = {}
        free = deque(cell for cell in into if cell not in out_of)
        while into:
            if free:
                cell = free.popleft()
            else:
                cell = _in_a_circle(next(iter(into)), out_of)
                kept[cell] = self._keep(cell)
            for sent in into.pop(cell):
                origin = sent.source, sent.chunk
                self._send(sent, kept.get(origin, self._has[origin]))
                del out_of[origin][sent.number]
                if not out_of[origin] and origin in into:
                    free.append(origin)

    def copy_to_outputs(self) -> None:
        """Copy each chunk that a rank has to wherever else its output must have it."""
        for (rank, moved), indices in self._wanted.items():
            place = self._has.get((rank, moved))
            for index in indices:
                if place is not None and not _same(self._collective, rank, place, ("out", index)):
                    chunk(rank, *place).copy(rank, "out", index)

    def _check(self, sent: _Sent) -> None:
        what = f"chunk {sent.chunk} before step {sent.step}"
        if (sent.source, sent.chunk) not in self._has:
            raise InvalidArgument(f"send {sent.number}: rank {sent.source} has no {what}", caller())
        if sent.adds and (sent.target, sent.chunk) not in self._has:
            raise InvalidArgument(f"send {sent.number}: rank {sent.target} has no {what} to add to", caller())

    def _send(self, sent: _Sent, origin: _Place) -> None:
        cell = sent.target, sent.chunk
        if sent.adds:
            chunk(sent.target, *self._has[cell]).reduce(chunk(sent.source, *origin))
            return
        if cell not in self._has:
            free = [index for index in self._wanted.get(cell, ()) if not self._is_input(sent.target, index)]
            self._has[cell] = ("out", free[0]) if free else self._new(sent.target)
        chunk(sent.source, *origin).copy(sent.target, *self._has[cell])

    def _is_input(self, rank: int, index: int) -> bool:
        """Whether a place of the output is, in place, one of the input, which the rank may have to send yet."""
        physical, offset = self._collective.place(rank, "out")
        wanted, begin = self._collective.place(rank, "in")
        return physical == wanted and 0 <= offset + index - begin < self._collective.inputs(rank)

    def _keep(self, cell: _Cell) -> _Place:
        """Copy what a cell holds to scratch, to a place that later steps use again."""
        if cell not in self._spare:
            self._spare[cell] = self._new(cell[0])
        chunk(cell[0], *self._has[cell]).copy(cell[0], *self._spare[cell])
        return self._spare[cell]

    def _new(self, rank: int) -> _Place:
        self._scratch[rank] += 1
        return "sc", self._scratch[rank] - 1


def _in_a_circle(cell: _Cell, out_of: dict[_Cell, dict[int, _Sent]]) -> _Cell:
    """A cell that sends are to leave and to arrive at in turn, found from one of those that all wait for others."""
    seen: set[_Cell] = set()
    while cell not in seen:
        seen.add(cell)
        sent = next(iter(out_of[cell].values()))
        cell = sent.target, sent.chunk
    return cell


def _same(collective: Collective, rank: int, one: _Place, other: _Place) -> bool:
    (buffer, index), (name, at) = one, other
    if "sc" in (buffer, name):
        return one == other
    physical, offset = collective.place(rank, buffer)
    wanted, begin = collective.place(rank, name)
    return (physical, offset + index) == (wanted, begin + at)


@collector_paused()
def compile_chunks(
    dag: ChunkDag,
    *,
    instances: int = 1,
    slots: int = 2,
    opcodes: bool = False,
    in_place: bool = False,
    reproducible: Contract | None = None,
    observer: Observer | None = None,
) -> Schedule:
    """A Chunk DAG, from wherever, as a proven schedule; as ``Program.compile``."""
    try:
        schedule, _ = proven(run_passes(dag, Options(instances, slots, opcodes, in_place), observer), reproducible)
    except Exception as error:
        failure = error
    else:
        return schedule
    check_program(dag)  # the proof decides; but what is wrong with a program is said in its own terms
    raise failure


def _protocol(name: str) -> str:
    if name not in PROTOCOLS:
        raise InvalidArgument(f"there is no protocol {name!r}", caller(), f"protocols are {', '.join(PROTOCOLS)}")
    return name


def _in_place(storage: str, opcodes: bool) -> bool:
    if storage not in STORAGES:
        raise InvalidArgument(f"there is no storage {storage!r}", caller(), f"storages are {', '.join(STORAGES)}")
    if storage == "peer" and opcodes:
        raise InvalidArgument('opcodes=True and storage="peer" exclude each other', caller())
    return storage == "peer"


def _contract(name: Contract | None) -> Contract | None:
    if name is not None and name not in CONTRACTS:
        raise InvalidArgument(f"there is no contract {name!r}", caller(), f"contracts are {', '.join(CONTRACTS)}")
    return name


def _positive(what: str, value: int, limit: int | None = None) -> int:
    number = whole(value)
    if number is None or number < 1:
        raise InvalidArgument(f"{what} must be a positive number, not {value!r}", caller())
    if limit is not None and number > limit:
        raise InvalidArgument(f"{what} must be at most {limit}, not {value!r}", caller())
    return number
