"""Program: trace, compile, prove. The facade of the compiler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from hocket.collectives import Collective, whole
from hocket.compiler.pipeline import Observer, Options, run_passes
from hocket.errors import InvalidArgument, OutsideProgram, caller
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.collector import collector_paused
from hocket.ir.schedule import PROTOCOLS, Schedule
from hocket.ir.text import print_stage
from hocket.language import MAX_INSTANCES, Tracer
from hocket.sends import Send, read_sends, trace_sends
from hocket.topology import Topology
from hocket.verify import CONTRACTS, check_program, proven
from hocket.verify import Contract as Contract

STORAGES = ("fifo", "peer")
"""Where a compiled program's messages lie: all in slots, or in place where they can."""


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
        read = read_sends(collective, sends, topology)
        with program:
            trace_sends(collective, read)
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

    def __exit__(self, *_: object) -> None:
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
        if not isinstance(opcodes, bool):
            raise InvalidArgument(f"opcodes must be True or False, not {opcodes!r}", caller())
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
