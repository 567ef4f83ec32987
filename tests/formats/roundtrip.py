"""Every library algorithm out and in again: ``python -m tests.formats.roundtrip [LARGEST]``.

At 2 to LARGEST (16) ranks, for both targets, in and out of place, Simple and LL, 1 to 4 instances: the file re-reads as
proven and is exported to the same bytes, or is refused with the target's limit. Prints how many of each.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from hocket import Program
from hocket.algorithms.catalogue import CATALOGUE
from hocket.cli.export import Wishes, export_program
from hocket.errors import TargetLimit
from hocket.formats.msccl_targets import SLOTS, TARGETS
from hocket.formats.msccl_xml import read, write
from tests.algorithms import prove

FACTORIES = {algorithm.name: algorithm.factory for algorithm in CATALOGUE}


class Case(NamedTuple):
    """One way to export one algorithm of the catalogue."""

    name: str
    arguments: tuple[tuple[str, int | tuple[int, ...]], ...]
    target: str
    inplace: bool
    protocol: str
    instances: int

    def program(self) -> Program:
        return FACTORIES[self.name](**dict(self.arguments))

    def wishes(self) -> Wishes:
        return Wishes(self.target, self.protocol, self.instances, self.inplace)


def cases(largest: int) -> Iterator[Case]:
    """Rooted programs have the first and the last rank as root."""
    for algorithm in CATALOGUE:
        for ranks in range(2, largest + 1):
            for parameters in prove.cases(algorithm, ranks, {0, ranks - 1}):
                for way in itertools.product(TARGETS, (False, True), ("Simple", "LL"), range(1, 5)):
                    yield Case(algorithm.name, tuple(parameters.items()), *way)


def check(case: Case) -> str | None:
    """The limit that refuses the case; None if it went out and in again. Raises if anything else happens."""
    program = case.program()
    try:
        text = export_program(program, case.wishes())
    except TargetLimit as refused:
        return refused.reason.partition(";")[0]
    schedule = read(text)
    assert schedule.collective == program.collective.refined(
        schedule.collective.chunks // program.collective.chunks
    ).placed(case.inplace)
    assert f'proto="{case.protocol}"' in text
    assert SLOTS[case.protocol] >= schedule.slots
    assert write(schedule, case.target, protocol=case.protocol) == text
    return None


def judge(case: Case) -> tuple[str, str | None]:
    try:
        return case.target, check(case)
    except BaseException:
        print(case, file=sys.stderr)
        raise


def main(largest: int) -> None:
    every = list(cases(largest))
    verdicts: Counter[tuple[str, str | None]] = Counter()
    with ProcessPoolExecutor() as pool:
        for done, verdict in enumerate(pool.map(judge, every, chunksize=16), 1):
            verdicts[verdict] += 1
            if done % 1000 == 0:
                print(f"{done} of {len(every)}", file=sys.stderr, flush=True)
    for (target, reason), count in sorted(verdicts.items(), key=str):
        print(f"{count:6d} {target}: {reason or 're-read as proven, re-exported to the same bytes'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
