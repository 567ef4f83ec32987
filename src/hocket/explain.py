"""What a call by name runs, and how long it might take: ``Communicator.explain``."""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass, replace

import numpy as np

from hocket.errors import BadTopology, counted
from hocket.ir.memory import lying_apart
from hocket.ir.order import in_order, pace
from hocket.ir.schedule import Schedule
from hocket.ir.traffic import Path, Traffic, traffic
from hocket.runtime.execution import VARIANTS, Endpoint, Outlook
from hocket.tunables import NEVER, show_size
from hocket.tuning import ITEM, Choice, Find, declined
from hocket.verify.events import Events

_CALL = 0.35e-6
_ROUND = 0.15e-6
_STEP = 0.1e-6
"""Seconds that a call takes, a message from one rank to another, and a step on a tile, beside moving data: chosen by
measurements on two cores of a Zen 5."""

_TURN = 3e-6
"""Seconds until a core that several ranks share has gone round to the next of them: from docs/how-fast.md, "More ranks
than cores", where a call of 8 bytes and a barrier take a core 6 to 7 us for each rank on it."""

_LEAST_SET, _MOST_SET = 1 << 15, 1 << 27  # bytes of a core's working set for which bandwidth is measured
_SECONDS = 4e-3  # of one measurement, of which the best of _ATTEMPTS counts
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Shared:
    """What a call runs where messages lie in the arrays of the ranks, in place or apart."""

    inplace: bool
    program: str
    loaded: int
    stored: int

    def __str__(self) -> str:
        how = "in place" if self.inplace else "apart"
        return f"{how} {self.program}, {self.loaded + self.stored} bytes"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a call by name runs. Sizes and traffic in bytes, times in seconds, bandwidth in bytes a second.

    ``bytes`` are those of the larger buffer of a rank with most; ``why`` is the condition of the table (tuning.py)
    that holds. ``thread_blocks`` of the rank with most, ``steps`` of all; ``rounds``: messages, one after the other,
    on the longest chain of steps. A chunk moves in ``tiles`` tiles. ``one_round``: messages travel with the header of
    the call; otherwise they go through ``slots`` of each connection. Where the arrays of all ranks are of
    ``comm.empty``, and as one of ``shared`` says, messages lie in them instead; where only those of some are, they
    take slots. Private arrays that are as one of ``attached`` says are read and written by the system for other ranks,
    if they lie as the rule has it (docs/design/policy.md, "The path"). ``non_temporal``: results that nothing reads
    again do not go through the caches, as ``touched``, the bytes that all ranks touch, exceeds the ``caches``; where it
    does not, a call may still find its arrays in no cache, and store so (docs/design/policy.md, "residency probe").
    ``loaded`` and ``stored``: by the instructions of all ranks.

    ``predicted`` is simulated where ``hocket calibrate`` has measured this machine and each rank has a core and one
    thread; ``bandwidth`` is then 0. Else it is an estimate, and ``uncertain`` says why: what the busiest rank moves and
    what it waits for its first tile, at ``bandwidth``, that of a core while all copy, measured when first asked for a
    working set like that of this call. To it come constants for the call, each round and each step on a tile.
    ``oversubscribed``: there are more ranks than cores, so that they take turns: each round then waits for all that
    share a core. The estimate does not know that what another core has written takes longer to read, and neither knows
    who else uses the machine. ``tuner``: the arms that a tuner knows for such calls, and why it takes which; empty
    where none learns.
    """

    collective: str
    ranks: int
    bytes: int
    program: str
    why: str
    shared: tuple[Shared, ...]
    attached: tuple[Shared, ...]
    why_not_attached: str
    thread_blocks: int
    steps: int
    rounds: int
    tile: int
    tiles: int
    slots: int
    one_round: bool
    threads: int
    oversubscribed: bool
    touched: int
    caches: int
    non_temporal: bool
    loaded: int
    stored: int
    bandwidth: float
    predicted: float
    uncertain: str
    tuner: str = ""

    def __str__(self) -> str:
        moved, buffers = self.loaded + self.stored, (self.loaded + self.stored) / max(1, self.bytes)
        how = (
            "in one round, with the header of the call"
            if self.one_round
            else f"through {counted(self.slots, 'slot')} a connection"
        )
        past = "stored past them" if self.non_temporal else "within them"
        attached = "; ".join(map(str, self.attached)) or f"none: {self.why_not_attached}"
        lines = {
            "call": f"{self.collective} of {counted(self.bytes, 'byte')} on {counted(self.ranks, 'rank')}",
            "program": self.program,
            "because": self.why,
            "schedule": (
                f"{counted(self.thread_blocks, 'thread block')} a rank, {counted(self.steps, 'step')} in all, "
                f"{counted(self.rounds, 'round')}"
            ),
            "tiles": f"{self.tiles} of {self.tile} bytes for each chunk",
            "messages": how,
            "shared": f"with arrays of comm.empty: {'; '.join(map(str, self.shared)) or 'the same'}",
            "attached": f"private arrays in a cache and in huge pages: {attached}",
            "threads": f"{self.threads} a rank",
            "cores": (
                "fewer than ranks: they take turns, and one that waits yields its core at once, and then sleeps"
                if self.oversubscribed
                else "at least one a rank: one that waits spins for a while before it yields"
            ),
            "caches": f"{self.touched} bytes are touched, {self.caches} fit: {past}",
            "traffic": f"{moved} bytes ({self.loaded} loaded, {self.stored} stored), {buffers:.4g} times the buffer",
            "predicted": f"{self.predicted * 1e6:.4g} us, {self._source()}",
        }
        if self.tuner:
            lines["tuner"] = self.tuner.replace("\n", "\n" + " " * 11)
        return "\n".join(f"{name:<10} {text}" for name, text in lines.items())

    def _source(self) -> str:
        if not self.uncertain:
            return "simulated with what hocket calibrate has measured here"
        return f"a rough estimate at {self.bandwidth / 1e9:.3g} GB/s a core: {self.uncertain}"


def explain(endpoint: Endpoint, choice: Choice, find: Find[Schedule], size: int) -> Explanation:
    """Explain a call on a larger buffer of ``size`` bytes. ``find`` gives the schedules of its programs."""
    schedule = find(choice.key, choice.compile)
    collective = schedule.collective
    ranks = collective.size
    blocks = collective.most_blocks()
    n = -(-size // (ITEM * blocks))
    outlook = endpoint.outlook(schedule, n, choice.tile)
    chunk = size / (blocks * collective.chunks)
    apart = any(collective.input_blocks(r) != collective.output_blocks(r) for r in range(ranks) if collective.alias(r))
    buffered: Path = "eager" if outlook.one_round else "fifo"
    moved = sum(traffic(schedule, n, ITEM, path=buffered, apart=apart), Traffic())

    def there(path: Path) -> tuple[Shared, ...]:
        found: list[Shared] = []
        for inplace in () if declined(choice, outlook.one_round, path == "cma") else VARIANTS:
            lent = choice.zero_copy(find, inplace)
            if lent is not None:
                sums = sum(traffic(lent, n, ITEM, path=path, apart=not inplace), Traffic())
                found.append(Shared(inplace, lent.name, sums.loaded, sums.stored))
        return tuple(found)

    bandwidth, rounds = 0.0, _rounds(schedule)
    if endpoint.oversubscribed:
        predicted, uncertain = None, "there are more ranks than cores"
    elif outlook.threads > 1:
        predicted, uncertain = None, "threads share a call"
    else:
        predicted, uncertain = _simulated(lying_apart(schedule) if apart else schedule, size, outlook.tile)
    if predicted is None:
        predicted, bandwidth = _estimated(endpoint, schedule, outlook, rounds, chunk)
    shortest = min(max(collective.input_blocks(r), collective.output_blocks(r)) for r in range(ranks))
    least = outlook.attached_bytes * blocks // max(1, shortest)  # each rank goes by its own larger buffer
    why_not = _why_not_attached(endpoint, choice, size, min(least, NEVER))
    return Explanation(
        collective=choice.call.name,
        ranks=ranks,
        bytes=size,
        program=schedule.name,
        why=choice.why,
        shared=there("mapped"),
        attached=() if why_not else there("cma"),
        why_not_attached=why_not,
        thread_blocks=max(len(rank.thread_blocks) for rank in schedule.ranks),
        steps=sum(1 for _ in schedule.steps()),
        rounds=rounds,
        tile=outlook.tile,
        tiles=outlook.tiles,
        slots=outlook.slots,
        one_round=outlook.one_round,
        threads=outlook.threads,
        oversubscribed=endpoint.oversubscribed,
        touched=outlook.touched,
        caches=endpoint.caches,
        non_temporal=outlook.streams,
        loaded=moved.loaded,
        stored=moved.stored,
        bandwidth=bandwidth,
        predicted=predicted,
        uncertain=uncertain,
    )


def _why_not_attached(endpoint: Endpoint, choice: Choice, size: int, least: int) -> str:
    """Why nobody attaches to private arrays in a cache and in huge pages; empty where ranks do."""
    long_enough = replace(choice, call=replace(choice.call, size=max(size, least)))
    why = declined(long_enough, one_round=False, attached=True)
    if why is None and not endpoint.attaches:
        why = "ranks may not copy from each other's memory"
    if why is None and size < least:
        why = "slots are faster on this processor" if least == NEVER else f"less than {show_size(least)}"
    return why or ""


def _simulated(schedule: Schedule, size: int, tile: int) -> tuple[float | None, str]:
    """The seconds that a simulation on this machine takes, or why there is none."""
    from hocket import topology  # a rank that explains nothing needs neither
    from hocket.sim import Simulator

    try:
        machine = topology.local()
    except BadTopology as error:
        return None, error.reason if error.help is None else f"{error.reason}; {error.help}"
    if schedule.collective.size > machine.gpus:
        return None, "there are more ranks than cores were calibrated"
    return Simulator(schedule, machine).best(size, tile).time * 1e-6, ""


def _estimated(
    endpoint: Endpoint, schedule: Schedule, outlook: Outlook, rounds: int, chunk: float
) -> tuple[float, float]:
    """Seconds, and the bandwidth that they are of."""
    ranks = schedule.collective.size
    work, depth = pace(schedule, in_order(schedule))
    cores = min(ranks * outlook.threads, len(os.sched_getaffinity(0)))
    share = ranks * outlook.threads / cores  # ranks that take turns on a core
    nearest = 1 << (2 * (outlook.touched // cores) // 3).bit_length()  # of the powers of two that are measured
    bandwidth = _bandwidth(min(max(_LEAST_SET, nearest), _MOST_SET), cores)
    late = max(0, depth - work) / outlook.tiles
    steps = max(sum(len(block.steps) for block in rank.thread_blocks) for rank in schedule.ranks)
    data = (work * share / outlook.threads + late) * chunk / bandwidth
    constant = _CALL if outlook.one_round else _CALL + rounds * _ROUND + steps * outlook.tiles * _STEP
    if endpoint.oversubscribed:
        constant += share * _TURN * (1 if outlook.one_round else 1 + rounds)  # all enter, then each round
    return constant + data, bandwidth


def _rounds(schedule: Schedule) -> int:
    """Messages on the chain of steps that has most."""
    events = Events(schedule)
    depth = [0] * len(events.steps)
    for i in events.least_slots(schedule.slots)[1]:
        depth[i] = max((depth[j] + (events.rank[j] != events.rank[i]) for j in events.before[i]), default=0)
    return max(depth, default=0)


@functools.cache
def _bandwidth(working_set: int, cores: int) -> float:
    """Bytes loaded and stored a second by each of so many cores that copy at once, each in a working set of its own."""
    from concurrent.futures import ThreadPoolExecutor  # a rank that explains nothing does not need it

    begun = threading.Barrier(cores)
    buffers = [np.empty((2, working_set // 2), np.uint8) for _ in range(cores)]  # may fail: before any waits

    def copy(core: int) -> float:
        source, target = buffers[core]
        source[:] = target[:] = 1
        best = 0.0
        for _attempt in range(_ATTEMPTS):
            begun.wait()
            moved, begin = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < _SECONDS or moved == 0:
                np.copyto(target, source)
                moved += working_set
            best = max(best, moved / elapsed)
        return best

    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(copy, range(cores))) / cores
