"""What `bench`, `sim` and `tune` draw: times, and what follows from them, over the size of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.cli.writing import writing
from hocket.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def over_sizes(title: str, headings: tuple[str, str], path: Path) -> Iterator[tuple[Axes, Axes]]:
    """Two diagrams over the bytes of a rank's larger buffer, the first of times, to be filled and then saved. Raises
    UsageError."""
    from matplotlib.figure import Figure  # takes longer to load than all of the rest

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(printable(title)).set_parse_math(False)
    times, right = figure.subplots(1, 2)
    yield times, right
    for axes, heading in zip((times, right), headings, strict=True):
        axes.set_title(heading, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("bytes of a rank's larger buffer")
        axes.grid(alpha=0.3)
    times.set_yscale("log")
    times.legend()
    with writing(path):
        figure.savefig(path, dpi=150)
