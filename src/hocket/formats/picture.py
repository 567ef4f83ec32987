"""Pictures: the timeline of a schedule, and the two DAGs as the paper draws them in Figure 4.

The same stage gives the same bytes. Ranks that do the same are drawn once where all would not be legible. What does not
fit is left out, and the picture says so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hocket.collectives import whole
from hocket.errors import InvalidArgument, OutOfRange, caller, counted
from hocket.formats.drawing import CHARACTER, FORMATS, LINE, Box, Drawing, Line, Point, Shape, Text
from hocket.ir.chunk_dag import ChunkDag, ChunkNode, Kind, Span
from hocket.ir.instr_dag import OPCODES, InstrDag, opcode
from hocket.ir.messages import transfers
from hocket.ir.schedule import Destination, Schedule, Source, Step
from hocket.ir.text import Stage

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey by the labels.
COLOURS = {
    "send": "#56B4E9",
    "recv": "#0072B2",
    "copy": "#BBBBBB",
    "reduce": "#F0E442",
    "rrc": "#009E73",
    "rcs": "#CC79A7",
    "rrs": "#E69F00",
    "rrcs": "#D55E00",
}
_MEANINGS = {
    "send": "send",
    "recv": "receive, store",
    "copy": "copy on the rank",
    "reduce": "reduce on the rank",
    "rrc": "receive, reduce, store",
    "rcs": "receive, store, send on",
    "rrs": "receive, reduce, send on",
    "rrcs": "receive, reduce, store, send on",
}
GENERAL = "#666666"
_LIGHT = frozenset({"#56B4E9", "#BBBBBB", "#F0E442", "#E69F00", "#CC79A7"})
_INK, _FAINT, _BAND = "#222222", "#777777", "#F4F4F4"

_MAX_LANES = 120
_MAX_TICKS = 256
_MAX_ARROWS = 800
_MAX_NODES = 100

_FONT, _LEGIBLE = 11.0, 7.5
"""Sizes of a label: what is aimed at, and the least that anyone could read."""

_MARGIN, _TOP = 14.0, 58.0
"""Around the picture, and above what is drawn, for the title and a line of facts."""


def draw(stage: Stage, path: Path, ranks: Sequence[int] | None = None) -> None:
    """Write a picture of a stage, of all ranks or of some; the name's ending, one of FORMATS, says in which format.

    Raises InvalidArgument, OutOfRange, MissingPackage for a format that needs a package which is not there, OSError.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgument(f"the name of a picture ends in {', '.join(FORMATS)}, not {path.name!r}", caller())
    _drawing(stage, ranks).save(path)


def svg(stage: Stage, ranks: Sequence[int] | None = None) -> str:
    """The same as the text of an SVG."""
    return _drawing(stage, ranks).svg()


def _drawing(stage: Stage, ranks: Sequence[int] | None) -> Drawing:
    size = stage.collective.size
    for rank in ranks or ():
        number = whole(rank)
        if number is None:
            raise InvalidArgument(f"ranks are whole numbers, not {rank!r}", caller())
        if not 0 <= number < size:
            raise OutOfRange("rank", number, 0, size, caller())
    if isinstance(stage, Schedule):
        return _draw_schedule(stage, ranks)
    return _draw_graph(_of_chunks(stage, ranks) if isinstance(stage, ChunkDag) else _of_instructions(stage, ranks))


def ranges(numbers: Sequence[int]) -> str:
    """``1 to 4, 7``."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


@dataclass(frozen=True, slots=True)
class _Key:
    """An entry of the legend: a colour, or a line that looks like ``sample``."""

    text: str
    colour: str | None = None
    sample: Line | None = None


def meaning(name: str) -> str:
    """What an opcode, or the shape of an instruction that has none, stands for."""
    if name in _MEANINGS:
        return name if _MEANINGS[name] == name else f"{name}: {_MEANINGS[name]}"
    parts = zip(("receive", "read", "send", "store"), re.findall(r"\d+", name), strict=True)
    return f"{name}: {', '.join(f'{verb} {n}' for verb, n in parts if n != '0')}"


def ink(colour: str) -> str:
    """What is legible on it."""
    return _INK if colour in _LIGHT else "white"


def ordered(opcodes: Iterable[str]) -> list[str]:
    """The paper's first, then shapes of instructions that have no name."""
    found = set(opcodes)
    return [name for name in OPCODES.values() if name in found] + sorted(found - set(OPCODES.values()))


