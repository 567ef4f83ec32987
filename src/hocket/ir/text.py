"""The text of each stage. What is printed for an Instruction DAG or a Schedule parses back to an equal value.

Operands: ``in[2]``, ``in[2:+3]`` (3 chunks), ``in[2:+3x4]`` (4 apart); ``<E`` and ``>E`` for the two ends of edge E;
``<P.C`` receives from rank P on channel C, ``>P.C`` sends to it, ``>P.C@1.in[2]`` with the message in place, in[2] of
rank 1. Everything after ``#`` says where a step came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NoReturn

from hocket import collectives
from hocket.collectives import BufferName, Collective
from hocket.errors import InvalidArgument, InvalidSchedule, Location, ParseError, Where, WrongType, caller, printable
from hocket.ir import instr_dag
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import STORAGES, ChunkDag, Kind, Span, Storage
from hocket.ir.instr_dag import Arrival, Departure, Edge, Instr, InstrDag
from hocket.ir.schedule import Narrowing, Rank, Receive, Schedule, Send, Step, ThreadBlock, Wait

Stage = ChunkDag | InstrDag | Schedule


def print_stage(stage: Stage, *, locations: bool = True, ranks: Iterable[int] | None = None) -> str:
    """Text of any stage; with ``ranks``, only what happens on those (such an excerpt does not parse back)."""
    only = None if ranks is None else frozenset(ranks)
    if isinstance(stage, Schedule):
        return print_schedule(stage, locations=locations, only=only)
    if isinstance(stage, InstrDag):
        return print_instr_dag(stage, locations=locations, only=only)
    return print_chunk_dag(stage, locations=locations, only=only)


def _from(where: Where | tuple[Where, ...] | None, locations: bool) -> str:
    if not locations or not where:
        return ""
    places = where if isinstance(where, tuple) else (where,)
    found = [place.resolve() for place in places]
    # Without the folder and the source, so that a program gives the same text wherever it is compiled.
    return "  # " + ", ".join(
        f"{printable(' '.join(at.file.rpartition('/')[2].split()))}:{at.line}:{at.column + 1}" for at in found
    )


def _quote(name: str) -> str:
    return json.dumps(name).replace("#", "\\u0023")


def print_chunk_dag(dag: ChunkDag, *, locations: bool = True, only: frozenset[int] | None = None) -> str:
    """One line a node: number, operation, operands with their ranks, dependencies, hints, source line."""
    out = [f"chunks {_quote(dag.name)}", f"collective {dag.collective}"]
    for i, node in enumerate(dag.nodes):
        touched = {node.dst.rank} | ({node.src.rank} if node.src is not None else set())
        if only is not None and not touched & only:
            continue
        if node.kind is Kind.INPUT or node.src is None:
            out.append(f"{i}: input {node.dst.rank}.{node.dst}")
            continue
        words = [f"{i}: {node.kind.value} {node.src.rank}.{node.src} -> {node.dst.rank}.{node.dst}"]
        words += [f"true {' '.join(map(str, node.true))}"] if node.true else []
        words += [f"false {' '.join(map(str, node.false))}"] if node.false else []
        hints = node.hints
        words += [f"ch={hints.channel}"] if hints.channel is not None else []
        words += [f"storage={hints.storage}"] if hints.storage is not None else []
        if hints.instance is not None:
            words += [f"instance {hints.instance} of {hints.instances}"] if hints.instances > 1 else []
        elif hints.instances > 1:
            words += [f"parallel {hints.instances}"]
        out.append("  ".join(words) + _from(node.where, locations))
    return "\n".join(out) + "\n"


def print_instr_dag(dag: InstrDag, *, locations: bool = True, only: frozenset[int] | None = None) -> str:
    """Edges first, then one line an instruction, in order."""
    out = [
        f"instructions {_quote(dag.name)}",
        f"collective {dag.collective}",
        f"protocol {dag.protocol}",
        f"refinement {dag.refinement}",
        f"scratch {' '.join(map(str, dag.scratch))}",
    ]
    for i, edge in enumerate(dag.edges):
        if only is None or {edge.src, edge.dst} & only:
            base = "" if edge.base is None else f"  channel {edge.base}"
            instance = f"  instance {edge.instance}" if edge.instance else ""
            storage = f"  storage {edge.storage}" if edge.storage is not None else ""
            at = f"  at {edge.at.rank}.{edge.at}" if edge.at is not None else ""
            ends = f"edge {i}: {edge.src} -> {edge.dst} x{edge.count}"
            out.append(f"{ends}{base}{instance}{storage}{at}{_from(edge.where, locations)}")
    for i, instr in enumerate(dag.instrs):
        if only is None or instr.rank in only:
            srcs, dsts = (" ".join(map(str, operands)) for operands in (instr.srcs, instr.dsts))
            words = [f"{i}: @{instr.rank} {instr_dag.opcode(instr.shape)} {srcs} -> {dsts}"]
            words += [f"after {' '.join(map(str, dag.after[i]))}"] if dag.after[i] else []
            words += [f"block {dag.blocks[i]}"] if dag.blocks else []
            out.append("  ".join(words) + _from(instr.where, locations))
    return "\n".join(out) + "\n"


def print_schedule(schedule: Schedule, *, locations: bool = True, only: frozenset[int] | None = None) -> str:
    """Ranks, their thread blocks, and a line a step; ``after B.S`` waits for step S of thread block B."""
    out = [
        f"schedule {_quote(schedule.name)}",
        f"collective {schedule.collective}",
        f"protocol {schedule.protocol}",
        f"slots {schedule.slots}",
    ]
    for narrowing in schedule.narrowings:
        out.append(f"narrow {narrowing.value} -> {narrowing.location}{_from(narrowing.where, locations)}")
    for r, rank in enumerate(schedule.ranks):
        if only is not None and r not in only:
            continue
        out.append(f"rank {r} scratch {rank.scratch}")
        for b, block in enumerate(rank.thread_blocks):
            out.append(" ".join([f"  block {b}", *map(str, block.receives), *map(str, block.sends)]))
            for s, step in enumerate(block.steps):
                after = "  after " + " ".join(f"{w.thread_block}.{w.step}" for w in step.waits) if step.waits else ""
                out.append(f"    {s}: {step}{after}{_from(step.where, locations)}")
    return "\n".join(out) + "\n"


# ---------------------------------------------------------------------------------------------------------------

_SPAN = re.compile(r"(in|out|sc)\[(\d+)(?::\+(\d+)(?:x(\d+))?)?\]\Z")
_END = re.compile(r"([<>])(\d+)\.(\d+)(?:@(.+))?\Z")
_EDGE = re.compile(r"([<>])(\d+)\Z")
_FROM = re.compile(r"(.+):([0-9]{1,9}):([0-9]{1,9})\Z")
_DIGITS = 18

_FEW_CHUNKS = 1 << 20
"""Chunks that any text may stand for: a proof of so many takes about a second and 250 MB."""
_CHUNKS_PER_CHARACTER = 32
"""How many more a longer text may. Of the library AllToNext has most, among 1024 ranks as many as this."""


class _Lines:
    """The lines of a text, one at a time, and the error that names the current one."""

    def __init__(self, text: str, source: str) -> None:
        if not isinstance(text, str):
            hint = "that of a file is Path(...).read_text()"
            raise WrongType(f"only a text can be parsed, not {type(text).__name__}", caller(), hint)
        self._lines = text.split("\n")
        self._source = source
        self.number = 0
        self.line = ""
        self.where: tuple[Where, ...] = ()

    def next(self) -> bool:
        """Move to the next line that says something; its comment becomes ``where``."""
        while self.number < len(self._lines):
            raw = self._lines[self.number]
            self.number += 1
            body, _, comment = raw.partition("  # ")
            self.line = body.strip()
            if self.line and not self.line.startswith("#"):
                self.where = self._places(comment)
                return True
        self.line = ""
        return False

    def _places(self, comment: str) -> tuple[Where, ...]:
        found = []
        for word in comment.split(", ") if comment else ():
            match = _FROM.match(word.strip())
            if match is not None:
                found.append(Location(match[1], int(match[2]), max(0, int(match[3]) - 1)))
        return tuple(found)

    def fail(self, reason: str) -> NoReturn:
        raise ParseError(self._source, self.number, self._lines[self.number - 1] if self.line else "", reason)

    def take(self, keyword: str) -> str:
        """The rest of the next line, which must begin with ``keyword``."""
        if not self.next() or not (self.line + " ").startswith(keyword + " "):
            self.fail(f"expected '{keyword} ...'")
        return self.line[len(keyword) :].strip()

    def int(self, word: str) -> int:
        if not word.isascii() or not word.isdigit() or len(word) > _DIGITS:
            self.fail(f"expected a number, found {word!r}")
        return int(word)

    def name(self, word: str) -> str:
        try:
            found = json.loads(word)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, str):
            self.fail(f"expected a name in quotes, found {word}")
        return found

    def collective(self, word: str) -> Collective:
        try:
            return collectives.parse(word)
        except InvalidArgument as error:
            self.fail(error.message)
        except ValueError as error:
            self.fail(str(error))


def _span(match: re.Match[str], rank: int, lines: _Lines) -> Span:
    buffer: BufferName = match[1]  # type: ignore[assignment]
    return Span(rank, buffer, lines.int(match[2]), lines.int(match[3] or "1"), lines.int(match[4] or "1"))


def _place(word: str, lines: _Lines) -> Span:
    """A place with its rank."""
    rank, _, place = word.partition(".")
    match = _SPAN.match(place)
    if match is None:
        lines.fail(f"expected a place of a rank such as 1.in[2], found {word!r}")
    return _span(match, lines.int(rank), lines)


def _clauses(line: str) -> list[str]:
    return [clause for clause in line.split("  ") if clause.strip()]


def _operands(body: str, lines: _Lines) -> tuple[str, list[str], list[str]]:
    left, arrow, right = body.partition(" -> ")
    words = left.split()
    if not arrow or not words:
        lines.fail("expected 'opcode sources -> destinations'")
    return words[0], words[1:], right.split()


def parse_schedule(text: str, source: str = "schedule") -> Schedule:
    """The inverse of ``print_schedule``. Raises WrongType for what is no text, ParseError with the line, or what
    ``ir.schedule.verify`` raises."""
    lines = _Lines(text, source)
    name = lines.name(lines.take("schedule"))
    collective = lines.collective(lines.take("collective"))
    protocol = lines.take("protocol")
    slots = lines.int(lines.take("slots"))
    narrowings: list[Narrowing] = []
    ranks: list[Rank] = []
    more = lines.next()
    while more and lines.line.startswith("narrow "):
        value, _, location = lines.line.removeprefix("narrow ").partition(" -> ")
        where = lines.where[0].resolve() if lines.where else None
        narrowings.append(Narrowing(lines.int(value), lines.int(location), where))
        more = lines.next()
    while more:
        words = lines.line.split()
        if len(words) != 4 or words[0] != "rank" or words[2] != "scratch" or lines.int(words[1]) != len(ranks):
            lines.fail(f"expected 'rank {len(ranks)} scratch N'")
        scratch = lines.int(words[3])
        blocks: list[ThreadBlock] = []
        more = lines.next()
        while more and lines.line.startswith("block "):
            words = lines.line.split()
            if lines.int(words[1]) != len(blocks):
                lines.fail(f"expected 'block {len(blocks)}'")
            ends = [_connection(word, lines) for word in words[2:]]
            steps: list[Step] = []
            more = lines.next()
            while more and lines.line[0].isdigit():
                steps.append(_step(len(ranks), len(steps), lines))
                more = lines.next()
            blocks.append(
                ThreadBlock(
                    tuple(e for e in ends if isinstance(e, Receive)),
                    tuple(e for e in ends if isinstance(e, Send)),
                    tuple(steps),
                )
            )
        ranks.append(Rank(scratch, tuple(blocks)))
    schedule = Schedule(name, collective, protocol, slots, tuple(ranks), tuple(narrowings))
    msccl_ir.verify(schedule)
    _check_work(schedule, len(text))
    return schedule


def _check_work(schedule: Schedule, characters: int) -> None:
    """Raise InvalidSchedule if a proof would take much more than the length of the text allows for: it keeps a value
    for each chunk of a buffer, and works on each chunk of a step."""
    collective = schedule.collective
    chunks = sum(collective.inputs(r) + collective.outputs(r) + rank.scratch for r, rank in enumerate(schedule.ranks))
    chunks += sum(step.count or 0 for _, _, _, step in schedule.steps())
    most = _FEW_CHUNKS + _CHUNKS_PER_CHARACTER * characters
    if chunks > most:
        raise InvalidSchedule(
            f"its buffers and steps have {chunks} chunks in all; a text of {characters} characters may have {most}"
        )


def _connection(word: str, lines: _Lines, otherwise: str = "") -> Receive | Send:
    match = _END.match(word)
    if match is None:
        lines.fail(f"expected {otherwise}a connection such as <1.0 or >1.0, found {word!r}")
    peer, channel, at = lines.int(match[2]), lines.int(match[3]), None
    if match[4] is not None:
        at = _place(match[4], lines)
    return Receive(peer, channel, at) if match[1] == "<" else Send(peer, channel, at)


def _step(rank: int, number: int, lines: _Lines) -> Step:
    head, _, rest = lines.line.partition(":")
    if lines.int(head) != number:
        lines.fail(f"expected step {number}")
    clauses = _clauses(rest)
    if not clauses:
        lines.fail("expected a step")
    name, left, right = _operands(clauses[0].strip(), lines)
    srcs: list[msccl_ir.Source] = []
    dsts: list[msccl_ir.Destination] = []
    for word in left:
        span = _SPAN.match(word)
        end = _span(span, rank, lines) if span else _connection(word, lines, "a place such as in[2], or ")
        if isinstance(end, Send):
            lines.fail(f"{word} is no source")
        srcs.append(end)
    for word in right:
        span = _SPAN.match(word)
        target = _span(span, rank, lines) if span else _connection(word, lines, "a place such as in[2], or ")
        if isinstance(target, Receive):
            lines.fail(f"{word} is no destination")
        dsts.append(target)
    waits: list[Wait] = []
    for clause in clauses[1:]:
        words = clause.split()
        if words[0] != "after":
            lines.fail(f"expected 'after', found {words[0]!r}")
        for word in words[1:]:
            block, _, step = word.partition(".")
            waits.append(Wait(lines.int(block), lines.int(step)))
    found = Step(tuple(srcs), tuple(dsts), tuple(waits), lines.where)
    if found.opcode != name:
        lines.fail(f"operands of {found.opcode}, not of {name}")
    return found


def parse_instr_dag(text: str, source: str = "instructions") -> InstrDag:
    """The inverse of ``print_instr_dag``. Raises ParseError with the line, or what ``ir.instr_dag.verify`` raises."""
    lines = _Lines(text, source)
    name = lines.name(lines.take("instructions"))
    collective = lines.collective(lines.take("collective"))
    protocol = lines.take("protocol")
    refinement = lines.int(lines.take("refinement"))
    scratch = tuple(lines.int(word) for word in lines.take("scratch").split())
    edges: list[Edge] = []
    instrs: list[Instr] = []
    after: list[tuple[int, ...]] = []
    blocks: list[int] = []
    more = lines.next()
    while more and lines.line.startswith("edge "):
        edges.append(_edge(len(edges), lines))
        more = lines.next()
    while more:
        instr, before, block = _instr(len(instrs), lines)
        if instrs and (block is None) == bool(blocks):
            lines.fail("either every instruction has a thread block, or none")
        instrs.append(instr)
        after.append(before)
        blocks += [] if block is None else [block]
        more = lines.next()
    dag = InstrDag(
        name,
        collective,
        protocol,
        refinement,
        tuple(instrs),
        tuple(after),
        tuple(edges),
        scratch,
        tuple(blocks),
    )
    instr_dag.verify(dag)
    return dag


def _edge(number: int, lines: _Lines) -> Edge:
    clauses = _clauses(lines.line)
    match = re.match(r"edge (\d+): (\d+) -> (\d+) x(\d+)\Z", clauses[0])
    if match is None or lines.int(match[1]) != number:
        lines.fail(f"expected 'edge {number}: SRC -> DST xCOUNT'")
    base, instance = None, 0
    storage: Storage | None = None
    at: Span | None = None
    for clause in clauses[1:]:
        key, _, value = clause.partition(" ")
        if key == "channel":
            base = lines.int(value)
        elif key == "instance":
            instance = lines.int(value)
        elif key == "storage" and value in STORAGES:
            storage = next(known for known in STORAGES if known == value)
        elif key == "at":
            at = _place(value, lines)
        else:
            lines.fail(f"expected 'channel', 'instance', 'storage' or 'at', found {clause!r}")
    where = lines.where[0] if lines.where else None
    return Edge(lines.int(match[2]), lines.int(match[3]), lines.int(match[4]), base, instance, where, storage, at)


def _instr(number: int, lines: _Lines) -> tuple[Instr, tuple[int, ...], int | None]:
    """An instruction, what it comes after, and its thread block."""
    clauses = _clauses(lines.line)
    match = re.match(r"(\d+): @(\d+) (.*)\Z", clauses[0])
    if match is None or lines.int(match[1]) != number:
        lines.fail(f"expected '{number}: @RANK opcode sources -> destinations'")
    rank = lines.int(match[2])
    name, left, right = _operands(match[3], lines)
    srcs: list[instr_dag.Source] = []
    dsts: list[instr_dag.Destination] = []
    for words, ends in ((left, "<"), (right, ">")):
        for word in words:
            span, edge = _SPAN.match(word), _EDGE.match(word)
            if span is not None:
                (srcs if ends == "<" else dsts).append(_span(span, rank, lines))
            elif edge is None or edge[1] != ends:
                lines.fail(f"{word} is no {'source' if ends == '<' else 'destination'}")
            elif ends == "<":
                srcs.append(Arrival(lines.int(edge[2])))
            else:
                dsts.append(Departure(lines.int(edge[2])))
    after: tuple[int, ...] = ()
    block: int | None = None
    for clause in clauses[1:]:
        key, _, value = clause.partition(" ")
        if key == "after":
            after = tuple(lines.int(word) for word in value.split())
        elif key == "block":
            block = lines.int(value)
        else:
            lines.fail(f"expected 'after' or 'block', found {key!r}")
    instr = Instr(rank, tuple(srcs), tuple(dsts), lines.where)
    if instr_dag.opcode(instr.shape) != name:
        lines.fail(f"operands of {instr_dag.opcode(instr.shape)}, not of {name}")
    return instr, after, block
