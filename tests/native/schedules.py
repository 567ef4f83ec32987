"""Calls of every library schedule on few ranks and elements: ``python -m tests.native.schedules FILE``.

Each with its plans, its buffers before and what the reference says of them after. delayed.cpp reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hocket import Schedule
from hocket.algorithms.catalogue import CATALOGUE
from hocket.runtime.plan import Plan, lower_all
from hocket.semantics import reference
from tests.algorithms.prove import cases

Words = NDArray[np.uint32]


def schedules() -> Iterator[Schedule]:
    """Every program of the catalogue on 1 to 6 ranks, the rooted ones at one root."""
    for ranks in range(1, 7):
        for algorithm in CATALOGUE:
            for parameters in cases(algorithm, ranks, roots=[ranks // 2]):
                yield algorithm.factory(**parameters).compile()


def calls(schedule: Schedule) -> Iterator[Words]:
    """Calls on one element a unit, and on chunks of several tiles of which the last is short; on two memories too,
    where a schedule in place can run so."""
    plans = lower_all(schedule, range(schedule.collective.size))
    for n in (1, 40 * schedule.collective.chunks - 3):
        yield _call(schedule, plans, n, apart=False)
        if any(plan.apart is not None for plan in plans):
            yield _call(schedule, plans, n, apart=True)


def _call(schedule: Schedule, plans: Sequence[Plan], n: int, *, apart: bool) -> Words:
    collective = schedule.collective
    rng = np.random.default_rng(n)
    inputs = [rng.standard_normal(plan.layout.input_blocks * n).astype(np.float32) for plan in plans]
    outputs = reference(schedule, inputs)
    name = f"{schedule.name} on {collective.size} ranks{' apart' * apart}"
    parts = [_counted(np.frombuffer(name.encode(), np.uint8)), _words(n, collective.size)]
    for plan, x, expected in zip(plans, inputs, outputs, strict=True):
        splits = apart and plan.apart is not None
        buffers = {
            "in": np.zeros(plan.layout.input_blocks * n, np.float32),
            "out": np.zeros(plan.layout.output_blocks * n, np.float32),
        }
        at, first = ("in", 0) if splits else collective.place(plan.layout.rank, "in")
        first = first // collective.chunks * n
        buffers[at][first : first + len(x)] = x
        at, first = ("out", 0) if splits else collective.place(plan.layout.rank, "out")
        words = plan.apart if splits and plan.apart is not None else plan.words
        parts.append(_counted(np.frombuffer(words, np.uint32)))
        parts += [_counted(buffer.view(np.uint32)) for buffer in buffers.values()]
        parts.append(_words(("in", "out").index(at), first // collective.chunks * n))
        parts.append(_counted(expected.view(np.uint32)))
    return np.concatenate(parts)


def _words(*values: int) -> Words:
    return np.array(values, np.uint32)


def _counted(values: NDArray[np.unsignedinteger]) -> Words:
    return np.concatenate((_words(len(values)), values.astype(np.uint32)))


def write(path: Path) -> int:
    """Write them all, and return how many they are."""
    count = 0
    with path.open("wb") as file:
        for schedule in schedules():
            for call in calls(schedule):
                file.write(call.tobytes())
                count += 1
    return count


if __name__ == "__main__":
    write(Path(sys.argv[1]))