@dataclass
class _Sheet:
    """A picture as it grows: a title and a line of facts, room for what is drawn, the legend, what was left out."""

    title: str
    facts: str
    wide: float
    shapes: list[Shape] = field(default_factory=list)

    def close(self, bottom: float, keys: Sequence[_Key], notes: Sequence[str]) -> Drawing:
        """The legend from ``bottom`` on, in rows that fit, and the notes below it."""
        head: list[Shape] = [
            Text(_MARGIN, 20, self.title, 17, _INK, bold=True),
            Text(_MARGIN, 42, self.facts, 12, _FAINT),
        ]
        x, y = _MARGIN, bottom + 8
        for key in keys:
            across = 30 + CHARACTER * 12 * len(key.text)
            if x > _MARGIN and x + across > self.wide:
                x, y = _MARGIN, y + 19
            if key.colour is not None:
                head.append(Box(x, y - 6, 16, 12, key.colour, edge=_FAINT))
            elif key.sample is not None:
                head.append(replace(key.sample, start=(x, y), end=(x + 16, y)))
            head.append(Text(x + 22, y, key.text, 12, _INK))
            x += across
        for note in notes:
            for line in textwrap.wrap(note, max(40, int((self.wide - 2 * _MARGIN) / (CHARACTER * 11)))):
                y += 19
                head.append(Text(_MARGIN, y, line, 11, _FAINT, italic=True))
        return Drawing(self.title, self.wide, y + 16, [*self.shapes, *head])


# ---------------------------------------------------------------------------------------------------------------
# Schedule


Lane = tuple[int, int]
"""A thread block: (rank, number)."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A step where it is drawn. ``start`` is its logical time; None if it is never ready."""

    lane: Lane
    step: Step
    start: int | None


class _Timeline:
    """Steps at their logical times: one after the longest chain of steps they wait for."""

    def __init__(self, schedule: Schedule) -> None:
        steps = list(schedule.steps())
        number = {(r, b, s): i for i, (r, b, s, _) in enumerate(steps)}
        self.waits: list[tuple[int, int]] = []
        chains: list[tuple[int, int]] = []
        for i, (r, _, s, step) in enumerate(steps):
            if s:
                chains.append((i - 1, i))
            self.waits += [(number[r, wait.thread_block, wait.step], i) for wait in step.waits]
        self.transfers = transfers(steps)
        start = _longest_paths(len(steps), [*chains, *self.waits, *self.transfers])
        self.steps = [_Placed((r, b), step, start[i]) for i, (r, b, _, step) in enumerate(steps)]
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


class _Renumbered:
    """Operands of one rank, its peers and the chunks of each buffer numbered as they first occur."""

    def __init__(self, rank: int) -> None:
        self._known: dict[object, int] = {rank: 0}

    def _number(self, thing: object) -> int:
        return self._known.setdefault(thing, len(self._known))

    def form(self, operand: Source | Destination) -> tuple[object, ...]:
        if isinstance(operand, Span):
            chunks = [self._number((operand.rank, operand.buffer, i)) for i in operand.indices()]
            return operand.buffer, *chunks
        at = None if operand.at is None else self.form(operand.at)
        return type(operand), self._number(operand.peer), operand.channel, at


def _alike(timeline: _Timeline) -> list[list[int]]:
    """Ranks by what they do: together if they take the same steps at the same times, but for the numbers of peers and
    chunks."""
    said: dict[int, list[object]] = {rank: [] for rank, _ in timeline.lanes}
    numbers = {rank: _Renumbered(rank) for rank in said}
    for placed in timeline.steps:
        (rank, block), step = placed.lane, placed.step
        form = numbers[rank].form
        said[rank].append((block, placed.start, *map(form, step.srcs), "to", *map(form, step.dsts), *step.waits))
    found: dict[tuple[object, ...], list[int]] = {}
    for rank, steps in said.items():
        found.setdefault(tuple(steps), []).append(rank)
    return list(found.values())


