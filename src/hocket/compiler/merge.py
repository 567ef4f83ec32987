"""Merging: memory that several instructions of a rank would read, or write and read again, is passed over once.

Three rules on a DAG in its final order. A sum takes what was received from the slot instead of from scratch, so that
it reads all its terms at once. What is stored is sent, and copied, by the instruction that stores it. Sends and copies
of one value are one instruction. What goes to several ranks goes on a channel of its own, so that it is always sent to
all of them together.

The order stays an execution with the given slots: an instruction is received later, or sends earlier, only where
transfers keep their order on each connection and slots suffice. So nothing can deadlock that could not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from hocket.collectives import BufferName
from hocket.compiler.accumulate import lengths
from hocket.compiler.channels import MAX_BASES
from hocket.errors import Where
from hocket.ir.chunk_dag import Span, shares_chunk
from hocket.ir.instr_dag import Arrival, Departure, Edge, Instr, InstrDag, Source, connections


def merge(dag: InstrDag, slots: int) -> InstrDag:
    """Sums of what was received, stores to several places, and sends to several ranks in one instruction each."""
    return _Merging(dag, slots).run()


Chunk = tuple[BufferName, int]
"""A chunk of the rank that an instruction is of."""


@dataclass(slots=True)
class _Host:
    """What an instruction does besides, for others that read or stored the same span later.

    ``lengths`` are those of the compiler's ``lengths``, ``chunks`` all that it touches; ``kind`` is the channel and the
    instance of what it sends.
    """

    lengths: set[tuple[int, int]]
    chunks: set[Chunk]
    kind: tuple[int | None, int] | None
    sends: list[Departure]
    stores: list[Span]
    where: list[Where]


class _Transfers:
    """For each connection who sends and who receives its transfers; for each edge which of them it is."""

    def __init__(self, dag: InstrDag) -> None:
        self.connection = connections(dag)
        count = max(self.connection, default=-1) + 1
        self.sent: list[list[int]] = [[] for _ in range(count)]
        self.received: list[list[int]] = [[] for _ in range(count)]
        self.turn = [0] * len(dag.edges)
        for i, instr in enumerate(dag.instrs):
            for target in instr.dsts:
                if type(target) is Departure:
                    queue = self.sent[self.connection[target.edge]]
                    self.turn[target.edge] = len(queue)
                    queue.append(i)
            for source in instr.srcs:
                if type(source) is Arrival:
                    self.received[self.connection[source.edge]].append(i)

    def beside(self, edge: int) -> tuple[list[int], list[int], int]:
        """Who sends and who receives on the connection of an edge, and where among them its ends are."""
        number = self.connection[edge]
        return self.sent[number], self.received[number], self.turn[edge]


class _Merging:
    """``instrs`` as they become. Instruction i is part of ``home[i]`` now, which is i itself for those that stay."""

    def __init__(self, dag: InstrDag, slots: int) -> None:
        self.dag = dag
        self.slots = slots
        self.instrs = list(dag.instrs)
        self.home = list(range(len(dag.instrs)))
        self.members: dict[int, list[int]] = {}
        self.hosts: dict[int, _Host] = {}
        self.followers: dict[int, list[int]] = {}
        for i, (instr, before) in enumerate(zip(dag.instrs, dag.after, strict=True)):
            if len(instr.dsts) == 1 and type(instr.dsts[0]) is Span:
                self.followers[i] = []
            for earlier in before:
                if earlier in self.followers:
                    self.followers[earlier].append(i)

    @cached_property
    def transfers(self) -> _Transfers:
        """Of all that is not merged yet: whatever moves an end of a transfer has asked here first."""
        return _Transfers(self.dag)

    def run(self) -> InstrDag:
        dag = self.dag
        for i, instr in enumerate(dag.instrs):
            if len(instr.srcs) > 1:
                self._take_terms(i)
        self._find_rides()
        if not self.members:
            return dag
        for number, bearer in self.hosts.items():
            self.instrs[number] = self._bearing(number, bearer)
        return self._build()

    def _find_rides(self) -> None:
        """What sends or copies a value becomes part of who read or stored that value last."""
        home = self.home
        riders = (i for i in reversed(range(len(home))) if [type(source) for source in self.instrs[i].srcs] == [Span])
        latest: dict[Span, int] = {}  # who read or stored a span last
        for i, instr in enumerate(self.instrs[: next(riders, -1) + 1]):  # nothing rides after the last of them
            if home[i] != i:
                continue
            host = i
            source = instr.srcs[0]
            if type(source) is Span and len(instr.srcs) == 1:
                found = latest.get(source)
                if found is not None and self._rides(i, found):
                    host = found
                    self._join(i, host)
                else:
                    latest[source] = i
            for target in instr.dsts:
                if type(target) is Span:
                    latest[target] = host

    def _build(self) -> InstrDag:
        """The DAG of the instructions that stay, with the members of each in it."""
        dag, home = self.dag, self.home
        number_of: list[int] = []
        kept = 0
        for i, host in enumerate(home):
            number_of.append(kept)
            kept += host == i
        instrs, after = [], []
        for i, before in enumerate(dag.after):
            if home[i] != i:
                continue
            instrs.append(self.instrs[i])
            members = self.members.get(i)
            if members is not None:
                before = (*before, *chain.from_iterable([dag.after[member] for member in members]))
            elif len(before) < 2:
                after.append((number_of[home[before[0]]],) if before else before)
                continue
            after.append(tuple(sorted({number_of[home[earlier]] for earlier in before} - {number_of[i]})))
        edges, scratch = self._edges(), self._scratch(instrs)
        return replace(dag, instrs=tuple(instrs), after=tuple(after), edges=edges, scratch=scratch)

    def _join(self, member: int, into: int) -> None:
        members = self.members.setdefault(into, [])
        for each in (member, *self.members.pop(member, ())):
            members.append(each)
            self.home[each] = into

    def _scratch(self, instrs: list[Instr]) -> tuple[int, ...]:
        """Chunks of scratch up to the last one in use."""
        used = [0] * self.dag.collective.size
        for instr in instrs:
            for operand in instr.srcs + instr.dsts:
                if type(operand) is Span and operand.buffer == "sc":
                    used[instr.rank] = max(used[instr.rank], operand.indices()[-1] + 1)
        return tuple(used)

    # Sums -----------------------------------------------------------------------------------------------------

    def _take_terms(self, i: int) -> None:
        """Put what receives a term of sum i, and does nothing else, in the place of the term."""
        total = self.instrs[i]
        candidates = [earlier for earlier in self.dag.after[i] if self._only_receives(earlier)]
        if not candidates:
            return
        place_of = {source: at for at, source in enumerate(total.srcs) if type(source) is Span}
        several_read = {chunk for chunk, times in Counter(_chunks(total.srcs)).items() if times > 1}
        stored = set(_chunks(total.dsts))
        alike = lengths(self.dag, total)
        local = len(place_of) + sum(type(target) is Span for target in total.dsts)
        taken: dict[int, int] = {}
        first: int | None = None  # the place of the term that is a sum itself
        for earlier in candidates:
            term = self.instrs[earlier]
            place = term.dsts[0]
            assert type(place) is Span
            at = place_of.get(place)
            chunks = _chunks((place,))
            if at is None or not several_read.isdisjoint(chunks):
                continue
            # A sum can only be extended at its beginning; the first two terms may change places.
            several = len(term.srcs) > 1
            if several and (first is not None or at > 1):
                continue
            overwritten = place in total.dsts
            if not overwritten and (place.buffer != "sc" or not stored.isdisjoint(chunks)):
                continue
            spans = [source for source in term.srcs if type(source) is Span]
            if spans and any(span not in total.dsts and not stored.isdisjoint(_chunks((span,))) for span in spans):
                continue
            left = local - 1 + len(spans)  # of what says how many chunks it works on
            together = alike | lengths(self.dag, term) if spans or place.buffer != "sc" else alike
            if not left or len(together) > 1 or not all(self._can_wait(edge, i) for edge in term.arrivals):
                continue
            if not self._nobody_else(earlier, i, None if overwritten else place):
                continue
            taken[at] = earlier
            first = at if several else first
            alike, local = together, left
        if taken:
            self._take(i, taken, first)

    def _only_receives(self, i: int) -> bool:
        """Whether an instruction receives, and stores to one place."""
        return i in self.followers and self.home[i] == i and Arrival in map(type, self.instrs[i].srcs)

    def _nobody_else(self, earlier: int, i: int, place: Span | None) -> bool:
        """Whether instruction i comes before all that have to come after an earlier one, and reads ``place`` alone."""
        for other in self.followers[earlier]:
            if other < i:
                return False
            if other != i and place is not None and any(shares_chunk(place, s) for s in self.instrs[other].srcs):
                return False
        return True

    def _can_wait(self, edge: int, i: int) -> bool:
        """Whether a transfer can be received only by instruction i."""
        sent, received, turn = self.transfers.beside(edge)
        if turn + 1 < len(received) and received[turn + 1] <= i:
            return False
        return turn + self.slots >= len(sent) or sent[turn + self.slots] > i

    def _take(self, i: int, taken: dict[int, int], first: int | None) -> None:
        total = self.instrs[i]
        terms: list[tuple[Source, ...]] = [(source,) for source in total.srcs]
        where = list(total.where)
        for at, earlier in taken.items():
            term = self.instrs[earlier]
            terms[at] = term.srcs
            where += term.where
            for edge in term.arrivals:
                _, received, turn = self.transfers.beside(edge)
                received[turn] = i
            if i in self.followers:
                self.followers[i] += [other for other in self.followers[earlier] if other != i]
            self._join(earlier, i)
        if first == 1:
            terms[0], terms[1] = terms[1], terms[0]
        self.instrs[i] = Instr(total.rank, tuple(chain.from_iterable(terms)), total.dsts, _once(where))

    # Sends and copies -----------------------------------------------------------------------------------------

    def _rides(self, i: int, number: int) -> bool:
        """Have a send or copy done by the instruction that read or stored the same span before, if that can be."""
        rider, home = self.instrs[i], self.home
        for earlier in self.dag.after[i]:
            if home[earlier] > number:
                return False
        host = self.hosts.get(number) or self._host(number)
        (target,) = rider.dsts
        alike = host.lengths | lengths(self.dag, rider) if type(target) is Span else host.lengths
        if len(alike) > 1:
            return False
        if type(target) is Span:
            chunks = _chunks((target,))
            if not host.chunks.isdisjoint(chunks):
                return False
            host.chunks.update(chunks)
            host.stores.append(target)
        elif type(target) is Departure:
            if not self._can_leave(target.edge, number, host):
                return False
            sent, _, turn = self.transfers.beside(target.edge)
            sent[turn] = number
            host.sends.append(target)
        host.lengths = alike
        host.where += rider.where
        self.hosts[number] = host
        return True

    def _host(self, number: int) -> _Host:
        instr = self.instrs[number]
        kinds = [(self.dag.edges[edge].base, self.dag.edges[edge].instance) for edge in instr.departures]
        chunks = set(_chunks(instr.srcs + instr.dsts))
        return _Host(lengths(self.dag, instr), chunks, kinds[0] if kinds else None, [], [], list(instr.where))

    def _can_leave(self, edge: int, number: int, host: _Host) -> bool:
        """Whether a transfer can be sent as early as by a host, beside what that sends already."""
        kind = self.dag.edges[edge].base, self.dag.edges[edge].instance
        if host.kind is not None and host.kind != kind:
            return False
        sent, received, turn = self.transfers.beside(edge)
        if turn and sent[turn - 1] >= number:
            return False
        if turn >= self.slots and received[turn - self.slots] >= number:
            return False
        host.kind = kind
        return True

    def _bearing(self, number: int, host: _Host) -> Instr:
        """The instruction with all that it does for others; a store to scratch that only they read is left out."""
        instr = self.instrs[number]
        sends = [target for target in instr.dsts if type(target) is Departure] + host.sends
        stores = [target for target in instr.dsts if type(target) is Span] + host.stores
        if number in self.followers:
            place = stores[0]
            local = len(stores) > 1 or any(type(source) is Span for source in instr.srcs)
            if (
                place.buffer == "sc"
                and local
                and all(
                    self.home[other] == number or not any(shares_chunk(place, s) for s in self.instrs[other].srcs)
                    for other in self.followers[number]
                )
            ):
                del stores[0]
        return Instr(instr.rank, instr.srcs, (*sends, *stores), _once(host.where))

    # Channels -------------------------------------------------------------------------------------------------

    def _edges(self) -> tuple[Edge, ...]:
        """What is sent to several ranks, or passed on in a new way, goes on a channel of its own: one for those that
        go the same way."""
        edges = list(self.dag.edges)
        free = [0] * self.dag.collective.size
        for e in edges:
            if (e.base or 0) >= free[e.src]:
                free[e.src] = (e.base or 0) + 1
        found: dict[tuple[object, ...], int] = {}
        for host in sorted(self.members):
            instr = self.instrs[host]
            departures = instr.departures
            passed_on = instr.arrivals and departures != self.dag.instrs[host].departures
            if len(departures) < 2 and not passed_on:
                continue
            peers = tuple(sorted(edges[edge].dst for edge in departures))
            from_whom = tuple(sorted(self.transfers.connection[edge] for edge in instr.arrivals))
            first = self.dag.edges[departures[0]]
            key = instr.rank, peers, from_whom, first.base, first.instance
            if key not in found and free[instr.rank] < MAX_BASES:
                found[key] = free[instr.rank]
                free[instr.rank] += 1
            if key in found:
                for edge in departures:
                    e = edges[edge]
                    edges[edge] = Edge(e.src, e.dst, e.count, found[key], e.instance, e.where, e.storage)
        return tuple(edges)


def _chunks(operands: Iterable[object]) -> list[Chunk]:
    return [(o.buffer, index) for o in operands if type(o) is Span for index in o.indices()]


def _once(where: list[Where]) -> tuple[Where, ...]:
    """Each line once: what is merged often comes from one loop."""
    return tuple(dict.fromkeys(where))
