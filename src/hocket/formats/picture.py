"""Pictures: the timeline of a schedule, and the two DAGs as the paper draws them in Figure 4.

Drawn with matplotlib, so whoever needs no picture should not import this module. The same stage gives the same bytes.
What does not fit is left out, and the picture says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, Rectangle

from hocket.ir.chunk_dag import ChunkDag, ChunkNode, Kind, Span
from hocket.ir.instr_dag import OPCODES, InstrDag, opcode
from hocket.ir.schedule import Receive, Schedule, Send, Step
from hocket.ir.text import Stage

FORMATS = ("svg", "png", "pdf")

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey by the labels.
_COLOURS = {
    "send": "#56B4E9",
    "recv": "#0072B2",
    "copy": "#BBBBBB",
    "reduce": "#F0E442",
    "rrc": "#009E73",
    "rcs": "#CC79A7",
    "rrs": "#E69F00",
    "rrcs": "#D55E00",
}
_GENERAL = "#666666"
_LIGHT = frozenset({"#56B4E9", "#BBBBBB", "#F0E442", "#E69F00", "#CC79A7"})
_INK, _FAINT = "#222222", "#777777"

_MAX_LANES = 120
_MAX_TICKS = 160
_MAX_ARROWS = 800
_MAX_NODES = 100
_MAX_PIXELS = 6000

_BOX = (0.8, 0.82)
"""A step's part of its unit of time and of its lane; what is left of the time is for arrows."""

_GAP = 0.5
"""Between the lanes of two ranks, in lanes."""

_LEGIBLE = 4.5
_LINE = 1.2
"""Height of a line of text over its font size; a character is about half as wide as that."""


def draw(stage: Stage, path: Path) -> None:
    """Write a picture of a stage; the name's ending, one of FORMATS, says in which format."""
    kind = path.suffix[1:].lower()
    if isinstance(stage, Schedule):
        figure = _draw_schedule(stage)
    else:
        figure = _draw_graph(_of_chunks(stage) if isinstance(stage, ChunkDag) else _of_instructions(stage))
    # Text stays text in an SVG; no date and no random identifiers, so that equal stages give equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hocket", "font.family": "sans-serif"}):
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        figure.savefig(path, format=kind, dpi=min(150, _MAX_PIXELS / max(figure.get_size_inches())), metadata=undated)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _canvas(
    size: tuple[float, float], margins: tuple[float, float, float, float], title: str, facts: str
) -> tuple[Figure, Axes]:
    """Axes inside of margins (left, right, top, bottom), all in inches, under a title and a line of facts."""
    left, right, top, bottom = margins
    width, height = size[0] + left + right, size[1] + top + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((left / width, bottom / height, size[0] / width, size[1] / height))
    figure.text(0.15 / width, 1 - 0.18 / height, title, size=13, weight="bold", color=_INK, va="top")
    figure.text(0.15 / width, 1 - 0.47 / height, facts, size=9, color=_FAINT, va="top")
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    return figure, axes


def _close(figure: Figure, handles: Sequence[Patch | Line2D], notes: Iterable[str]) -> None:
    """The legend, in rows that fit, and below it what was left out."""
    width, height = figure.get_size_inches()
    columns = max(1, min(len(handles), int((width - 0.3) / 1.05)))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.1 / width, 0.26 / height),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=1.5,
        columnspacing=1.4,
        borderaxespad=0,
    )
    text = "; ".join(notes)
    if text:
        figure.text(0.15 / width, 0.1 / height, f"Left out: {text}.", size=8, style="italic", color=_FAINT)


# ---------------------------------------------------------------------------------------------------------------
# Schedule


