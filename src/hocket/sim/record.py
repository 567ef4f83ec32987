"""What a run leaves behind for its timeline and its critical path."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hocket.sim.links import Flow


class Cause(NamedTuple):
    """What a step waited for last: the launch, or a step of a tile that came before it on its block (order), signalled
    it (wait), sent it a message, or freed its slot."""

    kind: Literal["launch", "order", "wait", "message", "slot"]
    step: int = -1
    tile: int = -1


class Record:
    """Times by step and tile: its begin, when its bytes began to move, its end; and all flows.

    ``late``: where the tail of a message ended it, the step that sent that, and when it was seen.
    """

    def __init__(self) -> None:
        self.begins: dict[tuple[int, int], float] = {}
        self.starts: dict[tuple[int, int], float] = {}
        self.ends: dict[tuple[int, int], float] = {}
        self.causes: dict[tuple[int, int], Cause] = {}
        self.late: dict[tuple[int, int], tuple[int, float]] = {}
        self.flows: list[Flow] = []

    def begin(self, step: int, tile: int, now: float, starts: float, cause: Cause | None) -> None:
        self.begins[step, tile] = now
        self.starts[step, tile] = starts
        self.causes[step, tile] = cause or Cause("launch")

    def end(self, step: int, tile: int, now: float) -> None:
        self.ends[step, tile] = now
