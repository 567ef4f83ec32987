"""What ``hocket list`` says of the library's algorithms."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.text import Text

from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm
from hocket.cost import Cost
from hocket.errors import UsageError


def listed(collective: str | None) -> list[Algorithm]:
    """The algorithms of a collective, or all. Raises UsageError for a collective that has none."""
    if collective is None:
        return list(CATALOGUE)
    names = {_plain(algorithm.collective.__name__): algorithm.collective.__name__ for algorithm in CATALOGUE}
    found = [algorithm for algorithm in CATALOGUE if _plain(algorithm.collective.__name__) == _plain(collective)]
    if not found:
        close = difflib.get_close_matches(_plain(collective), names, 1)
        hint = f"did you mean {names[close[0]]}?" if close else f"it is one of {', '.join(names.values())}"
        raise UsageError(f"no algorithm implements {collective!r}", hint)
    return found


def _plain(name: str) -> str:
    """Of AllReduce, all_reduce and allreduce the same."""
    return name.replace("_", "").lower()


def as_json(algorithm: Algorithm) -> dict[str, object]:
    """Costs are formulas over p, the number of ranks, and the parameters (``hocket.algorithms.entry``)."""
    return {
        "name": algorithm.name,
        "parameters": _parameters(algorithm),
        "collective": algorithm.collective.__name__,
        "ranks": algorithm.takes.words,
        **_costs(algorithm),
        "sums": algorithm.sums,
        "source": algorithm.source,
    }


def _parameters(algorithm: Algorithm) -> dict[str, object]:
    """Each with its default; None where it has to be given."""
    given = inspect.signature(algorithm.factory).parameters.values()
    return {p.name: None if p.default is p.empty else p.default for p in given}


def _costs(algorithm: Algorithm) -> dict[str, str]:
    return {field.name: getattr(algorithm, field.name) for field in fields(Cost)}


def print_algorithms(console: Console, algorithms: Sequence[Algorithm]) -> None:
    for collective in dict.fromkeys(algorithm.collective for algorithm in algorithms):
        console.print(Text(collective.__name__, "bold"))
        for algorithm in algorithms:
            if algorithm.collective is collective:
                _print(console, algorithm)
        console.print()
    console.print("Costs are of the busiest rank, p is the number of ranks: docs/algorithms.md says what each means.")


def _print(console: Console, algorithm: Algorithm) -> None:
    """How it is named on the command line; below, all that the catalogue says."""
    words = [f"{name}={'...' if value is None else value}" for name, value in _parameters(algorithm).items()]
    console.print(Text.assemble("  ", (algorithm.name, "green"), " ", " ".join(words)), soft_wrap=True)
    costs = [f"{name} {formula}" for name, formula in _costs(algorithm).items() if formula != "0"]
    facts = [f"ranks: {algorithm.takes.words}", ", ".join(costs), algorithm.source]
    indent = " " * 6
    said = textwrap.fill("; ".join(facts), console.width, initial_indent=indent, subsequent_indent=indent)
    console.print(Text(said, "dim"), soft_wrap=True)
