"""Accumulation: what a rank adds up locally, one term after the other, one instruction reads once and stores once.

The order of the terms stays; values of 16 bits are rounded once instead of after each addition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hocket.errors import Where
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Instr, InstrDag, Source


@dataclass(slots=True)
class _Chain:
    """Local instructions that become one, stored to ``target``.

    ``lengths`` tells apart the places whose chunks may be of different lengths where sizes are uneven; ``followers``
    are the instructions that come after one of them.
    """

    srcs: list[Source]
    target: Span
    where: list[Where]
    lengths: set[tuple[int, int]]
    followers: set[int]


def accumulate(dag: InstrDag) -> InstrDag:
    """Chains of local reduces become one, with the copy they begin with, and the copy of a sum out of scratch."""
    chains = {i: chain for i, instr in enumerate(dag.instrs) if (chain := _chain(dag, instr)) is not None}
    if not any(len(chain.srcs) > 1 for chain in chains.values()):
        return dag
    for i, before in enumerate(dag.after):
        for earlier in before:
            if earlier in chains:
                chains[earlier].followers.add(i)
    end = list(range(len(dag.instrs)))  # the last instruction of the chain that an instruction is in
    for i in list(chains):
        for earlier in dag.after[i]:
            if earlier in chains and _joins(dag, chains[earlier], i, chains[i]):
                first, last = chains.pop(earlier), chains[i]
                first.srcs += last.srcs[1:]
                first.where += last.where
                chains[i] = _Chain(
                    first.srcs,
                    last.target,
                    first.where,
                    first.lengths | last.lengths,
                    first.followers - {i} | last.followers,
                )
                end[earlier] = i
                break
    for i in range(len(end) - 1, -1, -1):
        end[i] = end[end[i]]
    members: dict[int, list[int]] = {}
    for i, final in enumerate(end):
        members.setdefault(final, []).append(i)
    number = {final: place for place, final in enumerate(sorted(members))}
    instrs: list[Instr] = []
    after: list[tuple[int, ...]] = []
    for final in number:
        instr, joined = dag.instrs[final], members[final]
        if len(joined) > 1:
            chain = chains[final]
            instr = Instr(instr.rank, tuple(chain.srcs), (chain.target,), tuple(chain.where))
        needed = {end[earlier] for i in joined for earlier in dag.after[i]} - {final}
        instrs.append(instr)
        after.append(tuple(sorted([number[earlier] for earlier in needed])))
    return replace(dag, instrs=tuple(instrs), after=tuple(after))


def _chain(dag: InstrDag, instr: Instr) -> _Chain | None:
    """An instruction as a chain of its own, if it is local."""
    spans = [operand for operand in (*instr.srcs, *instr.dsts) if isinstance(operand, Span)]
    if len(instr.dsts) > 1 or len(spans) <= len(instr.srcs):
        return None
    lengths = {(span.index % dag.collective.chunks, span.stride) for span in spans if span.buffer != "sc"}
    return _Chain(list(instr.srcs), spans[-1], list(instr.where), lengths, set())


def _joins(dag: InstrDag, first: _Chain, i: int, last: _Chain) -> bool:
    """Whether instruction i adds to what a chain has stored, or takes a sum out of scratch for good."""
    between = first.target
    others = first.followers - {i}
    # Whatever else waits for the chain has to come after its end.
    if last.srcs[0] != between or any(other < i for other in others) or len(first.lengths | last.lengths) > 1:
        return False
    if len(last.srcs) > 1:
        return last.target == between and not any(_overlap(between, source) for source in last.srcs[1:])
    needed = any(_overlap(between, source) for other in others for source in dag.instrs[other].srcs)
    return len(first.srcs) > 1 and between.buffer == "sc" and not needed


def _overlap(span: Span, other: object) -> bool:
    if not isinstance(other, Span) or other.buffer != span.buffer or other.rank != span.rank:
        return False
    return not set(span.indices()).isdisjoint(other.indices())
