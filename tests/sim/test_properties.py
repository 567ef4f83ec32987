"""What must hold of every simulation: closed forms, order in sizes and links, sums."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hocket import AllReduce, AllToNext, Broadcast, Program, Schedule, chunk
from hocket.algorithms import all_pairs, all_to_next, chain, hierarchical, ring, two_step
from hocket.ir.schedule import Wait
from hocket.sim import MOST_TILES, Simulator
from hocket.sim.links import Flow, Links
from hocket.topology import Link, Topology, load, ndv4
from tests.property.programs import random_case

SETTINGS = settings(max_examples=20, deadline=None, derandomize=True)

LIBRARY: dict[str, Callable[[], Program]] = {
    "ring": lambda: ring.all_reduce(8, channels=4, instances=2),
    "all_pairs": lambda: all_pairs.all_reduce(8, instances=2),
    "hierarchical": lambda: hierarchical.all_reduce(2, 8, parallel=2),
    "two_step": lambda: two_step.all_to_all(2, 8),
    "all_to_next": lambda: all_to_next.all_to_next(3, 8, instances=2),
    "broadcast": lambda: chain.broadcast(16),
}

PROTOCOL = st.sampled_from(["Simple", "LL", "LL128"])


def random_schedule(seed: int) -> Schedule:
    return compiled(random_case(random.Random(seed)).program())


def compiled(program: Program) -> Schedule:
    return program.compile(opcodes=True, slots=8)


def machine(schedule: Schedule) -> Topology:
    return ndv4(-(-schedule.collective.size // 8))


def wide(topology: Topology) -> Topology:
    """Links that no number of thread blocks fills."""
    return replace(topology, node_links=tuple(Link(link.name, 1e5) for link in topology.node_links))


@pytest.fixture(scope="module", params=LIBRARY)
def simulator(request: pytest.FixtureRequest) -> Simulator:
    schedule = compiled(LIBRARY[request.param]())
    return Simulator(schedule, machine(schedule))


def line(ranks: int) -> Schedule:
    """Each rank hands on what it got."""
    with Program(Broadcast(ranks)) as p:
        c = chunk(0, "in", 0)
        c.copy(0, "out", 0)
        for rank in range(1, ranks):
            c = c.copy(rank, "out", 0)
    return compiled(p)


@SETTINGS
@given(ranks=st.integers(2, 8), size=st.integers(1, 1 << 14), protocol=PROTOCOL)
def test_a_line_of_sends_takes_what_the_closed_form_says(ranks: int, size: int, protocol: str) -> None:
    """By hand: for each rank decode and the bytes at a thread block's rate, and between them a hop."""
    topology = ndv4()
    costs, known = topology.costs, topology.costs.protocol(protocol)
    simulator = Simulator(line(ranks), topology)
    found = simulator.predict(size, protocol)
    assert found.time == pytest.approx(found.estimate, abs=1e-4)
    if size <= known.grain:
        move = costs.decode + size / (known.block * 1e3)
        expected = simulator.trace(size, protocol).timeline.spans[0].begin
        expected += (ranks - 1) * (move + known.hop) + move
        sender = simulator.schedule.ranks[0].thread_blocks
        if len(sender) == 1 and sender[0].steps[0].opcode == "cpy":
            expected += costs.decode + size / (costs.local * 1e3)
        assert found.time == pytest.approx(expected, abs=1e-4)


@SETTINGS
@given(seed=st.integers(0, 1 << 30), size=st.integers(0, 1 << 22), more=st.integers(1, 1 << 20), protocol=PROTOCOL)
def test_a_larger_call_never_takes_less(seed: int, size: int, more: int, protocol: str) -> None:
    schedule = random_schedule(seed)
    simulator = Simulator(schedule, wide(machine(schedule)))
    assert simulator.predict(size, protocol).time <= simulator.predict(size + more, protocol).time + 1e-5


def test_a_larger_call_never_takes_less_where_links_are_shared(simulator: Simulator) -> None:
    for protocol in ("Simple", "LL"):
        times = [simulator.predict(int(1000 * 1.7**k), protocol).time for k in range(24)]
        assert times == sorted(times)


