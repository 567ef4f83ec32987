"""Timelines: read from what the runtime recorded, as a page, and for Perfetto."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import hocket
from hocket import Communicator, Schedule, parse_schedule, trace_events
from hocket.algorithms import all_pairs, direct, hierarchical, ring
from hocket.cli import app
from hocket.errors import HocketError, InvalidArgument
from hocket.runtime import trace
from hocket.sim import Simulator
from hocket.timeline import LinkUse, Message, Span, Timeline, measured
from hocket.topology import ndv4
from tests.timelines import assert_valid, lockstep

HERE = Path(__file__).parent
PAIR = """schedule "pair"
collective broadcast(ranks=2, chunks=2, root=0)
protocol auto
slots 1
rank 0 scratch 0
  block 0 >1.0
    0: send in[0] -> >1.0
    1: send in[1] -> >1.0
  block 1
    0: copy in[0:+2] -> out[0:+2]
rank 1 scratch 0
  block 0 <0.0
    0: recv <0.0 -> out[0]
    1: recv <0.0 -> out[1]
"""


def pair() -> Timeline:
    return lockstep(parse_schedule(PAIR, "pair.txt"), 2, lambda i: 1 + i / 2)


# ---------------------------------------------------------------------------------------------------------------
# Files


def test_golden_of_perfetto(golden: Callable[[Path, str], None], tmp_path: Path) -> None:
    pair().draw(tmp_path / "pair.json")
    text = (tmp_path / "pair.json").read_text()
    json.loads(text)
    golden(HERE / "golden" / "timeline_pair.json", text)


def test_perfetto_has_a_process_for_each_rank_of_each(tmp_path: Path) -> None:
    pair().draw(tmp_path / "two.json", pair())
    events = json.loads((tmp_path / "two.json").read_text())
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"in lockstep: {what}" for what in ("rank 0", "rank 1", "links")] * 2
    assert len({event["pid"] for event in events}) == 6
    ends = [(event["ph"], event["id"]) for event in events if event.get("cat") == "message"]
    assert len(ends) == len(set(ends)) == 2 * 2 * 4


def test_events_are_those_of_the_trace_event_format(tmp_path: Path) -> None:
    """What Google's document of the format asks of them, and of slices and flows what Perfetto needs to show them."""
    schedule = hierarchical.all_reduce(2, 2).compile(opcodes=True, slots=8)
    Simulator(schedule, ndv4()).trace(1 << 20, "LL").timeline.draw(tmp_path / "simulated.json", pair())
    events: list[dict[str, Any]] = json.loads((tmp_path / "simulated.json").read_text())
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    flows: dict[int, dict[str, dict[str, Any]]] = {}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
        elif event["ph"] in "sf":
            assert event["bp"] == "e"
            assert event["ph"] not in flows.setdefault(event["id"], {})
            flows[event["id"]][event["ph"]] = event
        else:
            assert event["ph"] == "M"
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == set(slices)
    for track in slices.values():
        track.sort()
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(track))  # times have three digits
    assert flows
    for flow in flows.values():
        sent, received = flow["s"], flow["f"]
        assert sent["ts"] <= received["ts"]
        assert (sent["cat"], sent["name"]) == (received["cat"], received["name"])
        for end in (sent, received):
            assert any(begin == end["ts"] for begin, _ in slices[end["pid"], end["tid"]])


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"ends in \.html or \.json, not 'pair\.svg'"):
        pair().draw(tmp_path / "pair.svg")


def content(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def decoded(data: dict[str, Any], number: int, schedule: Schedule) -> Timeline:
    """The timeline that a page shows; its links are in the order of the page."""
    said = data["timelines"][number]
    lanes = data["schedules"][said["schedule"]]["lanes"]
    spans = said["spans"]
    return Timeline(
        said["title"],
        schedule,
        tuple(
            Span(lanes[lane]["rank"], lanes[lane]["block"], *rest)
            for lane, *rest in zip(
                *(spans[key] for key in ("lane", "step", "tile", "begin", "end", "waited")), strict=True
            )
        ),
        tuple(
            Message(sent, received, size, tuple(said["names"][name] for name in over))
            for sent, received, size, over in zip(*said["messages"].values(), strict=True)
        ),
        tuple(LinkUse(link["name"], tuple(map(tuple, link["use"]))) for link in said["links"]),
        said["total"],
    )


def steps_of(data: dict[str, Any], number: int) -> list[tuple[int, int, int, str, list[list[int]]]]:
    lanes = data["schedules"][data["timelines"][number]["schedule"]]["lanes"]
    return [
        (lane["rank"], lane["block"], s, step["text"], step["waits"])
        for lane in lanes
        for s, step in enumerate(lane["steps"])
    ]


def said(schedule: Schedule) -> list[tuple[int, int, int, str, list[list[int]]]]:
    return [(r, b, s, str(x), [[w.thread_block, w.step] for w in x.waits]) for r, b, s, x in schedule.steps()]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.integers(1, 3), st.booleans())
