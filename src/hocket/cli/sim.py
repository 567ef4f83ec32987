"""``hocket sim``: how long a program takes on a machine that is described, beside another, and what holds it up."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hocket import topology
from hocket.cli.console import say
from hocket.cli.plot import over_sizes
from hocket.cli.target import one_case, one_of
from hocket.collectives import bus_factor
from hocket.errors import UsageError, counted, printable
from hocket.ir.schedule import Schedule
from hocket.program import Program
from hocket.sim import Prediction, Simulator, Trace
from hocket.timeline import Timeline
from hocket.topology import Topology
from hocket.tunables import show_size
from hocket.tuning import Sizes

SLOTS = 8
"""The most slots that a protocol has (NCCL_STEPS): schedules are proven for as many as they need of them."""


def sizes(text: str) -> list[int]:
    """From one size to another, each twice the one before: ``1KB..1GB``; or one alone."""
    found = Sizes.parse(text)
    if found is None or found.most is None or found.least < 1:
        raise UsageError(f"--sizes {text} is no range of sizes", "such as 1KB..1GB, or 64KB")
    sizes = [found.least]
    while sizes[-1] * 2 <= found.most:
        sizes.append(sizes[-1] * 2)
    return sizes


def compiled(target: str, words: Sequence[str], instances: int | None, storage: str, machine: Topology) -> Schedule:
    """As GPUs run it: the paper's instructions, one connection each way in a thread block. As hocket does, on cores."""
    made = one_case(target, words).load()
    if isinstance(made, Program):
        if machine.costs.memory:
            return made.compile(instances=instances, storage=storage)
        return made.compile(instances=instances, slots=SLOTS, opcodes=storage != "peer", storage=storage)
    if instances is not None:
        raise UsageError("a schedule is compiled already: --instances is for programs")
    return made


