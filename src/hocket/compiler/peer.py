"""Storage peer: a message lies in the memory of one of its two ranks, where the other reads or writes it in place.

A transfer is *pushed* where its receiver only stores it to one span of user memory: the sender stores it there itself.
Else it is *pulled* where the value of its sender lies in a span of user memory: the receiver reads it there, and the
sender only says that it is there. All others keep their slots. Which of the two comes first, or that a transfer keeps
its slot, the program may say (``storage=`` of the language).

Both ask that memory which is reached so is left alone meanwhile, more than there needs to be, so that one look at each
chunk tells. Nothing stores to what is pulled after it has been offered; nothing accesses what is pushed before the
receiver learns of it. But the instruction that reads a chunk may store it again: that is how an AllReduce in place sums
a slice where it lies, on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, takewhile

from msgspec import structs

from hocket.collectives import BufferName
from hocket.compiler.accumulate import lengths
from hocket.ir.chunk_dag import Span, Storage
from hocket.ir.instr_dag import Departure, Destination, Edge, Instr, InstrDag


def peer(dag: InstrDag) -> InstrDag:
    """Give the transfers that can lie in place a place, and a channel among their own kind."""
    return _Placing(dag).run()


Chunk = tuple[int, BufferName, int]
"""Rank, buffer, index."""

_Access = tuple[int, int | None]
"""An instruction of the rank, and the transfer by which another touches the chunk: after the instruction if it is
pulled, before if it is pushed. None: the instruction itself does."""


@dataclass(slots=True)
class _Transfer:
    """The instructions at its ends, and how it could still lie in place, the best way first, each with the place."""

    sender: int = 0
    receiver: int = 0
    ways: list[tuple[Storage, Span]] = field(default_factory=list)

    @property
    def at(self) -> Span | None:
        return self.ways[0][1] if self.ways else None

    def goes(self, way: Storage) -> bool:
        return bool(self.ways) and self.ways[0][0] == way


class _Placing:
    """``values``: where in user memory what each instruction sends can be read."""

    def __init__(self, dag: InstrDag) -> None:
        self.dag = dag
        self.values = [_value(instr) for instr in dag.instrs]
        self.transfers = [_Transfer() for _ in dag.edges]
        for i, instr in enumerate(dag.instrs):
            for edge in instr.departures:
                self.transfers[edge].sender = i
            for edge in instr.arrivals:
                self.transfers[edge].receiver = i
        alike = [lengths(dag, instr) for instr in dag.instrs]
        for wanted, transfer in zip(dag.edges, self.transfers, strict=True):
            for way, span, mover in self._ways(wanted, transfer):
                length = span.index % dag.collective.chunks, span.stride
                if alike[mover] <= {length}:
                    alike[mover].add(length)
                    transfer.ways.append((way, span))

    def run(self) -> InstrDag:
        while doomed := list(self._illegal()):
            for transfer in doomed:
                del transfer.ways[0]
        if not any(transfer.ways for transfer in self.transfers):
            return self.dag
        return self._placed()

    def _ways(self, edge: Edge, transfer: _Transfer) -> Iterator[tuple[Storage, Span, int]]:
        """Where a transfer could lie, by its two instructions alone, and the one that then moves it."""
        receiving = self.dag.instrs[transfer.receiver]
        found: list[tuple[Storage, Span, int]] = []
        target = receiving.dsts[0]
        if len(receiving.srcs) == len(receiving.dsts) == 1 and type(target) is Span and target.buffer != "sc":
            found.append(("push", target, transfer.sender))
        value = self.values[transfer.sender]
        if value is not None:
            found.append(("pull", value, transfer.receiver))
        if edge.storage == "fifo":
            return
        yield from sorted(found, key=lambda way: way[0] != edge.storage)

    def _illegal(self) -> Iterator[_Transfer]:
        """Transfers whose place is not left alone, with all others where they would lie now."""
        accesses: dict[Chunk, list[_Access]] = {}
        stores: dict[Chunk, list[_Access]] = {}
        for i, instr in enumerate(self.dag.instrs):
            pulled = [edge for edge in instr.departures if self.transfers[edge].goes("pull")]
            pushed = next((edge for edge in instr.arrivals if self.transfers[edge].goes("push")), None)
            if len(pulled) < len(instr.dsts):
                for chunk in _chunks(instr.srcs):
                    accesses.setdefault(chunk, []).append((i, None))
            for chunk in _chunks(instr.dsts):
                accesses.setdefault(chunk, []).append((i, pushed))
                stores.setdefault(chunk, []).append((i, pushed))
            for edge in pulled:
                for chunk in _chunks((self.transfers[edge].at,)):
                    accesses.setdefault(chunk, []).append((i, edge))
        for transfer in self.transfers:
            if transfer.goes("pull"):
                later = (_latest(stores.get(chunk, ()), transfer.sender) for chunk in _chunks((transfer.at,)))
                alone = all(self._stores_again(transfer, by) for by in chain.from_iterable(later))
            else:
                earlier = (_earliest(accesses[chunk], transfer.receiver) for chunk in _chunks((transfer.at,)))
                alone = all(self._has_read(transfer, by) for by in chain.from_iterable(earlier))
            if not alone:
                yield transfer

    def _stores_again(self, pulled: _Transfer, by: int | None) -> bool:
        """Whether what stores to a pulled place after it was offered is the instruction that reads it."""
        other = None if by is None else self.transfers[by]
        return other is not None and other.sender == pulled.receiver and other.at == pulled.at

    def _has_read(self, pushed: _Transfer, by: int | None) -> bool:
        """Whether what accesses a pushed place before its receiver is the instruction that stores there, reading it."""
        other = None if by is None else self.transfers[by]
        return other is not None and other.goes("pull") and other.receiver == pushed.sender and other.at == pushed.at

    def _placed(self) -> InstrDag:
        dag = self.dag
        instrs: list[Instr] = []
        after: list[tuple[int, ...]] = []
        number: list[int] = []
        offers: set[int] = set()
        for i, instr in enumerate(dag.instrs):
            pulled: list[Destination] = []
            rest: list[Destination] = []
            for target in instr.dsts:
                offered = type(target) is Departure and self.transfers[target.edge].goes("pull")
                (pulled if offered else rest).append(target)
            learns = any(self.transfers[edge].goes("push") for edge in instr.arrivals)
            # An offer accesses nothing, so what learns of a later value in its place need not wait for it.
            before = tuple([number[j] for j in dag.after[i] if not (learns and j in offers)])
            if not pulled or not rest:
                if pulled:
                    offers.add(i)
                number.append(len(instrs))
                instrs.append(instr)
                after.append(before)
                continue
            value = self.values[i]
            assert value is not None
            offer = Instr(instr.rank, (value,), tuple(pulled), instr.where)
            others = structs.replace(instr, dsts=tuple(rest))
            here = len(instrs)
            if instr.srcs == (value,):
                number.append(here + 1)
                instrs += offer, others
                after += before, before
            else:
                number.append(here)
                instrs += others, offer
                after += before, (here,)
        return replace(dag, instrs=tuple(instrs), after=tuple(after), edges=self._edges())

    def _edges(self) -> tuple[Edge, ...]:
        """The transfers with their places. What was on one channel and goes one way stays on one."""
        taken: dict[tuple[int, int], set[int]] = {}
        for e, transfer in zip(self.dag.edges, self.transfers, strict=True):
            if not transfer.ways:
                taken.setdefault((e.src, e.dst), set()).add(e.base or 0)
        bases: dict[tuple[int, int, Storage, int | None], int] = {}
        edges: list[Edge] = []
        for e, transfer in zip(self.dag.edges, self.transfers, strict=True):
            if not transfer.ways:
                edges.append(e)
                continue
            way, at = transfer.ways[0]
            key = e.src, e.dst, way, e.base
            if key not in bases:
                used = taken.setdefault((e.src, e.dst), set())
                bases[key] = next(base for base in count() if base not in used)
                used.add(bases[key])
            edges.append(Edge(e.src, e.dst, e.count, bases[key], e.instance, e.where, e.storage, at))
        return tuple(edges)


def _value(instr: Instr) -> Span | None:
    """Where in user memory what an instruction sends can be read: what it sends a copy of, or else where it stores."""
    places = instr.srcs if len(instr.srcs) == 1 and _lasts(instr.srcs[0]) else instr.dsts
    return next((place for place in places if isinstance(place, Span) and _lasts(place)), None)


def _lasts(place: object) -> bool:
    return isinstance(place, Span) and place.buffer != "sc"


def _chunks(operands: Iterable[object]) -> list[Chunk]:
    return [(o.rank, o.buffer, index) for o in operands if type(o) is Span for index in o.indices()]


def _latest(stores: Sequence[_Access], since: int) -> Iterator[int | None]:
    """Who stores after instruction ``since``, the last one first."""
    return (by for _, by in takewhile(lambda access: access[0] > since, reversed(stores)))


def _earliest(accesses: Sequence[_Access], until: int) -> Iterator[int | None]:
    """Who accesses before instruction ``until``, the first one first."""
    return (by for _, by in takewhile(lambda access: access[0] < until, accesses))
