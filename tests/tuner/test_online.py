"""Ranks that learn while they run: the same arms on all of them, and the bits that they have without a tuner."""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import hocket
from hocket import Communicator, tuning
from hocket._native import ARMS, KeyArms
from hocket.errors import BootstrapFailed, HocketError, PeerFailed, PeerRefused, WrongType
from hocket.runtime.machine import fingerprint
from hocket.tunables import NEVER
from hocket.tuner import online, store
from hocket.tuner.learner import Choice, Explanation, Reason, Samples
from hocket.tuner.online import ENOUGH_BETWEEN, KEYS, LEAST_BETWEEN, MOST_BETWEEN, PART, WORTH, batch, paced
from tests.runtime import processes
from tests.runtime.test_arena import prepared_calls
from tests.runtime.test_reach import LARGE
from tests.test_background import interrupt_in

CALLS = 1500
EVERY = "learned_bytes=0,learned_crowded_bytes=0"
SIZES = (4, 6000, 40_000)


@pytest.fixture(autouse=True)
def of_short_calls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the tuner learn of all calls, so that tests can make many."""
    monkeypatch.setenv("HOCKET_TUNABLES", EVERY)


class DefaultArm:
    """A learner that has the first arm taken, always."""

    names: Sequence[str] = ()

    def add(self, key: Hashable, names: Sequence[str], prior: Sequence[float], neighbours: object) -> None:
        self.names = names

    def observe(self, key: Hashable, arm: int, samples: Samples) -> None: ...

    def counted(self, key: Hashable, calls: int) -> None: ...

    def choice(self, key: Hashable, coming: int) -> Choice:
        return Choice(0, (0.0,) * len(self.names), Reason.PINNED)


class EveryArm:
    """A learner that has all arms taken, and another incumbent in each table."""

    def __init__(self) -> None:
        self.arms: dict[Hashable, int] = {}
        self.seen: set[tuple[Hashable, int]] = set()
        self.calls = 0
        self._tables = 0

    def add(self, key: Hashable, names: Sequence[str], prior: Sequence[float], neighbours: object) -> None:
        assert len(names) == len(prior) == len(set(names))
        self.arms[key] = len(names)

    def observe(self, key: Hashable, arm: int, samples: Samples) -> None:
        assert samples.count > 0
        assert -30 < samples.mean < 5  # of log2 of seconds
        self.seen.add((key, arm))

    def counted(self, key: Hashable, calls: int) -> None:
        self.calls += calls

    def choice(self, key: Hashable, coming: int) -> Choice:
        self._tables += 1
        count = self.arms[key]
        return Choice(self._tables % count, (0.8 / count,) * count, Reason.EXPLORE)

    def why(self, key: Hashable) -> Explanation:
        raise NotImplementedError


def every_arm(comm: Communicator) -> EveryArm | None:
    """Has a communicator that learns take them all, look often, and merge as often as it may. None where the tuner is
    off."""
    if comm._online is None:
        return None
    online.ADVANCE, online.ENOUGH_BETWEEN, online.LOOKS = math.inf, LEAST_BETWEEN, 7
    learner = EveryArm()
    comm._online.learner = learner  # type: ignore[assignment]
    return learner


def mixed(comm: Communicator, seed: int) -> str:
    """Calls in a random order, the same on all ranks, in the background or not as each rank likes: a hash of the
    results."""
    learner = every_arm(comm)
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    digest = hashlib.sha256()
    for _ in range(CALLS):
        name = str(shared.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]))
        op = str(shared.choice(["sum", "max"]))
        n = int(shared.choice(SIZES)) * comm.size
        x = own.standard_normal(n).astype(np.float32)
        options = {"op": op} if name in ("all_reduce", "reduce_scatter", "reduce") else {}
        if own.random() < 0.2:
            result = getattr(comm, name)(x, async_=True, **options).wait()
        else:
            result = getattr(comm, name)(x, **options)
        digest.update(b"" if result is None else result.tobytes())
    if learner is not None and comm.rank == 0:
        assert len(learner.arms) >= 6
        assert len(learner.seen) > len(learner.arms)
        assert learner.calls > CALLS / 4
    return digest.hexdigest()


@pytest.mark.parametrize("ranks", [2, 3])
def test_results_have_the_bits_that_they_have_without(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    without = hocket.spawn(mixed, ranks, (ranks,))
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(mixed, ranks, (ranks,)) == without


def ways(comm: Communicator) -> list[int]:
    """Those that the default takes once the ranks have a table, of arrays that they can attach to."""
    assert comm._online is not None
    online.ADVANCE = math.inf
    comm._online.learner = learner = DefaultArm()  # type: ignore[assignment]
    x, found = np.zeros(LARGE, np.float32), []
    with prepared_calls() as made:
        while not comm._online._slots:
            comm.all_reduce(x)
        for _ in range(20):
            comm.all_reduce(x)
            found.append(made[-1].variant)
    assert comm.rank != 0 or learner.names[:2] == ["default", "default slots"]
    return found


@pytest.mark.parametrize(("least", "way"), [(4 * LARGE, 1), (4 * LARGE + 1, 0)])
def test_the_default_attaches_as_without_a_tuner(monkeypatch: pytest.MonkeyPatch, least: int, way: int) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    monkeypatch.setenv("HOCKET_TUNABLES", f"attached_bytes={least},attached_small_pages_bytes=0,near_ticks={NEVER}")
    assert hocket.spawn(ways, 2) == [[way] * 20] * 2


def learned(comm: Communicator) -> tuple[int, str, str]:
    """With the real learner: keys that have slots, what is said of a call before and after."""
    online.ADVANCE = math.inf
    before = comm.explain("all_reduce", 4000).tuner
    x = np.ones(1000, np.float32)
    for _ in range(10 * LEAST_BETWEEN):
        comm.all_reduce(x, x)
        comm.all_gather(x)
        comm.barrier()
    assert comm._online is not None
    return len(comm._online._slots), before, str(comm.explain("all_reduce", 4000))


def test_a_job_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    (slots, before, after), (_, _, other) = hocket.spawn(learned, 2)
    assert slots == 2
    assert before == "the static policy: a key is tuned after 32 calls of it"
    row = after[after.index("\ntuner ") :].splitlines()[1:]
    assert re.match(r"tuner      [A-Z]+: .*; \d+ calls, \d+ changes$", row[0])
    assert re.match(r" {11}default: [\d.]+ us \[[\d.]+, [\d.]+\], \d+ timed, ", row[1])
    assert len(row) > 5
    assert other.endswith("; rank 0 knows why")


def without_new_keys(comm: Communicator) -> int:
    """Merges once all keys have slots."""
    every_arm(comm)
    assert comm._online is not None
    for _ in range(2 * LEAST_BETWEEN):
        comm.all_reduce(np.ones(1000))
    online.calibrated = None  # type: ignore[assignment]
    before = comm._online.version
    for _ in range(3 * LEAST_BETWEEN):
        comm.all_reduce(np.ones(1000))
    return comm._online.version - before


def test_only_a_new_key_needs_the_calibrated_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read its file takes ten times as long as all else of a merge."""
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(without_new_keys, 2) == [3, 3]


