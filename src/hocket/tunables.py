"""The tuned numbers: one table, from which follow their defaults, their listing, and what HOCKET_TUNABLES may say.

These rows are those of Python, which need no native code; ``native/policy/tunables.def`` has the others, and
``hocket/runtime/tuned.py`` both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Literal

from hocket.errors import BootstrapFailed

VARIABLE = "HOCKET_TUNABLES"
CONFIG = "HOCKET_CONFIG"
"""The variable that names the file of config.py."""

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18}(?= ?[KMGT]))?) ?(?:([KMGT])i?)?B?", re.IGNORECASE)
_UNITS = "KMGT"


def parse_size(text: str) -> int | None:
    """Bytes of ``64MB``, ``64 MB``, ``1.5K`` or ``8``, rounded down; K is 1024. None for what is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, _, part = match[1].partition(".")
    power = _UNITS.index(match[2].upper()) + 1 if match[2] else 0
    scale: int = 10 ** len(part)
    return (int(whole + part) << 10 * power) // scale


def show_size(size: int) -> str:
    """The same the other way round, as far as it divides: ``128 KB``."""
    power = 0
    while power < len(_UNITS) and size and size % 1024 == 0:
        size //= 1024
        power += 1
    return f"{size} {_UNITS[power - 1]}B" if power else f"{size} B"


_TILES = 64, 1 << 28
"""The least and the largest tile in bytes (native/policy)."""
TILE_HELP = "a tile is a power of two from 64 to 256MB, such as 64KB"


def parse_tile(text: str) -> int | None:
    """Bytes of a tile; None for what is none."""
    size = parse_size(text)
    return None if size is None or not _TILES[0] <= size <= _TILES[1] or size & (size - 1) else size


Scope = Literal["common", "local", "fixed"]
"""Who must have the same value: all ranks of a communicator, or nobody; a fixed one is part of the code, and the same
on all ranks too."""


@dataclass(frozen=True, slots=True)
class Row:
    """A tuned number. ``source``: where it was measured, empty where nobody noted it. ``tile``: a power of two."""

    name: str
    unit: str
    scope: Scope
    value: int
    least: int
    most: int
    source: str
    reason: str
    tile: bool = False

    def show(self, value: int) -> str:
        return show_size(value) if self.unit == "bytes" else str(value)

    def parse(self, text: str) -> int:
        """A value. Raises BootstrapFailed."""
        value = parse_size(text) if self.unit == "bytes" else int(text) if re.fullmatch("[0-9]{1,18}", text) else None
        if value is None or not self.least <= value <= self.most or (self.tile and value & (value - 1)):
            least, most = self.show(self.least), self.show(self.most)
            what = "a power of two" if self.tile else "a number"
            raise BootstrapFailed(f"{VARIABLE}: {self.name} must be {what} from {least} to {most}, not {text[:40]!r}")
        return value


_UNIT_RANGES = {"bytes": (0, 1 << 40), "ranks": (0, 1 << 20), "times": (0, 1 << 20)}


def _tuned(
    value: int,
    unit: str,
    reason: str,
    source: str = "",
    scope: Scope = "common",
    tile: bool = False,
    most: int | None = None,
) -> int:
    least, largest = _TILES if tile else _UNIT_RANGES[unit]
    about = {"unit": unit, "scope": scope, "least": least, "most": most or largest, "tile": tile}
    found: int = field(default=value, metadata={**about, "source": source, "reason": reason})
    return found


_CROSSOVER = "benchmarks/results/crossover.md"
_WAITING = "benchmarks/results/patience.md"
_ABLATION = "benchmarks/results/ablation.md"
_NODES = "benchmarks/results/nodes.md"
_TUNER = "benchmarks/results/tuner.md"

NEVER = 1 << 40
"""Bytes that no buffer has."""


