"""Jobs that measured each cell in turns, compared in pairs: ratios of cells that met the machine in the same state.

For seconds at a time cores of a virtual machine exchange data as if they shared no cache. A cell is "slow" where the
barrier, timed when its calls have been, takes more than 1.5 times as long as at best.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from peers import T95, With
from peers import Launches as Starts
from peers_worker import Cell

SLOW = 1.5  # times what a barrier takes at best

Key = tuple[str, str, str, int, int]
"""Of a cell: collective, kind of arrays, regime, bytes, round."""

Launches = dict[Key, Cell]
"""The cells of one contender from launches at one time."""

Pair = tuple[Launches, Launches]
"""What is compared, and what it is compared with: the same rounds."""


def launched(starts: Starts, two: Sequence[With], collective: str, kind: str, rounds: int) -> Pair:
    """The cells of two contenders side by side. Raises Missing."""
    found = []
    for result in starts.side_by_side(two, collective, rounds):
        if wrong := sum(cell.wrong for cell in result.cells):
            sys.exit(f"{wrong} wrong")
        found.append({(collective, kind, cell.regime, cell.bytes, cell.round): cell for cell in result.cells})
    ours, theirs = found
    return ours, theirs


@dataclass(frozen=True)
class Mean:
    """A geometric mean of ratios, the 95 % interval that it lies in by launches, and of how many cells it is."""

    ratio: float
    low: float
    high: float
    cells: int

    @classmethod
    def of(cls, launches: Sequence[Sequence[float]]) -> Mean | None:
        """From the logarithms of the ratios of each; None where fewer than two have any."""
        means = [statistics.fmean(logs) for logs in launches if logs]
        if len(means) < 2:
            return None
        mean = statistics.fmean(means)
        half = T95[min(len(means) - 1, len(T95)) - 1] * statistics.stdev(means) / math.sqrt(len(means))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), max(map(len, launches)))

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def slow_above(launches: Iterable[Launches]) -> float:
    """Microseconds of a barrier above which the machine is in its slow state."""
    return SLOW * min(cell.barrier for cells in launches for cell in cells.values())


def compare(pairs: Sequence[Pair], chosen: Callable[[Key], bool], limit: float) -> dict[str, Mean | None]:
    """Ratios of medians over the cells of the chosen keys: those whose two sides met one state, and in "any" all."""
    logs: dict[str, list[list[float]]] = {state: [[] for _ in pairs] for state in ("fast", "slow", "any")}
    for number, (ours, theirs) in enumerate(pairs):
        for key in filter(chosen, ours.keys() & theirs.keys()):
            log = math.log(ours[key].median / theirs[key].median)
            logs["any"][number].append(log)
            states = {"slow" if launches[key].barrier > limit else "fast" for launches in (ours, theirs)}
            if len(states) == 1:
                logs[states.pop()][number].append(log)
    return {state: Mean.of(launches) for state, launches in logs.items()}
