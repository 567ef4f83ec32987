"""All random programs on real processes: ``python -m tests.runtime.sweep 1000``.

Each is compiled for some number of instances and slots and runs on its number of ranks; every rank compares its output
with the reference, bit by bit. Prints how many went through.
"""

from __future__ import annotations

import sys

import hocket
from tests.runtime.cases import check
from tests.runtime.test_runs import random_runs


def main(count: int, batch: int = 250) -> None:
    done = 0
    for first in range(0, count, batch):
        for ranks, cases in sorted(random_runs(range(first, min(first + batch, count))).items()):
            hocket.spawn(check, ranks, (cases,))
            done += len(cases)
    print(f"{done} random programs ran on processes: bit-equal to the reference")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
