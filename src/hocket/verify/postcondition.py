"""The postcondition: a program or a schedule is executed over expressions and compared with its collective."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from hocket.collectives import BufferName, Collective, Contribution, Sum, members
from hocket.errors import Flow, PostconditionFailed, UninitializedChunk, Where, show_span
from hocket.ir.chunk_dag import ChunkDag, Span
from hocket.ir.schedule import Narrowing, Receive, Send, Source
from hocket.semantics import evaluate
from hocket.verify.events import Events, Order

Term = int
"""An expression, by number: an input chunk, or the sum of two terms, in that order."""

Buffers = dict[BufferName, list[Term | None]]


class Terms:
    """Expressions over input chunks, each made once, and the set of input chunks that each adds up."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self.parts: list[tuple[Term, Term] | Contribution] = []
        self.leaves = 0
        self.sums: list[Sum | None] = []
        self.place: list[int] = []
        self._known: dict[tuple[Term, Term], Term] = {}

    def enter(self, scratch: Sequence[int]) -> list[Buffers]:
        """The memory of all ranks before the first step: input chunks, and nothing else."""
        memory: list[Buffers] = []
        for rank in range(self.collective.size):
            inputs, alias = self.collective.inputs(rank), self.collective.alias(rank)
            buffers: Buffers = {
                "in": [None] * inputs,
                "out": [None] * self.collective.outputs(rank),
                "sc": [None] * scratch[rank],
            }
            moved = alias is not None and alias.buffer == "in"
            target, offset = (alias.target, alias.offset) if alias is not None and moved else ("in", 0)
            for index in range(inputs):
                buffers[target][offset + index] = len(self.parts)
                self.parts.append((rank, index))
                self.sums.append(((index, 1 << rank),))
                self.place.append(self.collective.position(index))
            memory.append(buffers)
        self.leaves = len(self.parts)
        return memory

    def combine(self, a: Term, b: Term) -> Term:
        """The term a + b."""
        known = self._known.get((a, b))
        if known is not None:
            return known
        term = self._known[a, b] = len(self.parts)
        self.parts.append((a, b))
        self.sums.append(_union(self.sums[a], self.sums[b]))
        self.place.append(min(self.place[a], self.place[b]))
        return term

    def count(self, term: Term) -> Counter[Contribution]:
        """How often each input chunk is added up in a term."""
        weight: Counter[Term] = Counter({term: 1})
        found: Counter[Contribution] = Counter()
        for t in range(term, -1, -1):
            times = weight.pop(t, 0)
            if times and t < self.leaves:
                found[self.parts[t]] += times
            elif times:
                for part in self.parts[t]:
                    weight[part] += times
        return found


def _union(a: Sum | None, b: Sum | None) -> Sum | None:
    """The union of two sets of input chunks, None if they share one (or if one of them is None already)."""
    if a is None or b is None:
        return None
    if len(a) == 1 and len(b) == 1 and a[0][0] == b[0][0]:
        return None if a[0][1] & b[0][1] else ((a[0][0], a[0][1] | b[0][1]),)
    masks = dict(a)
    for index, mask in b:
        if masks.get(index, 0) & mask:
            return None
        masks[index] = masks.get(index, 0) | mask
    return tuple(sorted(masks.items()))


def check_program(dag: ChunkDag) -> None:
    """Raise PostconditionFailed, with the lines that made it so, if a program does not do what it promises."""
    terms = Terms(dag.collective)
    memory = terms.enter(dag.scratch)
    for _, node in dag.operations():
        src, dst = node.src, node.dst
        assert src is not None
        values = memory[src.rank][src.buffer][src.index : src.indices().stop : src.stride]
        target = memory[dst.rank][dst.buffer]
        if node.kind.value == "copy":
            for i, value in zip(dst.indices(), values, strict=True):
                target[i] = value
        else:
            for i, value in zip(dst.indices(), values, strict=True):
                held = target[i]
                assert held is not None
                assert value is not None
                target[i] = terms.combine(held, value)

    def history(rank: int, buffer: BufferName, index: int) -> tuple[Flow, ...]:
        return _history(dag, rank, buffer, index)

    _check_outputs(terms, memory, history)


