"""Processes that end while they are in calls: what the campaign of exits runs.

The main thread of every rank returns at a random moment, with daemon threads inside of calls, or with calls in the
background. Every rank must end like any script: with its own exit code, and nothing on stderr.
"""

from __future__ import annotations

import gc
import os
import random
import select
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np

import hocket
from hocket import Communicator, HocketError
from hocket.runtime.bootstrap import Ends, environment
from tests.limits import scaled
from tests.runtime.processes import LONGEST

RANKS = 2
AT_ONCE = 4  # trials

kept: list[object] = []  # handles that the end of the interpreter finds


def in_thread(body: Callable[[], object]) -> None:
    """Do something again and again in a daemon thread, and return once it has begun."""
    begun = threading.Event()

    def work() -> None:
        begun.set()
        with suppress(HocketError):  # the other rank has ended
            while True:
                body()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()


def in_calls(comm: Communicator, rng: random.Random) -> None:
    """One thread in a call that ends at once, or waits, or lets others run, or is compiled."""
    x = np.ones(4 << rng.randrange(0, 18, 4))
    kind = rng.randrange(3)
    if kind == 0:
        in_thread(comm.barrier)
    elif kind == 1:
        comm.all_reduce(x)
        in_thread(lambda: comm.all_reduce(x))
    else:
        in_thread(lambda: comm.all_gather(x))


def in_background(comm: Communicator, rng: random.Random) -> None:
    """Calls that nobody waits for, or a thread does."""
    x = np.ones(4 << rng.randrange(0, 18, 4))
    handles = [comm.all_reduce(x, np.empty_like(x), op="avg", async_=True) for _ in range(rng.randint(1, 4))]
    kind = rng.randrange(3)
    if kind == 0:
        kept.extend(handles)
    elif kind == 1:
        in_thread(handles[-1].wait)


def dropped(comm: Communicator, rng: random.Random) -> None:
    other = comm.dup()
    in_background(other, rng)
    del other
    gc.collect()


def live(manner: Callable[[Communicator, random.Random], None], delay: float, seed: int) -> None:
    """What the main thread of a rank does."""
    comm = hocket.init()
    with suppress(HocketError):
        manner(comm, random.Random(seed))
    time.sleep(delay)


def trial(rng: random.Random, stderr: int) -> list[tuple[int, str]]:
    """Start the ranks of a trial: their processes, and what each does. A rank never returns from here."""
    ends, found = Ends(), []
    seed, manners = rng.randrange(1 << 32), [rng.choice((in_calls, in_background)) for _ in range(RANKS)]
    if not rng.randrange(3):
        manners = [dropped] * RANKS  # all make the same communicators
    for rank, variables in enumerate(environment(RANKS, ends)):
        delay = rng.uniform(0, 0.02)
        child = os.fork()
        if not child:
            os.dup2(stderr, 2)
            os.environ.update(variables)
            live(manners[rank], delay, seed)
            sys.exit(7)  # through the end of the interpreter
        found.append((child, manners[rank].__name__))
    ends.close()
    return found


def exits(count: int, seed: int) -> None:
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryFile() as said:
        for _ in range(0, count, AT_ONCE):
            running = [process for _ in range(AT_ONCE) for process in trial(rng, said.fileno())]
            deadline = time.monotonic() + scaled(LONGEST)
            for child, manner in running:
                line = os.pidfd_open(child)
                hangs = not select.select([line], [], [], max(0.0, deadline - time.monotonic()))[0]
                os.close(line)
                assert not hangs, (child, manner)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code == 7, (manner, code, os.pread(said.fileno(), 4096, 0).decode())
                seen[manner] += 1
        words = os.pread(said.fileno(), 4096, 0).decode()
    assert not words, words
    for manner, times in sorted(seen.items()):
        print(f"  {times:5} {manner}")
    print(f"{seen.total()} ranks ended in the middle of calls, and each as a script does")