@SETTINGS
@given(seed=st.integers(0, 1 << 30), size=st.integers(1, 1 << 22), data=st.data())
def test_a_slower_thread_block_never_takes_less(seed: int, size: int, data: st.DataObject) -> None:
    schedule = random_schedule(seed)
    topology = wide(machine(schedule))
    costs = topology.costs
    factor = data.draw(st.floats(0.1, 1.0))
    slower = replace(
        costs,
        protocols=tuple(replace(p, block=p.block * factor, hop=p.hop / factor) for p in costs.protocols),
    )
    before = Simulator(schedule, topology).predict(size, "Simple").time
    assert before <= Simulator(schedule, replace(topology, costs=slower)).predict(size, "Simple").time + 1e-5


@pytest.mark.parametrize("factor", [0.9, 0.5, 0.1])
def test_slower_links_never_take_less(simulator: Simulator, factor: float) -> None:
    topology = simulator.topology
    slower = tuple(Link(link.name, link.bandwidth * factor) for link in topology.node_links)
    other = Simulator(simulator.schedule, replace(topology, node_links=slower))
    for size in (1 << 10, 1 << 20, 1 << 26):
        assert simulator.predict(size, "Simple").time <= other.predict(size, "Simple").time + 1e-5


def with_wait(schedule: Schedule, pick: int) -> Schedule | None:
    """With one more wait: of a thread block's last step for the first of another of its rank."""
    ranks = list(schedule.ranks)
    several = [r for r, rank in enumerate(ranks) if len(rank.thread_blocks) > 1]
    if not several:
        return None
    r = several[pick % len(several)]
    blocks = list(ranks[r].thread_blocks)
    *steps, last = blocks[-1].steps
    wait = Wait(0, 0)
    if wait in last.waits or not blocks[0].steps:
        return None
    blocks[-1] = structs.replace(blocks[-1], steps=(*steps, structs.replace(last, waits=(*last.waits, wait))))
    ranks[r] = replace(ranks[r], thread_blocks=tuple(blocks))
    return replace(schedule, ranks=tuple(ranks))


@SETTINGS
@given(seed=st.integers(0, 1 << 30), size=st.integers(1, 1 << 22), pick=st.integers(0, 7))
def test_another_wait_never_takes_less(seed: int, size: int, pick: int) -> None:
    schedule = random_schedule(seed)
    more = with_wait(schedule, pick)
    if more is None:
        return
    topology = wide(machine(schedule))
    try:
        after = Simulator(more, topology).predict(size, "Simple").time
    except ValueError:  # the wait closes a cycle
        return
    assert Simulator(schedule, topology).predict(size, "Simple").time <= after + 1e-5


def test_bytes_of_links_are_those_of_the_schedule(simulator: Simulator) -> None:
    size = 3 << 20
    trace = simulator.trace(size, "LL128")
    sent = Counter[str]()
    for message in trace.timeline.messages:
        for link in message.links:
            sent[link] += message.bytes
    expected = simulator.work.link_chunks()
    links = simulator.topology.links
    for use in trace.timeline.links:
        width = next(link.bandwidth for link in links if link.name == use.link) * 1e3
        moved = sum((end - begin) * share * width for begin, end, share in use.intervals) * 120 / 128
        assert moved == pytest.approx(sent[use.link], rel=1e-3)
    for link, chunks in zip(links, expected, strict=True):
        assert sent[link.name] == pytest.approx(chunks * simulator.share(size), rel=1e-3)


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 22])
def test_a_timeline_and_its_path_add_up(simulator: Simulator, size: int, protocol: str) -> None:
    trace = simulator.trace(size, protocol)
    timeline = trace.timeline
    assert timeline.total == trace.prediction.time == max(span.end for span in timeline.spans)
    assert all(span.begin <= span.end and span.waited >= 0 for span in timeline.spans)
    at = 0.0
    for segment in trace.path:
        assert segment.begin == pytest.approx(at, abs=1e-4)
        assert segment.end >= segment.begin
        at = segment.end
    assert at == pytest.approx(timeline.total, abs=1e-4)
    assert sum(s.end - s.begin for s in trace.path) == pytest.approx(timeline.total, abs=1e-3)
    for message in timeline.messages:
        assert timeline.spans[message.sent].begin <= timeline.spans[message.received].begin


