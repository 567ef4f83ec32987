"""What the compiler makes of a target: its passes, and a schedule in numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from rich.console import Console

from hocket.cli.console import print_diagnostic
from hocket.cli.target import one_of
from hocket.collectives import Collective, Custom
from hocket.cost import count
from hocket.errors import SumsDiffer, UsageError
from hocket.ir.chunk_dag import ChunkDag, Span
from hocket.ir.instr_dag import InstrDag
from hocket.ir.messages import stored_once
from hocket.ir.schedule import PROTOCOLS, Schedule
from hocket.ir.text import Stage
from hocket.program import STORAGES, Program
from hocket.verify import Contract, prove


@dataclass(frozen=True)
class Pass:
    """What a pass of the compiler did."""

    name: str
    before: Stage
    after: Stage
    seconds: float


@dataclass(frozen=True)
class Options:
    """What --protocol, --instances, --slots, --storage and --allow-differing-sums ask of the compiler."""

    protocol: str | None
    instances: int | None
    slots: int | None
    storage: str | None = None
    reproducible: Contract | None = None

    def __post_init__(self) -> None:
        for name, known in (("protocol", PROTOCOLS), ("storage", STORAGES)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, one_of(f"--{name}", given, known))

    def compile(self, made: Program | Schedule, passes: list[Pass] | None = None) -> Schedule:
        """A proven schedule. Each pass of the compiler is added to ``passes``."""
        if isinstance(made, Schedule):
            if (self.protocol, self.instances, self.storage) != (None, None, None):
                raise UsageError(
                    "a schedule is compiled already: --protocol, --instances and --storage are for programs"
                )
            if self.slots is not None:
                made = replace(made, slots=self.slots)
            return replace(made, slots=prove(made, self.reproducible).slots)
        return made.compile(
            protocol=self.protocol,
            instances=self.instances,
            reproducible=self.reproducible,
            slots=2 if self.slots is None else self.slots,
            storage="fifo" if self.storage is None else self.storage,
            observer=None if passes is None else lambda *seen: passes.append(Pass(*seen)),
        )


Made = TypeVar("Made")


def under_contract(make: Callable[[Contract | None], Made], reproducible: Contract | None, *, foreign: bool) -> Made:
    """What comes of a program, or a file, that must keep a contract on bits. Where it is ``foreign``, a file of XML,
    nobody has promised one: that its ranks add up in different orders is a warning then."""
    try:
        return make(reproducible)
    except SumsDiffer as error:
        if not foreign:
            raise
        print_diagnostic(error.diagnostic(), Console(stderr=True), "warning")
        return make("may-differ")


@dataclass(frozen=True)
class Facts:
    """A schedule in numbers.

    ``rounds``, ``volume`` and ``reductions`` are those of hocket.cost, and ``unit`` is its unit. ``traffic``: what all
    ranks load and store, in units of a rank's larger buffer; of a large one in place (hocket.ir.traffic).
    """

    collective: str
    ranks: int
    protocol: str
    thread_blocks: int
    channels: int
    steps: int
    slots: int
    rounds: int | None
    volume: float
    reductions: float
    unit: Literal["buffer", "block", "chunk"]
    traffic: float

    @classmethod
    def of(cls, schedule: Schedule, dag: ChunkDag | None = None) -> Facts:
        """``dag``: the program that was compiled, in which rounds are counted."""
        cost = count(schedule, dag)
        collective = schedule.collective
        chunks = max(max(collective.inputs(r), collective.outputs(r)) for r in range(collective.size))
        free = stored_once(schedule)
        moved = steps = 0
        for rank, _, _, step in schedule.steps():
            steps += 1
            if not step.moves:
                continue
            stored = sum(type(target) is Span or (rank, target) not in free for target in step.dsts)
            moved += (len(step.srcs) + stored) * (step.count or 0)
        blocks = [block for rank in schedule.ranks for block in rank.thread_blocks]
        return cls(
            collective=str(collective),
            ranks=collective.size,
            protocol=schedule.protocol,
            thread_blocks=len(blocks),
            channels=len({end.channel for block in blocks for end in block.sends}),
            steps=steps,
            slots=schedule.slots,
            rounds=None if cost.rounds is None else int(cost.rounds),
            volume=float(cost.volume),
            reductions=float(cost.reductions),
            unit=_unit(collective),
            traffic=moved / chunks,
        )


def _unit(collective: Collective) -> Literal["buffer", "block", "chunk"]:
    if isinstance(collective, Custom):
        return "chunk"
    return "block" if collective.most_blocks() > 1 else "buffer"


def counts(stage: Stage) -> dict[str, int]:
    """How large a stage is."""
    if isinstance(stage, ChunkDag):
        return {"operations": len(stage.nodes) - stage.collective.size}
    if isinstance(stage, InstrDag):
        blocks = {(instr.rank, block) for instr, block in zip(stage.instrs, stage.blocks, strict=False)}
        return {"instructions": len(stage.instrs), "transfers": len(stage.edges)} | (
            {"thread blocks": len(blocks)} if blocks else {}
        )
    steps = [step for _, _, _, step in stage.steps()]
    return {
        "steps": len(steps),
        "thread blocks": sum(len(rank.thread_blocks) for rank in stage.ranks),
        "waits": sum(len(step.waits) for step in steps),
    }


def show_counts(stage: Stage) -> str:
    """``32 instructions, 16 transfers``."""
    return ", ".join(f"{n} {what if n != 1 else what[:-1]}" for what, n in counts(stage).items())
