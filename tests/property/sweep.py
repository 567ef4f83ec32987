"""All random programs: ``python -m tests.property.sweep 10000``.

Each is compiled for some number of instances and slots, for messages in slots and in place, proven, and executed by the
reference in random orders. Prints how many went through; a failure names the seed that makes it again.
"""

from __future__ import annotations

import random
import sys

from hocket.ir.schedule import Step
from hocket.program import STORAGES
from tests.property.programs import check_reference, random_case


def check(seed: int) -> tuple[int, int, int]:
    """One program. Returns its operations, its steps, and those that read or store in the memory of another rank."""
    rng = random.Random(seed)
    case = random_case(rng)
    factor, slots = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3))
    # Watched, so that the form of every stage is verified.
    steps: list[tuple[int, Step]] = []
    for storage in STORAGES:
        schedule = case.program().compile(instances=factor, slots=slots, storage=storage, observer=lambda *_: None)
        for order in range(3):
            check_reference(case, schedule, seed + order)
        steps += [(rank, step) for rank, _, _, step in schedule.steps()]
    abroad = sum(any(span.rank != rank for span in (*step.reads(), *step.writes())) for rank, step in steps)
    return len(case.operations), len(steps), abroad


def main(count: int) -> None:
    total = [0, 0, 0]
    for seed in range(count):
        try:
            total = [sum(pair) for pair in zip(total, check(seed), strict=True)]
        except BaseException:
            print(f"seed {seed} failed", file=sys.stderr)
            raise
    operations, steps, abroad = total
    found = f"{count} random programs, {operations} operations, {steps} steps, {abroad} in the memory of another rank"
    print(f"{found}: all proven, none wrong, none stuck")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10000)
