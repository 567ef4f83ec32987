"""How long a communicator takes to make: ``python benchmarks/subgroups.py [--ranks 2,4] [--repeats N] [--json FILE]``.

All ranks come at once, from a barrier, and make a communicator of all of them: by ``subgroup``, which concerns its
members alone, and by ``dup``, a call of the communicator. "meet" is what ranks take that know nothing of each other,
``hocket.init``. Microseconds from the first that begins until the last is done; CPU microseconds are those of a rank,
and depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, quantiles

from machine import describe, title

import hocket
from hocket import Communicator

WARMUPS = 5

Span = tuple[float, float, float]
"""When it began and ended on a rank, and the CPU seconds that it took there."""


def job(comm: Communicator, repeats: int) -> dict[str, list[Span]]:
    makers: dict[str, Callable[[], Communicator]] = {
        "subgroup": lambda: comm.subgroup(range(comm.size)),
        "dup": comm.dup,
        "meet": hocket.init,
    }
    return {what: [span(comm, make) for _ in range(WARMUPS + repeats)][WARMUPS:] for what, make in makers.items()}


def span(comm: Communicator, make: Callable[[], Communicator]) -> Span:
    comm.barrier()
    used, begun = time.process_time(), time.monotonic()
    made = make()
    found = begun, time.monotonic(), time.process_time() - used
    comm.barrier()
    made.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=(2, 4))
    parser.add_argument("--repeats", type=int, default=200, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    print(f"{'ranks':>6}  {'what':12}{'least us':>10}{'tenth':>10}{'median':>10}{'9 tenths':>10}{'CPU us':>10}")
    rows = []
    for ranks in given.ranks:
        found = hocket.spawn(job, ranks, (given.repeats,))
        for what in found[0]:
            turns = list(zip(*(of_rank[what] for of_rank in found), strict=True))
            took = [1e6 * (max(end for _, end, _ in turn) - min(begin for begin, _, _ in turn)) for turn in turns]
            cuts = quantiles(took, n=10)
            cpu = 1e6 * mean(used for turn in turns for _, _, used in turn)
            rows.append({"ranks": ranks, "what": what, "us": sorted(took), "cpu_us": cpu})
            line = "".join(f"{value:10.0f}" for value in (min(took), cuts[0], cuts[4], cuts[8], cpu))
            print(f"{ranks:6}  {what:12}{line}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
