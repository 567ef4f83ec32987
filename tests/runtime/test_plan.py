"""Lowering to a plan, and the geometry that native code and the reference must agree on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import AllReduce, Custom, Program, _native, chunk, prove
from hocket.algorithms import all_pairs, direct, hierarchical, knomial, ring, tree, two_level, two_step
from hocket.errors import Location, UnevenSize
from hocket.ir.chunk_dag import Span
from hocket.ir.geometry import check_size, chunk_length
from hocket.ir.messages import MOST_READERS
from hocket.ir.order import in_order, pace
from hocket.ir.schedule import Narrowing, Rank, Receive, Schedule, Send, Step, ThreadBlock, Wait
from hocket.ir.text import parse_schedule
from hocket.runtime import arena, segments
from hocket.runtime.plan import lower
from hocket.tuning import NAMED, Call, choose, default_program, zero_copy_program

SIZES = st.integers(0, 3000)
ITEMSIZES = st.sampled_from((4, 8))
CHUNKS = st.integers(1, 17)
TILES = st.sampled_from((64, 128, 4096))
SLOTS, DIRECT, BATCHED = 0, 3, 4  # where messages lie (Storage in native/core/plan.h)


@given(n=SIZES, itemsize=ITEMSIZES, chunks=CHUNKS, tile=TILES, units=st.integers(1, 3))
def test_pieces_cut_each_chunk_of_the_reference_exactly_once(
    n: int, itemsize: int, chunks: int, tile: int, units: int
) -> None:
    q = chunk_length(chunks, n, itemsize) if n else 0
    cut = _native.cut(n, itemsize, chunks, 1, 0, tile)
    assert cut.chunk == q * itemsize
    assert cut.tiles == max(1, -(-cut.chunk // tile))
    touched = np.zeros(units * n * itemsize, np.uint8)
    for index in range(units * chunks):
        unit, position = divmod(index, chunks)
        low = unit * n + min(position * q, n)
        high = unit * n + min((position + 1) * q, n)
        at = low * itemsize
        for t in range(cut.tiles):
            # However a span reaches the chunk: directly, or `skip` chunks after its first.
            piece = _native.piece(n, itemsize, chunks, tile, unit, position, 0, t)
            skipped = _native.piece(n, itemsize, chunks, tile, 0, 0, index, t)
            assert (skipped.offset, skipped.bytes) == (piece.offset, piece.bytes)
            assert piece.bytes <= tile
            assert piece.offset == at
            at += piece.bytes
            touched[piece.offset : at] += 1
        assert at == high * itemsize
    assert (touched == 1).all()


@pytest.mark.parametrize(("n", "tile", "found"), [(0, 1 << 28, 64), (1000, 1 << 28, 4096), (1000, 2048, 2048)])
def test_a_given_tile_is_no_longer_than_a_chunk_needs(n: int, tile: int, found: int) -> None:
    assert _native.cut(n, 4, 1, 1, 0, tile).tile == found


@given(n=st.integers(0, 1 << 33), itemsize=ITEMSIZES, chunks=CHUNKS, widest=st.integers(1, 5000))
def test_a_chosen_tile_is_a_power_of_two_and_keeps_slots_small(n: int, itemsize: int, chunks: int, widest: int) -> None:
    cut = _native.cut(n, itemsize, chunks, widest, 65536, 0)
    tile = cut.tile
    assert tile >= 64
    assert tile & (tile - 1) == 0
    assert tile * widest <= max(65536, 64 * widest)
    assert cut.tiles * tile >= cut.chunk
    assert tile == 64 or tile < 2 * cut.chunk


@given(n=st.integers(1, 1 << 30), work=st.integers(1, 100), late=st.integers(0, 100))
def test_tiles_are_smaller_where_ranks_wait_for_the_first(n: int, work: int, late: int) -> None:
    def tile(late: int) -> int:
        return _native.cut(n, 4, 1, 1, 1 << 18, 0, work, work + late).tile

    assert tile(late + 1) <= tile(late) <= tile(0) == _native.cut(n, 4, 1, 1, 1 << 18, 0).tile
    assert tile(-1) == tile(0)  # who has more to do than the longest chain does not wait


def test_a_chosen_tile_makes_a_call_short() -> None:
    """The tile of a broadcast on two ranks, of those possible, is the one that the model in interpreter.h says."""
    step, work, depth = 16 << 10, 2, 4
    for length in (1 << 14, 1 << 18, 1 << 20, 1 << 24):
        tiles = [1 << k for k in range(6, 19)]
        times = {tile: length / tile * work * (tile + step) + (depth - work) * tile for tile in tiles if tile <= length}
        cut = _native.cut(length, 1, 1, 1, 1 << 18, 0, work, depth)
        assert cut.tile == min(times, key=lambda tile: times[tile])


def paced(schedule: Schedule) -> tuple[int, int]:
    return pace(schedule, in_order(schedule))


def test_pace() -> None:
    """Operands of the busiest rank and of the longest chain. A ring keeps all ranks busy."""
    assert [paced(ring.all_reduce(p).compile()) for p in (2, 3, 4, 8)] == [(6 * p - 4, 6 * p - 4) for p in (2, 3, 4, 8)]
    assert [paced(tree.broadcast(p, 0).compile()) for p in (1, 2, 4)] == [(1, 1), (2, 4), (3, 8)]


def test_pace_of_a_deadlock() -> None:
    """What can happen before it counts."""
    ends = [Send(1, 0), Receive(1, 0)], [Send(0, 0), Receive(0, 0)]
    ranks = []
    for rank, (send, receive) in enumerate(ends):
        place = Span(rank, "in", 0)
        steps = Step((place,), (send,)), Step((receive,), (place,)), Step((receive,), (place,))
        ranks.append(Rank(0, (ThreadBlock((receive,), (send,), steps),)))  # type: ignore[arg-type]
    assert paced(Schedule("late", AllReduce(2, inplace=True), "simple", 1, tuple(ranks))) == (4, 4)


@pytest.mark.parametrize(
    "schedule",
    [
        ring.all_reduce(3, channels=2, instances=2).compile(),
        ring.all_gather(4).compile(),
        all_pairs.all_reduce(4).compile(),
        all_pairs.one_shot_all_reduce(3).compile(),
        direct.all_to_all(3).compile(),
        direct.all_reduce(3).compile(storage="peer"),
        direct.broadcast(4, 1).compile(storage="peer"),
        hierarchical.all_reduce(2, 3, parallel=2).compile(),
        two_step.all_to_all(2, 2).compile(),
    ],
    ids=lambda schedule: schedule.name,
)
def test_native_code_accepts_every_plan(schedule: Schedule) -> None:
    size = schedule.collective.size

    def member_of(rank: int) -> _native.Member:
        nobody = [-1] * size
        return _native.Member(
            rank, size, segments.create(size, ""), nobody, nobody, arena.own(), [], False, False, 0, 0, 1.0
        )

    for rank in range(size):
        plan = lower(schedule, rank)
        member = member_of(rank)
        member.plan(plan.words, plan.digest, plan.name)
        assert lower(schedule, rank) == plan
        with pytest.raises(ValueError, match="tables do not fill it"):
            member.plan(plan.words[:-4], plan.digest, plan.name)
        other = member_of((rank + 1) % size)
        with pytest.raises(ValueError, match="another rank"):
            other.plan(plan.words, plan.digest, plan.name)


def test_sizes_that_would_cut_a_value_are_refused_with_the_line() -> None:
    line = Location(__file__, 1, 0, 3)
    schedule = Schedule("narrow", AllReduce(1, chunks=3), "simple", 1, (Rank(0, ()),), (Narrowing(0, 2, line),))
    for n in (0, 48, 96):
        check_size(schedule.name, 3, schedule.narrowings, n, 4)
    with pytest.raises(UnevenSize) as error:
        check_size(schedule.name, 3, schedule.narrowings, 40, 4)
    assert error.value.n == 40
    assert "test_plan.py:1:1" in str(error.value)


def tables(schedule: Schedule, rank: int, nodes: tuple[int, ...] = ()) -> dict[str, list[dict[str, int]]]:
    """The records of a plan, by kind."""
    words = np.frombuffer(lower(schedule, rank, nodes).words, np.uint32).tolist()
    found: dict[str, list[dict[str, int]]] = {}
    for kind, fields in _native.PLAN_LAYOUT.items():
        count = 1 if kind == "header" else found["header"][0][f"{kind}s"]
        found[kind] = [dict(zip(fields, words[i * len(fields) :], strict=False)) for i in range(count)]
        words = words[count * len(fields) :]
    assert not words
    return found


def eager(program: Program, *, opcodes: bool = False) -> list[tuple[int, list[int]]]:
    """Of each rank's plan: chunks of the eager area, and where the messages of its connections begin."""
    schedule = program.compile(opcodes=opcodes)
    plans = [tables(schedule, rank) for rank in range(schedule.collective.size)]
    return [(plan["header"][0]["eager"], [c["place"] for c in plan["connection"]]) for plan in plans]


