"""Contracts on the bits of sums: what schedules keep, and refusals with both trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket import AllReduce, Custom, Program, Proof, chunk, prove
from hocket.algorithms import all_pairs, hierarchical, ring
from hocket.errors import PostconditionFailed, SumsDiffer
from hocket.verify import Contract, kept
from tests.conftest import Golden

HERE = Path(__file__).parent


def doubling(ranks: int, *, uneven: bool = False, reproducible: str | None = None) -> Program:
    """Recursive doubling; ``uneven``: chunk 1 meets its partners in the opposite order."""
    with Program(AllReduce(ranks, chunks=2, inplace=True), reproducible=reproducible) as p:  # type: ignore[arg-type]
        for index in range(2):
            distances = [1 << bit for bit in range(ranks.bit_length() - 1)]
            for distance in reversed(distances) if uneven and index else distances:
                for r in range(ranks):
                    chunk(r, "in", index).copy(r ^ distance, "sc", index)
                for r in range(ranks):
                    chunk(r, "in", index).reduce(chunk(r, "sc", index))
    return p


def everyone_for_itself(ranks: int, reproducible: Contract | None = None) -> Program:
    """Each rank adds what the others send to its own, in the order of ranks: each rank another tree."""
    with Program(AllReduce(ranks, inplace=True), reproducible=reproducible) as p:
        for r in range(ranks):
            for other in range(ranks):
                if other != r:
                    chunk(r, "in", 0).copy(other, "sc", r)
        for r in range(ranks):
            for other in range(ranks):
                if other != r:
                    chunk(r, "in", 0).reduce(chunk(r, "sc", other))
    return p


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize(
    ("program", "contract"),
    [
        (ring.all_reduce(2), "rank-order"),
        (ring.all_reduce(4), "across-ranks"),
        (all_pairs.all_reduce(4), "across-ranks"),
        (hierarchical.all_reduce(2, 3), "across-ranks"),
        (doubling(8), "across-sizes"),
        (doubling(8, uneven=True), "across-ranks"),
        (everyone_for_itself(3, "may-differ"), "may-differ"),
        (ring.all_gather(4), None),
    ],
)
def test_what_is_kept(program: Program, contract: str | None, instances: int) -> None:
    assert kept(program.compile(instances=instances)) == contract


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors name files from the working folder."""
    monkeypatch.chdir(HERE)


def test_ranks_that_sum_differently(golden: Golden) -> None:
    with pytest.raises(SumsDiffer) as caught:
        everyone_for_itself(3).compile()
    golden(HERE / "sums_across_ranks.err", str(caught.value))


def test_ranks_that_may_sum_differently() -> None:
    schedule = everyone_for_itself(3).compile(reproducible="may-differ")
    assert prove(schedule, "may-differ") == Proof.of(schedule)
    with pytest.raises(SumsDiffer):
        prove(schedule)
    with pytest.raises(SumsDiffer):
        everyone_for_itself(3, "may-differ").compile(reproducible="across-ranks")


def test_what_may_differ_is_a_sum_all_the_same() -> None:
    with Program(AllReduce(2, inplace=True), reproducible="may-differ") as p:
        chunk(0, "in", 0).copy(1, "sc", 0)
        chunk(1, "in", 0).reduce(chunk(1, "sc", 0))
    with pytest.raises(PostconditionFailed):
        p.compile()


def test_places_that_are_summed_differently(golden: Golden) -> None:
    with pytest.raises(SumsDiffer) as caught:
        doubling(4, uneven=True, reproducible="across-sizes").compile()
    golden(HERE / "sums_across_sizes.err", str(caught.value))


def test_a_sum_out_of_order(golden: Golden) -> None:
    with pytest.raises(SumsDiffer) as caught:
        doubling(4, reproducible="rank-order").compile()
    golden(HERE / "sums_rank_order.err", str(caught.value))


def test_sums_of_several_chunks_of_a_rank() -> None:
    """Instances are compared with each other, units are not."""
    with Program(Custom(1, inputs=4, outputs=2, post=lambda r, i: [(0, 2 * i), (0, 2 * i + 1)])) as p:
        for i in range(2):
            chunk(0, "in", 2 * i).copy(0, "out", i).reduce(chunk(0, "in", 2 * i + 1))
    assert kept(p.compile(instances=3)) == "rank-order"