_PART = (0.8, 0.82)
"""A step's part of its unit of time and of its lane; what is left of the time is for arrows."""

_GAP = 0.5
"""Between the lanes of two ranks, in lanes."""

_WIDE, _TALL = 3200.0, 1800.0
"""Pixels that time and lanes may take together."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which lanes and times are drawn, and where. ``wide`` is a unit of time and ``tall`` a lane."""

    middle: dict[Lane, float]
    names: dict[int, str]
    labels: dict[Lane, str]
    ticks: int
    wide: float
    tall: float
    left: float
    across: float
    legible: bool
    """Whether there is room for every label in full, side by side."""

    @classmethod
    def of(cls, schedule: Schedule, timeline: _Timeline, ranks: dict[int, str], facts: str) -> _Layout:
        """Of the given ranks, under the names given."""
        all_lanes = [lane for lane in timeline.lanes if lane[0] in ranks]
        lanes = all_lanes
        if len(lanes) > _MAX_LANES:  # whole ranks, or a part of the first
            head = lanes[: _MAX_LANES + 1]
            lanes = [lane for lane in head if lane[0] < head[-1][0]] or head[:_MAX_LANES]
        drawn = frozenset(lanes)
        words = [_label(placed.step) for placed in timeline.steps if placed.lane in drawn]
        longest = max((max(map(len, pair)) for pair in words), default=1)
        ticks = min(timeline.ticks, _MAX_TICKS)
        wide = min(CHARACTER * _FONT * longest / _PART[0], _WIDE / ticks)
        tall = min(40.0, _TALL / max(1, len(lanes)))
        level = wide * _PART[0] >= CHARACTER * _LEGIBLE * longest
        if not level:  # labels that run upwards need as much height, and no more width than a line of text
            upright = (CHARACTER * _FONT * max((len(" ".join(pair)) for pair in words), default=1)) / _PART[1]
            tall = max(tall, min(upright, _TALL / max(1, len(lanes))))
        labels = {lane: lane_label(schedule, lane) for lane in lanes}
        names = {rank: name for rank, name in ranks.items() if any(lane[0] == rank for lane in lanes)}
        left = _MARGIN + 20
        left += CHARACTER * (
            12 * max(map(len, names.values()), default=0) + 10 * max(map(len, labels.values()), default=0)
        )
        across = max(ticks * wide, CHARACTER * 12 * len(facts) - left)
        wide = min(max(wide, 110.0), across / ticks)
        order = {rank: i for i, rank in enumerate(names)}
        return cls(
            middle={lane: _TOP + (i + 0.5 + _GAP * order[lane[0]]) * tall for i, lane in enumerate(lanes)},
            names=names,
            labels=labels,
            ticks=ticks,
            wide=wide,
            tall=tall,
            left=left,
            across=across,
            legible=level and tall * _PART[1] >= 2 * LINE * _LEGIBLE and len(lanes) == len(all_lanes),
        )

    def corner(self, lane: Lane, start: int) -> Point:
        """The upper left of a step's box."""
        return self.left + start * self.wide, self.middle[lane] - self.tall * _PART[1] / 2

    @property
    def box(self) -> tuple[float, float]:
        return self.wide * _PART[0], self.tall * _PART[1]


def facts(schedule: Schedule) -> str:
    """What it implements and is made of, in one line."""
    blocks = [block for rank in schedule.ranks for block in rank.thread_blocks]
    return " · ".join(
        [
            str(schedule.collective),
            f"protocol {schedule.protocol}",
            f"{schedule.slots} or more slots" if schedule.slots > 1 else "any number of slots",
            f"{counted(len(blocks), 'thread block')} on {counted(len(schedule.ranks), 'rank')}",
            counted(len({end.channel for block in blocks for end in block.sends}), "channel"),
            counted(sum(len(block.steps) for block in blocks), "step"),
        ]
    )


