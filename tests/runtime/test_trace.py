"""HOCKET_TRACE: what the file holds, against the schedules that ran."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import AllReduce, Communicator, Program, chunk, trace_events
from hocket.algorithms import ring
from hocket.errors import InvalidArgument, Location, PeerFailed
from hocket.ir.schedule import Schedule, Step
from hocket.runtime import trace
from hocket.tuning import default_program, zero_copy_program

Event = dict[str, Any]


def to_and_fro() -> Program:
    with Program(AllReduce(2, chunks=1, inplace=True), name="to_and_fro") as p:
        total = chunk(1, "in", 0).reduce(chunk(0, "in", 0))  # to
        total.copy(0, "in", 0)  # and fro
    return p


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace.json"
    monkeypatch.setenv(trace.VARIABLE, str(path))
    return path


def read(path: Path) -> list[Event]:
    """The events; times, which have three digits after the point, in nanoseconds."""
    events: list[Event] = json.loads(path.read_text(), parse_float=lambda text: int(text.replace(".", "")))
    for event in events:
        event["end"] = event["ts"] + event.get("dur", 0)
    return events


def of(events: list[Event], cat: str) -> list[Event]:
    return [event for event in events if event.get("cat") == cat]


def ranks_of(events: list[Event]) -> dict[int, int]:
    """The ranks of processes."""
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {pid: int(name.removeprefix("rank ")) for pid, name in named.items()}


def assert_nested(events: list[Event]) -> None:
    """On each track, of two slices one holds the other or they lie apart."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda e: (e["ts"], -e["end"]))
        open_: list[Event] = []
        for event in slices:
            while open_ and open_[-1]["end"] <= event["ts"]:
                open_.pop()
            assert not open_ or event["end"] <= open_[-1]["end"], (event, open_[-1])
            open_.append(event)


def named(step: Step) -> str:
    return step.opcode if step.moves else f"{step.opcode} (moves nothing)"


def assert_whole(events: list[Event], call: int, schedule: Schedule, tiles: int | None = None) -> None:
    """Each step of each rank is there once for each tile, with its lines, where its thread block is."""
    ranks = ranks_of(events)
    calls = [e for e in of(events, "call") if e.get("args", {}).get("call") == call]
    (found,) = {e["args"]["tiles"] for e in calls}
    assert tiles in (None, found)
    steps = Counter(
        (ranks[e["pid"]], e["tid"] - 1, e["args"]["tile"], e["args"]["step"], e["args"]["line"], e["name"])
        for e in of(events, "step")
        if e["args"]["call"] == call
    )
    assert steps == Counter(
        (r, b, tile, f"{b}.{s} {step}", ", ".join(dict.fromkeys(map(str, step.where))), named(step))
        for r, b, s, step in schedule.steps()
        for tile in range(found)
    )
    blocks = Counter(ranks[e["pid"]] for e in calls if e["tid"])
    assert blocks == {r: len(rank.thread_blocks) for r, rank in enumerate(schedule.ranks)}


def assert_messages_arrive(events: list[Event], allowed: int = 2000) -> None:
    """Each arrow has one beginning and one end, on two ranks, forward in time: but for what two clocks differ.

    The step that receives ends after the one that sends has begun; a thread that was set aside before it looked for the
    message says that it began earlier.
    """
    over = {(event["pid"], event["tid"], event["ts"]): event["end"] for event in of(events, "step")}
    ends: dict[str, dict[int, Event]] = {"s": {}, "f": {}}
    for event in of(events, "message"):
        assert event["id"] not in ends[event["ph"]]
        ends[event["ph"]][event["id"]] = event
    assert ends["s"].keys() == ends["f"].keys()
    for number, begin in ends["s"].items():
        end = ends["f"][number]
        assert begin["pid"] != end["pid"]
        assert begin["ts"] <= over[end["pid"], end["tid"], end["ts"]] + allowed


def tiled(comm: Communicator) -> None:
    x = np.ones(1 << 12, np.float32)
    comm.run(to_and_fro().compile(), x, tile=1 << 10)
    comm.run(to_and_fro().compile(), x, np.empty_like(x))
    comm.barrier()
    comm.adopt()


