"""Messages that lie in place: the form of such schedules, their text, and what the reference makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from hocket import AllReduce, Program, Schedule, chunk, prove
from hocket.errors import Deadlock, InvalidSchedule, PostconditionFailed, Race, TargetLimit, UninitializedChunk
from hocket.formats.msccl_xml import write
from hocket.ir.text import parse_schedule, print_schedule
from hocket.semantics import reference
from hocket.verify import both_orders
from tests.property import mutants

TWO_SHOT = """
schedule "two-shot"
collective allreduce(ranks=2, chunks=2, inplace)
protocol auto
slots 1
rank 0 scratch 0
  block 0 <1.0 >1.1
    0: r1l1-s1l1 <1.0@1.in[0] in[0] -> >1.1@1.in[0] in[0]
  block 1 >1.0
    0: send in[1] -> >1.0@0.in[1]
  block 2 <1.1
    0: recv <1.1@0.in[1] -> in[1]
rank 1 scratch 0
  block 0 <0.0 >0.1
    0: r1l1-s1l1 <0.0@0.in[1] in[1] -> >0.1@0.in[1] in[1]
  block 1 >0.0
    0: send in[0] -> >0.0@1.in[0]
  block 2 <0.1
    0: recv <0.1@1.in[0] -> in[0]
""".replace("r1l1-s1l1", "rrcs")


def test_a_sum_reads_and_stores_where_its_values_lie() -> None:
    schedule = parse_schedule(TWO_SHOT)
    assert parse_schedule(print_schedule(schedule)) == schedule
    assert schedule.in_place()
    plain = parse_schedule(TWO_SHOT.replace("@1.in[0]", "").replace("@0.in[1]", ""))
    assert not plain.in_place()
    assert plain.digest() != schedule.digest()
    inputs = [np.arange(10.0) + 100 * rank for rank in range(2)]
    for seed in range(20):
        for out in reference(schedule, inputs, seed=seed):
            assert np.array_equal(out, sum(inputs))


def test_what_lies_in_place_needs_no_slot() -> None:
    """Three messages are outstanding before the first is received."""
    lines = "\n".join(f"    {i}: send in[{i}] -> >1.0@0.in[{i}]" for i in range(3))
    wait = "  block 0 <0.0\n" + "\n".join(f"    {i}: recv <0.0@0.in[{i}] -> out[{i}]" for i in range(3))
    text = (
        'schedule "pulled"\ncollective broadcast(ranks=2, chunks=3, root=0)\nprotocol auto\nslots 1\nrank 0 scratch 0\n'
        f"  block 0 >1.0\n{lines}\n    3: copy in[0:+3] -> out[0:+3]\nrank 1 scratch 0\n{wait}\n"
    )
    schedule = parse_schedule(text)
    inputs = [np.arange(12.0), np.zeros(12)]
    for seed in range(10):
        for out in reference(schedule, inputs, seed=seed):
            assert np.array_equal(out, inputs[0])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("recv <1.1@0.in[1] -> in[1]", "recv <1.1@0.in[0] -> in[0]", "in one place for one end"),
        ("recv <1.1@0.in[1] -> in[1]", "recv <1.1 -> in[1]", "in one place for one end"),
        ("recv <1.1@0.in[1] -> in[1]", "recv <1.1@0.in[1] -> in[0]", "learns of a place"),
        ("recv <1.1@0.in[1] -> in[1]", "rrc <1.1@0.in[1] in[1] -> in[1]", "learns of a place"),
        ("send in[1] -> >1.0@0.in[1]", "send in[0] -> >1.0@0.in[1]", "offers a place"),
        ("send in[1] -> >1.0@0.in[1]", "r0l1-s1l1 in[1] -> >1.0@0.in[1] in[0]", "offers a place"),
        ("send in[1] -> >1.0@0.in[1]", "send in[1] -> >1.0@2.in[1]", "in no input or output of its two ranks"),
        ("send in[1] -> >1.0@0.in[1]", "send in[1] -> >1.0@0.sc[1]", "in no input or output of its two ranks"),
        ("send in[1] -> >1.0@0.in[1]", "send in[1] -> >1.0@0.out[1]", "in-place is memory of"),
        ("send in[1] -> >1.0@0.in[1]", "send in[1] -> >1.0@0.in[2]", "outside the 2 chunks"),
        ("send in[1] -> >1.0@0.in[1]", "send in[1] -> >1.0@0.in[0:+2]", "of one length"),
        ("block 1 >1.0\n", "block 1 >1.0@0.in[1]\n", "there is no connection"),
    ],
)
def test_what_is_not_of_the_form_is_refused(old: str, new: str, reason: str) -> None:
    assert old in TWO_SHOT
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(TWO_SHOT.replace(old, new))
    assert reason in str(caught.value)


def test_a_connection_is_of_one_kind() -> None:
    text = """
