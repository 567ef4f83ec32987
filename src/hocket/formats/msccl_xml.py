"""MSCCL's XML, which MSCCL and RCCL load: schedules out and in, proven both ways.

A file counts on what its runtime does: slots by protocol, a step of several chunks as several FIFO operations, waits on
one step of one other thread block at a time. So the proof is of the schedule cut into single chunks, with the slots of
the protocol; every coarser cut, which depends on the message's size, follows from it: what one operation of a coarse
step waits for, one of the operations that it consists of waits for in the fine one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from hocket import collectives
from hocket.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    BufferName,
    Collective,
    Custom,
    Reduce,
    ReduceScatter,
)
from hocket.errors import (
    Deadlock,
    InvalidArgument,
    InvalidSchedule,
    ParseError,
    Race,
    StepName,
    TargetLimit,
    Where,
    caller,
)
from hocket.formats.msccl_document import (
    NOWHERE,
    TOKEN,
    Document,
    Place,
    XmlBlock,
    XmlGpu,
    XmlStep,
    parse_document,
    print_document,
)
from hocket.formats.msccl_legal import legalise, places, single_chunks, xml_type
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
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step, ThreadBlock, Wait
from hocket.verify import proven

PROTOCOLS: Mapping[str, str] = MappingProxyType({"auto": "Simple", "simple": "Simple"})
"""A schedule's protocol as MSCCL calls it; one that leaves it open is for Simple."""

_DEFAULT_BYTES = 1 << 27
"""Where calls are too large for a file of MSCCL that does not say."""

_BUFFERS: dict[BufferName, str] = {"in": "i", "out": "o", "sc": "s"}
_NAMES: dict[str, BufferName] = {letter: name for name, letter in _BUFFERS.items()}
_READS = {"s", "cpy", "re", "rrc", "rrs", "rrcs"}
"""Types whose source means something."""
_WRITES = {"r", "cpy", "re", "rrc", "rcs", "rrcs"}
_RECEIVES = {"r", "rrc", "rcs", "rrs", "rrcs"}
_SENDS = {"s", "rcs", "rrs", "rrcs"}


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
    if len(str(schedule.collective)) > TOKEN:
        raise TargetLimit(known.name, f"what the collective promises takes more than {TOKEN} characters of a file")
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


def schedules(document: Document) -> list[FileSchedule]:
    """What a file means, not proven: out of place, in place, or both. Raises ParseError with the line."""
    return [_meaning(document, inplace) for inplace in _inplace(document)]


@dataclass(frozen=True)
class FileSchedule(Schedule):
    """A schedule from a file: errors number its steps as the file does."""

    numbers: Mapping[Where, int] = field(default_factory=dict, compare=False, repr=False)

    def step_name(self, rank: int, thread_block: int, step: int) -> StepName:
        name = super().step_name(rank, thread_block, step)
        return name if name.where is None else replace(name, step=self.numbers[name.where])


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
        run = run + 1 if i and _continues(steps[i - 1], step) else 1
        if run > 1 and (run > FUSED_REDUCES or steps[i - 1].count != step.count):
            steps[i - 1] = replace(steps[i - 1], signals=True)
            run = 1
    return tuple(steps)


def _continues(before: XmlStep, step: XmlStep) -> bool:
    """Whether a runtime joins a reduction to the one before it."""
    return (
        before.type == step.type == "re"
        and not before.signals
        and step.depends is None
        and (before.dst, before.src[0]) == (step.dst, step.src[0])
    )


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


# In -------------------------------------------------------------------------------------------------------------

_PLAIN: dict[str, type[Collective]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reducescatter": ReduceScatter,
    "reduce_scatter": ReduceScatter,
    "alltoall": AllToAll,
}
_ROOTED: dict[str, tuple[type[Broadcast | Reduce], set[str]]] = {
    "broadcast": (Broadcast, _RECEIVES),
    "reduce": (Reduce, _SENDS),
}
"""With what the root never does."""
_CHUNKS = 1 << 22
"""Chunks of all buffers of all ranks."""
_OPERATIONS = 1 << 21
"""Chunks of all steps of all ranks: what the proof executes one by one."""


def _fail(at: Where | None, reason: str) -> ParseError:
    location = at.resolve() if at is not None else None
    return ParseError(location.file if location else "text", location.line if location else 1, "", reason)


def _inplace(document: Document) -> list[bool]:
    if document.outofplace is None:
        return [document.inplace]
    found = [inplace for inplace, wanted in ((False, document.outofplace), (True, document.inplace)) if wanted]
    if not found:
        raise _fail(document.where, "inplace and outofplace are both 0: no call would ever use it")
    return found


