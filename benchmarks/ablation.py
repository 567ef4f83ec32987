"""What each heuristic of the runtime gains: ``python benchmarks/ablation.py [--ranks 2 4] [--only NAME ...]``.

A heuristic is switched off by tunables (``hocket info`` lists them) or by HOCKET_REACH. All communicators, one with the
defaults and one for each heuristic switched off, belong to the same processes and make the same calls in turns, in a
new order each round. A call takes as long as its slowest rank. A ratio is what a call takes without the heuristic over
what it takes with it: above 1 the heuristic gains. A row has the geometric mean over the calls that the heuristic
applies to (collectives, and sizes in its range), hot and cold apart, with the 95 % interval of a bootstrap over rounds.

Hot: calls on the same arrays. Cold: each call on other arrays, together larger than the caches. Private arrays are
NumPy's, shared ones those of ``comm.empty``. Rounds are told apart by the state of the machine: in some, for seconds at
a time, cores exchange data as if they shared no cache. A round is "slow" where an AllReduce of 256 KB takes more than
1.5 times as long as in the fastest round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from machine import describe, title
from numpy.typing import NDArray

import hocket
from hocket import Communicator

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
NEVER = str(1 << 40)  # no call has as many bytes, and no load takes as many ticks
PROBE_BYTES = 256 << 10
SLOW = 1.5  # times what the probe takes at best
COLD_BYTES = 64 << 20  # of a pool of arrays: more than a core's share of the caches
DRAWS = 1000


@dataclass(frozen=True)
class Heuristic:
    """Something that can be switched off, and the calls that it applies to: bytes of a rank's larger buffer."""

    off: Mapping[str, str] = field(default_factory=dict)
    reach: str | None = None
    least: int = 1
    most: int = 1 << 60
    collectives: tuple[str, ...] = COLLECTIVES
    residencies: tuple[str, ...] = ("private", "shared")
    regimes: tuple[str, ...] = ("hot", "cold")


HEURISTICS = {
    "fifo for private arrays (else cross-memory attach)": Heuristic(
        reach="always", least=32 << 10, residencies=("private",)
    ),
    "residency probe": Heuristic({"far_past_bytes": NEVER}, least=256 << 10),
    "slots bounded for each rank": Heuristic({"rank_slots_bytes": NEVER}, least=1 << 20, residencies=("private",)),
    "short tiles of a Reduce": Heuristic(
        {"early_above_bytes": NEVER}, least=32 << 10, most=512 << 10, collectives=("reduce",), residencies=("private",)
    ),
    "other program where calls are small": Heuristic(
        {"small_bytes": "0"}, most=128 << 10, collectives=("all_reduce", "all_gather", "reduce_scatter")
    ),
    "eager below a size in shared arrays": Heuristic({"lent_bytes": "0"}, most=4 << 10, residencies=("shared",)),
    "zero-copy from a size on where eager fits": Heuristic(
        {"lent_bytes": NEVER}, least=4 << 10, most=16 << 10, residencies=("shared",)
    ),
    "spinning before yielding": Heuristic({"spins": "0", "crowded_spins": "0"}),
}

Cell = tuple[str, int, str, str]
"""Collective, bytes, residency, regime."""