def _draw_schedule(schedule: Schedule, ranks: Sequence[int] | None) -> Drawing:
    timeline = _Timeline(schedule)
    said = facts(schedule)
    wanted = list(range(len(schedule.ranks))) if ranks is None else sorted(set(ranks))
    layout = _Layout.of(schedule, timeline, {rank: f"rank {rank}" for rank in wanted}, said)
    notes = [] if ranks is None else [f"Only rank{'s' * (len(wanted) != 1)} {ranges(wanted)}."]
    if ranks is None and not layout.legible:
        groups = _alike(timeline)
        if len(groups) < len(schedule.ranks):
            folded = {g[0]: f"rank {g[0]}" + (f" \u00d7{len(g)}" if len(g) > 1 else "") for g in groups}
            layout = _Layout.of(schedule, timeline, folded, said)
            wanted = list(folded)
            notes += _folded(groups)
    sheet = _Sheet(schedule.name, said, layout.left + layout.across + _MARGIN)
    _draw_lanes(sheet, layout)
    shown = {
        i: layout.corner(placed.lane, placed.start)
        for i, placed in enumerate(timeline.steps)
        if placed.start is not None and placed.start < layout.ticks and placed.lane in layout.middle
    }
    waits, transfers = (_arrows(layout, shown, pairs) for pairs in (timeline.waits, timeline.transfers))
    arrows = len(waits) + len(transfers) <= _MAX_ARROWS
    faint = 0.85 if len(waits) + len(transfers) < 150 else 0.5 if arrows else 0.3
    sheet.shapes += [Line(*pair, _FAINT, 0.8, (2, 2), faint, arrows) for pair in waits]
    unlabelled = _draw_steps(sheet, layout, {i: timeline.steps[i].step for i in shown}, shown)
    sheet.shapes += [Line(*pair, _INK, 0.8, None, faint, arrows) for pair in transfers]
    names = ordered(timeline.steps[i].step.opcode for i in shown)
    keys = [_Key(meaning(name), COLOURS.get(name, GENERAL)) for name in names]
    keys += [_Key("transfer", sample=Line((0, 0), (0, 0), _INK, 0.8, arrow=arrows))] if transfers else []
    keys += [_Key("wait", sample=Line((0, 0), (0, 0), _FAINT, 0.8, (2, 2), arrow=arrows))] if waits else []
    left_out = _left_out(timeline, layout, wanted) + unlabelled
    notes += [f"Left out: {'; '.join(left_out)}."] if left_out else []
    return sheet.close(_draw_times(sheet, layout), keys, notes)


def _folded(groups: Sequence[Sequence[int]]) -> list[str]:
    """A note: which ranks are not drawn because another one is."""
    same = [f"{ranges(group[1:])} as rank {group[0]}" for group in groups if len(group) > 1]
    more = f"; and {len(same) - 6} more such groups" if len(same) > 6 else ""
    head = "Drawn once: ranks that take the same steps at the same times, but for the numbers of peers and chunks"
    return [f"{head}: {'; '.join(same[:6])}{more}."] if same else []


def _left_out(timeline: _Timeline, layout: _Layout, ranks: Sequence[int]) -> list[str]:
    """What a picture of these ranks does not show, one phrase each."""
    notes = []
    lanes = sum(lane[0] in ranks for lane in timeline.lanes)
    if len(layout.middle) < lanes:
        missing = [rank for rank in ranks if rank not in layout.names]
        rest = f"{len(layout.middle)} of {lanes} thread blocks are drawn"
        notes.append(f"ranks {ranges(missing)} ({rest})" if missing else rest)
    if layout.ticks < timeline.ticks:
        notes.append(f"logical times from {layout.ticks} to {timeline.ticks - 1}")
    stuck = sum(placed.start is None for placed in timeline.steps)
    return notes + ([f"{counted(stuck, 'step')} that can never run"] if stuck else [])


