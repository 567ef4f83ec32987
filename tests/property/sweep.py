"""All random programs: ``python -m tests.property.sweep 10000``.

Each is compiled for some number of instances and slots, proven, and executed by the reference in random orders. Prints
how many went through; a failure names the seed that makes it again.
"""

from __future__ import annotations

import random
import sys

from tests.property.programs import check_reference, random_case


def check(seed: int) -> tuple[int, int]:
    """One program. Returns its operations and its steps."""
    rng = random.Random(seed)
    case = random_case(rng)
    factor, slots = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3))
    # Watched, so that the form of every stage is verified.
    schedule = case.program().compile(instances=factor, slots=slots, observer=lambda *_: None)
    for order in range(3):
        check_reference(case, schedule, seed + order)
    return len(case.operations), sum(1 for _ in schedule.steps())


def main(count: int) -> None:
    operations = steps = 0
    for seed in range(count):
        try:
            done = check(seed)
        except BaseException:
            print(f"seed {seed} failed", file=sys.stderr)
            raise
        operations, steps = operations + done[0], steps + done[1]
    print(f"{count} random programs, {operations} operations, {steps} steps: all proven, none wrong, none stuck")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10000)
