"""Instruction fusion: a value that is received and sent on need not visit memory in between (paper section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from hocket.collectives import BufferName
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Departure, Ends, Instr, InstrDag, at_edges, depths_to_leaf, ends


def fuse(dag: InstrDag) -> InstrDag:
    """rcs, rrcs and rrs: join a receive with the send of what it received that lies on the longest path."""
    chosen = _choose(dag, *ends(dag))
    if not chosen:
        return dag
    fused_into: list[int | None] = [None] * len(dag.instrs)
    for receive, sending in chosen.items():
        fused_into[sending] = receive
    kept = _used_otherwise(dag, chosen, fused_into)
    number: list[int] = []
    instrs: list[Instr] = []
    after: list[tuple[int, ...]] = []
    for i, (instr, before, into) in enumerate(zip(dag.instrs, dag.after, fused_into, strict=True)):
        if into is not None:
            number.append(number[into])
            continue
        number.append(len(instrs))
        if len(before) == 1:
            after.append((number[before[0]],))
        else:
            after.append(tuple(sorted({number[d] for d in before})) if before else before)
        onward = chosen.get(i)
        if onward is None:
            instrs.append(instr)
            continue
        send = dag.instrs[onward]
        local = instr.dsts if len(instr.srcs) == 1 or i in kept else ()
        instrs.append(Instr(instr.rank, instr.srcs, send.dsts + local, instr.where + send.where))
    return replace(dag, instrs=tuple(instrs), after=tuple(after))


def unfuse(instr: Instr) -> tuple[Instr, Instr]:
    """A fused instruction as its receive and its send.

    What an rrs does not store is stored again: nobody needed the place, so nobody minds.
    """
    local = next(o for o in (*instr.dsts, *instr.srcs) if isinstance(o, Span))
    departure = next(d for d in instr.dsts if isinstance(d, Departure))
    receive = structs.replace(instr, dsts=(local,), where=instr.where[:1])
    send = structs.replace(instr, srcs=(local,), dsts=(departure,), where=instr.where[1:])
    return receive, send


@dataclass(slots=True)
class _Chain:
    """Edges joined by fused instructions: they share one channel, and so one thread block on each rank they cross."""

    base: int | None
    instance: int
    onward: dict[tuple[int, int], int] = field(default_factory=dict)
    backward: dict[tuple[int, int], int] = field(default_factory=dict)


def _choose(dag: InstrDag, arrivals: Ends, departures: Ends) -> dict[int, int]:
    """For each receive the send to fuse with it, where directives and thread blocks allow that."""
    sends = _matching_sends(dag, arrivals, departures)
    if any(len(candidates) > 1 for candidates in sends.values()):
        to_leaf = depths_to_leaf(dag, departures, at_edges(len(dag.edges), arrivals))
        for candidates in sends.values():
            candidates.sort(key=lambda s: (-to_leaf[s], s))
    chains: dict[int, _Chain] = {}
    chosen: dict[int, int] = {}
    edges = dag.edges
    for i in sorted(sends):
        arrival = arrivals[i]
        assert arrival is not None
        into = edges[arrival]
        src, rank = into.src, into.dst
        chain = chains.get(arrival)
        if chain is None:
            chain = chains[arrival] = _Chain(into.base, into.instance)
        for send in sends[i]:
            departure = departures[send]
            assert departure is not None
            out = edges[departure]
            dst = out.dst
            if chain.base != out.base and None not in (chain.base, out.base):
                continue
            if chain.instance != out.instance:
                continue
            # A thread block has one receive peer and one send peer, so a chain that passes a rank twice must
            # do so in the same way.
            if chain.onward.get((rank, src), dst) != dst or chain.backward.get((rank, dst), src) != src:
                continue
            chain.onward[rank, src] = dst
            chain.backward[rank, dst] = src
            if chain.base is None:
                chain.base = out.base
            chains[departure] = chain
            chosen[i] = send
            break
    return chosen


def _matching_sends(dag: InstrDag, arrivals: Ends, departures: Ends) -> dict[int, list[int]]:
    """For instructions that receive, the sends of exactly what they stored."""
    found: dict[int, list[int]] = {}
    instrs = dag.instrs
    for i, (departure, before) in enumerate(zip(departures, dag.after, strict=True)):
        if departure is not None and len(before) == 1 and arrivals[before[0]] is not None:
            instr = instrs[i]
            if len(instr.srcs) == 1 and instrs[before[0]].dsts == instr.srcs:
                found.setdefault(before[0], []).append(i)
    return found


def _used_otherwise(dag: InstrDag, chosen: dict[int, int], fused_into: Sequence[int | None]) -> set[int]:
    """Of the chosen receives that reduce, those that store a chunk which another instruction than the fused send reads,
    or which is part of the collective's result."""
    reducing = {i for i in chosen if len(dag.instrs[i].srcs) > 1}
    used: set[int] = set()
    if not reducing:
        return used
    # Who of those has written each chunk last.
    writers: list[dict[BufferName, dict[int, int]]] = [{"in": {}, "out": {}, "sc": {}} for _ in dag.scratch]
    for i, instr in enumerate(dag.instrs):
        if fused_into[i] is not None:  # it reads what its receive has stored, and nothing else
            continue
        of_rank = writers[instr.rank]
        for source in instr.srcs:
            if type(source) is Span:
                written = of_rank[source.buffer]
                for index in source.indices():
                    writer = written.get(index)
                    if writer is not None:
                        used.add(writer)
        for target in instr.dsts:
            if type(target) is Span:
                written = of_rank[target.buffer]
                for index in target.indices():
                    if i in reducing:
                        written[index] = i
                    else:
                        written.pop(index, None)
    collective = dag.collective
    for rank in range(collective.size):
        buffer, offset = collective.place(rank, "out")
        for index, writer in writers[rank][buffer].items():
            if 0 <= index - offset < collective.outputs(rank) and collective.required(rank, index - offset) is not None:
                used.add(writer)
    return used
