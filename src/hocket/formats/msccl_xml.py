"""MSCCL's XML, which MSCCL and RCCL load: schedules out and in, proven both ways.

A file counts on what its runtime does: slots by protocol, a step of several chunks as several FIFO operations, waits on
one step of one other thread block at a time. So the proof is of the schedule cut into single chunks, with the slots of
the protocol; every coarser cut, which depends on the message's size, follows from it: what one operation of a coarse
step waits for, one of the operations that it consists of waits for in the fine one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

from hocket.collectives import BufferName
from hocket.errors import Deadlock, InvalidArgument, Race, TargetLimit, Where, caller
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
)
from hocket.formats.msccl_legal import legalise, places, single_chunks, xml_type
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_targets import (
    BYTES,
    CHANNELS,
    CHILDREN,
    FUSED_REDUCES,
    NODES,
    OFFSET,
    PER_CHANNEL,
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
from hocket.verify import proven

PROTOCOLS: Mapping[str, str] = MappingProxyType({"auto": "Simple", "simple": "Simple"})
"""A schedule's protocol as MSCCL calls it; one that leaves it open is for Simple."""

_DEFAULT_BYTES = 1 << 27
"""Where calls are too large for a file of MSCCL that does not say."""

_BUFFERS: dict[BufferName, str] = {"in": "i", "out": "o", "sc": "s"}


