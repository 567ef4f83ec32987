"""``hocket calibrate``: measures this machine for the simulator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hocket import calibrate, topology
from hocket.calibrate import Figure, Key
from hocket.cli.console import say
from hocket.cli.progress import bar
from hocket.cli.writing import check_writable, writing
from hocket.errors import UsageError
from hocket.topology import Topology
from hocket.tunables import show_size


def measured(ranks: int | None) -> tuple[dict[Key, Figure], Topology]:
    """What was measured, and the topology that it comes to. By default as many ranks at most as there are cores."""
    cores = len(os.sched_getaffinity(0))
    if ranks is not None and ranks > cores:
        raise UsageError(f"there are {cores} cores for {ranks} ranks", "ranks that take turns measure nothing")
    with bar("measuring") as done:
        figures = calibrate.measure(min(ranks or cores, calibrate.MOST), done)
    return figures, calibrate.topology(figures)


def place(path: Path | None) -> Path:
    """The file of the topology, where ``local`` is looked for for None; asked before anything is measured. Raises
    UsageError for a name that is no topology's, and for what cannot be written."""
    path = topology.local_file() if path is None else path
    if not path.name.endswith(".toml"):
        raise UsageError(f"the name of a topology ends in .toml, not {path.name!r}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path)
    return path


def print_found(found: Topology, figures: Mapping[Key, Figure], console: Console) -> None:
    """Costs, and bandwidths by working set. Spread: by how much the median of rounds is above the least."""
    costs = found.costs
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("what", "us", "spread"):
        table.add_column(name, justify="left" if name == "what" else "right")
    rows: list[tuple[str, float, Key]] = [("a call", costs.launch, (2, "call"))]
    rows.append(("a step on a tile", costs.decode, (2, "steps", calibrate.STEPS)))
    rows.append(("a message in one round", costs.protocol("eager").hop, (2, "crossing")))
    rows.append(("a message through the fifo", costs.protocol("fifo").hop, (2, "hops", calibrate.LONG)))
    rows.append(("a zero-copy call, more", costs.protocol("zero-copy").start, (2, "lent")))
    for what, value, key in rows:
        table.add_row(what, f"{value:.3f}", _spread(figures.get(key)))
    console.print(table)
    say(console, "")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in (
        "ranks at once\n",
        "working set\n",
        "copy\nGB/s",
        "update\nGB/s",
        "add\nGB/s",
        "core to core\nGB/s",
        "spread\n",
    ):
        table.add_column(name, justify="right")
    for point in costs.memory:
        speeds = (point.copy, point.update, point.add, point.far)
        shown = [f"{speed:.1f}" if speed < calibrate.FASTEST * 0.99 else "" for speed in speeds]
        spread = _spread(figures.get((point.ranks, "copy", point.bytes)))
        table.add_row(str(point.ranks), show_size(point.bytes), *shown, spread)
    console.print(table)


def _spread(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.median / figure.least - 1:.0%}"
