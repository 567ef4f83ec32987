"""``hocket sim`` and ``hocket search``, topologies from files, and programs of sends."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hocket import AllGather, AllReduce, AllToAll, AllToNext, HocketError, Program, Reduce, chunk
from hocket.algorithms import ring
from hocket.algorithms.catalogue import CATALOGUE
from hocket.cli import app
from hocket.cli.search import NEAR, Candidate, Range, search, toml, write
from hocket.errors import BadTopology, InvalidArgument, NoLink, OutOfRange, PostconditionFailed, UsageError
from hocket.ir.chunk_dag import Kind
from hocket.sends import Send
from hocket.sim import Simulator
from hocket.topology import BUILT_IN, dgx1, named, ndv4

RING = ["ring:all_reduce", "ranks=8"]


def invoke(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_sim_prints_a_row_for_each_size_and_compares() -> None:
    found = json.loads(invoke("sim", *RING, "--sizes", "1KB..4KB", "--vs", "all_pairs:all_reduce ranks=8", "--json"))
    assert [row["bytes"] for row in found["sizes"]] == [1024, 2048, 4096]
    for row in found["sizes"]:
        assert row["speedup"] == pytest.approx(row["against"]["time"] / row["time"])
        assert row["busbw"] == pytest.approx(row["algbw"] * 14 / 8)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("ring:all_gather ranks=8", "--vs is allgather on 8 ranks, to compare with allreduce on 8 ranks"),
        ("ring:all_reduce ranks=4", "--vs is allreduce on 4 ranks, to compare with allreduce on 8 ranks"),
    ],
)
def test_only_what_does_the_same_is_compared(other: str, said: str) -> None:
    done = CliRunner().invoke(app, ["sim", *RING, "--sizes", "1KB", "--vs", other])
    assert done.exit_code == 2
    assert said in done.output


def test_the_shares_of_why_add_up_and_name_lines() -> None:
    found = json.loads(invoke("sim", *RING, "--sizes", "1MB", "--protocol", "ll128", "--why", "--json"))
    assert sum(share for *_, share in found["why"]) == pytest.approx(100)
    assert any(line.startswith("ring.py:") for _, _, line, _ in found["why"])
    assert "100.0 %" in invoke("sim", *RING, "--sizes", "1MB", "--why")


def test_search_writes_what_config_reads(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    said = invoke(
        "search", "--topology", "dgx1", "--collective", "all_gather", "--sizes", "1KB..2KB", "-o", str(folder)
    )
    assert "winner" in said
    assert "proven" in invoke("check", str(folder / "hocket.toml"))
    assert list(folder.glob("*.xml"))
    assert (folder / "nccl_tuner.csv").read_text().startswith("# colltype")


def candidate(name: str, protocol: str, simulator: Simulator | None = None, instances: int = 1) -> Candidate:
    algorithm = next(a for a in CATALOGUE if a.name == name)
    if simulator is None:
        program = algorithm.factory(ranks=8, instances=instances)
        simulator = Simulator(program.compile(opcodes=True, slots=8), ndv4())
    return Candidate(algorithm, {"ranks": 8}, instances, protocol, simulator)


def test_neighbours_that_differ_by_protocol_are_one_entry() -> None:
    one, four = candidate("ring:all_reduce", "LL"), candidate("ring:all_reduce", "LL128", instances=4)
    simple = candidate("ring:all_reduce", "Simple", four.simulator, 4)
    found = [Range(0, 1023, one), Range(1024, 4095, four), Range(4096, 8191, simple), Range(8192, None, one)]
    assert (
        toml("all_reduce", found, ndv4())
        == """\
# hocket search --collective all_reduce --topology ndv4 --nodes 1
# No entry names a protocol: the runtime chooses it.

[[all_reduce]]
program = "hocket.algorithms.ring:all_reduce"
arguments = { ranks = 8 }
ranks = 8
instances = 1
sizes = "0..1023"

[[all_reduce]]
program = "hocket.algorithms.ring:all_reduce"
arguments = { ranks = 8 }
ranks = 8
instances = 4
sizes = "1024..8191"

