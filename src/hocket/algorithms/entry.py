"""What the catalogue says of an algorithm: which numbers of ranks it takes, and what it costs, as formulas.

Formulas are Python over p (the number of ranks), the parameters of the algorithm and the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Literal

from hocket import Collective, Program
from hocket.cost import Cost

Parameters = dict[str, int | tuple[int, ...]]
"""What a factory is called with, but for the root and the instances."""


@dataclass(frozen=True, slots=True)
class Takes:
    """Which numbers of ranks an algorithm takes: in words, and as the parameters that make a number, if any."""

    words: str
    shapes: Callable[[int], list[Parameters]]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry. The formulas are those of ``Cost``, exact but where they begin with "≤ ".

    ``sums`` is the contract on the bits of its sums that it keeps for every number of ranks; None if it sums nothing.
    ``tried`` has values for parameters beyond those of ``takes``.
    """

    factory: Callable[..., Program]
    collective: type[Collective]
    takes: Takes
    source: str
    hops: str
    rounds: str
    volume: str
    reductions: str = "0"
    sums: Literal["across-ranks", "across-sizes", "rank-order"] | None = None
    scratch: str = "0"
    tried: Mapping[str, tuple[int, ...]] | None = None

    @property
    def name(self) -> str:
        """``ring:all_reduce``, which the command line knows as ``hocket.algorithms.ring:all_reduce``."""
        return f"{self.factory.__module__.rpartition('.')[2]}:{self.factory.__name__}"

    def cases(self, ranks: int) -> list[Parameters]:
        """The parameters that make programs for so many ranks; none if that many are not taken."""
        tried = self.tried or {}
        return [
            shape | dict(zip(tried, values, strict=True))
            for shape in self.takes.shapes(ranks)
            for values in product(*tried.values())
        ]

    def cost(self, ranks: int, parameters: Parameters) -> Cost:
        """The cost, or its bounds, of ``factory(**parameters)``, which is for so many ranks."""
        exact = {name: n if isinstance(n, tuple) else Fraction(n) for name, n in parameters.items()}
        names = FUNCTIONS | {"p": Fraction(ranks)} | exact
        formulas = (self.hops, self.rounds, self.volume, self.reductions, self.scratch)
        return Cost(*(Fraction(eval(formula.removeprefix("≤ "), {"__builtins__": {}}, names)) for formula in formulas))


# ---------------------------------------------------------------------------------------------------------------
# What formulas may use, besides p and the parameters


def floor_log2(n: Fraction) -> Fraction:
    return Fraction(int(n).bit_length() - 1)


def ceil_log2(n: Fraction) -> Fraction:
    return Fraction((int(n) - 1).bit_length())


def power(n: Fraction) -> Fraction:
    """The largest power of two up to n."""
    return Fraction(1 << int(floor_log2(n)))


def folds(n: Fraction) -> Fraction:
    """1 where n is no power of two, so that some ranks have to be folded into others; else 0."""
    return Fraction(power(n) < n)


def ceil_log(n: Fraction, base: Fraction) -> Fraction:
    """The logarithm rounded up: the digits of n - 1."""
    digits = 0
    while base**digits < n:
        digits += 1
    return Fraction(digits)


def children(n: Fraction, radix: Fraction) -> Fraction:
    """Children of the root of a k-nomial tree of n nodes."""
    full = max(int(ceil_log(n, radix)) - 1, 0)
    return (radix - 1) * full + ceil(n / radix**full) - 1


def groups(n: Fraction, sockets: Fraction) -> Fraction:
    """Sockets that have any of n ranks."""
    return min(sockets, n)


def members(n: Fraction, sockets: Fraction) -> Fraction:
    """Of n ranks, those of the socket that has most."""
    return Fraction(ceil(n / groups(n, sockets)))


def bits(n: Fraction) -> Fraction:
    """Bits that are set in all numbers below n: about n / 2 * log2(n)."""
    return Fraction(sum(number.bit_count() for number in range(int(n))))


def busiest(counts: tuple[int, ...], n: Fraction) -> Fraction:
    """The most chunks that one of n ranks sends to others, or receives from others."""
    size = int(n)
    table = [[0 if r == d else counts[r * size + d] for d in range(size)] for r in range(size)]
    return Fraction(max(max(map(sum, table)), max(map(sum, zip(*table, strict=True)))))


def nodes(node_of: tuple[int, ...]) -> Fraction:
    """How many nodes ranks are on."""
    return Fraction(len(set(node_of)))


def most(node_of: tuple[int, ...]) -> Fraction:
    """Ranks of the largest of these."""
    return Fraction(max(map(node_of.count, node_of)))


def least(node_of: tuple[int, ...]) -> Fraction:
    """Ranks of the smallest of these."""
    return Fraction(min(map(node_of.count, node_of)))


FUNCTIONS: dict[str, object] = {
    function.__name__: function
    for function in (
        *(floor_log2, ceil_log2, power, folds, ceil_log, children, groups, members, bits, busiest, nodes, most, least),
        *(ceil, min, max, sum, len),
    )
}
