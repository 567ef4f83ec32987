"""Two process groups of one job, Gloo's and hocket's, that take turns; for scripts that torchrun starts.

A round is a window of calls on each: both in one order, and in the other in the next round. A figure is the median over
rounds of what a call took rank 0, and a ratio that of the two windows of a round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch
import torch.distributed as dist
from machine import describe, title

import hocket.torch  # noqa: F401 (it names the backend)

Body = Callable[[dist.ProcessGroup], object]


@dataclass(frozen=True)
class Paired:
    """Microseconds of a call on Gloo and on hocket, and how often hocket's fits into Gloo's, with its quartiles."""

    gloo: float
    hocket: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.gloo:10.1f}{self.hocket:10.1f}{self.ratio:9.2f} [{self.low:.2f}, {self.high:.2f}]"


class Groups:
    """The two groups of all ranks."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.pair = dist.new_group(backend="gloo"), dist.new_group(backend="hocket")
        if self.rank == 0:
            machine = describe() | {"torch": torch.__version__, "ranks": self.size, "threads": torch.get_num_threads()}
            print(title(machine), flush=True)

    def compare(self, body: Body, *, seconds: float, rounds: int) -> Paired:
        """Both, in windows of as many calls as take so long, the same number on all ranks."""
        calls = [self._calls(group, body, seconds) for group in self.pair]
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                took[which].append(self.window(self.pair[which], body, calls[which]))
        ratios = [gloo / ours for gloo, ours in zip(*took, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        return Paired(median(took[0]), median(took[1]), median(ratios), low, high)

    def _calls(self, group: dist.ProcessGroup, body: Body, seconds: float) -> int:
        warm = self.window(group, body, 3)
        found = [min(10_000, max(3, int(seconds / (1e-6 * min(warm, self.window(group, body, 5))))))]
        dist.broadcast_object_list(found, 0)
        return found[0]

    def window(self, group: dist.ProcessGroup, body: Body, calls: int) -> float:
        """Microseconds of a call."""
        dist.barrier(group)
        begun = time.perf_counter()
        for _ in range(calls):
            body(group)
        return 1e6 * (time.perf_counter() - begun) / calls


def mean(ratios: list[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
