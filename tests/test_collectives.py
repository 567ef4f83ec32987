"""Collectives: their promises, their in-place form, their text, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
import pytest

from hocket import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Collective,
    Custom,
    Exscan,
    Gather,
    Program,
    Reduce,
    ReduceScatter,
    Scan,
    Scatter,
    chunk,
    collectives,
)
from hocket.collectives import Alias, as_sum, members, parse
from hocket.errors import InvalidArgument, PostconditionFailed
from hocket.semantics import reference
from tests.reference import check

UNIFORM: list[type[Collective]] = [
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    AllToNext,
    Scan,
    Exscan,
]
ROOTED: list[Callable[..., Collective]] = [Broadcast, Reduce, Gather, Scatter]


def custom(ranks: int | tuple[int, ...] = 3, inplace: bool = False) -> Custom:
    def post(rank: int, index: int) -> set[tuple[int, int]] | None:
        return None if rank == 1 else {(r, r) for r in range(rank + 1)}

    return Custom(ranks, inputs=[1, 2, 3], outputs=[1, 2, 1], post=post, inplace=inplace)


ALL: list[Collective] = [
    *(cls(n, chunks, inplace) for cls, n, chunks, inplace in product(UNIFORM, (1, 3, (2, 3)), (1, 2), (False, True))),
    *(cls(4, 2, root=root) for cls in ROOTED for root in (1, 3)),
    custom(),
    custom(inplace=True),
    custom((1, 3)),
    custom().refined(4),
    Custom(2, inputs=0, outputs=0, post=lambda r, i: None),
    Custom(1, inputs=1, outputs=[2], post=lambda r, i: [(0, 0)]),
]


@pytest.mark.parametrize("collective", ALL, ids=str)
def test_text_parses_back(collective: Collective) -> None:
    assert parse(str(collective)) == collective
    assert hash(parse(str(collective))) == hash(collective)
    assert str(parse(str(collective))) == str(collective)


@pytest.mark.parametrize("collective", ALL, ids=str)
def test_promises_name_inputs_that_exist(collective: Collective) -> None:
    for rank in range(collective.size):
        for index in range(collective.outputs(rank)):
            wanted = collective.required(rank, index)
            for r, i in members(wanted) if wanted is not None else ():
                assert 0 <= r < collective.size
                assert 0 <= i < collective.inputs(r)


@pytest.mark.parametrize("collective", ALL, ids=str)
def test_refinement_cuts_every_chunk(collective: Collective) -> None:
    """Chunk i of the user becomes chunks 3i to 3i+2, and each promise that of its part."""
    finer = collective.refined(3)
    assert finer.refined(1) == finer
    assert collective.refined(2).refined(3) == collective.refined(6)
    for rank in range(collective.size):
        assert finer.inputs(rank) == 3 * collective.inputs(rank)
        assert finer.outputs(rank) == 3 * collective.outputs(rank)
        assert finer.input_blocks(rank) == collective.input_blocks(rank)
        for index in range(finer.outputs(rank)):
            whole, part = collective.required(rank, index // 3), index % 3
            expected = None if whole is None else as_sum((r, 3 * i + part) for r, i in members(whole))
            assert finer.required(rank, index) == expected


@pytest.mark.parametrize("collective", ALL, ids=str)
def test_an_alias_stays_inside_of_its_memory(collective: Collective) -> None:
    for rank in range(collective.size):
        alias = collective.alias(rank)
        if alias is not None:
            assert collective.inplace
            sizes = {"in": collective.inputs(rank), "out": collective.outputs(rank)}
            assert alias.offset + sizes[alias.buffer] <= sizes[alias.target]


def test_inplace_is_what_nccl_calls_so() -> None:
    for cls in (AllReduce, AllToAll, AllToNext):
        assert cls(4, 2, True).alias(3) == Alias("out", "in", 0)
    assert AllGather(4, 2, True).alias(3) == Alias("in", "out", 6)
    assert ReduceScatter(4, 2, True).alias(3) == Alias("out", "in", 6)
    assert Broadcast(4, inplace=True, root=1).alias(1) == Alias("out", "in", 0)
    assert Broadcast(4, inplace=True, root=1).alias(0) is None
    assert Gather(4, 2, inplace=True, root=1).alias(1) == Alias("in", "out", 2)
    assert Gather(4, 2, inplace=True, root=1).alias(0) is None
    assert Scatter(4, 2, inplace=True, root=1).alias(1) == Alias("out", "in", 2)
    assert AllReduce(4).alias(0) is None


def test_sizes() -> None:
    assert [AllGather(3, 2).inputs(0), AllGather(3, 2).outputs(0)] == [2, 6]
    assert [ReduceScatter(3, 2).inputs(0), ReduceScatter(3, 2).outputs(0)] == [6, 2]
    assert [AllToAll(3, 2).inputs(0), AllToAll(3, 2).outputs(0)] == [6, 6]
    assert [AllReduce(3, 2).inputs(0), AllReduce(3, 2).outputs(0)] == [2, 2]
    assert [Broadcast(3, 2, root=1).inputs(r) for r in range(3)] == [0, 2, 0]
    assert [Gather(3, 2, root=1).outputs(r) for r in range(3)] == [0, 6, 0]
    assert AllReduce((2, 3)).size == 6
    assert AllReduce((2, 3)).shape == (2, 3)


def test_only_sums_reduce() -> None:
    assert {cls for cls in UNIFORM if cls(2).reduces()} == {AllReduce, ReduceScatter, Reduce, Scan, Exscan}
    assert custom().reduces()
    assert not Custom(2, inputs=1, outputs=1, post=lambda r, i: {(0, 0)}).reduces()


def test_equal_collectives_are_equal_however_they_were_written() -> None:
    assert AllReduce((4,)) == AllReduce(4)
    assert AllReduce(np.int64(4), chunks=np.int32(2)) == AllReduce(4, 2)  # type: ignore[arg-type]
    assert str(AllReduce((np.int64(2), 2))) == "allreduce(ranks=2x2, chunks=1)"  # type: ignore[arg-type]
    assert Broadcast(4, root=np.int8(3)) == Broadcast(4, root=3)  # type: ignore[arg-type]
    one = Custom(2, inputs=1, outputs=1, post=lambda r, i: {(0, 0), (1, 0)})
    two = Custom(2, inputs=[1, 1], outputs=(1, 1), post=lambda r, i: [(1, 0), (0, 0), (1, 0)])
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    "ranks",
    [
        *(0, -1, 2.0, "2", None, True, (), (2, 0), (2, 1.5), (2, True), [2, 2], np.array([2, 3]), np.True_),
        *(1 << 27, (1 << 20, 1 << 20), 10**4000),
    ],
)
def test_ranks_are_refused(ranks: object) -> None:
    with pytest.raises(InvalidArgument, match="ranks"):
        AllReduce(ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunks", [0, -3, 1.5, "1", None, False])
def test_chunks_are_refused(chunks: object) -> None:
    with pytest.raises(InvalidArgument, match="chunks"):
        AllReduce(2, chunks)  # type: ignore[arg-type]


@pytest.mark.parametrize("root", [-1, 4, 1.0, None, True])
@pytest.mark.parametrize("cls", ROOTED)
def test_root_is_refused(cls: Callable[..., Collective], root: object) -> None:
    with pytest.raises(InvalidArgument, match="root"):
        cls(4, root=root)


def test_inplace_must_be_a_truth_value() -> None:
    """`AllReduce(4, 2, 3)` would otherwise be in-place without a word."""
    with pytest.raises(InvalidArgument, match="inplace"):
        AllReduce(4, 2, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [-1, 1.5, None, [1], [1, 2, 3], [1, -1], "11", [True, 1]])
def test_counts_of_a_custom_collective_are_refused(counts: object) -> None:
    with pytest.raises(InvalidArgument, match="inputs"):
        Custom(2, inputs=counts, outputs=1, post=lambda r, i: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [{(0, 1)}, {(2, 0)}, {(-1, 0)}, set(), {0}, 3, {(0, 0, 0)}, {("a", 0)}])
def test_impossible_promises_are_refused(wanted: Iterable[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument, match="post"):
        Custom(2, inputs=1, outputs=1, post=lambda r, i: wanted)


@pytest.mark.parametrize(
    "text",
    [
        *("", "allreduce", "allreduce()", "ring(ranks=2, chunks=1)", "allreduce(ranks=2, chunks=1) "),
        f"allreduce(ranks={'x'.join(['9999999999'] * 500)}, chunks=1)",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"collective|ranks times chunks"):
        parse(text)


def test_a_collective_does_not_change() -> None:
    with pytest.raises(AttributeError):
        AllReduce(2).chunks = 3  # type: ignore[misc]


# Custom collectives run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_custom_with_counts_of_each_rank_and_free_outputs(instances: int) -> None:
    with Program(custom(), instances=instances) as p:
        chunk(0, "in", 0).copy(0, "out", 0)
        total = chunk(2, "in", 2).reduce(chunk(1, "in", 1))
        total.reduce(chunk(0, "in", 0)).copy(2, "out", 0)
        chunk(1, "in", 0).copy(1, "out", 1)
    schedule = p.compile()
    assert schedule.collective == custom().refined(instances)
    n = 10
    given = [np.arange(blocks * n) + 100 * rank for rank, blocks in enumerate((1, 2, 3))]
    for seed in range(5):
        out = reference(schedule, given, seed=seed)
        assert [len(o) for o in out] == [10, 20, 10]
        np.testing.assert_array_equal(out[0], given[0])
        np.testing.assert_array_equal(out[2], given[0] + given[1][n:] + given[2][2 * n :])


def test_a_free_output_may_be_left_unwritten() -> None:
    with Program(Custom(2, inputs=1, outputs=2, post=lambda r, i: None)) as p:
        pass
    out = reference(p.compile(), [np.ones(4), np.ones(4)])
    assert [o.tolist() for o in out] == [[0.0] * 8] * 2


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 2), (2, 1), (2, 2)])
def test_custom_in_place_with_any_sizes(inputs: int, outputs: int) -> None:
    """The shorter buffer is the beginning of the longer one: the first output is there already."""
    with Program(Custom(2, inputs=inputs, outputs=outputs, post=lambda r, i: {(r, 0)}, inplace=True)) as p:
        if outputs == 2:
            for rank in range(2):
                chunk(rank, "in", 0).copy(rank, "out", 1)
    given = [np.arange(inputs * 3) + 10 * rank for rank in range(2)]
    for rank, out in enumerate(reference(p.compile(), given, seed=0)):
        np.testing.assert_array_equal(out, np.tile(given[rank][:3], outputs))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("cls", UNIFORM)
def test_the_simplest_program_of_each_collective(cls: type[Collective], ranks: int, inplace: bool) -> None:
    """Every output is gathered straight from the inputs that it is promised, through scratch where it must be."""
    collective = cls(ranks, 2, inplace)
    with Program(collective) as p:
        place: dict[tuple[int, int, int], int] = {}
        for rank in range(ranks):
            for index in range(collective.outputs(rank)):
                wanted = collective.required(rank, index)
                if wanted is None:
                    continue
                (first, *others) = members(wanted)
                at = place[rank, index, 0] = len([k for k in place if k[0] == rank])
                total = chunk(first[0], "in", first[1]).copy(rank, "sc", at)
                for r, i in others:
                    total = total.reduce(chunk(r, "in", i))
        for (rank, index, _), at in place.items():
            chunk(rank, "sc", at).copy(rank, "out", index)
    for instances in (1, 2):
        check(p.compile(instances=instances), 17, seeds=(None, 0, 1))


@pytest.mark.parametrize("cls", UNIFORM)
def test_doing_nothing_is_not_enough(cls: type[Collective]) -> None:
    with Program(cls(2)) as p:
        pass
    with pytest.raises(PostconditionFailed):
        p.compile()


def test_the_module_lists_every_collective() -> None:
    named = {c for c in vars(collectives).values() if isinstance(c, type) and issubclass(c, Collective)}
    public = {c for c in named if hasattr(c, "name")}
    assert public == {*UNIFORM, Custom}


def test_nobody_has_an_input() -> None:
    with Program(Custom(2, inputs=[0, 0], outputs=[1, 1], post=lambda _rank, _index: None)) as p:
        pass
    for units in (None, [[], []]):
        assert [out.tolist() for out in reference(p.compile(), [np.ones(0)] * 2, units=units)] == [[], []]
