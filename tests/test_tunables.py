"""The tuned numbers: one table, what HOCKET_TUNABLES may say of it, and that ranks which differ do not meet."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hocket
from hocket import Communicator, _native
from hocket.cli import app
from hocket.errors import BootstrapFailed
from hocket.explain import Explanation
from hocket.runtime.nodes import has_long_headers
from hocket.runtime.tuned import ALL, difference, tuned
from hocket.tunables import VARIABLE, Tunables, given, parse_size, show_size
from hocket.tuning import _WITH_HEADERS, EXCHANGED_BYTES, KINDS, MOST_EAGER_BYTES, TABLE, Call, choose

ROOT = Path(__file__).parent.parent


def test_every_row_says_what_it_is() -> None:
    names = [row.name for row in ALL]
    assert len(set(names)) == len(names) >= 30
    for row in ALL:
        assert re.fullmatch("[a-z][a-z0-9_]*", row.name)
        assert row.reason
        assert "\n" not in row.reason
        assert row.least <= row.value <= row.most
        assert not row.source or (ROOT / row.source).is_file()
        assert not row.name.endswith("_bytes") or row.unit == "bytes"


def test_what_the_ablation_switches_off_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from ablation import HEURISTICS

    for heuristic in HEURISTICS.values():
        text = ",".join(f"{name}={value}" for name, value in heuristic.off.items())
        said = given(text, ALL)
        assert said.keys() == heuristic.off.keys()
        assert said or heuristic.reach


def test_native_defaults_are_those_of_the_table() -> None:
    assert {row.name: row.value for row in _native.TUNABLES}.items() <= {row.name: row.value for row in ALL}.items()
    assert tuned().policy == Tunables()
    assert tuned().native == {row.name: row.value for row in _native.TUNABLES if row.scope != "fixed"}


def test_who_sleeps_soon() -> None:
    numbers = Tunables(spins=4, yields=3, crowded_spins=2, crowded_yields=1)
    assert numbers.patience(crowded=False, nodes=False) == (4, 3)
    assert numbers.patience(crowded=True, nodes=False) == (2, 1)
    assert numbers.patience(crowded=False, nodes=True) == (4, 3)
    assert numbers.patience(crowded=True, nodes=True) == (2, 3)  # nobody wakes a rank for another node's messages


def test_sizes() -> None:
    for size, text in ((0, "0 B"), (500, "500 B"), (1536, "1536 B"), (64 << 10, "64 KB"), (1 << 40, "1 TB")):
        assert show_size(size) == text
        assert parse_size(text) == parse_size(text.replace(" ", "")) == size
    for text, size in (
        ("1.5K", 1536),
        (" 8 ", 8),
        ("64KiB", 64 << 10),
        ("1.3K", 1331),
        ("9007199254740993", (1 << 53) + 1),
    ):
        assert parse_size(text) == size


@pytest.mark.parametrize("text", ["-1", "", "K", "8 X", "8  KB", "1.5", "0.5", "1.0", "1.0B", "8iB", "8i"])
def test_what_is_no_size(text: str) -> None:
    assert parse_size(text) is None


def test_what_can_be_said() -> None:
    found = given(" slots=8, small_bytes=64 KB,,spins = 0,early_tile_bytes=4096", ALL)
    assert found == {"slots": 8, "small_bytes": 64 << 10, "spins": 0, "early_tile_bytes": 4096}
    assert given("", ALL) == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("slots", "must be name=value,..., not 'slots'"),
        ("slot=8", "there is no tunable 'slot'"),
        ("slots=", "slots must be a number from 1 to 1024, not ''"),
        ("slots=0", "slots must be a number from 1 to 1024, not '0'"),
        ("slots=-1", "slots must be a number from 1 to 1024, not '-1'"),
        ("slots=8K", "slots must be a number from 1 to 1024, not '8K'"),
        ("small_bytes=much", "small_bytes must be a number from 0 B to 1 TB, not 'much'"),
        ("early_tile_bytes=3000", "early_tile_bytes must be a power of two from 64 B to 256 MB, not '3000'"),
        ("eager_bytes=1K", "eager_bytes is fixed in the code"),
        ("slots=8,slots=8", "slots is given twice"),
    ],
)
def test_what_cannot(text: str, error: str) -> None:
    with pytest.raises(BootstrapFailed, match=re.escape(error)):
        given(text, ALL)


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(BootstrapFailed) as caught:
        given("smal_bytes=1K", ALL)
    assert caught.value.help == "did you mean small_bytes?"


def test_the_first_difference_is_named() -> None:
    common = tuned().common
    assert difference(common, dict(common)) is None
    assert difference(common, {**common, "slots": 8}) == "slots is 8 there, 4 here"
    assert difference(common, {}) is not None


def meets_again(comm: Communicator, text: str) -> str:
    """What becomes of a meeting in which rank 1 alone has this variable."""
    if comm.rank == 1:
        os.environ[VARIABLE] = text
    try:
        with hocket.init(timeout=20) as other:
            return "" if other.all_gather(np.array([comm.rank])).tolist() == list(range(comm.size)) else "wrong"
    except BootstrapFailed as error:
        return error.reason


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("slots=8", "rank 1 is tuned otherwise than rank 0: slots is 8 there, 4 here"),
        ("small_bytes=1K", "rank 1 is tuned otherwise than rank 0: small_bytes is 1024 there, 131072 here"),
        ("slots=none", "rank 1: HOCKET_TUNABLES: slots must be a number from 1 to 1024, not 'none'"),
        ("near_ticks=100,spins=1", ""),  # of that rank alone
    ],
)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.campaign)])
def test_ranks_that_differ_refuse_each_other(text: str, error: str, ranks: int) -> None:
    assert hocket.spawn(meets_again, ranks, (text,)) == [error] * ranks


def explained(comm: Communicator, name: str, size: int) -> Explanation:
    return comm.explain(name, size)


def test_explain_says_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hocket.spawn(explained, 2, ("all_reduce", 64 << 10))[0]
    assert before.why == "small: the busiest rank sends and receives at most 128 KB"
    monkeypatch.setenv(VARIABLE, "small_bytes=32KB,slots=16,slot_bytes=4K,least_slot_bytes=4K")
    after = hocket.spawn(explained, 2, ("all_reduce", 64 << 10))[0]
    assert after.why.startswith("large")
    assert (after.program, after.tile, after.slots) == ("all_pairs_all_reduce", 4 << 10, 16)
    small = hocket.spawn(explained, 2, ("all_reduce", 16 << 10))[0]
    assert small.why == "small: the busiest rank sends and receives at most 32 KB"


def test_info_lists_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "slots=8")
    monkeypatch.setenv("COLUMNS", "200")
    found = CliRunner().invoke(app, ["info"])
    assert found.exit_code == 0, found.output
    lines = {line.split()[0]: line.split() for line in found.output.splitlines() if line.strip()}
    for row in ALL:
        shown = " ".join(lines[row.name])
        assert shown.startswith(f"{row.name} {8 if row.name == 'slots' else row.show(row.value)}")
        assert ("default 4" in shown) == (row.name == "slots")
    told = json.loads(CliRunner().invoke(app, ["info", "--json"]).output)
    assert [(row["name"], row["default"], row["unit"]) for row in told["tunables"]] == [
        (row.name, row.value, row.unit) for row in ALL
    ]
    assert [row["name"] for row in told["tunables"] if row["value"] != row["default"]] == ["slots"]


def test_info_of_what_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "slotz=8")
    found = CliRunner().invoke(app, ["info"])
    assert found.exit_code != 0
    assert "did you mean slots?" in found.output


PLACEMENTS = (
    *(
        tuple(rank % nodes for rank in range(ranks))
        for ranks in range(2, 17)
        for nodes in {2, 3, 5, ranks}
        if nodes <= ranks
    ),
    *(tuple(node for node, on in enumerate(each) for _ in range(on)) for each in [(15, 1), (7, 7, 1, 1), (6, 5, 5)]),
)


def largest_with_headers(collective: str, nodes: tuple[int, ...], *, long_headers: bool) -> int:
    """Bytes of a chunk of the largest call that goes with headers: a multiple of 64."""

    def goes(lines: int) -> bool:
        blocks = len(nodes) if KINDS[collective].blocks else 1
        call = Call(collective, len(nodes), 64 * lines * blocks, nodes=nodes, long_headers=long_headers)
        return choose(call).line.when is _WITH_HEADERS

    low, high = 1, 1 << 13
    assert goes(low)
    assert not goes(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes(middle) else (low, middle)
    return 64 * low


def most_at_once(on: list[int]) -> int:
    """Of how many ranks a node sends what they have said, in its longest message: what it and those before it have."""
    known = longest = 1
    while known < len(on):
        count = min(known, len(on) - known)
        longest = max(longest, *(sum(on[node - back] for back in range(count)) for node in range(len(on))))
        known += count
    return longest


@pytest.mark.parametrize("long_headers", [False, True])
@pytest.mark.parametrize("nodes", PLACEMENTS, ids=str)
@pytest.mark.parametrize("collective", [line.collective for line in TABLE if line.when is _WITH_HEADERS])
def test_what_is_to_go_with_headers_has_room_there(collective: str, nodes: tuple[int, ...], long_headers: bool) -> None:
    """In the area of a rank, and where it is to go at once, in a message of 62 KB with the headers (kAtOnce in
    native/transport/network.cpp). Nothing longer has or is to."""
    fixed, ranks, kind = {row.name: row.value for row in ALL}, len(nodes), KINDS[collective]
    chunk = largest_with_headers(collective, nodes, long_headers=long_headers)
    room = min(1 << (fixed["exchanged_bytes"] // ranks).bit_length() - 1, fixed["exchanged_rank_bytes"])
    most = fixed["long_header_bytes" if long_headers and not kind.combines else "header_bytes"]
    said = most_at_once([nodes.count(node) for node in sorted(set(nodes))])

    def fits(chunk: int) -> bool:
        own = chunk * (ranks - 1 if kind.cuts else 1)
        read = 0 if not kind.combines else own if kind.cuts else own * (ranks - 1)
        return own <= room and max(read, own * (said if kind.reads else 1)) <= most

    assert fits(chunk)
    halves = sum(sorted((nodes.count(node) for node in set(nodes)), reverse=True)[: len(set(nodes)) // 2])
    assert not fits(chunk + 64) or halves > said  # those of most ranks may not be neighbours
    if most == fixed["header_bytes"]:
        own = chunk * (ranks - 1 if kind.cuts else 1) * (said if kind.reads else 1)
        assert own + 72 * said <= 62 << 10


@pytest.mark.parametrize(
    ("version", "long"),
    [
        ("Open MPI v5.0.11, package: Open MPI", True),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS", True),
        ("MPICH Version:      5.0.2\nMPICH Release date: 2026", False),
        ("Some MPI", False),
    ],
)
def test_which_mpis_have_long_headers(version: str, long: bool) -> None:
    assert has_long_headers(version) == long


def test_room_with_headers() -> None:
    """What the table takes it for, and native code has."""
    fixed = {row.name: row.value for row in ALL}
    assert fixed["exchanged_bytes"] == EXCHANGED_BYTES
    assert fixed["exchanged_rank_bytes"] == MOST_EAGER_BYTES


@pytest.mark.parametrize(
    ("collective", "kilobytes", "long"),
    [
        ("all_reduce", 20, 20),
        ("all_gather", 120, 384),
        ("reduce_scatter", 40, 40),
        ("all_to_all", 40, 128),
        ("broadcast", 60, 128),
        ("reduce", 20, 20),
    ],
)
def test_how_much_goes_with_headers(collective: str, kilobytes: int, long: int) -> None:
    """As docs/machines.md says."""
    nodes = (0, 0, 1, 1)
    blocks = len(nodes) if KINDS[collective].blocks else 1
    for long_headers, expected in ((False, kilobytes), (True, long)):
        assert largest_with_headers(collective, nodes, long_headers=long_headers) * blocks == expected << 10