def test_a_page_says_all_of_a_timeline(nanoseconds: list[int], tiles: int, instances: bool) -> None:
    schedule = hierarchical.all_reduce(2, 2).compile(instances=1 + instances)
    timeline = lockstep(schedule, tiles, lambda i: nanoseconds[i % len(nanoseconds)] / 1000)
    other = lockstep(ring.all_reduce(3).compile())
    assert_valid(timeline)
    from hocket.formats.timeline_page import page

    data = content(page([timeline, other, timeline]))
    assert len(data["schedules"]) == 2
    for number, shown in enumerate([timeline, other, timeline]):
        assert steps_of(data, number) == said(shown.schedule)
        found = decoded(data, number, shown.schedule)
        assert rounded(found) == rounded(shown)


def rounded(timeline: Timeline) -> list[object]:
    """Its parts, links by name, times in nanoseconds."""

    def ns(time: float) -> int:
        return round(time * 1000)

    return [
        timeline.title,
        ns(timeline.total),
        [(s.rank, s.thread_block, s.step, s.tile, ns(s.begin), ns(s.end), ns(s.waited)) for s in timeline.spans],
        timeline.messages,
        {use.link: [(ns(b), ns(e), share) for b, e, share in use.intervals] for use in timeline.links},
    ]


def test_a_page_shows_lines_of_the_program() -> None:
    timeline = lockstep(ring.all_reduce(3).compile())
    data = content(page_of(timeline))
    assert all("ring.py:" in place for place, _ in data["lines"])
    assert {"reduce" in source or "copy" in source for _, source in data["lines"]} == {True}
    steps = [step for schedule in data["schedules"] for lane in schedule["lanes"] for step in lane["steps"]]
    assert all(step["where"] for step in steps)


def test_two_schedules_of_one_name_are_both_said() -> None:
    from hocket.formats.timeline_page import page

    text = page([lockstep(ring.all_reduce(3).compile(instances=n)) for n in (1, 2)])
    assert "3 thread blocks" in text
    assert "6 thread blocks" in text


def page_of(timeline: Timeline) -> str:
    from hocket.formats.timeline_page import page

    return page([timeline])


def test_names_cannot_end_the_script_or_the_title() -> None:
    evil = "</script></title><script>alert(1)</script><!--\u202e"
    text = PAIR.replace('"pair"', json.dumps(evil, ensure_ascii=False))
    timeline = lockstep(parse_schedule(text, f"{evil}.txt"))
    page = page_of(timeline)
    assert page.count("<script") == page_of(pair()).count("<script") == 2
    assert page.count("</script>") == 2
    assert "alert(1)" not in re.sub(r"<(title|h1)>.*?</\1>|id=\"data\">.*", "", page)


def test_a_page_needs_nothing_from_elsewhere() -> None:
    page = page_of(pair())
    assert not re.findall(r"https?://|@import|<link|\bsrc=|url\(", page)


def test_a_notebook_gets_the_page_in_a_frame() -> None:
    frame = pair()._repr_html_()
    found = re.fullmatch(
        r'<iframe sandbox="allow-scripts" title="timeline" style="[^"]*" srcdoc="([^"]*)"></iframe>', frame
    )
    assert found
    assert unescape(found[1]) == page_of(pair())


# ---------------------------------------------------------------------------------------------------------------
# Measured


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trace.VARIABLE, "trace.json")
    return Path("trace.json")


def calls(comm: Communicator, apart: bool) -> None:
    x = np.ones(3 << 14, np.float32)
    schedule = ring.all_reduce(comm.size).compile()
    comm.run(schedule, x, tile=1 << 12)
    comm.barrier()
    comm.run(schedule, x, *([np.empty_like(x)] if apart else []))


