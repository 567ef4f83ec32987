"""This version beside an earlier one, in one run: ``python benchmarks/before.py f055cb5 --ranks 2``.

Installs the earlier commit from this repository, and measures as peers.py does: launches of the two take turns, and a
ratio is the time of this version to that of the earlier one, with a 95 % interval over pairs of launches. Prints the
geometric mean for each collective, kind of buffers and regime, and the cells whose interval lies wholly above LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from machine import describe, title
from peers import COLLECTIVES, HERE, Contender, Launches, Row, build, cache_bytes, rows
from peers_worker import Result

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
    parser.add_argument("--seconds", type=float, default=0.1, help="of calls in a cell of a launch")
    parser.add_argument("--least", type=int, default=10, metavar="N", help="calls in a cell, however long they take")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="of a launch")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "hocket-before", metavar="DIR", help="of environments")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def show(collective: str, kind: str, found: list[Row], before: str) -> None:
    for regime in ("hot", "cold"):
        ratios = {row.bytes: row.ratio("now", before) for row in found if row.regime == regime}
        known = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        mean = statistics.geometric_mean(ratio.mean for ratio in known.values())
        slower = [f"{size} {ratio}" for size, ratio in known.items() if ratio.low is not None and ratio.low > LIMIT]
        cells = " ".join(f"{ratio.mean:.2f}" for ratio in known.values())
        print(f"{collective:>15} {kind:>8} {regime:>5} {mean:6.3f}   {cells}   {'; '.join(slower)}", flush=True)


def main() -> None:
    given = arguments()
    machine = describe() | {"last-level cache": cache_bytes(), "ranks": given.ranks, "before": given.commit}
    print(title(machine), flush=True)
    requirement = f"git+file://{HERE.parent.resolve()}@{given.commit}"
    tables = []
    with tempfile.TemporaryDirectory() as work:
        build(HERE / "peers_native.cpp", Path(work) / "native.so")
        launches = Launches(given, sorted(os.sched_getaffinity(0)), cache_bytes(), Path(work))
        for collective in given.collective:
            for kind, library in KINDS.items():
                versions = Version(given.commit, library, (requirement,), ""), Version("now", library, (), "")
                results: dict[str, list[Result]] = {version.name: [] for version in versions}
                for launch in range(given.launches):
                    for version in versions[:: -1 if launch % 2 else 1]:
                        python = version.interpreter(given.cache)
                        results[version.name].append(launches.contender(version, python, collective))
                found = rows(collective, given.ranks, results, bandwidth=1.0)
                show(collective, kind, found, given.commit)
                wrong = sum(sum(row.wrong.values()) for row in found)
                if wrong:
                    sys.exit(f"{wrong} wrong")
                cells = [
                    {"bytes": row.bytes, "regime": row.regime}
                    | {name: [asdict(cell) for cell in cells] for name, cells in row.cells.items()}
                    for row in found
                ]
                tables.append({"collective": collective, "kind": kind, "cells": cells})
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
