"""Averages: the steps that complete sums divide them, with the bits of a sum that is divided in the end.

Sums that are multiplied are as averages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

import hocket
from hocket import AllReduce, Communicator, Program, Schedule, chunk
from hocket.algorithms import ring
from hocket.algorithms.catalogue import CATALOGUE
from hocket.ir.order import in_order, whole_sums
from hocket.semantics import Machine, average
from tests.algorithms.prove import cases
from tests.property.programs import random_average
from tests.runtime.cases import PAIRS, Array, Run, bits, check, data

TYPES = [dtype for dtype, op in PAIRS if op == "avg"]
FACTOR = -0.3


def _added(*values: tuple[int, int]) -> tuple[int, int]:
    return sum(terms for terms, _ in values), sum(divided for _, divided in values)


class Counted(Machine[tuple[int, int]]):
    """Values are the terms of a sum, and the steps of ``whole`` that they come from."""

    def __init__(self, schedule: Schedule, whole: frozenset[tuple[int, int, int]]) -> None:
        super().__init__(schedule, lambda *_: (1, 0), _added, slots=None)
        self._whole = whole

    def event(self, place: tuple[int, int]) -> None:
        at = self.cursor(place)
        reads = place not in self._held
        super().event(place)
        if reads and at is not None and (*place, at[1]) in self._whole:
            self._held[place] = [(terms, divided + 1) for terms, divided in self._held[place]]

    @classmethod
    def outputs(cls, schedule: Schedule, whole: frozenset[tuple[int, int, int]]) -> set[tuple[int, int] | None]:
        machine = cls(schedule, whole)
        machine.run(random.Random(0))
        return {value for rank in range(schedule.collective.size) for value in machine.output(rank)}


def library(ranks: int) -> Iterator[Program]:
    for algorithm in CATALOGUE:
        if algorithm.collective.name in ("allreduce", "reducescatter", "reduce"):
            for parameters in cases(algorithm, ranks, roots=[ranks // 2]):
                yield algorithm.factory(**parameters)


def randoms(ranks: int, count: int) -> Iterator[Schedule]:
    for seed in range(count):
        rng = random.Random(seed)
        program = random_average(rng, ranks)
        peer = program.collective.inplace and program.collective.name != "reduce" and rng.random() < 0.5
        yield program.compile(instances=rng.choice((1, 1, 2)), storage="peer" if peer else "fifo")


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_each_output_comes_from_one_step_that_completes_a_sum(ranks: int) -> None:
    for program, storage in itertools.product(library(ranks), ("fifo", "peer")):
        schedule = program.compile(storage=storage)
        assert Counted.outputs(schedule, whole_sums(schedule, in_order(schedule))) == {(ranks, 1)}, program.name


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_programs(ranks: int) -> None:
    """As above, or no step divides, where one completes only a part: of three ranks or more."""
    partly = 0
    for schedule in randoms(ranks, 60):
        whole = whole_sums(schedule, in_order(schedule))
        assert Counted.outputs(schedule, whole) == {(ranks, int(bool(whole)))}
        partly += not whole
    assert bool(partly) == (ranks > 2)
    assert partly < 30


def test_every_such_step_counts() -> None:
    schedule = ring.all_reduce(3).compile()
    whole = whole_sums(schedule, in_order(schedule))
    assert len(whole) == 3
    for step in whole:
        assert Counted.outputs(schedule, whole - {step}) == {(3, 0), (3, 1)}


def test_where_a_step_completes_only_a_part_no_step_divides() -> None:
    with Program(AllReduce(3, chunks=2), name="partly") as program:
        chunk(0, "in", 0).reduce(chunk(1, "in", 0))
        chunk(0, "in", 0, 2).reduce(chunk(2, "in", 0, 2))
        chunk(0, "in", 1).reduce(chunk(1, "in", 1))
        for r in range(3):
            chunk(0, "in", 0, 2).copy(r, "out", 0)
    schedule = program.compile()
    assert max(step.count or 0 for _, _, _, step in schedule.steps() if len(step.srcs) > 1) == 2
    assert whole_sums(schedule, in_order(schedule)) == frozenset()


def runs(ranks: int) -> list[Run]:
    """Calls of all of the library and of random programs, eager and not, through slots and in each other's arrays."""
    schedules = [program.compile(instances=1 + i % 2) for i, program in enumerate(library(ranks))]
    schedules += [program.compile(storage="peer") for program in library(ranks) if program.collective.inplace]
    schedules += randoms(ranks, 12)
    found = []
    for i, schedule in enumerate(schedules):
        form = "lent" if schedule.in_place() else ("own", "apart", "lent")[i % 3]
        for n in ((1, 17), (3, 1501), (40_009, 5))[i % 3]:
            found.append(Run(schedule, n, TYPES[len(found) % len(TYPES)], "avg", (None, 64)[i % 2], form))
    return found


def by_name(comm: Communicator) -> None:
    """A call by name has the bits of a sum that is scaled, on private and on shared arrays, in place and apart."""
    for name, dtype, n, shared in itertools.product(
        ("all_reduce", "reduce_scatter", "reduce"), TYPES, (1, 17, 3001, 300_007), (False, True)
    ):
        n *= comm.size
        allocate = comm.empty if shared else np.empty
        given, results = data(comm.rank, n, dtype), []
        writes = name != "reduce" or comm.rank == comm.size - 1
        for (op, scale), apart in itertools.product((("sum", None), ("avg", None), ("sum", FACTOR)), (False, True)):
            x = allocate(n, dtype)
            x[:] = given
            root = comm.size - 1 if name == "reduce" else 0
            out = allocate(n // comm.size if name == "reduce_scatter" else n, dtype) if apart and writes else None
            if scale is None:
                keywords = {"op": op} | ({"root": root} if name == "reduce" else {})
                call = partial(getattr(comm, name), x, out, **keywords)
            else:
                prepared = comm.prepare(name, n, x.dtype, root=root, in_place=out is None, scale=scale)
                if out is None and name == "reduce_scatter":
                    out = np.split(x, comm.size)[comm.rank]
                call = partial(prepared, x, out)
            with np.errstate(all="ignore"):
                result = call()
            results.append(None if result is None else result.copy())
        if results[0] is not None:
            with np.errstate(all="ignore"):
                means = [bits(_plain(average(total, comm.size))) for total in results[:2]]
                multiples = [bits(_plain(average(total, 1, FACTOR))) for total in results[:2]]
            assert [bits(_plain(found)) for found in results[2:]] == means + multiples, (name, dtype, n, shared)


def _plain(values: Array) -> Array:
    """With one NaN for all."""
    parts = values.view(f"f{values.itemsize // 2}") if values.dtype.kind == "c" else values
    with np.errstate(all="ignore"):
        parts[parts != parts] = np.nan
    return values


def on_each_rank(comm: Communicator, calls: list[Run]) -> int:
    by_name(comm)
    return check(comm, calls)


FORMS = [(2, 1), *(pytest.param(*form, marks=pytest.mark.campaign) for form in ((2, 2), (3, 1), (4, 1)))]


@pytest.mark.parametrize(("ranks", "threads"), FORMS)
def test_bits(ranks: int, threads: int) -> None:
    calls = runs(ranks)
    assert hocket.spawn(on_each_rank, ranks, (calls,), threads=threads) == [len(calls)] * ranks


@pytest.mark.campaign
@pytest.mark.parametrize("variable", ["HOCKET_REACH=always", "HOCKET_CACHE_BYTES=0"])
def test_bits_otherwise(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's copies, and stored non-temporally."""
    monkeypatch.setenv(*variable.split("="))
    test_bits(2, 1)
