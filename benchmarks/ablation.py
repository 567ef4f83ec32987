"""What each heuristic of the runtime gains: ``python benchmarks/ablation.py [--ranks 2] [--only NAME ...]``.

A heuristic is switched off by tunables (``hocket info`` lists them) or by HOCKET_REACH. A job with the defaults and a
job without one heuristic are there at once, and measure each cell in turns, as peers.py does. A ratio is what a call
takes without the heuristic over what it takes with it: above 1 the heuristic gains. A row has the geometric mean over
the calls that the heuristic applies to (collectives, and sizes in its range), hot and cold apart, with the 95 %
interval over launches.

Cells are told apart by the state of the machine (paired.py).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from machine import describe, title
from paired import Launches, Pair, compare, launched, slow_above
from peers import COLLECTIVES, HERE, Contender, build, cache_bytes, launcher
from peers import Launches as Starts

NEVER = str(1 << 40)  # no call has as many bytes
KINDS = {"private": "hocket", "shared": "hocket-shared"}


@dataclass(frozen=True)
class Heuristic:
    """Something that can be switched off, and the calls that it applies to: bytes of a rank's larger buffer."""

    off: Mapping[str, str] = field(default_factory=dict)
    reach: str | None = None
    least: int = 1
    most: int = 1 << 60
    collectives: tuple[str, ...] = COLLECTIVES
    kinds: tuple[str, ...] = tuple(KINDS)

    @property
    def variables(self) -> dict[str, str]:
        reach = {} if self.reach is None else {"HOCKET_REACH": self.reach}
        return {"HOCKET_TUNABLES": ",".join(f"{name}={value}" for name, value in self.off.items()), **reach}


HEURISTICS = {
    "cross-memory attach of messages one way (else fifo)": Heuristic(
        reach="never", least=128 << 10, collectives=("broadcast",), kinds=("private",)
    ),
    "cross-memory attach of messages both ways (else fifo)": Heuristic(
        {"attached_bytes": NEVER, "attached_exchange_bytes": NEVER},
        least=64 << 10,
        collectives=tuple(name for name in COLLECTIVES if name != "broadcast"),
        kinds=("private",),
    ),
    "fifo for private arrays (else cross-memory attach)": Heuristic(reach="always", least=64 << 10, kinds=("private",)),
    "cross-memory attach where ranks share cores": Heuristic(
        {"cma_crowded_bytes": NEVER},
        least=256 << 10,
        collectives=("all_gather", "all_to_all", "broadcast"),
        kinds=("private",),
    ),
    "residency probe": Heuristic({"far_past_bytes": NEVER}, least=256 << 10),
    "prefetch ahead in kernels": Heuristic({"prefetch_ahead_bytes": "0"}, least=64 << 10),
    "prefetch ahead of stores in long copies (else memcpy)": Heuristic(
        {"copy_ahead_bytes": "0"}, least=128 << 10, collectives=("broadcast",), kinds=("private",)
    ),
    "prefetch of arguments": Heuristic({"argument_prefetch_bytes": "0", "argument_begin_bytes": "0"}, most=4 << 10),
    "prefetch of the output while waiting": Heuristic({"waiting_prefetch_bytes": "0"}, least=2 << 10, most=32 << 10),
    "prefetch of a short message by its reader": Heuristic(
        {"reader_prefetch_bytes": "0"},
        least=64,
        most=128,
        collectives=("all_reduce", "broadcast", "reduce"),  # of others a message is half of the buffer
    ),
    "messages past the caches where cores share none": Heuristic(
        {"apart_ticks": NEVER}, least=4 << 10, most=4 << 20, kinds=("private",)
    ),
    # The next three differ from the defaults on a Zen 5 alone.
    "but short ones through the caches": Heuristic(
        {"apart_message_bytes": "4KB", "apart_combined_bytes": "4KB"}, least=8 << 10, most=32 << 10, kinds=("private",)
    ),
    "and longer ones that are combined": Heuristic(
        {"apart_combined_bytes": "32KB"},
        least=32 << 10,
        most=2 << 20,
        collectives=("all_reduce", "reduce_scatter", "reduce"),
        kinds=("private",),
    ),
    "slots for private arrays in small pages where cores share none (else cross-memory attach)": Heuristic(
        {"attached_small_pages_apart_bytes": "0"},
        least=128 << 10,
        most=2 << 20,  # from 4 MB on NumPy asks for huge pages
        collectives=("broadcast",),
        kinds=("private",),
    ),
    "more slots than needed": Heuristic({"rotated_bytes": "0"}, least=8 << 10, most=4 << 20, kinds=("private",)),
    "slots bounded for each rank": Heuristic({"rank_slots_bytes": NEVER}, least=1 << 20, kinds=("private",)),
    "short tiles of a Reduce": Heuristic(
        {"early_above_bytes": NEVER}, least=32 << 10, most=512 << 10, collectives=("reduce",), kinds=("private",)
    ),
    "other program where calls are small": Heuristic(
        {"small_bytes": "0"}, most=128 << 10, collectives=("all_reduce", "all_gather", "reduce_scatter")
    ),
    "eager below a size in shared arrays": Heuristic({"lent_bytes": "0"}, most=(2 << 10) - 1, kinds=("shared",)),
    "zero-copy from a size on where eager fits": Heuristic(
        {"lent_bytes": NEVER}, least=2 << 10, most=16 << 10, kinds=("shared",)
    ),
    "spinning before yielding": Heuristic({"spins": "0", "crowded_spins": "0"}),
}


