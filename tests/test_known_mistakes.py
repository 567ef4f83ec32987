"""What the paper's reference tools get wrong, and what happens here. One test, or a few, for each item."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Custom,
    Program,
    ReduceScatter,
    Schedule,
    chunk,
    parallelize,
    prove,
)
from hocket.algorithms import hierarchical, ring
from hocket.errors import ChannelConflict, HocketError, OutOfRange, StaleChunk, UninitializedChunk
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Receive
from hocket.ir.text import parse_schedule
from tests import paper
from tests.reference import check

SRC = Path(__file__).parent.parent / "src"


# "The paper's Figure 3 (N=2, G=3) with instances=2: wrong results in 50 of 50 random schedules"


def test_figure_3_with_two_instances_is_right_in_50_random_orders() -> None:
    with Program(AllReduce((2, 3), chunks=6, inplace=True), instances=2) as p:
        paper.hierarchical_all_reduce(2, 3)
    check(p.compile(), 1000, seeds=range(50))


def test_figure_3_with_parallel_phases_and_instances_is_right() -> None:
    for parallel, instances in ((2, 1), (3, 1), (2, 2), (3, 2)):
        check(hierarchical.all_reduce(2, 3, parallel, instances).compile(), 100, seeds=range(10))


# "A stale reference, an overlong or negative index, an uninitialised chunk behind the first: accepted"


def test_stale_reference() -> None:
    with Program(AllReduce(2, inplace=True)):
        c = chunk(0, "in", 0)
        chunk(0, "in", 0).reduce(chunk(1, "in", 0))
        with pytest.raises(StaleChunk):
            c.copy(1, "in", 0)


@pytest.mark.parametrize(("index", "count"), [(4, 1), (3, 2), (0, 5), (-1, 1), (1 << 70, 1)])
def test_overlong_or_negative_index(index: int, count: int) -> None:
    with Program(AllReduce(2, chunks=4)), pytest.raises(OutOfRange):
        chunk(0, "in", index, count)


def test_uninitialised_chunk_behind_the_first() -> None:
    with Program(AllReduce(2, chunks=4)):
        chunk(0, "in", 0).copy(0, "out", 0)
        with pytest.raises(UninitializedChunk) as caught:
            chunk(0, "out", 0, 2)
        assert caught.value.index == 1
        chunk(0, "in", 0).copy(0, "sc", 0)
        with pytest.raises(UninitializedChunk):
            chunk(0, "sc", 0, 3)


# "In-place AllGather through the input, in-place ReduceScatter through the output, in-place AllToAll"


@pytest.mark.parametrize("through", ["in", "out"])
def test_inplace_all_gather_through_either_name(through: str) -> None:
    with Program(AllGather(3, inplace=True)) as p:
        for r in range(3):
            c = chunk(r, through, 0 if through == "in" else r)
            for step in (1, 2):
                c = c.copy((r + step) % 3, "out", r)
    check(p.compile(), 17, seeds=range(10))


@pytest.mark.parametrize("through", ["in", "out"])
def test_inplace_reduce_scatter_through_either_name(through: str) -> None:
    with Program(ReduceScatter(3, inplace=True)) as p:
        for r in range(3):
            total = chunk(r, through, r if through == "in" else 0)
            for step in (1, 2):
                total = total.reduce(chunk((r + step) % 3, "in", r))
    check(p.compile(), 17, seeds=range(10))


def test_inplace_all_to_all_through_scratch() -> None:
    with Program(AllToAll(3, inplace=True)) as p:
        for a, b in itertools.combinations(range(3), 2):
            kept = chunk(a, "in", b).copy(a, "sc", 0)
            chunk(b, "in", a).copy(a, "out", b)
            kept.copy(b, "out", a)
    check(p.compile(), 17, seeds=range(20))


def test_inplace_all_to_all_without_scratch_is_refused() -> None:
    with Program(AllToAll(2, inplace=True)):
        theirs = chunk(1, "in", 0)
        chunk(0, "in", 1).copy(1, "out", 0)
        with pytest.raises(StaleChunk):
            theirs.copy(0, "out", 1)


# "Deadlock by slots: an auto-scheduled 4-rank ring with 8 chunks at 2 slots, with 36 chunks at 8"


def long_ring(ranks: int, chunks: int) -> Program:
    """A ring without a word about scheduling, with any number of chunks."""
    with Program(AllReduce(ranks, chunks=chunks, inplace=True)) as p:
        for i in range(chunks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i)
    return p


@pytest.mark.parametrize(
    ("chunks", "slots"), [*((8, s) for s in range(1, 9)), *((36, s) for s in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 36))]
)
def test_four_rank_ring_with_many_chunks_and_few_slots(chunks: int, slots: int) -> None:
    schedule = long_ring(4, chunks).compile(slots=slots)
    assert schedule.slots <= slots
    check(schedule, 40, seeds=(None, 0, 1, 2))
    check(schedule, 40, seeds=(3,), slots=schedule.slots + 5)


# "A four-operation program that deadlocks at any depth, since two ends of one transfer get different channels"


def four_operations() -> Schedule:
    with Program(Custom(4, inputs=3, outputs=3, post=lambda r, i: None, inplace=True)) as p:
        chunk(1, "in", 2).reduce(chunk(2, "in", 2))
        chunk(2, "in", 1).reduce(chunk(3, "in", 1))
        chunk(2, "in", 2).copy(1, "in", 2)
        chunk(2, "in", 1).copy(1, "in", 1)
    return p.compile(slots=1)


def test_four_operations_that_deadlocked() -> None:
    schedule = four_operations()
    prove(schedule)
    blocks = [(r, block) for r, rank in enumerate(schedule.ranks) for block in rank.thread_blocks]
    sending = {(r, end.peer, end.channel) for r, block in blocks for end in block.sends}
    receiving = {(end.peer, r, end.channel) for r, block in blocks for end in block.receives}
    assert sending == receiving
    assert len(sending) == 2


# "Two thread blocks on one connection"


def test_two_thread_blocks_on_one_connection_are_refused() -> None:
    text = (
        'schedule "x"\ncollective broadcast(ranks=2, chunks=2, root=0)\nprotocol simple\nslots 2\n'
        "rank 0 scratch 0\n  block 0 >1.0\n    0: send in[0] -> >1.0\n  block 1 >1.0\n    0: send in[1] -> >1.0\n"
        "rank 1 scratch 0\n  block 0 <0.0\n    0: recv <0.0 -> out[0]\n    1: recv <0.0 -> out[1]\n"
    )
    with pytest.raises(ChannelConflict) as caught:
        parse_schedule(text)
    assert caught.value.thread_blocks == (0, 1)


def test_a_compiled_connection_has_one_thread_block_at_each_end() -> None:
    with Program(AllReduce(3, chunks=4, inplace=True)) as p:
        for ch, i in itertools.product(range(2), range(2)):
            c = chunk(0, "in", ch * 2 + i).reduce(chunk(1, "in", ch * 2 + i), ch=ch)
            c = c.reduce(chunk(2, "in", ch * 2 + i), ch=ch)
            c.copy(1, "in", ch=ch).copy(2, "in", ch=ch)
    schedule = p.compile()
    for rank in schedule.ranks:
        ends = [e for block in rank.thread_blocks for e in (*block.receives, *block.sends)]
        assert len(set(ends)) == len(ends)
    check(schedule, 17)


# "A remote reduce whose two locations differ: the sender's location is written as src"


def test_remote_reduce_between_different_places() -> None:
    with Program(Custom(2, inputs=4, outputs=1, post=lambda r, i: {(0, 3), (1, 1)} if r == 0 else None)) as p:
        chunk(1, "in", 1).copy(1, "sc", 2)
        total = chunk(0, "in", 3).reduce(chunk(1, "sc", 2))
        total.copy(0, "out", 0)
    schedule = p.compile()
    (step,) = [step for r, _, _, step in schedule.steps() if r == 0 and any(type(s) is Receive for s in step.srcs)]
    assert step.srcs[1] == Span(0, "in", 3)
    assert step.dsts == (Span(0, "in", 3), Span(0, "out", 0))


# "rrs when only part is overwritten later"


def test_no_rrs_when_only_part_is_overwritten() -> None:
    def post(rank: int, index: int) -> set[tuple[int, int]] | None:
        if rank == 1:
            return {(1, 2)} if index == 0 else {(0, 1), (1, 1)}
        return {(0, index), (1, index)} if rank == 2 else None

    with Program(Custom(3, inputs=3, outputs=2, post=post)) as p:
        both = chunk(1, "in", 0, 2).reduce(chunk(0, "in", 0, 2))
        both.copy(2, "out", 0)
        chunk(1, "in", 2).copy(1, "in", 0)
        chunk(1, "in", 0, 2).copy(1, "out", 0)
    opcodes = [step.opcode for _, _, _, step in p.compile().steps()]
    assert "rrcs" in opcodes
    assert "rrs" not in opcodes


# "rcs that compares only one side, for differing counts"


def test_no_rcs_when_counts_differ() -> None:
    with Program(Broadcast(3, chunks=3)) as p:
        chunk(0, "in", 0, 3).copy(0, "out", 0)
        chunk(0, "in", 0, 3).copy(1, "out", 0)
        chunk(1, "out", 0, 2).copy(2, "out", 0)
        chunk(1, "out", 2).copy(2, "out", 2)
    schedule = p.compile()
    assert "rcs" not in [step.opcode for _, _, _, step in schedule.steps()]
    check(schedule, 17)


# "The same program gives different XML in different runs"

DUMP = """
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, sccl, two_step
from hocket.ir.text import print_stage
programs = [ring.all_reduce(5, 2), all_pairs.all_reduce(4), hierarchical.all_reduce(2, 3, 2),
            two_step.all_to_all(2, 3), all_to_next.all_to_next(2, 3), sccl.all_gather()]
