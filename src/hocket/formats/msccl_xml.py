"""MSCCL's XML, which MSCCL and RCCL load: schedules out and in, proven both ways.

A file counts on what its runtime does: slots by protocol, a step of several chunks as several FIFO operations, waits on
one step of one other thread block at a time. So the proof is for the slots of the protocol, and for every number of
operations that a step can be in the calls that the file serves (``msccl_operations``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

from hocket.collectives import BufferName
from hocket.errors import Deadlock, InvalidArgument, Race, TargetLimit, caller
from hocket.formats.msccl_document import (
    NOWHERE,
    TOKEN,
    Document,
    Place,
    XmlBlock,
    XmlGpu,
    XmlStep,
    joins,
    parse_document,
    print_document,
    sizes,
)
from hocket.formats.msccl_legal import legalise, xml_type
from hocket.formats.msccl_loading import only_root, refusals
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_operations import check_operations, grains
from hocket.formats.msccl_targets import (
    BYTES,
    DEFAULT_BYTES,
    FUSED_REDUCES,
    SLOTS,
    TARGETS,
    TEXT,
    Target,
    loop_chunks,
)
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import Span
from hocket.ir.collector import collector_paused
from hocket.ir.schedule import Receive, Schedule, Send, Step, ThreadBlock
from hocket.verify import Contract, proven

PROTOCOLS: Mapping[str, str] = MappingProxyType({"auto": "Simple", "simple": "Simple"})
"""A schedule's protocol as MSCCL calls it; one that leaves it open is for Simple."""

_BUFFERS: dict[BufferName, str] = {"in": "i", "out": "o", "sc": "s"}


def write(
    schedule: Schedule,
    target: str | Target = "msccl",
    *,
    protocol: str | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    reproducible: Contract | None = None,
) -> str:
    """The XML of a schedule for ``target``, "msccl", "rccl" or a table of one's own: un-fused, split and renumbered for
    it, and proven again, as ``prove_for`` does.

    ``protocol`` is Simple, LL or LL128; by default the schedule's, where "auto" is Simple. The file serves calls of
    ``min_bytes`` to ``max_bytes`` bytes, both included; None is no limit, or, where scratch is reserved for the largest
    call, as many as the runtime itself takes to be the limit (128 MB). The same schedule gives the same bytes.
    Raises TargetLimit, with the lines, for what the target cannot take, and what ``hocket.prove`` raises, which demands
    the contract ``reproducible`` of the bits of sums.
    """
    known = target if isinstance(target, Target) else TARGETS.get(target)
    if known is None:
        raise InvalidArgument(f"there is no target {target!r}", caller(), f"targets are {', '.join(TARGETS)}")
    protocol = PROTOCOLS[schedule.protocol] if protocol is None else protocol
    if protocol not in SLOTS:
        raise InvalidArgument(f"there is no protocol {protocol!r}", caller(), f"protocols are {', '.join(SLOTS)}")
    if not 0 <= min_bytes <= (BYTES - 1 if max_bytes is None else max_bytes) < BYTES or max_bytes == 0:
        raise InvalidArgument(f"no call has {min_bytes} to {max_bytes} bytes", caller())
    msccl_ir.verify(schedule)
    if schedule.collective.name not in known.words:
        raise TargetLimit(known.name, f"it has no collective {schedule.collective.name}")
    if schedule.in_place():
        raise TargetLimit(known.name, "its messages go through slots, those of a program compiled for storage 'fifo'")
    root = only_root(schedule.collective, known.words[schedule.collective.name])
    if root:
        raise TargetLimit(
            known.name,
            f"it uses a file for calls of any root, so only files for root 0 are written; this one is for {root}",
        )
    if len(str(schedule.collective)) > TOKEN:
        raise TargetLimit(known.name, f"what the collective promises takes more than {TOKEN} characters of a file")
    with collector_paused():
        for unfused in _UNFUSED:
            legal = legalise(schedule, known, unfused)
            document = _lay_out(legal, known, protocol, min_bytes, max_bytes)
            for problem in refusals(document, known):
                raise problem
            try:
                prove_for(legal, document, reproducible)
            except (Deadlock, Race):
                if unfused is _UNFUSED[-1]:
                    raise
            else:
                break
    return print_document(document)


_UNFUSED: tuple[Callable[[Step], bool], ...] = (
    lambda step: False,
    lambda step: (step.count or 1) > 1,
    lambda step: True,
)
"""Which fused steps are un-fused, more and more: as several operations they may hold a slot that they wait for, or send
the first chunk on before the last has come."""


def prove_for(schedule: Schedule, document: Document, reproducible: Contract | None = None) -> Schedule:
    """What a file means with what its proof found: for the slots of its protocol, and for all operations that the
    runtimes which load it, or if none does, all runtimes, make of its steps in the calls that it serves.

    Raises what ``hocket.prove`` raises, SumsDiffer when all else holds.
    """
    msccl_ir.verify(schedule)
    slots = SLOTS[document.proto]
    loads = [name for name, target in TARGETS.items() if next(refusals(document, target), None) is None]
    served = grains(document.proto, document.loop_chunks, *sizes(document), loads or TARGETS)
    check_operations(schedule, slots, served)
    found, _ = proven(replace(schedule, slots=slots), reproducible)
    return found


