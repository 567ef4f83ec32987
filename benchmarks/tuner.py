"""What the tuner gains over the static policy, and what there was to gain: ``python benchmarks/tuner.py --ranks 2``.

In one job, of the same ranks, three communicators: two by the static policy, and one that learns. First the third
makes ``--calls`` calls of each collective and size, all in turn. Then blocks of such calls by the first and each of the
others take turns. At last each arm of each key is measured, on the communicator that has learned, as what a call takes
depends on where its communicator happens to lie in memory: in a block one key in ``APART`` takes another arm, the
others what the tuner has them take, as an arm leaves caches for all calls in another state. A ratio is the time of a
call to that by the first, in the same turn, and the mean of that over the blocks of a launch; below 1 is faster. What
merges of what ranks have timed take is counted apart, as one of some milliseconds can fall into any call. The 95 %
interval is over launches. The best arm of a launch is the one whose mean ratio is least in the others, since the least
of many measurements is low by luck, too. The second communicator shows what differs where nothing does; the default as
an arm, what it costs to be one. Of calls of which nothing is learned there are no arms.

With ``--alone`` each call is measured again and again, so that its arrays are in the cache, though the tuner has
learned from all in turn. With ``--wrong`` the tuner begins with a table by which the last arm of each key takes what
calls do take, and each one before it 19 % longer.

With ``--cost`` or ``--change`` arms are not compared, and the tuner learns of short calls too, as with ``--short``.
``--cost``: the nanoseconds that a call of one size, of which the tuner has learned by ``--calls`` calls, takes longer
than the same program on the same communicator without it, with quartiles over blocks: while it goes on to learn, and
once no arm is tried any more, so that all calls exploit; and so what the other one takes longer than itself.
``--change moved``: after twice ``--calls`` calls of a size the last rank moves to the core of the first, and the calls
are counted until the tuner notices; ``--change busy``: a process begins to use the core of the last rank. As the
scheduler decides how much that slows, of the first 200 calls those are counted that took 1.4 times as long as usual.
Changes that were noticed in the second half of the calls before are counted, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from machine import describe, title
from paired import Mean

import hocket
from hocket.communicator import Communicator, PreparedCall
from hocket.runtime.tuned import TUNER
from hocket.tunables import VARIABLE, parse_size, show_size
from hocket.tuner.learner import Choice, Learner, Name, Reason, Samples
from hocket.tuner.online import Online, TunedKey

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
REPEATS = 20  # of each call in a block
APART = 4
WAYS = "off", "off", "learn"
FIRST = 200  # calls within which a change is to be noticed (issue 27)


@dataclass(frozen=True)
class Cell:
    """What a launch measured of a collective and size: means of the logarithms of ratios to the static policy."""

    collective: str
    bytes: int
    microseconds: float  # by the static policy
    tuned: float
    takes: str
    arms: dict[str, float]
    again: float  # the static policy to itself


class Misled(Learner):
    """One that believes, from a file, that the last arm of each key is the fastest, and the first the slowest.
    ``took``: seconds of the calls of each, which the last is said to take."""

    def __init__(self, took: dict[str, float]) -> None:
        super().__init__()
        self._took = took

    def add(self, key: Name, names: Sequence[str], prior: Sequence[float], neighbours: Iterable[Name] = ()) -> None:
        super().add(key, names, prior, neighbours)
        last = len(names) - 1
        seconds = next(seconds for call, seconds in self._took.items() if str(key).startswith(call))
        self.recall(key, [(seconds * 2 ** ((last - arm) / 4), 0.1, 100) for arm in range(len(names))], last)


class Forced:
    """Instead of a learner: the arm of each key is given; of one that is new, the default."""

    def __init__(self) -> None:
        self.arms: dict[Hashable, int] = {}

    def add(self, key: Hashable, names: Sequence[str], prior: Sequence[float], neighbours: object = ()) -> None:
        self.arms[key] = 0

    def observe(self, key: Hashable, arm: int, samples: Samples) -> None:
        pass

    def counted(self, key: Hashable, calls: int) -> None:
        pass

    def choice(self, key: Hashable, calls: object = None) -> Choice:
        return Choice(self.arms[key], (), Reason.PINNED)


def under(comm: Communicator, way: str, *, short: bool = False) -> Communicator:
    """A communicator of the same ranks. ``short``: it learns of all calls."""
    os.environ[TUNER] = way
    before = os.environ.get(VARIABLE, "")
    if short:
        os.environ[VARIABLE] = f"{before},learned_bytes=0,learned_crowded_bytes=0"
    made = comm.split(0)
    os.environ[VARIABLE] = before
    assert made is not None
    return made


def online(comm: Communicator) -> Online:
    found = comm._online
    assert found is not None
    return found


Call = Callable[[Communicator], object]
Cells = dict[tuple[str, int], Call]
"""By collective and bytes of the larger buffer."""


def calls_of(comm: Communicator, sizes: Sequence[int]) -> Cells:
    found: Cells = {}
    for name in COLLECTIVES:
        for size in sizes:
            n = max(1, size // 4 // comm.size) * comm.size
            x = np.ones(n // comm.size if name == "all_gather" else n, np.float32)
            blocks = {"all_gather": n, "reduce_scatter": n // comm.size}.get(name, n)
            out = np.zeros(blocks, np.float32)
            found[name, size] = lambda c, name=name, x=x, out=out: getattr(c, name)(x, out)
    return found


class Subject:
    """A communicator of which calls are timed. ``merging``: seconds that merges of its tuner have taken so far."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.merging = comm, 0.0
        if comm._online is not None:
            comm._online.merge = partial(self._merge, comm._online.merge)  # type: ignore[method-assign]

    def _merge(self, merge: Callable[[], None]) -> None:
        begin = time.perf_counter()
        merge()
        self.merging += time.perf_counter() - begin


