"""Events in the JSON of Chrome and Perfetto: how steps, calls and messages are written to a file, and read again.

A file is a JSON array with an event on each line. A process is a rank. Each of its communicators has ``TRACKS`` tracks:
the first is that of its calls, the others are those of its thread blocks. Times are nanoseconds here, microseconds with
three digits after the point there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hocket.ir.schedule import Rank, Receive, Send

TRACKS = 1 << 16
OPEN, NEXT, CLOSE = b"[\n", b",\n", b"\n]\n"
"""Before the first event, between two, after the last."""


def head(phase: str, process: int, track: int, at: int) -> str:
    """How an event begins; what follows is a comma and its other fields, or a brace."""
    return f'{{"ph":"{phase}","pid":{process},"tid":{track},"ts":{us(at)}'


def us(nanoseconds: int) -> str:
    """Microseconds, exactly."""
    sign = "-" * (nanoseconds < 0)
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03}"


def names(process: int, name: str, order: int, first: int, tracks: Sequence[str]) -> Iterator[str]:
    """How a process and its tracks from ``first`` on are called, and their order."""
    yield f'{head("M", process, first, 0)},"name":"process_name","args":{{"name":{json.dumps(name)}}}}}'
    yield f'{head("M", process, first, 0)},"name":"process_sort_index","args":{{"sort_index":{order}}}}}'
    for number, track in enumerate(tracks):
        at = head("M", process, first + number, 0)
        yield f'{at},"name":"thread_name","args":{{"name":{json.dumps(track)}}}}}'
        yield f'{at},"name":"thread_sort_index","args":{{"sort_index":{number}}}}}'


def describe(part: Rank, block: int, number: int) -> str:
    """What is the same of a step whenever it runs: category, name and the first arguments, up to those that are not."""
    step = part.thread_blocks[block].steps[number]
    about = {
        "step": step_text(part, block, number),
        "line": ", ".join(dict.fromkeys(str(where) for where in step.where)),
        "from": [source.peer for source in step.srcs if isinstance(source, Receive)],
        "to": [target.peer for target in step.dsts if isinstance(target, Send)],
        "moves": step.moves,
    }
    name = step.opcode if step.moves else f"{step.opcode} (moves nothing)"
    return f'"cat":"step","name":{json.dumps(name)},"args":{json.dumps(about)[:-1]},'


def step_text(part: Rank, block: int, number: int) -> str:
    """A step, and its place on its rank: ``0.3 rrc <3.0 in[2] -> in[2]``."""
    return f"{block}.{number} {part.thread_blocks[block].steps[number]}"


def arrow(phase: str, process: int, track: int, at: int, number: int) -> str:
    """The beginning, phase ``s``, or the end, ``f``, of a message, in the step that is on the track at that time."""
    return f'{head(phase, process, track, at)},"bp":"e","cat":"message","name":"message","id":{number}}}'


# ---------------------------------------------------------------------------------------------------------------
# Reading

MOST_CALLS = 1 << 15
MOST_STEPS = 1 << 16
"""What a communicator records, of steps on each thread; 2.6 and 3.1 MB."""
FOR_MESSAGES = "for messages"
"""What the ranks of a call wait for whose steps wait for each message."""


class Arguments(Struct, frozen=True, gc=False):
    """Those of a call, or of a step. ``communicator`` is one number on all its ranks, ``ranks`` how many these are."""

    call: int = -1
    communicator: int = -1
    schedule: str = ""
    rank: int = -1
    ranks: int = 0
    waits: str = ""
    bytes: int = 0
    tiles: int = 0
    fault: str = ""
    step: str = ""
    tile: int = 0
    thread: int = 0


class Event(Struct, frozen=True, gc=False):
    """A slice of a track."""

    pid: int
    tid: int
    ts: float
    dur: float
    args: Arguments


def calls(file: Path) -> Iterator[Event]:
    """The calls of schedules, each once for each rank, as the file has them. Raises OSError, msgspec.DecodeError."""
    for event in _slices(file, '"cat":"call"', '"schedule":'):
        if event.tid % TRACKS == 0:
            yield event


def steps(file: Path, call: int) -> Iterator[Event]:
    """The steps of the calls of this number, of all communicators. Raises OSError, msgspec.DecodeError."""
    return _slices(file, '"cat":"step"', f'"call":{call},')


def _slices(file: Path, *parts: str) -> Iterator[Event]:
    """Of the lines, those that have all of these parts; the others, often far more, are not decoded."""
    decode = msgspec.json.Decoder(Event).decode
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if all(part in line for part in parts):
                yield decode(line.rstrip(",\n"))
