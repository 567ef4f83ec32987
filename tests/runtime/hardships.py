"""Ranks that are stopped for a while, and ranks whose limits are lowered: campaigns of ``tests.runtime.campaign``.

Stops: a rank gets SIGSTOP while the ranks meet, when it is idle or in a call, and goes on later. The others wait for
it, and all results are right; or, with a short timeout, each of them raises and says where it stood, while it is
stopped.

Limits: open files, the size of files, address space or locked memory are limited on one rank or all, before the ranks
meet, before a split, before the first call or before a larger one. Either everything works, or every rank raises.
"""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hocket
from hocket.algorithms import ring
from tests.limits import scaled
from tests.runtime.processes import BOUND, Word, judge_step, leftovers, run


def campaign(count: int, trial: Callable[[int], str], what: str) -> None:
    seen: Counter[str] = Counter()
    before = leftovers()
    for number in range(count):
        seen[trial(number)] += 1
        assert leftovers() <= before, (number, leftovers() - before)
    for kind, times in sorted(seen.items()):
        print(f"  {times:4} {kind}")
    print(f"{count} {what}")


# ---------------------------------------------------------------------------------------------------------------
# Stops


@dataclass(frozen=True)
class Stop:
    """One trial. ``delay``: seconds from where the phase begins to the stop; ``pause`` from there to its end.

    ``timeout``: None where the others wait.
    """

    phase: str
    ranks: int
    victim: int
    calls: int
    delay: float
    pause: float
    timeout: float | None
    elements: int


def draw_stop(number: int, rng: random.Random) -> Stop:
    ranks = rng.randint(2, 4)
    return Stop(
        ("bootstrap", "idle", "call")[number % 3],
        ranks,
        rng.randrange(ranks),
        rng.randint(1, 20),
        rng.uniform(0, 0.01),
        rng.uniform(0, 0.3),
        1.0 if number % 2 else None,
        10 ** rng.randint(0, 6),
    )


