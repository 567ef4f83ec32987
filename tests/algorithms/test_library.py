"""Each algorithm of the library, at several shapes: proven, and right against NumPy in any order of execution."""

from __future__ import annotations

import inspect
from itertools import cycle

import numpy as np
import pytest

from hocket import Program, prove
from hocket.algorithms import (
    all_pairs,
    all_to_next,
    bine,
    bruck,
    chain,
    circulant,
    direct,
    double_tree,
    hierarchical,
    neighbor_exchange,
    pat,
    recursive_doubling,
    recursive_halving,
    ring,
    sccl,
    swing,
    three_step,
    tree,
    two_step,
)
from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm
from hocket.ir.schedule import Schedule, Send
from hocket.semantics import Array, reference
from tests.algorithms.prove import cases, counted
from tests.reference import check, expected, inputs

EVERY = pytest.mark.parametrize("algorithm", CATALOGUE, ids=lambda algorithm: algorithm.name)
SIZES = (0, 1, 3, 17, 1000)


def some(algorithm: Algorithm) -> Program:
    """A program of the algorithm for eight ranks, which all of them take."""
    return algorithm.factory(**algorithm.cases(8)[-1])


@EVERY
def test_right_in_any_order(algorithm: Algorithm) -> None:
    turns = cycle([(1, 1), (2, 2), (3, 3), (1, 2), (2, 1)])
    sizes = cycle(SIZES)
    for ranks in (1, 2, 3, 4, 6, 7, 8):
        for parameters in algorithm.cases(ranks):
            instances, slots = next(turns)
            schedule = algorithm.factory(**parameters).compile(instances=instances, slots=slots)
            assert schedule.slots == prove(schedule).slots <= slots
            assert schedule.narrowings == ()
            for n in (next(sizes), next(sizes), next(sizes)):
                check(schedule, n, seeds=(None, n) if n == SIZES[-1] else (n,))


@EVERY
def test_any_number_of_ranks_and_any_root(algorithm: Algorithm) -> None:
    for ranks in (5, 9, 13, 16):
        for parameters in cases(algorithm, ranks):
            schedule = algorithm.factory(**parameters).compile()
            assert schedule.narrowings == ()
            check(schedule, 17, seeds=(ranks,))


@EVERY
def test_more_slots_than_proven_do_not_hurt(algorithm: Algorithm) -> None:
    schedule = some(algorithm).compile(slots=1)
    for slots in (2, 64):
        check(schedule, 17, seeds=(0, 1), slots=slots)


@EVERY
def test_the_outcome_does_not_depend_on_the_order_bit_by_bit(algorithm: Algorithm) -> None:
    """Floats, whose sums depend on the order of additions."""
    schedule = some(algorithm).compile(instances=2)
    rng = np.random.default_rng(0)
    n = 100
    blocks = [schedule.collective.input_blocks(rank) * n for rank in range(schedule.collective.size)]
    given: list[Array] = [rng.standard_normal(length).astype(np.float32) for length in blocks]
    first = reference(schedule, given)
    for seed in range(5):
        for one, two in zip(first, reference(schedule, given, seed=seed), strict=True):
            assert one.tobytes() == two.tobytes()
    exact = expected(schedule, [array.astype(np.float64) for array in given], n)
    bound = schedule.collective.size * float(np.finfo(np.float32).eps)
    magnitude = expected(schedule, [np.abs(array.astype(np.float64)) for array in given], n)
    for out, units, scales in zip(first, exact, magnitude, strict=True):
        for i, (unit, scale) in enumerate(zip(units, scales, strict=True)):
            if unit is not None:
                assert scale is not None
                error = np.abs(out[i * n : (i + 1) * n].astype(np.float64) - unit.astype(np.float64))
                assert np.all(error <= bound * scale.astype(np.float64))


@pytest.mark.parametrize("op", ["min", "max"])
def test_other_operators(op: str) -> None:
    schedule = hierarchical.all_reduce(2, 3).compile()
    given = [np.random.default_rng(rank).integers(-100, 100, 50) for rank in range(6)]
    wanted = getattr(np, op)(np.stack(given), axis=0)
    for out in reference(schedule, given, op, seed=1):
        np.testing.assert_array_equal(out, wanted)