def test_direct_messages() -> None:
    """Between nodes, messages that can lie in the buffers of both ranks do, and slots need no room for them."""
    nodes = 0, 0, 1, 1
    for program, remote, direct_messages, widest, fan in (
        (direct.all_to_all(4), 4, 4, 1, 2),
        (two_level.all_gather(nodes), 2, 2, 1, 4),
        (two_level.all_reduce(nodes), 4, 0, 2, 12),
    ):
        for rank in range(4):
            plan = tables(program.compile(), rank, nodes)
            between = [c for c in plan["connection"] if nodes[c["peer"]] != nodes[rank]]
            assert len(between) == remote, program.name
            assert sum(c["storage"] == BATCHED for c in plan["connection"]) == direct_messages, program.name
            assert all(c["width"] == 1 for c in between if c["storage"] == BATCHED)
            assert (plan["header"][0]["widest"], plan["header"][0]["fan"]) == (widest, fan), program.name
    alone = tables(direct.all_to_all(4).compile(), 0, (0, 1, 2, 3))
    assert alone["header"][0]["widest"] == 0
    assert {c["storage"] for c in tables(direct.all_to_all(4).compile(), 0, (0, 0, 0, 0))["connection"]} == {SLOTS}


@pytest.mark.parametrize(
    ("sent", "received", "direct"),
    [
        (Span(0, "in", 1), Span(1, "out", 1), True),
        (Span(0, "in", 1), Span(1, "sc", 0), True),
        (Span(0, "in", 1), Span(1, "out", 0), False),
        (Span(0, "sc", 0), Span(1, "sc", 0), True),
        (Span(0, "sc", 0), Span(1, "out", 1), False),
    ],
)
def test_direct_messages_are_no_longer_than_where_they_are_received(sent: Span, received: Span, direct: bool) -> None:
    stores = (Step((Span(0, "in", 0),), (sent,)),) if sent.buffer == "sc" else ()
    sends = ThreadBlock((), (Send(1, 0),), (*stores, Step((sent,), (Send(1, 0),))))
    receives = ThreadBlock((Receive(0, 0),), (), (Step((Receive(0, 0),), (received,)),))
    schedule = Schedule("one", AllReduce(2, 2), "simple", 1, (Rank(1, (sends,)), Rank(1, (receives,))))
    for rank in (0, 1):
        (connection,) = tables(schedule, rank, (0, 1))["connection"]
        assert connection["storage"] == (BATCHED if direct else SLOTS)