for program in programs:
    for instances in (1, 2):
        program.compile(instances=instances, observer=lambda name, before, after, s: print(name, print_stage(after)))
"""


def test_same_bytes_whatever_the_hash_seed() -> None:
    outputs = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SRC)}
        outputs.add(subprocess.run([sys.executable, "-c", DUMP], env=env, capture_output=True, check=True).stdout)
    (only,) = outputs
    assert only.count(b"schedule") >= 12


# "A second call of XML() fails"


def test_compiling_twice_gives_the_same() -> None:
    p = hierarchical.all_reduce(2, 2, 2)
    before = p.chunk_dag
    assert p.compile() == p.compile()
    assert p.compile(instances=3).digest() == p.compile(instances=3).digest()
    assert p.chunk_dag == before


# "More than 32 fused flows on an edge crash"


@pytest.mark.parametrize("flows", [33, 100])
def test_many_fused_flows_on_one_edge(flows: int) -> None:
    """Every flow crosses 0 -> 1, fused on rank 1, to a rank of its own."""
    ranks = flows + 3

    def post(rank: int, index: int) -> set[tuple[int, int]] | None:
        return {(0, rank - 3)} if rank >= 3 else None

    with Program(Custom(ranks, inputs=[flows] + [0] * (ranks - 1), outputs=1, post=post)) as p:
        for i in range(flows):
            chunk(0, "in", i).copy(1, "sc", i).copy(i + 3, "out", 0)
    schedule = p.compile(slots=2)
    assert prove(schedule).slots <= 2


# "An 1100-hop chain: RecursionError; 34 hops between two ranks: 8 s, doubling every two hops"


def test_chain_of_1100_hops() -> None:
    with Program(Custom(1101, inputs=[1] + [0] * 1100, outputs=1, post=lambda r, i: {(0, 0)} if r else None)) as p:
        c = chunk(0, "in", 0)
        for rank in range(1, 1101):
            c = c.copy(rank, "out", 0)
    assert sum(step.opcode == "rcs" for _, _, _, step in p.compile().steps()) == 1099


@pytest.mark.parametrize("hops", [34, 2000])
def test_many_hops_between_two_ranks(hops: int) -> None:
    with Program(Broadcast(2, root=0)) as p:
        c = chunk(0, "in", 0)
        for hop in range(hops):
            c = c.copy(1 - hop % 2, "sc", hop)
        chunk(0, "in", 0).copy(0, "out", 0)
        c.copy(1, "out", 0)
    check(p.compile(), 3, seeds=(0,))


def test_a_value_doubled_two_hundred_times_is_judged_without_being_written_out() -> None:
    """The sum counts an input about 2^200 times; a proof that expands sums would never end."""
    with Program(AllReduce(2, inplace=True)) as p:
        for _ in range(100):
            total = chunk(0, "in", 0).reduce(chunk(1, "in", 0))
            chunk(1, "in", 0).reduce(total)
    with pytest.raises(HocketError) as caught:
        p.compile()
    assert caught.value.code == "postcondition"
    assert len(str(caught.value)) < 2000


# "No limit (channels, steps, cnt) is checked"


@pytest.mark.parametrize(("ch", "fine"), [(0, True), (65535, True), (65536, False), (-1, False), (1 << 80, False)])
def test_limit_of_channels(ch: int, fine: bool) -> None:
    with Program(AllGather(2)):
        c = chunk(0, "in", 0)
        if fine:
            c.copy(1, "out", 0, ch=ch)
        else:
            with pytest.raises(OutOfRange):
                c.copy(1, "out", 0, ch=ch)


def test_limit_of_scratch() -> None:
    with Program(AllGather(2)):
        c = chunk(0, "in", 0)
        with pytest.raises(OutOfRange):
            c.copy(1, "sc", 1 << 24)
        with pytest.raises(OutOfRange):
            chunk(0, "sc", (1 << 24) - 1, 2)


def test_count_far_beyond_what_the_reference_runtimes_take() -> None:
    """Their limit is 71 chunks a step."""
    with Program(Broadcast(2, chunks=1000)) as p:
        chunk(0, "in", 0, 1000).copy(0, "out", 0)
        chunk(0, "in", 0, 1000).copy(1, "out", 0)
    check(p.compile(), 2000, seeds=(0,))


def test_more_steps_and_thread_blocks_than_the_reference_runtimes_take() -> None:
    """Theirs are 256 steps in a thread block and 216 thread blocks."""
    with Program(Broadcast(2, chunks=600)) as p:
        chunk(0, "in", 0, 600).copy(0, "out", 0)
        for i in range(300):
            chunk(0, "in", i).copy(1, "out", i, ch=0)
        for i in range(300, 600):
            chunk(0, "in", i).copy(1, "out", i, ch=i)
    schedule = p.compile()
    assert len(schedule.ranks[1].thread_blocks) == 301
    check(schedule, 600, seeds=(0,))


def test_instances_never_share_a_channel() -> None:
    with Program(AllReduce(2, chunks=2, inplace=True)) as p, parallelize(3):
        chunk(0, "in", 0, 2).reduce(chunk(1, "in", 0, 2), ch=1).copy(1, "in", ch=1)
    schedule = p.compile(instances=2)
    channels = sorted(block.sends[0].channel for block in schedule.ranks[1].thread_blocks if block.sends)
    assert channels == [6, 7, 8, 9, 10, 11]
    check(schedule, 17, seeds=range(5))


def test_library_ring_in_few_instances_still_uses_the_channels_it_names() -> None:
    schedule = ring.all_reduce(4, 2).compile(instances=2)
    channels = {e.channel for rank in schedule.ranks for block in rank.thread_blocks for e in block.sends}
    assert channels == {0, 1, 2, 3}
