"""``Communicator.explain`` against what the call then does, and the table behind it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hocket
from hocket import Communicator
from hocket.cli import app
from hocket.errors import InvalidArgument
from hocket.explain import Explanation
from hocket.ir.traffic import Traffic
from hocket.runtime import trace
from hocket.tuning import NAMED, Call, choose, declined

SIZES = (96, 12 << 10, 3 << 19, 6 << 20)


@pytest.fixture(autouse=True)
def not_calibrated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have calibrated the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def explained_and_called(comm: Communicator) -> tuple[list[Explanation], list[Traffic]]:
    """Every collective by name, in each size: what rank 0 says of it before, alone, and what this rank then moves."""
    found, moved = [], []
    for name in NAMED:
        for size in SIZES:
            if comm.rank == 0:
                found.append(comm.explain(name, size))
            shared = comm.size if name in ("all_gather", "gather") else 1
            before = comm.traffic()
            getattr(comm, name)(np.ones(size // 4 // shared, np.float32))
            moved.append(comm.traffic() - before)
    return found, moved


@pytest.mark.parametrize(("ranks", "threads", "caches"), [(2, 1, 1 << 40), (3, 1, 1 << 10), (2, 2, 1 << 22)])
def test_a_call_does_what_was_said(
    ranks: int, threads: int, caches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CACHE_BYTES", str(caches))
    monkeypatch.setenv("HOCKET_REACH", "never")
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "trace.json"))
    results = hocket.spawn(explained_and_called, ranks, threads=threads)
    said = results[0][0]
    moved = [sum(of_ranks, Traffic()) for of_ranks in zip(*(moved for _, moved in results), strict=True)]
    assert [Traffic(e.loaded, e.stored) for e in said] == moved
    events = json.loads((tmp_path / "trace.json").read_text())
    (root,) = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "rank 0"}
    track = [e for e in events if e.get("cat") == "call" and e["pid"] == root and "args" in e and e["tid"] == 0]
    assert len(track) == len(said)
    for call, explanation in zip(sorted(track, key=lambda e: e["args"]["call"]), said, strict=True):
        about = call["args"]
        assert call["name"] == f"{explanation.program} ({about['bytes']} B)"
        assert about["tile_bytes"] == explanation.tile
        assert about["tiles"] == explanation.tiles
        assert (about["waits"] == "for all to enter") == explanation.one_round
        assert about["threads"] == explanation.threads
        past = explanation.touched > caches and not explanation.one_round
        assert about["non_temporal"] == explanation.non_temporal == past
    assert {e.one_round for e in said} == {True, False}
    assert {e.non_temporal for e in said} == ({False} if caches == 1 << 40 else {True, False})
    assert {e.threads for e in said} == {1, threads}


def test_a_reduce_has_short_tiles_on_two_ranks_with_a_core_each() -> None:
    def tile(size: int, ranks: int = 2, oversubscribed: bool = False) -> int | None:
        return choose(Call("reduce", ranks, size, oversubscribed=oversubscribed)).tile

    sizes = (16 << 10, (16 << 10) + 1, 128 << 10, (128 << 10) + 1, 512 << 10, (512 << 10) + 1)
    assert [tile(size) for size in sizes] == [None, 16 << 10, 16 << 10, 32 << 10, 32 << 10, None]
    assert [tile(size, oversubscribed=True) for size in sizes] == [tile(size, ranks=3) for size in sizes] == [None] * 6


def reduce_both(comm: Communicator) -> bool:
    """Of an array of its own, then of a shared one; says whether there are more ranks than cores."""
    shared = comm.empty(1 << 16, np.float32)
    for x in (np.ones(1 << 16, np.float32), shared):
        x[:] = 1
        comm.reduce(x)
        assert (x == (1 if comm.rank else 2)).all()
    return comm._endpoint.oversubscribed


def test_a_tile_of_the_table_is_not_for_shared_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "trace.json"))
    oversubscribed = hocket.spawn(reduce_both, 2, threads=1)[0]
    events = json.loads((tmp_path / "trace.json").read_text())
    calls = [e["args"] for e in events if e.get("cat") == "call" and "args" in e and e["tid"] == 0]
    tiles = {about["call"]: about["tile_bytes"] for about in calls}
    through_slots, lent = (tiles[call] for call in sorted(tiles))
    assert oversubscribed is (through_slots != 32 << 10)
    assert lent > 32 << 10


def facts(comm: Communicator) -> list[Explanation]:
    if comm.rank:
        return []
    ordered = comm.explain("all_reduce", 1 << 24, reproducible="rank-order")
    return [*(comm.explain("all_reduce", size) for size in (8, 1 << 24)), ordered, comm.explain("gather", 0, root=2)]


def test_traffic_and_rounds_are_those_of_the_schedule() -> None:
    small, large, ordered, nothing = hocket.spawn(facts, 3)[0]
    assert (small.program, small.rounds, small.one_round) == ("one_shot_all_reduce", 1, True)
    assert small.loaded + small.stored == 8 * (3**2 + 3 * 3)  # every rank copies in and reads all
    assert (large.program, large.rounds) == ("all_pairs_all_reduce", 2)
    assert (ordered.program, ordered.why) == ("one_shot_all_reduce", 'reproducible="rank-order", at any size')
    assert nothing.loaded == nothing.stored == 0
    assert large.predicted > (large.loaded + large.stored) / 3 / large.bandwidth
    assert 0 < nothing.predicted < large.predicted


def small_call(comm: Communicator) -> Explanation | None:
    return comm.explain("all_reduce", 8) if comm.rank == 0 else None


def test_more_ranks_than_cores_take_turns() -> None:
    """A rank that waits then has its core again only after the others: nothing near the time of a call on cores of
    their own."""
    cores = len(os.sched_getaffinity(0))
    oversubscribed, alone = hocket.spawn(small_call, cores + 1)[0], hocket.spawn(small_call, 1)[0]
    assert oversubscribed is not None
    assert alone is not None
    assert oversubscribed.oversubscribed
    assert "cores      fewer than ranks: they take turns" in str(oversubscribed)
    assert oversubscribed.predicted > 3e-6
    assert not alone.oversubscribed
    assert "cores      at least one a rank" in str(alone)


def refused(comm: Communicator) -> None:
    with pytest.raises(InvalidArgument, match="no collective 'all_reduced'"):
        comm.explain("all_reduced", 8)
    with pytest.raises(InvalidArgument, match=r"nbytes must be a number of bytes below 2\*\*62, not -1"):
        comm.explain("all_reduce", -1)
    with pytest.raises(InvalidArgument, match="nbytes must be"):
        comm.explain("all_reduce", True)
    assert comm.explain("all_reduce", np.int64(64)).bytes == 64
    with pytest.raises(InvalidArgument, match="root must be in"):
        comm.explain("broadcast", 8, root=2)
    comm.barrier()


def test_wrong_arguments() -> None:
    hocket.spawn(refused, 2)


@pytest.mark.parametrize(("name", "most"), [("all_reduce", 64 << 10), ("reduce", 8 << 20), ("all_gather", 192 << 10)])
def test_small_is_up_to_a_limit(name: str, most: int) -> None:
    assert choose(Call(name, 3, most)).why.startswith("small")
    assert choose(Call(name, 3, most + 1)).why.startswith("large")
    assert choose(Call(name, 3, None)).why.startswith("large")


def test_large_calls_depend_on_ranks_and_sockets() -> None:
    def program(name: str, ranks: int, sockets: int = 1) -> str:
        return choose(Call(name, ranks, 1 << 28, sockets=sockets)).program().name

    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert program(name, 17) == f"ring_{name}" != program(name, 16)
    for name in ("all_reduce", "reduce_scatter", "reduce"):
        assert program(name, 4, sockets=2) == f"movement_avoiding_{name}" != program(name, 4)


def test_large_calls_are_spread_over_threads() -> None:
    assert choose(Call("all_reduce", 3, 1 << 20, threads=4)).instances == 4
    assert choose(Call("all_reduce", 3, (1 << 20) - 1, threads=4)).instances == 1
    assert choose(Call("all_gather", 3, 1 << 20, threads=4, uneven=True)).instances == 1
    spread, alone = (choose(Call("reduce", 3, 1 << 20, threads=threads)) for threads in (4, 1))
    assert spread.why.startswith("large")
    assert alone.why.startswith("small")


def in_shared_arrays(comm: Communicator) -> list[tuple[Explanation, list[Traffic]]]:
    """What rank 0 says, and what this rank moves in place and apart."""
    found = []
    for size in (8 << 10, 1 << 20):
        explanation = comm.explain("all_reduce", size)
        moved = []
        x, out = comm.empty(size // 4, np.float32), comm.empty(size // 4, np.float32)
        x[:] = 1
        for given in (x, out):
            before = comm.traffic()
            comm.all_reduce(x, out=given)
            moved.append(comm.traffic() - before)
        found.append((explanation, moved))
    return found


def test_what_shared_arrays_would_take() -> None:
    (small, large), *others = hocket.spawn(in_shared_arrays, 3)
    assert small[0].one_round
    assert small[0].shared == ()
    assert "arrays of comm.empty: the same" in str(small[0])
    moved = [sum(of_ranks, Traffic()) for of_ranks in zip(large[1], *(other[1][1] for other in others), strict=True)]
    assert [Traffic(shared.loaded, shared.stored) for shared in large[0].shared] == moved
    assert [(shared.inplace, shared.program) for shared in large[0].shared] == [
        (True, "direct_all_reduce"),
        (False, "direct_all_reduce"),
    ]
    assert moved[0].moved == 2 * 3 << 20
    assert "in place direct_all_reduce, 6291456 bytes; apart" in str(large[0])


def of_short_calls(comm: Communicator) -> dict[str, tuple[Explanation, list[Traffic]]]:
    """What this rank says of 12 KB, and what it moves in place and apart."""
    comm._endpoint.oversubscribed = False
    found = {}
    for name in ("all_reduce", "all_gather"):
        out = comm.empty(3000, np.float32)
        given = 3000 if name == "all_reduce" else 3000 // comm.size
        moved = []
        for x in (out[comm.rank * given % 3000 :][:given], comm.empty(given, np.float32)):
            x[:] = 1
            before = comm.traffic()
            getattr(comm, name)(x, out)
            moved.append(comm.traffic() - before)
            assert (out == (comm.size if name == "all_reduce" else 1)).all()
        found[name] = comm.explain(name, 12_000), moved
    return found


def test_short_calls_in_shared_arrays() -> None:
    first, second = hocket.spawn(of_short_calls, 2)
    programs = {
        "all_reduce": ["direct_all_reduce", "direct_all_reduce"],
        "all_gather": ["direct_all_gather", "direct_all_gather"],
    }
    moves = {"all_reduce": [12_000 * 4, 12_000 * 4], "all_gather": [6_000 * 4, 6_000 * 6]}
    for name, (said, moved) in first.items():
        assert [shared.program for shared in said.shared] == programs[name]
        both = [one + other for one, other in zip(moved, second[name][1], strict=True)]
        assert [Traffic(shared.loaded, shared.stored) for shared in said.shared] == both
        assert [traffic.moved for traffic in both] == moves[name]


def in_private_arrays(comm: Communicator) -> tuple[Explanation, Traffic]:
    explanation = comm.explain("all_gather", 1 << 20)
    before = comm.traffic()
    comm.all_gather(np.ones(1 << 17, np.float32), np.empty(1 << 18, np.float32))
    return explanation, comm.traffic() - before


def test_what_private_arrays_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for reach in ("always", "never"):
        monkeypatch.setenv("HOCKET_REACH", reach)
        (said, first), (_, second) = hocket.spawn(in_private_arrays, 2)
        for apart in [one for one in said.attached if not one.inplace]:
            assert Traffic(apart.loaded, apart.stored) == first + second
            assert f"private arrays in a cache and in huge pages: {said.attached[0]}" in str(said)
        if reach == "never":
            assert said.attached == ()
            assert "private arrays in a cache and in huge pages: none: ranks may not copy" in str(said)


def example(comm: Communicator) -> Explanation:
    return comm.explain("all_reduce", 64 << 10)


def test_the_example_of_the_page_on_policy() -> None:
    """docs/design/policy.md, "The path"."""
    (said, *_) = hocket.spawn(example, 4)
    assert (said.program, said.one_round) == ("all_pairs_all_reduce", False)
    assert (said.tiles, said.tile, said.slots) == (1, 16 << 10, 8)
    assert said.why_not_attached.startswith("sums on more than 2 ranks")


def why_not_attached(comm: Communicator) -> list[str]:
    return [comm.explain(name, size).why_not_attached for name in ("all_reduce", "all_gather") for size in (8, 1 << 20)]


def test_why_private_arrays_take_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "always")
    (said, *_) = hocket.spawn(why_not_attached, 3)
    sums = "sums on more than 2 ranks: the path must not change their order"
    few = len(os.sched_getaffinity(0)) < 3
    others = [f"less than {'256' if few else '64'} KB", ""]
    assert said == [sums, sums, *others]


def test_on_the_command_line() -> None:
    shown = CliRunner().invoke(app, ["explain", "broadcast", "-n", "2", "--size", "64K"])
    assert shown.exit_code == 0
    assert "broadcast of 65536 bytes on 2 ranks" in shown.output
    assert "1 thread block a rank, 2 steps in all, 1 round\n" in shown.output
    found = json.loads(CliRunner().invoke(app, ["explain", "broadcast", "-n", "2", "--size", "64K", "--json"]).output)
    assert found["program"] in shown.output
    for wrong in (["explain", "broadcats"], ["explain", "broadcast", "-n", "2", "--root", "2"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


@pytest.mark.parametrize(
    ("name", "ranks", "least"),
    [
        ("all_reduce", 2, 4 << 10),
        ("all_reduce", 4, 2731),
        ("all_gather", 2, 4095),
        ("all_gather", 8, 16377),
        ("broadcast", 3, 2 << 10),
        ("reduce_scatter", 2, 4 << 10),
        ("all_to_all", 4, 2731),
    ],
)
def test_arrays_are_lent_instead_of_one_round_from_a_size_on(name: str, ranks: int, least: int) -> None:
    assert declined(choose(Call(name, ranks, least)), one_round=True, attached=False) is None
    assert declined(choose(Call(name, ranks, least - 1)), one_round=True, attached=False) is not None
    assert declined(choose(Call(name, ranks, least, oversubscribed=True)), one_round=True, attached=False) is not None


def test_arrays_are_lent_instead_of_slots() -> None:
    for name in NAMED:
        for oversubscribed in (False, True):
            prefix = name in ("scan", "exscan")  # which take slots always
            why_not = declined(choose(Call(name, 3, 1, oversubscribed=oversubscribed)), one_round=False, attached=False)
            assert (why_not is not None) is prefix
        assert declined(choose(Call(name, 3, 1 << 30, uneven=True)), one_round=False, attached=False) is not None
        assert declined(choose(Call(name, 3, None)), one_round=False, attached=False) is not None
        assert declined(choose(Call(name, 1, 1 << 30)), one_round=False, attached=False) is not None
    assert declined(choose(Call("gather", 2, 32 << 10)), one_round=True, attached=False) is not None


def test_private_arrays_may_be_reached_from_a_size_on() -> None:
    least = 64 << 10
    for name in NAMED:
        known = name not in ("scan", "exscan")
        assert (declined(choose(Call(name, 2, least)), one_round=False, attached=True) is None) is known
        assert declined(choose(Call(name, 2, least - 1)), one_round=False, attached=True) is not None
        assert declined(choose(Call(name, 2, least, oversubscribed=True)), one_round=False, attached=True) is not None


def test_the_order_of_a_sum_does_not_depend_on_what_is_faster() -> None:
    for name in NAMED:
        sums = name in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
        assert (declined(choose(Call(name, 3, 1 << 20)), one_round=False, attached=True) is None) is not sums