def check_values(events: Events, order: Order) -> tuple[Narrowing, ...]:
    """Execute one tile of a schedule over expressions. Returns what uneven sizes must be refused for.

    Raises UninitializedChunk, CountMismatch or PostconditionFailed.
    """
    schedule = events.schedule
    terms = Terms(schedule.collective)
    memory = terms.enter([rank.scratch for rank in schedule.ranks])
    queues: dict[tuple[int, int, int], deque[list[Term]]] = {key: deque() for key in events.sent}
    narrow: dict[tuple[int, int], Where | None] = {}
    chunks = schedule.collective.chunks
    place = terms.place
    rank, number = 0, 0

    def fetch(source: Source) -> list[Term]:
        if isinstance(source, Receive):
            return queues[source.peer, rank, source.channel].popleft()
        held = memory[rank][source.buffer]
        values = held[source.index : source.indices().stop : source.stride]
        if None in values:
            missing = source.indices()[values.index(None)]
            where = events.steps[number].where
            raise UninitializedChunk(rank, source.buffer, missing, where[0] if where else None)
        return values  # type: ignore[return-value]

    for number in order:
        step, rank = events.steps[number], events.rank[number]
        values = evaluate(step.srcs, fetch, terms.combine)
        for target in step.dsts:
            if type(target) is Send:
                queues[rank, target.peer, target.channel].append(values)
                continue
            assert not isinstance(target, Send)
            held = memory[rank][target.buffer]
            user = target.buffer != "sc"
            for index, value in zip(target.indices(), values, strict=True):
                held[index] = value
                if user and place[value] < index % chunks:
                    narrow.setdefault((place[value], index % chunks), step.where[0] if step.where else None)

    def history(rank: int, buffer: BufferName, index: int) -> tuple[Flow, ...]:
        flows = []
        for i in order:
            step = events.steps[i]
            if events.rank[i] == rank and step.where and _writes(step.dsts, buffer, index):
                flows.append(Flow(step.where[0], f"{step} writes it"))
        return tuple(flows[-5:])

    _check_outputs(terms, memory, history)
    return tuple(Narrowing(value, location, narrow[value, location]) for value, location in sorted(narrow))


def _writes(operands: tuple[object, ...], buffer: BufferName, index: int) -> bool:
    return any(isinstance(o, Span) and o.buffer == buffer and index in o.indices() for o in operands)


def _check_outputs(
    terms: Terms, memory: list[Buffers], history: Callable[[int, BufferName, int], tuple[Flow, ...]]
) -> None:
    collective = terms.collective
    wrong: list[tuple[int, int, BufferName, int]] = []
    for rank in range(collective.size):
        alias = collective.alias(rank)
        buffer, offset = (alias.target, alias.offset) if alias and alias.buffer == "out" else ("out", 0)
        held = memory[rank][buffer]
        for index in range(collective.outputs(rank)):
            wanted = collective.required(rank, index)
            if wanted is not None:
                term = held[offset + index]
                if term is None or terms.sums[term] != wanted:
                    wrong.append((rank, index, buffer, offset + index))
    if not wrong:
        return
    rank, index, buffer, at = wrong[0]
    wanted = collective.required(rank, index)
    assert wanted is not None
    term = memory[rank][buffer][at]
    counts = terms.count(term) if term is not None else Counter[Contribution]()
    expected = members(wanted)
    flows = history(rank, buffer, at)
    raise PostconditionFailed(
        collective.name,
        rank,
        "out",
        index,
        _show(sorted(counts, key=lambda c: (c[1], c[0])), counts) if counts else "nothing",
        _show(expected, Counter(expected)),
        tuple(_chunk(c) for c in expected if c not in counts),
        tuple(_chunk(c) for c in sorted(counts) if counts[c] > 1),
        tuple(_chunk(c) for c in sorted(counts) if c not in set(expected)),
        flows,
        len(wrong) - 1,
        not flows and (term is None or (buffer == "in" and counts == {(rank, at): 1})),
    )


def _chunk(chunk: Contribution) -> str:
    return f"rank {chunk[0]} in[{chunk[1]}]"


def _show(chunks: Sequence[Contribution], counts: Counter[Contribution], limit: int = 4) -> str:
    once = counts.total() == len(chunks)
    if once and len({index for _, index in chunks}) == 1 and len(chunks) > limit:
        ranks = [rank for rank, _ in chunks]
        if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
            return f"the sum of in[{chunks[0][1]}] of ranks {ranks[0]} to {ranks[-1]}"
    more = f" + {len(chunks) - 2 * limit} more" if len(chunks) > 2 * limit else ""
    return " + ".join((f"{counts[c]} x " if counts[c] > 1 else "") + _chunk(c) for c in chunks[: 2 * limit]) + more


def _history(dag: ChunkDag, rank: int, buffer: BufferName, index: int, limit: int = 5) -> tuple[Flow, ...]:
    """The last operations on the way of a chunk, oldest first, one for each line of the program."""
    last = None
    for number, node in dag.operations():
        if node.dst.rank == rank and node.dst.buffer == buffer and index in node.dst.indices():
            last = number
    flows: list[Flow] = []
    seen: set[object] = set()
    frontier = [] if last is None else [last]
    visited = set(frontier)
    while frontier and len(flows) < limit:
        number = max(frontier)
        frontier.remove(number)
        node = dag.nodes[number]
        if node.src is None:
            continue
        if node.where is not None and node.where.resolve() not in seen:
            seen.add(node.where.resolve())
            verb = "copied" if node.kind.value == "copy" else "reduced"
            source, target = (show_span(s.rank, s.buffer, s.index, s.count) for s in (node.src, node.dst))
            text = f"{source} {verb} into {target}"
            flows.append(Flow(node.where, text))
        fresh = [d for d in node.true if d not in visited]
        visited.update(fresh)
        frontier += fresh
    return tuple(reversed(flows))
