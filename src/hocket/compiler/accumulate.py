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
    chains = _candidates(dag)
    if not chains:
        return dag
    for i, before in enumerate(dag.after):
        for earlier in before:
            if earlier in chains:
                chains[earlier].followers.add(i)
    end = list(range(len(dag.instrs)))  # the last instruction of the chain that an instruction is in
    joined: dict[int, list[int]] = {}  # the instructions of each chain that has several, by its last
    for i in sorted(chains):
        for earlier in dag.after[i]:
            if earlier in chains and _joins(dag, chains[earlier], i, chains[i]):
                first, last = chains.pop(earlier), chains[i]
                first.srcs += last.srcs[1:]
                first.where += last.where
                first.target = last.target
                first.followers.discard(i)
                first.followers |= last.followers
                chains[i] = first
                joined[i] = joined.pop(earlier, [earlier])
                joined[i].append(i)
                break
    for i, those in joined.items():
        for each in those:
            end[each] = i
    number: list[int] = []
    instrs: list[Instr] = []
    after: list[tuple[int, ...]] = []
    for i, instr in enumerate(dag.instrs):
        number.append(len(instrs))
        if end[i] != i:
            continue
        before = dag.after[i]
        if i in joined:
            chain = chains[i]
            instr = Instr(instr.rank, tuple(chain.srcs), (chain.target,), tuple(chain.where))
            before = tuple(set().union(*[dag.after[each] for each in joined[i]]).difference(joined[i]))
        instrs.append(instr)
        after.append(tuple(sorted({number[end[earlier]] for earlier in before})) if before else before)
    return replace(dag, instrs=tuple(instrs), after=tuple(after))


def _candidates(dag: InstrDag) -> dict[int, _Chain]:
    """Each local reduce, and the local instructions right before and after one, as chains of their own."""
    instrs, after = dag.instrs, dag.after
    local = [type(instr.srcs[0]) is Span and type(instr.dsts[0]) is Span for instr in instrs]
    reduces = {i for i, instr in enumerate(instrs) if local[i] and len(instr.srcs) > 1}
    if not reduces:
        return {}
    near = reduces.union(*[after[i] for i in reduces])
    near.update([i for i, before in enumerate(after) if local[i] and not reduces.isdisjoint(before)])
    chunks = dag.collective.chunks
    found: dict[int, _Chain] = {}
    for i in near:
        instr = instrs[i]
        spans = [operand for operand in (*instr.srcs, *instr.dsts) if isinstance(operand, Span)]
        if len(instr.dsts) == 1 and len(spans) > len(instr.srcs):
            lengths = {(span.index % chunks, span.stride) for span in spans if span.buffer != "sc"}
            found[i] = _Chain(list(instr.srcs), spans[-1], list(instr.where), lengths, set())
    return found


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
