"""What the direct algorithms move where messages lie in place: no more than each input read and each output stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest

from hocket import Program, Schedule
from hocket.algorithms import all_pairs, direct
from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm
from hocket.ir.chunk_dag import Span
from hocket.verify import kept
from tests.reference import check

RANKS = (1, 2, 3, 4, 5, 8)


def moved(schedule: Schedule) -> Counter[int]:
    """Chunks that each rank reads and stores, wherever they lie."""
    work: Counter[int] = Counter()
    for rank, _, _, step in schedule.steps():
        if step.moves:
            work[rank] += (len(step.srcs) + len(step.dsts)) * (step.count or 0)
    return work


def in_place(program: Program) -> Schedule:
    """The program with every message in place, which must be possible."""
    schedule = program.compile(storage="peer")
    for _, _, _, step in schedule.steps():
        for operand in (*step.srcs, *step.dsts):
            assert isinstance(operand, Span) or operand.at is not None
    return schedule


@pytest.mark.parametrize(
    ("factory", "together", "apart"),
    [
        (all_pairs.all_reduce, "2 * p * (p > 1)", "2 * p"),
        (direct.all_reduce, "2 * p * (p > 1)", "2 * p"),
        (direct.reduce, "(p + 1) * (p > 1)", "p + 1"),
        (direct.broadcast, "p * (p > 1)", "p + 1"),
        (direct.reduce_scatter, "p * (p + 1) * (p > 1)", "p * (p + 1)"),
        (direct.all_gather, "p * p * (p > 1)", "p * p + p"),
        (direct.gather, "2 * (p - 1)", "2 * p"),
        (direct.scatter, "2 * (p - 1)", "2 * p"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("ranks", RANKS)
def test_each_input_is_read_and_each_output_stored_once(
    factory: Callable[..., Program], together: str, apart: str, ranks: int
) -> None:
    for inplace, formula in ((True, together), (False, apart)):
        schedule = in_place(factory(ranks, inplace=inplace))
        work = moved(schedule)
        assert Fraction(work.total(), schedule.collective.chunks) == eval(formula, {"p": ranks})
        if factory not in (direct.gather, direct.scatter):
            assert len({work[rank] for rank in range(ranks)}) == 1, "all ranks do as much"
        check(schedule, 17, seeds=(0, 1))


@pytest.mark.parametrize("ranks", RANKS)
def test_all_to_all(ranks: int) -> None:
    schedule = in_place(direct.all_to_all(ranks))
    assert moved(schedule) == dict.fromkeys(range(ranks), 2 * ranks)
    check(schedule, 17, seeds=(0, 1))


@pytest.mark.parametrize("factory", [direct.broadcast, direct.reduce, direct.gather, direct.scatter])
def test_any_root(factory: Callable[..., Program]) -> None:
    for root in range(3):
        for inplace in (True, False):
            check(in_place(factory(3, root, inplace=inplace)), 17, seeds=(root,))


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("factory", [direct.all_reduce, direct.reduce, direct.reduce_scatter])
def test_sums_are_in_the_order_of_ranks(factory: Callable[..., Program], inplace: bool) -> None:
    assert kept(in_place(factory(5, inplace=inplace))) == "rank-order"


@pytest.mark.parametrize("algorithm", CATALOGUE, ids=lambda algorithm: algorithm.name)
def test_no_algorithm_moves_more_in_place(algorithm: Algorithm) -> None:
    for ranks in (3, 8):
        for parameters in algorithm.cases(ranks):
            program = algorithm.factory(**parameters)
            plain, placed = program.compile(), program.compile(storage="peer")
            assert moved(placed).total() <= moved(plain).total()
            check(placed, 17, seeds=(ranks,))
