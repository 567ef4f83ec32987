"""What the simulator predicts for this machine, and what calls take: ``python benchmarks/sim_accuracy.py [--json F]``.

What ``hocket calibrate`` does measures the machine, on other programs and other sizes, once before each round, of which
the least counts as it does for calls; or ``--topology F`` gives what it found. Programs of the library for AllReduce,
AllGather, ReduceScatter and AllToAll are called by name on two ranks, hot, in place where they are so, in float32, each
rank on a core of its own: in one round where they are short, through the fifo, and with zero copies in arrays of
``comm.empty``. Cross-memory attach is off. Measured is the least over batches of the slowest rank's mean. A machine may
be faster for some seconds, so there are several rounds, and in each all programs of a size follow each other. At the
end the median of the errors, the worst ratio, and for each size what the program predicted to be the best costs more
than the one that is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import describe, title
from numpy.typing import NDArray

import hocket
from hocket import Communicator, Program, Schedule, calibrate
from hocket.algorithms import all_pairs, bruck, direct, pairwise, recursive_doubling, recursive_halving, ring
from hocket.sim import Simulator
from hocket.topology import Topology, load
from hocket.tuning import Call, choose, declined, zero_copy_program

RANKS = 2
SIZES = tuple(1 << shift for shift in range(10, 27, 2))
ROUNDS = 8
MOST_BATCHES, LEAST_BATCHES = 128, 2  # in a round: as calibrate has, some 20 ms of short calls
WARM = 0.05  # seconds in which a core that was idle comes up to speed
AIM_MEDIAN, AIM_WORST, AIM_LOSS = 0.25, 2.0, 0.15

PROGRAMS: dict[str, dict[str, Callable[[], Program]]] = {
    "all_reduce": {
        "ring": lambda: ring.all_reduce(RANKS),
        "direct": lambda: direct.all_reduce(RANKS),
        "all_pairs": lambda: all_pairs.all_reduce(RANKS),
        "recursive_doubling": lambda: recursive_doubling.all_reduce(RANKS),
        "recursive_halving": lambda: recursive_halving.all_reduce(RANKS),
    },
    "all_gather": {
        "ring": lambda: ring.all_gather(RANKS),
        "ring, 4 instances": lambda: ring.all_gather(RANKS, instances=4),
        "recursive_doubling": lambda: recursive_doubling.all_gather(RANKS),
        "bruck": lambda: bruck.all_gather(RANKS),
    },
    "reduce_scatter": {
        "ring": lambda: ring.reduce_scatter(RANKS),
        "direct": lambda: direct.reduce_scatter(RANKS),
        "recursive_halving": lambda: recursive_halving.reduce_scatter(RANKS),
    },
    "all_to_all": {
        "direct": lambda: direct.all_to_all(RANKS),
        "pairwise": lambda: pairwise.all_to_all(RANKS),
        "bruck": lambda: bruck.all_to_all(RANKS),
    },
}


@dataclass(frozen=True)
class Candidate:
    """A program of a collective; ``lent``: in arrays that ranks share."""

    collective: str
    name: str
    schedule: Schedule
    lent: bool


@dataclass(frozen=True)
class Row:
    """Microseconds of one program at one size, and by which path it went."""

    collective: str
    program: str
    path: str
    bytes: int
    predicted: float
    least: float
    median: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.least


def candidates() -> list[Candidate]:
    found = []
    for collective, programs in PROGRAMS.items():
        found += [Candidate(collective, name, make().compile(), False) for name, make in programs.items()]
        program = zero_copy_program(collective, RANKS, inplace=collective != "all_to_all")
        assert program is not None
        found.append(Candidate(collective, "zero-copy", program.compile(storage="peer"), True))
    return found


def timed(comm: Communicator, found: list[Candidate]) -> list[list[list[float]]]:
    """By size and candidate, the seconds of a call in each batch."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    users = []
    for one in found:
        user = comm.split(0)
        assert user is not None
        if not one.lent:
            user.use(one.schedule)
        users.append(user)
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        pass
    times = []
    for size in SIZES:
        private = [np.empty(size // 4, np.float32) for _ in range(2)]
        shared = [comm.empty(size // 4, np.float32) for _ in range(2)]
        arrays = [shared if one.lent else private for one in found]
        times.append([batches(*which, size) for which in zip(users, found, arrays, strict=True)])
    return times


def batches(comm: Communicator, one: Candidate, memory: list[NDArray[np.float32]], size: int) -> list[float]:
    """The seconds of a call in each batch. ``memory``: two arrays of the size."""
    (whole, other), share = memory, size // 4 // comm.size
    own, inplace = whole[comm.rank * share : (comm.rank + 1) * share], one.schedule.collective.inplace
    x, out = {
        "all_reduce": (whole, None if inplace else other),
        "all_gather": (own if inplace else other[:share], whole),
        "reduce_scatter": (whole, own if inplace else other[:share]),
        "all_to_all": (whole, other),
    }[one.collective]
    call, calls, seconds = getattr(comm, one.collective), max(1, min(100, (1 << 19) // size)), []
    whole[:] = other[:] = 1
    for batch in range(max(LEAST_BATCHES, min((1 << 26) // size, MOST_BATCHES)) + 1):
        call(x, out)
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call(x, out)
        if batch:
            seconds.append((time.perf_counter() - begin) / calls)
        if one.collective in ("all_reduce", "reduce_scatter"):
            whole[:] = 1
    return seconds


def measured(found: list[Candidate], given: Topology | None) -> tuple[dict[int, list[list[float]]], Topology]:
    """By candidate and size, the microseconds of the slowest rank in each batch of all rounds; and the machine."""
    times: dict[int, list[list[float]]] = defaultdict(lambda: [[] for _ in SIZES])
    figures: dict[calibrate.Key, calibrate.Figure] = {}
    for _ in range(ROUNDS):
        if given is None:
            for key, figure in calibrate.measure(RANKS, lambda _: None).items():
                figures[key] = min(figure, figures.get(key, figure), key=lambda one: one.least)
        for place, of_size in enumerate(zip(*hocket.spawn(timed, RANKS, (found,), threads=1), strict=True)):
            for number, of_ranks in enumerate(zip(*of_size, strict=True)):
                times[number][place] += list(np.max(of_ranks, axis=0) * 1e6)
    return times, given or calibrate.topology(figures)


def rows_of(found: list[Candidate], given: Topology | None) -> list[Row]:
    times, machine = measured(found, given)
    rows = []
    for number, one in enumerate(found):
        simulator = Simulator(one.schedule, machine)
        for place, size in enumerate(SIZES):
            if one.lent and declined(choose(Call(one.collective, RANKS, size)), one_round=True, attached=False):
                continue  # shared arrays are not lent in so short a call
            said, batches = simulator.best(size), times[number][place]
            least, median = float(min(batches)), float(statistics.median(batches))
            rows.append(Row(one.collective, one.name, said.protocol, size, said.time, least, median))
    return rows


def print_rows(rows: list[Row]) -> None:
    columns = "".join(f" {name:>10}" for name in ("bytes", "predicted", "least", "median"))
    print(f"{'collective':15} {'program':20} {'path':10}{columns}  ratio")
    for row in rows:
        numbers = "".join(f" {value:10.2f}" for value in (row.predicted, row.least, row.median))
        print(f"{row.collective:15} {row.program:20} {row.path:10} {row.bytes:10}{numbers}  {row.ratio:5.2f}")


def losses(rows: list[Row]) -> list[tuple[str, int, str, str, float]]:
    """For each collective and size, what is predicted to be best, what is, and what the former costs more."""
    found = []
    for collective in PROGRAMS:
        for size in SIZES:
            here = [row for row in rows if row.collective == collective and row.bytes == size]
            said, best = min(here, key=lambda row: row.predicted), min(here, key=lambda row: row.least)
            found.append((collective, size, said.program, best.program, said.least / best.least - 1))
    return found


def summary(rows: list[Row]) -> dict[str, object]:
    def errors(some: list[Row]) -> tuple[float, float]:
        worst = max(some, key=lambda row: abs(math.log(row.ratio)))
        return statistics.median(abs(row.ratio - 1) for row in some), worst.ratio

    paths = sorted({row.path for row in rows})
    groups = {"all": rows, **{path: [row for row in rows if row.path == path] for path in paths}}
    groups |= {name: [row for row in rows if row.collective == name] for name in PROGRAMS}
    beyond = [row for row in rows if not 1 / AIM_WORST <= row.ratio <= AIM_WORST]
    worse = [loss for loss in losses(rows) if loss[-1] > AIM_LOSS]
    print(f"\n{'of':16} {'rows':>5} {'median |error|':>15} {'worst ratio':>12}")
    for name, some in groups.items():
        median, worst = errors(some)
        print(f"{name:16} {len(some):5} {median:14.1%} {worst:12.2f}")
    print(f"\nbeyond {AIM_WORST:g}x: {len(beyond)} of {len(rows)}")
    for row in beyond:
        print(f"  {row.collective} {row.program} by {row.path}, {row.bytes} bytes: {row.ratio:.2f}")
    print(f"predicted best costs more than {AIM_LOSS:.0%} over the best: {len(worse)} of {len(losses(rows))}")
    for collective, size, said, best, loss in worse:
        print(f"  {collective} of {size} bytes: {said} instead of {best}, {loss:.0%} more")
    median, worst = errors(rows)
    return {"median": median, "worst": worst, "beyond": len(beyond), "losses": len(worse)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    os.environ["HOCKET_REACH"] = "never"
    about = describe()
    print(title(about))
    rows = rows_of(candidates(), None if given.topology is None else load(given.topology))
    print_rows(rows)
    found = summary(rows)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": about, "rows": [vars(row) for row in rows], "summary": found}))


if __name__ == "__main__":
    main()
