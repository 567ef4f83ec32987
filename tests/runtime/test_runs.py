"""Schedules on real processes agree with the reference to the bit, whatever the size, type, operator and tile."""

from __future__ import annotations

import random
from itertools import cycle, product

import pytest

import hocket
from hocket import Schedule
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, two_step
from tests.runtime.cases import PAIRS, Run, check

# Elements that nothing can be done with but to move them; their sizes do not divide 64 bytes.
OPAQUE = ("M8[s]", "S5", "U3", "V7", "i1,f8,S3", "V100", "longdouble", ">f4")
SIZES = (0, 1, 3, 17, 1000)


def library(ranks: int) -> list[Schedule]:
    programs = [
        ring.all_reduce(ranks),
        ring.all_reduce(ranks, channels=2, instances=2),
        ring.all_gather(ranks),
        ring.reduce_scatter(ranks),
        all_pairs.all_reduce(ranks, instances=3),
    ]
    if ranks == 4:
        programs += [
            hierarchical.all_reduce(2, 2, parallel=2),
            two_step.all_to_all(2, 2),
            all_to_next.all_to_next(2, 2, instances=2),
        ]
    return [program.compile() for program in programs]


def runs(ranks: int) -> list[Run]:
    schedules = library(ranks)
    found = [
        Run(schedule, n, dtype, "sum", tile, form)
        for schedule, n, (dtype, tile, form) in product(
            schedules, SIZES, (("float32", None, "own"), ("float64", 64, "apart"), ("int32", 256, "own"))
        )
    ]
    found += [
        Run(schedule, 100, dtype, op) for (dtype, op), schedule in zip(PAIRS, cycle((schedules[0], schedules[3])))
    ]
    found += [Run(schedules[0], 37, dtype, op, form="apart") for dtype, op in PAIRS]
    found += [Run(schedules[2], n, dtype, form=form) for n, dtype, form in product((1, 37), OPAQUE, ("own", "apart"))]
    found += [Run(schedule, 1_000_003, "float32") for schedule in schedules[: 2 if ranks < 7 else 1]]
    random.Random(ranks).shuffle(found)  # layouts of slots change from call to call
    return found


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (3, 4, 7))])
def test_library(ranks: int) -> None:
    cases = runs(ranks)
    assert hocket.spawn(check, ranks, (cases,)) == [len(cases)] * ranks
