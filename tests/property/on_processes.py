"""Schedules on real processes: ``python -m tests.property.on_processes [RANDOM [SIZE ...]]``.

Every library algorithm at several shapes, instances, types and sizes, and random programs, with tiles: each must give,
on every rank, the bits that the reference gives, be exact for integers, and for floats lie within p * eps * sum|x| of
NumPy in float64; an input that is not also the result must be as it was. Prints what was run.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hocket import Communicator, Schedule, _native, spawn
from hocket.algorithms import ring
from hocket.algorithms.catalogue import CATALOGUE
from hocket.semantics import reference
from tests.algorithms.prove import cases
from tests.property.programs import random_case
from tests.runtime.cases import bits, count_unlike_numpy, kind_of

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Run:
    """One call: ``units`` elements a unit, drawn from ``seed``; an in-place schedule with or without an output array of
    its own; ``tile`` as in ``Communicator.run``."""

    name: str
    schedule: Schedule
    units: int
    dtype: str
    op: str
    seed: int
    separate: bool
    tile: int | None = None

    def input(self, rank: int) -> Array:
        length = self.schedule.collective.input_blocks(rank) * self.units
        rng = np.random.default_rng((self.seed, rank))
        dtype = kind_of(self.dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, length).astype(bool)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return rng.integers(bounds.min, bounds.max, length, dtype, endpoint=True)
        if dtype.names:
            found = np.zeros(length, dtype)
            found["value"], found["index"] = rng.integers(-9, 9, length), rng.integers(0, 9, length)
            return found
        # Products neither overflow nor lose bits below the smallest normal number.
        draw = (
            (lambda: rng.choice((-1, 1), length) * rng.uniform(0.6, 1.6, length))
            if self.op == "prod"
            else (lambda: rng.standard_normal(length))
        )
        return (draw() + 1j * draw() if dtype.kind == "c" else draw()).astype(dtype)

    def output(self, rank: int) -> Array | None:
        collective = self.schedule.collective
        blocks = collective.output_blocks(rank)
        if not blocks or (collective.inplace and not self.separate and collective.input_blocks(rank)):
            return None
        # Chunks that the collective leaves free are zero in the reference; what hocket allocates is not filled.
        return np.zeros(blocks * self.units, kind_of(self.dtype))


def worker(comm: Communicator, runs: list[Run]) -> list[str | None]:
    """Digests of what each call gave on this rank."""
    found: list[str | None] = []
    for run in runs:
        x = run.input(comm.rank) if run.schedule.collective.input_blocks(comm.rank) else None
        result = comm.run(run.schedule, x, run.output(comm.rank), op=run.op, tile=run.tile)
        assert x is None or x is result or bits(x) == bits(run.input(comm.rank)), ("x was written", run)
        found.append(None if result is None else digest(result))
    return found


def digest(array: Array) -> str:
    return hashlib.sha256(bits(array)).hexdigest()


def check(runs: list[Run]) -> None:
    """Run all (of one number of ranks) in one job, and compare."""
    compare(runs, spawn(worker, ranks=runs[0].schedule.collective.size, args=(runs,)))


def compare(runs: list[Run], results: Sequence[list[str | None]]) -> None:
    """Compare what ``worker`` returned, by rank, with the reference and NumPy."""
    ranks = len(results)
    for i, run in enumerate(runs):
        inputs = [run.input(rank) for rank in range(ranks)]
        expected = reference(run.schedule, inputs, run.op, seed=run.seed)
        for rank in range(ranks):
            if run.schedule.collective.output_blocks(rank):
                assert results[rank][i] == digest(expected[rank]), (run.name, run.units, run.dtype, run.op, rank)
        assert not count_unlike_numpy(run.schedule, run.op, inputs, expected), (run.name, run.units, run.dtype, run.op)


TYPES = tuple((dtype, op) for dtype, ops in _native.OPERATORS_OF.items() for op in ops)
"""Every type with every operator it has."""


def library_runs(sizes: tuple[int, ...], every: int = 1) -> list[Run]:
    """Calls of every program of the catalogue on 1 to 8 ranks, rooted ones at one root, with 1 to 3 instances, at every
    size; or only one ``every`` so many."""
    programs = [
        functools.partial(algorithm.factory, **parameters)
        for algorithm in CATALOGUE
        for ranks in range(1, 9)
        for parameters in cases(algorithm, ranks, roots=[ranks // 2])
    ]
    runs = []
    for number, (program, instances, size) in list(enumerate(product(programs, (1, 2, 3), sizes)))[::every]:
        schedule = program().compile(instances=instances)
        dtype, op = TYPES[len(runs) % len(TYPES)]
        collective = schedule.collective
        if not collective.reduces() or (op == "avg" and not collective.averages()):
            op = _native.OPERATORS_OF[dtype][0]
        blocks = [max(collective.input_blocks(r), collective.output_blocks(r)) for r in range(collective.size)]
        units = max(1, size // max(blocks))
        runs.append(Run(schedule.name, schedule, units, dtype, op, number, len(runs) % 2 == 0))
    return runs


def type_runs(sizes: tuple[int, ...]) -> list[Run]:
    """Every type with every operator, on two and three ranks, in place and apart."""
    runs = []
    for ranks in (2, 3):
        schedules = (ring.all_reduce(ranks).compile(), ring.reduce_scatter(ranks).compile())
        for (dtype, op), schedule, size, separate in product(TYPES, schedules, sizes, (False, True)):
            runs.append(Run("types", schedule, size, dtype, op, len(runs), separate))
    return runs


def random_runs(count: int) -> list[Run]:
    """Calls of random programs."""
    runs = []
    for seed in range(count):
        rng = random.Random(seed)
        schedule = random_case(rng).program().compile(instances=rng.choice((1, 1, 2, 3)), slots=rng.choice((1, 2, 3)))
        dtype, op = rng.choice([pair for pair in TYPES if pair[1] != "avg"])
        units, tile = rng.choice((0, 1, 5, 64, 1000, 20011)), rng.choice((None, 64, 128))
        runs.append(Run("random", schedule, units, dtype, op, seed, seed % 2 == 0, tile))
    return runs


def by_ranks(runs: list[Run]) -> list[list[Run]]:
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.schedule.collective.size, []).append(run)
    return [groups[ranks] for ranks in sorted(groups)]


def main(random_programs: int, sizes: tuple[int, ...]) -> None:
    for title, runs in (
        ("types", type_runs((1, 17, 1000))),
        ("random", random_runs(random_programs)),
        ("library", library_runs(sizes)),
    ):
        for group in by_ranks(runs):
            start = time.perf_counter()
            check(group)
            seconds = time.perf_counter() - start
            ranks = group[0].schedule.collective.size
            print(f"{title:8} {ranks} ranks  {len(group):5} calls bit-equal  {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    from tests.property import on_processes  # under its own name, so that ranks import it too, and bfloat16 with it

    words = [int(word) for word in sys.argv[1:]]
    on_processes.main(words[0] if words else 1000, tuple(words[1:]) or (1, 3, 1000003, 16 << 20))