[[all_reduce]]
program = "hocket.algorithms.ring:all_reduce"
arguments = { ranks = 8 }
ranks = 8
instances = 1
sizes = "8192.."
"""
    )


def test_a_search_removes_what_an_earlier_one_wrote_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "2024_mine.xml").touch()
    (tmp_path / "ring_all_reduce.xml").touch()
    ring_, pairs = candidate("ring:all_reduce", "LL"), candidate("all_pairs:all_reduce", "LL")
    quiet = Console(quiet=True)
    write(tmp_path, "all_reduce", [Range(0, 1023, pairs), Range(1024, None, ring_)], ndv4(), quiet)
    assert (tmp_path / "1_ring_all_reduce.xml").exists()
    write(tmp_path, "all_reduce", [Range(0, None, ring_)], ndv4(), quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0_ring_all_reduce.xml",
        "2024_mine.xml",
        "hocket.toml",
        "nccl_tuner.csv",
        "ring_all_reduce.xml",
    ]


def test_what_is_no_folder_is_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.cli.search.candidates", lambda *_: pytest.fail("it has begun to search"))
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        done = CliRunner().invoke(app, ["search", "-o", str(folder)])
        assert done.exit_code == 2
        said = f"cannot write to {folder}: {file} is not a folder"
        assert "".join(said.split()) in "".join(done.output.split())  # lines may be broken anywhere


def test_what_cannot_be_written_is_an_error_of_usage(tmp_path: Path) -> None:
    found = [Range(0, None, candidate("ring:all_reduce", "LL"))]
    (tmp_path / "0_ring_all_reduce.xml").mkdir()
    with pytest.raises(UsageError, match="cannot write to"):
        write(tmp_path, "all_reduce", found, ndv4(), Console(quiet=True))
    with pytest.raises(UsageError, match="cannot write to"):
        write(tmp_path / ("x" * 300), "all_reduce", found, ndv4(), Console(quiet=True))


def test_there_is_a_runner_up_however_far_behind() -> None:
    """At 1 GB the closed form of All Pairs by LL is not within NEAR of that of a ring of 16 instances."""
    far = candidate("all_pairs:all_reduce", "LL")
    near = candidate("ring:all_reduce", "Simple", instances=16)
    (choice,) = search([far, near], [1 << 30], lambda _: None)
    assert far.simulator.estimate(1 << 30, "LL") > NEAR * near.simulator.estimate(1 << 30, "Simple")
    assert (choice.winner, choice.second) == (near, far)
    assert choice.margin is not None
    (alone,) = search([near], [1 << 30], lambda _: None)
    assert alone.second is None


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_gpu_reaches_another_and_the_network(name: str) -> None:
    machine = named(name, 2)
    for rank in range(machine.ranks):
        assert any(machine.route(rank, other) for other in range(machine.gpus) if other != rank)
        far = machine.route(rank, (rank + machine.gpus) % machine.ranks)
        assert far is not None
        assert far.network


FILE = "gpus = 2\nswitch = 100\n[network]\nnics = [0, 0]\nbandwidth = 10\n[costs]\nlaunch = 3\n[costs.LL]\nhop = 2.0\n"


def test_a_file_is_a_topology(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    machine = named(str(path), 2)
    assert (machine.name, machine.ranks, machine.costs.launch) == ("mine", 4, 3.0)
    assert machine.costs.protocol("ll").hop == 2.0
    assert machine.route(0, 3) != machine.route(3, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus = 0", "gpus must be a positive whole number, not 0"),
        ("gpus = 2", "switch must be a positive number, not None"),
        ("gpus = 2\nswitch = 1\nspeed = 2", "there is no key 'speed'"),
        ("gpus = 2\npairs = [[0, 2, 5]]", "names no two GPUs of 2"),
        ("gpus = 2\nswitch = 1\n[costs]\nlaunch = -1", "launch must be a positive number, not -1"),
        ("gpus = 2\nswitch = 1\n[costs.LL]\nspeed = 1", "costs.LL: there is no key 'speed'"),
        ("gpus = ", "Invalid value"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(BadTopology) as raised:
        named(str(path))
    assert reason in str(raised.value)
    assert "wrong.toml" in str(raised.value)


@pytest.mark.parametrize("nodes", [0, True, 2.0, "2"])
def test_nodes_are_counted(nodes: int) -> None:
    with pytest.raises(BadTopology, match="nodes must be a positive whole number, not"):
        ndv4(nodes)


def test_a_topology_has_a_name() -> None:
    with pytest.raises(BadTopology, match="there is no topology 5"):
        named(5)  # type: ignore[arg-type]
    with pytest.raises(BadTopology, match="local is one node"):
        named("local", 0)


@pytest.mark.parametrize("ranks", [(-1, 0), (0, 16), (99, 99)])
def test_a_route_joins_ranks_that_are_there(ranks: tuple[int, int]) -> None:
    with pytest.raises(OutOfRange, match=r"must be in \[0, 16\)"):
        ndv4(2).route(*ranks)


def test_a_transfer_over_no_link_is_an_error_at_its_line() -> None:
    with pytest.raises(NoLink) as raised, Program(AllGather(8), topology=dgx1()):
        chunk(0, "in", 0).copy(5, "out", 0)
    assert 'chunk(0, "in", 0).copy(5, "out", 0)' in str(raised.value)


def test_a_schedule_over_no_link_is_refused_with_the_line_of_the_program() -> None:
    with Program(AllToAll(8)) as program:
        for source in range(8):
            for target in range(8):
                chunk(source, "in", target).copy(target, "out", source)
    with pytest.raises(NoLink) as raised:
        Simulator(program.compile(opcodes=True), dgx1())
    assert "test_commands.py" in str(raised.value)


def test_a_machine_that_is_too_small_says_what_is_not() -> None:
    with pytest.raises(BadTopology, match="with 2 nodes it has 16"):
        Simulator(ring.all_reduce(16).compile(opcodes=True), ndv4())
    with pytest.raises(BadTopology, match="120 thread blocks on a rank"):
        Simulator(ring.all_reduce(8, instances=120).compile(opcodes=True), ndv4())


def around(ranks: int) -> list[tuple[int, int, int, int]]:
    return [(step, (r - step) % ranks, r, (r + 1) % ranks) for step in range(ranks - 1) for r in range(ranks)]


def test_sends_of_a_solver_are_a_program() -> None:
    assert Program.from_sends(AllGather(4), around(4)).compile().collective == AllGather(4)
    straight = [(0, 3 * s + d, s, d) for s in range(3) for d in range(3) if s != d]
    Program.from_sends(AllToAll(3), straight).compile()
    Program.from_sends(AllToAll(3, inplace=True), straight).compile()
    Program.from_sends(AllToNext(4, inplace=True), [(0, r, r, r + 1) for r in range(3)]).compile()
    by_two = [(0, 1, 0, 2), (1, 1, 2, 1), *(send for send in straight if send[1] != 1)]
    Program.from_sends(AllToAll(3), by_two).compile()
    summed = [(*send, "reduce") for send in around(4)]
    shared = [(3 + step, (r + 1 - step) % 4, r, (r + 1) % 4) for step in range(3) for r in range(4)]
    Program.from_sends(AllReduce(4, chunks=4, inplace=True), [*summed, *shared]).compile()


Holds = dict[tuple[int, str, int], Counter[int]]
"""How often the input of which rank is in the sum at a place."""


def after(program: Program) -> Holds:
    """What the operations of an AllReduce's program leave, but for the output."""
    size = program.collective.size
    holds: Holds = {(r, "in", c): Counter([r]) for r in range(size) for c in range(program.collective.inputs(r))}
    for _, node in program.chunk_dag.operations():
        assert node.src is not None
        value = holds[node.src.rank, node.src.buffer, node.src.index]
        place = node.dst.rank, node.dst.buffer, node.dst.index
        holds[place] = value + holds[place] if node.kind is Kind.REDUCE else value
    return {place: value for place, value in holds.items() if place[1] == "in"}


