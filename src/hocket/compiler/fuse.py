"""Instruction fusion: a value that is received and sent on need not visit memory in between (paper section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hocket.collectives import BufferName
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Arrival, Departure, Instr, InstrDag, depths_to_leaf


def fuse(dag: InstrDag) -> InstrDag:
    """rcs, rrcs and rrs: join a receive with the send of what it received that lies on the longest path."""
    sends = _matching_sends(dag)
    chosen = _choose(dag, sends)
    kept = _used_otherwise(dag, chosen)
    number: list[int] = []
    instrs: list[Instr] = []
    fused_into = {send: receive for receive, send in chosen.items()}
    for i, instr in enumerate(dag.instrs):
        if i in fused_into:
            number.append(number[fused_into[i]])
            continue
        number.append(len(instrs))
        after = instr.after
        if after:
            after = tuple(sorted({number[d] for d in after}))
        send = chosen.get(i)
        if send is None:
            instrs.append(instr if after == instr.after else replace(instr, after=after))
            continue
        departure = dag.instrs[send].dsts
        local = instr.dsts if kept[i] or len(instr.srcs) == 1 else ()
        where = instr.where + dag.instrs[send].where
        instrs.append(Instr(instr.rank, instr.srcs, departure + local, after, None, where))
    return replace(dag, instrs=tuple(instrs))


def unfuse(instr: Instr) -> tuple[Instr, Instr]:
    """A fused instruction as its receive and its send; the send's ``after`` is left to the caller, as is numbering.

    What an rrs does not store is stored again: nobody needed the place, so nobody minds.
    """
    local = next(o for o in (*instr.dsts, *instr.srcs) if isinstance(o, Span))
    departure = next(d for d in instr.dsts if isinstance(d, Departure))
    receive = replace(instr, dsts=(local,), where=instr.where[:1])
    send = replace(instr, srcs=(local,), dsts=(departure,), after=(), where=instr.where[1:])
    return receive, send


def is_fused(instr: Instr) -> bool:
    """Whether an instruction both receives and sends."""
    return type(instr.srcs[0]) is Arrival and any(type(d) is Departure for d in instr.dsts)


def _matching_sends(dag: InstrDag) -> list[list[int]]:
    """For each instruction that receives, the sends of exactly what it stored."""
    found: list[list[int]] = [[] for _ in dag.instrs]
    instrs = dag.instrs
    for i, instr in enumerate(instrs):
        if len(instr.after) == 1 and type(instr.dsts[0]) is Departure and len(instr.srcs) == 1:
            producer = instrs[instr.after[0]]
            if type(producer.srcs[0]) is Arrival and producer.dsts == instr.srcs:
                found[instr.after[0]].append(i)
    return found


@dataclass(slots=True)
class _Chain:
    """Edges joined by fused instructions: they share one channel, and so one thread block on each rank they cross."""

    base: int | None
    instance: int
    onward: dict[tuple[int, int], int] = field(default_factory=dict)
    backward: dict[tuple[int, int], int] = field(default_factory=dict)


def _choose(dag: InstrDag, sends: Sequence[Sequence[int]]) -> dict[int, int]:
    """For each receive the send to fuse with it, where directives and thread blocks allow that."""
    to_leaf = depths_to_leaf(dag)
    chains: dict[int, _Chain] = {}
    chosen: dict[int, int] = {}
    for i, candidates in enumerate(sends):
        if not candidates:
            continue
        arrival = dag.instrs[i].srcs[0]
        assert isinstance(arrival, Arrival)
        into = dag.edges[arrival.edge]
        chain = chains.get(arrival.edge)
        if chain is None:
            chain = chains[arrival.edge] = _Chain(into.base, into.instance)
        for send in sorted(candidates, key=lambda s: (-to_leaf[s], s)):
            departure = dag.instrs[send].dsts[0]
            assert isinstance(departure, Departure)
            out = dag.edges[departure.edge]
            if (None not in (chain.base, out.base) and chain.base != out.base) or chain.instance != out.instance:
                continue
            # A thread block has one receive peer and one send peer, so a chain that passes a rank twice must
            # do so in the same way.
            if chain.onward.get((into.dst, into.src), out.dst) != out.dst:
                continue
            if chain.backward.get((into.dst, out.dst), into.src) != into.src:
                continue
            chain.onward[into.dst, into.src] = out.dst
            chain.backward[into.dst, out.dst] = into.src
            chain.base = out.base if chain.base is None else chain.base
            chains[departure.edge] = chain
            chosen[i] = send
            break
    return chosen


def _used_otherwise(dag: InstrDag, chosen: dict[int, int]) -> list[bool]:
    """For each instruction, whether any chunk it stores is read by another instruction than its fused send, or is
    part of the collective's result."""
    used = [False] * len(dag.instrs)
    writers: list[dict[BufferName, dict[int, int]]] = [{"in": {}, "out": {}, "sc": {}} for _ in dag.scratch]
    for i, instr in enumerate(dag.instrs):
        for source in instr.srcs:
            if type(source) is Span:
                written = writers[instr.rank][source.buffer]
                for index in source.indices():
                    writer = written.get(index)
                    if writer is not None and chosen.get(writer) != i:
                        used[writer] = True
        for target in instr.dsts:
            if type(target) is Span:
                written = writers[instr.rank][target.buffer]
                for index in target.indices():
                    written[index] = i
    collective = dag.collective
    for rank in range(collective.size):
        buffer, offset = collective.place(rank, "out")
        written = writers[rank][buffer]
        for index in range(collective.outputs(rank)):
            writer = written.get(offset + index)
            if writer is not None and collective.required(rank, index) is not None:
                used[writer] = True
    return used
