"""More ranks than cores: ``python benchmarks/oversubscribed.py [--json FILE]``.

AllReduce of 8 bytes in place, on 2, 4 and 8 ranks in turn, several jobs of each. A call takes as long as its slowest
rank; a job gives the median and the 95th percentile of its calls. A row has the median over the jobs and their range,
which is the noise. Exits with 1 if the median of 8 ranks is 1 ms or more: ranks that outnumber cores must make way for
each other. The load before is in the title; on a machine that others use, the numbers are theirs too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from machine import describe, title

from hocket.cli.bench import Sweep
from hocket.cli.measure import Speed

RANKS = (2, 4, 8)
BOUND = 1e-3  # seconds


def measure(ranks: int, iterations: int) -> Speed:
    """One job."""
    (row,) = Sweep.of("all_reduce", None, ranks, [8], "float64", None, iterations, iterations // 10).measure()
    assert not row.wrong
    return row.speeds[1]  # in place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    speeds: dict[int, list[Speed]] = {ranks: [] for ranks in RANKS}
    for _ in range(given.jobs):
        for ranks in RANKS:
            speeds[ranks].append(measure(ranks, given.iterations))
    rows = []
    print(f"{'ranks':>6}{'median us':>12}{'range':>22}{'p95 us':>12}{'range':>22}")
    for ranks, found in speeds.items():
        medians, tails = sorted(speed.median * 1e6 for speed in found), sorted(speed.p95 * 1e6 for speed in found)
        rows.append({"ranks": ranks, "median_us": medians, "p95_us": tails})
        cells = (f"{statistics.median(v):12.1f}{f'{v[0]:.1f} to {v[-1]:.1f}':>22}" for v in (medians, tails))
        print(f"{ranks:6}" + "".join(cells))
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    sys.exit(statistics.median(speed.median for speed in speeds[max(RANKS)]) >= BOUND)


if __name__ == "__main__":
    main()