@dataclass(frozen=True)
class Setting(Contender):
    """This hocket with variables of the environment."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def launcher(self, python: Path, ranks: int, cores: int) -> list[str]:
        return ["env", *(f"{name}={value}" for name, value in self.variables.items()), *launcher(ranks)]


def measure(starts: Starts, name: str, given: argparse.Namespace) -> list[Pair]:
    """The cells of each launch without the heuristic, and with it."""
    heuristic, found = HEURISTICS[name], []
    for launch in range(given.launches):
        order = -1 if launch % 2 else 1
        without: Launches = {}
        defaults: Launches = {}
        for collective, kind in product(given.collective, KINDS):
            if collective not in heuristic.collectives or kind not in heuristic.kinds:
                continue
            variables = heuristic.variables, dict[str, str]()
            settings = [(Setting(name, KINDS[kind], (), "", each), Path(sys.executable)) for each in variables]
            ours, theirs = launched(starts, settings[::order], collective, kind, given.rounds)[::order]
            without |= ours
            defaults |= theirs
        found.append((without, defaults))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=HEURISTICS, nargs="+", default=list(HEURISTICS), metavar="NAME")
    parser.add_argument("--collective", choices=COLLECTIVES, nargs="+", default=list(COLLECTIVES))
    parser.add_argument("--begin", default="8", metavar="BYTES")
    parser.add_argument("--end", default="8M", metavar="BYTES")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--launches", type=int, default=4, metavar="N", help="with and without each heuristic")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all cells in a launch")
    parser.add_argument("--seconds", type=float, default=0.03, help="of calls in a cell of a round")
    parser.add_argument("--least", type=int, default=10, metavar="N", help="calls in a cell, however long they take")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="of a launch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended as after Ctrl-C
    machine = describe() | {"last-level cache": cache_bytes(), "ranks": given.ranks}
    print(title(machine), flush=True)
    with tempfile.TemporaryDirectory() as work:
        build(HERE / "peers_native.cpp", Path(work) / "native.so")
        starts = Starts(given, sorted(os.sched_getaffinity(0)), cache_bytes(), Path(work))
        found = {name: measure(starts, name, given) for name in given.only}
    limit = slow_above(cells for pairs in found.values() for pair in pairs for cells in pair)
    print(f"without / with, geometric mean [95 %] cells\n{'':58}{'fast state':32}{'slow state':32}{'either':32}")
    rows = []
    for name, pairs in found.items():
        heuristic = HEURISTICS[name]
        for regime in ("hot", "cold"):
            gains = compare(
                pairs, lambda key, h=heuristic, r=regime: key[2] == r and h.least <= key[3] <= h.most, limit
            )
            shown = (f"{gain} {gain.cells}" if gain else "-" for gain in gains.values())
            print(f"{name:52}{regime:6}" + "".join(f"{text:32}" for text in shown))
            rows.append({"heuristic": name, "regime": regime} | {s: g and vars(g) for s, g in gains.items()})
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
