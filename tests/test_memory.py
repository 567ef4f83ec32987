"""A rank's part with its input and output apart, and its last stores: golden text, and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hocket import AllGather, AllReduce, Broadcast, Collective, ReduceScatter, Schedule
from hocket.algorithms import all_pairs, direct, ring, tree
from hocket.ir.chunk_dag import Span
from hocket.ir.memory import apart, last_pushes, last_stores, lasting
from hocket.ir.schedule import Rank, Receive, Send, Step, ThreadBlock, Wait
from hocket.ir.text import print_schedule


def shown(schedule: Schedule) -> str:
    """The ranks' parts apart, without the lines before the first."""
    parts = []
    for rank, part in enumerate(schedule.ranks):
        has_alias = schedule.collective.alias(rank) is not None
        found = apart(schedule.collective, rank, part) if has_alias else part
        assert found is not None
        parts.append(found)
    moved = replace(schedule, collective=schedule.collective.placed(False), ranks=tuple(parts))
    return print_schedule(moved, locations=False).partition("rank 0")[2]


def test_ring() -> None:
    assert (
        shown(ring.all_reduce(2).compile())
        == """ scratch 0
  block 0 <1.0 >1.0
    0: send in[1] -> >1.0
    1: rrcs <1.0 in[0] -> >1.0 out[0]
    2: recv <1.0 -> out[1]
rank 1 scratch 0
  block 0 <0.0 >0.0
    0: send in[0] -> >0.0
    1: rrcs <0.0 in[1] -> >0.0 out[1]
    2: recv <0.0 -> out[0]
"""
    )


def test_a_block_of_the_input_is_the_output() -> None:
    assert (
        shown(ring.reduce_scatter(2).compile())
        == """ scratch 0
  block 0 >1.0
    0: send in[1] -> >1.0
  block 1 <1.0
    0: rrc <1.0 in[0] -> out[0]
rank 1 scratch 0
  block 0 >0.0
    0: send in[0] -> >0.0
  block 1 <0.0
    0: rrc <0.0 in[1] -> out[0]
"""
    )


def test_what_is_not_written_is_copied_by_what_reads_it() -> None:
    assert (
        shown(tree.broadcast(2, 0).compile())
        == """ scratch 0
  block 0 >1.0
    0: r0l1-s1l1 in[0] -> >1.0 out[0]
rank 1 scratch 0
  block 0 <0.0
    0: recv <0.0 -> out[0]
"""
    )


def test_what_was_written_is_read_from_the_output() -> None:
    text = shown(all_pairs.all_reduce(3).compile(opcodes=True))
    rank = text.partition("rank 1")[0]
    assert "-> out[0]" in rank
    assert "send out[0] -> >1.0" in rank
    assert "send in[1] -> >1.0" in rank
    assert "-> in[" not in text


def part(*blocks: tuple[Step, ...]) -> Rank:
    ends = [{end for step in steps for end in (*step.srcs, *step.dsts)} for steps in blocks]
    return Rank(
        0,
        tuple(
            ThreadBlock(
                tuple(end for end in used if isinstance(end, Receive)),
                tuple(end for end in used if isinstance(end, Send)),
                steps,
            )
            for used, steps in zip(ends, blocks, strict=True)
        ),
    )


X = [Span(0, "in", i) for i in range(4)]
BOTH = Span(0, "in", 0, 2)
RECEIVE, SEND = Receive(1, 0), Send(1, 0)