@pytest.mark.parametrize(
    ("steps", "storage"),
    [
        ([Step((Span(0, "in", 0),), (Send(1, 0),))], BATCHED),
        ([Step((Span(0, "in", 0),), (Send(1, 0),)), Step((Receive(1, 0),), (Span(0, "out", 0),))], DIRECT),
        ([Step((Span(0, "in", 0),), (Send(1, 0), Send(2, 0)))], DIRECT),
        ([Step((Span(0, "in", 0),), (Send(1, 0),), (Wait(1, 0),))], DIRECT),
    ],
    ids=["sends alone", "then receives", "through a slot too", "waits"],
)
def test_batched_messages_wait_for_nobody(steps: list[Step], storage: int) -> None:
    """A tile that waits for what its receiver does with an earlier one cannot go with it."""
    ends = [end for step in steps for end in (*step.srcs, *step.dsts)]
    other = ThreadBlock((), (), (Step((Span(0, "in", 0),), (Span(0, "out", 0),)),))
    ranks = [Rank(0, (ThreadBlock((), (), tuple(steps)), other))]
    for peer in (1, 2):
        receives = ThreadBlock((), (), (Step((Receive(0, 0),), (Span(peer, "out", 0),)),))
        sends = ThreadBlock((), (), (Step((Span(peer, "in", 0),), (Send(0, 0),)),))
        blocks = (receives,) * (Send(peer, 0) in ends) + (sends,) * (Receive(peer, 0) in ends)
        ranks.append(Rank(0, blocks))
    schedule = Schedule("one", AllReduce(3), "simple", 1, tuple(ranks))
    connections = tables(schedule, 0, (0, 1, 0))["connection"]
    assert [c["storage"] for c in connections if c["peer"] == 1 and c["sends"]] == [storage]


def test_one_round() -> None:
    """All that a rank sends can be sent first; equal messages are one, others lie side by side."""
    assert eager(all_pairs.one_shot_all_reduce(3)) == [(1, [0, 0, 0, 0])] * 3
    for chunks, places in eager(direct.all_to_all(3)):
        assert chunks == 2
        assert sorted(places) == [0, 0, 1, 1]
    for name in NAMED:
        for ranks in (2, 3, 8):
            assert eager(default_program(name, ranks, small=True))[0][0] > 0, (name, ranks)
    for program in (ring.all_reduce(2), ring.all_gather(3), two_step.all_to_all(2, 2), all_pairs.all_reduce(3)):
        assert {chunks for chunks, _ in eager(program)} == {0}, program.name


