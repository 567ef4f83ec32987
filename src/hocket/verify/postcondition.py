"""The postcondition: a program or a schedule is executed over expressions and compared with its collective."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from hocket.collectives import BufferName, Collective, Contribution, Sum, members
from hocket.errors import Flow, Location, Partial, PostconditionFailed, UninitializedChunk, Where, show_span
from hocket.ir.chunk_dag import ChunkDag, Kind, Span, shares_chunk
from hocket.ir.schedule import Narrowing, Receive, Send, Source
from hocket.semantics import Memory, evaluate, initial_memory
from hocket.verify.events import Events, Order

Term = int
"""An expression, by number: an input chunk, or a sum of terms from the first to the last that is rounded once."""


class Terms:
    """Expressions over input chunks, each made once. Leaves, the input chunks, come first.

    ``parts[t]`` are the terms that term t sums up, or (rank, index) of an input chunk. ``made[t]`` is the step that
    made it first: what stood in ``step`` then.
    """

    def __init__(self, collective: Collective, scratch: Sequence[int]) -> None:
        self.collective = collective
        self.parts: list[tuple[int, ...]] = []
        self.place: list[int] = []
        self.made: list[int] = []
        self.step = 0
        self._known: dict[tuple[Term, ...], Term] = {}
        self.memory: Memory[Term] = initial_memory(collective, scratch, self._leaf)
        self.leaves = len(self.parts)

    def _leaf(self, rank: int, index: int) -> Term:
        self.parts.append((rank, index))
        self.made.append(0)
        self.place.append(self.collective.position(index))
        return len(self.parts) - 1

    def combine(self, *parts: Term) -> Term:
        """The sum of two or more terms."""
        known = self._known.get(parts)
        if known is not None:
            return known
        term = self._known[parts] = len(self.parts)
        self.parts.append(parts)
        self.made.append(self.step)
        self.place.append(min(map(self.place.__getitem__, parts)))
        return term

    def outputs(self) -> list[list[Term | None]]:
        """The output of each rank as it is now."""
        collective = self.collective
        found = []
        for rank in range(collective.size):
            buffer, offset = collective.place(rank, "out")
            found.append(self.memory[rank][buffer][offset : offset + collective.outputs(rank)])
        return found

    def sums(self, wanted: set[Term]) -> dict[Term, Sum | None]:
        """The set of input chunks that each wanted term adds up; None if it adds one up twice.

        Each set is kept only until its last use, and a set that nothing else needs is extended in place, so that a
        long sum costs no more than its length.
        """
        parts, leaves = self.parts, self.leaves
        uses = [0] * len(parts)
        for t in wanted:
            uses[t] = 1
        for t in range(len(parts) - 1, leaves - 1, -1):
            if uses[t]:
                for part in parts[t]:
                    uses[part] += 1
        sets: dict[Term, dict[int, int] | None] = {}

        def take(t: Term) -> dict[int, int] | None:
            if t < leaves:
                rank, index = parts[t]
                return {index: 1 << rank}
            uses[t] -= 1
            if not uses[t]:
                return sets.pop(t)
            total = sets[t]
            return None if total is None else dict(total)

        found: dict[Term, Sum | None] = {}
        for t in range(len(parts)):
            if t >= leaves and uses[t]:
                sets[t] = functools.reduce(_union, map(take, parts[t]))
            if t in wanted:
                total = take(t)
                found[t] = None if total is None else tuple(sorted(total.items()))
        return found

    def count(self, term: Term) -> Counter[Contribution]:
        """How often each input chunk is added up in a term."""
        weight: Counter[Term] = Counter({term: 1})
        found: Counter[Contribution] = Counter()
        for t in range(term, -1, -1):
            times = weight.pop(t, 0)
            if times and t < self.leaves:
                rank, index = self.parts[t]
                found[rank, index] += times
            elif times:
                for part in self.parts[t]:
                    weight[part] += times
        return found


def _union(a: dict[int, int] | None, b: dict[int, int] | None) -> dict[int, int] | None:
    """The union of two sets of input chunks, which may be used up; None if they share one (or are None already)."""
    if a is None or b is None:
        return None
    if len(a) < len(b):
        a, b = b, a
    for index, mask in b.items():
        held = a.get(index, 0)
        if held & mask:
            return None
        a[index] = held | mask
    return a


def check_program(dag: ChunkDag) -> None:
    """Raise PostconditionFailed, with the lines that made it so, if a program does not do what it promises."""
    terms = Terms(dag.collective, dag.scratch)
    stored = _execute(dag, terms)

    def history(rank: int, buffer: BufferName, index: int) -> tuple[Flow, ...]:
        return _history(dag, rank, buffer, index)

    error = _check_outputs(terms, history)
    if error is None:
        return
    if not error.twice and not error.foreign:
        error.partials = _partials(terms, stored, error.rank, error.index)
    error.right_in_place = not dag.collective.inplace and _right_in_place(dag)
    raise error


_Stored = dict[Term, dict[int, tuple[BufferName, int, Where | None]]]
"""Where each term was first stored on each rank that stored it: buffer, index, and what did so."""


def _execute(dag: ChunkDag, terms: Terms) -> _Stored:
    """Do the operations of a program in the memory of the terms."""
    stored: _Stored = {}
    collective, memory = terms.collective, terms.memory

    def physical(span: Span) -> Span:
        buffer, offset = collective.place(span.rank, span.buffer)
        return span if buffer == span.buffer else structs.replace(span, buffer=buffer, index=span.index + offset)

    def fetch(source: Source) -> list[Term]:
        assert isinstance(source, Span)
        # The language has checked that all of it was written.
        return source.get(memory[source.rank][source.buffer])  # type: ignore[arg-type]

    copy = Kind.COPY
    for _, node in dag.operations():
        assert node.src is not None
        src, dst = physical(node.src), physical(node.dst)
        sources = (src,) if node.kind is copy else (dst, src)
        values: Sequence[Term] = evaluate(sources, fetch, terms.combine)
        dst.set(memory[dst.rank][dst.buffer], values)
        for i, value in zip(dst.indices(), values, strict=True):
            stored.setdefault(value, {}).setdefault(dst.rank, (dst.buffer, i, node.where))
    return stored


def _partials(terms: Terms, stored: _Stored, rank: int, index: int) -> tuple[Partial, ...]:
    """Where ``out[index]`` of ``rank`` could get what it lacks of its sum: all of it, or the largest parts of the rest,
    up to three."""
    collective = terms.collective
    wanted = set(members(collective.required(rank, index) or ()))
    if len(wanted) < 2:
        return ()
    held = terms.outputs()[rank][index]
    missing = wanted - (terms.count(held).keys() if held is not None else set())
    sums = {term: set(members(total)) for term, total in terms.sums(set(stored)).items() if total is not None}
    useful = [term for term, total in sums.items() if total == wanted or total <= missing]
    found: list[Partial] = []
    for term in sorted(useful, key=lambda term: (-len(sums[term]), rank not in stored[term], term)):
        if missing and len(found) < 3 and (sums[term] == wanted or sums[term] <= missing):
            missing = missing - sums[term]
            at = rank if rank in stored[term] else next(iter(stored[term]))
            buffer, i, where = stored[term][at]
            shown = sorted(sums[term], key=lambda c: (c[1], c[0]))
            found.append(Partial(show_span(at, buffer, i), _show(shown, Counter(shown)), where))
    return tuple(found)


def _right_in_place(dag: ChunkDag) -> bool:
    """Whether an out-of-place program would do what it promises with input and output in one memory."""
    terms = Terms(dag.collective.placed(True), dag.scratch)
    _execute(dag, terms)
    return _check_outputs(terms, lambda *_: ()) is None


def check_values(events: Events, order: Order) -> tuple[Terms, tuple[Narrowing, ...]]:
    """Execute one tile of a schedule over expressions. Returns them, and what uneven sizes must be refused for.

    Raises UninitializedChunk or PostconditionFailed.
    """
    schedule = events.schedule
    terms = Terms(schedule.collective, [rank.scratch for rank in schedule.ranks])
    tile = _Tile(events, terms)
    for number in order:
        tile.run(number)

    def history(rank: int, buffer: BufferName, index: int) -> tuple[Flow, ...]:
        chunk = Span(rank, buffer, index)
        flows = []
        for step in (events.steps[i] for i in order):
            if step.where and any(shares_chunk(chunk, place) for place in step.writes()):
                flows.append(Flow(step.where[0], f"{step} writes it"))
        return tuple(flows[-5:])

    error = _check_outputs(terms, history)
    if error is not None:
        raise error
    return terms, tuple(Narrowing(*pair, tile.narrow[pair]) for pair in sorted(tile.narrow))


class _Tile:
    """One tile of a schedule, run over expressions step by step.

    ``narrow``: the value and the location of each narrowing (``ir/schedule.py``), and where the program says so first.
    """

    def __init__(self, events: Events, terms: Terms) -> None:
        self.narrow: dict[tuple[int, int], Location | None] = {}
        self._terms = terms
        self._steps, self._ranks, self._in_place = events.steps, events.rank, bool(events.in_place)
        self._chunks = events.schedule.collective.chunks
        self._number = 0
        # Lists, because no more is in flight than there are slots, and there are many connections.
        self._queues: dict[tuple[int, int, int], list[list[Term]]] = {
            key: [] for key in events.sent if key not in events.in_place
        }

    def run(self, number: int) -> None:
        """Step ``number``, after all that it waits for."""
        step, rank = self._steps[number], self._ranks[number]
        if self._in_place and not step.moves:
            return
        self._number = self._terms.step = number
        values = evaluate(step.srcs, self._fetch, self._terms.combine)
        for target in step.dsts:
            if isinstance(target, Send):
                if target.at is None:
                    self._queues[rank, target.peer, target.channel].append(values)
                    continue
                target = target.at
            target.set(self._terms.memory[target.rank][target.buffer], values)
            if target.buffer != "sc" and self._chunks > 1:
                self._note_narrowings(target, values, step.where)

    def _fetch(self, source: Source) -> list[Term]:
        if isinstance(source, Receive):
            if source.at is None:
                return self._queues[source.peer, self._ranks[self._number], source.channel].pop(0)
            source = source.at
        values = source.get(self._terms.memory[source.rank][source.buffer])
        if None in values:
            missing = source.indices()[values.index(None)]
            where = self._steps[self._number].where
            raise UninitializedChunk(source.rank, source.buffer, missing, where[0] if where else None)
        return values  # type: ignore[return-value]

    def _note_narrowings(self, target: Span, values: list[Term], where: tuple[Where, ...]) -> None:
        place, narrow = self._terms.place, self.narrow
        for i, value in enumerate(values):
            location = (target.index + i * target.stride) % self._chunks
            if place[value] < location and (place[value], location) not in narrow:
                narrow[place[value], location] = where[0].resolve() if where else None


_History = Callable[[int, BufferName, int], tuple[Flow, ...]]
"""The last operations on the way of what a chunk holds, oldest first, by rank, buffer and index."""


def _check_outputs(terms: Terms, history: _History) -> PostconditionFailed | None:
    """What is wrong with the outputs as they are now, if anything is."""
    collective = terms.collective
    held = terms.outputs()
    sums = terms.sums({term for output in held for term in output if term is not None})
    wrong: list[tuple[int, int, Term | None, Sum]] = []
    for rank, output in enumerate(held):
        for index, term in enumerate(output):
            wanted = collective.required(rank, index)
            if wanted is not None and (term is None or sums[term] != wanted):
                wrong.append((rank, index, term, wanted))
    if not wrong:
        return None
    rank, index, term, wanted = wrong[0]
    buffer, offset = collective.place(rank, "out")
    at = offset + index
    counts = terms.count(term) if term is not None else Counter[Contribution]()
    expected = members(wanted)
    flows = history(rank, buffer, at)
    return PostconditionFailed(
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
    frontier = [] if last is None else [-last]
    visited = {last}
    while frontier and len(flows) < limit:
        node = dag.nodes[-heapq.heappop(frontier)]
        if node.src is None:
            continue
        if node.where is not None and node.where.resolve() not in seen:
            seen.add(node.where.resolve())
            verb = "copied" if node.kind is Kind.COPY else "reduced"
            source, target = (show_span(s.rank, s.buffer, s.index, s.count) for s in (node.src, node.dst))
            text = f"{source} {verb} into {target}"
            flows.append(Flow(node.where, text))
        for before in node.true:
            if before not in visited:
                visited.add(before)
                heapq.heappush(frontier, -before)
    return tuple(reversed(flows))