def lane_label(schedule: Schedule, lane: Lane) -> str:
    """A thread block, the peers of its connections, or how many they are, and their channels if not just the first."""
    block = schedule.ranks[lane[0]].thread_blocks[lane[1]]
    words = [f"tb {lane[1]}"]
    for arrow, peers in (("\u2190", [e.peer for e in block.receives]), ("\u2192", [e.peer for e in block.sends])):
        words += [f"{arrow}{peer}" for peer in peers] if len(peers) <= 4 else [f"{arrow}{len(peers)} ranks"]
    ends = sorted({end.channel for end in block.receives} | {end.channel for end in block.sends})
    return " ".join(words + [f"ch {','.join(map(str, ends))}"] * (ends not in ([], [0])))


def _draw_lanes(sheet: _Sheet, layout: _Layout) -> None:
    """A band for each rank, and the name of each thread block in the left margin."""
    size = min(10.0, layout.tall / LINE)
    for rank, name in layout.names.items():
        ys = [y for lane, y in layout.middle.items() if lane[0] == rank]
        top, bottom = min(ys) - 0.6 * layout.tall, max(ys) + 0.6 * layout.tall
        sheet.shapes.append(Box(_MARGIN, top, layout.left + layout.across - _MARGIN, bottom - top, _BAND))
        sheet.shapes.append(Text(_MARGIN + 6, min(ys), name, min(12.0, size + 2), _INK, bold=True))
    for lane, label in layout.labels.items():
        sheet.shapes.append(Text(layout.left - 8, layout.middle[lane], label, size, _FAINT, "end"))


def _draw_times(sheet: _Sheet, layout: _Layout) -> float:
    """The axis below the lanes; returns where it ends."""
    y = max(layout.middle.values(), default=_TOP) + 0.6 * layout.tall + 10
    every = next(n for n in (1, 2, 5, 10, 20) if n * layout.wide >= 24 or n == 20)
    for tick in range(0, layout.ticks, every):
        x = layout.left + (tick + _PART[0] / 2) * layout.wide
        sheet.shapes.append(Text(x, y, str(tick), 10, _FAINT, "middle"))
    sheet.shapes.append(Text(layout.left, y + 15, "logical time", 10, _FAINT))
    return y + 24


def _draw_steps(sheet: _Sheet, layout: _Layout, steps: dict[int, Step], corners: dict[int, Point]) -> list[str]:
    """Boxes, each labelled as far as there is room for legible text. Returns what is missing, if anything."""
    wide, tall = layout.box
    bare = 0
    for i, (x, y) in corners.items():
        colour = COLOURS.get(steps[i].opcode, GENERAL)
        text = ink(colour)
        sheet.shapes.append(Box(x, y, wide, tall, colour))
        name, place = _label(steps[i])
        middle = x + wide / 2, y + tall / 2
        if size := _fitting((name, place), wide, tall):
            half = LINE * size / 2
            sheet.shapes.append(Text(middle[0], middle[1] - half, name, size, text, "middle"))
            sheet.shapes.append(Text(middle[0], middle[1] + half, place, size, text, "middle"))
        elif size := _fitting((f"{name} {place}",), tall, wide):
            sheet.shapes.append(Text(*middle, f"{name} {place}", size, text, "middle", turned=True))
        else:
            bare += 1
            if size := _fitting((name,), wide, tall):
                sheet.shapes.append(Text(*middle, name, size, text, "middle"))
            elif size := _fitting((name,), tall, wide):
                sheet.shapes.append(Text(*middle, name, size, text, "middle", turned=True))
    return [f"what {counted(bare, 'step')} work{'s' * (bare == 1)} on, for lack of room"] if bare else []


def _fitting(lines: Sequence[str], along: float, across: float) -> float | None:
    """The size in which lines of text fit into so much room; None if none could read it."""
    longest = max(1, *map(len, lines))
    size = min(_FONT, along / (CHARACTER * longest), across / (LINE * len(lines)))
    return size if size >= _LEGIBLE else None