def read(text: str | Path | Document, source: str | None = None, *, reproducible: Contract | None = None) -> Schedule:
    """The schedule that a text, or a file, means, proven as ``prove_for`` does. ``text`` may have been parsed.

    A file that serves calls in place and out of place is proven for both, and given out of place. Raises ParseError
    with the line, or what ``hocket.prove`` raises, with steps numbered as in the file.
    """
    with collector_paused():
        document = text if isinstance(text, Document) else parse_document(text, source)
        first, *_ = [prove_for(schedule, document, reproducible) for schedule in schedules(document)]
    return Schedule(**{f.name: getattr(first, f.name) for f in fields(Schedule)})


# Out ------------------------------------------------------------------------------------------------------------


def _lay_out(schedule: Schedule, target: Target, protocol: str, low: int, high: int | None) -> Document:
    """The file of a legal schedule."""
    collective = schedule.collective
    word = target.words[collective.name]
    loop = loop_chunks(collective, word)
    scratch = any(rank.scratch for rank in schedule.ranks)
    if high is None and target.reserves and scratch and low >= DEFAULT_BYTES:
        raise TargetLimit(
            target.name, "it reserves scratch for the largest call: max_bytes has to say how large that is"
        )
    unlimited = DEFAULT_BYTES if target.reserves and scratch else BYTES if target.exclusive else 0
    whole = {} if target.shares is None else {key: loop for key in "io" if key != target.shares.get(word)}
    channels = {end.channel for rank in schedule.ranks for block in rank.thread_blocks for end in _ends(block)}
    return Document(
        name=re.sub(r"[^\w .:/()+=,-]", "_", schedule.name, flags=re.ASCII)[:TEXT],
        proto=protocol,
        channels=max(channels, default=0) + 1,
        loop_chunks=loop,
        coll=word,
        inplace=collective.inplace,
        outofplace=not collective.inplace if target.both_places else None,
        min_bytes=low,
        max_bytes=unlimited if high is None else high + target.exclusive,
        gpus=tuple(_gpu(schedule, r, whole) for r in range(collective.size)),
        promise=str(collective),
    )


def _ends(block: ThreadBlock) -> list[Receive | Send]:
    return [*block.receives, *block.sends]


def _gpu(schedule: Schedule, r: int, whole: Mapping[str, int]) -> XmlGpu:
    """``whole``: what a buffer has to say of its chunks, however many are used, unless it has none."""
    rank = schedule.ranks[r]
    chunks = {"i": schedule.collective.inputs(r), "o": schedule.collective.outputs(r), "s": rank.scratch}
    chunks |= {key: n for key, n in whole.items() if chunks[key]}
    # All but one of a step's waits are nops before it.
    waits = [[list(dict.fromkeys(step.waits)) for step in block.steps] for block in rank.thread_blocks]
    numbers: list[list[int]] = []
    for of_block in waits:
        numbers.append([])
        nops = 0
        for s, found in enumerate(of_block):
            nops += max(0, len(found) - 1)
            numbers[-1].append(s + nops)
    waited = {(wait.thread_block, wait.step) for of_block in waits for found in of_block for wait in found}
    blocks = []
    for b, block in enumerate(rank.thread_blocks):
        steps: list[XmlStep] = []
        for s, step in enumerate(block.steps):
            depends = [(wait.thread_block, numbers[wait.thread_block][wait.step]) for wait in waits[b][s]]
            steps.extend(XmlStep("nop", *NOWHERE, 0, on, False, step.where) for on in depends[:-1])
            steps.append(_xml_step(step, depends[-1] if depends else None, (b, s) in waited))
        blocks.append(
            XmlBlock(
                send=block.sends[0].peer if block.sends else None,
                recv=block.receives[0].peer if block.receives else None,
                channel=next((end.channel for end in _ends(block)), 0),
                steps=_separated(steps),
            )
        )
    return XmlGpu(chunks, tuple(blocks))


def _xml_step(step: Step, depends: tuple[int, int] | None, signals: bool) -> XmlStep:
    type_ = xml_type(step)
    assert type_ is not None, "legalise leaves only steps that have a type"
    # What is no place, an end of a connection or nothing, has to be there all the same.
    src, dst = NOWHERE
    stored = next((d for d in step.dsts if isinstance(d, Span)), None)
    if stored is not None:
        dst = _place(stored)
    local = [s for s in step.srcs if isinstance(s, Span)]
    if type_ == "re":
        assert stored is not None
        local.remove(stored)
    if local:
        src = _place(local[0])
    return XmlStep(type_, src, dst, step.count or 1, depends, signals, step.where)


def _place(span: Span) -> Place:
    return _BUFFERS[span.buffer], span.index


def _separated(steps: list[XmlStep]) -> tuple[XmlStep, ...]:
    """A step that signals ends a run of reductions, which a runtime does as one: where it is long enough, or has to
    end because its steps differ in length."""
    run = 0
    for i, step in enumerate(steps):
        run = run + 1 if i and joins(steps[i - 1], step) else 1
        if run > 1 and (run > FUSED_REDUCES or steps[i - 1].count != step.count):
            steps[i - 1] = replace(steps[i - 1], signals=True)
            run = 1
    return tuple(steps)
