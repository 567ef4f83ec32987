"""``hocket tune``: measures which arm of a tuner is fastest, and shows, compares and exports the tables."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid

import hocket
from hocket.cli.console import say
from hocket.cli.export import Wishes, check_folder, export_program, write_text
from hocket.cli.measure import Array, Job, buffers, check_names, check_operator, dtype_named
from hocket.cli.plot import over_sizes
from hocket.cli.target import check_collective, one_of, parse_size
from hocket.errors import BadTable, HocketError, UsageError, counted, printable
from hocket.formats.msccl_targets import SLOTS
from hocket.functions import find, traced
from hocket.ir.schedule import Schedule
from hocket.program import Program
from hocket.runtime import machine
from hocket.runtime.tuned import tuned as tuned_numbers
from hocket.tuner import exports, store
from hocket.tuner.arms import Arm, Key, calibrated, candidates, predicted
from hocket.tuner.exports import Refusal, Run
from hocket.tuner.learner import Reason
from hocket.tuner.online import TunedKey
from hocket.tuner.store import Known, Table, Tuned
from hocket.tuning import KINDS, Call, Entry, Sizes, choose

if TYPE_CHECKING:
    from hocket.communicator import Communicator

ROUNDS = 12
"""Times that every arm is measured, in turns: what others on the machine do falls on all arms alike."""
_SECONDS = 2e-3  # of the fastest arm in a round, as far as that is several calls
_TRIES = 3  # calls of an arm, to find that
_MOST_CALLS = 100  # in a round
CERTAIN = 0.99
"""That an arm is not the static policy's equal, two-sided: with 16 arms at a size, at 0.95 one in three would win by
chance."""
SHOWN = 0.95
"""Of intervals in the table."""


# ---------------------------------------------------------------------------------------------------------------
# Measuring


@dataclass(frozen=True)
class Plan:
    """What is measured at one size: the arms of its key, that of the static policy first."""

    key: Key
    call: Call
    arms: tuple[Arm, ...]
    job: Job

    @property
    def default(self) -> Schedule:
        return self.job.schedule


def plans(collective: str, ranks: int, amounts: Sequence[int], dtype: str, op: str | None) -> list[Plan]:
    """One for each key among the sizes. Raises UsageError for what makes no sense, before any process is started."""
    check_collective(collective)
    if ranks < 2:
        raise UsageError(f"--ranks must be two or more, not {ranks}", "a rank alone has nothing to choose")
    if op is not None and not KINDS[collective].combines:
        raise UsageError(f"{collective} only moves data: it takes no --op")
    check_names(dtype, op or "sum")
    allowed = os.sched_getaffinity(0)
    about = Call(
        collective,
        ranks,
        0,
        sockets=machine.sockets([allowed] * ranks),
        oversubscribed=ranks > machine.cores(allowed),
        item=dtype_named(dtype).itemsize,
        tuned=tuned_numbers().policy,
    )
    found: dict[Key, Plan] = {}
    for amount in amounts:
        schedule = choose(replace(about, size=amount)).compile()
        check_operator(schedule.collective, dtype, op or "sum")
        least = schedule.collective.most_blocks() * dtype_named(dtype).itemsize
        job = Job(schedule, -(-amount // least), dtype, op or "sum", 0, 0)  # rounded up, not into the key below
        call = replace(about, size=job.bytes)
        key = Key.of(call, dtype, op or "sum")
        if key is not None and key not in found:
            job = replace(job, schedule=choose(call).compile())
            found[key] = Plan(key, call, tuple(arm for arm in candidates(key, call) if _does(arm, call)), job)
    return list(found.values())


def _does(arm: Arm, call: Call) -> bool:
    """Whether an arm's program can do a call of this very size; else the static policy would be measured for it."""
    schedule = arm.schedule(call)
    return schedule is None or Entry(schedule, Sizes(), "").takes(call)


def measured(wanted: Sequence[Plan], done: Callable[[float], None]) -> tuple[list[Tuned], list[str]]:
    """What each key comes to, and what is wrong with arms that were left out. ``done`` is told the share of it."""
    here = calibrated()
    found, wrong = [], []
    for number, plan in enumerate(wanted):
        results = hocket.spawn(_on_each_rank, plan.key.ranks, (plan,), threads=1)
        differ = {arm for result in results for arm in result.differ}
        wrong += [f"{plan.key}: {plan.arms[arm]} has other bits than the static policy" for arm in sorted(differ)]
        alike = [arm for arm in range(len(plan.arms)) if arm not in differ]
        rounds = [[max(result.seconds[turn][arm] for result in results) for arm in alike] for turn in range(ROUNDS)]
        seconds = [predicted(plan.arms[arm], plan.call, plan.key.op, here) for arm in alike]
        priors = [None if math.isnan(each) else each * 1e6 for each in seconds]
        found.append(decided(plan.key, [plan.arms[arm] for arm in alike], priors, rounds))
        done((number + 1) / len(wanted))
    return found, wrong


