"""Faults by the hundred: ``python -m tests.runtime.campaign kills 200``, ``... disagree 10000``, ``--seed N``; also
``stops`` and ``limits``, of hardships.py, and ``exits``, of exits.py.

Kills: a rank is ended by SIGKILL while the ranks meet, when it is idle, in a call, in a split, or when it closes. Every
other rank must know within 5 seconds and name it, with the step where it stood in one, and nothing may be left behind.

Disagreements: one rank's call differs from the others' in one respect. Every rank must raise, no array may change, and
the next call must work.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket import Communicator, HocketError
from hocket.algorithms import all_pairs, direct, ring
from hocket.errors import CallMismatch, InvalidArgument, PeerFailed, PeerRefused, WrongType
from tests.runtime import counted, exits, hardships
from tests.runtime.counted import COUNTED, ROOTED, Case
from tests.runtime.processes import BOUND, Word, judge_step, leftovers, run

PHASES = ("bootstrap", "idle", "call", "close", "split", "dup", "subgroup")


# ---------------------------------------------------------------------------------------------------------------
# Kills


@dataclass(frozen=True)
class Kill:
    """One trial. ``delay``: seconds from where the phase begins to the kill; ``calls`` are made before.

    ``lent``: messages lie in the arrays.
    """

    number: int
    phase: str
    ranks: int
    victim: int
    delay: float
    calls: int
    elements: int
    lent: bool


def draw(number: int, rng: random.Random) -> Kill:
    phase = PHASES[number % len(PHASES)]
    ranks = rng.randint(2, 5)
    delay = rng.uniform(0, rng.choice((0.0, 0.002, 0.02)))
    calls, elements = rng.randint(0, 20), 10 ** rng.randint(0, 6)
    return Kill(number, phase, ranks, rng.randrange(ranks), delay, calls, elements, rng.random() < 0.5)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_later(delay: float) -> None:
    def wait_and_die() -> None:
        time.sleep(delay)
        die()

    threading.Thread(target=wait_and_die, daemon=True).start()


def live(kill: Kill, rank: int) -> None:
    """What a rank does. Returns if it noticed nothing, as is right where it did not need the victim any more."""
    victim = rank == kill.victim
    if kill.phase == "bootstrap" and victim:
        if kill.delay == 0:
            die()
        die_later(kill.delay)
    with hocket.init() as comm:
        program = (ring.all_reduce, all_pairs.one_shot_all_reduce)[kill.calls % 2]
        schedule = program(kill.ranks).compile()
        x = np.zeros(kill.elements, np.float32)
        if kill.lent:
            schedule = direct.all_reduce(kill.ranks).compile(storage="peer")
            x = comm.empty(kill.elements, np.float32)
            x[:] = 0
        for _ in range(kill.calls):
            comm.run(schedule, x)
        if kill.phase == "idle" and victim:
            time.sleep(kill.delay)
            die()
        if kill.phase == "call" and victim:
            die_later(kill.delay)
        if kill.phase == "close":
            if victim:
                die_later(kill.delay)
                comm.close()
                signal.pause()
            if kill.calls % 2:
                comm.barrier()
            return
        makes = {
            "split": lambda: comm.split(rank % 2, -rank),
            "dup": comm.dup,
            "subgroup": lambda: comm.subgroup(range(kill.ranks)),
        }
        if kill.phase in makes:
            if victim:
                die_later(kill.delay)
            while True:
                makes[kill.phase]().close()  # calls on it would name ranks by other numbers
        while True:
            comm.run(schedule, x)


def trial(kill: Kill) -> str:
    """Run it and return what the others saw, in a word. Raises AssertionError if it was not as promised."""
    words, codes = run(kill.ranks, lambda rank: live(kill, rank), kill.victim)
    assert codes[kill.victim] == -signal.SIGKILL, (kill, codes, words)
    assert words.keys() == codes.keys() - {kill.victim}, (kill, codes, words)
    return "+".join(sorted({judge(kill, word) for word in words.values()}))


def judge(kill: Kill, word: Word) -> str:
    """What a rank saw, in a word, if the message is a good one."""
    if word["type"] is None:
        assert kill.phase == "close", (kill, word)
        assert kill.calls % 2 == 0, (kill, word)
        return "unharmed"
    assert word["type"] == PeerFailed.__name__, (kill, word)
    assert word["rank"] == kill.victim, (kill, word)
    assert f"rank {kill.victim} " in word["text"], (kill, word)
    reasons = (
        "was missed by",
        "has ended",
        "was ended by SIGKILL before",
        "ended or gave up before",
        "ended while",
        "closed its",
    )
    assert any(reason in word["text"] for reason in reasons), (kill, word)
    if word["step"] is None:
        return "before all had met" if " the ranks" in word["text"] else "between calls"
    judge_step(word)
    return "in a step"


def kills(count: int, seed: int) -> None:
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    before = leftovers()
    slowest = 0.0
    for number in range(count):
        kill = draw(number, rng)
        begun = time.monotonic()
        seen[f"{kill.phase}: {trial(kill)}"] += 1
        slowest = max(slowest, time.monotonic() - begun)
        assert leftovers() <= before, (kill, leftovers() - before)
    for what, times in sorted(seen.items()):
        print(f"  {times:4} {what}")
    print(f"{count} kills: every other rank named the dead one within {BOUND:.0f} s (slowest trial {slowest:.2f} s)")


# ---------------------------------------------------------------------------------------------------------------
# Disagreements

Array = NDArray[np.generic]
SIZES = (1, 2, 12, 1000, 20_000)
TYPES = ("float32", "float64", "int32", "int64")
OPERATORS = ("sum", "min", "max")
WRONG: dict[str, tuple[type[HocketError], Callable[[Array], tuple[Any, Any]]]] = {
    "a list": (WrongType, lambda x: ([1.0], None)),
    "nothing": (WrongType, lambda x: (None, None)),
    "a strided array": (InvalidArgument, lambda x: (np.zeros((3, 4), x.dtype)[:, :2], None)),
    "an out of another size": (InvalidArgument, lambda x: (x, np.zeros(len(x) + 1, x.dtype))),
    "an out of another type": (WrongType, lambda x: (x, np.zeros(len(x), "datetime64[s]"))),
    "a read-only result": (InvalidArgument, lambda x: (x, read_only(x))),
}
RESPECTS = ("schedule", "size", "type", "operator", "tile", "barrier", "counts", *WRONG)


def read_only(x: Array) -> Array:
    found = np.zeros_like(x)
    found.flags.writeable = False
    return found


def full(comm: Communicator, lent: bool, n: int, kind: str) -> Array:
    x = comm.empty(n, kind) if lent else np.empty(n, kind)
    x[:] = comm.rank + 1
    return x


def recount(rng: random.Random, ranks: int, odd: int) -> Case:
    """A call with counts, of which one rank has more somewhere, or the same rows elsewhere."""
    name = rng.choice(COUNTED)
    lines = ranks if name == "all_to_all" else 1
    counts = tuple(tuple(rng.choice((0, 1, 2, 1000)) for _ in range(ranks)) for _ in range(lines))
    place, more = rng.randrange(ranks), rng.choice((1, 2, 100_000))
    changes = [(place, more)]
    other = (place + 1) % ranks
    if rng.random() < 0.5 and (had := counts[odd % lines][other]):
        changes = [(place, had), (other, -had)]
    root = rng.randrange(ranks) if name in ROOTED else 0
    return Case(name, counts, (rng.randint(1, 3),), "int64", "sum", root, "apart", False, odd, tuple(changes))


def disagreeing(launched: Communicator, count: int, seed: int) -> dict[str, int]:
    """``count`` calls of which one rank makes another. All ranks draw the same numbers."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    with hocket.init(timeout=BOUND) as comm:
        programs = (ring.all_reduce, all_pairs.all_reduce, all_pairs.one_shot_all_reduce)
        schedules = [program(comm.size).compile() for program in programs]
        lending = direct.all_reduce(comm.size).compile(storage="peer")
        for number in range(count):
            respect = rng.choice(RESPECTS)
            odd, schedule = rng.randrange(comm.size), rng.choice(schedules)
            n, kind, op = rng.choice(SIZES), rng.choice(TYPES), rng.choice(OPERATORS)
            tile, apart, lent = rng.choice((None, 64, 4096)), rng.random() < 0.5, rng.random() < 0.3
            if lent:
                schedule, apart = lending, False
            if respect == "counts":
                counted.disagree(comm, recount(rng, comm.size, odd))
                seen[respect] += 1
                continue
            call = {"schedule": schedule, "n": n, "type": kind, "op": op, "tile": tile}
            change = {
                "schedule": ("schedule", [s for s in schedules if s is not schedule]),
                "size": ("n", [m for m in SIZES if m != n]),
                "type": ("type", [t for t in TYPES if t != kind]),
                "operator": ("op", [o for o in OPERATORS if o != op]),
                "tile": ("tile", [t for t in (None, 64, 4096) if t != tile]),
            }
            key, values = change.get(respect, ("", [None]))
            value = rng.choice(values)
            is_odd = comm.rank == odd
            if is_odd and key:
                call[key] = value
            x: Array = full(comm, lent, call["n"], call["type"])
            out = np.full_like(x, 77) if apart else None
            given: tuple[Any, Any] = (x, out)
            if is_odd and respect in WRONG:
                given = WRONG[respect][1](x)
            kept = [None if array is None else np.asarray(array).tobytes() for array in given]
            what = (seed, number, respect, odd, comm.rank, call)
            try:
                if is_odd and respect == "barrier":
                    comm.barrier()
                else:
                    comm.run(call["schedule"], *given, op=call["op"], tile=call["tile"])
            except HocketError as raised:
                error = raised
            else:
                raise AssertionError(("no error", what))
            expected: type[HocketError] = CallMismatch
            if respect in WRONG:
                expected = WRONG[respect][0] if is_odd else PeerRefused
            assert type(error) is expected, (what, error)
            if isinstance(error, CallMismatch):
                assert error.rank == (odd or 1), (what, error)
            if isinstance(error, PeerRefused):
                assert error.rank == odd, (what, error)
            assert kept == [None if array is None else np.asarray(array).tobytes() for array in given], what
            found = comm.run(schedule, full(comm, lent, 3, "int64"))
            assert found is not None
            assert (found == comm.size * (comm.size + 1) // 2).all(), what
            seen[respect] += 1
    return dict(seen)


def disagree(count: int, seed: int) -> None:
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    shares = [count // 2, count // 4, count - count // 2 - count // 4]
    for ranks, share in zip((2, 3, 4), shares, strict=True):
        for found in hocket.spawn(disagreeing, ranks, (share, rng.randrange(1 << 32)))[:1]:
            seen.update(found)
    for what, times in sorted(seen.items()):
        print(f"  {times:5} {what}")
    print(f"{seen.total()} calls that disagree: an error on every rank, nothing written, the next call works")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "disagree", "stops", "limits", "exits"])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    campaigns = {
        "kills": kills,
        "disagree": disagree,
        "stops": hardships.stops,
        "limits": hardships.limits,
        "exits": exits.exits,
    }
    campaigns[given.what](given.count, given.seed)


if __name__ == "__main__":
    main()
