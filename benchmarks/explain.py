"""What ``Communicator.explain`` predicts, and what calls take: ``python benchmarks/explain.py [--ranks P] [--json F]``.

It calibrates first, half a minute, into a folder of its own; with ``--uncalibrated`` predictions are the rough
estimates of a machine that is not. Best run while nothing else does.

Collectives by name in float32, hot: the same arrays in every call, with an ``out`` where they would allocate one, each
rank on a core of its own where there are as many. A row has the predicted and the measured microseconds: over batches
of calls the least and the median of the slowest rank's mean, the former being what others on the machine disturb least;
and the prediction in units of each. At the end, of each collective, the geometric mean of these, and by which factor
its predictions are off in the geometric mean and at most; and of all how many are off by a quarter or less, and by 2.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe, title

import hocket
from hocket import Communicator, calibrate
from hocket.topology import dump_cores, local_file
from hocket.tuning import NAMED

SIZES = tuple(1 << shift for shift in range(10, 27, 2))
BATCHES = 15


def measured(comm: Communicator, name: str) -> list[tuple[float, list[float]]]:
    """For each size the prediction, and seconds of a call in each batch."""
    cores = sorted(os.sched_getaffinity(0))
    predictions = [comm.explain(name, size).predicted if comm.rank == 0 else 0.0 for size in SIZES]
    comm.barrier()
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    found = []
    for size, predicted in zip(SIZES, predictions, strict=True):
        joins, cuts = name in ("all_gather", "gather"), name in ("reduce_scatter", "scatter")
        x = np.ones(size // 4 // (comm.size if joins else 1), np.float32)
        has_out = joins or cuts or name == "all_to_all"
        out = np.ones(size // 4 // (comm.size if cuts else 1), np.float32) if has_out else None
        call, calls, seconds = getattr(comm, name), max(2, min(200, (1 << 22) // size)), []
        for batch in range(BATCHES + 1):
            call(x, out)
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call(x, out)
            if batch:
                seconds.append((time.perf_counter() - begin) / calls)
        found.append((predicted, seconds))
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def calibrated(ranks: int) -> None:
    """Measures this machine, for this process and those that it starts."""
    found = calibrate.topology(calibrate.measure(ranks, lambda _: None))
    path = local_file()
    path.parent.mkdir(parents=True)
    path.write_text(dump_cores(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--uncalibrated", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        if not given.uncalibrated:
            calibrated(given.ranks)
        compare(given.ranks, given.json)


def compare(ranks: int, file: Path | None) -> None:
    machine = describe()
    print(title(machine))
    columns = ("bytes", "predicted us", "least us", "median us", "to least", "to median")
    print(f"{'collective':16}" + "".join(f"{column:>14}" for column in columns))
    rows: list[dict[str, object]] = []
    summary = []
    for name in NAMED:
        results = hocket.spawn(measured, ranks, (name,), threads=1)
        ratios: list[list[float]] = [[], []]
        for size, *of_ranks in zip(SIZES, *results, strict=True):
            predicted = of_ranks[0][0] * 1e6
            batches = np.max([seconds for _, seconds in of_ranks], axis=0) * 1e6
            least, median = float(np.min(batches)), float(np.median(batches))
            rows.append(
                {"collective": name, "bytes": size, "predicted_us": predicted, "least_us": least, "median_us": median}
            )
            ratios[0].append(predicted / least)
            ratios[1].append(predicted / median)
            shown = [f"{value:.2f}" for value in (predicted, least, median, predicted / least, predicted / median)]
            print(f"{name:16}{size:14}" + "".join(f"{value:>14}" for value in shown), flush=True)
        summary.append((name, *ratios))
    print()
    for name, *both in summary:
        for what, found in zip(("least", "median"), both, strict=True):
            factors = [max(ratio, 1 / ratio) for ratio in found]
            off, most = geometric_mean(factors), max(factors)
            print(f"{name:16} predicted / {what:7}{geometric_mean(found):.2f}, off by {off:.2f}, at most by {most:.2f}")
    to_least = [max(ratio, 1 / ratio) for _, least, _ in summary for ratio in least]
    for most in (1.25, 2.0):
        print(f"{sum(factor <= most for factor in to_least)} of {len(to_least)} are off by at most {most:.2f}")
    if file is not None:
        file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