def _label(step: Step) -> tuple[str, str]:
    """What a step does, and the place it leaves its result in or takes it from."""
    return step.opcode, next((str(o) for o in (*step.dsts, *step.srcs) if isinstance(o, Span)), "")


def _arrows(layout: _Layout, corners: dict[int, Point], pairs: Iterable[tuple[int, int]]) -> list[tuple[Point, Point]]:
    """From the end of one box to the beginning of another, for pairs of which both are drawn."""
    wide, tall = layout.box
    return [
        ((corners[i][0] + wide, corners[i][1] + tall / 2), (corners[j][0], corners[j][1] + tall / 2))
        for i, j in pairs
        if i in corners and j in corners
    ]


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
    left_out: list[str]


def _of_chunks(dag: ChunkDag, ranks: Sequence[int] | None) -> _Graph:
    left_out = []
    numbers: list[int] = list(range(len(dag.nodes)))
    if ranks is not None:
        numbers = [n for n in numbers if not _touched(dag.nodes[n]).isdisjoint(ranks)]
        left_out += [f"what does not touch rank{'s' * (len(ranks) != 1)} {ranges(sorted(ranks))}"]
    elif len(numbers) > _MAX_NODES // 5:
        numbers = _trace_first_chunk(dag)
        rest = len(dag.nodes) - len(numbers)
        left_out += [f"{counted(rest, 'node')} that do not carry chunk 0 of an input"] if rest else []
    if len(numbers) > _MAX_NODES:
        left_out.append(f"{counted(len(numbers) - _MAX_NODES, 'later one')} that do")
        numbers = numbers[:_MAX_NODES]
    place = {number: i for i, number in enumerate(numbers)}
    operations = len(dag.nodes) - dag.collective.size
    nodes = [dag.nodes[number] for number in numbers]
    return _Graph(
        dag.name,
        f"{dag.collective} · Chunk DAG · {counted(operations, 'operation')} on {counted(dag.collective.size, 'rank')}",
        [node.dst.rank for node in nodes],
        [_describe(node) for node in nodes],
        [node.kind.value for node in nodes],
        _NODE,
        [(place[d], place[n]) for n in numbers for d in dag.nodes[n].true if d in place],
        [(place[d], place[n]) for n in numbers for d in dag.nodes[n].false if d in place],
        ("true dependency", "false dependency"),
        left_out,
    )


def _touched(node: ChunkNode) -> set[int]:
    return {node.dst.rank} | ({node.src.rank} if node.src is not None else set())


def _of_instructions(dag: InstrDag, ranks: Sequence[int] | None) -> _Graph:
    left_out = []
    numbers = [i for i, instr in enumerate(dag.instrs) if ranks is None or instr.rank in ranks]
    if ranks is not None:
        left_out += [f"what is not on rank{'s' * (len(ranks) != 1)} {ranges(sorted(ranks))}"]
    if len(numbers) > _MAX_NODES:
        left_out += [counted(len(numbers) - _MAX_NODES, "later instruction")]
        numbers = numbers[:_MAX_NODES]
    place = {number: i for i, number in enumerate(numbers)}
    instrs = [dag.instrs[number] for number in numbers]
    sender = {edge: i for i, instr in enumerate(instrs) for edge in instr.departures}
    names = [opcode(instr.shape) for instr in instrs]
    texts = []
    for name, instr in zip(names, instrs, strict=True):
        places = [str(operand) for operand in (*instr.dsts, *instr.srcs) if isinstance(operand, Span)]
        texts.append("\n".join([name, *dict.fromkeys(places)]))
    return _Graph(
        dag.name,
        f"{dag.collective} · Instruction DAG · {counted(len(dag.instrs), 'instruction')} "
        f"on {counted(dag.collective.size, 'rank')}",
        [instr.rank for instr in instrs],
        texts,
        names,
        {name: COLOURS.get(name, GENERAL) for name in (*COLOURS, *names)},
        [(sender[edge], i) for i, instr in enumerate(instrs) for edge in instr.arrivals if edge in sender],
        [(place[before], i) for number, i in place.items() for before in dag.after[number] if before in place],
        ("communication edge", "processing edge"),
        left_out,
    )