def test_no_link_is_used_beyond_its_bandwidth(simulator: Simulator) -> None:
    for use in simulator.trace(1 << 24, "Simple").timeline.links:
        assert all(0 < share <= 1 + 1e-6 for _, _, share in use.intervals)


def test_nothing_is_forwarded_before_it_is_there(tmp_path: Path) -> None:
    """Behind a slow link, two fast ones: what goes on over them cannot be sooner."""
    file = tmp_path / "chain.toml"
    file.write_text("gpus = 4\npairs = [[0, 1, 1], [1, 2, 100], [2, 3, 100]]\n")
    schedule = chain.broadcast(4).compile()
    for size, protocol in ((1 << 21, "Simple"), (1 << 15, "LL")):
        timeline = Simulator(schedule, load(file)).trace(size, protocol).timeline
        ends = [max(span.end for span in timeline.spans if span.rank == rank) for rank in range(4)]
        assert ends[1:] == sorted(ends[1:])


@given(st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_links_are_shared_by_max_min_fairness(seed: int) -> None:
    """Against progressive filling over all flows, after each that begins or ends."""
    rng = random.Random(seed)
    bandwidths = [rng.choice([1.0, 2.0, 5.0, 10.0]) for _ in range(5)]
    links, flows = Links(bandwidths), list[Flow]()
    for now in range(1, 25):
        if flows and rng.random() < 0.4:
            flow = flows.pop(rng.randrange(len(flows)))
            flow.change(now, 0.0)
            links.remove(flow)
        else:
            ways = tuple(rng.sample(range(5), rng.randint(1, 3)))
            flows.append(Flow(ways, rng.choice([0.3, 1.0, 3.0, 8.0]), 1e9, 0, 0, 0, network=False))
            links.add(flows[-1], now)
        if links.dirty:
            links.share(now)
        assert [flow.rate for flow in flows] == pytest.approx(filled(bandwidths, flows))


def filled(bandwidths: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    rates, room, left = [0.0] * len(flows), list(bandwidths), set(range(len(flows)))
    while left:
        share = {link: room[link] / n for link in range(len(room)) if (n := sum(link in flows[i].links for i in left))}
        least = min([*share.values(), *(flows[i].cap for i in left)])
        full = {link for link, each in share.items() if each <= least * (1 + 1e-12)}
        for i in [i for i in left if flows[i].cap <= least * (1 + 1e-12) or full & set(flows[i].links)]:
            rates[i] = least
            left.remove(i)
            for link in flows[i].links:
                room[link] -= least
    return rates


def test_a_message_that_is_late_is_on_the_critical_path(tmp_path: Path) -> None:
    """The receiver needs little time of its own; nearly all is the link's."""
    file = tmp_path / "slow.toml"
    file.write_text("gpus = 1\nswitch = 100\n[network]\nnics = [0]\nbandwidth = 1\n")
    schedule = chain.broadcast(2).compile()
    trace = Simulator(schedule, load(file, 2)).trace(1 << 21, "Simple")
    assert sum(s.end - s.begin for s in trace.path if s.kind == "link") > 0.95 * trace.prediction.link_floor


def test_no_run_is_below_its_floors(simulator: Simulator) -> None:
    for size in (1, 1 << 12, 1 << 20, 1 << 28):
        for protocol in simulator.protocols():
            found = simulator.predict(size, protocol)
            assert found.time >= found.latency_floor - 1e-3
            assert found.time >= found.link_floor


def test_the_best_protocol_is_that_of_the_least_time(simulator: Simulator) -> None:
    """Though those whose floors are above it are not simulated."""
    for size in (1, 1 << 12, 1 << 20, 1 << 28):
        assert simulator.best(size).time == min(simulator.predict(size, name).time for name in simulator.protocols())


def test_two_runs_are_equal(simulator: Simulator) -> None:
    again = Simulator(simulator.schedule, simulator.topology)
    for size in (1 << 10, 1 << 24):
        assert simulator.trace(size, "Simple") == again.trace(size, "Simple")


def test_tiles_that_are_not_simulated_one_by_one_take_as_long(simulator: Simulator) -> None:
    """Beyond MOST_TILES the rest is a straight line: within 3 % of all tiles, simulated."""
    size = next(1 << k for k in range(20, 40) if simulator.predict(1 << k, "Simple").tiles >= 4 * MOST_TILES)
    found = simulator.predict(size, "Simple")
    assert found.time == pytest.approx(simulator.trace(size, "Simple").prediction.time, rel=0.03)


def test_later_tiles_share_links_with_those_on_their_way_back(tmp_path: Path) -> None:
    """Down a line of nodes and back: the first tiles have each link to themselves, the others by half."""
    file = tmp_path / "line.toml"
    file.write_text("gpus = 1\nswitch = 100\nthread_blocks = 32\n[network]\nnics = [0]\nbandwidth = 10\n")
    nodes = 24
    with Program(AllReduce(nodes, inplace=True)) as p:
        c = chunk(0, "in", 0)
        for rank in range(1, nodes):
            c = chunk(rank, "in", 0).reduce(c, ch=0)
        for rank in range(nodes - 2, -1, -1):
            c = c.copy(rank, "in", 0, ch=1)
    simulator = Simulator(compiled(p), load(file, nodes))
    size = 64 * MOST_TILES << 20
    found = simulator.predict(size, "Simple")
    assert found.tiles >= 4 * MOST_TILES
    assert found.time > found.link_floor
    assert found.time == pytest.approx(simulator.trace(size, "Simple").prediction.time, rel=0.05)


def test_what_is_large_is_asked_for_first(tmp_path: Path) -> None:
    """By the rendezvous longer, simulated and in the closed form; no message overtakes one before it."""
    file = tmp_path / "asks.toml"
    text = "gpus = 1\nswitch = 100\n[network]\nnics = [0]\nbandwidth = 10\n[costs]\nunasked = 4097\n"
    schedule = compiled(all_to_next_pair())
    times = []
    for rendezvous in (0, 50):
        file.write_text(f"{text}rendezvous = {rendezvous}\n")
        simulator = Simulator(schedule, load(file, 2))
        times.append([(found.time, found.estimate) for found in (simulator.predict(n, "LL") for n in (2048, 2049))])
    (small, large), (small_asked, large_asked) = times
    assert small == small_asked
    for before, after in zip(large, large_asked, strict=True):
        assert after == pytest.approx(before + 50, abs=1e-3)
    trace = simulator.trace((4 << 15) + 1024, "LL")  # four tiles, and a rest that goes unasked
    spans, asked = trace.timeline.spans, [m for m in trace.timeline.messages if m.bytes > 2048]
    assert len(asked) == len(trace.timeline.messages) - 1
    assert all(spans[m.received].begin >= spans[m.sent].end + 50 for m in asked)


def test_a_further_term_is_a_load_and_a_further_message_a_pass() -> None:
    work = Simulator(all_pairs.one_shot_all_reduce(4).compile(), ndv4()).work
    steps = {work.step(i).shape: work.passes[i] for i in range(len(work.block))}
    terms = {received + local: passes for (received, local, sent, _), passes in steps.items() if not sent}
    assert terms == {4: pytest.approx(5 / 3)}
    assert {sent: passes for (_, _, sent, _), passes in steps.items() if sent} == {3: 3.0}


def all_to_next_pair() -> Program:
    with Program(AllToNext(2)) as p:
        chunk(0, "in", 0).copy(1, "out", 0)
    return p


def test_direct_messages_have_no_slots_to_wait_for() -> None:
    with Program(AllToNext(2)) as p:
        chunk(0, "in", 0).copy(1, "out", 0)
    schedule = p.compile(storage="peer")
    simulator = Simulator(schedule, ndv4())
    assert simulator.protocols() == ("Direct",)
    through = Simulator(compiled(p), ndv4()).predict(1 << 26, "Simple")
    assert simulator.predict(1 << 26, "Direct").time < through.time