def test_every_step_of_every_rank_and_tile(file: Path) -> None:
    hocket.spawn(tiled, 2, threads=1)
    events = read(file)
    assert_whole(events, 1, to_and_fro().compile(), tiles=16)
    assert_nested(events)
    assert_messages_arrive(events)
    assert {e["args"]["bytes"] for e in of(events, "step") if e["args"]["call"] == 1} == {1 << 10}
    here, source = Location(__file__, 1).path, Path(__file__).read_text().splitlines()
    lines = {f"{here}:{n}" for n, line in enumerate(source, 1) if line.endswith(("# to", "# and fro"))}
    places = {place for e in of(events, "step") for place in e["args"]["line"].split(", ")}
    assert {place.rpartition(":")[0] for place in places} == lines
    assert {e["name"] for e in of(events, "call")} == {"to_and_fro (16384 B)", "all ranks enter", "barrier", "exchange"}


def small(comm: Communicator) -> None:
    for _ in range(3):
        comm.all_reduce(np.ones(2))


def test_a_call_in_one_round(file: Path) -> None:
    hocket.spawn(small, 3)
    events = read(file)
    assert_nested(events)
    for call in (1, 2, 3):
        assert_whole(events, call, default_program("all_reduce", 3, small=True).compile(), tiles=1)
    assert {e["args"]["waits"] for e in of(events, "call") if "bytes" in e.get("args", {})} == {"for all to enter"}
    assert not of(events, "message")


def lent(comm: Communicator) -> None:
    x = comm.empty(3 << 14, np.float32)
    x[:] = 1
    for _ in range(3):
        comm.all_reduce(x)


def test_messages_in_the_arrays(file: Path) -> None:
    """Ranks that wait for each other before and after alone wait for no message: there are no arrows."""
    hocket.spawn(lent, 3, threads=1)
    events = read(file)
    program = zero_copy_program("all_reduce", 3, inplace=True)
    assert program is not None
    for call in (1, 2, 3):  # the last of them are remembered
        assert_whole(events, call, program.compile(storage="peer"))
    assert all(e["args"]["in_place"] for e in of(events, "call") if "args" in e)
    assert {e["args"]["waits"] for e in of(events, "call") if "bytes" in e.get("args", {})} == {
        "for all to enter and for partners to be done"
    }
    assert_nested(events)
    assert not of(events, "message")
    moving = defaultdict(set)
    for event in of(events, "step"):
        moving[event["args"]["moves"]].add(event["args"]["bytes"])
    assert moving == {True: {1 << 16}, False: {0}}


def lent_in_turns(comm: Communicator) -> None:
    comm.run(ring.all_reduce(3).compile(storage="peer"), comm.empty(3 << 14, np.float32))


def test_messages_in_the_arrays_that_ranks_wait_for(file: Path) -> None:
    hocket.spawn(lent_in_turns, 3, threads=1)
    events = read(file)
    assert_whole(events, 1, ring.all_reduce(3).compile(storage="peer"))
    assert of(events, "message")
    assert_messages_arrive(events)


def background(comm: Communicator) -> None:
    schedule = ring.all_reduce(comm.size, instances=4).compile()
    x = np.ones(1 << 19, np.float32)
    handles = [comm.run(schedule, x, async_=True) for _ in range(3)]
    for handle in handles:
        handle.wait()


def test_threads_and_calls_in_the_background(file: Path) -> None:
    hocket.spawn(background, 2, threads=2)
    events = read(file)
    for call in (1, 2, 3):
        assert_whole(events, call, ring.all_reduce(2, instances=4).compile())
    assert_nested(events)
    assert_messages_arrive(events)
    assert {e["args"]["thread"] for e in of(events, "step")} == {0, 1}


