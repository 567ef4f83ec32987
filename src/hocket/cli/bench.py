"""A collective over a range of sizes, apart and in place, in the manner of nccl-tests."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import hocket
from hocket.cli.console import say
from hocket.cli.measure import Job, Speed, buffers, check_names, check_operator, count_wrong, dtype_named, timed, unit
from hocket.cli.plot import over_sizes
from hocket.cli.target import check_collective, check_processes, parse_size
from hocket.collectives import Collective
from hocket.errors import UsageError, counted
from hocket.ir.schedule import Schedule
from hocket.runtime.bootstrap import MOST_RANKS
from hocket.tuning import default_program, is_small

if TYPE_CHECKING:
    from hocket.communicator import Communicator

_PLACES = ("out of place", "in place")
_WIDTH = 140
"""Columns that the table may need: a narrower terminal wraps its lines rather than lose digits."""


def sizes(begin: str, end: str, factor: float) -> list[int]:
    """Bytes from ``begin`` up to ``end``, each ``factor`` times the one before."""
    first, last = parse_size(begin), parse_size(end)
    if first < 1:
        raise UsageError(f"-b must be at least one byte, not {begin}")
    if last < first:
        raise UsageError(f"there is no size from -b {begin} to -e {end}", "-e is the largest size")
    if not (factor > 1 and math.isfinite(factor)):
        raise UsageError(f"-f must be more than 1, not {factor:g}", "each size is so many times the one before")
    found = [first]
    while (size := max(found[-1] + 1, int(found[-1] * factor))) <= last:
        found.append(size)
    return found


@dataclass(frozen=True)
class Row:
    """What was found at one size; ``count`` is that of nccl-tests: the elements of a buffer, or of one rank's block."""

    bytes: int
    count: int
    speeds: tuple[Speed, Speed]
    wrongs: tuple[int, int]

    @property
    def wrong(self) -> int:
        return sum(self.wrongs)

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"bytes": self.bytes, "count": self.count}
        for place, speed, wrong in zip(_PLACES, self.speeds, self.wrongs, strict=True):
            found[place.replace(" ", "_")] = asdict(speed) | {"wrong": wrong}
        return found


@dataclass(frozen=True)
class Sweep:
    """A job for each size. ``method`` is called on the communicator; None: the schedule is run."""

    method: str | None
    jobs: tuple[Job, ...]

    @classmethod
    def of(
        cls,
        name: str,
        made: Schedule | None,
        ranks: int | None,
        amounts: Sequence[int],
        dtype: str,
        op: str | None,
        iterations: int,
        warmup: int,
    ) -> Sweep:
        """Raises UsageError for what does not fit together, before any process is started.

        Sizes that are the same number of elements are measured once.
        """
        check_collective(name)
        check_names(dtype, op or "sum")
        dtype_named(dtype)
        check_processes(ranks or 4, MOST_RANKS)
        schedule = made or default_program(name, ranks or 4).compile()
        collective = schedule.collective
        if collective.name != name.replace("_", ""):
            raise UsageError(f"{schedule.name} implements {collective.name}, not {name}")
        if ranks not in (None, collective.size):
            raise UsageError(
                f"the program is for {collective.size} ranks, -n asks for {ranks}", "give both the same number"
            )
        if not collective.reduces() and op is not None:
            raise UsageError(f"{name} only moves data: it takes no --op")
        check_operator(collective, dtype, op or "sum")
        units = dict.fromkeys(unit(collective, amount, dtype) for amount in amounts)
        small = made or default_program(name, collective.size, small=True).compile()
        jobs = []
        for n in units:
            job = Job(schedule, n, dtype, op or "sum", iterations, warmup)
            jobs.append(replace(job, schedule=small) if is_small(name, collective.size, job.bytes) else job)
        return cls(name if made is None else None, tuple(jobs))

    @property
    def schedule(self) -> Schedule:
        return self.jobs[0].schedule

    @property
    def collective(self) -> Collective:
        return self.schedule.collective

    @property
    def programs(self) -> str:
        """The names of the programs that run, by size."""
        return ", ".join(dict.fromkeys(job.schedule.name for job in self.jobs))

    @property
    def redop(self) -> str:
        return self.jobs[0].op if self.collective.reduces() else "none"

    def measure(self) -> list[Row]:
        """Start the processes once, for all sizes."""
        results = hocket.spawn(_on_each_rank, ranks=self.collective.size, args=(self,))
        rows = []
        for number, job in enumerate(self.jobs):
            speeds, wrongs = [], []
            for place in range(len(_PLACES)):
                found = [result[number][place] for result in results]
                speeds.append(Speed.of(self.collective, job.bytes, [seconds for seconds, _ in found]))
                wrongs.append(sum(wrong for _, wrong in found))
            rows.append(Row(job.bytes, job.n, (speeds[0], speeds[1]), (wrongs[0], wrongs[1])))
        return rows

    def as_json(self, rows: Sequence[Row]) -> dict[str, object]:
        return {
            "program": self.programs,
            "collective": str(self.collective),
            "ranks": self.collective.size,
            "dtype": self.jobs[0].dtype,
            "op": self.redop,
            "iterations": self.jobs[0].iterations,
            "warmup": self.jobs[0].warmup,
            "sizes": [row.as_json() for row in rows],
            "average_busbw": average_busbw(rows),
            "wrong": sum(row.wrong for row in rows),
        }