def _collective(document: Document, inplace: bool) -> Collective:
    """What a file promises: what hocket wrote, if it did, or what its attributes say. The root of a broadcast is then
    the rank that never receives, that of a reduce the one that never sends."""
    d = document
    if d.promise is not None:
        try:
            stated = collectives.parse(d.promise)
        except ValueError as error:
            raise _fail(d.where, f"{d.promise[:80]!r} in its comment is no collective") from error
        words = {target.words.get(stated.name) for target in TARGETS.values()}
        if d.coll not in words or stated.size != len(d.gpus) or loop_chunks(stated, d.coll) != d.loop_chunks:
            raise _fail(d.where, f"its comment says {d.promise[:80]}, its attributes do not")
        return stated.placed(inplace)
    size = len(d.gpus)
    if d.coll == "custom":
        counts = [[gpu.chunks[key] for gpu in d.gpus] for key in "io"]
        return Custom(size, inputs=counts[0], outputs=counts[1], post=lambda rank, index: None, inplace=inplace)
    if d.coll in _ROOTED:
        rooted, busy = _ROOTED[d.coll]
        idle = (
            r
            for r, gpu in enumerate(d.gpus)
            if not any(step.type in busy for block in gpu.blocks for step in block.steps)
        )
        return rooted(size, d.loop_chunks, inplace, next(idle, 0))
    if d.coll not in _PLAIN:
        raise _fail(d.where, f'coll="{d.coll[:40]}": the file does not say what that promises')
    kind, blocks = _PLAIN[d.coll], 1 if d.coll == "allreduce" else size
    if d.loop_chunks % blocks:
        raise _fail(d.where, f"nchunksperloop={d.loop_chunks} is no multiple of {size} ranks, as {d.coll} needs")
    return kind(size, d.loop_chunks // blocks, inplace)


def _meaning(document: Document, inplace: bool) -> FileSchedule:
    d = document
    collective = _collective(d, inplace)
    total = sum(sum(gpu.chunks.values()) for gpu in d.gpus)
    total += sum(collective.inputs(r) + collective.outputs(r) for r in range(collective.size))
    if total > 2 * _CHUNKS:
        raise _fail(d.where, f"buffers of {total // 2} chunks in all; at most {_CHUNKS} are read")
    work = sum(step.count for gpu in d.gpus for block in gpu.blocks for step in block.steps)
    if work > _OPERATIONS:
        raise _fail(d.where, f"steps of {work} chunks in all; at most {_OPERATIONS} are read")
    numbers: dict[Where, int] = {}
    ranks = tuple(Rank(gpu.chunks["s"], _Gpu(d, collective, r, numbers).blocks()) for r, gpu in enumerate(d.gpus))
    protocol = "simple" if d.proto == "Simple" else "auto"
    schedule = FileSchedule(d.name, collective, protocol, SLOTS[d.proto], ranks, (), numbers)
    msccl_ir.verify(schedule)
    return schedule


class _Gpu:
    """Reads the thread blocks of one rank."""

    def __init__(self, document: Document, collective: Collective, rank: int, numbers: dict[Where, int]) -> None:
        self._document = document
        self._collective = collective
        self._rank = rank
        self._gpu = document.gpus[rank]
        self._numbers = numbers
        # Steps that do something, by number in the file; a thread block signals at those with hasdep alone.
        self._real = [
            [s for s, step in enumerate(b.steps) if step.count and step.type != "nop"] for b in self._gpu.blocks
        ]
        self._signals = [
            [s for s, step in enumerate(b.steps) if step.signals and step.type != "nop"] for b in self._gpu.blocks
        ]
        self._silent = self._resolve()

    def blocks(self) -> tuple[ThreadBlock, ...]:
        return tuple(self._block(b, block) for b, block in enumerate(self._gpu.blocks))

    def _block(self, b: int, block: XmlBlock) -> ThreadBlock:
        for peer in (block.send, block.recv):
            if peer is not None and (peer == self._rank or peer >= len(self._document.gpus)):
                raise _fail(block.where, f"there is no connection between rank {self._rank} and rank {peer}")
            if peer is not None and not 0 <= block.channel < self._document.channels:
                raise _fail(block.where, f"chan={block.channel}, and nchannels={self._document.channels}")
        made: list[Step] = []
        pending: dict[Wait, None] = {}
        before: XmlStep | None = None
        for s, step in enumerate(block.steps):
            if step.type == "nop" and step.depends is None:
                raise self._wrong(b, s, "a nop without depid: a runtime counts steps by their dependencies")
            if step.type != "nop" and step.depends is None and before is not None and before.type == "nop":
                raise self._wrong(b, s, "no depid after nops: a runtime wants one of the waits on the step itself")
            if before is not None and _continues(before, step) and before.count != step.count:
                raise self._wrong(b, s, f"a runtime joins this reduction to the one before, of cnt={before.count}")
            before = step
            for wait in self._waits(b, s):
                if wait.thread_block != b:
                    pending[wait] = None
                elif wait.step >= len(made):
                    raise self._wrong(b, s, "it waits for what comes after it, through steps with cnt=0")
            if step.type == "nop" or not step.count:
                continue
            srcs, dsts = self._operands(b, s)
            made.append(Step(srcs, dsts, tuple(pending), step.where))
            self._numbers[step.where[0]] = s
            pending = {}
        return ThreadBlock(
            () if block.recv is None else (Receive(block.recv, block.channel),),
            () if block.send is None else (Send(block.send, block.channel),),
            tuple(made),
        )

    def _wrong(self, b: int, s: int, reason: str) -> InvalidSchedule:
        step = self._gpu.blocks[b].steps[s]
        return InvalidSchedule(reason, StepName(self._rank, step.type, b, s, step.where[0]))

    def _waits(self, b: int, s: int) -> list[Wait]:
        """What a step's dependency waits for, in steps that do something."""
        signal = self._awaited(b, s)
        if signal is None:
            return []
        if signal in self._silent:
            return [Wait(block, step) for block, step in self._silent[signal].items()]
        return [self._wait(*signal)]

    def _wait(self, b: int, s: int) -> Wait:
        return Wait(b, bisect_left(self._real[b], s))

    def _awaited(self, b: int, s: int) -> tuple[int, int] | None:
        """The step of the file that ends the wait of a step: the first that signals, from the one it names on."""
        depends = self._gpu.blocks[b].steps[s].depends
        if depends is None:
            return None
        other, number = depends
        if other >= len(self._gpu.blocks) or not 0 <= number < len(self._gpu.blocks[other].steps):
            raise self._wrong(b, s, f"it depends on step {number} of thread block {other}, which does not exist")
        if other == b:
            raise self._wrong(b, s, "it depends on its own thread block, whose steps are in order anyway")
        later = bisect_left(self._signals[other], number)
        if later == len(self._signals[other]):
            raise self._wrong(
                b, s, f"it waits for ever: step {number} of thread block {other} has hasdep=0, and so has all after it"
            )
        return other, self._signals[other][later]

    def _resolve(self) -> dict[tuple[int, int], dict[int, int]]:
        """For each step that signals and does nothing (cnt=0), the last step of each thread block that is done by then:
        what comes before it, and what that waits for."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        needs: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for b, block in enumerate(self._gpu.blocks):
            for s in self._signals[b]:
                if block.steps[s].count:
                    continue
                position = bisect_left(self._real[b], s)
                done = found[b, s] = {b: position - 1} if position else {}
                needs[b, s] = set()
                for number in range(self._real[b][position - 1] + 1 if position else 0, s + 1):
                    signal = self._awaited(b, number)
                    if signal is None:
                        continue
                    if self._gpu.blocks[signal[0]].steps[signal[1]].count:
                        wait = self._wait(*signal)
                        done[wait.thread_block] = max(done.get(wait.thread_block, -1), wait.step)
                    else:
                        needs[b, s].add(signal)
        ready = [step for step, others in needs.items() if not others]
        waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for step, others in needs.items():
            for other in others:
                waiting.setdefault(other, []).append(step)
        while ready:
            first = ready.pop()
            del needs[first]
            for step in waiting.get(first, ()):
                for b, s in found[first].items():
                    found[step][b] = max(found[step].get(b, -1), s)
                needs[step].remove(first)
                if not needs[step]:
                    ready.append(step)
        if needs:
            raise self._wrong(*min(needs), "it waits for itself, through steps with cnt=0")
        return found

    def _operands(self, b: int, s: int) -> tuple[tuple[Source, ...], tuple[Destination, ...]]:
        block = self._gpu.blocks[b]
        step = block.steps[s]
        srcs: list[Source] = []
        dsts: list[Destination] = []
        if step.type in _RECEIVES:
            if block.recv is None:
                raise self._wrong(b, s, "it receives in a thread block with recv=-1")
            srcs.append(Receive(block.recv, block.channel))
        if step.type == "re":
            srcs.append(self._span(b, s, step.dst))
        if step.type in _READS:
            srcs.append(self._span(b, s, step.src))
        if step.type in _SENDS:
            if block.send is None:
                raise self._wrong(b, s, "it sends in a thread block with send=-1")
            dsts.append(Send(block.send, block.channel))
        if step.type in _WRITES:
            dsts.append(self._span(b, s, step.dst))
        return tuple(srcs), tuple(dsts)

    def _span(self, b: int, s: int, place: Place) -> Span:
        letter, offset = place
        count = self._gpu.blocks[b].steps[s].count
        chunks = self._gpu.chunks[letter]
        if offset < 0 or offset + count > chunks:
            raise self._wrong(b, s, f"{letter}[{offset}:{offset + count}] is outside of {letter}_chunks={chunks}")
        buffer, base = self._memory(_NAMES[letter])
        return Span(self._rank, buffer, base + offset, count)

    def _memory(self, buffer: BufferName) -> tuple[BufferName, int]:
        """The physical buffer that a name stands for. In place, a rank that has only one of the two has it twice."""
        c, r = self._collective, self._rank
        if c.inplace and buffer == "in" and not c.inputs(r):
            return "out", 0
        if c.inplace and buffer == "out" and not c.outputs(r):
            return "in", 0
        return c.place(r, buffer)