@pytest.mark.parametrize(
    ("collective", "blocks"),
    [
        pytest.param(
            AllReduce(2, chunks=2, inplace=True),
            [(Step((RECEIVE,), (X[0],)), Step((BOTH,), (SEND,)))],
            id="reads both kinds",
        ),
        pytest.param(ReduceScatter(2, inplace=True), [(Step((RECEIVE,), (X[1],)),)], id="writes to what is no output"),
        pytest.param(
            AllReduce(2, inplace=True),
            [(Step((RECEIVE,), (X[0],)),), (Step((X[0],), (SEND,)),)],
            id="a write that nothing here orders with a read",
        ),
        pytest.param(
            AllReduce(2, inplace=True),
            [(Step((X[0],), (SEND,)),), (Step((RECEIVE,), (X[0],)),)],
            id="a read that nothing here orders with a write",
        ),
        pytest.param(
            AllReduce(2, inplace=True),
            [(Step((X[0],), (SEND,), (Wait(1, 0),)),), (Step((RECEIVE,), (X[0],), (Wait(0, 0),)),)],
            id="deadlock",
        ),
        pytest.param(
            AllGather(2, inplace=True),
            [(Step((Span(0, "out", 1),), (SEND,)),)],
            id="reads what nobody wrote",
        ),
    ],
)
def test_what_cannot_be_apart(collective: Collective, blocks: list[tuple[Step, ...]]) -> None:
    assert apart(collective, 0, part(*blocks)) is None


def test_waits_order() -> None:
    """A read after a write on another thread block, of which a third step tells it."""
    blocks = [
        (Step((RECEIVE,), (X[0],)),),
        (Step((X[1],), (X[2],), (Wait(0, 0),)),),
        (Step((X[0],), (SEND,), (Wait(1, 0),)),),
    ]
    found = apart(AllReduce(2, chunks=4, inplace=True), 0, part(*blocks))
    assert found is not None
    assert [str(step) for block in found.thread_blocks for step in block.steps] == [
        "recv <1.0 -> out[0]",
        "copy in[1] -> out[2]",
        "send out[0] -> >1.0",
        "copy in[1] -> out[1]",
        "copy in[3] -> out[3]",
    ]


def test_what_is_sent_twice_is_copied_once() -> None:
    """What is not sent, or only together with what is copied already, is copied by itself."""
    steps = (Step((X[1],), (SEND,)), Step((BOTH,), (Send(1, 1),)))
    found = apart(Broadcast(2, chunks=3, inplace=True), 0, part(steps))
    assert found is not None
    assert [str(step) for block in found.thread_blocks for step in block.steps] == [
        "r0l1-s1l1 in[1] -> >1.0 out[1]",
        "send in[0:+2] -> >1.1",
        "copy in[0] -> out[0]",
        "copy in[2] -> out[2]",
    ]


def test_copies_are_runs() -> None:
    found = apart(Broadcast(2, chunks=5, inplace=True), 0, part((Step((RECEIVE,), (X[2],)),)))
    assert found is not None
    assert [str(step) for step in found.thread_blocks[-1].steps] == [
        "copy in[0:+2] -> out[0:+2]",
        "copy in[3:+2] -> out[3:+2]",
    ]


def marked(schedule: Schedule, rank: int, in_two: bool) -> str:
    """The steps of a rank, what they store for the last time in brackets."""
    found = apart(schedule.collective, rank, schedule.ranks[rank]) if in_two else schedule.ranks[rank]
    assert found is not None
    last, lines = last_stores(found), []
    for b, block in enumerate(found.thread_blocks):
        for s, step in enumerate(block.steps):
            targets = [f"({target})" if (b, s, d) in last else str(target) for d, target in enumerate(step.dsts)]
            lines.append(f"{b}.{s}: {' '.join(map(str, step.srcs))} -> {' '.join(targets)}")
    return "\n".join(lines)


def test_last_stores_apart() -> None:
    assert (
        marked(ring.all_reduce(3).compile(), 0, True)
        == """0.0: in[2] -> >1.0
0.1: <2.0 in[1] -> >1.0
0.2: <2.0 in[0] -> >1.0 (out[0])
0.3: <2.0 -> >1.0 (out[2])
0.4: <2.0 -> (out[1])"""
    )


def test_what_is_read_as_well_is_no_last_store() -> None:
    """In place every chunk was read before; an own block is read again to be sent; scratch is read again."""
    assert "(" not in marked(ring.all_reduce(3).compile(), 0, False)
    assert (
        marked(ring.all_gather(2).compile(opcodes=True), 0, False)
        == """0.0: in[0] -> out[0]
0.1: out[0] -> >1.0
1.0: <1.0 -> (out[1])"""
    )
    assert marked(ring.all_gather(2).compile(), 0, False).startswith("0.0: in[0] -> >1.0 (out[0])")
    assert "(sc" not in marked(all_pairs.all_reduce(3).compile(), 0, True)


