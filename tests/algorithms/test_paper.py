"""The paper's programs run as printed: Figures 3b and 9, and Figure 3a with line 12 as it must be."""

from __future__ import annotations

import pytest

from hocket import AllGather, AllReduce, AllToAll, Program, ReduceScatter, parallelize, prove
from hocket.algorithms import hierarchical, two_step
from tests import paper
from tests.reference import check

SHAPES = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (3, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("instances", [1, 2])
def test_figure_3(shape: tuple[int, int], instances: int) -> None:
    with Program(AllReduce(shape, chunks=shape[0] * shape[1], inplace=True)) as p:
        paper.hierarchical_all_reduce(*shape)
    schedule = p.compile(instances=instances)
    assert prove(schedule).ranks == shape[0] * shape[1]
    check(schedule, 100, seeds=range(3))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_figure_3b_alone(ranks: int) -> None:
    """Section 7.1.1: a ring AllReduce is ReduceScatter and AllGather of all ranks, offset 0, count 1."""
    with Program(AllReduce(ranks, chunks=ranks, inplace=True)) as p:
        paper.ReduceScatter(list(range(ranks)), 0, 1)
        paper.AllGather(list(range(ranks)), 0, 1)
    check(p.compile(), 100, seeds=range(3))
    with Program(ReduceScatter(ranks, chunks=2, inplace=True)) as p:
        paper.ReduceScatter(list(range(ranks)), 0, 2)
    check(p.compile(), 100, seeds=range(3))


def test_figure_3b_all_gather_is_not_an_all_gather_of_an_input_buffer() -> None:
    """It works on `in` as a whole buffer of which rank r owns block r: on an in-place AllReduce's, not AllGather's."""
    from hocket.errors import OutOfRange

    with Program(AllGather(3, inplace=True)), pytest.raises(OutOfRange):
        paper.AllGather([0, 1, 2], 0, 1)


def test_section_5_1_parallelizes_the_phases_within_nodes() -> None:
    with Program(AllReduce((2, 3), chunks=6, inplace=True)) as p:
        for n in range(2):
            with parallelize(2):
                paper.ReduceScatter([i + n * 3 for i in range(3)], 0, 2)
        for g in range(3):
            paper.ReduceScatter([g, g + 3], g * 2, 1)
            paper.AllGather([g, g + 3], g * 2, 1)
        for n in range(2):
            with parallelize(2):
                paper.AllGather([i + n * 3 for i in range(3)], 0, 2)
    for instances in (1, 2, 3):
        check(p.compile(instances=instances), 1000, seeds=range(5))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("instances", [1, 2, 3])
def test_figure_9(shape: tuple[int, int], instances: int) -> None:
    with Program(AllToAll(shape)) as p:
        paper.alltoall(*shape)
    check(p.compile(instances=instances), 17, seeds=range(3))


def test_the_library_says_the_same_as_the_paper() -> None:
    with Program(AllToAll((2, 3)), name="two_step_all_to_all") as p:
        paper.alltoall(2, 3)
    assert p.compile() == two_step.all_to_all(2, 3).compile()
    # The library names channels, as section 5.1 does; the values move the same way.
    with Program(AllReduce((2, 3), chunks=6, inplace=True)) as q:
        paper.hierarchical_all_reduce(2, 3)
    ours, theirs = hierarchical.all_reduce(2, 3).chunk_dag, q.chunk_dag
    assert sorted((n.kind.value, str(n.src), str(n.dst)) for _, n in ours.operations()) == sorted(
        (n.kind.value, str(n.src), str(n.dst)) for _, n in theirs.operations()
    )
