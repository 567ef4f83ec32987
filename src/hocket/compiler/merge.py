"""Merging: memory that several instructions of a rank would read, or write and read again, is passed over once.

Three rules on a DAG in its final order. A sum takes what was received from the slot instead of from scratch, so that
it reads all its terms at once. What is stored is sent, and copied, by the instruction that stores it. Sends and copies
of one value are one instruction. What goes to several ranks goes on a channel of its own, so that it is always sent to
all of them together.

The order stays an execution with the given slots: an instruction is received later, or sends earlier, only where
transfers keep their order on each connection and slots suffice. So nothing can deadlock that could not before.
"""

from __future__ import annotations

from dataclasses import replace

from hocket.compiler.accumulate import lengths, overlap
from hocket.compiler.channels import MAX_BASES
from hocket.errors import Where
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Arrival, Departure, Edge, Instr, InstrDag, Source, connections


def merge(dag: InstrDag, slots: int) -> InstrDag:
    """Sums of what was received, stores to several places, and sends to several ranks in one instruction each."""
    return _Merging(dag, slots).run()


class _Merging:
    """``instrs`` as they become. Instruction i is part of ``home[i]`` now, which is i itself for those that stay."""

    def __init__(self, dag: InstrDag, slots: int) -> None:
        self.dag = dag
        self.slots = slots
        self.instrs = list(dag.instrs)
        self.home = list(range(len(dag.instrs)))
        self.members: dict[int, list[int]] = {}
        self.connection = connections(dag)
        # For each connection who sends and who receives its transfers; for each edge which of them it is.
        count = max(self.connection, default=-1) + 1
        self.sent: list[list[int]] = [[] for _ in range(count)]
        self.received: list[list[int]] = [[] for _ in range(count)]
        self.turn = [0] * len(dag.edges)
        self.followers: dict[int, list[int]] = {}
        for i, instr in enumerate(dag.instrs):
            for target in instr.dsts:
                if type(target) is Departure:
                    queue = self.sent[self.connection[target.edge]]
                    self.turn[target.edge] = len(queue)
                    queue.append(i)
            for source in instr.srcs:
                if type(source) is Arrival:
                    self.received[self.connection[source.edge]].append(i)
            if len(instr.dsts) == 1 and type(instr.dsts[0]) is Span:
                self.followers[i] = []
            for earlier in dag.after[i]:
                if earlier in self.followers:
                    self.followers[earlier].append(i)

    def run(self) -> InstrDag:
        dag = self.dag
        for i, instr in enumerate(dag.instrs):
            if len(instr.srcs) > 1:
                for earlier in dag.after[i]:
                    if self._is_term(earlier, i):
                        self._take(earlier, i)
        hosts: dict[Span, int] = {}
        """Who read or stored each span last."""
        for i, instr in enumerate(self.instrs):
            if self.home[i] != i:
                continue
            host = i
            if len(instr.srcs) == 1 and type(instr.srcs[0]) is Span:
                source = instr.srcs[0]
                found = hosts.get(source)
                if found is not None and self._rides(i, found):
                    host = found
                    self._give(i, host)
                else:
                    hosts[source] = i
            for target in instr.dsts:
                if type(target) is Span:
                    hosts[target] = host
        if not self.members:
            return dag
        for host in self.members:
            self._forget(host)
        edges = self._edges()
        number: list[int] = []
        kept = 0
        for i, home in enumerate(self.home):
            number.append(kept)
            kept += home == i
        instrs, after = [], []
        for i, before in enumerate(dag.after):
            if self.home[i] != i:
                continue
            members = self.members.get(i)
            if members is not None:
                before = (*before, *(earlier for member in members for earlier in dag.after[member]))
            instrs.append(self.instrs[i])
            after.append(tuple(sorted({number[self.home[earlier]] for earlier in before} - {number[i]})))
        return replace(dag, instrs=tuple(instrs), after=tuple(after), edges=edges, scratch=self._scratch(instrs))

    def _scratch(self, instrs: list[Instr]) -> tuple[int, ...]:
        """Chunks of scratch up to the last one in use."""
        used = [0] * self.dag.collective.size
        for instr in instrs:
            for operand in instr.srcs + instr.dsts:
                if type(operand) is Span and operand.buffer == "sc":
                    used[instr.rank] = max(used[instr.rank], operand.indices()[-1] + 1)
        return tuple(used)

    def _join(self, member: int, into: int) -> None:
        members = self.members.setdefault(into, [])
        for each in (member, *self.members.pop(member, ())):
            members.append(each)
            self.home[each] = into

    # Sums -----------------------------------------------------------------------------------------------------

    def _is_term(self, earlier: int, i: int) -> bool:
        """Whether all that comes of an instruction that receives is a term of sum i, and it can wait for that."""
        term, total = self.instrs[earlier], self.instrs[i]
        if self.home[earlier] != earlier or earlier not in self.followers or not term.arrivals:
            return False
        place = term.dsts[0]
        assert isinstance(place, Span)
        # A sum can only be extended at its beginning; two terms may change places.
        if place not in total.srcs or (len(term.srcs) > 1 and total.srcs.index(place) > 1):
            return False
        if sum(overlap(place, operand) for operand in total.srcs) > 1:
            return False
        overwritten = place in total.dsts
        if not overwritten and (place.buffer != "sc" or any(overlap(place, operand) for operand in total.dsts)):
            return False
        if not any(type(o) is Span and (o != place or o in total.dsts) for o in term.srcs + total.srcs + total.dsts):
            return False  # nothing would say how many chunks it works on
        for other in self.followers[earlier]:
            if other == i:
                continue
            if other < i or (not overwritten and any(overlap(place, s) for s in self.instrs[other].srcs)):
                return False
        if any(overlap(target, s) and target != s for target in total.dsts if type(target) is Span for s in term.srcs):
            return False
        return len(lengths(self.dag, term) | lengths(self.dag, total)) <= 1 and all(
            self._can_wait(edge, i) for edge in term.arrivals
        )

    def _can_wait(self, edge: int, i: int) -> bool:
        """Whether a transfer can be received only by instruction i."""
        sent, received = self.sent[self.connection[edge]], self.received[self.connection[edge]]
        turn = self.turn[edge]
        if turn + 1 < len(received) and received[turn + 1] <= i:
            return False
        return turn + self.slots >= len(sent) or sent[turn + self.slots] > i

    def _take(self, earlier: int, i: int) -> None:
        term, total = self.instrs[earlier], self.instrs[i]
        place = term.dsts[0]
        assert isinstance(place, Span)
        at = total.srcs.index(place)
        rest: tuple[Source, ...] = total.srcs[:at] + total.srcs[at + 1 :]
        srcs = rest[:at] + term.srcs + rest[at:] if len(term.srcs) == 1 else term.srcs + rest
        self.instrs[i] = Instr(total.rank, srcs, total.dsts, _once(total.where + term.where))
        for edge in term.arrivals:
            self.received[self.connection[edge]][self.turn[edge]] = i
        if i in self.followers:
            self.followers[i] += [other for other in self.followers[earlier] if other != i]
        self._join(earlier, i)

    # Sends and copies -----------------------------------------------------------------------------------------

    def _rides(self, i: int, host: int) -> bool:
        """Whether a send or copy can be done by the instruction that read or stored the same span before."""
        rider, bearer = self.instrs[i], self.instrs[host]
        if any(self.home[earlier] > host for earlier in self.dag.after[i]):
            return False
        if len(lengths(self.dag, bearer) | lengths(self.dag, rider)) > 1:
            return False
        for target in rider.dsts:
            if type(target) is Span:
                if any(overlap(target, operand) for operand in bearer.srcs + bearer.dsts):
                    return False
            elif type(target) is Departure and not self._can_leave(target.edge, host):
                return False
        return True

    def _can_leave(self, edge: int, host: int) -> bool:
        """Whether a transfer can be sent as early as by ``host``, beside what that sends already."""
        edges, connection, turn = self.dag.edges, self.connection[edge], self.turn[edge]
        sent, received = self.sent[connection], self.received[connection]
        for other in self.instrs[host].departures:
            if (edges[other].base, edges[other].instance) != (edges[edge].base, edges[edge].instance):
                return False
        if turn and sent[turn - 1] >= host:
            return False
        return turn < self.slots or received[turn - self.slots] < host

    def _give(self, i: int, host: int) -> None:
        rider, bearer = self.instrs[i], self.instrs[host]
        for edge in rider.departures:
            self.sent[self.connection[edge]][self.turn[edge]] = host
        sends = tuple(target for target in rider.dsts if type(target) is Departure)
        stores = tuple(target for target in rider.dsts if type(target) is Span)
        first = len(bearer.departures)
        dsts = bearer.dsts[:first] + sends + bearer.dsts[first:] + stores
        self.instrs[host] = Instr(bearer.rank, bearer.srcs, dsts, _once(bearer.where + rider.where))
        self._join(i, host)

    def _forget(self, host: int) -> None:
        """Leave out the store of a value that only its members read."""
        place = self.dag.instrs[host].dsts[0]
        instr = self.instrs[host]
        if host not in self.followers or not isinstance(place, Span) or place.buffer != "sc":
            return
        left = tuple(target for target in instr.dsts if target != place)
        if not left or not any(type(operand) is Span for operand in instr.srcs + left):
            return
        for other in self.followers[host]:
            if self.home[other] != host and any(overlap(place, s) for s in self.instrs[other].srcs):
                return
        self.instrs[host] = Instr(instr.rank, instr.srcs, left, instr.where)

    # Channels -------------------------------------------------------------------------------------------------

    def _edges(self) -> tuple[Edge, ...]:
        """What is sent to several ranks, or passed on in a new way, goes on a channel of its own: one for those that
        go the same way."""
        edges = list(self.dag.edges)
        free = [0] * self.dag.collective.size
        for e in edges:
            free[e.src] = max(free[e.src], (e.base or 0) + 1)
        found: dict[tuple[object, ...], int] = {}
        for host in sorted(self.members):
            instr = self.instrs[host]
            departures = instr.departures
            passed_on = instr.arrivals and departures != self.dag.instrs[host].departures
            if len(departures) < 2 and not passed_on:
                continue
            peers = tuple(sorted(edges[edge].dst for edge in departures))
            from_whom = tuple(sorted(self.connection[edge] for edge in instr.arrivals))
            first = self.dag.edges[departures[0]]
            key = instr.rank, peers, from_whom, first.base, first.instance
            if key not in found and free[instr.rank] < MAX_BASES:
                found[key] = free[instr.rank]
                free[instr.rank] += 1
            if key in found:
                for edge in departures:
                    edges[edge] = replace(edges[edge], base=found[key])
        return tuple(edges)


def _once(where: tuple[Where, ...]) -> tuple[Where, ...]:
    """Each line once: what is merged often comes from one loop."""
    return tuple(dict.fromkeys(where))
