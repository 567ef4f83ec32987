"""``Communicator.use``, and the policy behind it: the first entry that takes a call counts."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable

import numpy as np
import pytest

import hocket
from hocket import AllReduce, Communicator, Program, chunk
from hocket.algorithms import all_pairs, direct, knomial, recursive_halving, ring, scan
from hocket.errors import CallMismatch, InvalidArgument, PeerRefused, WrongType
from hocket.program import Contract
from hocket.tuning import Call, Entry, Sizes, choose

LARGEST = 1 << 40


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("32KB..3MB", 32 << 10, 3 << 20),
        ("..4K", 0, 4 << 10),
        (" 1MB .. ", 1 << 20, None),
        ("64KB", 64 << 10, 64 << 10),
        ("0..0", 0, 0),
    ],
)
def test_a_range_of_sizes(text: str, least: int, most: int | None) -> None:
    found = Sizes.parse(text)
    assert found == Sizes(least, most)
    assert least in found
    assert least - 1 not in found
    assert (LARGEST if most is None else most) in found
    assert (most is None) is (LARGEST + 1 in found)
    assert None not in found


@pytest.mark.parametrize("text", ["", "..", "3MB..32KB", "a..b", "1..2..3", "32KB-3MB", "-1..2", "1MB...", "32 megs"])
def test_what_is_no_range(text: str) -> None:
    assert Sizes.parse(text) is None


def test_sizes_are_said_as_they_are_written() -> None:
    said = [str(Sizes.parse(text)) for text in ("32KB..3MB", "1MB..", "..4KB")]
    assert said == ["32 KB to 3 MB", "1 MB or more", "0 B to 4 KB"]
    assert str(Sizes()) == "all sizes"
    assert None in Sizes()


def test_a_schedule_that_sums_nothing_keeps_every_contract() -> None:
    entry = Entry(scan.exscan(2).compile(), Sizes(), "here")
    assert choose(Call("exscan", 2, 1024, reproducible="across-ranks"), [entry]).entry is entry


def test_the_first_entry_of_a_call_counts() -> None:
    """Random ranges, against an oracle that looks at every size for itself."""
    chance = random.Random(23)
    schedules = {
        "all_reduce": [ring.all_reduce(3).compile(), recursive_halving.all_reduce(3).compile()],
        "broadcast": [knomial.broadcast(3, 2, root).compile() for root in (0, 1)],
    }
    for _ in range(60):
        given: list[tuple[str, int, int, int | None, Entry]] = []
        for number in range(chance.randrange(6)):
            name = chance.choice([*schedules])
            root = chance.randrange(2)
            least = chance.randrange(40)
            most = None if chance.random() < 0.2 else chance.randrange(least, 64)
            schedule = schedules[name][root]
            at = root if name == "broadcast" else 0
            given.append((name, at, least, most, Entry(schedule, Sizes(least, most), str(number))))
        for name in schedules:
            for root in range(2 if name == "broadcast" else 1):
                for size in range(64):
                    wanted: Entry | None = None
                    for called, at, least, most, entry in reversed(given):
                        if called == name and at == root and least <= size <= (LARGEST if most is None else most):
                            wanted = entry
                    call = Call(name, 3, size, root, item=1)
                    found = choose(call, [entry for *_, entry in given])
                    assert found.entry is wanted
                    if wanted is None:
                        assert found == choose(call)
                    else:
                        assert found.compile() is wanted.schedule
                        assert found.tile is None


def test_an_entry_of_other_ranks_is_skipped() -> None:
    entry = Entry(ring.all_reduce(3).compile(), Sizes(), "here")
    assert choose(Call("all_reduce", 3, 8), [entry]).entry is entry
    assert choose(Call("all_reduce", 4, 8), [entry]).entry is None


@pytest.mark.parametrize("asked", [None, "may-differ", "across-ranks", "across-sizes", "rank-order"])
def test_an_entry_that_does_not_keep_a_contract_is_skipped(asked: Contract | None) -> None:
    keeps = {"across-ranks": ring, "across-sizes": recursive_halving}
    for kept, module in keeps.items():
        entry = Entry(module.all_reduce(4).compile(), Sizes(), "here")
        enough = asked in (None, "may-differ", "across-ranks") or asked == kept
        assert (choose(Call("all_reduce", 4, 8, reproducible=asked), [entry]).entry is entry) is enough
    strict = Entry(all_pairs.one_shot_all_reduce(4).compile(), Sizes(), "here")
    assert choose(Call("all_reduce", 4, 8, reproducible=asked), [strict]).entry is strict


def test_an_entry_that_cannot_be_cut_for_a_size_is_skipped() -> None:
    with Program(AllReduce(1, chunks=2, inplace=True), name="turns") as p:
        first = chunk(0, "in", 0).copy(0, "sc", 0)
        second = chunk(0, "in", 1).copy(0, "in", 0)
        first.copy(0, "sc", 1).copy(0, "in", 1).copy(0, "sc", 0)
        chunk(0, "in", 0).copy(0, "in", 1)
        chunk(0, "sc", 0).copy(0, "in", 0)
        del second
    entry = Entry(p.compile(), Sizes(), "here")
    assert entry.schedule.narrowings
    assert choose(Call("all_reduce", 1, 128), [entry]).entry is entry
    assert choose(Call("all_reduce", 1, 132), [entry]).entry is None
    assert choose(Call("all_reduce", 1, 256, item=8), [entry]).entry is entry


def test_with_counts_only_what_can_be_cut_so() -> None:
    entry = Entry(direct.all_gather(3).compile(), Sizes(), "here")
    assert choose(Call("all_gather", 3, None, uneven=True), [entry]).entry is entry
    some = Entry(direct.all_gather(3).compile(), Sizes(0, 100), "here")
    assert choose(Call("all_gather", 3, None, uneven=True), [some]).entry is None
    assert choose(Call("all_gather", 3, 99, uneven=True), [some]).entry is some


RANGE = "1KB..64KB"


def program(comm: Communicator, size: int) -> str:
    return comm.explain("all_reduce", size).program


def used(comm: Communicator) -> None:
    """Before and after, in place and apart, in the background, prepared, at both ends of the range."""
    chosen = ring.all_reduce(comm.size).compile()
    inside, outside = (256, 4096, 16384), (255, 16385)

    def sums(n: int) -> None:
        x = np.arange(n, dtype=np.float32) + comm.rank
        wanted = comm.size * np.arange(n, dtype=np.float32) + sum(range(comm.size))
        out = np.empty_like(x)
        assert comm.all_reduce(x, out) is out
        assert (out == wanted).all()
        assert (comm.prepare("all_reduce", n, np.float32)(x) == wanted).all()
        assert (comm.all_reduce(x.copy(), async_=True).wait() == wanted).all()
        assert (comm.all_reduce(x) == wanted).all()

    def moved(n: int) -> hocket.ir.traffic.Traffic:
        before = comm.traffic()
        comm.all_reduce(np.ones(n, np.float32))
        return comm.traffic() - before

    for n in (*inside, *outside):
        sums(n)
    default = {n: moved(n) for n in (*inside, *outside)}
    comm.use(chosen, RANGE)
    for n in (*inside, *outside):
        taken = comm.explain("all_reduce", 4 * n)
        assert (taken.program == chosen.name) is (n in inside)
        assert ("comm.use at" in taken.why and "test_use.py" in taken.why) is (n in inside)
        before = comm.traffic()
        comm.run(chosen, np.ones(n, np.float32))
        ran = comm.traffic() - before
        assert moved(n) == (ran if n in inside else default[n])
        sums(n)
    assert default[16384] != moved(16384)  # a call that was made before takes it too
    shared = comm.empty(16384, np.float32)
    shared[:] = 1
    before = comm.traffic()
    comm.all_reduce(shared)
    assert comm.traffic() - before == moved(16384)


def test_calls_take_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")  # what a call of 64 KB moves depends on what is faster by then else
    hocket.spawn(used, 2)


def later(comm: Communicator) -> list[str]:
    comm.use(recursive_halving.all_reduce(3).compile())
    comm.use(ring.all_reduce(3).compile(), "1KB..2KB")
    halves = comm.dup()
    said = [program(comm, 512), program(comm, 1024), program(comm, 4096), program(halves, 1024)]
    ordered = comm.explain("all_reduce", 1024, reproducible="across-sizes").program
    comm.all_reduce(np.ones(256, np.float32), reproducible="across-sizes")
    return [*said, ordered]


def test_what_was_said_last_counts_first() -> None:
    for said in hocket.spawn(later, 3):
        assert said == [
            "recursive_halving_all_reduce",
            "ring_all_reduce",
            "recursive_halving_all_reduce",
            "one_shot_all_reduce",
            "recursive_halving_all_reduce",
        ]


def raises(kind: type[Exception], match: str, act: Callable[[], object]) -> None:
    with pytest.raises(kind, match=match):
        act()


def disagree(comm: Communicator) -> None:
    first, second = ring.all_reduce(2).compile(), recursive_halving.all_reduce(2).compile()
    mine = (first, second)[comm.rank]
    raises(CallMismatch, "rank 1 differs in schedule", lambda: comm.use(mine))
    raises(CallMismatch, "rank 1 differs in sizes", lambda: comm.use(first, ("..1KB", "..2KB")[comm.rank]))
    x = np.ones(4, np.float32)
    other: tuple[Callable[[], object], ...] = (lambda: comm.use(first), lambda: comm.all_reduce(x))
    raises(CallMismatch, "use", other[comm.rank])
    split: tuple[Callable[[], object], ...] = (lambda: comm.use(first), lambda: comm.split(0))
    raises(CallMismatch, "rank 1 calls split", split[comm.rank])
    kinds = (WrongType, PeerRefused)
    raises(kinds[comm.rank], "a Schedule", lambda: comm.use(ring.all_reduce(2) if comm.rank == 0 else first))  # type: ignore[arg-type]
    assert program(comm, 1 << 10) == "one_shot_all_reduce"
    prepared = comm.prepare("all_reduce", 4, np.float32)
    comm.use(first)
    either: tuple[Callable[[], object], ...] = (lambda: prepared(x), lambda: comm.all_reduce(x))
    raises(CallMismatch, "differs in", either[comm.rank])
    assert (prepared(np.ones(4, np.float32)) == 2).all()
    assert (comm.all_reduce(x) == 2).all()


def test_ranks_that_say_other_things_all_raise() -> None:
    hocket.spawn(disagree, 2)


def wrong(comm: Communicator) -> None:
    fine = ring.all_reduce(2).compile()
    for sizes in ("32 megs", "3MB..1MB", 7):
        raises(InvalidArgument, "no range of sizes", lambda s=sizes: comm.use(fine, s))  # type: ignore[misc]
    raises(InvalidArgument, "for 3 ranks, this communicator has 2", lambda: comm.use(ring.all_reduce(3).compile()))
    lends = direct.all_reduce(2).compile(storage="peer")
    raises(InvalidArgument, "lie in its arrays", lambda: comm.use(lends))
    comm.barrier()


def test_wrong_arguments() -> None:
    hocket.spawn(wrong, 2)


def named_at_length(comm: Communicator) -> None:
    comm.use(dataclasses.replace(ring.all_reduce(comm.size).compile(), name="\U0001f3b6" * 1000))
    assert (comm.all_reduce(np.ones(4)) == comm.size).all()


def test_names_that_are_longer_than_a_word_of_a_call() -> None:
    hocket.spawn(named_at_length, 2)


def rooted(comm: Communicator) -> None:
    comm.use(knomial.broadcast(3, 2, 1).compile(), "..1KB")
    comm.use(direct.all_gather(3).compile())
    assert comm.explain("broadcast", 64, root=1).why.startswith("comm.use")
    assert not comm.explain("broadcast", 64, root=0).why.startswith("comm.use")
    for root in range(3):
        x = np.full(16, comm.rank, np.int64)
        assert (comm.broadcast(x, root=root) == root).all()
    counts = [2, 0, 3]
    joined = comm.all_gather(np.full(counts[comm.rank], comm.rank), counts=counts)
    assert joined.tolist() == [0, 0, 2, 2, 2]


def test_roots_and_counts() -> None:
    hocket.spawn(rooted, 3)


def threads(comm: Communicator) -> None:
    """A communicator for each thread, which says what it takes between calls in the background."""
    comms = [comm.dup() for _ in range(3)]
    wrong: list[BaseException] = []

    def work(own: Communicator) -> None:
        try:
            for round_ in range(10):
                handles = [own.all_reduce(np.full(500, i, np.float32), async_=True) for i in range(4)]
                own.use((ring, recursive_halving)[round_ % 2].all_reduce(2).compile(), "1KB..4KB")
                assert [handle.wait()[0] for handle in handles] == [0, 2, 4, 6]
                assert (own.all_reduce(np.ones(500, np.float32)) == 2).all()
        except BaseException as error:
            wrong.append(error)

    started = [threading.Thread(target=work, args=(own,)) for own in comms]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not wrong


def test_in_the_background_and_from_threads() -> None:
    hocket.spawn(threads, 2)