@dataclass(frozen=True)
class _Result:
    """Of one rank: seconds of a call of each arm in each round, and the arms whose results differ from the first's."""

    seconds: list[list[float]]
    differ: list[int]


def _on_each_rank(comm: Communicator, plan: Plan) -> _Result:
    kind, name, n = KINDS[plan.call.name], plan.call.name, plan.job.n
    collective = plan.default.collective.placed(not kind.blocks)
    x, out = buffers(collective, plan.job, comm.rank)
    arms = TunedKey(plan.key, plan.call)
    arms.arms = list(plan.arms)
    shape = n * comm.size if kind.cuts else n
    prepared = comm._prepare_arms(name, shape, plan.job.type, plan.job.op, arms, in_place=not kind.blocks)
    whole = x if len(x) >= len(out) else out  # of a call in place
    given = (x if len(x) else None, out if len(out) else None) if kind.blocks else (whole, None)
    calls = [partial(call, *given) for call in prepared]
    results: list[Array] = []
    for call in calls:
        x[:] = plan.job.input(comm.rank)
        call()
        results.append(out.copy())
    differ = [i for i, result in enumerate(results) if result.tobytes() != results[0].tobytes()]
    x[:] = 0  # sums of sums stay what they are
    out[:] = 0
    count = _count(comm, calls)
    seconds = []
    for turn in range(ROUNDS):
        of_arm = [0.0] * len(calls)
        for arm in Random(turn).sample(range(len(calls)), len(calls)):  # no arm always follows the same other
            of_arm[arm] = _batch(comm, calls[arm], count)
        seconds.append(of_arm)
    return _Result(seconds, differ)


def _count(comm: Communicator, calls: Sequence[Callable[[], object]]) -> int:
    """How many calls of each arm a round has: as many as the fastest does in the time, the same on all ranks. Each has
    as many, since the first after a barrier, for which ranks come at different times, takes longer."""
    once = math.inf
    for call in calls:
        for _ in range(_TRIES):
            comm.barrier()
            begin = perf_counter()
            call()
            once = min(once, perf_counter() - begin)
    return int(min(max(_SECONDS / max(comm.all_gather_object(once)), 1), _MOST_CALLS))


def _batch(comm: Communicator, call: Callable[[], object], count: int) -> float:
    """Seconds of a call, after one that finds the caches as another arm left them."""
    comm.barrier()
    call()
    begin = perf_counter()
    for _ in range(count):
        call()
    return (perf_counter() - begin) / count


def decided(key: Key, arms: Sequence[Arm], priors: Sequence[float | None], rounds: Sequence[Sequence[float]]) -> Tuned:
    """The arm that is faster than the static policy's in the same rounds, wholly so by its interval, and the fastest
    of such; without one the static policy's. ``rounds``: seconds of each arm."""
    logs = [[math.log2(seconds[arm]) for seconds in rounds] for arm in range(len(arms))]
    known = []
    for arm, prior, values in zip(arms, priors, logs, strict=True):
        low, mean, high = interval(values, SHOWN)
        known.append(Known.of(arm, prior, _us(mean), (_us(low), _us(high)), len(values)))
    faster = [
        i
        for i, values in enumerate(logs)
        if i and interval([mine - its for mine, its in zip(values, logs[0], strict=True)], CERTAIN)[2] < 0
    ]
    chosen = min(faster, key=lambda i: statistics.fmean(logs[i]), default=0)
    return Tuned.of(key, known, chosen, "EXPLOIT" if chosen else "KEPT")


def _us(log2: float) -> float:
    return float(f"{math.exp2(log2) * 1e6:.4g}")


def interval(values: Sequence[float], probability: float) -> tuple[float, float, float]:
    """The mean of a normal variable between the ends of its interval, by Student's t."""
    mean = statistics.fmean(values)
    half = _student(len(values) - 1, probability) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean, mean + half


def _student(freedom: int, probability: float) -> float:
    """Its two-sided quantile (Abramowitz and Stegun, 26.7.5; at 11 degrees of freedom right to 3 digits)."""
    z = statistics.NormalDist().inv_cdf((1 + probability) / 2)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / float(freedom) ** (i + 1) for i, term in enumerate(terms))


