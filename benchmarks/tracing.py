"""What HOCKET_TRACE costs: ``python benchmarks/tracing.py [--ranks P] [--launches N] [--json FILE]``.

Three communicators of the same ranks make the same calls in turn, back to back, in float32: two that do not record and
one that does. A row has the median microseconds of a call without and with recording, and medians of the ratios of
neighbouring batches with their 95 per cent intervals: of the second that does not record to the first, which is what
another place in memory makes of it, and of the one that records to both. Writing the file, which is done when the
communicator is closed, is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator
from hocket.runtime import trace

NAMES = ("all_reduce", "all_gather", "broadcast", "all_to_all")
SIZES = tuple(64 << shift for shift in range(0, 20, 2))


def all_three(plain: Communicator, file: str, name: str, size: int, batches: int) -> list[list[float]]:
    """Seconds of a call in each batch, twice without and once with recording."""
    cores = sorted(os.sched_getaffinity(0))
    if plain.size <= len(cores):
        os.sched_setaffinity(0, {cores[plain.rank]})
    again = hocket.init(threads=1)
    os.environ[trace.VARIABLE] = file
    calls = max(2, min(200, (1 << 22) // size))
    assert batches * calls < trace.MOST_CALLS
    found: list[list[float]] = [[], [], []]
    with again, hocket.init(threads=1) as traced:
        x = np.ones(size // 4 // (plain.size if name == "all_gather" else 1), np.float32)
        for batch in range(batches + 1):
            for comm, seconds in zip((plain, again, traced), found, strict=True):
                call = getattr(comm, name)
                call(x)
                comm.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    call(x)
                if batch:
                    seconds.append((time.perf_counter() - begin) / calls)
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """That of the median, from a bootstrap."""
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--least", type=int, default=64, help="bytes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    columns = ("off us", "on us", "again/off", "interval", "on/off", "interval")
    print(f"{'collective':14}{'bytes':>10}" + "".join(f"{column:>16}" for column in columns))
    rows = []
    for name in NAMES:
        for size in SIZES:
            if size < given.least:
                continue
            times: list[list[float]] = [[], [], []]
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory) / "trace.json"
                for _ in range(given.launches):
                    results = hocket.spawn(all_three, given.ranks, (str(file), name, size, given.batches), threads=1)
                    assert '"dropped_' not in file.read_text()
                    for found, of_ranks in zip(times, zip(*results, strict=True), strict=True):
                        found += np.max(of_ranks, axis=0).tolist()
            off, again, on = map(np.array, times)
            moved, cost = (again / off).tolist(), (on / np.sqrt(off * again)).tolist()
            row: dict[str, object] = {"collective": name, "bytes": size}
            cells = [statistics.median(seconds) * 1e6 for seconds in (np.sqrt(off * again), on)]
            row |= dict(zip(("off_us", "on_us"), cells, strict=True))
            shown = [f"{cell:.2f}" for cell in cells]
            for what, ratios in (("again", moved), ("on", cost)):
                low, high = interval(ratios)
                row[what] = {"ratio": statistics.median(ratios), "interval": [low, high]}
                shown += [f"{statistics.median(ratios):.3f}", f"{low:.3f} to {high:.3f}"]
            rows.append(row)
            print(f"{name:14}{size:10}" + "".join(f"{cell:>16}" for cell in shown), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
