"""This version beside an earlier one, in one run: ``python benchmarks/before.py f055cb5 --ranks 2``.

Installs the earlier commit and that of HEAD from this repository, each in an environment of its own. (An installation
of another kind took 4 % longer for calls on arrays in no cache.) Measures as peers.py does, with jobs of both versions
that are there at once and measure each cell in turns, in several rounds of a launch. A ratio is the time of this
version to that of the earlier one, with a 95 % interval over launches. Prints the geometric mean for each collective,
kind of buffers and regime, for cells that met the machine in one state (paired.py) and for all, and the cells whose
interval lies wholly above LIMIT; then the geometric mean for each collective.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from machine import describe, title
from paired import Pair, compare, launched, slow_above
from peers import COLLECTIVES, HERE, Contender, build, cache_bytes
from peers import Launches as Starts

LIMIT = 1 / 0.95
KINDS = {"private": "hocket", "shared": "hocket-shared"}


class Version(Contender):
    """An installed hocket, started by its own launcher."""

    def launcher(self, python: Path, ranks: int, cores: int) -> list[str]:
        return [str(python), "-c", "from hocket.cli import main; main()", "launch", "-n", str(ranks), "--"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--begin", default="8", metavar="BYTES")
    parser.add_argument("--end", default="16M", metavar="BYTES")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--launches", type=int, default=5, metavar="N", help="of each version, kind and collective")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all cells in a launch")
    parser.add_argument("--seconds", type=float, default=0.03, help="of calls in a cell of a round")
    parser.add_argument("--least", type=int, default=10, metavar="N", help="calls in a cell, however long they take")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="of a launch")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "hocket-before", metavar="DIR", help="of environments")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def show(collective: str, kind: str, pairs: list[Pair], limit: float) -> None:
    """The geometric means of one collective and kind of arrays, by regime and state, and the cells that are slower."""
    sizes = sorted({key[3] for _, theirs in pairs for key in theirs if key[2] == "hot"})
    for regime in ("hot", "cold"):
        for state, mean in compare(pairs, lambda key, r=regime: key[2] == r, limit).items():
            if mean is None:
                continue
            cells = [compare(pairs, lambda key, r=regime, n=size: key[2:4] == (r, n), limit)[state] for size in sizes]
            slower = [f"{n} {cell}" for n, cell in zip(sizes, cells, strict=True) if cell and cell.low > LIMIT]
            means = " ".join(f"{cell.ratio:.2f}" if cell else "-" for cell in cells)
            print(f"{collective:>15} {kind:>8} {regime:>5} {state} {mean}   {means}   {'; '.join(slower)}", flush=True)


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended as after Ctrl-C
    now = subprocess.check_output(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], text=True).strip()
    machine = describe() | {"last-level cache": cache_bytes(), "ranks": given.ranks, "now": now, "before": given.commit}
    print(title(machine), flush=True)
    repository = f"git+file://{HERE.parent.resolve()}"
    tables = []
    with tempfile.TemporaryDirectory() as work:
        build(HERE / "peers_native.cpp", Path(work) / "native.so")
        starts = Starts(given, sorted(os.sched_getaffinity(0)), cache_bytes(), Path(work))
        measured: dict[tuple[str, str], list[Pair]] = {}
        for collective in given.collective:
            for kind, library in KINDS.items():
                versions = [Version(name, library, (f"{repository}@{name}",), "") for name in (now, given.commit)]
                started = [(version, version.interpreter(given.cache)) for version in versions]
                pairs: list[Pair] = []
                for launch in range(given.launches):
                    order = -1 if launch % 2 else 1
                    ours, theirs = launched(starts, started[::order], collective, kind, given.rounds)[::order]
                    pairs.append((ours, theirs))
                measured[collective, kind] = pairs
                cells = [[{"key": key, **asdict(c)} for key, c in side.items()] for pair in pairs for side in pair]
                tables.append({"collective": collective, "kind": kind, "cells": cells})
                if given.json is not None:
                    given.json.write_text(json.dumps({"machine": machine, "tables": tables}, indent=1) + "\n")
    limit = slow_above(launches for pairs in measured.values() for pair in pairs for launches in pair)
    for (collective, kind), pairs in measured.items():
        show(collective, kind, pairs, limit)
    for collective in given.collective:
        kinds = zip(*(measured[collective, kind] for kind in KINDS), strict=True)
        whole = [(private[0] | shared[0], private[1] | shared[1]) for private, shared in kinds]
        print(f"{collective:>15} {compare(whole, lambda key: key[2] in ('hot', 'cold'), limit)['any']}")


if __name__ == "__main__":
    main()