Lane = tuple[int, int]
"""A thread block: (rank, number)."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Box:
    """A step where it is drawn. ``start`` is its logical time; None if it is never ready."""

    lane: Lane
    step: Step
    start: int | None


class _Timeline:
    """Steps at their logical times: one after the longest chain of steps they wait for."""

    def __init__(self, schedule: Schedule) -> None:
        steps = list(schedule.steps())
        number = {(r, b, s): i for i, (r, b, s, _) in enumerate(steps)}
        sent: dict[tuple[int, int, int], list[int]] = {}
        received: dict[tuple[int, int, int], list[int]] = {}
        self.waits: list[tuple[int, int]] = []
        chains: list[tuple[int, int]] = []
        for i, (r, _, s, step) in enumerate(steps):
            if s:
                chains.append((i - 1, i))
            self.waits += [(number[r, wait.thread_block, wait.step], i) for wait in step.waits]
            for source in step.srcs:
                if isinstance(source, Receive):
                    received.setdefault((source.peer, r, source.channel), []).append(i)
            for target in step.dsts:
                if isinstance(target, Send):
                    sent.setdefault((r, target.peer, target.channel), []).append(i)
        self.transfers = [
            pair for end, sends in sent.items() for pair in zip(sends, received.get(end, ()), strict=False)
        ]
        start = _longest_paths(len(steps), [*chains, *self.waits, *self.transfers])
        self.boxes = [_Box((r, b), step, start[i]) for i, (r, b, _, step) in enumerate(steps)]
        self.lanes = [(r, b) for r, rank in enumerate(schedule.ranks) for b in range(len(rank.thread_blocks))]
        self.ticks = 1 + max((tick for tick in start if tick is not None), default=0)


def _longest_paths(count: int, edges: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each node the number of nodes on the longest path to it; None for nodes on or behind a cycle."""
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for first, second in edges:
        after[first].append(second)
        missing[second] += 1
    ready = [i for i in range(count) if not missing[i]]
    depth = [0] * count
    found: list[int | None] = [None] * count
    for i in ready:
        found[i] = depth[i]
        for j in after[i]:
            depth[j] = max(depth[j], depth[i] + 1)
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    return found


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which lanes and times are drawn, and where. ``wide`` is a unit of time and ``tall`` a lane, in inches."""

    middle: dict[Lane, float]
    labels: dict[Lane, str]
    ticks: int
    wide: float
    tall: float
    left: float
    across: float

    @classmethod
    def of(cls, schedule: Schedule, timeline: _Timeline, facts: str, with_channel: bool) -> _Layout:
        lanes = timeline.lanes
        if len(lanes) > _MAX_LANES:  # whole ranks, or a part of the first
            head = lanes[: _MAX_LANES + 1]
            lanes = [lane for lane in head if lane[0] < head[-1][0]] or head[:_MAX_LANES]
        ticks = min(timeline.ticks, _MAX_TICKS)
        wide = min(1.0, max(0.14, 15.0 / ticks))
        labels = {lane: _lane_label(schedule, lane, with_channel) for lane in lanes}
        name = len(f"rank {len(schedule.ranks) - 1}")
        left = 0.3 + 0.09 * name + 0.068 * max(map(len, labels.values()), default=0)
        across = max(ticks * wide, 0.075 * len(facts) - left)
        return cls(
            middle={lane: -(i + 0.5 + _GAP * lane[0]) for i, lane in enumerate(lanes)},
            labels=labels,
            ticks=ticks,
            wide=min(1.6, across / ticks),
            tall=min(0.42, max(0.17, 14.0 / max(1, len(lanes)))),
            left=left,
            across=across,
        )


def _draw_schedule(schedule: Schedule) -> Figure:
    timeline = _Timeline(schedule)
    channels = {end.channel for rank in schedule.ranks for block in rank.thread_blocks for end in block.sends}
    facts = " · ".join(
        [
            str(schedule.collective),
            f"protocol {schedule.protocol}",
            f"{schedule.slots} or more slots" if schedule.slots > 1 else "any number of slots",
            f"{_many(len(timeline.lanes), 'thread block')} on {_many(len(schedule.ranks), 'rank')}",
            _many(len(channels), "channel"),
            _many(len(timeline.boxes), "step"),
        ]
    )
    layout = _Layout.of(schedule, timeline, facts, with_channel=len(channels) > 1)
    down = 0.5 - min(layout.middle.values(), default=-0.5)
    size = layout.across, down * layout.tall
    figure, axes = _canvas(size, (layout.left, 0.2, 0.8, 0.95), schedule.name, facts)
    axes.set_xlim(0, layout.across / layout.wide)
    axes.set_ylim(-down, 0)
    axes.set_xlabel("logical time", size=8, color=_FAINT)
    axes.tick_params(axis="x", labelsize=8, colors=_FAINT, length=2)
    every = next(n for n in (1, 2, 5, 10) if n * layout.wide >= 0.3)
    marked = range(0, layout.ticks, every)
    axes.set_xticks([t + _BOX[0] / 2 for t in marked], [str(t) for t in marked])
    _draw_lanes(axes, layout)
    shown = {
        i: (float(box.start), layout.middle[box.lane])
        for i, box in enumerate(timeline.boxes)
        if box.start is not None and box.start < layout.ticks and box.lane in layout.middle
    }
    labelled = _draw_boxes(axes, layout, {i: timeline.boxes[i].step for i in shown}, shown)
    transfers = _arrows(shown, timeline.transfers)
    waits = _arrows(shown, timeline.waits)
    _draw_arrows(axes, transfers, waits)
    names = {timeline.boxes[i].step.opcode for i in shown}
    known = [name for name in OPCODES.values() if name in names] + sorted(names - set(OPCODES.values()))
    handles: list[Patch | Line2D] = [Patch(color=_COLOURS.get(name, _GENERAL), label=name) for name in known]
    handles += [Line2D([], [], color=_INK, lw=0.9, label="transfer")] if transfers else []
    handles += [Line2D([], [], color=_FAINT, lw=0.9, ls=":", label="wait")] if waits else []
    notes = _left_out(timeline, layout, len(schedule.ranks))
    _close(figure, handles, notes if labelled else [*notes, "what the steps work on, for lack of room"])
    return figure


def _left_out(timeline: _Timeline, layout: _Layout, ranks: int) -> list[str]:
    """What the picture does not show, one phrase each."""
    notes = []
    if len(layout.middle) < len(timeline.lanes):
        drawn = max(rank for rank, _ in layout.middle) + 1
        rest = f"{len(layout.middle)} of {len(timeline.lanes)} thread blocks are drawn"
        notes.append(rest if drawn == ranks else f"ranks {drawn} to {ranks - 1} ({rest})")
    if layout.ticks < timeline.ticks:
        notes.append(f"logical times from {layout.ticks} to {timeline.ticks - 1}")
    stuck = sum(box.start is None for box in timeline.boxes)
    return notes + ([f"{_many(stuck, 'step')} that can never run"] if stuck else [])


def _lane_label(schedule: Schedule, lane: Lane, with_channel: bool) -> str:
    """A thread block and the peers of its connections."""
    block = schedule.ranks[lane[0]].thread_blocks[lane[1]]
    words = [f"tb {lane[1]}", *(f"\u2190{e.peer}" for e in block.receives), *(f"\u2192{e.peer}" for e in block.sends)]
    ends = sorted({end.channel for end in block.receives} | {end.channel for end in block.sends})
    return "  ".join(words + [f"ch {','.join(map(str, ends))}"] * (with_channel and bool(ends)))


def _draw_lanes(axes: Axes, layout: _Layout) -> None:
    """A band for each rank, and the name of each thread block in the left margin."""
    size = min(8.0, 72 * layout.tall / _LINE)
    right = axes.get_xlim()[1]
    start = -(layout.left - 0.15) / layout.wide
    inch = 1 / layout.wide
    for rank in dict.fromkeys(r for r, _ in layout.labels):
        ys = [y for lane, y in layout.middle.items() if lane[0] == rank]
        band = Rectangle((start, min(ys) - 0.6), right - start, max(ys) - min(ys) + 1.2, color="#F4F4F4", lw=0)
        band.set_clip_on(False)
        band.set_zorder(0)
        axes.add_patch(band)
        name = f"rank {rank}"
        axes.text(start + 0.08 * inch, max(ys), name, size=min(9.5, size + 1.5), weight="bold", va="center", color=_INK)
    for lane, label in layout.labels.items():
        axes.text(-0.08 * inch, layout.middle[lane], label, size=size, ha="right", va="center", color=_FAINT)


def _draw_boxes(axes: Axes, layout: _Layout, steps: dict[int, Step], places: dict[int, Point]) -> bool:
    """Boxes, each labelled as far as there is room for legible text. Returns whether there was for all of it."""
    wide, tall = _BOX
    labels = {i: _label(step) for i, step in steps.items()}
    full = _fitting(layout, [line for lines in labels.values() for line in lines], rows=2)
    short = _fitting(layout, [name for name, _ in labels.values()], rows=1)
    colours = [_COLOURS.get(steps[i].opcode, _GENERAL) for i in places]
    corners = [
        ((x, y - tall / 2), (x + wide, y - tall / 2), (x + wide, y + tall / 2), (x, y + tall / 2))
        for x, y in places.values()
    ]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", lw=0.4, zorder=3))
    size = full if full is not None else short
    if size is not None:
        for (i, (x, y)), colour in zip(places.items(), colours, strict=True):
            text = "\n".join(labels[i]) if full is not None else labels[i][0]
            ink = _INK if colour in _LIGHT else "white"
            axes.text(x + wide / 2, y, text, size=size, color=ink, ha="center", va="center", linespacing=1, zorder=4)
    return full is not None


def _fitting(layout: _Layout, lines: Sequence[str], rows: int) -> float | None:
    """The size in which every line fits into a box of so many rows; None if none could read it."""
    longest = max(map(len, lines), default=1)
    points = 72 * _BOX[0] * layout.wide, 72 * _BOX[1] * layout.tall
    size = min(8.0, points[0] / (_LINE / 2 * longest), points[1] / (rows * _LINE))
    return size if size >= _LEGIBLE else None


def _label(step: Step) -> tuple[str, str]:
    """What a step does, and the place it leaves its result in or takes it from."""
    local = next(o for o in (*step.dsts, *step.srcs) if isinstance(o, Span))
    return step.opcode, str(local)


def _arrows(places: dict[int, Point], pairs: Iterable[tuple[int, int]]) -> list[tuple[Point, Point]]:
    """From the end of one box to the beginning of another, for pairs of which both are drawn."""
    return [((places[i][0] + _BOX[0], places[i][1]), places[j]) for i, j in pairs if i in places and j in places]


def _draw_arrows(axes: Axes, transfers: Sequence[tuple[Point, Point]], waits: Sequence[tuple[Point, Point]]) -> None:
    """Arrows while they can be told apart, plain lines beyond."""
    count = len(transfers) + len(waits)
    for pairs, colour, style, height in ((waits, _FAINT, ":", 1), (transfers, _INK, "-", 5)):
        if count > _MAX_ARROWS:
            axes.add_collection(LineCollection(pairs, colors=colour, lw=0.4, alpha=0.35, zorder=2))
            continue
        for start, end in pairs:
            patch = FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=5,
                shrinkA=0,
                shrinkB=0,
                color=colour,
                lw=0.6,
                ls=style,
                alpha=0.85 if count < 150 else 0.5,
                zorder=height,
            )
            axes.add_patch(patch)


# ---------------------------------------------------------------------------------------------------------------
# Chunk DAG and Instruction DAG


@dataclass(frozen=True)
class _Graph:
    """What a picture of a DAG shows: nodes in a topological order, in columns of ranks, and two kinds of edges."""

    title: str
    facts: str
    ranks: list[int]
    texts: list[str]
    kinds: list[str]
    colours: dict[str, str]
    solid: list[tuple[int, int]]
    dashed: list[tuple[int, int]]
    names: tuple[str, str]
    notes: list[str]


def _of_chunks(dag: ChunkDag) -> _Graph:
    numbers: Sequence[int] = range(len(dag.nodes))
    notes = []
    if len(numbers) > _MAX_NODES // 5:
        numbers = _trace_first_chunk(dag)
        rest = len(dag.nodes) - len(numbers)
        notes += [f"{_many(rest, 'node')} that do not carry chunk 0 of an input"] if rest else []
    if len(numbers) > _MAX_NODES:
        notes.append(f"{len(numbers) - _MAX_NODES} later ones that do")
        numbers = numbers[:_MAX_NODES]
    place = {number: i for i, number in enumerate(numbers)}
    operations = len(dag.nodes) - dag.collective.size
    nodes = [dag.nodes[number] for number in numbers]
    return _Graph(
        dag.name,
        f"{dag.collective} · Chunk DAG · {_many(operations, 'operation')} on {_many(dag.collective.size, 'rank')}",
        [node.dst.rank for node in nodes],
        [_describe(node) for node in nodes],
        [node.kind.value for node in nodes],
        _NODE,
        [(place[d], place[n]) for n in numbers for d in dag.nodes[n].true if d in place],
        [(place[d], place[n]) for n in numbers for d in dag.nodes[n].false if d in place],
        ("true dependency", "false dependency"),
        notes,
    )


def _of_instructions(dag: InstrDag) -> _Graph:
    instrs = dag.instrs[:_MAX_NODES]
    rest = len(dag.instrs) - len(instrs)
    sender = {edge: i for i, instr in enumerate(instrs) for edge in instr.departures}
    names = [opcode(instr.shape) for instr in instrs]
    texts = []
    for name, instr in zip(names, instrs, strict=True):
        places = [str(operand) for operand in (*instr.dsts, *instr.srcs) if isinstance(operand, Span)]
        texts.append("\n".join([name, *dict.fromkeys(places)]))
    return _Graph(
        dag.name,
        f"{dag.collective} · Instruction DAG · {_many(len(dag.instrs), 'instruction')} "
        f"on {_many(dag.collective.size, 'rank')}",
        [instr.rank for instr in instrs],
        texts,
        names,
        {name: _COLOURS.get(name, _GENERAL) for name in (*_COLOURS, *names)},
        [(sender[edge], i) for i, instr in enumerate(instrs) for edge in instr.arrivals if edge in sender],
        [(before, i) for i in range(len(instrs)) for before in dag.after[i]],
        ("communication edge", "processing edge"),
        [f"{_many(rest, 'later instruction')}"] if rest else [],
    )


def _draw_graph(graph: _Graph) -> Figure:
    depth = [d or 0 for d in _longest_paths(len(graph.texts), [*graph.solid, *graph.dashed])]
    columns, position = _arrange(graph.ranks, depth)
    box = (1.45, 0.78)  # inches from one column and one row to the next
    across, down = sum(columns[-1][1:]) + 0.16 if columns else 1.0, 1 + max(depth, default=0)
    size = max(across * box[0], 0.075 * len(graph.facts), 4.4), down * box[1] + 0.3
    figure, axes = _canvas(size, (0.25, 0.25, 0.8, 0.7), graph.title, graph.facts)
    axes.set_xlim(-0.08, size[0] / box[0] - 0.08)
    axes.set_ylim(0.5 - down, 0.5 + 0.3 / box[1])
    axes.set_xticks([])
    above = 0.3 / box[1]
    for rank, x, wide in columns:
        axes.add_patch(Rectangle((x - 0.08, 0.5 - down), wide + 0.16, down + above, color="#F4F4F4", lw=0))
        name = f"rank {rank}"
        axes.text(x + wide / 2, 0.5 + above / 2, name, weight="bold", size=9.5, ha="center", va="center", color=_INK)
    letters = min(7.5, 130 / max((len(line) for text in graph.texts for line in text.split("\n")), default=20))
    for kind, text, at in zip(graph.kinds, graph.texts, position, strict=True):
        _draw_node(axes, graph.colours[kind], text, letters, at)
    for pairs, dashed in ((graph.solid, False), (graph.dashed, True)):
        for first, second in pairs:
            _draw_dependency(axes, position[first], position[second], dashed)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, edgecolor=_FAINT, label=kind)
        for kind, colour in graph.colours.items()
        if kind in graph.kinds
    ]
    solid, dashed_name = graph.names
    handles.append(Line2D([], [], color=_INK, lw=1, label=solid))
    if graph.dashed:
        handles.append(Line2D([], [], color=_COLOURS["rrcs"], lw=1, ls="--", label=dashed_name))
    _close(figure, handles, graph.notes)
    return figure


def _arrange(
    ranks: Sequence[int], depths: Sequence[int]
) -> tuple[list[tuple[int, float, int]], list[tuple[float, float]]]:
    """Columns, as (rank, left edge, width), each as wide as its most crowded row; and the place of each node."""
    rows: dict[tuple[int, int], list[int]] = {}
    for i, row in enumerate(zip(ranks, depths, strict=True)):
        rows.setdefault(row, []).append(i)
    widths: dict[int, int] = {}
    for (rank, _), nodes in sorted(rows.items()):
        widths[rank] = max(widths.get(rank, 0), len(nodes))
    columns: list[tuple[int, float, int]] = []
    place = [(0.0, 0.0)] * len(ranks)
    edge = 0.0
    for rank, width in widths.items():
        columns.append((rank, edge, width))
        for (r, depth), nodes in rows.items():
            if r == rank:
                for j, i in enumerate(nodes):
                    place[i] = (edge + (width - len(nodes)) / 2 + j + 0.5, -float(depth))
        edge += width + 0.35
    return columns, place


_NODE = {"input": "#FFFFFF", "copy": "#BBDDF5", "reduce": "#F8D99B"}
_NODE_SIZE = (0.88, 0.5)


def _describe(node: ChunkNode) -> str:
    if node.src is None:
        return f"{node.kind.value} {node.dst}"
    here = "" if node.src.rank == node.dst.rank else f"rank {node.src.rank} "
    return f"{node.kind.value} {node.dst}\n{'with' if node.kind is Kind.REDUCE else 'from'} {here}{node.src}"


def _draw_node(axes: Axes, colour: str, text: str, size: float, at: tuple[float, float]) -> None:
    wide, tall = _NODE_SIZE
    corner = (at[0] - wide / 2 + 0.05, at[1] - tall / 2 + 0.05)
    outline = FancyBboxPatch(
        corner,
        wide - 0.1,
        tall - 0.1,
        boxstyle="round,pad=0.05",
        facecolor=colour,
        edgecolor=_FAINT,
        lw=0.8,
        zorder=3,
    )
    axes.add_patch(outline)
    ink = _INK if colour in _LIGHT or colour in _NODE.values() else "white"
    axes.text(*at, text, size=size, ha="center", va="center", color=ink, zorder=4)


def _draw_dependency(axes: Axes, start: tuple[float, float], end: tuple[float, float], dashed: bool) -> None:
    """From the foot of one node to the head of another; bowed where it passes by other rows."""
    tall = _NODE_SIZE[1]
    skipped = start[1] - end[1] > 1.5
    bow = 0.18 if dashed else -0.12
    shift = 0.12 if dashed else -0.04
    patch = FancyArrowPatch(
        (start[0] + shift, start[1] - tall / 2),
        (end[0] + shift, end[1] + tall / 2 + 0.02),
        connectionstyle=f"arc3,rad={bow if skipped else 0}",
        arrowstyle="-|>",
        mutation_scale=8,
        shrinkA=0,
        shrinkB=0,
        color=_COLOURS["rrcs"] if dashed else _INK,
        lw=0.8,
        ls="--" if dashed else "-",
        alpha=0.75 if dashed else 0.9,
        zorder=2,
    )
    axes.add_patch(patch)


def _trace_first_chunk(dag: ChunkDag) -> list[int]:
    """The nodes that carry chunk 0 of some input, as in the paper's Figure 4."""
    carriers = {(node.dst.rank, node.dst.buffer, node.dst.index) for node in dag.nodes if node.kind is Kind.INPUT}
    found = list(range(dag.collective.size))
    for number, node in dag.operations():
        assert node.src is not None
        moved = False
        for i, j in zip(node.src.indices(), node.dst.indices(), strict=True):
            place = node.dst.rank, node.dst.buffer, j
            if (node.src.rank, node.src.buffer, i) in carriers:
                moved = True
                carriers.add(place)
            elif node.kind is Kind.COPY:
                carriers.discard(place)
        if moved:
            found.append(number)
    return found