def test_what_is_written_twice_is_no_last_store() -> None:
    steps = Step((X[0],), (X[1],)), Step((RECEIVE,), (Span(0, "in", 1, 2),)), Step((RECEIVE,), (X[3],))
    assert last_stores(part(steps)) == {(0, 2, 0)}


@pytest.mark.parametrize("inplace", [True, False])
def test_a_pushed_result_is_the_last_access_to_its_chunks_where_nothing_is_read_there(inplace: bool) -> None:
    schedule = direct.all_reduce(3, inplace=inplace).compile(storage="peer")
    for rank in range(3):
        pushes = {
            (b, s, d)
            for r, b, s, step in schedule.steps()
            for d, target in enumerate(step.dsts)
            if r == rank and isinstance(target, Send) and target.pushes
        }
        assert len(pushes) == 2
        assert last_pushes(schedule.ranks)[rank] == (frozenset() if inplace else pushes)


SEND, RECEIVE = Send(1, 0), Receive(1, 0)
IN, OUT, SCRATCH = (Span(0, buffer, 0) for buffer in ("in", "out", "sc"))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([((IN,), (SEND,))], {SEND}),
        ([((IN,), (SEND, OUT))], {SEND}),
        ([((IN,), (OUT,)), ((OUT,), (SEND,))], {SEND}),
        ([((RECEIVE,), (OUT,))], {RECEIVE}),
        ([((RECEIVE,), (SCRATCH,)), ((SCRATCH, IN), (OUT,))], {RECEIVE}),
        ([((RECEIVE,), (SEND, OUT))], {SEND, RECEIVE}),
        ([((IN,), (SEND,)), ((OUT,), (IN,))], set()),
        ([((IN,), (OUT,)), ((OUT,), (SEND,)), ((IN,), (OUT,))], set()),
        ([((RECEIVE,), (OUT,)), ((IN,), (OUT,))], set()),
        ([((RECEIVE,), (IN,))], set()),
        ([((RECEIVE, IN), (OUT,))], set()),
        ([((OUT, IN), (SEND,))], set()),
        ([((IN,), (SEND,)), ((Span(0, "in", 1),), (SEND,))], set()),
        ([((Span(0, "in", 0, 2),), (SEND,))], set()),
    ],
    ids=[
        *("sent", "sent and stored", "stored, then sent", "received", "received, then read", "handed on"),
        *("sent, then overwritten", "stored twice and sent", "received, then overwritten", "received over the input"),
        *("summed", "a sum sent", "two messages", "two chunks"),
    ],
)
def test_messages_that_last(steps: list[tuple[tuple[Span, ...], tuple[Span, ...]]], found: set[Send | Receive]) -> None:
    block = ThreadBlock((RECEIVE,), (SEND,), tuple(Step(srcs, dsts) for srcs, dsts in steps))
    assert lasting(AllReduce(2, 2), 0, Rank(1, (block,))).keys() == found


def test_where_messages_lie() -> None:
    """Chunks of one position are as long on all ranks; those of scratch are never shorter."""
    steps = Step((Span(0, "in", 1),), (SEND,)), Step((RECEIVE,), (SCRATCH,))
    part = Rank(1, (ThreadBlock((RECEIVE,), (SEND,), steps),))
    assert lasting(AllGather(2, 2), 0, part) == {SEND: 1, RECEIVE: None}


def test_in_place_messages_are_not_received_over_what_a_rank_began_with() -> None:
    """An AllReduce gets back over its input; an AllGather gets the blocks of others, and sends its own."""
    for program, expected in ((ring.all_reduce(2), False), (direct.all_gather(2), True)):
        schedule = program.compile()
        found = lasting(schedule.collective, 0, schedule.ranks[0])
        assert any(isinstance(end, Receive) for end in found) == expected, program.name
    assert Send(1, 0) in found