def write(
    schedule: Schedule,
    target: str | Target = "msccl",
    *,
    protocol: str | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> str:
    """The XML of a schedule for ``target``, "msccl", "rccl" or a table of one's own: un-fused, split and renumbered for
    it, and proven again.

    ``protocol`` is Simple, LL or LL128; by default the schedule's, where "auto" is Simple. The file serves calls of
    ``min_bytes`` to ``max_bytes`` bytes, both included; None is no limit. The same schedule gives the same bytes.
    Raises TargetLimit, with the lines, for what the target cannot take, and what ``hocket.prove`` raises.
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
    if len(str(schedule.collective)) > TOKEN:
        raise TargetLimit(known.name, f"what the collective promises takes more than {TOKEN} characters of a file")
    with collector_paused():
        for cut in _CUTS:
            legal = legalise(schedule, known, cut)
            document = _lay_out(legal, known, protocol, min_bytes, max_bytes)
            for problem in refusals(document, known):
                raise problem
            try:
                proven(replace(single_chunks(legal), slots=SLOTS[protocol]))
            except (Deadlock, Race):
                if cut is _CUTS[-1]:
                    raise
            else:
                break
    return print_document(document)


_CUTS: tuple[Callable[[Step], bool], ...] = (
    lambda step: False,
    lambda step: (step.count or 1) > 1,
    lambda step: True,
)
"""Which fused steps are un-fused, more and more: as several operations they may hold a slot that they wait for, or send
the first chunk on before the last has come."""


def prove_for(schedule: Schedule, protocol: str) -> Schedule:
    """The schedule with what its proof found, proven for the slots of a protocol and for any cut of its steps."""
    msccl_ir.verify(schedule)
    fine = single_chunks(schedule)
    if fine is not schedule:
        proven(replace(fine, slots=SLOTS[protocol]))
    found, _ = proven(replace(schedule, slots=SLOTS[protocol]))
    return found


def read(text: str | Path, source: str | None = None) -> Schedule:
    """The schedule that a text, or a file, means, proven for the slots of its protocol.

    A file that serves calls in place and out of place is proven for both, and given out of place. Raises ParseError
    with the line, or what ``hocket.prove`` raises, with steps numbered as in the file.
    """
    with collector_paused():
        document = parse_document(text, source)
        first, *_ = [prove_for(schedule, document.proto) for schedule in schedules(document)]
    return Schedule(**{f.name: getattr(first, f.name) for f in fields(Schedule)})


def sizes(document: Document) -> tuple[int, int | None]:
    """The smallest and the largest call, in bytes, that a file serves; None is no limit."""
    low = document.min_bytes or 0
    if document.outofplace is None:
        high = _DEFAULT_BYTES if document.max_bytes is None else document.max_bytes
        return low, None if high == BYTES else max(low, high - 1)
    return low, document.max_bytes or None


# Out ------------------------------------------------------------------------------------------------------------


def _lay_out(schedule: Schedule, target: Target, protocol: str, low: int, high: int | None) -> Document:
    """The file of a legal schedule."""
    collective = schedule.collective
    word = target.words[collective.name]
    unlimited = BYTES if target.exclusive else 0
    channels = {end.channel for rank in schedule.ranks for block in rank.thread_blocks for end in _ends(block)}
    return Document(
        name=re.sub(r"[^\w .:/()+=,-]", "_", schedule.name, flags=re.ASCII)[:TEXT],
        proto=protocol,
        channels=max(channels, default=0) + 1,
        loop_chunks=loop_chunks(collective, word),
        coll=word,
        inplace=collective.inplace,
        outofplace=not collective.inplace if target.both_places else None,
        min_bytes=low,
        max_bytes=unlimited if high is None else high + target.exclusive,
        gpus=tuple(_gpu(schedule, r) for r in range(collective.size)),
        promise=str(collective),
    )


def _ends(block: ThreadBlock) -> list[Receive | Send]:
    return [*block.receives, *block.sends]


def _gpu(schedule: Schedule, r: int) -> XmlGpu:
    rank = schedule.ranks[r]
    chunks = {"i": schedule.collective.inputs(r), "o": schedule.collective.outputs(r), "s": rank.scratch}
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


def refusals(document: Document, target: Target) -> Iterator[TargetLimit]:
    """All that a runtime's parser would refuse in a file that is otherwise well formed."""
    d = document

    def no(reason: str, *where: Where | None) -> TargetLimit:
        return TargetLimit(target.name, reason, tuple(w for w in where if w is not None))

    if d.coll not in target.words.values():
        yield no(f"it has no collective {d.coll}", d.where)
    if target.both_places and None in (d.outofplace, d.min_bytes, d.max_bytes):
        needed = {"outofplace": d.outofplace, "minBytes": d.min_bytes, "maxBytes": d.max_bytes}
        yield no(f"it wants {' and '.join(key for key, value in needed.items() if value is None)}", d.where)
    if target.exclusive and d.max_bytes is not None and d.max_bytes <= (d.min_bytes or 0):
        yield no(f"no call has fewer than maxBytes={d.max_bytes} bytes and at least {d.min_bytes or 0}", d.where)
    if d.channels > CHANNELS:
        yield no(f"at most {CHANNELS} channels; there are {d.channels}", d.where)
    if len(d.gpus) > CHILDREN:
        yield no(f"at most {CHILDREN} ranks; there are {len(d.gpus)}", d.where)
    for r, gpu in enumerate(d.gpus):
        if len(gpu.blocks) > target.thread_blocks:
            lines = places([step for block in gpu.blocks for step in block.steps])
            yield no(f"at most {target.thread_blocks} thread blocks; rank {r} has {len(gpu.blocks)}", *lines)
        if target.checks_chunks and max(gpu.chunks["i"], gpu.chunks["o"]) > d.loop_chunks:
            yield no(f"rank {r} has buffers of more chunks than nchunksperloop={d.loop_chunks}", d.where)
        nodes = 1 + len(d.gpus) + sum(1 + len(block.steps) for block in gpu.blocks)
        if nodes > NODES:
            lines = places([step for block in gpu.blocks for step in block.steps])
            yield no(f"at most {NODES} elements for a rank; rank {r} has {nodes}", *lines)
        crowd: Counter[tuple[str, int]] = Counter()
        for b, block in enumerate(gpu.blocks):
            crowd.update(
                (way, block.channel) for way, peer in (("send", block.send), ("recv", block.recv)) if peer is not None
            )
            if len(block.steps) > target.steps:
                found = f"rank {r}, thread block {b} has {len(block.steps)}"
                yield no(f"at most {target.steps} steps in a thread block; {found}", *places(block.steps))
            for step in block.steps:
                if step.type not in (*target.opcodes, "nop"):
                    yield no(f"its default build does not do {step.type}", *step.where[:1])
                    break
                far = max(step.src[1], step.dst[1])
                if far > OFFSET:
                    yield no(f"at most {OFFSET + 1} chunks in a buffer; here is chunk {far}", *step.where[:1])
                    break
        for (way, channel), n in crowd.items():
            if n > PER_CHANNEL:
                yield no(f"at most {PER_CHANNEL} thread blocks that {way} on a channel; rank {r} has {n} on {channel}")
