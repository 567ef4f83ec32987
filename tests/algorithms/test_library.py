"""Each algorithm of the library, at several shapes: proven, and right against NumPy in any order of execution."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hocket import Program, prove
from hocket.algorithms import all_pairs, all_to_next, chain, direct, hierarchical, ring, sccl, tree, two_step
from hocket.ir.schedule import Schedule, Send
from hocket.semantics import Array, Machine, reference
from tests.reference import check, expected, inputs

SIZES = (0, 1, 3, 17, 1000)
ROOTED = ((1,), (2, 1), (3,), (4, 2), (5, 4), (8, 3))
SHAPES: dict[str, tuple[Callable[..., Program], tuple[tuple[int, ...], ...]]] = {
    "ring.all_reduce": (ring.all_reduce, ((1,), (2,), (3,), (4,), (5,), (7,), (8,), (4, 2), (5, 3), (2, 2))),
    "ring.all_gather": (ring.all_gather, ((1,), (2,), (3,), (5,), (8,), (7, 2))),
    "ring.reduce_scatter": (ring.reduce_scatter, ((1,), (2,), (3,), (5,), (8,), (7, 2))),
    "all_pairs.all_reduce": (all_pairs.all_reduce, ((1,), (2,), (3,), (5,), (6,))),
    "hierarchical.all_reduce": (
        hierarchical.all_reduce,
        ((1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (3, 2), (3, 3), (2, 3, 2), (2, 3, 3), (2, 2, 4)),
    ),
    "two_step.all_to_all": (two_step.all_to_all, ((1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (3, 2), (3, 3))),
    "all_to_next.all_to_next": (all_to_next.all_to_next, ((1, 1), (1, 4), (3, 1), (2, 2), (2, 3), (3, 3), (2, 5))),
    "sccl.all_gather": (sccl.all_gather, ((),)),
    "chain.broadcast": (chain.broadcast, ROOTED),
    "chain.reduce": (chain.reduce, ROOTED),
    "tree.broadcast": (tree.broadcast, ROOTED),
    "tree.reduce": (tree.reduce, ROOTED),
    "tree.gather": (tree.gather, ROOTED),
    "tree.scatter": (tree.scatter, ROOTED),
    "direct.gather": (direct.gather, ROOTED),
    "direct.scatter": (direct.scatter, ROOTED),
    "direct.all_to_all": (direct.all_to_all, ((1,), (2,), (3,), (5,), (8,))),
}
CASES = [(name, shape) for name, (_, shapes) in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize("instances", [1, 2, 3])
@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda v: v if isinstance(v, str) else "x".join(map(str, v)))
def test_proven_and_right(name: str, shape: tuple[int, ...], instances: int) -> None:
    function, _ = SHAPES[name]
    program = function(*shape, instances=instances)
    for slots in (1, 2, 3):
        schedule = program.compile(slots=slots)
        proof = prove(schedule)
        assert schedule.slots == proof.slots <= slots
        assert schedule.narrowings == ()
        for n in SIZES:
            check(schedule, n, seeds=(None, n) if n == SIZES[-1] else (n,))


@pytest.mark.parametrize("name", [name for name, (_, shapes) in SHAPES.items() if shapes is ROOTED])
def test_any_number_of_ranks_and_any_root(name: str) -> None:
    for ranks in range(1, 18):
        for root in sorted({0, 1 % ranks, ranks // 2, ranks - 1}):
            schedule = SHAPES[name][0](ranks, root).compile()
            assert prove(schedule).slots <= 2
            assert schedule.narrowings == ()
            check(schedule, 17, seeds=(ranks,))


@pytest.mark.parametrize("ranks", range(1, 18))
def test_any_number_of_ranks(ranks: int) -> None:
    for function in (ring.all_gather, ring.reduce_scatter, direct.all_to_all):
        check(function(ranks).compile(), 17, seeds=(ranks,))


@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda v: v if isinstance(v, str) else "x".join(map(str, v)))
def test_more_slots_than_proven_do_not_hurt(name: str, shape: tuple[int, ...]) -> None:
    schedule = SHAPES[name][0](*shape).compile(slots=1)
    for slots in (2, 64):
        check(schedule, 17, seeds=(0, 1), slots=slots)


@pytest.mark.parametrize("name", SHAPES)
def test_the_outcome_does_not_depend_on_the_order_bit_by_bit(name: str) -> None:
    """Floats, whose sums depend on the order of additions."""
    function, shapes = SHAPES[name]
    schedule = function(*shapes[-1]).compile(instances=2)
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


@pytest.mark.parametrize("name", SHAPES)
def test_under_thirty_lines_as_in_the_paper(name: str) -> None:
    function = SHAPES[name][0]
    source = inspect.getsource(function)
    for helper in ("reduce_scatter", "all_gather"):
        if name == "hierarchical.all_reduce":
            source += inspect.getsource(getattr(hierarchical, helper))
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    # Figure 3 has 35, of which its two helpers 16.
    assert len(code) < 30


def test_every_file_of_the_library_is_tested() -> None:
    files = {path.stem for path in Path(ring.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {name.partition(".")[0] for name in SHAPES}


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
    assert depth(all_pairs.all_reduce(ranks).compile()) == 2


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
    assert depth(schedule) == 2
    # Two rounds: in neither step does more than one chunk cross a link, but for the second from the opposite.
    links = [(rank, to) for rank, to, _, _ in sends(schedule)]
    assert max(links.count(link) for link in links) == 2


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_chain_sends_each_byte_once_and_a_tree_takes_few_steps(ranks: int) -> None:
    for chained in (chain.broadcast(ranks, 1), chain.reduce(ranks, 1)):
        schedule = chained.compile()
        assert {(to - rank) % ranks for rank, to, _, _ in sends(schedule)} == {1}
        assert len(sends(schedule)) == depth(schedule) == ranks - 1
    for treelike in (tree.broadcast(ranks, 1), tree.reduce(ranks, 1), tree.gather(ranks, 1), tree.scatter(ranks, 1)):
        schedule = treelike.compile()
        assert len(sends(schedule)) == ranks - 1
        assert sum(1 in (rank, to) for rank, to, _, _ in sends(schedule)) == (ranks - 1).bit_length()
        assert depth(schedule) == max(r.bit_count() for r in range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_direct_programs_send_a_block_once_and_in_another_order_on_every_rank(ranks: int) -> None:
    assert depth(direct.all_to_all(ranks).compile()) == 1
    found = sends(direct.all_to_all(ranks).compile())
    assert len(found) == len(set(found)) == ranks * (ranks - 1)
    dag = direct.all_to_all(ranks).chunk_dag
    targets = [[op.dst.rank for op in dag.nodes if op.src is not None and op.src.rank == r] for r in range(ranks)]
    assert targets == [[(r + step) % ranks for step in range(ranks)] for r in range(ranks)]
    for rooted in (direct.gather(ranks, 1), direct.scatter(ranks, 1)):
        assert depth(rooted.compile()) == 1
        assert len(sends(rooted.compile())) == ranks - 1


def depth(schedule: Schedule) -> int:
    """Transfers on the longest way from an input to an output, read off the values: hops of each chunk."""

    class Hops:
        def __init__(self, hops: int) -> None:
            self.hops = hops

    machine = Machine[Hops](schedule, lambda r, i, t: Hops(0), lambda a, b: Hops(max(a.hops, b.hops)), slots=None)
    event = machine.event

    def counting(place: tuple[int, int]) -> None:
        at = machine.cursor(place)
        assert at is not None
        step = schedule.ranks[place[0]].thread_blocks[place[1]].steps[at[1]]
        writes = place in machine._held
        if writes and any(isinstance(target, Send) for target in step.dsts):
            held = machine._held[place]
            local = [t for t in step.dsts if not isinstance(t, Send)]
            machine._held[place] = [Hops(v.hops + 1) for v in held]
            event(place)
            for target in local:  # what stays here has made no further hop
                for i, value in zip(target.indices(), held, strict=True):
                    machine.memory[0][place[0]][target.buffer][i] = value
            return
        event(place)

    machine.event = counting  # type: ignore[method-assign]
    machine.run()
    values = [v for rank in range(len(schedule.ranks)) for v in machine.output(rank)]
    return max(v.hops for v in values if v is not None)


def test_inputs_differ_between_ranks_and_elements() -> None:
    """The helper's numbers: a test with equal ones would prove nothing."""
    arrays = inputs(ring.all_reduce(3).compile(), 1000)
    assert len({int(x) for array in arrays for x in array}) == 3000
