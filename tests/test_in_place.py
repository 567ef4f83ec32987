"""Messages that lie in place: the form of such schedules, their text, and what the reference makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.errors import InvalidSchedule
from hocket.ir.text import parse_schedule, print_schedule
from hocket.semantics import reference

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