def family(comm: Communicator) -> None:
    x = np.ones(1 << 15, np.float32)
    pair = comm.split(comm.rank // 2, key=-comm.rank)
    assert pair is not None
    pair.run(to_and_fro().compile(), x)
    comm.run(ring.all_reduce(4).compile(), x)
    pair.close()


def test_communicators_have_tracks_of_their_own(file: Path) -> None:
    hocket.spawn(family, 4)
    events = read(file)
    assert_nested(events)
    assert_messages_arrive(events)  # two pairs at once: their messages are not mixed up
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"calls", "tb 0", "communicator 1, rank 0 of 2: calls", "communicator 1, rank 1 of 2: tb 0"} <= names
    tracks = {e["tid"] for e in of(events, "step")}
    assert {track // trace_events.TRACKS for track in tracks} == {0, 1}
    assert sorted(ranks_of(events).values()) == [0, 1, 2, 3]


def endless(comm: Communicator) -> None:
    x = np.ones(trace.MOST_STEPS * 48, np.uint8)
    comm.run(to_and_fro().compile(), x, tile=64)
    comm.run(to_and_fro().compile(), x, tile=64)


@pytest.mark.campaign
def test_what_does_not_fit_is_counted(file: Path) -> None:
    hocket.spawn(endless, 2, threads=1)
    events = read(file)
    (tiles,) = {e["args"]["tiles"] for e in of(events, "call") if "args" in e}
    steps = Counter(r for r, *_ in to_and_fro().compile().steps())
    for pid, rank in ranks_of(events).items():
        kept = sum(e["pid"] == pid for e in of(events, "step"))
        dropped = sum(e["args"]["dropped_steps"] for e in events if e["ph"] == "i" and e["pid"] == pid)
        assert kept == trace.MOST_STEPS
        assert kept + dropped == 2 * tiles * steps[rank]
    assert_nested(events)


def killed(comm: Communicator) -> None:
    x = np.ones(1 << 14, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerFailed):
        comm.all_reduce(x)


def test_a_rank_that_is_killed_leaves_a_readable_file(file: Path) -> None:
    with pytest.raises(hocket.errors.RankFailed):
        hocket.spawn(killed, 3)
    events = read(file)
    assert sorted(ranks_of(events).values()) == [0, 2]
    assert {e["args"]["fault"] for e in of(events, "call") if "fault" in e.get("args", {})} == {"PEER"}


def test_an_end_in_the_middle_of_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for content, kept in (("", []), ('[\n{"a', []), ('[\n{"a":1},\n{"b"', [{"a": 1}]), ('[\n{"a":1}\n]\n', [{"a": 1}])):
        path.write_text(content)
        trace._append(path, ['{"c":2}', '{"d":3}'])
        trace._append(path, ['{"e":4}'])
        assert json.loads(path.read_text()) == [*kept, {"c": 2}, {"d": 3}, {"e": 4}]


def nothing(comm: Communicator) -> None:
    comm.barrier()


@pytest.mark.parametrize(("name", "why"), [("no/such/trace.json", "No such file"), (".", "no regular file")])
def test_a_file_that_cannot_be_written(name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trace.VARIABLE, name)
    with pytest.raises(InvalidArgument, match=f"HOCKET_TRACE is '{name}'.*{why}"):
        hocket.spawn(nothing, 2)


def test_a_job_replaces_what_an_earlier_one_wrote(file: Path) -> None:
    hocket.spawn(nothing, 3)
    hocket.spawn(nothing, 2)
    assert sorted(ranks_of(read(file)).values()) == [0, 1]


def meets(comm: Communicator, gates: str) -> None:
    comm.run(to_and_fro().compile(), np.ones(1 << 12))
    Path(f"{gates}-{comm.rank}").read_bytes()  # until the other job is here


def test_two_jobs_at_once_share_a_file(file: Path, tmp_path: Path) -> None:
    jobs, gates = [], []
    for name in ("one", "other"):
        gates += [tmp_path / f"{name}-{rank}" for rank in (0, 1)]
        jobs.append(threading.Thread(target=hocket.spawn, args=(meets, 2, [str(tmp_path / name)])))
    for gate in gates:
        os.mkfifo(gate)
    for job in jobs:
        job.start()
    for opened in [gate.open("wb") for gate in gates]:  # each waits for its rank
        opened.close()
    for job in jobs:
        job.join()
    events = read(file)
    assert sorted(ranks_of(events).values()) == [0, 0, 1, 1]
    assert_messages_arrive(events)
    assert_nested(events)