schedule "mixed"
collective broadcast(ranks=2, chunks=2, root=0)
protocol auto
slots 2
rank 0 scratch 0
  block 0 >1.0
    0: send in[0] -> >1.0
    1: send in[1] -> >1.0@0.in[1]
rank 1 scratch 0
  block 0 <0.0
    0: recv <0.0 -> out[0]
    1: recv <0.0@0.in[1] -> out[1]
"""
    with pytest.raises(InvalidSchedule, match="of several kinds"):
        parse_schedule(text)


# The proof --------------------------------------------------------------------------------------------------


def broadcast(body: str, chunks: int = 1, ranks: int = 2) -> Schedule:
    """A Broadcast from its ranks, thread blocks and steps."""
    collective = f"broadcast(ranks={ranks}, chunks={chunks}, root=0)"
    return parse_schedule(f'schedule "case"\ncollective {collective}\nprotocol auto\nslots 1\n{body}')


PUSHED = """
rank 0 scratch 0
  block 0 >1.0
    0: r0l1-s1l1 in[0] -> >1.0@1.out[0] out[0]
rank 1 scratch 1
  block 0 <0.0
    0: recv <0.0@1.out[0] -> out[0]
  block 1
    0: copy out[0] -> sc[0]  after 0.0
"""

PULLED = """
rank 0 scratch 0
  block 0
    0: copy in[0] -> out[0]
  block 1 >1.0
    0: send out[0] -> >1.0@0.out[0]  after 0.0
  block 2 <1.1
    0: recv <1.1 -> in[0]
    1: copy in[0] -> out[0]
rank 1 scratch 0
  block 0 <0.0 >0.1
    0: recv <0.0@0.out[0] -> out[0]
    1: send out[0] -> >0.1
"""
"""The root stores to what it has offered, once the reader has answered."""


def test_what_is_right_is_proven() -> None:
    assert prove(parse_schedule(TWO_SHOT)).slots == 1
    assert prove(broadcast(PUSHED)).slots == 1
    assert prove(broadcast(PULLED)).slots == 1


@pytest.mark.parametrize(
    ("text", "old", "new", "accesses"),
    [
        pytest.param(PUSHED, "  after 0.0", "", {(0, "writes"), (1, "reads")}, id="read before it is there"),
        pytest.param(
            PUSHED,
            "copy out[0] -> sc[0]  after 0.0",
            "copy sc[0] -> out[0]",
            {(0, "writes"), (1, "writes")},
            id="stored twice",
        ),
        pytest.param(PULLED, "  after 0.0", "", {(0, "writes"), (1, "reads")}, id="offered before it is stored"),
        pytest.param(
            PULLED, "recv <1.1 -> in[0]", "recv <1.1 -> out[0]", None, id="stored again once the reader has answered"
        ),
        pytest.param(
            PULLED,
            "    0: recv <1.1 -> in[0]\n    1: copy in[0] -> out[0]",
            "    0: copy in[0] -> out[0]  after 1.0\n    1: recv <1.1 -> in[0]",
            {(0, "writes"), (1, "reads")},
            id="stored again while it may be read",
        ),
    ],
)
def test_what_another_rank_does_to_memory_is_an_access(
    text: str, old: str, new: str, accesses: set[tuple[int, str]] | None
) -> None:
    assert old in text
    schedule = broadcast(text.replace(old, new))
    if accesses is None:
        prove(schedule)
        return
    with pytest.raises(Race) as caught:
        prove(schedule)
    race = caught.value
    assert {(race.first.rank, race.first_access), (race.second.rank, race.second_access)} == accesses
    for order in both_orders(schedule, race):
        assert mutants.shows(schedule, race, order)


def test_two_ranks_that_store_to_a_third_race() -> None:
    schedule = broadcast(
        """