def test_what_is_written_first_is_not_sent_first() -> None:
    """Rank 0 takes another's buffer, or doubles its own, before it sends it; or sends twice over one connection."""
    with Program(AllReduce(2, inplace=True), name="received") as received:
        chunk(0, "in", 0).reduce(chunk(1, "in", 0)).copy(1, "in", 0)
    pair = Custom(2, inputs=[2, 0], outputs=[1, 1], post=lambda _rank, _index: {(0, 0), (0, 1)})
    with Program(pair, name="summed") as summed:
        total = chunk(0, "in", 0).copy(0, "out", 0).reduce(chunk(0, "in", 1))
        total.copy(1, "out", 0)
    with Program(Custom(2, inputs=[1, 0], outputs=[0, 2], post=lambda _rank, _index: {(0, 0)}), name="twice") as twice:
        chunk(0, "in", 0).copy(1, "out", 0)
        chunk(0, "in", 0).copy(1, "out", 1)
    assert [eager(program, opcodes=True)[0][0] for program in (received, summed, twice)] == [0, 0, 0]
    assert eager(summed)[0][0] == 1, "the sum is sent, and stored, by one step"


def test_what_comes_after_others_is_not_sent_first() -> None:
    """Rank 0 waits, in the step before, for what it sends; or learns by a message that it is there."""
    head = "collective custom(ranks=2, chunks=1, inputs=1:0, outputs=2:2, post=-,-;-,-)\nprotocol auto\nslots 1\n"
    waits = f"""schedule "waits"
{head}rank 0 scratch 0
  block 0
    0: copy in[0] -> out[0]
  block 1 >1.0
    0: copy in[0] -> out[1]  after 0.0
    1: send out[0] -> >1.0
rank 1 scratch 0
  block 0 <0.0
    0: recv <0.0 -> out[0]
"""
    hears = f"""schedule "hears"
{head}rank 0 scratch 0
  block 0 >1.0
    0: r0l1-s1l1 in[0] -> >1.0 out[0]
  block 1 <1.0 >1.1
    0: recv <1.0 -> out[1]
    1: send out[0] -> >1.1
rank 1 scratch 0
  block 0 <0.0 >0.0
    0: rcs <0.0 -> >0.0 out[0]
  block 1 <0.1
    0: recv <0.1 -> out[1]
"""
    for text in (waits, hears):
        schedule = parse_schedule(text)
        prove(schedule)
        assert [tables(schedule, rank)["header"][0]["eager"] for rank in range(2)] == [0, 0]


def test_which_way_messages_go() -> None:
    """Calls by name in which no rank both sends and receives, and nothing is combined; not where one passes on. And
    those in which each sends each another block."""
    for name, ranks, size in itertools.product(NAMED, (2, 3, 5), (1 << 10, 1 << 22)):
        schedule = choose(Call(name, ranks, size, ranks - 1)).compile()
        for rank in range(ranks):
            (header,) = tables(schedule, rank)["header"]
            assert header["one_way"] == (name in ("broadcast", "gather", "scatter")), (name, ranks, rank)
            assert header["exchanges"] == (name == "all_to_all"), (name, ranks, rank)
    assert tables(ring.all_gather(3).compile(), 0)["header"][0]["one_way"] == 0
    assert tables(tree.broadcast(4).compile(), 0)["header"][0]["one_way"] == 0


def test_what_receivers_do_with_messages() -> None:
    """A Reduce combines all that is sent, a Broadcast nothing, and a ring's AllReduce not all on any connection."""
    cases = (tree.reduce(4), {1}), (tree.broadcast(4), {0}), (ring.all_reduce(3), {0}), (ring.reduce_scatter(3), {1})
    for program, combined in cases:
        schedule = program.compile()
        found = {
            c["combined"] for rank in range(schedule.collective.size) for c in tables(schedule, rank)["connection"]
        }
        assert found == combined, program.name
    both = choose(Call("all_reduce", 2, 1 << 20)).compile()
    found = [{(c["channel"], c["combined"]) for c in tables(both, rank)["connection"]} for rank in range(2)]
    assert found == [{(0, 1), (1, 0)}] * 2, "sums of blocks go to all on another channel"