@pytest.fixture(scope="module")
def three_calls(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What ``calls`` leaves, of three ranks, in place."""
    path = tmp_path_factory.mktemp("three_calls") / "trace.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(trace.VARIABLE, str(path))
        hocket.spawn(calls, 3, [False], threads=1)
    return path.read_bytes()


@pytest.fixture
def recorded(file: Path, three_calls: bytes) -> Path:
    file.write_bytes(three_calls)
    return file


@pytest.mark.parametrize("apart", [False, True])
def test_a_measured_call(file: Path, apart: bool, three_calls: bytes) -> None:
    if apart:
        hocket.spawn(calls, 3, [apart], threads=1)
    else:
        file.write_bytes(three_calls)
    schedule = ring.all_reduce(3).compile()
    last, tiled = measured(file, schedule), measured(file, schedule, 1)
    assert last.title.startswith("measured: call 3, ")
    for timeline in (last, tiled):
        assert_valid(timeline)
        assert {message.bytes for message in timeline.messages} <= {1 << 16, 1 << 12}
    assert max(span.tile for span in tiled.spans) == 15
    assert tiled.schedule == schedule
    assert (last.schedule == schedule) != apart
    assert last.schedule.collective.inplace != apart
    assert measured(file, schedule, 3) == last


def test_times_are_those_of_the_file(recorded: Path) -> None:
    timeline = measured(recorded, ring.all_reduce(3).compile(), 1)
    events = [event for event in json.loads(recorded.read_text()) if event.get("args", {}).get("call") == 1]
    steps = [event for event in events if event["cat"] == "step"]
    entered = max(event["ts"] for event in events if event["cat"] == "call" and event["tid"] == 0)
    start = min(entered, *(event["ts"] for event in steps))
    assert sorted((round(e["ts"] - start, 3), round(e["ts"] + e["dur"] - start, 3)) for e in steps) == sorted(
        (span.begin, span.end) for span in timeline.spans
    )
    assert timeline.total == round(max(e["ts"] + e["dur"] for e in events if e["cat"] == "call") - start, 3)


def in_rounds(comm: Communicator) -> None:
    comm.run(all_pairs.all_reduce(comm.size).compile(storage="peer"), comm.empty(3 << 12, np.float32))
    comm.run(direct.all_gather(comm.size).compile(), np.ones(2, np.float32))


def test_calls_whose_steps_wait_for_no_message_have_none(file: Path) -> None:
    hocket.spawn(in_rounds, 3, threads=1)
    for schedule in (all_pairs.all_reduce(3).compile(storage="peer"), direct.all_gather(3).compile()):
        assert_valid(measured(file, schedule), one_thread_each=False, messages=False)  # a thread runs all thread blocks


def on_threads(comm: Communicator) -> None:
    comm.run(ring.all_reduce(comm.size, instances=4).compile(), np.ones(1 << 19, np.float32))


def test_threads_wait_no_longer_than_the_call_lasts(file: Path) -> None:
    hocket.spawn(on_threads, 2, threads=2)
    timeline = measured(file, ring.all_reduce(2, instances=4).compile())
    assert_valid(timeline, one_thread_each=False)
    for rank in range(2):
        assert sum(s.end - s.begin + s.waited for s in timeline.spans if s.rank == rank) <= 2 * timeline.total + 1e-3


def in_pairs(comm: Communicator) -> None:
    half = comm.split(comm.rank // 2)
    assert half is not None
    half.run(ring.all_reduce(2).compile(), np.ones(1 << 10 << (comm.rank // 2), np.float32))


def test_ranks_of_one_communicator_are_not_mixed_with_those_of_another(file: Path) -> None:
    hocket.spawn(in_pairs, 4)
    timeline = measured(file, ring.all_reduce(2).compile())
    assert_valid(timeline, one_thread_each=False)
    assert len({message.bytes for message in timeline.messages}) == 1


def whole_and_halves(comm: Communicator) -> None:
    half = comm.split(comm.rank // 2)
    assert half is not None
    for one in (comm, half):
        one.run(ring.all_reduce(one.size).compile(), np.ones(1 << 12, np.float32))


def test_calls_of_communicators_of_several_sizes(file: Path) -> None:
    hocket.spawn(whole_and_halves, 4)
    for size in (4, 2):
        assert_valid(measured(file, ring.all_reduce(size).compile()), one_thread_each=False)


def refused(file: Path, schedule: Schedule, call: int | None = None) -> str:
    with pytest.raises(HocketError) as caught:
        measured(file, schedule, call)
    return str(caught.value)


def test_golden_messages(recorded: Path, golden: Callable[[Path, str], None]) -> None:
    lines = recorded.read_text().splitlines(keepends=True)
    ring3 = ring.all_reduce(3).compile()

    def edited(name: str, *kept: str) -> Path:
        Path(name).write_text("".join(kept))
        return Path(name)

    found = re.search(r'"pid":\d+,', next(line for line in lines if '"rank 1"' in line))
    assert found
    process = found[0]
    last_step = max(i for i, x in enumerate(lines) if '"cat":"step"' in x and '"call":1,' in x and process in x)
    messages = {
        "no file": refused(Path("none.json"), ring3),
        "no trace": refused(edited("text.json", "a text"), ring3),
        "not JSON": refused(edited("broken.json", '{"cat":"call","schedule":'), ring3),
        "cut": refused(
            edited("cut.json", *lines[:last_step], lines[last_step][:60] + "\n", *lines[last_step + 1 :]), ring3, 1
        ),
        "other program": refused(recorded, all_pairs.all_reduce(3).compile()),
        "other number": refused(recorded, ring3, 2),
        "other ranks": refused(recorded, ring.all_reduce(2).compile()),
        "other instances": refused(recorded, ring.all_reduce(3).compile(instances=2)),
        "rank 1 was killed": refused(edited("killed.json", *(x for x in lines if process not in x)), ring3),
        "a step more than there was room for": refused(
            edited("dropped.json", *lines[:last_step], *lines[last_step + 1 :]), ring3, 1
        ),
        "a call that failed": refused(
            edited("failed.json", *(line.replace('"in_place"', '"fault":"PEER","in_place"') for line in lines)), ring3
        ),
    }
    text = "\n\n".join(f"# {what}\n{message}" for what, message in messages.items())
    golden(HERE / "golden" / "timeline_refused.err", text)


def test_of_many_lines_only_those_of_the_call_are_decoded(recorded: Path) -> None:
    """What a trace of millions of events costs to read."""
    assert len(list(trace_events.steps(recorded, 3))) < len(list(trace_events.steps(recorded, 1)))
    assert {event.args.call for event in trace_events.steps(recorded, 3)} == {3}


# ---------------------------------------------------------------------------------------------------------------
# The command


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["timeline", *words])


def test_the_command_draws_a_page_and_for_perfetto(recorded: Path) -> None:
    schedule = ring.all_reduce(3).compile()
    done = run("ring:all_reduce", "ranks=3", "--trace", str(recorded))
    assert done.exit_code == 0, done.output
    assert "measured: call 3, 196608 B" in done.output
    assert "drew timeline.html" in done.output
    found = decoded(content(Path("timeline.html").read_text()), 0, schedule)
    assert rounded(found) == rounded(measured(recorded, schedule))
    done = run("ring:all_reduce", "ranks=3", "--trace", str(recorded), "--call", "1", "-o", "one.json")
    assert done.exit_code == 0, done.output
    measured(recorded, schedule, 1).draw("same.json")
    assert Path("one.json").read_text() == Path("same.json").read_text()


def test_the_command_draws_a_simulated_call_above_the_measured(recorded: Path) -> None:
    machine = ["--topology", "ndv4", "--size", "192KB"]
    done = run("ring:all_reduce", "ranks=3", *machine, "--trace", str(recorded))
    assert done.exit_code == 0, done.output
    assert re.search(r"simulated: \S+, 196608 B on ndv4: \S+ us", done.output)
    simulated, measured = content(Path("timeline.html").read_text())["timelines"]
    assert simulated["title"].startswith("simulated: ")
    assert simulated["links"]
    assert measured["title"].startswith("measured: call 3, ")
    done = run("ring:all_reduce", "ranks=3", *machine, "-o", "alone.json")
    assert done.exit_code == 0, done.output
    names = {event["name"] for event in json.loads(Path("alone.json").read_text())}
    assert "process_name" in names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "x.svg"], "the name of a timeline ends in .html, .json, not 'x.svg'"),
        (["-o", "no/x.html"], "there is no directory no"),
        (["--trace", "trace.json", "-o", "trace.json"], "trace.json is the trace, which this would replace"),
        (["--trace", "trace.json", "--topology", "ndv4"], "a timeline is of a call in a --trace, or simulated on a"),
        (["--trace", "none.json"], "cannot read none.json: No such file or directory"),
    ],
)
def test_what_the_command_refuses(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text("")
    given = words if "--trace" in words else ["--trace", "trace.json", *words]
    done = run("ring:all_reduce", "ranks=3", *given)
    assert done.exit_code == 2
    assert said in done.output


def test_a_large_one_is_small_enough() -> None:
    """A page of 64 ranks stays one that a browser opens at once: numbers of spans and messages, and each text once."""
    timeline = lockstep(ring.all_reduce(64).compile(), tiles=4)
    texts = sum(len(str(step)) for *_, step in timeline.schedule.steps())
    assert len(page_of(timeline)) < 70 * len(timeline.spans) + 3 * texts + 60_000