def short_and_long(comm: Communicator) -> tuple[list[str], str, str, int]:
    """The keys that have slots, what is said of a short call, and of a long one; the version of the tables."""
    online.ADVANCE = math.inf
    arrays = [np.ones(n, np.float32) for n in (1000, (1 << 15) - 1, 1 << 15)]
    for _ in range(2 * LEAST_BETWEEN):
        for x in arrays:
            comm.all_reduce(x, x)
    assert comm._online is not None
    said = [comm.explain("all_reduce", x.nbytes).tuner for x in (arrays[0], arrays[-1])]
    return sorted(str(known.key) for known in comm._online._slots), *said, comm._online.version


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks that share a core learn nothing")
def test_nothing_is_learned_of_short_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But of a file that is used, what it has chosen for them is taken."""
    long = "all_reduce 128 KB 2 ranks float32 sum"
    all_keys = [long, *(f"all_reduce {size} 2 ranks float32 sum" for size in ("2 KB", "64 KB"))]
    file = tmp_path / "tuned.json"

    def job(tuner: str, tunables: str) -> tuple[list[str], str, str]:
        monkeypatch.setenv("HOCKET_TUNER", tuner)
        monkeypatch.setenv("HOCKET_TUNABLES", tunables)
        (keys, short, long, version), (other_keys, _, _, other_version) = hocket.spawn(short_and_long, 2)
        assert (keys, version) == (other_keys, other_version)
        return keys, short, long

    keys, of_short, of_long = job("learn", "")
    assert keys == [long]
    assert of_short == "the static policy: on one node nothing is learned of a call of less than 128 KB"
    assert "default: " in of_long
    assert job(f"learn:{file}", EVERY)[0] == all_keys
    assert job(f"learn:{file}", "")[0] == [long]
    keys, of_short, _ = job(f"use:{file}", "")
    assert keys == all_keys
    assert of_short.startswith("PINNED: ")


def paces(comm: Communicator, part: float) -> int:
    """The version of the tables after many calls, where merges may take this part of the time, and none comes early."""
    online.ADVANCE, online.PART, online.LOOKS = 0.0, part, MOST_BETWEEN
    assert comm._online is not None
    x = np.ones(10)
    for _ in range(20 * LEAST_BETWEEN):
        comm.all_reduce(x, x)
    return comm._online.version


@pytest.mark.parametrize(("part", "least", "most"), [(1e3, 19, 21), (1e-12, 2, 3)])
def test_merges_are_as_seldom_as_they_must_be(
    monkeypatch: pytest.MonkeyPatch, part: float, least: int, most: int
) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    versions = hocket.spawn(paces, 2, (part,))
    assert len(set(versions)) == 1
    assert least <= versions[0] <= most


LATE = 0.004  # seconds, hundreds of times what calls take


def timed(comm: Communicator, what: str) -> list[float]:
    """Of each key the median of the means that were observed, log2 of seconds: all calls, or all of a key, had to wait
    so long for something else, so that each would be LATE or more. What other processes of the machine take now and
    then moves no median."""
    learner = every_arm(comm)
    means: dict[Hashable, list[float]] = defaultdict(list)
    if learner is not None:
        learner.observe = lambda key, arm, samples: means[key].append(samples.mean)  # type: ignore[method-assign]
    choice = online.TunedKey.choice

    def slow(self: online.TunedKey, number: int, default: tuning.Choice) -> object:
        time.sleep(LATE)
        return choice(self, number, default)

    if what == "preparing an arm":
        online.TunedKey.choice = slow  # type: ignore[method-assign, assignment]
    blocks, counts = np.arange(4 * comm.size), ([4] * comm.size,) * 2
    for call in range(3 * LEAST_BETWEEN):
        x = np.ones(1100 + call)  # of one key
        if what == "preparing an arm":
            comm.all_reduce(x, np.empty_like(x))
            continue
        if comm.rank == 1:
            time.sleep(LATE)
        if what == "the calls before it":
            for handle in [comm.all_reduce(blocks, async_=True), comm.all_reduce(x, async_=True)]:
                handle.wait()
        elif comm.rank == 1:
            comm.all_to_all(blocks, counts=counts)
        else:
            comm.all_to_all(blocks)
        comm.all_gather(blocks)
    assert comm._online is not None
    assert comm._online.version > 1
    return [statistics.median(of_key) for of_key in means.values()]


@pytest.mark.parametrize("what", ["preparing an arm", "the calls before it", "the counts of others"])
def test_what_a_call_waits_for_is_not_timed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    medians = hocket.spawn(timed, 2, (what,))[0]
    assert medians
    assert max(medians) < math.log2(LATE / 2)


def resting(comm: Communicator) -> list[float]:
    """The means that were observed of posted calls, log2 of seconds: each rests between its start and its wait."""
    tuner, means = comm._online, list[float]()
    assert tuner is not None
    tuner.learner.observe = lambda key, arm, samples: means.append(samples.mean)  # type: ignore[method-assign]
    tuner.learner.settings = replace(tuner.learner.settings, explored=0.0)  # all by the first arm, which is eager
    for _ in range(3 * LEAST_BETWEEN):
        handle = comm.all_reduce(np.ones(4), async_=True)
        time.sleep(LATE)
        handle.wait()
    return means


def test_for_how_long_a_posted_call_rests_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    means = hocket.spawn(resting, 2)[0]
    assert means
    assert statistics.median(means) < math.log2(LATE / 2)


def refusing(comm: Communicator) -> int:
    """A rank in turn has an argument that does not fit; the others hear of it, and all go on, tuned."""
    every_arm(comm)
    x, own = np.ones(300, np.float32), 0
    for call in range(4 * LEAST_BETWEEN):
        wrong = call % 7 % comm.size == comm.rank and call % 3 == 0
        refused = any(call % 7 % comm.size == rank and call % 3 == 0 for rank in range(comm.size))
        if not refused:
            assert comm.all_reduce(x, np.empty_like(x))[0] == comm.size
        elif wrong:
            with pytest.raises(WrongType):
                comm.all_reduce("x")  # type: ignore[call-overload]
        else:
            with pytest.raises(PeerRefused):
                comm.all_reduce(x)
        own += wrong
    assert comm._online is not None
    assert comm._online._slots
    return own


def test_refused_calls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert all(own > 0 for own in hocket.spawn(refusing, 3))


def several(comm: Communicator) -> None:
    """Communicators of some of the ranks, each with a tuner of its own, called in turns."""
    parts = [part for part in (comm.split(comm.rank % 2), comm.split(0, -comm.rank)) if part is not None]
    for each in (comm, *parts):
        every_arm(each)
    for call in range(3 * LEAST_BETWEEN):
        for each in (comm, *parts):
            total = each.all_reduce(np.full(1 + call % 100, each.rank, np.int64))
            assert total[0] == each.size * (each.size - 1) // 2
    for each in (comm, parts[1]):
        assert each._online is not None
        assert each._online._slots


def test_several_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    hocket.spawn(several, 3)


def many_keys(comm: Communicator) -> int:
    every_arm(comm)
    kinds = [np.dtype(name) for name in ("int8", "int16", "int32", "int64", "float32", "float64", "uint8")]
    for _ in range(2 * WORTH):
        for kind in kinds:
            for bits in range(12):
                comm.all_reduce(np.zeros(8 << bits, np.uint8).view(kind))
    assert comm._online is not None
    return len(comm._online._slots)


def test_no_more_keys_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(many_keys, 2) == [KEYS, KEYS]


def otherwise(comm: Communicator) -> None:
    raise AssertionError("they have met")


def test_ranks_that_differ_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(rank: int) -> None:
        os.environ["HOCKET_TUNER"] = "learn" if rank else "off"
        hocket.init()

    words, _ = processes.run(2, live)
    for word in words.values():
        assert word["type"] == "BootstrapFailed"
        assert "HOCKET_TUNER is learn there, off here" in word["text"]
    monkeypatch.setenv("HOCKET_TUNER", "guess")
    with pytest.raises(BootstrapFailed, match="HOCKET_TUNER must be off, learn, learn:FILE or use:FILE, not 'guess'"):
        hocket.init()


def looked(comm: Communicator) -> list[tuple[int, bool]]:
    """How many tables there were after each look, and whether the next merge is soon, where one rank has something to
    say in the third, and the next merge is due at the last."""
    tuner, member, x = comm._online, comm._endpoint.alive(), np.zeros(1)
    assert tuner is not None
    online.ADVANCE = math.inf
    tuner.learner = DefaultArm()  # type: ignore[assignment]
    noticed = KeyArms()
    for _ in range(20):
        noticed.took(0, 100)
    member.watch(noticed)
    comm.all_reduce(x)
    tuner._spent, tuner._cost, begun, found = math.inf, 1e3, tuner.version, []
    tuner._due = NEVER
    for look in range(5):
        if look == 2 and comm.rank == 1:
            for _ in range(3):
                noticed.took(0, 1000)
        member.next_merge(member.calls if look == 4 else NEVER, 1)
        if look == 4:
            tuner._due = member.calls
        for _ in range(2):  # they look at the second
            comm.all_reduce(x)
        found.append((tuner.version - begun, tuner._due - member.calls <= LEAST_BETWEEN))
    return found


def test_what_one_rank_notices_brings_a_merge_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(looked, 3) == [[(0, False), (0, False), (1, True), (1, True), (2, False)]] * 3


def alarmed(comm: Communicator) -> list[bool]:
    """Whether ranks look before the next merge, as rank 0 says at merges: an alarm brings two, which take 40 ms, where
    50 ms may be taken in advance."""
    tuner, nothing = comm._online, np.zeros((comm.size, KEYS, ARMS + 1, 3))
    assert tuner is not None
    tuner._spent, tuner._cost, found = math.inf, 0.02, []
    for early, pause in [(False, 10), (True, 0.1), (False, 0.1), (True, 0.1), (False, 0.1), (False, 10)]:
        tuner._due = 1000 + early
        news = tuner._learn(nothing, 1000, pause)
        if early:
            assert news.merge_at == 1000 + LEAST_BETWEEN
        else:
            found.append(news.between_looks < news.merge_at - 1000)
    return found


def test_alarms_take_no_more_time_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(alarmed, 2) == [[True, True, False, True]] * 2


def looks_before(comm: Communicator) -> list[int]:
    """How often ranks look, every call, where a merge is due after two calls, and after three."""
    member, x, found = comm._endpoint.alive(), np.zeros(1), []
    for calls in (2, 3):
        begun = member.calls
        member.next_merge(begun + calls, 1)
        for _ in range(2):
            comm.all_reduce(x)
        found.append(member.calls - begun - 2)
        member.next_merge(NEVER, MOST_BETWEEN)
    return found


def test_no_look_precedes_a_merge_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the merge would not be early then, and no other come soon after it."""
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    assert hocket.spawn(looks_before, 2) == [[0, 1]] * 2