@dataclass(frozen=True, slots=True)
class Tunables:
    """Those of Python. Whoever uses one reads its field."""

    small_bytes: int = _tuned(
        128 << 10, "bytes", "that the busiest rank sends or receives, up to which all is sent at once", _CROSSOVER
    )
    small_at_root_bytes: int = _tuned(16 << 20, "bytes", "the same of the root of a Reduce", _CROSSOVER)
    few_ranks: int = _tuned(
        16, "ranks", "up to which every two have a connection: more take too much memory for slots", _CROSSOVER
    )
    header_bytes: int = _tuned(
        60 << 10,
        "bytes",
        "that a node sends at once, or a rank adds up, up to which a call's messages go with headers between nodes: "
        "with these they are less than the 64 KB that MPIs send at once over TCP",
        _NODES,
        most=60 << 10,
    )
    long_header_bytes: int = _tuned(
        192 << 10,
        "bytes",
        "the same where they are only moved, by Open MPI or Intel MPI: in several messages",
        _NODES,
    )
    gathered_bytes: int = _tuned(
        32 << 10, "bytes", "of a block, from which on an AllToAll between nodes sends each by itself", _NODES
    )
    early_above_bytes: int = _tuned(
        16 << 10, "bytes", "of a Reduce on two ranks, above which its root begins before all has come", _CROSSOVER
    )
    early_short_bytes: int = _tuned(128 << 10, "bytes", "the same, up to which tiles are shorter", _CROSSOVER)
    early_short_tile_bytes: int = _tuned(16 << 10, "bytes", "of the tiles of such a Reduce", _CROSSOVER, tile=True)
    early_most_bytes: int = _tuned(512 << 10, "bytes", "the same, up to which short tiles pay", _CROSSOVER)
    early_tile_bytes: int = _tuned(32 << 10, "bytes", "of the tiles of such a Reduce", _CROSSOVER, tile=True)
    team_bytes: int = _tuned(
        1 << 20, "bytes", "of a call's larger buffer, from which on threads share it: less is not worth waking them"
    )
    lent_bytes: int = _tuned(
        2 << 10, "bytes", "that a rank sends, from which on shared arrays are lent, not sent in one round", _ABLATION
    )
    cma_bytes: int = _tuned(
        64 << 10,
        "bytes",
        "of a larger buffer, below which private arrays are never offered to others: see attached_bytes",
        _ABLATION,
    )
    cma_crowded_bytes: int = _tuned(256 << 10, "bytes", "the same where ranks share cores", _ABLATION)
    cma_ranks: int = _tuned(16, "ranks", "up to which they attach to private arrays: every two have a connection")
    learned_bytes: int = _tuned(
        128 << 10,
        "bytes",
        "of a larger buffer, from which on a tuner learns of calls on one node: no way to make shorter ones gains what "
        "it costs to have several",
        _TUNER,
    )
    learned_crowded_bytes: int = _tuned(NEVER, "bytes", "the same where ranks share cores: never", _TUNER)
    spins: int = _tuned(100, "times", "that a rank which waits looks before it yields", _WAITING, "local")
    yields: int = _tuned(200, "times", "that it yields before it sleeps", _WAITING, "local")
    crowded_spins: int = _tuned(0, "times", "the same as spins where ranks share cores", _WAITING, "local")
    crowded_yields: int = _tuned(
        20, "times", "the same as yields where ranks share cores, and all are on one node", _WAITING, "local"
    )

    def patience(self, *, crowded: bool, nodes: bool) -> tuple[int, int]:
        """How often a rank that waits looks, and then yields, before it sleeps. ``crowded``: ranks share cores.
        ``nodes``: there are several, so it also waits for messages that nobody wakes it for."""
        spins = self.crowded_spins if crowded else self.spins
        return spins, self.crowded_yields if crowded and not nodes else self.yields


ROWS = tuple(Row(name=f.name, value=getattr(Tunables(), f.name), **f.metadata) for f in fields(Tunables))
"""Those of Python."""


def given(text: str, rows: Iterable[Row]) -> dict[str, int]:
    """The values in ``name=value,...``, sizes as 64KB. Raises BootstrapFailed."""
    known = {row.name: row for row in rows}
    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = word.partition("=")
        row = known.get(name.strip())
        if not equals:
            raise BootstrapFailed(f"{VARIABLE} must be name=value,..., not {word[:40]!r}")
        if row is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "hocket info lists them"
            raise BootstrapFailed(f"{VARIABLE}: there is no tunable {name[:40]!r}", hint)
        if row.scope == "fixed":
            raise BootstrapFailed(f"{VARIABLE}: {row.name} is fixed in the code")
        if row.name in found:
            raise BootstrapFailed(f"{VARIABLE}: {row.name} is given twice")
        found[row.name] = row.parse(value.strip())
    return found
