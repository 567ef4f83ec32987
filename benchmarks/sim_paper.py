"""Holds the simulator against the paper's section 7 and against measured tables: ``python benchmarks/sim_paper.py``.

It prints, for each figure and table, what is reported, what is predicted, and whether that is inside the band; then the
negative controls, which must fail. ``--fit`` fits the constants of an A100 anew, on the NCCL column of the table of
NDv4 and on figure 8a alone. ``--plots FOLDER`` draws a picture for each figure. GH200 is in sim_gh200.py.

Measured: AllReduce of float32 in place, by nccl-tests, in microseconds: microsoft/msccl-leaderboard (MIT), data/1xNDv4.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from nccl import exchange, rings

from hocket import AllToNext, Program, Schedule, chunk
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, sccl, two_step
from hocket.sim import Simulator
from hocket.topology import Costs, Topology, dgx1, ndv4

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30

NDV4 = {
    128: (15.01, 15.06),
    256: (15.57, 15.64),
    512: (16.29, 16.30),
    1 * KB: (17.17, 16.18),
    2 * KB: (18.66, 16.40),
    4 * KB: (20.60, 17.41),
    8 * KB: (21.06, 17.44),
    16 * KB: (24.14, 17.73),
    32 * KB: (31.69, 18.57),
    64 * KB: (36.02, 19.91),
    128 * KB: (38.46, 21.43),
    256 * KB: (43.85, 25.33),
    512 * KB: (55.60, 32.16),
    1 * MB: (71.80, 38.08),
    2 * MB: (91.11, 57.55),
    4 * MB: (106.4, 81.79),
    8 * MB: (154.4, 126.8),
    16 * MB: (255.3, 215.0),
    32 * MB: (379.4, 378.4),
}
"""NCCL and MSCCL."""


# ---------------------------------------------------------------------------------------------------------------
# Schedules, and how long they take


@dataclass(frozen=True)
class World:
    """The machine's costs, and what is taken out of the model for a negative control."""

    costs: Costs = field(default_factory=lambda: ndv4().costs)
    tiled: bool = True
    capped: bool = True
    started: bool = True

    def on(self, machine: Topology, *, native: bool = False) -> Topology:
        """``native``: a kernel of its own, which decodes no instructions, as NCCL's."""
        costs = self.costs if machine.name == "ndv4" else machine.costs
        if native:
            costs = replace(costs, decode=0.0)
        protocols = costs.protocols
        if not self.tiled:
            protocols = tuple(replace(p, slot=1 << 50, grain=1 << 50) for p in protocols)
        if not self.capped:
            protocols = tuple(replace(p, block=1e6) for p in protocols)
        if not self.started:
            protocols = tuple(replace(p, hop=0.0, network_hop=0.0) for p in protocols)
            costs = replace(costs, launch=0.01, start=0.0, decode=0.0, wait=0.0, publish=0.0, post=0.0)
        return replace(machine, costs=replace(costs, protocols=protocols))


@cache
def compiled(make: Callable[..., Program], *arguments: object, storage: str = "fifo", **names: object) -> Schedule:
    return make(*arguments, **names).compile(opcodes=storage == "fifo", slots=8, storage=storage)


_SIMULATORS: dict[tuple[object, ...], tuple[Simulator, Schedule, Topology]] = {}


def time_of(schedule: Schedule, machine: Topology, size: int, protocol: str) -> float:
    key = (
        id(schedule),
        machine.name,
        machine.nodes,
        machine.gpus,
        machine.node_links,
        machine.thread_blocks,
        machine.costs,
    )
    if key not in _SIMULATORS:
        if len(_SIMULATORS) > 400:
            _SIMULATORS.clear()
        _SIMULATORS[key] = Simulator(schedule, machine), schedule, machine
    simulator = _SIMULATORS[key][0]
    return simulator.predict(size, protocol).time if protocol in simulator.protocols() else math.inf


