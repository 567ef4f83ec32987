"""How far apart the cores of two ranks are, and what messages between them cost:
``hocket launch -n 2 -- python benchmarks/distance.py [--loops | --copies]``.

A hypervisor moves cores about: from second to second two may be threads of one core, share a cache, or share none. So
each cell is measured in rounds, with and without what hocket does about it, in turns, and counts where the time that a
line takes from one core to the other said the same before the round and after it (distance.cpp). ``--loops``: plain
loops in the place of hocket, which exchange arrays through areas of so many bytes together, in turns. ``--copies``: one
process passes its array to the other through 32 slots of 64 KB, and each copies by memcpy, or by a loop that prefetches
what it stores to; of the rounds the tenth of a hundred, the median and the ninetieth. Sizes are then of whole slots.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import mmap
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from machine import describe, title
from peers import HERE, build

import hocket

OFF = "apart_ticks=1099511627776,rotated_bytes=0"
SETTINGS = {"without": OFF, "rotated": "apart_ticks=1099511627776", "with": ""}
STATES = {"threads of a core": 100, "share a cache": 250, "share none": math.inf}
"""By the ticks that a line takes at most: benchmarks/results/distance.md."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
WAYS = "memcpy", "loop"
SLOT, PAGE = 64 << 10, 4 << 10
COLD = 64 << 20
"""Bytes of the arrays that calls in no cache take turns with."""

Run = Callable[[int], float]
"""Microseconds of a call, of so many."""


class Probe:
    """The library of distance.cpp, and the memory that the two ranks share."""

    def __init__(self, comm: hocket.Communicator) -> None:
        self._rank = comm.rank
        folder = Path(_from_first(comm, lambda: tempfile.mkdtemp(dir="/dev/shm")))
        if comm.rank == 0:
            build(HERE / "distance.cpp", folder / "distance.so")
        comm.barrier()
        self.library = ctypes.CDLL(str(folder / "distance.so"))
        self.library.exchange.restype = self.library.pass_slots.restype = ctypes.c_double
        bytes_ = self.library.shared_bytes()
        with (folder / "shared").open("a+b") as file:
            file.truncate(bytes_)
            self._map = mmap.mmap(file.fileno(), bytes_)
        self.memory = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._map)))
        comm.barrier()
        if comm.rank == 0:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    def state(self) -> str:
        ticks = self.library.line_ticks(self.memory, self._rank)
        return next(name for name, most in STATES.items() if ticks < most)

    def loop(self, bytes_: int, areas: int, *, non_temporal: bool) -> Run:
        x, out = np.zeros(bytes_ // 4, np.float32), np.zeros(bytes_ // 4, np.float32)
        sizes = ctypes.c_size_t(bytes_), ctypes.c_size_t(max(1, areas // bytes_))
        return lambda calls: self.library.exchange(
            self.memory,
            self._rank,
            ctypes.c_void_p(x.ctypes.data),
            ctypes.c_void_p(out.ctypes.data),
            *sizes,
            non_temporal,
            calls,
        )

    def copies(self, bytes_: int, stores: str, loads: str) -> Run:
        whole, by_loop = np.ones(bytes_ + PAGE, np.uint8), (stores == "loop", loads == "loop")
        x = whole[-whole.ctypes.data % PAGE :]  # as slots do: else memcpy might be slow by page aliasing
        size = ctypes.c_size_t(bytes_)
        return lambda calls: self.library.pass_slots(
            self.memory, self._rank, ctypes.c_void_p(x.ctypes.data), size, *by_loop, calls
        )


def _from_first(comm: hocket.Communicator, make: Callable[[], str]) -> str:
    """A short text of rank 0."""
    text = np.zeros(256, np.uint8)
    if comm.rank == 0:
        data = make().encode()
        text[: len(data)] = list(data)
    comm.broadcast(text)
    return bytes(text).rstrip(b"\0").decode()


def call(comm: hocket.Communicator, collective: str, bytes_: int, cold: bool) -> Run:
    """Calls on private arrays that the caller changes between them, or, cold, on the next ones each time."""
    n, p = bytes_ // 4, comm.size
    lengths = {"all_gather": (n, n * p), "reduce_scatter": (n * p, n), "all_to_all": (n * p, n * p)}.get(
        collective, (n, n)
    )
    sets = max(2, COLD // (4 * sum(lengths))) if cold else 1
    arrays = [tuple(np.zeros(length, np.float32) for length in lengths) for _ in range(sets)]
    made = 0

    def run(calls: int) -> float:
        nonlocal made
        method, took = getattr(comm, collective), 0.0
        for _ in range(calls):
            x, out = arrays[made % sets]
            made += 1
            if not cold:
                x[::16] += 1
            begin = time.perf_counter()
            if collective == "broadcast":
                method(x)
            elif collective == "reduce":
                method(x, out if comm.rank == 0 else None)
            else:
                method(x, out)
            took += time.perf_counter() - begin
        return 1e6 * took / calls

    return run


def measure(
    probe: Probe, comm: hocket.Communicator, ways: Mapping[str, Run], rounds: int, calls: int
) -> dict[str, list[dict[str, float]]]:
    """What each way took in each round, by the state that the machine was in."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for run in ways.values():
        run(60)
    for number in range(rounds):
        before, took = probe.state(), {}
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:  # none twice running: it would be warm
            comm.barrier()
            took[name] = ways[name](calls)
        if probe.state() == before:
            found[before].append(took)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--copies", action="store_true")
    parser.add_argument("--cold", action="store_true", help="arrays that are in no cache")
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[4 << 10 << 2 * i for i in range(5)], metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    if given.copies and any(size % SLOT for size in given.sizes):
        parser.error(f"--sizes: with --copies, multiples of {SLOT}")
    return given


def main() -> None:
    given = arguments()
    comm = hocket.init()
    probe = Probe(comm)
    loops = {
        f"{way} {areas >> 10} KB": (areas, way == "past")
        for way in ("through", "past")
        for areas in (0, 256 << 10, 1 << 20, 2 << 20, 4 << 20)
    }
    copies = {f"{stores} {loads}": (stores, loads) for stores in WAYS for loads in WAYS}
    comms = {}
    for name, values in SETTINGS.items():
        os.environ["HOCKET_TUNABLES"] = values
        comms[name] = hocket.init()
    if comm.rank == 0:
        print(title(describe() | {"cold": given.cold}))
        print("us a call", *(loops if given.loops else copies if given.copies else SETTINGS), sep="  ")
    for what in ["loops"] if given.loops else ["copies"] if given.copies else given.collective:
        for size in given.sizes:
            calls = max(10, min(300, int(3000 / (2 + size / 10_000))))
            if given.loops:
                ways = {
                    name: probe.loop(size, areas or 2 * size, non_temporal=past)
                    for name, (areas, past) in loops.items()
                }
            elif given.copies:
                ways = {name: probe.copies(size, *how) for name, how in copies.items()}
            else:
                ways = {name: call(each, what, size, given.cold) for name, each in comms.items()}
            for state, rounds in sorted(measure(probe, comm, ways, given.rounds, calls).items()):
                if comm.rank == 0:
                    shown = (10, 50, 90) if given.copies else (50,)
                    times = "  ".join(
                        " ".join(f"{np.percentile([took[name] for took in rounds], part):8.2f}" for part in shown)
                        for name in ways
                    )
                    print(f"{what:>15} {size:8} {state:>18} {len(rounds):4} {times}", flush=True)


if __name__ == "__main__":
    main()