def test_two_rounds() -> None:
    """All that is called by name with arrays in reach; not where a rank passes on what it learns of."""
    for name in NAMED:
        for ranks, instances, inplace in itertools.product((2, 3, 8), (1, 2), (True, False)):
            program = zero_copy_program(name, ranks, ranks - instances, inplace=inplace)
            if program is not None:
                schedule = program.compile(storage="peer", instances=instances)
                assert {tables(schedule, rank)["header"][0]["two_rounds"] for rank in range(ranks)} == {1}, name
    for program in (ring.all_reduce(3), direct.all_reduce(1)):
        assert tables(program.compile(storage="peer"), 0)["header"][0]["two_rounds"] == 0, program.name
    assert tables(direct.all_reduce(2).compile(), 0)["header"][0]["two_rounds"] == 0


HEAD = "collective custom(ranks=2, chunks=1, inputs=2:2, outputs=2:2, post=-,-;-,-)\nprotocol auto\nslots 1\n"
OFFERED = "rank 1 scratch 0\n  block 0 <0.0\n    0: recv <0.0@0.{} -> out[0]\n"
PUSHED = "rank 1 scratch 0\n  block 0 >0.0\n    0: send in[0] -> >0.0@0.out[0]\n"


@pytest.mark.parametrize(
    ("steps", "other", "expected"),
    [
        (["block 0 >1.0", "0: send in[0] -> >1.0@0.in[0]", "1: copy in[1] -> out[0]"], OFFERED.format("in[0]"), 1),
        (["block 0 >1.0", "0: copy in[1] -> out[0]", "1: send out[0] -> >1.0@0.out[0]"], OFFERED.format("out[0]"), 0),
        (
            ["block 0", "0: copy in[1] -> out[0]", "block 1 >1.0", "0: send out[0] -> >1.0@0.out[0]  after 0.0"],
            OFFERED.format("out[0]"),
            0,
        ),
        (
            ["block 0 >1.0 >1.1", "0: send in[0] -> >1.0@0.in[0]", "1: send in[1] -> >1.1"],
            "rank 1 scratch 0\n  block 0 <0.0 <0.1\n    0: recv <0.0@0.in[0] -> out[0]\n    1: recv <0.1 -> out[1]\n",
            0,
        ),
        (["block 0 <1.0", "0: recv <1.0@0.out[0] -> out[0]", "block 1", "0: copy in[0] -> out[1]"], PUSHED, 1),
        (["block 0 <1.0", "0: recv <1.0@0.out[0] -> out[0]", "1: copy out[0] -> out[1]"], PUSHED, 0),
        (
            ["block 0 <1.0", "0: recv <1.0@0.out[0] -> out[0]", "block 1", "0: copy out[0] -> out[1]  after 0.0"],
            PUSHED,
            0,
        ),
    ],
    ids=["offers first", "offers late", "waits to offer", "a slot", "learns last", "learns first", "waits to learn"],
)
def test_what_comes_before_or_after_a_message_in_place(steps: list[str], other: str, expected: int) -> None:
    """Rank 0 offers, or learns, and has work beside."""
    lines = "".join(f"  {line}\n" if line.startswith("block") else f"    {line}\n" for line in steps)
    schedule = parse_schedule(f'schedule "rounds"\n{HEAD}rank 0 scratch 0\n{lines}{other}')
    prove(schedule)
    assert [tables(schedule, rank)["header"][0]["two_rounds"] for rank in range(2)] == [expected] * 2


def test_multicasts() -> None:
    """One end and one slot for all readers, who are numbered; sent apart, or to too many, connections are apart."""
    schedule = tree.broadcast(5, 1).compile()
    plans = [tables(schedule, rank) for rank in range(5)]
    for plan in plans:
        assert plan["multicast"] == [{"source": 1, "channel": 1, "messages": 1}]
    root = plans[1]["connection"]
    assert [(c["peer"], c["sends"], c["width"], c["reader"], c["more"]) for c in root] == [
        (0, 1, 1, 0, 2),
        (2, 1, 0, 1, 0),
        (3, 1, 0, 2, 0),
    ]
    assert plans[1]["step"][0]["destinations"] == 1
    ends = [c for rank in (0, 2, 3) for c in plans[rank]["connection"] if c["peer"] == 1]
    assert [(c["reader"], c["multicast"]) for c in ends] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    apart = tables(tree.broadcast(5, 1).compile(opcodes=True), 1)
    assert not apart["multicast"]
    assert [c["more"] for c in apart["connection"]] == [0, 0, 0]
    most = MOST_READERS
    assert most == _native.MOST_READERS
    for ranks, found in ((most + 1, 1), (most + 2, 0)):
        crowd = tables(knomial.broadcast(ranks, ranks).compile(), 0)
        assert len(crowd["multicast"]) == found
        assert crowd["step"][0]["destinations"] == (1 if found else ranks - 1)