PROTOCOLS = ("LL", "LL128", "Simple")


def best(schedules: Sequence[Schedule], machine: Topology, size: int, protocols: Sequence[str] = PROTOCOLS) -> float:
    return min(time_of(schedule, machine, size, protocol) for schedule in schedules for protocol in protocols)


# ---------------------------------------------------------------------------------------------------------------
# NCCL 2.8: its protocol and its channels by size (graph/tuning.cc; enqueue.cc; collectives/device/all_reduce.h)

_LATENCY = {"LL": (3.6, 0.47, 2.7), "LL128": (10.0, 1.9, 4.0), "Simple": (8.4, 3.4, 9.6)}
"""Of a call, of a hop within a node, of one between nodes."""

_THREADS = {"LL": (512, 8, 4096), "LL128": (640, 8, 19200), "Simple": (512, 64, 4096)}
"""Threads; bytes of each before another channel is used; what a channel's chunk is rounded up to."""

CHANNELS = 24
"""Paper, 7.1.1."""


def nccl_protocol(size: int, ranks: int, nodes: int, bandwidth: float) -> str:
    """The one that NCCL's own model takes for the fastest. ``bandwidth``: GB/s out of a rank."""

    def time(protocol: str) -> float:
        base, hop, network = _LATENCY[protocol]
        hop = hop * 1.8 if nodes > 1 and protocol == "LL" else hop
        share = {"LL": bandwidth / 4, "LL128": min(bandwidth * 0.92, 16.7 * CHANNELS), "Simple": bandwidth}[protocol]
        between = 2 * (nodes - 1)
        latency = base + (2 * (ranks - 1) - between) * hop + between * network
        return latency + size / (share * ranks / (2 * (ranks - 1))) / 1e3

    return min(_LATENCY, key=time)


