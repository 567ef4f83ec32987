"""What a file of MSCCL's XML means, as its runtimes understand it: waits, signals, buffers, what it promises."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
from hocket.errors import InvalidSchedule, ParseError, StepName, Where
from hocket.formats.msccl_document import Document, Place, XmlBlock, XmlStep, joins
from hocket.formats.msccl_targets import READS, RECEIVES, SENDS, SLOTS, TARGETS, WRITES, loop_chunks
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step, ThreadBlock, Wait

_NAMES: dict[str, BufferName] = {"i": "in", "o": "out", "s": "sc"}


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


_PLAIN: dict[str, type[Collective]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reducescatter": ReduceScatter,
    "reduce_scatter": ReduceScatter,
    "alltoall": AllToAll,
}
_ROOTED: dict[str, tuple[type[Broadcast | Reduce], frozenset[str]]] = {
    "broadcast": (Broadcast, RECEIVES),
    "reduce": (Reduce, SENDS),
}
"""With what the root never does."""
_CHUNKS = 1 << 22
"""Chunks of all buffers of all ranks."""
_OPERATIONS = 1 << 21
"""Chunks of all steps of all ranks: what the proof executes one by one."""


def _fail(at: Where | None, reason: str) -> ParseError:
    location = at.resolve() if at is not None else None
    if location is None:
        return ParseError("text", 1, "", reason)
    return ParseError(location.file, location.line, location.source or "", reason)


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
            if before is not None and joins(before, step) and before.count != step.count:
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
        if step.type in RECEIVES:
            if block.recv is None:
                raise self._wrong(b, s, "it receives in a thread block with recv=-1")
            srcs.append(Receive(block.recv, block.channel))
        if step.type == "re":
            srcs.append(self._span(b, s, step.dst))
        if step.type in READS:
            srcs.append(self._span(b, s, step.src))
        if step.type in SENDS:
            if block.send is None:
                raise self._wrong(b, s, "it sends in a thread block with send=-1")
            dsts.append(Send(block.send, block.channel))
        if step.type in WRITES:
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