_ROOM = (140.0, 76.0)
"""From one column, and one row, to the next."""


def _draw_graph(graph: _Graph) -> Drawing:
    depth = [d or 0 for d in _longest_paths(len(graph.texts), [*graph.solid, *graph.dashed])]
    columns, position = _arrange(graph.ranks, depth)
    across = (sum(columns[-1][1:]) if columns else 1.0) * _ROOM[0]
    down = (1 + max(depth, default=0)) * _ROOM[1] + 30
    sheet = _Sheet(graph.title, graph.facts, 2 * _MARGIN + max(across, CHARACTER * 12 * len(graph.facts), 420))
    for rank, x, wide in columns:
        left, room = _MARGIN + x * _ROOM[0], wide * _ROOM[0]
        sheet.shapes.append(Box(left - 8, _TOP, room + 16, down, _BAND))
        sheet.shapes.append(Text(left + room / 2, _TOP + 15, f"rank {rank}", 13, _INK, "middle", bold=True))
    places = [(_MARGIN + x * _ROOM[0], _TOP + 30 + (0.5 - y) * _ROOM[1]) for x, y in position]
    for pairs, dashed in ((graph.solid, False), (graph.dashed, True)):
        sheet.shapes += [_dependency(places[first], places[second], dashed) for first, second in pairs]
    for kind, text, at in zip(graph.kinds, graph.texts, places, strict=True):
        _draw_node(sheet, graph.colours[kind], text.split("\n"), at)
    solid, dashed_name = graph.names
    keys = [
        _Key(meaning(kind), colour) if graph.colours is not _NODE else _Key(kind, colour)
        for kind, colour in graph.colours.items()
        if kind in graph.kinds
    ]
    keys += [_Key(solid, sample=_dependency((0, 0), (0, 0), False))]
    keys += [_Key(dashed_name, sample=_dependency((0, 0), (0, 0), True))] if graph.dashed else []
    return sheet.close(_TOP + down + 10, keys, [f"Left out: {'; '.join(graph.left_out)}."] if graph.left_out else [])


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
_NODE_SIZE = (124.0, 40.0)


def _describe(node: ChunkNode) -> str:
    if node.src is None:
        return f"{node.kind.value} {node.dst}"
    here = "" if node.src.rank == node.dst.rank else f"rank {node.src.rank} "
    return f"{node.kind.value} {node.dst}\n{'with' if node.kind is Kind.REDUCE else 'from'} {here}{node.src}"


def _draw_node(sheet: _Sheet, colour: str, lines: Sequence[str], at: Point) -> None:
    wide, tall = _NODE_SIZE
    sheet.shapes.append(Box(at[0] - wide / 2, at[1] - tall / 2, wide, tall, colour, edge=_FAINT, round=6))
    above = _INK if colour in _NODE.values() else ink(colour)
    size = min(_FONT, (wide - 6) / (CHARACTER * max(map(len, lines))), (tall - 2) / (LINE * len(lines)))
    for i, line in enumerate(lines):
        y = at[1] + (i - (len(lines) - 1) / 2) * LINE * size
        sheet.shapes.append(Text(at[0], y, line, size, above, "middle"))


def _dependency(start: Point, end: Point, dashed: bool) -> Line:
    """From the foot of one node to the head of another; bowed where it passes by other rows."""
    shift = 15.0 if dashed else -5.0
    foot, head = (start[0] + shift, start[1] + _NODE_SIZE[1] / 2), (end[0] + shift, end[1] - _NODE_SIZE[1] / 2)
    via = None
    if head[1] - foot[1] > _ROOM[1]:
        aside = (0.3 if dashed else -0.25) * (head[1] - foot[1])
        via = (foot[0] + head[0]) / 2 + aside, (foot[1] + head[1]) / 2
    colour, dash = (COLOURS["rrcs"], (4.0, 3.0)) if dashed else (_INK, None)
    return Line(foot, head, colour, 1, dash, 0.75 if dashed else 0.9, arrow=True, via=via)


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