rank 0 scratch 0
  block 0 >1.0
    0: r0l1-s1l1 in[0] -> >1.0 out[0]
  block 1 >2.0
    0: send in[0] -> >2.0@2.out[0]
rank 1 scratch 0
  block 0 <0.0 >2.0
    0: rcs <0.0 -> >2.0@2.out[0] out[0]
rank 2 scratch 0
  block 0 <0.0
    0: recv <0.0@2.out[0] -> out[0]
  block 1 <1.0
    0: recv <1.0@2.out[0] -> out[0]
""",
        ranks=3,
    )
    with pytest.raises(Race) as caught:
        prove(schedule)
    assert ({caught.value.first.rank, caught.value.second.rank}, caught.value.rank) == ({0, 1}, 2)


def test_values_are_followed_to_where_they_lie() -> None:
    wrong = """
rank 0 scratch 0
  block 0 >1.0
    0: send in[1] -> >1.0@0.in[1]
    1: copy in[0:+2] -> out[0:+2]
rank 1 scratch 0
  block 0 <0.0
    0: recv <0.0@0.in[1] -> out[0]
    1: copy out[0] -> out[1]
"""
    with pytest.raises(PostconditionFailed) as failed:
        prove(broadcast(wrong, chunks=2))
    assert (failed.value.rank, failed.value.index) == (1, 0)
    nothing = wrong.replace("in[1]", "out[1]").replace("    1: copy in[0:+2] -> out[0:+2]\n", "")
    with pytest.raises(UninitializedChunk) as empty:
        prove(broadcast(nothing, chunks=2))
    assert (empty.value.rank, empty.value.buffer, empty.value.index) == (0, "out", 1)


def test_messages_in_place_can_wait_for_each_other() -> None:
    stuck = """
schedule "stuck"
collective allreduce(ranks=2, chunks=2, inplace)
protocol auto
slots 1
rank 0 scratch 0
  block 0 <1.0 >1.0
    0: rrc <1.0@1.in[0] in[0] -> in[0]
    1: send in[1] -> >1.0@0.in[1]
rank 1 scratch 0
  block 0 <0.0 >0.0
    0: rrc <0.0@0.in[1] in[1] -> in[1]
    1: send in[0] -> >0.0@1.in[0]
"""
    with pytest.raises(Deadlock) as caught:
        prove(parse_schedule(stuck))
    assert {name.rank for name in caught.value.cycle} == {0, 1}


def test_a_race_names_the_lines_of_the_program() -> None:
    with Program(AllReduce(2, inplace=True)) as p:
        total = chunk(0, "in", 0).reduce(chunk(1, "in", 0))
        total.copy(1, "in", 0, storage="pull")
    (early,) = [mutant for kind, mutant in mutants.mutants(p.compile(storage="peer")) if kind == "wait removed"]
    with pytest.raises(Race, match=r"test_in_place\.py") as caught:
        prove(early)
    assert {caught.value.first.rank, caught.value.second.rank} == {0, 1}


def test_no_file_for_another_runtime_is_made_of_it() -> None:
    with pytest.raises(TargetLimit, match="compiled for storage 'fifo'"):
        write(parse_schedule(TWO_SHOT))