def _on_each_rank(comm: Communicator, sweep: Sweep) -> list[list[tuple[list[float], int]]]:
    """For each size and place: times of this rank, and the number of its wrong elements."""
    schedule, collective = sweep.schedule, sweep.collective
    call = functools.partial(comm.run, schedule) if sweep.method is None else getattr(comm, sweep.method)
    if collective.reduces():
        call = functools.partial(call, op=sweep.jobs[0].op)
    for job in {job.schedule.name: job for job in sweep.jobs}.values():  # prepared here, whatever --warmup says
        timed(comm, replace(job, iterations=1, warmup=0), call, *buffers(collective, job, comm.rank))
    found = []
    for job in sweep.jobs:
        assert sweep.method or job.schedule is schedule  # pickled as one: it is prepared once, not for each size
        places = []
        for inplace in (False, True):
            x, out = buffers(collective.placed(inplace), job, comm.rank)
            seconds = timed(comm, job, call, x, out)
            places.append((seconds, count_wrong(job, comm.rank, out)))
        found.append(places)
    return found


def average_busbw(rows: Sequence[Row]) -> float:
    """Over all sizes, apart and in place, as nccl-tests has it."""
    found = [speed.busbw for row in rows for speed in row.speeds if speed.busbw is not None]
    return sum(found) / len(found)


def print_rows(sweep: Sweep, rows: Sequence[Row], console: Console) -> None:
    """The table of nccl-tests, with the 95th percentile beside the median."""
    console.width = max(console.width, _WIDTH)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("size\nB", "count\nelements", "type\n", "redop\n"):
        table.add_column(name, justify="left" if name.endswith("\n") else "right", no_wrap=True)
    for place in _PLACES:
        for name in (f"{place}: time\nus", "p95\nus", "algbw\nGB/s", "busbw\nGB/s", "#wrong\n"):
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row.bytes), str(row.count), sweep.jobs[0].dtype, sweep.redop]
        for speed, wrong in zip(row.speeds, row.wrongs, strict=True):
            assert speed.busbw is not None
            cells += [_show_us(speed.median), _show_us(speed.p95), f"{speed.algbw:.3f}", f"{speed.busbw:.3f}"]
            cells.append(f"[red]{wrong}[/]" if wrong else "0")
        table.add_row(*cells)
    processes = counted(sweep.collective.size, "process")
    say(console, f"{sweep.programs} on {processes}, {counted(sweep.jobs[0].iterations, 'call')} each\n")
    console.print(table)
    wrong = sum(row.wrong for row in rows)
    console.print(
        f"\naverage busbw {average_busbw(rows):.3g} GB/s; {wrong} wrong", style="red" if wrong else None, soft_wrap=True
    )


def _show_us(seconds: float) -> str:
    return f"{seconds * 1e6:.{1 if seconds < 1e-2 else 0}f}"


def draw_rows(sweep: Sweep, rows: Sequence[Row], path: Path) -> None:
    """Time and busbw over size, apart and in place."""
    title = f"{sweep.programs}, {sweep.collective.size} ranks, {sweep.jobs[0].dtype}, {sweep.redop}"
    headings = "time of the slowest rank, median to p95 (us)", "busbw (GB/s)"
    at = [row.bytes for row in rows]
    with over_sizes(title, headings, path) as (times, rates):
        for number, (place, colour, marker) in enumerate(zip(_PLACES, ("#0072B2", "#D55E00"), "os", strict=True)):
            speeds = [row.speeds[number] for row in rows]
            medians, slow = [speed.median * 1e6 for speed in speeds], [speed.p95 * 1e6 for speed in speeds]
            times.plot(at, medians, f"{marker}-", color=colour, label=place)
            times.fill_between(at, medians, slow, color=colour, alpha=0.15, linewidth=0)
            rates.plot(at, [speed.busbw or 0.0 for speed in speeds], f"{marker}-", color=colour)
        rates.set_ylim(bottom=0)
