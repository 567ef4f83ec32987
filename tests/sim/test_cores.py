"""Ranks on cores: what is simulated follows from a file, and is cut as the runtime cuts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hocket
from hocket import Communicator, Custom, Program, Schedule, _native, calibrate, chunk, topology
from hocket.algorithms import all_pairs, bruck, direct, recursive_doubling, ring
from hocket.cli import app
from hocket.errors import BadTopology
from hocket.explain import Explanation
from hocket.sim import Simulator
from hocket.sim.cores import ROTATED, ROTATED_SLOT
from hocket.topology import CORES, Memory, Topology, cores
from hocket.tuning import Call, choose, declined, zero_copy_program

LAUNCH, DECODE, HOP, LATE = 1.0, 0.25, 0.5, 2.0
COPY, UPDATE, ADD, FAR = 10.0, 8.0, 20.0, 5.0  # GB/s


def machine(ranks: int = 2) -> Topology:
    """The same speeds wherever data lies."""
    hops, starts = {"fifo": HOP}, {"zero-copy": LATE}
    paths = tuple(
        replace(path, hop=hops.get(path.name, 0.0), start=starts.get(path.name, 0.0)) for path in CORES.protocols
    )
    memory = tuple(Memory(ranks, size, COPY, UPDATE, ADD, FAR) for size in (1 << 14, 1 << 28))
    costs = replace(CORES, launch=LAUNCH, decode=DECODE, protocols=paths, memory=memory)
    return cores("local", ranks, 1, 100.0, costs)


def exchange() -> Program:
    with Program(Custom(2, inputs=1, outputs=1, post=lambda r, _: {(1 - r, 0)}), name="exchange") as p:
        for r in range(2):
            chunk(r, "in", 0).copy(1 - r, "out", 0)
    return p


def sums(inplace: bool) -> Schedule:
    with Program(
        Custom(1, inputs=2, outputs=2, post=lambda _, i: {(0, 0), (0, 1)} if i == 0 else {(0, 1)}, inplace=inplace)
    ) as p:
        if inplace:
            chunk(0, "in", 0).reduce(chunk(0, "in", 1))
        else:
            chunk(0, "in", 0).copy(0, "out", 0)
            chunk(0, "out", 0).reduce(chunk(0, "in", 1))
            chunk(0, "in", 1).copy(0, "out", 1)
    return p.compile()


def test_an_exchange_is_two_copies_and_a_crossing_one_after_the_other() -> None:
    """The core of a rank stores what it sends, then loads what has come: 1000 bytes a microsecond are 1 GB/s."""
    simulator = Simulator(exchange().compile(), machine())
    moved = 8192 * (2 / COPY + 1 / FAR) / 1e3
    eager = simulator.best(8192)
    assert (eager.protocol, eager.tiles) == ("eager", 1)
    assert eager.time == pytest.approx(LAUNCH + 2 * DECODE + moved, abs=1e-4)
    fifo = simulator.best(65536)
    assert (fifo.protocol, fifo.tiles) == ("fifo", 1)
    assert fifo.time == pytest.approx(LAUNCH + 2 * DECODE + HOP + 8 * moved, abs=1e-4)


def test_zero_copies_start_later_and_move_once() -> None:
    found = Simulator(exchange().compile(storage="peer"), machine()).best(8192)
    assert found.protocol == "zero-copy"
    assert found.time == pytest.approx(LAUNCH + LATE + 2 * DECODE + 8192 / COPY / 1e3, abs=1e-4)


@pytest.mark.parametrize("inplace", [True, False])
def test_what_is_stored_where_it_was_loaded_is_an_update(inplace: bool) -> None:
    found = Simulator(sums(inplace), machine(1)).best(8192)
    steps, moved = (1, 1 / UPDATE) if inplace else (2, 1 / COPY + 1 / ADD + 1 / COPY)
    assert found.time == pytest.approx(LAUNCH + steps * DECODE + 4096 * moved / 1e3, abs=1e-4)


def test_speeds_lie_between_what_was_measured() -> None:
    low, high = Memory(2, 1 << 14, 10.0, 1.0, 1.0, 1.0), Memory(2, 1 << 18, 5.0, 1.0, 1.0, 1.0)
    found = replace(machine(), costs=replace(machine().costs, memory=(low, high)))
    schedule = exchange().compile(storage="peer")
    times = [Simulator(schedule, found).best(size).time for size in (1 << 12, 1 << 13, 1 << 15, 1 << 17, 1 << 18)]
    fixed = LAUNCH + LATE + 2 * DECODE
    speeds = [
        size / 1e3 / (time - fixed)
        for size, time in zip((1 << 12, 1 << 13, 1 << 15, 1 << 17, 1 << 18), times, strict=True)
    ]
    assert speeds == pytest.approx([10.0, 10.0, 1 / 0.15, 5.0, 5.0], rel=1e-3)


def test_tracing_adds_up_to_the_same() -> None:
    simulator = Simulator(ring.all_reduce(2, instances=2).compile(), machine())
    trace = simulator.trace(1 << 16, "fifo")
    assert trace.timeline.total == pytest.approx(simulator.predict(1 << 16, "fifo").time)
    assert sum(segment.end - segment.begin for segment in trace.path) == pytest.approx(trace.timeline.total, abs=1e-4)
    for rank in range(2):  # a core does one thing at a time
        spans = sorted((span.begin, span.end) for span in trace.timeline.spans if span.rank == rank)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(spans))


LIBRARY: tuple[Callable[[], Program], ...] = (
    lambda: ring.all_reduce(2),
    lambda: ring.all_gather(2, instances=4),
    lambda: direct.all_reduce(2),
    lambda: all_pairs.all_reduce(2),
    lambda: recursive_doubling.all_reduce(2),
    lambda: bruck.all_to_all(2),
)
SIZES = (8, 1000, 4096, 16 << 10, 40_000, 1 << 18, 3 << 20, 1 << 26)


def outlooks(comm: Communicator, schedules: list[Schedule]) -> list[list[tuple[bool, int, int]]]:
    found = []
    for schedule in schedules:
        blocks = schedule.collective.most_blocks()
        rows = [comm._endpoint.outlook(schedule, -(-size // (4 * blocks))) for size in SIZES]
        found.append([(row.one_round, row.tile, row.tiles) for row in rows])
    return found


def test_slots_rotate_as_those_of_the_runtime() -> None:
    values = {row.name: row.value for row in _native.TUNABLES}
    assert (values["rotated_bytes"], values["rotated_slot_bytes"]) == (ROTATED, ROTATED_SLOT)


def test_tiles_and_paths_are_those_of_the_runtime() -> None:
    schedules = [make().compile() for make in LIBRARY]
    lent = zero_copy_program("all_reduce", 2, inplace=True)
    assert lent is not None
    schedules.append(lent.compile(storage="peer"))
    for schedule, rows in zip(schedules, hocket.spawn(outlooks, 2, (schedules,))[0], strict=True):
        simulator = Simulator(schedule, machine())
        for size, (one_round, tile, tiles) in zip(SIZES, rows, strict=True):
            found = simulator.best(size)
            assert (found.protocol == "eager") == one_round
            assert found.tiles == tiles
            if tiles > 1:
                assert simulator.predict(size, found.protocol, tile).time == found.time


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "local.toml"
    path.write_text(topology.dump_cores(machine()))
    found = topology.load(path)
    assert found == machine()
    assert topology.dump_cores(found) == path.read_text()


def test_local_is_what_was_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BadTopology, match="this machine is not calibrated"):
        topology.named("local")
    (tmp_path / "hocket").mkdir()
    (tmp_path / "hocket" / "local.toml").write_text(topology.dump_cores(machine()))
    assert topology.named("local") == machine()
    with pytest.raises(BadTopology, match="local is one node: this machine"):
        topology.named("local", 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "far = 5.0",
            "near = 5.0",
            "costs.memory: there is no key 'near'; there are ranks, bytes, copy, update, add, far",
        ),
        ("far = 5.0", "far = 0", "far must be a positive number, not 0"),
        ("ranks = 2", "ranks = 0", "ranks must be a positive whole number, not 0"),
        ("[costs.fifo]", "[costs.LL]", "costs: there is no key 'LL'"),
        ("switch = 100.0", "", "switch must be a positive number, not None"),
    ],
)
def test_a_wrong_file(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "local.toml"
    path.write_text(topology.dump_cores(machine()).replace(old, new))
    with pytest.raises(BadTopology) as raised:
        topology.load(path)
    assert message in raised.value.reason


def test_a_machine_is_what_was_measured() -> None:
    """Figures that the simulator says of a machine give that machine."""
    wanted, figures = machine(), dict[calibrate.Key, calibrate.Figure]()
    run = LAUNCH + DECODE

    def put(key: calibrate.Key, us: float) -> None:
        figures[key] = calibrate.Figure(us * 1e-6, us * 1e-6)

    exchanged = Simulator(calibrate.exchange(2).compile(), wanted)
    for ranks in (1, 2):
        for key in ("copy", "update", "add"):
            put((ranks, "run", key), run)
        for w in calibrate.WORKING_SETS:
            half, third = w // 2, w // 3
            tiles = -(-half // (256 << 10)), -(-third // (256 << 10))
            put((ranks, "copy", w), run + half / COPY / 1e3 + (tiles[0] - 1) * DECODE)
            put((ranks, "update", w), run + half / UPDATE / 1e3 + (tiles[0] - 1) * DECODE)
            put((ranks, "add", w), run + third * (1 / COPY + 1 / ADD) / 1e3 + (tiles[1] - 1) * DECODE)
            put((ranks, "far", w), exchanged.best(half).time)
    put((2, "steps", 1), 5.0)
    put((2, "steps", calibrate.STEPS), 5.0 + (calibrate.STEPS - 1) * 2 * DECODE)
    put((2, "call"), LAUNCH + 2 * DECODE)
    put((2, "crossing"), run + DECODE)
    put((2, "hops", 2), 7.0)
    put((2, "hops", calibrate.LONG), 7.0 + 16 * (HOP + DECODE))
    lent = zero_copy_program("broadcast", 2, inplace=True)
    assert lent is not None
    call = choose(Call("broadcast", 2, calibrate.LENT))
    assert declined(call, one_round=True, attached=False) is None  # what is measured does lend
    put((2, "lent"), Simulator(lent.compile(storage="peer"), wanted).best(calibrate.LENT).time)
    assert not calibrate.is_disturbed(figures)
    found = calibrate.topology(figures).costs
    assert (found.launch, found.decode) == pytest.approx((LAUNCH, DECODE), rel=1e-3)
    assert [path.hop for path in found.protocols] == pytest.approx([0.0, HOP, 0.0], abs=1e-3)
    for point in found.memory:
        assert (point.copy, point.update, point.add) == pytest.approx((COPY, UPDATE, ADD), rel=1e-2)
        assert point.ranks == 1 or point.far == pytest.approx(FAR, rel=0.02)
    assert found.protocol("zero-copy").start == pytest.approx(LATE, rel=1e-2)


def test_a_machine_that_others_use_is_noticed() -> None:
    """Rounds that differ much, or steps that take longer than a whole call."""
    calm = calibrate.Figure(2e-6, 2.1e-6)
    figures = {(2, "call"): calm, (2, "steps", 1): calm, (2, "steps", calibrate.STEPS): calibrate.Figure(6e-6, 6e-6)}
    assert not calibrate.is_disturbed(figures)
    assert calibrate.is_disturbed(figures | {(2, "crossing"): calibrate.Figure(1e-6, 3e-6)})
    assert calibrate.is_disturbed(figures | {(2, "steps", calibrate.STEPS): calibrate.Figure(90e-6, 90e-6)})


def test_calibrating_writes_a_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "WORKING_SETS", (24 << 10, 384 << 10))
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    path = tmp_path / "new" / "this.toml"
    shown = CliRunner().invoke(app, ["calibrate", "-n", "2", "-o", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "a message through the fifo" in shown.output
    assert "384 KB" in shown.output
    found = topology.load(path)
    assert {(point.ranks, point.bytes) for point in found.costs.memory} == {
        (ranks, size) for ranks in (1, 2) for size in (24 << 10, 384 << 10)
    }
    simulated = CliRunner().invoke(
        app, ["sim", "direct:all_reduce", "ranks=2", "--topology", str(path), "--sizes", "8KB..16KB", "--json"]
    )
    assert simulated.exit_code == 0, simulated.output
    assert [row["protocol"] for row in json.loads(simulated.output)["sizes"]] == ["fifo", "fifo"]


def explained(comm: Communicator) -> Explanation | None:
    comm._endpoint.oversubscribed = False
    return comm.explain("all_gather", 1 << 20) if comm.rank == 0 else None


def test_explain_says_where_its_time_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rough = hocket.spawn(explained, 2, threads=1)[0]
    assert rough is not None
    speed = f"{rough.bandwidth / 1e9:.3g} GB/s a core"
    assert str(rough).splitlines()[-1] == (
        f"predicted  {rough.predicted * 1e6:.4g} us, a rough estimate at {speed}: this machine is not calibrated; "
        "run hocket calibrate, which takes half a minute"
    )
    (tmp_path / "hocket").mkdir()
    (tmp_path / "hocket" / "local.toml").write_text(topology.dump_cores(machine()))
    exact = hocket.spawn(explained, 2, threads=1)[0]
    assert exact is not None
    assert exact.bandwidth == 0
    time = f"{exact.predicted * 1e6:.4g} us"
    assert str(exact).splitlines()[-1] == f"predicted  {time}, simulated with what hocket calibrate has measured here"
    moved = (1 << 19) * (2 / COPY + 1 / FAR) * 1e-9
    assert moved < exact.predicted < 2 * moved