def meant(ranks: int, chunks: int, sends: list[Send]) -> Holds:
    """What sends leave if all of a step read what was there before it, and arrive in the order of the list."""
    holds: Holds = {(r, "in", c): Counter([r]) for r in range(ranks) for c in range(chunks)}
    for step in sorted({send[0] for send in sends}):
        before = dict(holds)
        for at, c, source, target, *how in sends:
            if at == step:
                value = before[source, "in", c]
                holds[target, "in", c] = holds[target, "in", c] + value if how else value
    return holds


def a_send() -> st.SearchStrategy[Send]:
    pair = st.permutations(range(4)).map(lambda ranks: ranks[:2])
    how = st.sampled_from([(), ("reduce",)])
    return st.tuples(st.integers(0, 2), st.integers(0, 1), pair, how).map(lambda s: (s[0], s[1], *s[2], *s[3]))


@given(st.lists(a_send(), max_size=16))
def test_all_sends_of_a_step_read_what_was_there_before(sends: list[Send]) -> None:
    assert after(Program.from_sends(AllReduce(4, chunks=2), sends)) == meant(4, 2, sends)


def test_a_send_of_what_arrives_in_the_same_step_is_of_what_was_there_before() -> None:
    sends = [(0, 0, 0, 1, "reduce"), (0, 0, 1, 2, "reduce")]
    for order in (sends, sends[::-1]):
        dag = Program.from_sends(Reduce(3, root=2), order).chunk_dag
        assert [(node.src.rank, node.dst.rank) for _, node in dag.operations() if node.src][:2] == [(1, 2), (0, 1)]
        assert not any(dag.scratch)
    with pytest.raises(InvalidArgument, match="send 1: rank 1 has no chunk 0 before step 0"):
        Program.from_sends(AllGather(3), [(0, 0, 0, 1), (0, 0, 1, 2)])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("chunks", [1, 2])
