"""The passes, in order, and the driver that runs and verifies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

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


Before = TypeVar("Before", ChunkDag, InstrDag)


@dataclass(frozen=True, slots=True)
class Pass(Generic[Before]):
    """A pure function from one stage, of type ``takes``, to the next."""

    name: str
    doc: str
    takes: type[Before]
    run: Callable[[Before, Options], Stage]

    def __call__(self, stage: Stage, options: Options) -> Stage:
        assert isinstance(stage, self.takes)
        return self.run(stage, options)


PASSES: tuple[Pass[ChunkDag] | Pass[InstrDag], ...] = (
    Pass("replicate", "cut chunks for parallel instances", ChunkDag, lambda dag, o: replicate(dag, o.instances)),
    Pass("lower", "operations become instructions of ranks", ChunkDag, lambda dag, _: lower(dag)),
    Pass(
        "accumulate",
        "local additions in one instruction",
        InstrDag,
        lambda dag, o: dag if o.opcodes else accumulate(dag),
    ),
    Pass("fuse", "receive and send in one instruction", InstrDag, lambda dag, _: fuse(dag)),
    Pass("channels", "give every transfer a channel", InstrDag, lambda dag, _: assign_channels(dag)),
    Pass("order", "a global order that runs with the given slots", InstrDag, lambda dag, o: order(dag, o.slots)),
    Pass(
        "merge",
        "one pass over memory where there would be several",
        InstrDag,
        lambda dag, o: dag if o.opcodes else merge(dag, o.slots),
    ),
    Pass(
        "peer",
        "messages that lie in the memory of a rank",
        InstrDag,
        lambda dag, o: peer(dag) if o.in_place else dag,
    ),
    Pass("blocks", "assign thread blocks", InstrDag, lambda dag, _: assign_thread_blocks(dag)),
    Pass("sync", "waits across thread blocks; the schedule", InstrDag, lambda dag, o: synchronize(dag, o.slots)),
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
        after = step(stage, options)
        if observer is not None:
            seconds = perf_counter() - start
            verify(after)
            observer(step.name, stage, after, seconds)
        stage = after
    assert isinstance(stage, Schedule)
    return stage
