"""A file is proven for the numbers of FIFO operations that occur in the calls it serves, and for no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Calls, Deadlock
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_legal import cut
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_operations import grains
from hocket.formats.msccl_targets import COUNT, FIFO_BYTES, SLOTS
from hocket.formats.msccl_xml import read, write
from hocket.ir.schedule import Schedule
from hocket.verify import prove
from tests.formats.test_xml import fused_ring
from tests.reference import check

NO = 'depid="-1" deps="-1" hasdep="0"'
KB = 1 << 10
MB = 1 << 20


def exchange(count: int, proto: str, sizes: str) -> str:
    """Two ranks that swap blocks of ``count`` chunks. Each sends all before it receives."""
    head = f'<algo name="x" proto="{proto}" nchannels="1" nchunksperloop="{2 * count}" ngpus="2" coll="alltoall"'
    lines = [f'{head} inplace="0" {sizes}>']
    for rank in range(2):
        mine, other = (f'srcbuf="i" srcoff="{r * count}" dstbuf="o" dstoff="{r * count}"' for r in (rank, 1 - rank))
        lines += [
            f'<gpu id="{rank}" i_chunks="{2 * count}" o_chunks="{2 * count}" s_chunks="0">',
            f'<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">',
            f'<step s="0" type="s" {other} cnt="{count}" {NO}/>',
            f'<step s="1" type="r" {other} cnt="{count}" {NO}/>',
            f'<step s="2" type="cpy" {mine} cnt="{count}" {NO}/>',
            "</tb>",
            "</gpu>",
        ]
    return "\n".join([*lines, "</algo>"])


def for_rccl(low: int, high: int) -> str:
    return f'outofplace="1" minBytes="{low}" maxBytes="{high}"'


def for_msccl(low: int, high: int) -> str:
    return f'minBytes="{low}" maxBytes="{high + 1}"'


@pytest.mark.parametrize(
    ("count", "proto", "sizes", "most"),
    [
        # More than 8 operations where one chunk more than half of what an operation carries is one operation.
        (9, "LL", for_msccl, 18 * 16 * KB),
        (9, "LL", for_rccl, 18 * 8 * KB),
        (16, "LL", for_rccl, 32 * 8 * KB),
        (17, "LL", for_rccl, 34 * (16 * KB // 3)),
        (9, "LL128", for_msccl, 18 * 288000),
        (9, "LL128", for_rccl, 18 * 25088),
        (3, "Simple", for_msccl, 6 * 1 * MB),
        (4, "Simple", for_rccl, 8 * 1 * MB),
        (5, "Simple", for_rccl, 10 * (2 * MB // 3)),
    ],
)
def test_what_deadlocks_for_large_calls_serves_small_ones(count: int, proto: str, sizes: object, most: int) -> None:
    """The operations of a step are as many as slots up to ``most`` bytes."""
    assert callable(sizes)
    check(read(exchange(count, proto, sizes(0, most))), 2 * count * 8)
    with pytest.raises(Deadlock, match=f"note: in calls of {most + 2 * count} "):
        read(exchange(count, proto, sizes(0, most + 2 * count)))


def test_it_is_said_for_which_calls_of_which_runtime() -> None:
    with pytest.raises(Deadlock) as caught:
        read(exchange(9, "LL", for_rccl(0, 1 * MB)))
    last = 1 * MB // 18 * 18
    assert caught.value.calls == (Calls("msccl", 18 * 16 * KB + 18, last), Calls("rccl", 18 * 8 * KB + 18, last))
    with pytest.raises(Deadlock, match="note: in calls of 6291462 to 8388606 bytes on msccl and rccl\n"):
        read(exchange(3, "Simple", for_rccl(0, 8 * MB)))
    with pytest.raises(Deadlock, match="note: in calls of 6291462 bytes or more on rccl\n"):
        read(exchange(3, "Simple", for_rccl(0, 0)))


def test_calls_of_one_range_are_named_once() -> None:
    """17 chunks are more than 8 operations for the grains 1 and 2, whose calls touch."""
    with pytest.raises(Deadlock) as caught:
        read(exchange(17, "LL", for_msccl(0, 64 * MB)))
    assert caught.value.calls == (Calls("msccl", 34 * (32 * KB // 3 + 1), 64 * MB // 34 * 34),)


def test_where_all_calls_deadlock_none_are_named() -> None:
    with pytest.raises(Deadlock) as caught:
        read(exchange(9, "LL", for_msccl(18 * 16 * KB + 1, 64 * MB)))
    assert caught.value.calls == ()


def test_a_small_call_is_a_few_operations_where_steps_are_long() -> None:
    """No operation carries more than COUNT chunks, so a step is never cut for the smallest calls."""
    read(exchange(COUNT, "Simple", for_msccl(0, 64)))


def test_a_file_of_no_runtime_is_judged_for_all() -> None:
    """RCCL demands outofplace, MSCCL no more chunks than nchunksperloop; RCCL's operations are the smaller ones."""
    text = exchange(9, "LL", for_msccl(0, 18 * 16 * KB))
    read(text)
    with pytest.raises(Deadlock) as caught:
        read(text.replace('i_chunks="18"', 'i_chunks="19"'))
    assert [calls.runtime for calls in caught.value.calls] == ["rccl"]


@given(
    st.sampled_from([(runtime, proto) for runtime in FIFO_BYTES for proto in SLOTS]),
    st.integers(1, 100),
    st.integers(0, 1 << 26),
    st.integers(0, 1 << 26),
    st.integers(0, 1 << 20),
)
def test_each_call_has_the_grain_that_the_runtimes_compute(
    of: tuple[str, str], loop: int, low: int, more: int, pick: int
) -> None:
    runtime, proto = of
    high = max(low + more, loop)
    size = min(max(low, 1) + pick, high) // loop * loop
    found = [
        grain.chunks
        for grain in grains(proto, loop, low, high, [runtime])
        if grain.calls[runtime].low <= size <= (grain.calls[runtime].high or size)
    ]
    if size >= max(low, 1):
        assert found == [max(1, min(COUNT, FIFO_BYTES[runtime][proto] // (size // loop)))]
    else:
        assert found == []


def meant(count: int) -> Schedule:
    return schedules(parse_document(exchange(count, "LL", "")))[0]


def deadlocks(schedule: Schedule, slots: int) -> bool:
    try:
        prove(replace(schedule, slots=slots))
    except Deadlock:
        return True
    return False


@pytest.mark.parametrize("count", [6, 12, 16])
@pytest.mark.parametrize("slots", [1, 2, 3, 8])
def test_what_deadlocks_does_so_in_finer_operations_too(count: int, slots: int) -> None:
    stuck = {grain: deadlocks(cut(meant(count), grain), slots) for grain in range(1, count + 1)}
    assert stuck[1] == (count > slots)
    for grain, waits in stuck.items():
        assert all(stuck[finer] for finer in range(1, grain) if grain % finer == 0) or not waits


def test_a_program_stays_fused_for_calls_whose_steps_are_not_cut() -> None:
    schedule = fused_ring(2).compile(opcodes=True)
    assert "rrcs" not in write(schedule)
    text = write(schedule, max_bytes=6 * MB)
    assert "rrcs" in text
    assert "rrcs" not in write(schedule, max_bytes=6 * MB + 6)
    check(read(text), 6 * 8)
