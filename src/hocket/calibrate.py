"""Measures this machine: the topology ``local``, for the simulator (docs/simulator.md).

Programs are of the public runtime and no others: copies and sums of a rank alone, exchanges, a ping-pong.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

import hocket
from hocket import Communicator, Custom, Program, Schedule, chunk
from hocket.sim import Simulator
from hocket.sim.cores import between
from hocket.topology import CORES, Costs, Memory, Topology, cores
from hocket.tuning import zero_copy_program

WORKING_SETS = (*(24 << 10 << 2 * i for i in range(7)), 192 << 20)
"""Bytes of a core's working set for which bandwidths are measured: from a first-level cache to memory. The largest are
left out where those of all ranks would take more than a quarter of the machine's memory."""

ROUNDS, SECONDS = 3, 25.0
"""Times that everything is measured, in turns, as far as that takes no more than so many seconds: others on the machine
disturb them at different times."""

_WARM = 0.05  # seconds in which a core that was idle comes up to speed
_SECONDS = 0.02  # of one measurement in a round
_MOST_CALLS = 100  # of a batch
_BATCHES, _FEW_BATCHES = 64, 2  # where calls are short; where one takes longer than a batch
_TINY, _SINGLE, LENT = 8, 96, 2560  # bytes: of a call in which nothing but its cost counts, of a message that takes
# lines of its own, of a call in which shared arrays are lent
_SHORT, LONG = 2, 18  # hops of the two ping-pongs, of which the difference counts
_CUT, STEPS = 3 << 10, 8  # bytes of an exchange, and messages that it is cut into
_KINDS = ("copy", "update", "add", "far")  # what is measured for each working set
MOST = 64  # ranks at once
_MOST_TILE = 256 << 10  # of what one rank moves alone: slot_bytes (native/policy/tunables.def)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured: the least and the median over rounds of the seconds of a call of the slowest rank."""

    least: float
    median: float


@dataclass(frozen=True, slots=True)
class Task:
    """A call to time. ``size``: bytes of a chunk; ``name``: called by that name, else the schedule is run."""

    key: tuple[object, ...]
    size: int
    schedule: Schedule | None = None
    name: str = ""
    shared: bool = False


def _copies(ranks: int) -> Program:
    with Program(Custom(ranks, inputs=1, outputs=1, post=lambda r, _: {(r, 0)}), name="copies") as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", 0)
    return p


def _sums(ranks: int) -> Program:
    with Program(Custom(ranks, inputs=2, outputs=1, post=lambda r, _: {(r, 0), (r, 1)}), name="sums") as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy(r, "out", 0)
            chunk(r, "out", 0).reduce(chunk(r, "in", 1))
    return p


def _updates(ranks: int) -> Program:
    """In place."""

    def post(r: int, index: int) -> set[tuple[int, int]]:
        return {(r, 1)} if index else {(r, 0), (r, 1)}

    collective = Custom(ranks, inputs=2, outputs=2, post=post, inplace=True)
    with Program(collective, name="updates") as p:
        for r in range(ranks):
            chunk(r, "in", 0).reduce(chunk(r, "in", 1))
    return p


def exchange(ranks: int) -> Program:
    """Every rank sends to the next."""
    with Program(Custom(ranks, inputs=1, outputs=1, post=lambda r, _: {((r - 1) % ranks, 0)}), name="exchange") as p:
        for r in range(ranks):
            chunk(r, "in", 0).copy((r + 1) % ranks, "out", 0)
    return p


def _ping_pong(hops: int) -> Program:
    """Two ranks, whose inputs go to and fro."""
    with Program(Custom(2, inputs=1, outputs=1, post=lambda r, _: {((r + hops) % 2, 0)}), name="ping_pong") as p:
        for r in range(2):
            c = chunk(r, "in", 0)
            for i in range(1, hops):
                c = c.copy((r + i) % 2, "sc", i)
            c.copy((r + hops) % 2, "out", 0)
    return p


