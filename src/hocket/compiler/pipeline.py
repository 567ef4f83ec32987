"""The passes, in order, and the driver that runs and verifies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from hocket.compiler.accumulate import accumulate
from hocket.compiler.blocks import assign_thread_blocks
from hocket.compiler.channels import assign_channels
from hocket.compiler.fuse import fuse
from hocket.compiler.lower import lower
from hocket.compiler.merge import merge
from hocket.compiler.order import order
from hocket.compiler.peer import peer
from hocket.compiler.replicate import replicate
from hocket.compiler.sync import synchronize
from hocket.ir import chunk_dag, instr_dag
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.instr_dag import InstrDag
from hocket.ir.schedule import Schedule
from hocket.ir.text import Stage

Observer = Callable[[str, Stage, Stage, float], None]
"""Called after each pass with its name, the stage before, the stage after, and the seconds it took."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of the compiler chose, as ``Program.compile`` has it."""

    instances: int
    slots: int
    opcodes: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A pure function from one stage to the next."""

    name: str
    doc: str
    run: Callable[[Stage, Options], Stage]


def _on_chunks(run: Callable[[ChunkDag, Options], Stage]) -> Callable[[Stage, Options], Stage]:
    def checked(stage: Stage, options: Options) -> Stage:
        assert isinstance(stage, ChunkDag)
        return run(stage, options)

    return checked


def _on_instrs(run: Callable[[InstrDag, Options], Stage]) -> Callable[[Stage, Options], Stage]:
    def checked(stage: Stage, options: Options) -> Stage:
        assert isinstance(stage, InstrDag)
        return run(stage, options)

    return checked


def _accumulate(dag: InstrDag, options: Options) -> InstrDag:
    return dag if options.opcodes else accumulate(dag)


def _merge(dag: InstrDag, options: Options) -> InstrDag:
    return dag if options.opcodes else merge(dag, options.slots)


def _peer(dag: InstrDag, options: Options) -> InstrDag:
    return peer(dag) if options.in_place else dag


PASSES: tuple[Pass, ...] = (
    Pass("replicate", "cut chunks for parallel instances", _on_chunks(lambda dag, o: replicate(dag, o.instances))),
    Pass("lower", "operations become instructions of ranks", _on_chunks(lambda dag, o: lower(dag))),
    Pass("accumulate", "local additions in one instruction", _on_instrs(_accumulate)),
    Pass("fuse", "receive and send in one instruction", _on_instrs(lambda dag, o: fuse(dag))),
    Pass("channels", "give every transfer a channel", _on_instrs(lambda dag, o: assign_channels(dag))),
    Pass("order", "a global order that runs with the given slots", _on_instrs(lambda dag, o: order(dag, o.slots))),
    Pass("merge", "one pass over memory where there would be several", _on_instrs(_merge)),
    Pass("peer", "messages that lie in the memory of a rank", _on_instrs(_peer)),
    Pass("blocks", "assign thread blocks", _on_instrs(lambda dag, o: assign_thread_blocks(dag))),
    Pass("sync", "waits across thread blocks; the schedule", _on_instrs(lambda dag, o: synchronize(dag, o.slots))),
)


def verify(stage: Stage) -> None:
    """Check the form of any stage; raises InvalidSchedule and its kin."""
    if isinstance(stage, ChunkDag):
        chunk_dag.verify(stage)
    elif isinstance(stage, InstrDag):
        instr_dag.verify(stage)
    else:
        msccl_ir.verify(stage)


def run_passes(dag: ChunkDag, options: Options, observer: Observer | None = None) -> Schedule:
    """Run all passes on a Chunk DAG.

    What an observer sees has been verified, so that a mistake of a pass is found in the pass that makes it. Without an
    observer nothing is: the form of the schedule is part of its proof, which decides alone.
    """
    stage: Stage = dag
    for step in PASSES:
        start = perf_counter()
        after = step.run(stage, options)
        if observer is not None:
            seconds = perf_counter() - start
            verify(after)
            observer(step.name, stage, after, seconds)
        stage = after
    assert isinstance(stage, Schedule)
    return stage