def live_stopped(stop: Stop, rank: int) -> None:
    """What a rank does. One that is stopped, is stopped inside of this."""
    victim = rank == stop.victim

    def halt(delay: float = 0.0) -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGSTOP)

    if victim and stop.phase == "bootstrap":
        halt()
    with hocket.init(timeout=stop.timeout or 1800.0) as comm:
        schedule = ring.all_reduce(stop.ranks).compile()
        for call in range(2 * stop.calls + 1):  # at least one after that in which a rank is stopped
            if victim and call == stop.calls and stop.phase == "idle":
                halt()
            later = threading.Thread(target=halt, args=(stop.delay,))
            if victim and call == stop.calls and stop.phase == "call":
                later.start()
            found = comm.run(schedule, np.full(stop.elements, comm.rank + call))
            assert found is not None
            assert (found == stop.ranks * call + stop.ranks * (stop.ranks - 1) // 2).all(), (stop, rank, call)
            if later.ident:
                later.join()


def stop_trial(stop: Stop) -> str:
    late: list[int] = []

    def resume(pids: dict[int, int]) -> None:
        """Let the stopped rank go on, where it matters only after the others have ended."""
        pid = pids[stop.victim]
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if stop.timeout is None:
            time.sleep(stop.pause)
        else:
            deadline = time.monotonic() + stop.timeout + scaled(BOUND)
            for rank in pids.keys() - {stop.victim}:
                with suppress(ProcessLookupError):  # it has ended
                    line = os.pidfd_open(pids[rank])
                    if not select.select([line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                        late.append(rank)
                    os.close(line)
        os.kill(pid, signal.SIGCONT)

    words, codes = run(stop.ranks, lambda rank: live_stopped(stop, rank), meanwhile=resume)
    assert set(codes.values()) == {0}, (stop, codes, words)
    if stop.timeout is None:
        assert all(word["type"] is None for word in words.values()), (stop, words)
        return f"{stop.phase}: waited for"
    assert not late, ("hangs", late, stop, words)
    return f"{stop.phase}: " + judge_stop(stop, words)


def judge_stop(stop: Stop, words: dict[int, Word]) -> str:
    others = {rank: word for rank, word in words.items() if rank != stop.victim}
    if stop.phase == "bootstrap":
        first = min(others.values(), key=lambda word: word["at"])
        assert first["type"] == "BootstrapFailed", (stop, words)
        assert f"not all of the {stop.ranks} ranks were here after 1 s: " in first["text"], (stop, words)
        for word in others.values():  # by another rank's timeout, in which that one has ended
            assert word["type"] in ("BootstrapFailed", "PeerFailed"), (stop, word)
        return "told at the first timeout"
    for word in words.values():
        assert word["type"] in ("CallTimeout", "PeerFailed"), (stop, word)
        assert "in vain" in word["text"], (stop, word)
        if word["step"]:
            judge_step(word)
        assert word["rank"] == stop.victim, (stop, word)
    return "named by every other"


def stops(count: int, seed: int) -> None:
    rng = random.Random(seed)
    campaign(
        count, lambda number: stop_trial(draw_stop(number, rng)), "stops: waited for, or an error in time on all others"
    )


# ---------------------------------------------------------------------------------------------------------------
# Limits

PHASES = ("bootstrap", "split", "call", "growth")


@dataclass(frozen=True)
class Limit:
    """One trial. ``room``: what is left, in the limit's unit; ``rank``: None for all; ``file``: without a memfd."""

    what: str
    room: int
    phase: str
    ranks: int
    rank: int | None
    file: bool


def draw_limit(number: int, rng: random.Random) -> Limit:
    what = rng.choice(("NOFILE", "NOFILE", "AS", "AS", "FSIZE", "MEMLOCK"))
    rooms = {
        "NOFILE": list(range(12)),
        "AS": [1 << bits for bits in range(14, 25)],
        "FSIZE": [0, 1 << 12, 1 << 20, 1 << 31, 1 << 34],
        "MEMLOCK": [0],
    }
    ranks = rng.randint(2, 4)
    rank = rng.choice((None, *range(ranks)))
    return Limit(what, rng.choice(rooms[what]), PHASES[number % 4], ranks, rank, rng.random() < 0.5)


def lower(limit: Limit) -> None:
    used = 0
    if limit.what == "NOFILE":
        used = os.dup(0)
        os.close(used)
    elif limit.what == "AS":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    number = getattr(resource, f"RLIMIT_{limit.what}")
    resource.setrlimit(number, (used + limit.room, resource.getrlimit(number)[1]))


def live_limited(limit: Limit, rank: int) -> None:
    schedule = ring.all_reduce(limit.ranks).compile()

    def enter(phase: str) -> None:
        if phase == limit.phase and limit.rank in (None, rank):
            lower(limit)

    def call(comm: hocket.Communicator, elements: int) -> None:
        found = comm.run(schedule, np.full(elements, rank))
        assert found is not None
        assert (found == limit.ranks * (limit.ranks - 1) // 2).all(), (limit, rank)

    if limit.file:

        def refused(*_: object) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        os.memfd_create = refused
    try:
        enter("bootstrap")
        with hocket.init() as comm:
            enter("split")
            part = comm.dup()
            enter("call")
            call(part, 100)
            enter("growth")
            call(part, 300_000)
            comm.barrier()
    finally:  # to be able to say how it went
        number = getattr(resource, f"RLIMIT_{limit.what}")
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (most, most))


def limit_trial(limit: Limit) -> str:
    words, codes = run(limit.ranks, lambda rank: live_limited(limit, rank))
    assert set(codes.values()) == {0}, (limit, codes, words)
    assert words.keys() == codes.keys(), (limit, words)
    what = f"{limit.what} before {limit.phase}: "
    if all(word["type"] is None for word in words.values()):
        return what + "enough"
    assert all(word["type"] is not None for word in words.values()), (limit, words)
    times = [word["at"] for word in words.values()]
    assert max(times) - min(times) < scaled(BOUND), (limit, words)
    for rank, word in words.items():
        own = limit.rank in (None, rank)
        allowed = ("BootstrapFailed", "PeerFailed", "PeerRefused", *(("MemoryError",) if own else ()))
        assert word["type"] in allowed, (limit, word)
        named = re.search(rf"\brank {limit.rank}\b", word["text"])
        # One that came too late to be told hears from the launcher of the first that ended, which may be another.
        assert own or named or "ended before the ranks had met" in word["text"], (limit, word)
    return what + "+".join(sorted({word["type"] for word in words.values()}))


def limits(count: int, seed: int) -> None:
    rng = random.Random(seed)
    campaign(count, lambda number: limit_trial(draw_limit(number, rng)), "limits: all worked or every rank raised")
