"""Proves the whole library: ``python -m tests.algorithms.prove [MOST_RANKS]``.

Every algorithm of the catalogue, for every number of ranks it takes up to 33, with every split and parameter that the
catalogue tries, and rooted ones at several roots: compiled, which proves the schedule, and its cost counted. Prints a
table; a failure names the case.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import fields

from hocket import Program
from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm, Parameters
from hocket.cost import Cost, count


def cases(algorithm: Algorithm, ranks: int, roots: Collection[int] | None = None) -> Iterator[Parameters]:
    """What the factory is called with for so many ranks: with the given roots, or the first, the last and one between,
    if the algorithm has one."""
    rooted = "root" in inspect.signature(algorithm.factory).parameters
    for parameters in algorithm.cases(ranks):
        for root in ({0, ranks // 2, ranks - 1} if roots is None else roots) if rooted else ():
            yield parameters | {"root": root}
        if not rooted:
            yield parameters


def counted(program: Program) -> Cost:
    """What a program costs in the paper's instructions, whose scratch is that of the program."""
    return count(program.compile(opcodes=True), program.chunk_dag)


def differences(algorithm: Algorithm, ranks: int, parameters: Parameters, found: Cost) -> list[str]:
    """What the catalogue says otherwise than was counted; a bound is wrong where more was counted."""
    said = algorithm.cost(ranks, parameters)
    wrong = []
    for field in fields(Cost):
        formula, counts, says = getattr(algorithm, field.name), getattr(found, field.name), getattr(said, field.name)
        if counts > says or (counts != says and not formula.startswith("≤ ")):
            wrong.append(f"{algorithm.name} {parameters}: {field.name} is {counts}, not {formula} = {says}")
    return wrong


def main(most: int) -> None:
    print(f"{'algorithm':38} {'ranks taken':16} programs  seconds")
    total, started, wrong = 0, time.process_time(), []
    for algorithm in CATALOGUE:
        start, count, taken = time.process_time(), 0, []
        for ranks in range(1, most + 1):
            for parameters in cases(algorithm, ranks):
                try:
                    wrong += differences(algorithm, ranks, parameters, counted(algorithm.factory(**parameters)))
                except BaseException:
                    print(f"{algorithm.name} {parameters} failed", file=sys.stderr)
                    raise
                count += 1
                if ranks not in taken:
                    taken.append(ranks)
        total += count
        numbers = f"{len(taken)} of 1..{most}"
        print(f"{algorithm.name:38} {numbers:16} {count:8} {time.process_time() - start:8.1f}", flush=True)
    seconds = time.process_time() - started
    print(f"{len(CATALOGUE)} algorithms, {total} programs: all proven, {len(wrong)} other than said, {seconds:.0f} s")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 33)