def _tasks(ranks: int) -> list[Task]:
    """Those that so many ranks do at once."""
    copies = _copies(ranks).compile()
    programs = (("copy", copies, 2), ("update", _updates(ranks).compile(), 2), ("add", _sums(ranks).compile(), 3))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sets = [w for w in WORKING_SETS if w * ranks <= memory // 4]
    found = [Task((key, w), w // parts, schedule) for key, schedule, parts in programs for w in sets]
    found += [Task(("run", key), _TINY, schedule) for key, schedule, _ in programs]
    if ranks > 1:
        crossing = exchange(ranks).compile()
        found += [Task(("far", w), w // 2, crossing) for w in sets]
    if ranks == 2:
        found += [Task(("hops", hops), _TINY, _ping_pong(hops).compile()) for hops in (_SHORT, LONG)]
        found += [Task(("steps", n), _CUT, exchange(ranks).compile(instances=n)) for n in (1, STEPS)]
        found.append(Task(("crossing",), _SINGLE, exchange(ranks).compile()))
        found.append(Task(("call",), _TINY, name="reduce"))
        found.append(Task(("lent",), LENT, name="broadcast", shared=True))
    found.sort(key=lambda task: task.size)  # a process that has slept much is interrupted least
    return [*(task for task in found if task.size <= _CUT), *found]


def _on_each_rank(comm: Communicator, tasks: Sequence[Task]) -> list[float]:
    """Seconds of a call of each task: the least of its batches."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[comm.rank % len(allowed)]})
    end = time.perf_counter() + _WARM
    while time.perf_counter() < end:
        pass
    return [_timed(comm, task) for task in tasks]


def _timed(comm: Communicator, task: Task) -> float:
    count = max(1, task.size // 4)
    inputs, outputs = (1, 0) if task.schedule is None else _blocks(task.schedule, comm.rank)

    def array(blocks: int) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
        if not blocks:
            return None
        made = comm.empty(blocks * count, np.float32) if task.shared else np.empty(blocks * count, np.float32)
        made[:] = 1
        return made

    inplace = task.schedule is not None and task.schedule.collective.inplace
    x, out = array(inputs), None if inplace else array(outputs)
    call: Callable[[], object] = (
        partial(getattr(comm, task.name), x) if task.schedule is None else partial(comm.run, task.schedule, x, out)
    )
    call()
    comm.barrier()
    begin = time.perf_counter()
    call()
    once = max(comm.all_gather_object(time.perf_counter() - begin))
    calls = int(min(max(_SECONDS / _BATCHES / once, 1), _MOST_CALLS))
    batches = []
    for _ in range(min(_BATCHES, max(_FEW_BATCHES, int(_SECONDS / once)))):
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        batches.append((time.perf_counter() - begin) / calls)
    return min(batches)


def _blocks(schedule: Schedule, rank: int) -> tuple[int, int]:
    return schedule.collective.input_blocks(rank), schedule.collective.output_blocks(rank)


Key = tuple[object, ...]


def measure(most: int, done: Callable[[float], None]) -> dict[Key, Figure]:
    """Seconds of each task, by its ranks and its key. ``done`` is told the share of all that is over."""
    counts = _counts(most)
    seconds: defaultdict[Key, list[float]] = defaultdict(list)
    tasks = {ranks: _tasks(ranks) for ranks in counts}
    begun = time.monotonic()
    for turn in range(ROUNDS):
        for number, ranks in enumerate(counts):
            found = hocket.spawn(_on_each_rank, ranks, (tasks[ranks],), threads=1)
            for task, of_ranks in zip(tasks[ranks], zip(*found, strict=True), strict=True):
                seconds[ranks, *task.key].append(max(of_ranks))
            done((turn + (number + 1) / len(counts)) / ROUNDS)
        if (time.monotonic() - begun) * (turn + 2) / (turn + 1) > SECONDS:
            break
    done(1.0)
    return {key: Figure(min(values), statistics.median(values)) for key, values in seconds.items()}


def _counts(most: int) -> list[int]:
    """Ranks that are measured at once: one, two, and so on by factors of four, and all cores."""
    counts = [1, *(2 * 4**i for i in range(4))]
    return sorted({count for count in counts if count < most} | {most})


def _undisturbed(us: Mapping[Key, float]) -> dict[Key, float]:
    """What took longer than the same in a larger working set was disturbed, and took no longer than that."""
    found = dict(us)
    for ranks, kind in {key[:2] for key in us if key[1] in _KINDS}:
        least = math.inf
        for w in reversed([w for w in WORKING_SETS if (ranks, kind, w) in us]):
            least = found[ranks, kind, w] = min(least, us[ranks, kind, w])
        if kind != "far":
            found[ranks, "run", kind] = min(least, us[ranks, "run", kind])
    return found


def is_disturbed(figures: Mapping[Key, Figure]) -> bool:
    """Whether others had the cores meanwhile: rounds differ by more than 2, or steps take longer than a whole call."""
    if any(figure.median > 2 * figure.least for figure in figures.values()):
        return True
    if (2, "call") not in figures:
        return False
    steps = figures[2, "steps", STEPS].least - figures[2, "steps", 1].least
    return steps / (STEPS - 1) > figures[2, "call"].least


def topology(figures: dict[Key, Figure], name: str = "local") -> Topology:
    """What the figures come to."""
    us = _undisturbed({key: figure.least * 1e6 for key, figure in figures.items()})
    counts = sorted({ranks for ranks, *_ in us if isinstance(ranks, int)})
    several = 2 in counts
    decode = max(0.0, us[2, "steps", STEPS] - us[2, "steps", 1]) / (STEPS - 1) / 2 if several else 0.0
    launch = max(0.0, us[2, "call"] - 2 * decode) if several else us[1, "run", "copy"]
    hop = max(0.0, (us[2, "hops", LONG] - us[2, "hops", _SHORT]) / (LONG - _SHORT) - decode) if several else 0.0
    crossing = max(0.0, us[2, "crossing"] - us[2, "run", "copy"] - decode) if several else 0.0
    hops = {"eager": crossing, "fifo": hop}
    paths = tuple(replace(path, hop=hops.get(path.name, 0.0)) for path in CORES.protocols)
    costs = replace(CORES, launch=launch, decode=decode, protocols=paths)
    memory = list[Memory]()
    for ranks in counts:
        memory += _memory(ranks, us, costs, memory)
    # What all others can take from a core at once is not measured: no transfer is to be held up by it.
    link = counts[-1] * max(speed for point in memory for speed in (point.copy, point.update))
    found = cores(name, counts[-1], 1, link, replace(costs, memory=tuple(memory)))
    return found if not several else _with_barrier(found, us[2, "lent"])


def _with_barrier(found: Topology, lent: float) -> Topology:
    """Zero-copy calls start later: by what one takes more than the rest of it, which is that all are done."""
    program = zero_copy_program("broadcast", 2, inplace=True)
    assert program is not None
    rest = Simulator(program.compile(storage="peer"), found).best(LENT).time
    paths = tuple(
        replace(path, start=max(0.0, lent - rest)) if path.name == "zero-copy" else path
        for path in found.costs.protocols
    )
    return replace(found, costs=replace(found.costs, protocols=paths))


FASTEST, _SLOWEST = 500.0, 0.01  # GB/s that a core may be found to move
_HALVINGS = 24


def _memory(ranks: int, us: dict[Key, float], costs: Costs, fewer: Sequence[Memory]) -> list[Memory]:
    """The curves for so many ranks at once, which are no faster than ``fewer``."""
    base = us[ranks, "run", "copy"]

    def speed(key: str, w: int, size: int, besides: float) -> float:
        time = us[ranks, key, w] - us[ranks, "run", key] - besides - (-(-size // _MOST_TILE) - 1) * costs.decode
        return size / 1e3 / max(time, size / 1e3 / FASTEST)

    points = []
    sets = [w for w in WORKING_SETS if (ranks, "copy", w) in us]
    for w in sets:
        copy, update = (speed(key, w, w // 2, 0.0) for key in ("copy", "update"))
        add = speed("add", w, w // 3, w // 3 / 1e3 / copy)
        for point in fewer:
            if point.bytes == w:
                copy, update, add = min(copy, point.copy), min(update, point.update), min(add, point.add)
        points.append(Memory(ranks, w, copy, update, add, FASTEST))
    if ranks == 1:
        return points
    schedule = exchange(ranks).compile()
    crossed = []
    for w in sets:
        low, high = _SLOWEST, FASTEST
        for _ in range(_HALVINGS):
            far = math.sqrt(low * high)
            memory = tuple(replace(point, far=far) for point in points)
            machine = cores("calibrated", ranks, 1, FASTEST, replace(costs, launch=base - costs.decode, memory=memory))
            simulator = Simulator(schedule, machine)
            if simulator.best(w // 2).time > us[ranks, "far", w]:
                low = far
            else:
                high = far
        crossed.append(Memory(ranks, round(simulator.working_set(w // 2)), 1.0, 1.0, 1.0, low))
    return [replace(point, far=between(crossed, point.bytes).far) for point in points]
