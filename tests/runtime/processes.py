"""Ranks as forked processes that say in the end how it went: what the campaigns of faults run."""

from __future__ import annotations

import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hocket.runtime.bootstrap import Ends, environment
from tests.limits import scaled

BOUND = 5.0  # seconds in which every rank must know
LONGEST = 60.0  # seconds of a whole trial

Word = dict[str, Any]


def told(error: BaseException) -> Word:
    step = getattr(error, "step", None)
    return {
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "text": str(error),
        "at": time.monotonic(),
        "step": None if step is None else [step.operation, step.thread_block, step.step, str(step.where)],
    }


def start(live: Callable[[int], None], rank: int, variables: dict[str, str], words: int) -> int:
    """A process that is a rank; it says in the end how it went."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(variables)
        word: Word = {"type": None}
        try:
            live(rank)
        except BaseException as error:
            word = told(error)
        os.write(words, json.dumps(word | {"from": rank}).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def spoken(data: bytes) -> list[Word]:
    return [json.loads(line) for line in data.splitlines()]


def run(
    ranks: int,
    live: Callable[[int], None],
    victim: int | None = None,
    meanwhile: Callable[[dict[int, int]], None] = lambda _: None,
) -> tuple[dict[int, Word], dict[int, int]]:
    """What each rank said, and its exit code. Once the victim has ended, all must within ``BOUND``.

    A launcher's part is played here: ranks that meet are told of one that ends. ``meanwhile`` is called in a thread,
    with the ranks' process ids.
    """
    ends = Ends()
    source, sink = os.pipe()
    os.set_blocking(source, False)
    pids: dict[int, int] = {}
    lines: dict[int, int] = {}
    codes: dict[int, int] = {}
    died: float | None = None
    found = b""
    beside = threading.Thread(target=lambda: meanwhile(pids))
    begun = time.monotonic()
    try:
        for rank, variables in enumerate(environment(ranks, ends)):
            pids[rank] = start(live, rank, variables, sink)
        os.close(sink)
        beside.start()
        with selectors.DefaultSelector() as waiting:
            waiting.register(source, selectors.EVENT_READ)
            for rank, pid in pids.items():
                lines[os.pidfd_open(pid)] = rank
            for line in lines:
                waiting.register(line, selectors.EVENT_READ)
            while waiting.get_map():
                for key, _ in waiting.select(0.5):
                    if key.fd == source:
                        with suppress(BlockingIOError):
                            data = os.read(source, 1 << 16)
                            found += data
                            if not data:
                                waiting.unregister(source)
                        continue
                    rank = lines[key.fd]
                    waiting.unregister(key.fd)
                    codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pids[rank], 0)[1])
                    with suppress(BlockingIOError):
                        found += os.read(source, 1 << 16)  # its word is there
                    word = next((word for word in spoken(found) if word["from"] == rank), {"type": None})
                    if codes[rank] < 0:
                        ends.tell(rank, f"was ended by {signal.Signals(-codes[rank]).name}")
                    elif word["type"] == "PeerFailed":
                        ends.tell(word["rank"], f"was missed by rank {rank}")
                    else:
                        ends.tell(rank, "ended")
                    if rank == victim:
                        died = time.monotonic()
                now = time.monotonic()
                assert died is None or now - died < scaled(BOUND), ("hangs", found)
                assert now - begun < scaled(LONGEST), ("hangs", found)
    finally:
        for rank, pid in pids.items():
            if rank not in codes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for line in lines:
            os.close(line)
        os.close(source)
        ends.close()
        beside.join()
    return {word["from"]: word for word in spoken(found)}, codes


def judge_step(word: Word) -> None:
    """Where a rank stood in a call must be told with operation, thread block, step and line."""
    operation, _, _, where = word["step"]
    assert "<" in operation or ">" in operation, word
    program = where.partition(":")[0]
    assert Path(program).name in ("ring.py", "all_pairs.py", "direct.py"), word
    for part in ("waiting for rank", "thread block", " step ", f"--> {program}:"):
        assert part in word["text"], word


def leftovers() -> set[str]:
    """Files, descriptors and children that are there now."""
    shared = {f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()}
    files = {f"/tmp/{path.name}" for path in Path("/tmp").iterdir() if "hocket" in path.name.lower()}
    descriptors = {f"descriptor {path.name}" for path in Path("/proc/self/fd").iterdir() if path.exists()}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return shared | files | descriptors | {f"process {pid}" for pid in children}