def closed(comm: Communicator) -> str:
    """Rank 0 closes the communicator in a signal handler, while it looks."""
    other, x, raised = comm.dup(), np.ones(10), ""
    call, member = comm.prepare("all_reduce", x.shape, x.dtype, in_place=True), comm._endpoint.alive()
    begun = member.calls
    member.next_merge(NEVER, 1)
    for _ in range(2):
        call(x, x)
    assert member.calls == begun + 3  # they look before the second, and then before each
    del member  # only the call that looks keeps it then

    def looks() -> None:
        call(x, x)

    if comm.rank == 0:
        signal.signal(signal.SIGINT, lambda *_: comm.close())
        threading.Thread(target=interrupt_in, args=("looks",)).start()
    else:
        other.barrier()
    try:
        looks()
    except HocketError as error:
        raised = str(error)
    if comm.rank == 0:
        other.barrier()
    return raised


def test_a_communicator_that_is_closed_in_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    own, others = hocket.spawn(closed, 2)
    assert "it was closed" in own
    assert "rank 0 closed its communicator" in others


@pytest.mark.parametrize(("victim", "stage"), [(2, "a look"), (2, "_noted"), (0, "_learn"), (1, "_take")])
def test_a_rank_that_dies_in_a_merge(victim: int, stage: str) -> None:
    """Where the others look, before it has said what it timed, before it says what it learned, and when it has heard
    that."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def live(rank: int) -> None:
        os.environ["HOCKET_TUNER"] = "learn"
        with hocket.init() as comm:
            if rank == victim and stage != "a look":
                setattr(comm._online, stage, die)
            x = np.ones(10, np.float32)
            if stage == "a look":
                comm.all_reduce(x)
                comm._endpoint.alive().next_merge(NEVER, 0)
                if rank == victim:
                    die()
            for _ in range(3 * LEAST_BETWEEN):
                comm.all_reduce(x)

    words, _ = processes.run(3, live, victim=victim)
    for rank in {0, 1, 2} - {victim}:
        assert words[rank]["type"] == PeerFailed.__name__
        assert words[rank]["rank"] == victim


def delayed(comm: Communicator, runs: int) -> int:
    """Communicators one after the other, whose ranks come to their calls at random times: how many tables they had."""
    own, shared = np.random.default_rng([7, comm.rank]), np.random.default_rng(7)
    tables = 0
    for _ in range(runs):
        with comm.dup() as part:
            every_arm(part)
            late = own.random() ** 8 * 1e-3  # mostly none, up to that of a merge
            for _ in range(2 * LEAST_BETWEEN + int(shared.integers(LEAST_BETWEEN))):
                n = int(shared.choice([1, 100, 3000]))
                if own.random() < 0.1:
                    time.sleep(own.random() * late)
                assert part.all_reduce(np.full(n, 1 + part.rank, np.int32))[-1] == comm.size * (comm.size + 1) // 2
                x = np.full(2, part.rank, np.int32)
                gathered = part.all_gather(x, async_=True).wait() if own.random() < 0.1 else part.all_gather(x)
                assert gathered.tolist() == [rank for rank in range(comm.size) for _ in range(2)]
            assert part._online is not None
            tables += part._online.version
    return tables


@pytest.mark.parametrize("runs", [5, pytest.param(100, marks=pytest.mark.campaign)])
def test_ranks_that_come_late_take_the_same_arms(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    tables = hocket.spawn(delayed, 3, (runs,))
    assert len(set(tables)) == 1
    assert tables[0] >= 2 * runs


def kept(comm: Communicator, times: int) -> list[str]:
    """What rank 0 says of a key early and late in a job."""
    online.ADVANCE = math.inf
    x, said = np.ones(50_000, np.float32), []
    for until in (2 * LEAST_BETWEEN, times * LEAST_BETWEEN):
        for _ in range(until):
            comm.all_reduce(x, x)
        said.append(comm.explain("all_reduce", x.nbytes).tuner)
    return said


def test_a_file_keeps_what_was_learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "tuned.json"
    monkeypatch.setenv("HOCKET_TUNER", f"learn:{file}")
    first = hocket.spawn(kept, 2, (5,))[0]
    assert not first[0].startswith("FILE")
    (tuned,) = store.read(file).keys
    assert str(tuned.key) == "all_reduce 128 KB 2 ranks float32 sum"
    assert sum(arm.samples for arm in tuned.arms) > LEAST_BETWEEN / 4
    again = hocket.spawn(kept, 2, (12,))[0]
    timed = re.compile(r"(\d+) timed")
    assert sum(map(int, timed.findall(again[0]))) > sum(map(int, timed.findall(first[0])))
    (later,) = store.read(file).keys
    monkeypatch.setenv("HOCKET_TUNER", f"use:{file}")
    slow = next(number for number, arm in enumerate(later.arms) if arm.tile == 16 << 10)
    text = store.dump(store.Table.of(fingerprint(), [msgspec.structs.replace(later, chosen=slow)]))
    file.write_text(text)
    used = hocket.spawn(kept, 2, (2,))[0]
    assert all(said.startswith("PINNED: ") for said in used)
    assert file.read_text() == text
    assert sum(arm.samples for arm in later.arms) > sum(arm.samples for arm in tuned.arms)


def test_a_file_that_says_nothing_of_this_machine_is_refused_alike(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    store.write(file, store.Table.of("another machine", []))

    def live(rank: int) -> None:
        os.environ["HOCKET_TUNER"] = f"learn:{file}"
        with hocket.init() as comm:
            comm.all_reduce(np.ones(4))

    words, _ = processes.run(2, live)
    assert words[0]["type"] == "BadTable"
    assert "is refused: it is of another machine: another machine, and this is " in words[0]["text"]
    assert words[1]["type"] == PeerFailed.__name__
    assert "could not begin to learn" in words[1]["text"]


def test_merges_take_the_part_of_the_time_that_they_may() -> None:
    call, cost = 3e-6, 2e-3
    assert paced(1000, 1000 * call, cost, LEAST_BETWEEN) * call * PART == pytest.approx(cost, rel=0.01)
    assert paced(LEAST_BETWEEN, 1.0, cost, LEAST_BETWEEN) == LEAST_BETWEEN
    assert paced(LEAST_BETWEEN, LEAST_BETWEEN * 1e-9, 1.0, LEAST_BETWEEN) == MOST_BETWEEN


def test_an_hour_without_calls_is_for_one_merge() -> None:
    call, cost = 3e-6, 2e-3
    between = paced(LEAST_BETWEEN, 3600.0, cost, LEAST_BETWEEN)
    assert between == LEAST_BETWEEN
    assert paced(between, between * call, cost, LEAST_BETWEEN) * call * PART == pytest.approx(cost, rel=0.01)


def test_a_merge_comes_when_there_is_a_batch_of_a_key() -> None:
    assert batch(LEAST_BETWEEN, 0) == batch(100, 100) == LEAST_BETWEEN
    assert batch(300, 100) == 3 * LEAST_BETWEEN
    assert batch(1000, 1) == ENOUGH_BETWEEN


def ring(comm: Communicator) -> None:
    """Messages to and from neighbours: nothing that is tuned."""
    every_arm(comm)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for call in range(3 * LEAST_BETWEEN):
        found = comm.sendrecv(np.full(5, comm.rank + call), right, source=left, out=np.zeros(5, np.int64))
        assert found[0] == left + call
        assert comm.all_reduce(np.ones(3))[0] == comm.size


def test_messages_between_two_are_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    hocket.spawn(ring, 3)


def counts_on_one(comm: Communicator) -> None:
    """Rank 0 gives counts, and the others none, of blocks of one size; beside calls that are tuned."""
    every_arm(comm)
    x, counts = np.arange(4 * comm.size), ([4] * comm.size,) * 2
    for _ in range(3 * LEAST_BETWEEN):
        found = comm.all_to_all(x, counts=counts) if comm.rank == 0 else comm.all_to_all(x)
        assert found[:2].tolist() == [4 * comm.rank, 4 * comm.rank + 1]
        comm.all_gather(np.ones(2))
    assert comm._online is not None
    assert comm._online.version > 1


def test_ranks_that_give_counts_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNER", "learn")
    hocket.spawn(counts_on_one, 3)
