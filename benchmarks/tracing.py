"""What HOCKET_TRACE costs: ``python benchmarks/tracing.py [--ranks P] [--json FILE]``.

Two communicators of the same ranks, one that records and one that does not, make the same calls in turn, back to back,
in float32. A row has the median microseconds of a call of each over the batches, and the median of the ratios of
neighbouring batches with its 95 per cent interval. Writing the file, which is done when the communicator is closed, is
not in it. Exits with 1 if a median from 64 KB on is 1.05 or more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator
from hocket.runtime import trace

NAMES = ("all_reduce", "all_gather", "broadcast", "all_to_all")
SIZES = tuple(8 << 3 + shift for shift in range(0, 20, 2))
BOUND = 1.05
BOUND_FROM = 64 << 10


def both(plain: Communicator, file: str, name: str, size: int, batches: int) -> list[list[float]]:
    """Seconds of a call in each batch, without and with recording."""
    cores = sorted(os.sched_getaffinity(0))
    if plain.size <= len(cores):
        os.sched_setaffinity(0, {cores[plain.rank]})
    os.environ[trace.VARIABLE] = file
    calls = max(2, min(200, (1 << 22) // size))
    assert batches * calls < trace.MOST_CALLS
    found: list[list[float]] = [[], []]
    with hocket.init(threads=1) as traced:
        x = np.ones(size // 4 // (plain.size if name == "all_gather" else 1), np.float32)
        for batch in range(batches + 1):
            for comm, seconds in zip((plain, traced), found, strict=True):
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
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    print(f"{'collective':14}{'bytes':>10}{'off us':>12}{'on us':>12}{'ratio':>8}{'interval':>16}")
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for name in NAMES:
            for size in SIZES:
                file = str(Path(directory) / f"{name}-{size}.json")
                results = hocket.spawn(both, given.ranks, (file, name, size, given.batches), threads=1)
                dropped = Path(file).read_text().count('"dropped_')
                off, on = (np.max([found[which] for found in results], axis=0) for which in (0, 1))
                ratios = (on / off).tolist()
                ratio, (low, high) = statistics.median(ratios), interval(ratios)
                times = {"off_us": statistics.median(off) * 1e6, "on_us": statistics.median(on) * 1e6}
                about = {"collective": name, "bytes": size, **times, "ratio": ratio, "interval": [low, high]}
                rows.append(about | {"dropped": dropped > 0})
                columns = f"{times['off_us']:12.2f}{times['on_us']:12.2f}{ratio:8.3f}{f'{low:.3f} to {high:.3f}':>16}"
                print(f"{name:14}{size:10}{columns}{'  (dropped some)' if dropped else ''}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    sys.exit(any(row["ratio"] >= BOUND for row in rows if row["bytes"] >= BOUND_FROM))


if __name__ == "__main__":
    main()