@EVERY
def test_under_thirty_lines_as_in_the_paper(algorithm: Algorithm) -> None:
    source = inspect.getsource(algorithm.factory)
    if algorithm.factory is hierarchical.all_reduce:
        source += inspect.getsource(hierarchical.reduce_scatter) + inspect.getsource(hierarchical.all_gather)
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    # Figure 3 has 35, of which its two helpers 16.
    assert len(code) < 30


# What makes each algorithm what it is -----------------------------------------------------------------------


def sends(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    """(from, to, channel, chunks) of each transfer."""
    return [
        (rank, target.peer, target.channel, step.count or 1)
        for rank, _, _, step in schedule.steps()
        for target in step.dsts
        if isinstance(target, Send)
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_sends_the_optimal_amount_to_its_neighbour_only(ranks: int) -> None:
    for program, rounds in ((ring.all_reduce(ranks), 2), (ring.all_gather(ranks), 1), (ring.reduce_scatter(ranks), 1)):
        found = sends(program.compile())
        assert {(to - rank) % ranks for rank, to, _, _ in found} == {1}
        for rank in range(ranks):
            assert sum(count for r, _, _, count in found if r == rank) == rounds * (ranks - 1)


@pytest.mark.parametrize("ranks", [3, 4, 5, 8])
def test_a_ring_is_fused_all_the_way(ranks: int) -> None:
    """A rank sends once, and everything in between is received, reduced and sent in one instruction."""
    schedule = ring.all_reduce(ranks).compile()
    for rank in schedule.ranks:
        (block,) = rank.thread_blocks
        middle = ["rrs"] * (ranks - 2) + ["rrcs"] + ["rcs"] * (ranks - 2)
        assert [step.opcode for step in block.steps] == ["send", *middle, "recv"]
    assert schedule.slots == 2


def test_memory_traffic_of_a_ring_reduce_scatter_is_the_optimum() -> None:
    """(3p - 1) s bytes a node, counting what is read from and written to the user's memory and to slots."""
    for ranks in (2, 3, 5, 8):
        schedule = ring.reduce_scatter(ranks).compile()
        operands = sum(len(step.srcs) + len(step.dsts) for _, _, _, step in schedule.steps())
        # Each operand is one chunk of s / p bytes; p ranks do p steps each.
        assert operands == ranks * (2 + 3 * (ranks - 2) + 3) == ranks * (3 * ranks - 1)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_ring_uses_the_channels_it_was_given(channels: int) -> None:
    found = sends(ring.all_reduce(6, channels).compile())
    assert {channel for _, _, channel, _ in found} == set(range(channels))


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_all_pairs_takes_two_communication_steps(ranks: int) -> None:
    found = sends(all_pairs.all_reduce(ranks).compile())
    assert len(found) == 2 * ranks * (ranks - 1)
    assert counted(all_pairs.all_reduce(ranks)).hops == 2


def test_two_step_sends_once_between_each_pair_of_nodes_and_column() -> None:
    nodes, gpus = 3, 2
    found = sends(two_step.all_to_all(nodes, gpus).compile())
    across = [(rank, to, count) for rank, to, _, count in found if rank // gpus != to // gpus]
    assert len(across) == len(set(across)) == nodes * (nodes - 1) * gpus
    assert all(rank % gpus == to % gpus and count == gpus for rank, to, count in across)


def test_hierarchical_sends_little_across_nodes() -> None:
    """Across nodes 2 (N - 1) / (N G) of the buffer a rank, where a flat ring sends 2 (NG - 1) / NG."""
    nodes, gpus = 3, 4
    found = sends(hierarchical.all_reduce(nodes, gpus).compile())
    for rank in range(nodes * gpus):
        across = sum(count for r, to, _, count in found if r == rank and to // gpus != rank // gpus)
        within = sum(count for r, to, _, count in found if r == rank and to // gpus == rank // gpus)
        assert across == 2 * (nodes - 1)
        assert within == 2 * (gpus - 1) * nodes
    assert {channel for rank, to, channel, _ in found if rank // gpus != to // gpus} == {1}
    assert {channel for rank, to, channel, _ in found if rank // gpus == to // gpus} == {0, 2}


def test_all_to_next_crosses_nodes_on_every_rank() -> None:
    found = sends(all_to_next.all_to_next(2, 4).compile())
    assert sorted((rank, to) for rank, to, _, _ in found if rank < 4 <= to) == [(g, g + 4) for g in range(4)]


def test_sccl_takes_two_steps_over_links_of_the_dgx_1() -> None:
    schedule = sccl.all_gather().compile()
    for rank, to, _, _ in sends(schedule):
        assert rank // 4 == to // 4 or abs(rank - to) == 4
    assert counted(sccl.all_gather()).hops == 2
    # Two rounds: in neither step does more than one chunk cross a link, but for the second from the opposite.
    links = [(rank, to) for rank, to, _, _ in sends(schedule)]
    assert max(links.count(link) for link in links) == 2


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_chain_sends_each_byte_once_and_a_tree_takes_few_steps(ranks: int) -> None:
    for chained in (chain.broadcast(ranks, 1), chain.reduce(ranks, 1)):
        schedule = chained.compile()
        assert {(to - rank) % ranks for rank, to, _, _ in sends(schedule)} == {1}
        assert len(sends(schedule)) == ranks - 1
    for treelike in (tree.broadcast(ranks, 1), tree.reduce(ranks, 1), tree.gather(ranks, 1), tree.scatter(ranks, 1)):
        schedule = treelike.compile()
        assert len(sends(schedule)) == ranks - 1
        assert sum(1 in (rank, to) for rank, to, _, _ in sends(schedule)) == (ranks - 1).bit_length()
        assert counted(treelike).hops == max(r.bit_count() for r in range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_direct_programs_send_a_block_once_and_in_another_order_on_every_rank(ranks: int) -> None:
    found = sends(direct.all_to_all(ranks).compile())
    assert len(found) == len(set(found)) == ranks * (ranks - 1)
    dag = direct.all_to_all(ranks).chunk_dag
    targets = [[op.dst.rank for op in dag.nodes if op.src is not None and op.src.rank == r] for r in range(ranks)]
    assert targets == [[(r + step) % ranks for step in range(ranks)] for r in range(ranks)]
    for rooted in (direct.gather(ranks, 1), direct.scatter(ranks, 1)):
        assert len(sends(rooted.compile())) == ranks - 1


def distances(program: Program, ranks: int) -> set[int]:
    """How far transfers go, around the ring of ranks: less than half of it either way."""
    far = {(to - rank) % ranks for rank, to, _, _ in sends(program.compile())}
    return {d if d <= ranks // 2 else d - ranks for d in far}


def test_who_talks_to_whom() -> None:
    for doubling in (recursive_doubling.all_reduce(16), recursive_halving.all_reduce(16)):
        assert {rank ^ to for rank, to, _, _ in sends(doubling.compile())} == {1, 2, 4, 8}
    for program in (
        ring.bidirectional_all_reduce(9),
        ring.bidirectional_all_gather(9),
        neighbor_exchange.all_gather(8),
    ):
        assert distances(program, program.collective.size) == {1, -1}
    assert distances(circulant.reduce_scatter(19), 19) == {1, 2, 3, 5, 10 - 19}
    assert distances(circulant.broadcast(19, blocks=5), 19) == {1, 2, 3, 5, 10 - 19}
    assert distances(bruck.all_gather(19), 19) == {-1, -2, -4, -8, 19 - 16}
    assert distances(bruck.all_to_all(19), 19) == {1, 2, 4, 8, 16 - 19}
    assert distances(swing.all_reduce(32), 32) == {1, -1, 3, -3, 5, -5, 11, -11}
    assert distances(bine.broadcast(32), 32) == {1, -1, 3, -3, 5, -5, 11}


def test_folded_ranks_talk_to_their_neighbour_only() -> None:
    for program, folded, others in (
        (recursive_doubling.all_reduce(11), (0, 2, 4), (1, 3, 5)),
        (recursive_halving.all_reduce(11), (1, 3, 5), (0, 2, 4)),
    ):
        found = {(rank, to) for rank, to, _, _ in sends(program.compile())}
        assert {(r, to) for r, to in found if r in folded} == set(zip(folded, others, strict=True))
        assert {(r, to) for r, to in found if to in folded} == set(zip(others, folded, strict=True))


@pytest.mark.parametrize("ranks", [5, 8, 16, 17])
def test_pat_sends_most_to_the_nearest(ranks: int) -> None:
    for program, way in ((pat.all_gather(ranks), 1), (pat.reduce_scatter(ranks), -1)):
        found = [way * (to - rank) % ranks for rank, to, _, _ in sends(program.compile())]
        powers = [1 << k for k in range((ranks - 1).bit_length())]
        assert [found.count(d) for d in powers] == sorted((found.count(d) for d in powers), reverse=True)
        assert found.count(powers[-1]) == ranks * (1 if ranks == 2 * powers[-1] else min(ranks - powers[-1], 1))


@pytest.mark.parametrize("ranks", [5, 8, 9, 16])
def test_a_rank_is_inside_at_most_one_of_two_trees(ranks: int) -> None:
    """But for the one next to the top, where the number of ranks is no power of two."""
    dag = double_tree.broadcast(ranks).chunk_dag
    children = [[0, 0] for _ in range(ranks)]
    for _, op in dag.operations():
        assert op.src is not None
        children[op.src.rank][op.dst.index] += 1
    assert children[0] == [1, 1]
    assert all(count <= 2 for both in children for count in both)
    assert all(0 in both for both in children[1:])


def test_three_step_sends_once_between_nodes() -> None:
    nodes, gpus = 4, 2
    found = sends(three_step.all_to_all(nodes, gpus).compile())
    across = [(rank // gpus, to // gpus, count) for rank, to, _, count in found if rank // gpus != to // gpus]
    assert sorted(across) == [(m, n, gpus * gpus) for m in range(nodes) for n in range(nodes) if m != n]


def test_levels_send_least_between_the_outermost() -> None:
    found = sends(hierarchical.multilevel_all_reduce((2, 2, 3)).compile())
    for rank in range(12):
        level = [0, 0, 0]
        for source, to, _, count in found:
            if source == rank:
                level[0 if source // 6 != to // 6 else 1 if source // 3 != to // 3 else 2] += count
        assert level == [2, 4, 16]
    assert {channel for rank, to, channel, _ in found if rank // 6 != to // 6} == {2}


@pytest.mark.parametrize("ranks", [2, 5])
def test_one_shot_adds_in_the_order_of_ranks(ranks: int) -> None:
    schedule = all_pairs.one_shot_all_reduce(ranks).compile()
    given = [np.random.default_rng(rank).standard_normal(100).astype(np.float32) for rank in range(ranks)]
    total = given[0]
    for one in given[1:]:
        total = total + one
    for out in reference(schedule, list(given)):
        assert out.tobytes() == total.tobytes()


def test_a_block_of_all_to_all_v_may_be_empty() -> None:
    program = direct.all_to_all_v((0, 2, 0, 0, 1, 3, 0, 0, 0))
    assert [program.collective.inputs(rank) for rank in range(3)] == [2, 4, 0]
    assert [program.collective.outputs(rank) for rank in range(3)] == [0, 3, 3]
    check(program.compile(instances=2), 5)
    with pytest.raises(ValueError, match="counts is a square table, row by row: 3 numbers are none"):
        direct.all_to_all_v((1, 2, 3))


def test_inputs_differ_between_ranks_and_elements() -> None:
    """The helper's numbers: a test with equal ones would prove nothing."""
    arrays = inputs(ring.all_reduce(3).compile(), 1000)
    assert len({int(x) for array in arrays for x in array}) == 3000
