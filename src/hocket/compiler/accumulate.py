"""Accumulation: what a rank adds up locally, one term after the other, one instruction reads once and stores once.

The order of the terms stays; values of 16 bits are rounded once instead of after each addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from hocket.errors import Where
from hocket.ir.chunk_dag import Span, shares_chunk
from hocket.ir.instr_dag import Instr, InstrDag, Source


@dataclass(slots=True)
class _Chain:
    """Local instructions that become one, stored to ``target``, by their numbers. ``lengths``: see ``lengths``.

    ``others``, a heap, come after one of them and are not among them; an instruction is there once for each that it
    comes after.
    """

    srcs: list[Source]
    target: Span
    where: list[Where]
    members: list[int]
    others: list[int]
    lengths: set[tuple[int, int]]


def accumulate(dag: InstrDag) -> InstrDag:
    """Chains of local reduces become one, with the copy they begin with, and the copy of a sum out of scratch."""
    instrs = dag.instrs
    local = [type(instr.srcs[0]) is type(instr.dsts[0]) is Span and len(instr.dsts) == 1 for instr in instrs]
    if not any(here and len(instr.srcs) > 1 for here, instr in zip(local, instrs, strict=True)):
        return dag
    return _joined(dag, _chains(dag, local))


def _chains(dag: InstrDag, local: Sequence[bool]) -> dict[int, _Chain]:
    """All local instructions, each in one chain, by the last of each chain."""
    followers: dict[int, list[int]] = {}
    for i, before in enumerate(dag.after):
        for earlier in before:
            if local[earlier]:
                followers.setdefault(earlier, []).append(i)
    chains: dict[int, _Chain] = {}
    for i, instr in enumerate(dag.instrs):
        if not local[i]:
            continue
        its = lengths(dag, instr)
        end = next((e for e in dag.after[i] if e in chains and _joins(dag, chains[e], i, its)), None)
        if end is None:
            others = followers.get(i, [])  # in ascending order, which is a heap
            chains[i] = _Chain(list(instr.srcs), _target(instr), list(instr.where), [i], others, its)
            continue
        chain = chains[i] = chains.pop(end)
        chain.srcs += instr.srcs[1:]
        chain.target = _target(instr)
        chain.where += instr.where
        chain.members.append(i)
        while chain.others and chain.others[0] == i:
            heappop(chain.others)
        for other in followers.get(i, ()):
            heappush(chain.others, other)
        chain.lengths |= its
    return chains


def _joined(dag: InstrDag, chains: Mapping[int, _Chain]) -> InstrDag:
    """The DAG with one instruction for each chain, in the place of its last."""
    end = list(range(len(dag.instrs)))  # the last instruction of the chain that an instruction is in
    for i, chain in chains.items():
        for member in chain.members:
            end[member] = i
    number: list[int] = []
    kept: list[Instr] = []
    after: list[tuple[int, ...]] = []
    for i, (instr, before) in enumerate(zip(dag.instrs, dag.after, strict=True)):
        number.append(len(kept))
        if end[i] != i:
            continue
        if i in chains and len(chains[i].members) > 1:
            chain = chains[i]
            instr = Instr(instr.rank, tuple(chain.srcs), (chain.target,), tuple(chain.where))
            before = tuple(set().union(*[dag.after[member] for member in chain.members]).difference(chain.members))
        kept.append(instr)
        if len(before) > 1:
            after.append(tuple(sorted({number[end[earlier]] for earlier in before})))
        else:
            after.append((number[end[before[0]]],) if before else before)
    return replace(dag, instrs=tuple(kept), after=tuple(after))


def _target(instr: Instr) -> Span:
    (target,) = instr.dsts
    assert isinstance(target, Span)
    return target


def _joins(dag: InstrDag, chain: _Chain, i: int, its: set[tuple[int, int]]) -> bool:
    """Whether instruction i, of lengths ``its``, adds to what a chain has stored, or takes a sum out of scratch for
    good."""
    instr = dag.instrs[i]
    between, added = chain.target, instr.srcs[1:]
    # Whatever else waits for the chain has to come after its end.
    if instr.srcs[0] != between or chain.others[0] < i:
        return False
    if added:
        fits = instr.dsts[0] == between and not any(shares_chunk(between, source) for source in added)
    else:
        read = [source for other in chain.others if other != i for source in dag.instrs[other].srcs]
        fits = (
            len(chain.srcs) > 1 and between.buffer == "sc" and not any(shares_chunk(between, source) for source in read)
        )
    return fits and len(chain.lengths | its) <= 1


def lengths(dag: InstrDag, instr: Instr) -> set[tuple[int, int]]:
    """What tells apart chunks that may be of different lengths where sizes are uneven; those of scratch have all."""
    chunks = dag.collective.chunks
    return {
        (span.index % chunks, span.stride)
        for span in instr.srcs + instr.dsts
        if isinstance(span, Span) and span.buffer != "sc"
    }
