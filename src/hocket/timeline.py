"""Timeline: what each step of a call did when, simulated or measured, and how much of each link was used."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Span:
    """A step of one tile on its thread block. Times are microseconds from the start of the call.

    ``begin``: its waits, its slot and its message were there; ``waited`` is how long its thread block had stood still.
    """

    rank: int
    thread_block: int
    step: int
    tile: int
    begin: float
    end: float
    waited: float


@dataclass(frozen=True, slots=True)
class Message:
    """A transfer: ``sent`` and ``received`` are indices into ``Timeline.spans``; ``links`` where they are known."""

    sent: int
    received: int
    bytes: int
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How much of a link is used when: (begin, end, share of its bandwidth), in order."""

    link: str
    intervals: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """``total``: microseconds from the start of the call to the end of its last step."""

    title: str
    schedule: Schedule
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]
    links: tuple[LinkUse, ...]
    total: float