def block(meet: Communicator, subject: Subject, cells: Cells, alone: bool) -> dict[tuple[str, int], float]:
    """Mean seconds of a call of each on the slowest rank, without merges: all in turn, as they were when the tuner
    learned, or each ``alone``. Ranks begin a call together, so that none is charged what another left behind."""
    took = dict.fromkeys(cells, 0.0)
    for group in [[cell] for cell in cells] if alone else [list(cells)]:
        for turn in range(REPEATS + 1):  # the first is not timed: arms may have to be prepared
            for cell in group:
                meet.barrier()
                begin = time.perf_counter() - subject.merging
                cells[cell](subject.comm)
                took[cell] += (time.perf_counter() - subject.merging - begin) * (turn > 0)
    slowest = meet.all_reduce(np.array(list(took.values())), op="max") / REPEATS
    return dict(zip(cells, slowest.tolist(), strict=True))


def measure(
    comm: Communicator,
    sizes: Sequence[int],
    calls: int,
    blocks: int,
    wrong: bool,
    alone: bool,
    short: bool,
    launch: int,
) -> tuple[list[Cell], float]:
    """What was measured, and the part of the job's time that merges of the tuner took meanwhile."""
    made = {}  # by turns, as what a call takes depends on what lies where
    for number in range(launch, launch + len(WAYS)):
        made[number % len(WAYS)] = under(comm, WAYS[number % len(WAYS)], short=short)
    static, again, learns = (made[way] for way in range(len(WAYS)))
    plainly, twin, tuned = map(Subject, (static, again, learns))
    cells = calls_of(comm, sizes)
    if wrong:
        took = block(comm, plainly, cells, alone)
        online(learns).learner = Misled({f"{name} {show_size(size)} ": each for (name, size), each in took.items()})
    for each in made.values():  # the one whose calls are prepared first takes 4 % longer for those of 2 KB
        for call in cells.values():
            call(each)
    for _ in range(calls):
        for call in cells.values():
            call(learns)

    plain: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    logs: dict[tuple[str, int], dict[object, list[float]]] = {cell: {} for cell in cells}

    def compared(what: str | dict[tuple[str, int], int], other: Subject, turn: int) -> None:
        order = (plainly, other) if turn % 2 else (other, plainly)
        first, second = (block(comm, each, cells, alone) for each in order)
        base, theirs = (first, second) if turn % 2 else (second, first)
        for cell in cells:
            plain[cell].append(base[cell])
            of = what if isinstance(what, str) else what.get(cell)
            logs[cell].setdefault(of, []).append(math.log(theirs[cell] / base[cell]))

    begin, before = time.perf_counter(), tuned.merging
    for turn in range(blocks):
        compared("learns", tuned, turn)
        compared("again", twin, turn)
    merging = (tuned.merging - before) / (time.perf_counter() - begin)
    known = {(key.call.name, key.call.size or 0): key for key in online(learns)._slots}
    least = min((size for _, size in known), default=0)
    missing = [cell for cell in cells if known and cell[1] >= least and cell not in known]
    if missing:
        raise RuntimeError(f"nothing was learned of {missing}: --calls are few, or no rank has as many bytes")
    incumbents = {cell: key.incumbent for cell, key in known.items()}
    forced = Forced()
    online(learns).learner = forced  # type: ignore[assignment]
    most = max((len(key.arms) for key in known.values()), default=0)
    for turn in range(APART * most * (blocks // 2)):
        arms = dict(incumbents)
        for cell in list(known)[turn % APART :: APART]:
            arms[cell] = turn // APART % len(known[cell].arms)
        forced.arms |= {known[cell].name: arm for cell, arm in arms.items()}
        online(learns).merge()
        compared(arms, tuned, turn // APART // most)
    takes = {cell: str(key.arms[incumbents[cell]]) for cell, key in known.items()}
    return [_cell(cell, plain[cell], logs[cell], takes.get(cell, ""), known.get(cell)) for cell in cells], merging


def _cell(
    cell: tuple[str, int], plain: Sequence[float], logs: dict[object, list[float]], takes: str, key: TunedKey | None
) -> Cell:
    found = {what: statistics.fmean(each) for what, each in logs.items()}
    by_name = {str(arm): found[number] for number, arm in enumerate(() if key is None else key.arms)}
    return Cell(*cell, statistics.median(plain) * 1e6, found["learns"], takes, by_name, found["again"])


def noticed(comm: Communicator, size: int, calls: int, change: str) -> tuple[int | None, int, int]:
    """Calls of an AllReduce from a change until the tuner notices it, or None; how many of the first 200 took 1.4 times
    as long as usual; and the changes that it noticed in ``calls`` of them before."""
    learns = under(comm, "learn", short=True)
    x = np.ones(size // 4, np.float32)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})

    def changes() -> int:
        known = [key for key in online(learns)._slots if key.call.size == x.nbytes]
        count = online(learns).learner.why(str(known[0].key)).changes if known and comm.rank == 0 else 0
        return int(comm.all_reduce(np.array([count]), op="max")[0])

    def watched(least: int) -> tuple[int | None, int, list[float]]:
        """That of the calls after which the tuner has noticed a change; the changes; and what each call took. Once it
        has, ``least`` calls are enough."""
        before, first, found, took = changes(), None, 0, []
        while len(took) < (calls if first is None else least):
            for _ in range(16):
                begin = time.perf_counter()
                learns.all_reduce(x, x)
                took.append(time.perf_counter() - begin)
            found = changes() - before
            first = len(took) if found and first is None else first
        return first, found, took

    watched(calls)
    _, alarms, before = watched(calls)
    busy = None
    if comm.rank == comm.size - 1:
        if change == "moved":
            os.sched_setaffinity(0, {cores[0]})
        else:
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    made, _, took = watched(FIRST)
    if busy is not None:
        busy.kill()
        busy.wait()
    comm.barrier()
    slower = sum(each > 1.4 * statistics.median(before[-FIRST:]) for each in took[:FIRST])
    return made, slower, alarms


def cost(comm: Communicator, size: int, calls: int, blocks: int) -> tuple[float, dict[str, list[float]]]:
    """Nanoseconds of an AllReduce that is not tuned, and quartiles of how much longer it takes tuned, and again."""
    learns = under(comm, "learn", short=True)
    x = np.ones(size // 4, np.float32)
    tuned = learns.prepare("all_reduce", x.shape, x.dtype, in_place=True)

    def timed(call: PreparedCall, count: int = 2000) -> float:
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            call(x, x)
        return (time.perf_counter() - begin) / count * 1e9

    timed(tuned, calls)
    state = online(learns)
    (known,) = state._slots
    base, longer = [], defaultdict(list)

    def beside(name: str) -> None:
        arm = known.incumbent
        alone = learns._prepare_arms("all_reduce", x.size, x.dtype, "sum", known, in_place=True)[arm]
        for _ in range(blocks):
            before, between, again, after = (timed(call) for call in (alone, tuned, alone, alone))
            base.append(again)
            longer[name].append(between - (before + again) / 2)
            longer["to itself"].append(again - (before + after) / 2)
        if known.incumbent != arm:
            print(f"{name}, {known.arms[arm]} was replaced: these were other calls")

    beside("while it learns")
    state.learner.settings = replace(state.learner.settings, explored=0.0)
    told = state.version + 1
    while state.version < told:
        timed(tuned)
    beside("once it exploits")
    return statistics.median(base), {name: statistics.quantiles(found, n=4) for name, found in longer.items()}


def best(cells: Sequence[Cell]) -> str:
    """Of one collective and size: the arm that took least in the mean of launches."""
    return min(cells[0].arms, key=lambda arm: statistics.fmean(cell.arms[arm] for cell in cells))


def of_best(cells: Sequence[Cell]) -> list[float]:
    """Of each launch: what it measured of the arm that took least in the others."""
    return [cell.arms[best([*cells[:n], *cells[n + 1 :]])] for n, cell in enumerate(cells)]


def show(launches: Sequence[Sequence[Cell]]) -> None:
    rows = list(zip(*launches, strict=True))
    for cells in rows:
        takes = Counter(cell.takes or "default" for cell in cells)
        least = f"{Mean.of([[log] for log in of_best(cells)])}  {best(cells)}" if is_learned(cells) else ""
        print(
            f"{cells[0].collective:>15} {show_size(cells[0].bytes):>7} "
            f"{statistics.median(cell.microseconds for cell in cells):10.2f} us  "
            f"{Mean.of([[cell.tuned] for cell in cells])}  "
            f"{', '.join(f'{count} {taken}' for taken, count in takes.most_common()):<42} "
            f"{least}",
            flush=True,
        )
    learned = list(filter(is_learned, rows))
    tuned, again = mean(rows, lambda cell: cell.tuned), mean(rows, lambda cell: cell.again)
    print(f"of all {len(rows)}: tuned {tuned}, static to itself {again}; of {len(learned)} that it learns of:")
    if learned:
        summarise(learned)


def is_learned(cells: Sequence[Cell]) -> bool:
    return all(cell.arms for cell in cells)


def mean(rows: Sequence[Sequence[Cell]], ratio: Callable[[Cell], float]) -> Mean | None:
    """Of the logarithms of what all launches measured."""
    return Mean.of([[ratio(cell) for cell in launch] for launch in zip(*rows, strict=True)])


def summarise(rows: Sequence[Sequence[Cell]]) -> None:
    """``rows``: by collective and size, what each launch measured."""
    for name in (*COLLECTIVES, None):
        of = [cells for cells in rows if name in (cells[0].collective, None)]
        found = list(zip(*of, strict=True))
        least = list(zip(*map(of_best, of), strict=True))
        pairs = [list(zip(*each, strict=True)) for each in zip(found, least, strict=True)]
        off = Mean.of([[cell.tuned - log for cell, log in launch] for launch in pairs])
        chosen = Mean.of([[cell.arms[cell.takes] - log for cell, log in launch] for launch in pairs])
        print(
            f"{name or 'all':>15} tuned {mean(of, lambda cell: cell.tuned)}, best arm {Mean.of(least)}, tuned to that "
            f"{off}, the chosen arm to that {chosen}, default as an arm {mean(of, lambda cell: cell.arms['default'])}, "
            f"static to itself {mean(of, lambda cell: cell.again)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=["2K", "64K", "128K", "512K", "2M"], metavar="BYTES")
    parser.add_argument("--calls", type=int, default=2000, metavar="N", help="of each that the tuner learns by")
    parser.add_argument("--launches", type=int, default=8, metavar="N", help="2 or more")
    parser.add_argument("--blocks", type=int, default=12, metavar="N", help="of a launch")
    parser.add_argument("--short", action="store_true", help="learn of all calls, also where ranks share cores")
    parser.add_argument("--alone", action="store_true", help="measure each call again and again")
    parser.add_argument("--wrong", action="store_true", help="begin with a table that is")
    parser.add_argument("--cost", action="store_true", help="measure what a call takes longer once it is learned")
    parser.add_argument("--change", choices=["moved", "busy"], help="count the calls until a change is noticed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.launches < 2:
        parser.error("an interval takes two launches or more")
    machine = describe() | {"ranks": given.ranks, "calls": given.calls}
    print(title(machine), flush=True)
    sizes = [size for size in map(parse_size, given.sizes) if size]
    if given.change:
        for size in sizes:
            how = size, given.calls, given.change
            made = sorted(
                (hocket.spawn(noticed, given.ranks, how)[0] for _ in range(given.launches)),
                key=lambda found: found[0] or math.inf,
            )
            after = ", ".join(f"{calls or 'never'} ({slower})" for calls, slower, _ in made)
            alarms = sum(alarms for _, _, alarms in made)
            print(
                f"{show_size(size):>8}: noticed after (slower of {FIRST}): {after}; {alarms} changes before", flush=True
            )
        return
    if given.cost:
        for size in sizes:
            base, found = hocket.spawn(cost, given.ranks, (size, given.calls, given.blocks))[0]
            said = [f"{name} {middle:+.0f} ns [{low:+.0f}, {high:+.0f}]" for name, (low, middle, high) in found.items()]
            print(f"{show_size(size):>8}: {base:.0f} ns, {', '.join(said)}", flush=True)
        return
    how = sizes, given.calls, given.blocks, given.wrong, given.alone, given.short
    found = [hocket.spawn(measure, given.ranks, (*how, launch))[0] for launch in range(given.launches)]
    launches = [cells for cells, _ in found]
    show(launches)
    print(f"merges take {statistics.fmean(merging for _, merging in found):.2%} of the time besides")
    if given.json is not None:
        given.json.write_text(
            json.dumps({"machine": machine, "launches": [list(map(asdict, each)) for each in launches]}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
