"""What hocket export makes of a target: compiled for the slots of a protocol, in place or apart, as XML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.cli.compiled import under_contract
from hocket.cli.files import meaning
from hocket.cli.target import one_case, one_of
from hocket.cli.writing import writing
from hocket.compiler.pipeline import PASSES, Options
from hocket.errors import Deadlock, PostconditionFailed, Race, UsageError
from hocket.formats import msccl_xml
from hocket.formats.msccl_document import parse_document, sizes
from hocket.formats.msccl_loading import remarks
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_targets import SLOTS, TARGETS, Target
from hocket.formats.placement import apart, single_operations, together
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.schedule import Schedule
from hocket.ir.text import Stage
from hocket.program import Program
from hocket.verify import Contract, check_program, proven


@dataclass(frozen=True)
class Wishes:
    """What the user asks of the file; None leaves a choice as the program, or a file that is exported again, has it."""

    target: str | Target
    protocol: str | None = None
    instances: int | None = None
    inplace: bool | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    reproducible: Contract | None = None

    def __post_init__(self) -> None:
        if isinstance(self.target, str) and self.target not in TARGETS:
            raise UsageError(f"--target must be one of {', '.join(TARGETS)}, not {self.target!r}")
        if self.protocol is not None:
            object.__setattr__(self, "protocol", one_of("--protocol", self.protocol, SLOTS))
        low, high = self.min_bytes or 0, self.max_bytes
        if (high is not None and not low <= high) or high == 0:
            raise UsageError(f"there is no size between {low} and {high} bytes")

    def write(self, schedule: Schedule, protocol: str) -> str:
        return msccl_xml.write(
            schedule,
            self.target,
            protocol=protocol,
            min_bytes=self.min_bytes or 0,
            max_bytes=self.max_bytes,
            reproducible=self.reproducible,
        )


def export(target: str, parameters: Sequence[str], wishes: Wishes) -> str:
    """The XML of what the command line names. What a file of XML means is proven for the calls that are wished for, not
    for those that it served."""
    case = one_case(target, parameters)
    made = meaning(target) if case.foreign else case.load()
    if isinstance(made, Program):
        return export_program(made, wishes)
    if wishes.instances is not None or wishes.inplace is not None:
        raise UsageError(f"{target} is compiled already: --instances and --inplace are for programs")
    protocol = wishes.protocol or msccl_xml.PROTOCOLS[made.protocol]
    if case.foreign:
        document = parse_document(Path(target))
        low, high = sizes(document)
        protocol = wishes.protocol or document.proto
        wishes = replace(
            wishes,
            min_bytes=low if wishes.min_bytes is None else wishes.min_bytes,
            max_bytes=high if wishes.max_bytes is None else wishes.max_bytes,
        )

    def write_for(reproducible: Contract | None) -> str:
        return replace(wishes, reproducible=reproducible).write(made, protocol)

    return under_contract(write_for, wishes.reproducible, foreign=case.foreign)


def outputs(files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """Where each of several files is written: in a folder, which is made, under its own name."""
    places = {file: (folder / place).with_suffix(".xml") for file, place in files.items()}
    taken: dict[Path, str] = {}
    for file, place in places.items():
        other = taken.setdefault(place, file)
        if other != file:
            raise UsageError(f"{other} and {file} would both be written to {place}")
    try:
        for place in places.values():
            place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place.parent}: {error.strerror}") from None
    return places


def write_text(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")


def check_folder(folder: Path) -> None:
    """Whether there can be such a folder: asked before any work is done. Raises UsageError."""
    try:
        whole = folder.absolute()
        there = next(path for path in (whole, *whole.parents) if path.exists())
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
    if not there.is_dir():
        raise UsageError(f"cannot write to {folder}: {there} is not a folder")


def export_program(program: Program, wishes: Wishes) -> str:
    """The XML of a program. Raises what ``msccl_xml.write`` raises, and SumsDiffer if the file does not keep the
    program's contract, or the one that is wished for."""
    wishes = replace(wishes, reproducible=wishes.reproducible or program.reproducible)
    dag = placed(program.chunk_dag, wishes.inplace)
    check_program(dag)
    protocol = wishes.protocol or msccl_xml.PROTOCOLS[program.protocol]
    instances = wishes.instances or program.instances
    try:
        return wishes.write(_compile(dag, instances, SLOTS[protocol], single=False), protocol)
    except (Deadlock, Race):
        # A step on several chunks may be as many operations of a slot: then the compiler has to know them.
        return wishes.write(_compile(dag, instances, SLOTS[protocol], single=True), protocol)


def notes(text: str, target: Target) -> list[str]:
    """What to know of a file before ``target`` loads it."""
    document = parse_document(text)
    collective = schedules(document)[0].collective
    said = [f"{target.name}: {remark}" for remark in remarks(document, collective, target)]
    return said if target.note is None else [target.note, *said]


def _compile(dag: ChunkDag, instances: int, slots: int, *, single: bool) -> Schedule:
    """The compiler's passes; ``single`` cuts operations into those of one chunk once instances are told apart."""
    stage: Stage = dag
    for step in PASSES:
        stage = step(stage, Options(instances, slots, opcodes=True))
        if single and isinstance(stage, ChunkDag):
            stage = single_operations(stage)
    assert isinstance(stage, Schedule)
    return proven(stage, "may-differ")[0]


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