def place(path: Path | None) -> Path:
    """The file of a table, that of this machine for None; asked before anything is measured. Raises BadTable for one
    that is there and of another machine or library, and UsageError where there can be none."""
    here = machine.fingerprint()
    path = store.local_file(here) if path is None else path
    check_folder(path.parent)
    store.own(path, here, new=True)
    return path


# ---------------------------------------------------------------------------------------------------------------
# Showing


def print_head(table: Table, console: Console) -> None:
    here = table.foreign(machine.fingerprint())
    say(console, f"{counted(len(table.keys), 'key')}, measured with hocket {table.hocket} on {table.machine}")
    if here is not None:
        say(console, here, "yellow")
    say(console, "")


def print_table(keys: Sequence[Tuned], console: Console) -> None:
    """A line for each key: the chosen arm beside the static policy's."""
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for name in (
        "key\n",
        "chosen\n",
        "time\nus",
        "from\nus",
        "to\nus",
        "default\nus",
        "faster\n",
        "samples\n",
        "why\n",
    ):
        left = name in ("key\n", "chosen\n", "why\n")
        grid.add_column(name, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for tuned in keys:
        best = tuned.best
        times = [_shown(time) for time in (best.mean_us, best.low_us, best.high_us, tuned.default.mean_us)]
        gain = speedup(tuned)
        row = [printable(str(tuned.key)), printable(str(best.arm)), *times, "" if gain is None else f"{gain:.2f}"]
        grid.add_row(*row, str(best.samples), tuned.reason)
    console.print(grid)


def _shown(time: float | None) -> str:
    return "" if time is None else f"{time:.4g}" if time < 1e4 else f"{time:.0f}"


def speedup(tuned: Tuned) -> float | None:
    """How many times the chosen arm is as fast as the static policy's."""
    best, default = tuned.best.mean_us, tuned.default.mean_us
    return None if best is None or default is None else default / best


def print_why(tuned: Tuned, console: Console) -> None:
    """All arms, the fastest first, and the reason."""
    say(console, f"{tuned.key}: {tuned.best.arm} ({tuned.reason}): {Reason[tuned.reason].value}\n")
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for name in ("", "arm\n", "predicted\nus", "measured\nus", "from\nus", "to\nus", "samples\n"):
        grid.add_column(name, justify="left" if name in ("", "arm\n") else "right", no_wrap=True)
    for known in sorted(tuned.arms, key=lambda known: (known.mean_us is None, known.mean_us or known.prior_us or 0)):
        times = (known.prior_us, known.mean_us, known.low_us, known.high_us)
        mark = "*" if known is tuned.best else ""
        grid.add_row(mark, printable(str(known.arm)), *map(_shown, times), str(known.samples))
    console.print(grid)


def one(table: Table, words: Sequence[str]) -> Tuned:
    """The key that words name: ``all_reduce 64KB``, ``ranks=2``, ``float32``. Raises UsageError."""
    found = [tuned for tuned in table.keys if all(_says(tuned.key, word) for word in words)]
    if len(found) == 1:
        return found[0]
    named = " ".join(words)
    what = f"no key is {named}" if not found else f"{counted(len(found), 'key')} are {named}"
    listed = [str(tuned.key) for tuned in (found or table.keys)[:20]]
    raise UsageError(what, "it is one of\n" + "\n".join(f"  {name}" for name in listed) if listed else "there is none")


def _says(key: Key, word: str) -> bool:
    name, equals, value = word.partition("=")
    if equals:
        return hasattr(key, name) and str(getattr(key, name)) == value
    if word in (key.collective, key.type, key.op, key.reproducible):
        return True
    try:
        return key.least <= parse_size(word) < 2 * key.least
    except UsageError:
        return word == "oversubscribed" and key.oversubscribed


def print_changes(before: Table, after: Table, console: Console) -> bool:
    """Where two tables differ; whether they do."""
    for what, old, new in (("machine", before.machine, after.machine), ("library", before.library, after.library)):
        if old != new:
            say(console, f"{what}: {old}\n{' ' * len(what)}  {new}\n", "yellow")
    found = list(store.changes(before, after))
    if not found:
        say(console, f"the same arms for all of {counted(len(after.keys), 'key')}")
        return before.machine != after.machine or before.library != after.library
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for name in ("key\n", "before\n", "us\n", "after\n", "us\n"):
        grid.add_column(name, justify="right" if name == "us\n" else "left", overflow="fold")
    for change in found:
        cells = [printable(str(change.key))]
        for tuned in (change.before, change.after):
            cells += ["", ""] if tuned is None else [printable(str(tuned.best.arm)), _shown(tuned.best.mean_us)]
        grid.add_row(*cells)
    console.print(grid)
    return True


def draw(keys: Sequence[Tuned], path: Path) -> None:
    """Times of all arms over size, and by how much the chosen ones are faster. Raises UsageError."""
    key = keys[0].key
    title = f"{key.collective} on {key.ranks} ranks, {key.type} {key.op}"
    headings = "time of the slowest rank (us)", "chosen, as fast as the static policy"
    others = [(tuned.least, known.mean_us) for tuned in keys for known in tuned.arms[1:] if known.mean_us is not None]
    at = [tuned.least for tuned in keys]
    defaults = [tuned.default.mean_us or math.nan for tuned in keys]
    with over_sizes(title, headings, path) as (times, gains):
        times.plot([x for x, _ in others], [y for _, y in others], ".", color="#999999", label="other arms")
        times.plot(at, defaults, "s-", color="#D55E00", label="static policy")
        times.plot(at, [tuned.best.mean_us or math.nan for tuned in keys], "o-", color="#0072B2", label="chosen")
        gains.plot(at, [speedup(tuned) or math.nan for tuned in keys], "o-", color="#0072B2")
        gains.axhline(1.0, color="black", linewidth=0.5)


# ---------------------------------------------------------------------------------------------------------------
# Exporting

TEXTS: dict[str, Callable[[Sequence[Run]], exports.Export]] = {
    "openmpi": exports.open_mpi,
    "openmpi-json": exports.open_mpi_json,
    "ucc": exports.ucc,
}
FORMATS = ("toml", "xml", "nccl", *TEXTS, "mpich")


def exportable(path: Path) -> Table:
    """A table whose arms stand for programs of this library. Raises BadTable."""
    table = store.read(path)
    if table.other_programs is not None:
        raise BadTable(f"{path} is refused: {table.other_programs}", "hocket tune measures those that are here")
    return table


def exported(table: Table, name: str, to: str, base: Path | None, protocol: str | None) -> exports.Export:
    """A file of a format other than xml; ``name``: of the table's file. ``base`` is for mpich, ``protocol`` for nccl.
    Raises UsageError and BadTable."""
    if to == "toml":
        found, refused = exports.entries(table)
        return exports.Export(exports.toml(f"hocket tune export {name} --to toml", found), tuple(refused))
    found, refused = exports.runs(table)
    if to == "mpich":
        if base is None:
            raise UsageError(
                "a file for MPICH replaces its own selection",
                "--base names its libmpi.so, to keep that besides",
            )
        try:
            selection = exports.mpich_selection(base.read_bytes(), str(base))
        except OSError as error:
            raise UsageError(f"cannot read {base}: {error.strerror}") from None
        made = exports.mpich(found, selection)
    elif to == "nccl":
        if protocol is None:
            raise UsageError(
                "each line of NCCL's file has a protocol, which a table does not have",
                f"--protocol says which: {', '.join(SLOTS)}",
            )
        protocol = one_of("--protocol", protocol, SLOTS)
        made = exports.nccl(replace(run, protocol=protocol) for run in found)
    else:
        made = TEXTS[to](found)
    return replace(made, refused=(*refused, *made.refused))


def write_xml(table: Table, folder: Path) -> tuple[list[Path], list[Refusal]]:
    """A file of MSCCL's XML for each run of sizes, with its bytes. Raises UsageError."""
    found, refused = exports.runs(table)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
    written = []
    for number, run in enumerate(found):
        wishes = Wishes("msccl", run.protocol, min_bytes=run.least, max_bytes=run.most, reproducible="may-differ")
        try:
            text = export_program(_program(run), wishes)
        except HocketError as error:
            refused.append(Refusal(f"{run.name}, {run.calls}", error.diagnostic().message))
            continue
        if run.tile is not None:
            refused.append(Refusal(f"{run.name}, {run.calls}", "MSCCL cuts messages by itself: the tile is left out"))
        stem = run.program.replace(":", "_").replace("/", "_")
        path = folder / f"{number}_{stem}_{run.ranks}.xml"
        write_text(path, text)
        written.append(path)
    return written, refused


def _program(run: Run) -> Program:
    found = find(run.target)
    return found if isinstance(found, Program) else traced(run.target, found, run.parameters)
