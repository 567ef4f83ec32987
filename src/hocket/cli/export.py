"""What hocket export makes of a target: compiled for the slots of a protocol, in place or apart, as XML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.cli.target import UsageError, is_xml, one_case
from hocket.compiler.pipeline import PASSES, Options
from hocket.errors import Deadlock, PostconditionFailed, Race
from hocket.formats import msccl_xml
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_targets import SLOTS, TARGETS, Target
from hocket.formats.placement import apart, single_operations, together
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.schedule import Schedule
from hocket.ir.text import Stage
from hocket.program import Program
from hocket.verify import check_program, proven


@dataclass(frozen=True)
class Wishes:
    """What the user asks of the file; None leaves a choice as the program, or a file that is exported again, has it."""

    target: str | Target
    protocol: str | None = None
    instances: int | None = None
    inplace: bool | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.target, str) and self.target not in TARGETS:
            raise UsageError(f"--target must be one of {', '.join(TARGETS)}, not {self.target!r}")
        if self.protocol is not None and self.protocol not in SLOTS:
            raise UsageError(f"--protocol must be one of {', '.join(SLOTS)}, not {self.protocol!r}")
        low, high = self.min_bytes or 0, self.max_bytes
        if (high is not None and not low <= high) or high == 0:
            raise UsageError(f"there is no size between {low} and {high} bytes")

    def write(self, schedule: Schedule, protocol: str) -> str:
        return msccl_xml.write(
            schedule, self.target, protocol=protocol, min_bytes=self.min_bytes or 0, max_bytes=self.max_bytes
        )


def export(target: str, parameters: Sequence[str], wishes: Wishes) -> str:
    """The XML of what the command line names."""
    made = one_case(target, parameters).load()
    if isinstance(made, Program):
        return export_program(made, wishes)
    if wishes.instances is not None or wishes.inplace is not None:
        raise UsageError(f"{target} is compiled already: --instances and --inplace are for programs")
    protocol = wishes.protocol or msccl_xml.PROTOCOLS[made.protocol]
    if is_xml(target):
        document = parse_document(Path(target))
        low, high = msccl_xml.sizes(document)
        protocol = wishes.protocol or document.proto
        wishes = replace(
            wishes,
            min_bytes=low if wishes.min_bytes is None else wishes.min_bytes,
            max_bytes=high if wishes.max_bytes is None else wishes.max_bytes,
        )
    return wishes.write(made, protocol)


def export_program(program: Program, wishes: Wishes) -> str:
    """The XML of a program. Raises what ``msccl_xml.write`` raises, and SumsDiffer if the file does not keep the
    program's contract."""
    dag = placed(program.chunk_dag, wishes.inplace)
    check_program(dag)
    protocol = wishes.protocol or msccl_xml.PROTOCOLS[program.protocol]
    instances = wishes.instances or program.instances
    try:
        text = wishes.write(_compile(dag, instances, SLOTS[protocol], single=False), protocol)
    except (Deadlock, Race):
        # A step on several chunks may be as many operations of a slot: then the compiler has to know them.
        text = wishes.write(_compile(dag, instances, SLOTS[protocol], single=True), protocol)
    if program.reproducible is not None:
        proven(msccl_xml.read(text), program.reproducible)
    return text


def _compile(dag: ChunkDag, instances: int, slots: int, *, single: bool) -> Schedule:
    """The compiler's passes; ``single`` cuts operations into those of one chunk once instances are told apart."""
    stage: Stage = dag
    for step in PASSES:
        stage = step.run(stage, Options(instances, slots, opcodes=True))
        if single and isinstance(stage, ChunkDag):
            stage = single_operations(stage)
    assert isinstance(stage, Schedule)
    return proven(stage)[0]


def placed(dag: ChunkDag, inplace: bool | None) -> ChunkDag:
    """The same program in place, or out of place."""
    if inplace is None or inplace == dag.collective.inplace:
        return dag
    if not inplace:
        return apart(dag)
    plain = together(dag, copied=False)
    if plain is not None:
        try:
            check_program(plain)
        except PostconditionFailed:
            pass
        else:
            return plain
    copied = together(dag, copied=True)
    assert copied is not None, "a copy of the input shares nothing with the output"
    return copied