class Arrays:
    """Arrays of a call: the same each time, or others in turn."""

    def __init__(self, comm: Communicator, cell: Cell) -> None:
        name, size, residency, regime = cell
        whole = max(1, size // 4 // comm.size) * comm.size
        block = whole // comm.size
        lengths = (
            block if name == "all_gather" else whole,
            0 if name == "broadcast" else block if name == "reduce_scatter" else whole,
        )
        make = comm.empty if residency == "shared" else np.empty
        pool = 1 if regime == "hot" else max(2, COLD_BYTES // (4 * sum(lengths)))
        backing = [make(length * pool, np.float32) for length in lengths]
        for array in backing:
            array[:] = 1
        self._turns = [
            [
                array[turn * length : (turn + 1) * length]
                for array, length in zip(backing, lengths, strict=True)
                if length
            ]
            for turn in range(pool)
        ]
        self._next = 0

    def next(self) -> list[NDArray[np.float32]]:
        self._next = (self._next + 1) % len(self._turns)
        return self._turns[self._next]


def timed(comm: Communicator, name: str, arrays: Arrays, calls: int) -> float:
    """Seconds of a call of this rank: the median over some."""
    seconds = []
    for _ in range(calls):
        given = arrays.next()
        comm.barrier()
        begin = time.perf_counter()
        getattr(comm, name)(*given)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def otherwise(comm: Communicator, heuristic: Heuristic) -> Communicator:
    """A communicator of the same ranks without a heuristic."""
    changed = {"HOCKET_TUNABLES": ",".join(f"{name}={value}" for name, value in heuristic.off.items())}
    if heuristic.reach is not None:
        changed["HOCKET_REACH"] = heuristic.reach
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        return comm.dup()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def applies(heuristic: Heuristic, cell: Cell) -> bool:
    name, size, residency, regime = cell
    return (
        heuristic.least <= size <= heuristic.most
        and name in heuristic.collectives
        and residency in heuristic.residencies
        and regime in heuristic.regimes
    )


def measure(
    comm: Communicator, names: list[str], cells: list[Cell], rounds: int, warmup: int
) -> tuple[list[list[float]], dict[Cell, dict[str, list[float]]]]:
    """The probe by cell and round, and the seconds of a call by cell, heuristic ("" for the defaults) and round."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})
    without = {name: otherwise(comm, HEURISTICS[name]) for name in names}
    probed = Arrays(comm, ("all_reduce", PROBE_BYTES, "private", "hot"))
    order = random.Random(0)
    probes, found = [], {}
    for cell in cells:
        name, size, *_ = cell
        arrays = Arrays(comm, cell)
        calls = max(5, min(50, (4 << 20) // size))
        contenders = {"": comm, **{n: c for n, c in without.items() if applies(HEURISTICS[n], cell)}}
        seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
        for contender in contenders.values():
            timed(contender, name, arrays, warmup)
        probes.append([])
        for _ in range(rounds if len(contenders) > 1 else 0):
            probes[-1].append(timed(comm, "all_reduce", probed, 5))
            turns = list(contenders.items())
            order.shuffle(turns)
            for contender, used in turns:
                seconds[contender].append(timed(used, name, arrays, calls))
        found[cell] = seconds
    return probes, found


@dataclass(frozen=True)
class Gain:
    """A ratio, and the interval that it lies in."""

    ratio: float
    low: float
    high: float
    cells: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}] {self.cells}"


def gain(ratios: list[NDArray[np.float64]]) -> Gain | None:
    """The geometric mean over cells of the median over rounds, by a bootstrap over the rounds of each cell."""
    logs = [np.log(cell) for cell in ratios if len(cell) >= 3]
    if not logs:
        return None
    random = np.random.default_rng(0)
    draws = [np.median(cell[random.integers(len(cell), size=(DRAWS, len(cell)))], axis=1) for cell in logs]
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    middle = np.mean([np.median(cell) for cell in logs])
    return Gain(float(np.exp(middle)), float(np.exp(low)), float(np.exp(high)), len(logs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", choices=HEURISTICS, nargs="+", default=list(HEURISTICS), metavar="NAME")
    parser.add_argument("--collective", choices=COLLECTIVES, nargs="+", default=list(COLLECTIVES))
    parser.add_argument("--sizes", type=int, nargs="+", default=[8 << 2 * i for i in range(11)], metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=20, help="calls before")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    cells = [
        (name, size, residency, regime)
        for name in given.collective
        for size in given.sizes
        for residency in ("private", "shared")
        for regime in ("hot", "cold")
    ]
    rows = []
    for ranks in given.ranks:
        job = (given.only, cells, given.rounds, given.warmup)
        of_ranks = hocket.spawn(measure, ranks, job, threads=1)
        probes = [np.max([probes[at] for probes, _ in of_ranks], axis=0) for at in range(len(cells))]
        best = min((min(cell) for cell in probes if len(cell)), default=0.0)
        print(f"{ranks} ranks: without / with, geometric mean [95 %] calls\n{'':56}{'fast state':32}{'slow state':32}")
        for name in given.only:
            for regime in ("hot", "cold"):
                by_state: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
                for cell, probe in zip(cells, probes, strict=True):
                    if cell[3] != regime or not applies(HEURISTICS[name], cell):
                        continue
                    seconds = [np.max([found[cell][which] for _, found in of_ranks], axis=0) for which in ("", name)]
                    slow = probe > SLOW * best
                    for state in by_state:
                        by_state[state].append((seconds[1] / seconds[0])[slow == state])
                gains = [gain(by_state[state]) for state in (False, True)]
                if any(gains):
                    print(f"{name:50}{regime:6}" + "".join(f"{(g or '-')!s:32}" for g in gains), flush=True)
                    of_states = dict(zip(("fast", "slow"), (g and vars(g) for g in gains), strict=True))
                    rows.append({"ranks": ranks, "heuristic": name, "regime": regime, **of_states})
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
