"""Contracts on bits: sums of floats depend on the order of additions and on where they are rounded.

Every sum that a schedule computes is a tree. Two trees give the same bits if they are equal up to the order of the two
that meet first in a node: a + b is b + a, down to the bit (NaN payloads excepted), and nothing more is certain.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Literal, get_args

from hocket.collectives import Sum, members
from hocket.errors import SummedChunk, SumsDiffer
from hocket.verify.events import Events
from hocket.verify.postcondition import Term, Terms

Contract = Literal["may-differ", "across-ranks", "across-sizes", "rank-order"]
"""What a schedule may keep, each more than the one before:

- ``may-differ``: ranks that get the same sum may get different bits, each the sum all the same;
- ``across-ranks``: all ranks that get the same sum get the same bits;
- ``across-sizes``: also, an element's bits do not depend on where it lies, on the message's size, or on instances;
- ``rank-order``: also, the sum is taken from rank 0 to the last in the type it is accumulated in (float32 for 16-bit
  floats), and rounded once.
"""

CONTRACTS: tuple[Contract, ...] = get_args(Contract)


@dataclass(frozen=True, slots=True)
class _Output:
    rank: int
    index: int
    term: Term


class Sums:
    """The sums that a proven schedule leaves in its outputs."""

    def __init__(self, events: Events, terms: Terms) -> None:
        self._events = events
        self._terms = terms
        collective = terms.collective
        # Of the outputs that hold one term, the first: the schedule is proven, so the same is wanted of all.
        self._wanted: dict[Sum, list[_Output]] = {}
        seen: set[Term] = set()
        for rank, output in enumerate(terms.outputs()):
            for index, term in enumerate(output):
                if term is not None and term >= terms.leaves and term not in seen:
                    total = collective.required(rank, index)
                    if total is not None:
                        seen.add(term)
                        self._wanted.setdefault(total, []).append(_Output(rank, index, term))

    def kept(self) -> Contract | None:
        """The strongest contract that holds; None where nothing is summed."""
        found: Contract | None = None
        if self._wanted:
            for contract in CONTRACTS:
                if self._breach(contract) is not None:
                    break
                found = contract
        return found

    def demand(self, contract: Contract) -> None:
        """Raise SumsDiffer if the contract, or one that it includes, is not kept."""
        for required in CONTRACTS[: CONTRACTS.index(contract) + 1]:
            breach = self._breach(required)
            if breach is not None:
                raise SumsDiffer(self._terms.collective.name, required, tuple(map(self._chunk, breach)))

    def _breach(self, contract: Contract) -> tuple[_Output, ...] | None:
        """Two outputs that should have been summed alike, or one that should have been summed in rank order."""
        if contract == "may-differ":
            return None
        if contract == "rank-order":
            outputs = chain.from_iterable(self._wanted.values())
            return next(((output,) for output in outputs if not self._in_rank_order(output.term)), None)
        if contract == "across-ranks":
            groups = list(self._wanted.values())
            if all(len(group) == 1 for group in groups):
                return None
            leaves: list[Hashable] = list(range(self._terms.leaves))
        else:
            groups, leaves = self._comparable()
        shapes = self._shapes(leaves)
        for first, *others in groups:
            for other in others:
                if shapes[other.term] != shapes[first.term]:
                    return first, other
        return None

    def _comparable(self) -> tuple[list[list[_Output]], list[Hashable]]:
        """Outputs grouped by what makes them the same sum at different places, and what that is for each leaf.

        That is the rank, or where some sum takes several chunks of a rank, the rank and the unit.
        """
        totals = {total: members(total) for total in self._wanted}
        several = any(len({rank for rank, _ in chunks}) < len(chunks) for chunks in totals.values())
        chunks = self._terms.collective.chunks

        def leaf(rank: int, index: int) -> Hashable:
            return (rank, index // chunks) if several else rank

        groups: dict[Hashable, list[_Output]] = {}
        for total, outputs in self._wanted.items():
            groups.setdefault(frozenset(starmap(leaf, totals[total])), []).extend(outputs)
        return list(groups.values()), [leaf(*parts) for parts in self._terms.parts[: self._terms.leaves]]

    def _in_rank_order(self, term: Term) -> bool:
        terms = self._terms
        parts = terms.parts[term]
        if any(part >= terms.leaves for part in parts):
            return False
        ranks = [terms.parts[part][0] for part in parts]
        return [*sorted(ranks[:2]), *ranks[2:]] == sorted(ranks)

    def _shapes(self, leaves: Sequence[Hashable]) -> list[int]:
        """A number for each term, equal for terms that give the same bits where equal leaves do."""
        known: dict[Hashable, int] = {}
        shapes: list[int] = []
        for term, parts in enumerate(self._terms.parts):
            if term < len(leaves):
                key = leaves[term]
            else:
                a, b, *others = [shapes[part] for part in parts]
                key = ("sum", min(a, b), max(a, b), *others)
            shapes.append(known.setdefault(key, len(known)))
        return shapes

    def _chunk(self, output: _Output) -> SummedChunk:
        where = self._events.steps[self._terms.made[output.term]].where
        return SummedChunk(output.rank, output.index, self._show(output.term), where[0] if where else None)

    def _show(self, term: Term, depth: int = 6) -> str:
        terms = self._terms
        if term < terms.leaves:
            return f"r{terms.parts[term][0]}"
        if not depth:
            return "..."
        return f"({' + '.join(self._show(part, depth - 1) for part in terms.parts[term])})"