def other(text: str, one: Schedule, storage: str, machine: Topology) -> Schedule:
    """What ``--vs`` names: FILE:FUNC name=value in one word, of the same collective and ranks as ``one``."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation without an end
        words = []
    if not words:
        raise UsageError("--vs names a program, such as --vs 'ring:all_reduce ranks=8 instances=24'")
    found = compiled(words[0], words[1:], None, storage, machine)
    (name, size), (other_name, other_size) = ((s.collective.name, s.collective.size) for s in (one, found))
    if (name, size) != (other_name, other_size):
        raise UsageError(
            f"--vs is {other_name} on {counted(other_size, 'rank')}, to compare with {name} on {counted(size, 'rank')}",
            "programs of one collective on as many ranks can be compared",
        )
    return found


@dataclass(frozen=True)
class Row:
    """One size, of the program and of the other, if there is one."""

    found: Prediction
    against: Prediction | None

    @property
    def speedup(self) -> float | None:
        return None if self.against is None or not self.found.time else self.against.time / self.found.time


def predicted(one: Simulator, against: Simulator | None, amounts: Sequence[int], protocol: str | None) -> list[Row]:
    """A row for each size, by the protocol or the fastest."""

    def at(simulator: Simulator, size: int) -> Prediction:
        return simulator.best(size) if protocol is None else simulator.predict(size, protocol)

    return [Row(at(one, size), None if against is None else at(against, size)) for size in amounts]


def machine(name: str, nodes: int, protocol: str | None) -> tuple[Topology, str | None]:
    found = topology.named(name, nodes)
    if protocol is not None:
        protocol = one_of("--protocol", protocol, [known.name for known in found.costs.protocols])
    return found, protocol


def timeline(schedule: Schedule, name: str, nodes: int, size: str) -> Timeline:
    """A call of one size, by the fastest protocol."""
    amount, *more = sizes(size)
    if more:
        raise UsageError(f"--size {size} is several sizes: a timeline is of one")
    simulator = Simulator(schedule, machine(name, nodes, None)[0])
    return simulator.trace(amount, simulator.best(amount).protocol).timeline


def as_json(simulator: Simulator, rows: Sequence[Row]) -> dict[str, object]:
    factor = bus_factor(simulator.schedule.collective)
    sizes = []
    for row in rows:
        entry = asdict(row.found) | {"algbw": row.found.algbw, "busbw": factor and row.found.algbw * factor}
        if row.against is not None:
            entry |= {"against": asdict(row.against), "speedup": row.speedup}
        sizes.append(entry)
    return {
        "program": simulator.schedule.name,
        "collective": str(simulator.schedule.collective),
        "topology": simulator.topology.name,
        "nodes": simulator.topology.nodes,
        "sizes": sizes,
    }


_BAR = 20


def print_rows(simulator: Simulator, rows: Sequence[Row], console: Console) -> None:
    """A table, with the busbw, or algbw, of each size as a bar."""
    factor = bus_factor(simulator.schedule.collective)
    machine = simulator.topology
    nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
    say(console, f"{simulator.schedule.name}: {simulator.schedule.collective} on {nodes}{machine.name}, simulated\n")
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = ["size\n", "protocol\n", "time\nus", "algbw\nGB/s", "busbw\nGB/s", "link floor\nus", "latency floor\nus"]
    names += ["closed form\nus"]
    against = rows[0].against
    if against is not None:
        names += [f"{against.program}\nus", "speedup\n"]
    for name in names:
        table.add_column(name, justify="left" if name.startswith("protocol") else "right", no_wrap=True)
    table.add_column(f"{'algbw' if factor is None else 'busbw'}\n", no_wrap=True)
    most = max(row.found.algbw for row in rows) or 1.0
    for row in rows:
        found = row.found
        cells = [show_size(found.bytes), found.protocol, f"{found.time:.1f}", f"{found.algbw:.2f}"]
        cells.append("" if factor is None else f"{found.algbw * factor:.2f}")
        cells += [f"{found.link_floor:.1f}", f"{found.latency_floor:.1f}", f"{found.estimate:.1f}"]
        if row.against is not None:
            speedup = "" if row.speedup is None else f"{row.speedup:.2f}"
            cells += [f"{row.against.time:.1f} {row.against.protocol}", speedup]
        table.add_row(*cells, "█" * max(1, round(found.algbw / most * _BAR)))
    console.print(table)


def shares(trace: Trace) -> list[tuple[str, str, str, float]]:
    """Of a critical path: what took the time, which, at what line, and its share in per cent; the largest first."""
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    for segment in trace.path:
        line = ""
        if segment.step is not None and segment.step.where is not None:
            at = segment.step.where.resolve()
            line = f"{Path(at.file).name}:{at.line}"
        sums[segment.kind, segment.what, line] += segment.end - segment.begin
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [(*key, 100 * time / whole) for key, time in ordered]


_MOST = 20


def print_why(trace: Trace, console: Console) -> None:
    """The critical path in sums."""
    found = trace.prediction
    say(
        console,
        f"\n{show_size(found.bytes)} by {found.protocol}: {found.time:.1f} us, which the critical path spends on",
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("share", "what", "which", "line"):
        table.add_column(name, justify="right" if name == "share" else "left")
    rows = shares(trace)
    for kind, what, line, share in rows[:_MOST]:
        table.add_row(f"{share:.1f} %", kind, printable(what), printable(line))
    if rows[_MOST:]:
        table.add_row(f"{sum(row[3] for row in rows[_MOST:]):.1f} %", f"{len(rows) - _MOST} others", "", "")
    table.add_row("100.0 %", "", "", "")
    console.print(table)


def draw_rows(simulator: Simulator, rows: Sequence[Row], path: Path) -> None:
    """Time and speedup, or algbw, over size."""
    title = f"{simulator.schedule.name} on {simulator.topology.nodes} x {simulator.topology.name}, simulated"
    at = [row.found.bytes for row in rows]
    against = [row.against for row in rows if row.against is not None]
    with over_sizes(title, ("time (us)", "speedup" if against else "algbw (GB/s)"), path) as (times, right):
        times.plot(at, [row.found.time for row in rows], "o-", color="#0072B2", label=rows[0].found.program)
        if against:
            times.plot(at, [found.time for found in against], "s-", color="#D55E00", label=against[0].program)
            right.plot(at, [row.speedup or 0.0 for row in rows], "o-", color="#0072B2")
            right.axhline(1.0, color="black", linewidth=0.5)
        else:
            right.plot(at, [row.found.algbw for row in rows], "o-", color="#0072B2")
