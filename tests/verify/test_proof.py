"""The proof of a schedule: what it accepts, with which bounds, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from hocket import AllReduce, Broadcast, Custom, Program, Schedule, chunk, prove
from hocket.algorithms import hierarchical, ring
from hocket.errors import (
    Deadlock,
    InvalidSchedule,
    PostconditionFailed,
    Race,
    UnevenSize,
    UninitializedChunk,
    UnmatchedTransfer,
)
from hocket.ir.schedule import Rank, Step, ThreadBlock
from hocket.ir.text import parse_schedule
from hocket.semantics import Machine, Stuck, reference
from tests.reference import check


def edit(schedule: Schedule, rank: int, block: int, change: Callable[[list[Step]], object]) -> Schedule:
    """The schedule with the steps of one thread block changed in place."""
    ranks = list(schedule.ranks)
    blocks = list(ranks[rank].thread_blocks)
    steps = list(blocks[block].steps)
    change(steps)
    blocks[block] = structs.replace(blocks[block], steps=tuple(steps))
    ranks[rank] = replace(ranks[rank], thread_blocks=tuple(blocks))
    return replace(schedule, ranks=tuple(ranks))


def parse(*lines: str, collective: str, slots: int = 2) -> Schedule:
    """A schedule from its ranks, thread blocks and steps."""
    head = ['schedule "case"', f"collective {collective}", "protocol simple", f"slots {slots}"]
    return parse_schedule("\n".join([*head, *lines]))


# Bounds -------------------------------------------------------------------------------------------------------


def test_a_proof_says_its_bounds() -> None:
    proof = prove(ring.all_reduce(4).compile())
    assert (proof.ranks, proof.slots, proof.steps) == (4, 2, 28)
    assert str(proof) == "proven for 4 ranks, 2 or more slots"
    assert str(prove(ring.all_reduce(4).compile(slots=1))) == "proven for 4 ranks, any number of slots"


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 1000, 10**17])
def test_the_least_number_of_slots_is_found(slots: int) -> None:
    """A fused ring needs two; more are never in the way, and fewer are told apart from none."""
    schedule = replace(ring.all_reduce(5).compile(slots=2), slots=slots)
    if slots == 1:
        with pytest.raises(Deadlock) as caught:
            prove(schedule)
        assert caught.value.slots == 1
    else:
        assert prove(schedule).slots == 2


def burst(n: int) -> list[str]:
    """Both ranks send n chunks before they receive any: it takes n slots."""
    ranks = []
    for rank in range(2):
        sends = [f"    {i}: send in[{i}] -> >{1 - rank}.0" for i in range(n)]
        receives = [f"    {n + i}: recv <{1 - rank}.0 -> out[{i}]" for i in range(n)]
        ranks += [f"rank {rank} scratch 0", f"  block 0 <{1 - rank}.0 >{1 - rank}.0", *sends, *receives]
    return ranks


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_as_many_slots_as_a_burst_is_long(n: int) -> None:
    post = ";".join(",".join(f"{1 - rank}.{i}" for i in range(n)) for rank in range(2))
    collective = f"custom(ranks=2, chunks=1, inputs={n}:{n}, outputs={n}:{n}, post={post})"
    for slots in (n, n + 1, 1000, 10**17):
        assert prove(parse(*burst(n), collective=collective, slots=slots)).slots == n
    if n > 1:
        with pytest.raises(Deadlock) as caught:
            prove(parse(*burst(n), collective=collective, slots=n - 1))
        assert len(caught.value.cycle) == 4


def test_a_deadlock_that_no_slots_cure_is_found_at_once() -> None:
    lines = []
    for rank in range(2):
        peer = 1 - rank
        lines += [f"rank {rank} scratch 0", f"  block 0 <{peer}.0 >{peer}.0"]
        lines += [f"    0: recv <{peer}.0 -> out[0]", f"    1: send in[0] -> >{peer}.0"]
    collective = "custom(ranks=2, chunks=1, inputs=1:1, outputs=1:1, post=1.0;0.0)"
    with pytest.raises(Deadlock) as caught:
        prove(parse(*lines, collective=collective, slots=10**17))
    assert caught.value.because == ("transfer", "order", "transfer", "order")


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_a_cycle_of_waits_is_a_cycle(ranks: int) -> None:
    schedule = replace(ring.all_reduce(ranks).compile(), slots=1)
    with pytest.raises(Deadlock) as caught:
        prove(schedule)
    assert caught.value.because == ("slot",) * ranks
    assert sorted(step.rank for step in caught.value.cycle) == list(range(ranks))
    machine = Machine[int](schedule, lambda r, i, t: 0, lambda *_: 0, slots=1)
    with pytest.raises(Stuck) as stuck:
        machine.run(random.Random(0))
    waiting = set(stuck.value.at)
    assert {(s.rank, s.thread_block, s.step) for s in caught.value.cycle} <= waiting


# Races --------------------------------------------------------------------------------------------------------


def relay(*, wait: bool) -> Schedule:
    """Thread block 1 of rank 0 uses again what thread block 0 has sent; only a round trip says that it may."""
    after = "  after 0.0" if wait else ""
    return parse(
        "rank 0 scratch 1",
        "  block 0 >1.0",
        "    0: send in[0] -> >1.0",
        "  block 1 <1.0",
        f"    0: recv <1.0 -> in[0]{after}",
        "rank 1 scratch 1",
        "  block 0 <0.0 >0.0",
        "    0: recv <0.0 -> sc[0]",
        "    1: send sc[0] -> >0.0",
        collective="custom(ranks=2, chunks=1, inputs=1:0, outputs=1:0, post=-;)",
    )


def test_a_round_trip_through_another_rank_is_an_order() -> None:
    prove(relay(wait=True))
    prove(relay(wait=False))


def test_a_transfer_back_that_does_not_depend_on_the_first_is_none() -> None:
    schedule = parse(
        "rank 0 scratch 1",
        "  block 0 >1.0",
        "    0: send in[0] -> >1.0",
        "  block 1 <1.0",
        "    0: recv <1.0 -> in[0]",
        "rank 1 scratch 1",
        "  block 0 <0.0",
        "    0: recv <0.0 -> sc[0]",
        "  block 1 >0.0",
        "    0: send in[0] -> >0.0",
        collective="custom(ranks=2, chunks=1, inputs=1:1, outputs=1:0, post=-;)",
    )
    with pytest.raises(Race) as caught:
        prove(schedule)
    race = caught.value
    assert (race.rank, race.buffer, race.index) == (0, "in", 0)
    assert {race.first_access, race.second_access} == {"reads", "writes"}


def test_a_full_connection_is_no_order() -> None:
    """With one slot the third send comes after the first receive, and so after what that rank did before it."""
    lines = (
        "rank 0 scratch 0",
        "  block 0 >1.0",
        "    0: send in[0] -> >1.0",
        "    1: send in[0] -> >1.0",
        "    2: copy in[0] -> out[0]",
        "rank 1 scratch 2",
        "  block 0 <0.0",
        "    0: recv <0.0 -> sc[0]",
        "    1: recv <0.0 -> sc[1]",
        "  block 1",
        "    0: copy in[0] -> sc[0]{}",
    )
    collective = "custom(ranks=2, chunks=1, inputs=1:1, outputs=1:1, post=0.0;-)"
    prove(parse(*(line.format("  after 0.0") for line in lines), collective=collective, slots=1))
    with pytest.raises(Race):
        prove(parse(*(line.format("") for line in lines), collective=collective, slots=1))


def test_two_reads_are_no_race() -> None:
    prove(
        parse(
            "rank 0 scratch 0",
            "  block 0",
            "    0: copy in[0] -> out[0]",
            "  block 1",
            "    0: copy in[0] -> out[1]",
            collective="custom(ranks=1, chunks=1, inputs=1, outputs=2, post=0.0,0.0)",
        )
    )


def test_two_writes_are_a_race_even_of_the_same_value() -> None:
    with pytest.raises(Race) as caught:
        prove(
            parse(
                "rank 0 scratch 0",
                "  block 0",
                "    0: copy in[0] -> out[0]",
                "  block 1",
                "    0: copy in[0] -> out[0]",
                collective="allreduce(ranks=1, chunks=1)",
            )
        )
    assert (caught.value.first_access, caught.value.second_access) == ("writes", "writes")


def test_spans_with_strides_race_where_they_meet() -> None:
    lines = (
        "rank 0 scratch 0",
        "  block 0",
        "    0: copy in[0:+2x2] -> out[0:+2x2]",
        "  block 1",
        "    0: copy in[1:+2x2] -> out[{}:+2{}]",
    )
    collective = "custom(ranks=1, chunks=1, inputs=4, outputs=4, post=0.0,-,-,-)"
    prove(parse(*(line.format(1, "x2") for line in lines), collective=collective))
    with pytest.raises(Race) as caught:
        prove(parse(*(line.format(1, "") for line in lines), collective=collective))
    assert caught.value.index == 2


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_a_wait_left_out_is_a_race_or_was_not_needed(shape: tuple[int, int]) -> None:
    """Most waits are all that stands between a program and a race; where one is not, other ranks keep the order,
    and the schedule without it is as right as the one with it."""
    schedule = hierarchical.all_reduce(*shape).compile()
    outcomes = []
    for r, b, s, step in schedule.steps():
        for wait in step.waits:
            fewer = structs.replace(step, waits=tuple(w for w in step.waits if w != wait))

            def leave_out(steps: list[Step], at: int = s, step: Step = fewer) -> None:
                steps[at] = step

            without = edit(schedule, r, b, leave_out)
            try:
                prove(without)
            except Race:
                outcomes.append("race")
            else:
                outcomes.append("accepted")
                check(without, 100, seeds=range(20))
    assert outcomes.count("race") > outcomes.count("accepted")


# The postcondition --------------------------------------------------------------------------------------------


def test_a_missing_step_is_missed() -> None:
    schedule = ring.all_reduce(3).compile()
    with pytest.raises(UnmatchedTransfer) as caught:
        prove(edit(schedule, 0, 0, lambda steps: steps.pop()))
    assert (caught.value.sends, caught.value.receives) == (5 - 1, 5 - 2)


def test_an_output_that_is_never_written() -> None:
    with pytest.raises(PostconditionFailed) as caught:
        prove(Schedule("empty", AllReduce(1), "simple", 1, (Rank(0, (ThreadBlock((), (), ()),)),)))
    assert caught.value.holds == "nothing"
    assert caught.value.untouched


def test_an_empty_schedule_proves_what_holds_from_the_start() -> None:
    empty = Schedule("empty", AllReduce(1, inplace=True), "simple", 1, (Rank(0, ()),))
    assert prove(empty).steps == 0


def test_in_the_postcondition_an_input_counts_as_often_as_it_is_added() -> None:
    def twice(steps: list[Step]) -> None:
        steps.append(Step(steps[0].srcs, steps[0].dsts))

    schedule = parse(
        "rank 0 scratch 0",
        "  block 0",
        "    0: reduce in[0] in[1] -> in[0]",
        collective="custom(ranks=1, chunks=1, inputs=2, outputs=1, post=0.0+0.1, inplace)",
    )
    prove(schedule)
    with pytest.raises(PostconditionFailed) as caught:
        prove(edit(schedule, 0, 0, twice))
    assert caught.value.twice == ("rank 0 in[1]",)
    assert caught.value.holds == "rank 0 in[0] + 2 x rank 0 in[1]"


def test_what_is_read_must_be_there() -> None:
    with pytest.raises(UninitializedChunk) as caught:
        prove(
            parse(
                "rank 0 scratch 3",
                "  block 0",
                "    0: copy in[0] -> sc[0]",
                "    1: copy sc[0:+2x2] -> out[0:+2]",
                collective="custom(ranks=1, chunks=1, inputs=1, outputs=2, post=0.0,-)",
            )
        )
    assert (caught.value.buffer, caught.value.index) == ("sc", 2)


def test_the_general_form_is_proven_too() -> None:
    """Two received values and a local one, summed in one pass and handed to three places."""
    schedule = parse(
        "rank 0 scratch 1",
        "  block 0 <1.0 <2.0 >1.0 >2.0",
        "    0: r2l1-s2l2 <1.0 <2.0 in[0] -> >1.0 >2.0 in[0] sc[0]",
        "rank 1 scratch 0",
        "  block 0 <0.0 >0.0",
        "    0: send in[0] -> >0.0",
        "    1: recv <0.0 -> in[0]",
        "rank 2 scratch 0",
        "  block 0 <0.0 >0.0",
        "    0: send in[0] -> >0.0",
        "    1: recv <0.0 -> in[0]",
        collective="allreduce(ranks=3, chunks=1, inplace)",
    )
    assert prove(schedule).slots == 1


def test_counts_of_a_transfer_agree() -> None:
    with pytest.raises(InvalidSchedule, match="2 chunks where rank 0 sends 1"):
        prove(
            parse(
                "rank 0 scratch 0",
                "  block 0 >1.0",
                "    0: send in[0] -> >1.0",
                "rank 1 scratch 2",
                "  block 0 <0.0",
                "    0: recv <0.0 -> sc[0:+2]",
                collective="custom(ranks=2, chunks=1, inputs=1:0, outputs=0:0, post=;)",
            )
        )


# Uneven sizes -------------------------------------------------------------------------------------------------


def test_a_value_through_a_shorter_place_is_recorded_with_its_line() -> None:
    with Program(Broadcast(2, chunks=3)) as p:
        chunk(0, "in", 0, 3).copy(0, "out", 0)
        first = chunk(0, "in", 0)
        first.copy(1, "out", 2).copy(1, "out", 0)
        chunk(0, "in", 1, 2).copy(1, "out", 1)
    (narrowing,) = p.compile().narrowings
    assert (narrowing.value, narrowing.location) == (0, 2)
    assert narrowing.where is not None
    assert narrowing.where.resolve().file == __file__


def test_scratch_and_longer_places_narrow_nothing() -> None:
    with Program(Broadcast(2, chunks=3)) as p:
        chunk(0, "in", 0, 3).copy(0, "out", 0)
        chunk(0, "in", 0).copy(1, "sc", 2).copy(1, "out", 0)
        chunk(0, "in", 2).copy(1, "out", 1).copy(1, "out", 2)
        chunk(0, "in", 1).copy(1, "out", 1)
    assert p.compile().narrowings == ()


def test_chunks_of_a_custom_collective_have_one_size() -> None:
    with Program(Custom(1, inputs=2, outputs=2, post=lambda r, i: {(0, 1 - i)})) as p:
        chunk(0, "in", 0).copy(0, "out", 1)
        chunk(0, "in", 1).copy(0, "out", 0)
    assert p.compile().narrowings == ()
    assert p.compile(instances=3).narrowings == ()


def through_a_shorter_chunk() -> Program:
    """in[0] is summed in out[1], which is shorter where two chunks do not divide a buffer evenly."""
    with Program(AllReduce(2, chunks=2)) as p:
        total = chunk(0, "in", 0).copy(0, "out", 1).reduce(chunk(1, "in", 0))
        for rank in range(2):
            total.copy(rank, "out", 0)
        total = chunk(0, "in", 1).copy(0, "out", 1).reduce(chunk(1, "in", 1))
        total.copy(1, "out", 1)
    return p


def test_a_schedule_owns_up_to_the_sizes_it_cannot_run() -> None:
    schedule = through_a_shorter_chunk().compile()
    assert [(n.value, n.location) for n in schedule.narrowings] == [(0, 1)]
    assert prove(schedule).narrowings == schedule.narrowings
    with pytest.raises(InvalidSchedule, match="narrow 0 -> 1"):
        prove(replace(schedule, narrowings=()))


def test_the_reference_refuses_the_sizes_that_a_communicator_refuses() -> None:
    schedule = through_a_shorter_chunk().compile()
    even, uneven = ([np.ones(n) for _ in range(2)] for n in (32, 20))
    assert all((out == 2).all() for out in reference(schedule, even))
    with pytest.raises(UnevenSize):
        reference(schedule, uneven)


def test_a_wrong_program_is_refuted_once_in_its_own_terms() -> None:
    with Program(AllReduce(2), name="half") as program:
        chunk(0, "in", 0).copy(0, "out", 0)
    with pytest.raises(PostconditionFailed, match=r"in\[0\] copied into") as caught:
        program.compile()
    assert caught.value.__context__ is None