def nccl_channels(size: int, ranks: int, protocol: str) -> int:
    """Channels that have anything to do."""
    threads, each, grain = _THREADS[protocol]
    threshold = threads * each * (ranks if protocol == "LL" else 1)
    channels = min(CHANNELS, max(1, size // threshold))
    part = max(grain, math.ceil(size / ranks / channels / grain) * grain)
    return min(channels, max(1, math.ceil(size / ranks / part)))


def nccl(world: World, size: int) -> float:
    """NCCL's ring on one node of NDv4."""
    protocol = nccl_protocol(size, 8, 1, 235.0)
    made = compiled(ring.all_reduce, 8, instances=nccl_channels(size, 8, protocol))
    return time_of(made, world.on(ndv4(), native=True), size, protocol)


def nccl_nodes(world: World, machine: Topology, size: int) -> float:
    """The rings on several nodes."""
    ranks = machine.ranks
    protocol = nccl_protocol(size, ranks, machine.nodes, 8 * 24.0)
    instances = max(1, round(nccl_channels(size, ranks, protocol) / 8))
    made = compiled(rings, machine.nodes, machine.gpus, instances)
    return time_of(made, world.on(machine, native=True), size, protocol)


# ---------------------------------------------------------------------------------------------------------------
# Figures


def powers(low: int, high: int, step: int = 1) -> list[int]:
    return [1 << k for k in range(low.bit_length() - 1, high.bit_length(), step)]


@dataclass
class Finding:
    figure: str
    what: str
    reported: str
    predicted: str
    inside: bool


@dataclass
class Curves:
    """Speedups by size, for a picture."""

    name: str
    title: str
    lines: dict[str, dict[int, float]]


def peak(what: str, figure: str, curve: Mapping[int, float], low: int, high: int, reported: float) -> Finding:
    at = max((size for size in curve if low <= size <= high), key=lambda size: curve[size])
    found = curve[at]
    text = f"{found:.2f}x, at {show(at)}"
    return Finding(figure, what, f"up to {reported:g}x, {show(low)} to {show(high)}", text, inside(found, reported))


def inside(found: float, reported: float) -> bool:
    """The direction is right, and it is within 25 %."""
    return abs(found / reported - 1) <= 0.25 and (found > 1) == (reported > 1)


def show(size: int) -> str:
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def many_channels() -> list[Schedule]:
    return [compiled(ring.all_reduce, 8, channels=c, instances=i) for c, i in ((2, 4), (4, 2), (4, 4), (8, 1), (8, 2))]


def pairs() -> list[Schedule]:
    return [compiled(all_pairs.all_reduce, 8, instances=i) for i in (1, 2, 4)]


def figure_8a(world: World) -> tuple[list[Finding], Curves]:
    machine = world.on(ndv4())
    sizes = powers(KB, GB)
    base = {size: nccl(world, size) for size in sizes}
    several = {s: base[s] / best(many_channels(), machine, s) for s in sizes}
    paired = {s: base[s] / best(pairs(), machine, s) for s in sizes}
    one = compiled(ring.all_reduce, 8, instances=24)
    single = {s: base[s] / time_of(one, machine, s, "Simple") for s in sizes}
    ties = [single[s] for s in sizes if s > 32 * MB]
    crossing = next((s for s in sizes if s >= 64 * KB and several[s] > paired[s]), 0)
    return [
        peak("ring over several channels", "8a", several, 32 * KB, 3 * MB, 1.9),
        peak("All Pairs", "8a", paired, KB, MB, 1.8),
        Finding(
            "8a",
            "one channel, r = 24, above 32 MB",
            "ties NCCL",
            f"{min(ties):.2f}x to {max(ties):.2f}x",
            all(abs(t - 1) < 0.1 for t in ties),
        ),
        Finding(
            "8a",
            "All Pairs loses to the ring from",
            "1 MB on",
            show(crossing) if crossing else "never",
            bool(crossing) and MB / 4 <= crossing <= 4 * MB,
        ),
    ], Curves(
        "8a",
        "1 x 8 A100 AllReduce, speedup over NCCL",
        {
            "ring, several channels": several,
            "All Pairs": paired,
            "ring, r = 24": single,
        },
    )


def pair(ranks: int) -> Program:
    return ring.all_reduce(ranks)


def separate(world: World, size: int) -> float:
    """The hierarchical algorithm as three calls of NCCL, each with a launch."""
    node = world.on(ndv4(), native=True)
    one_each = replace(
        ndv4(2), gpus=1, within={}, out=ndv4(2).out[:1], into=ndv4(2).into[:1]
    )  # of each node the one GPU; those of the other columns use other NICs
    between = world.on(one_each, native=True)
    scatter = compiled(ring.reduce_scatter, 8, instances=12)
    across = compiled(ring.all_reduce, 2, instances=4)
    gather = compiled(ring.all_gather, 8, instances=12)
    return best([scatter], node, size) + best([across], between, size // 8) + best([gather], node, size)


def figure_8c(world: World) -> tuple[list[Finding], Curves]:
    machine = world.on(ndv4(2))
    sizes = powers(4 * KB, 4 * GB, 2)
    base = {s: nccl_nodes(world, ndv4(2), s) for s in sizes}
    made = [
        compiled(hierarchical.all_reduce, 2, 8, parallel=p, instances=i) for p, i in ((1, 1), (1, 4), (2, 4), (4, 4))
    ]
    times = {s: best(made, machine, s) for s in sizes}
    ours = {s: base[s] / times[s] for s in sizes}
    apart = {s: base[s] / separate(world, s) for s in sizes}
    large = max(ours[s] for s in sizes if s >= GB)
    small = [s for s in sizes if s <= 4 * MB]
    worse = sum(apart[s] < min(ours[s], 1.0) for s in sizes)
    return [
        peak("hierarchical, small sizes", "8c", ours, 4 * KB, small[-1], 1.4),
        Finding("8c", "hierarchical, from 1 GB on", "up to 1.11x", f"{large:.2f}x", inside(large, 1.11)),
        Finding(
            "8c",
            "as separate calls of NCCL",
            "slower than both",
            f"slower than both at {worse} of {len(sizes)} sizes",
            worse == len(sizes),
        ),
    ], Curves("8c", "2 x 8 A100 AllReduce, speedup over NCCL", {"hierarchical": ours, "separate calls": apart})


MEMORY = 1555.0 * 0.8
"""GB/s of an A100's memory (data sheet, 40 GB), four fifths of which a copy reaches; each byte is read and written."""


def hand_written(world: World, size: int) -> float:
    """Sends within the node, a kernel that packs, sends between nodes: three launches, one thread block a peer."""
    node = world.on(ndv4(), native=True)
    one_each = replace(ndv4(16), gpus=1, within={}, out=ndv4().out[:1], into=ndv4().into[:1])
    between = world.on(one_each, native=True)
    pack = node.costs.launch + 2 * size / MEMORY / 1e3
    inner, outer = exchange(8), exchange(16)
    return best([inner], node, size) + pack + best([outer], between, size)


def figure_8e(world: World) -> tuple[list[Finding], Curves]:
    sizes = powers(MB, 4 * GB)
    machine = world.on(ndv4(16))
    made = compiled(two_step.all_to_all, 16, 8)
    # The closed form: to simulate NCCL's takes minutes a size, and is 7 % more at 128 MB, 1.4 % at 1 GB.
    plain = Simulator(exchange(128), world.on(ndv4(16), native=True))
    ours = {s: best([made], machine, s, ("LL128", "Simple")) for s in sizes}
    hand = {s: hand_written(world, s) for s in sizes}
    them = {s: plain.estimate(s, "Simple") for s in sizes}
    speedup = {s: hand[s] / ours[s] for s in sizes}
    theirs = {s: hand[s] / them[s] for s in sizes}
    large = [s for s in sizes if s > 512 * MB]
    ahead = max(them[s] / ours[s] for s in large)
    loses = sum(hand[s] > them[s] for s in large)
    return [
        peak("two-step over the hand-written one", "8e", speedup, 128 * MB, GB, 1.3),
        Finding("8e", "two-step over NCCL, above 512 MB", "1.2x", f"{ahead:.2f}x", inside(ahead, 1.2)),
        Finding(
            "8e",
            "hand-written loses to NCCL above 512 MB",
            "yes",
            f"at {loses} of {len(large)} sizes",
            loses == len(large),
        ),
    ], Curves("8e", "16 x 8 A100 AllToAll, speedup over hand-written", {"two-step": speedup, "NCCL": theirs})


def sends(ranks: int) -> Program:
    with Program(AllToNext(ranks), name="direct_send") as p:
        for rank in range(ranks - 1):
            chunk(rank, "in", 0).copy(rank + 1, "out", 0)
    return p


def figure_8g(world: World) -> tuple[list[Finding], Curves]:
    sizes = powers(KB, GB, 2)
    base = {s: best([compiled(sends, 24)], world.on(ndv4(3), native=True), s) for s in sizes}
    machine = world.on(ndv4(3))
    by_r = {
        r: {s: base[s] / best([compiled(all_to_next.all_to_next, 3, 8, instances=r)], machine, s) for s in sizes}
        for r in (1, 4, 8, 12)
    }
    winners = [max(by_r, key=lambda r: by_r[r][s]) for s in sizes]
    best_of = {s: max(curve[s] for curve in by_r.values()) for s in sizes}
    grows = winners == sorted(winners) and winners[0] < winners[-1]
    return [
        Finding("8g", "AllToNext, small sizes", "slower", f"{best_of[KB]:.2f}x at 1 KB", best_of[KB] < 1),
        peak("AllToNext, large sizes", "8g", best_of, MB, GB, 14.5),
        Finding("8g", "the best r", "grows with size", ", ".join(map(str, dict.fromkeys(winners))), grows),
    ], Curves("8g", "3 x 8 A100 AllToNext, speedup over a direct send", {f"r = {r}": c for r, c in by_r.items()})


def figure_11(world: World) -> tuple[list[Finding], Curves]:
    sizes = powers(KB, GB)
    machine = world.on(dgx1())
    made = [compiled(sccl.all_gather, instances=i) for i in (1, 2, 4)]
    straight = [compiled(sccl.all_gather, instances=i, storage="peer") for i in (1, 2, 4)]
    base = {s: best(straight, machine, s, ("Direct",)) for s in sizes}
    short = {s: base[s] / best(made, machine, s, ("LL",)) for s in sizes}
    simple = {s: base[s] / best(made, machine, s, ("Simple",)) for s in sizes}
    middle = [s for s in sizes if 256 * KB <= s <= 16 * MB]
    return [
        Finding("11", "LL over SCCL, small sizes", "faster", f"{short[KB]:.2f}x at 1 KB", short[KB] > 1),
        Finding(
            "11",
            "Simple over SCCL, middle sizes",
            "slower",
            f"{min(simple[s] for s in middle):.2f}x to {max(simple[s] for s in middle):.2f}x",
            all(simple[s] < 1 for s in middle),
        ),
    ], Curves("11", "DGX-1 (1,2,2) AllGather, speedup over SCCL", {"LL": short, "Simple": simple})


FIGURES: tuple[Callable[[World], tuple[list[Finding], Curves]], ...] = (
    figure_8a,
    figure_8c,
    figure_8e,
    figure_8g,
    figure_11,
)


# ---------------------------------------------------------------------------------------------------------------
# Measured tables


def table(title: str, measured: Mapping[int, float], predict: Callable[[int], float]) -> list[Finding]:
    """Prints the table; the mean of the absolute errors from 1 MB on, and below."""
    print(f"\n{title}\n| size | measured us | predicted us | error |\n|---|---|---|---|")
    errors: dict[int, float] = {}
    for size, time in measured.items():
        found = predict(size)
        errors[size] = found / time - 1
        print(f"| {show(size)} | {time:g} | {found:.1f} | {errors[size]:+.0%} |")
    findings = []
    for what, most, some in (
        ("from 1 MB on", 0.15, [abs(e) for s, e in errors.items() if s >= MB]),
        ("below 1 MB", 0.25, [abs(e) for s, e in errors.items() if s < MB]),
    ):
        mean = sum(some) / len(some)
        findings.append(Finding("table", f"{title}, {what}", f"at most {most:.0%}", f"{mean:.0%}", mean <= most))
    return findings


def msccl(world: World, size: int) -> float:
    """The best that the library has for one node; from 1 MB on NCCL's own ring, where MSCCL falls back to it."""
    machine = world.on(ndv4())
    some = [compiled(ring.all_reduce, 8, instances=i) for i in (4, 8, 16, 24)]
    made = best([*many_channels(), *pairs(), *some], machine, size)
    return min(made, nccl(world, size)) if size >= MB else made


def tables(world: World) -> list[Finding]:
    return [
        *table("NDv4, NCCL (fitted on)", {s: both[0] for s, both in NDV4.items()}, partial(nccl, world)),
        *table("NDv4, MSCCL", {s: both[1] for s, both in NDV4.items()}, partial(msccl, world)),
    ]


# ---------------------------------------------------------------------------------------------------------------
# Negative controls, the fit, and all of it


def controls() -> list[Finding]:
    """Each takes something out of the model; what it is there for must be gone."""
    found = []
    large = figure_8c(World(tiled=False))[0][1]
    found.append(Finding("8c", "no tiles: gain from 1 GB on", "lost", large.predicted, not large.inside))
    r = figure_8g(World(capped=False))[0]
    found.append(Finding("8g", "no cap on a thread block: the best r", "no more", r[2].predicted, not r[2].inside))
    small = figure_8g(World(started=False))[0][0]
    found.append(Finding("8g", "no start-up cost: slower when small", "lost", small.predicted, not small.inside))
    return found


def errors_of(measured: Mapping[int, float], predict: Callable[[int], float]) -> tuple[float, float]:
    """The mean of the absolute errors from 1 MB on, and below."""
    errors = {size: abs(predict(size) / time - 1) for size, time in measured.items()}
    large = [error for size, error in errors.items() if size >= MB]
    small = [error for size, error in errors.items() if size < MB]
    return sum(large) / len(large), sum(small) / len(small)


def misfit(costs: Costs) -> float:
    """What the bands are of: the mean errors on the NCCL column, and those of the two peaks of figure 8a."""
    world = World(costs)
    large, small = errors_of({s: both[0] for s, both in NDV4.items()}, partial(nccl, world))
    machine = world.on(ndv4())
    several = max(nccl(world, s) / best(many_channels(), machine, s) for s in (512 * KB, 2 * MB))
    paired = max(nccl(world, s) / best(pairs(), machine, s) for s in (32 * KB, 64 * KB, 256 * KB))
    return large / 0.15 + small / 0.25 + (abs(math.log(several / 1.9)) + abs(math.log(paired / 1.8))) / 0.25 / 2


_FREE = ("launch", "start", "decode", "wait+publish", "local", "LL.hop", "LL.block", "LL128.hop", "LL128.block")
_FREE = (*_FREE, "Simple.hop", "Simple.block")


def scaled(costs: Costs, name: str, factor: float) -> Costs:
    head, dot, key = name.partition(".")
    if dot:
        changed = [
            replace(p, **{key: getattr(p, key) * factor}) if p.name in (head, {"Simple": "Direct"}.get(head)) else p
            for p in costs.protocols
        ]
        return replace(costs, protocols=tuple(changed))
    return replace(costs, **{part: getattr(costs, part) * factor for part in name.split("+")})


def fit(costs: Costs, error_of: Callable[[Costs], float]) -> Costs:
    """Coordinate descent: each constant is tried a little larger and smaller, by steps that shrink."""
    least = error_of(costs)
    for step in (1.4, 1.25, 1.15, 1.08, 1.04):
        for name in _FREE:
            for factor in (step, 1 / step):
                tried = scaled(costs, name, factor)
                error = error_of(tried)
                if error < least * 0.999:
                    costs, least = tried, error
                    break
        print(f"step {step}: {least:.3f}\n{costs}", flush=True)
    return costs


def print_findings(title: str, found: Sequence[Finding]) -> None:
    print(f"\n{title}\n| figure | what | reported | predicted | inside |\n|---|---|---|---|---|")
    for f in found:
        print(f"| {f.figure} | {f.what} | {f.reported} | {f.predicted} | {'yes' if f.inside else '**no**'} |")


def draw(curves: Curves, folder: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, line in curves.lines.items():
        axes.plot(list(line), list(line.values()), "o-", markersize=3, label=name)
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set_title(f"Figure {curves.name}, simulated: {curves.title}", fontsize=9)
    axes.set_xlabel("bytes of a rank's larger buffer")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(folder / f"sim_{curves.name}.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--only", help="one figure, such as 8a; tables; controls")
    given = parser.parse_args()
    if given.fit:
        print(fit(ndv4().costs, misfit))
        return
    world = World()
    found: list[Finding] = []
    for figure in FIGURES:
        if given.only in (None, figure.__name__.removeprefix("figure_")):
            findings, curves = figure(world)
            print_findings(curves.title, findings)
            found += findings
            if given.plots is not None:
                draw(curves, given.plots)
    if given.only in (None, "tables"):
        findings = tables(world)
        print_findings("Mean of the absolute errors", findings)
        found += findings
    if given.only in (None, "controls"):
        print_findings("Negative controls: inside means that it failed, as it must", controls())
    if found:
        print(f"\n{sum(f.inside for f in found)} of {len(found)} inside their bands")


if __name__ == "__main__":
    main()
