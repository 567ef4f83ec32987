"""The page of timelines: one HTML file that opens offline, with lanes for ranks and thread blocks on one axis of time.

What it looks like is in timeline_page.html, what it does in timeline_page.js; here is the data that they show.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from hocket.errors import Where, printable
from hocket.formats.picture import COLOURS, GENERAL, facts, ink, lane_label, meaning, ordered
from hocket.ir.schedule import Schedule
from hocket.timeline import Timeline

Json = dict[str, object]

_FRAME = 620
"""Height of the page in a notebook, in pixels."""


def page(timelines: Sequence[Timeline]) -> str:
    """The text of a page of at least one timeline, the first at the top."""
    schedules = [timeline.schedule for timeline in timelines]
    template = Template(_read("timeline_page.html"))
    return template.substitute(
        title=escape(printable(" / ".join(dict.fromkeys(schedule.name for schedule in schedules)))),
        facts=escape(printable(" / ".join(dict.fromkeys(map(facts, schedules))))),
        # In a script, "</" would end it, and "<!--" begin another.
        data=json.dumps(content(timelines), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        script=_read("timeline_page.js").rstrip("\n"),
    )


def frame(timelines: Sequence[Timeline]) -> str:
    """The page as part of another one, apart from its styles and scripts."""
    style = f"width: 100%; height: {_FRAME}px; border: 1px solid #888"
    text = escape(page(timelines))
    return f'<iframe sandbox="allow-scripts" title="timeline" style="{style}" srcdoc="{text}"></iframe>'


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def content(timelines: Sequence[Timeline]) -> Json:
    """What the page shows, in numbers and words.

    ``opcodes`` and ``lines`` (place and text of lines of the program) are lists that steps refer to by number. Each
    of ``schedules`` has lanes, and each lane steps. Each of ``timelines`` refers to its schedule; its ``spans`` and
    ``messages`` are columns, with numbers of lanes, of spans, and of ``names`` of links. Times are rounded to
    nanoseconds.
    """
    schedules: list[Schedule] = []
    for timeline in timelines:
        if timeline.schedule not in schedules:
            schedules.append(timeline.schedule)
    opcodes = ordered(step.opcode for schedule in schedules for _, _, _, step in schedule.steps())
    colours = {name: COLOURS.get(name, GENERAL) for name in opcodes}
    lines = _Lines()
    return {
        "opcodes": [
            {"name": name, "meaning": meaning(name), "colour": colour, "ink": ink(colour)}
            for name, colour in colours.items()
        ],
        "schedules": [{"lanes": _lanes(schedule, opcodes, lines)} for schedule in schedules],
        "lines": lines.found,
        "timelines": [_timeline(timeline, schedules.index(timeline.schedule)) for timeline in timelines],
    }


class _Lines:
    """Lines of programs, each once."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._numbers: dict[Where, int] = {}

    def number(self, where: Where) -> int:
        """That of a place. Equal places, of which a program has few, are resolved once."""
        if where not in self._numbers:
            at = where.resolve()
            entry = str(at), printable((at.source or "").strip())
            if entry not in self.found:
                self.found.append(entry)
            self._numbers[where] = self.found.index(entry)
        return self._numbers[where]


def _lanes(schedule: Schedule, opcodes: Sequence[str], lines: _Lines) -> list[Json]:
    number = {name: i for i, name in enumerate(opcodes)}
    return [
        {
            "rank": r,
            "block": b,
            "label": lane_label(schedule, (r, b)),
            "steps": [
                {
                    "opcode": number[step.opcode],
                    "text": str(step),
                    "moves": step.moves,
                    "waits": [(wait.thread_block, wait.step) for wait in step.waits],
                    "where": list(dict.fromkeys(map(lines.number, step.where))),
                }
                for step in block.steps
            ],
        }
        for r, rank in enumerate(schedule.ranks)
        for b, block in enumerate(rank.thread_blocks)
    ]


def _timeline(timeline: Timeline, schedule: int) -> Json:
    ranks = enumerate(timeline.schedule.ranks)
    lanes = [(r, b) for r, rank in ranks for b in range(len(rank.thread_blocks))]
    lane = {at: number for number, at in enumerate(lanes)}
    names = {name: i for i, name in enumerate(dict.fromkeys(n for message in timeline.messages for n in message.links))}
    busiest = sorted(timeline.links, key=lambda use: -sum((end - begin) * share for begin, end, share in use.intervals))
    spans, messages = timeline.spans, timeline.messages
    return {
        "title": timeline.title,
        "total": _us(timeline.total),
        "schedule": schedule,
        "spans": {
            "lane": [lane[span.rank, span.thread_block] for span in spans],
            "step": [span.step for span in spans],
            "tile": [span.tile for span in spans],
            "begin": [_us(span.begin) for span in spans],
            "end": [_us(span.end) for span in spans],
            "waited": [_us(span.waited) for span in spans],
        },
        "messages": {
            "sent": [message.sent for message in messages],
            "received": [message.received for message in messages],
            "bytes": [message.bytes for message in messages],
            "over": [[names[name] for name in message.links] for message in messages],
        },
        "names": list(names),
        "links": [
            {"name": use.link, "use": [(_us(begin), _us(end), round(share, 4)) for begin, end, share in use.intervals]}
            for use in busiest
        ],
    }


def _us(time: float) -> float:
    return round(time, 3)
