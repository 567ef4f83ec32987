"""What ``hocket check`` found out: about one program or one file, and about all that were named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hocket.cli.compiled import Facts
from hocket.cli.target import show_value
from hocket.errors import BadConfig, Diagnostic, HocketError, Location, TargetLimit
from hocket.verify import Contract, Proof

if TYPE_CHECKING:  # they load part of the library
    from hocket.config import Item
    from hocket.tuning import Sizes


class Verdict(StrEnum):
    """In the order of their weight: the heaviest is that of a report."""

    PROVEN = "proven"
    REFUSED = "refused"
    """It is proven, but a runtime that must load it does not."""
    REFUTED = "refuted"
    """There is a counterexample."""
    INVALID = "invalid"
    """It could not be judged: no schedule came of it."""

    @classmethod
    def of(cls, error: HocketError | None) -> Verdict:
        if error is None:
            return cls.PROVEN
        if isinstance(error, BadConfig) and error.cause is not None:
            return cls.of(error.cause)
        if isinstance(error, TargetLimit):
            return cls.REFUSED
        return cls.REFUTED if error.refutes else cls.INVALID

    @property
    def exit_code(self) -> int:
        return {Verdict.PROVEN: 0, Verdict.INVALID: 2}.get(self, 1)


@dataclass(frozen=True)
class Result:
    """One program with one choice of its parameters, or one file, as far as it came.

    ``file`` is the file it comes from, if any. ``refusals`` are the reasons for which each runtime does not load it,
    which only a file of MSCCL's XML has, and ``remarks`` what to know of it where it does. ``sums`` is the contract on
    bits that is kept.
    """

    target: str
    file: str | None
    parameters: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    facts: Facts | None = None
    proof: Proof | None = None
    sums: Contract | None = None
    refusals: Mapping[str, tuple[str, ...]] | None = None
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()
    error: HocketError | None = None

    @property
    def verdict(self) -> Verdict:
        return Verdict.of(self.error)

    @property
    def name(self) -> str:
        """What the user would write to check just this."""
        return " ".join([self.target, *(f"{name}={show_value(value)}" for name, value in self.parameters.items())])


@dataclass(frozen=True)
class Taken:
    """Which entry of a file of schedules calls of some sizes take, from a root if they have one; None: the default."""

    collective: str
    root: int | None
    ranks: int
    sizes: Sizes
    item: Item | None


@dataclass(frozen=True)
class Skipped:
    """Why there is none of an entry for a number of ranks; ``elsewhere``: it is for other numbers that it names."""

    why: str
    elsewhere: bool


@dataclass(frozen=True)
class Report:
    """All results, or what is wrong with the command line.

    Of a file of schedules also which entries are taken, by ``sizes``, and which are ``skipped``.
    """

    results: tuple[Result, ...] = ()
    error: HocketError | None = None
    sizes: tuple[Taken, ...] | None = None
    skipped: tuple[Skipped, ...] = ()

    @property
    def verdict(self) -> Verdict:
        found = {Verdict.of(self.error), *(result.verdict for result in self.results)}
        return max(found, key=list(Verdict).index)


def place_of(diagnostic: Diagnostic) -> Location | None:
    """Where a diagnostic belongs: its primary label, unless that is in a file which was not read, but only named."""
    places = [label.where.resolve() for label in sorted(diagnostic.labels, key=lambda label: not label.primary)]
    return next((at for at in places if at.source is not None), None)