def test_ranks_exchange_what_they_have_in_one_step(inplace: bool, chunks: int) -> None:
    doubling = [(step, c, r, r ^ 1 << step, "reduce") for step in range(3) for r in range(8) for c in range(chunks)]
    Program.from_sends(AllReduce(8, chunks=chunks, inplace=inplace), doubling).compile()
    Program.from_sends(AllReduce(8, chunks=chunks, inplace=inplace), doubling[::-1]).compile()


def test_a_circle_with_a_tail_costs_one_copy_to_scratch() -> None:
    sends = [(0, 0, source, target, "reduce") for source, target in [(4, 3), (3, 0), (0, 1), (1, 2), (2, 0)]]
    for order in permutations(sends):
        assert sum(Program.from_sends(AllReduce(5), order).chunk_dag.scratch) == 1


@pytest.mark.parametrize(
    ("sends", "reason"),
    [
        (3, "sends are a list of (step, chunk, source, target), not 3"),
        ([(5, 0, 0, 1), (0, 2, 1, 3)], "send 1: rank 1 has no chunk 2 before step 0"),
        ([(0, 0, 0, 1, "reduce")], "send 0: rank 1 has no chunk 0 before step 0 to add to"),
        ([(0, 0, 0, 1), (0, 0, 0, 7)], "send 1: its target must be in [0, 4), not 7"),
        ([(0, 0, -1, 1)], "send 0: its source must be in [0, 4), not -1"),
        ([(0, 4, 0, 1)], "send 0: its chunk must be in [0, 4), not 4"),
        ([("0", 0, 0, 1)], "send 0: its step must be a whole number, not '0'"),
        ([(0, True, 0, 1)], "send 0: its chunk must be a whole number, not True"),
        ([(0, 0)], "send 0 must be (step, chunk, source, target) or"),
        ([(0, 0, 0, 1, "reduce", 0)], "send 0 must be (step, chunk, source, target) or"),
        (["0001"], "send 0 must be (step, chunk, source, target) or"),
        ([7], "send 0 must be (step, chunk, source, target) or"),
        ([(0, 0, 0, 1, "add")], "send 0: its fifth word must be \"reduce\", not 'add'"),
        ([(0, 0, 0, 1, None)], 'send 0: its fifth word must be "reduce", not None'),
        ([(0, 0, 0, 0)], "send 0: rank 0 sends to itself"),
    ],
)
def test_a_wrong_send_is_named_by_its_position(sends: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(reason)) as raised:
        Program.from_sends(AllGather(4), sends)
    assert "Program.from_sends(AllGather(4), sends)" in str(raised.value)


def test_wrong_sends_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="send 0: rank 1 has no chunk 2 before step 0"):
        Program.from_sends(AllGather(4), [(0, 2, 1, 3)])
    with pytest.raises(PostconditionFailed):
        Program.from_sends(AllGather(4), around(4)[:-1]).compile()
    with pytest.raises(HocketError, match="send 1: no link of dgx1 leads from rank 0 to 5"):
        Program.from_sends(AllGather(8), [(0, 0, 0, 1), (0, 0, 0, 5)], topology=dgx1())


def test_a_rank_alone_takes_no_time() -> None:
    done = CliRunner().invoke(
        app, ["sim", "ring:all_reduce", "ranks=1", "--sizes", "1KB", "--vs", "ring:all_reduce ranks=1"]
    )
    assert done.exit_code == 0, done.output
    assert "1 KB" in done.output


def test_a_program_goes_by_the_protocol_that_it_names() -> None:
    named = Simulator(ring.all_reduce(4).compile(protocol="simple"), ndv4())
    assert named.protocols() == ("Simple",)
    assert named.best(1 << 10).protocol == "Simple"
    with pytest.raises(BadTopology, match="LL is not for ring_all_reduce"):
        named.predict(1 << 10, "LL")
