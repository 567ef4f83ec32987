"""Every library algorithm out and in again: ``python -m tests.formats.roundtrip [LARGEST]``.

At 2 to LARGEST (16) ranks, for both targets, in and out of place, Simple and LL, 1 to 4 instances: the file re-reads as
proven and is exported to the same bytes, or is refused with the target's limit. Prints how many of each.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from hocket import Program, algorithms
from hocket.cli.export import Wishes, export_program
from hocket.errors import InvalidArgument, TargetLimit
from hocket.formats.msccl_targets import SLOTS, TARGETS
from hocket.formats.msccl_xml import read, write


class Case(NamedTuple):
    """One way to export one algorithm."""

    name: str
    arguments: tuple[tuple[str, int], ...]
    target: str
    inplace: bool
    protocol: str
    instances: int

    def program(self) -> Program:
        return _functions()[self.name](**dict(self.arguments))

    def wishes(self) -> Wishes:
        return Wishes(self.target, self.protocol, self.instances, self.inplace)


def _functions() -> dict[str, Callable[..., Program]]:
    found: dict[str, Callable[..., Program]] = {}
    for module in pkgutil.iter_modules(algorithms.__path__):
        public = inspect.getmembers(importlib.import_module(f"hocket.algorithms.{module.name}"), inspect.isfunction)
        for name, function in public:
            if inspect.signature(function).return_annotation == "Program" and not name.startswith("_"):
                found[f"{module.name}.{name}"] = function
    return found


def _shapes(function: Callable[..., Program], largest: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """What the function can be called with. Rooted programs have the last rank as root, once."""
    parameters = inspect.signature(function).parameters
    required = tuple(p.name for p in parameters.values() if p.default is p.empty)
    match required:
        case ():
            yield ()
        case ("ranks",):
            for ranks in range(2, largest + 1):
                yield (("ranks", ranks),)
                if "root" in parameters:
                    yield (("ranks", ranks), ("root", ranks - 1))
        case ("nodes", "gpus"):
            for nodes, gpus in itertools.product(range(1, largest + 1), repeat=2):
                if 2 <= nodes * gpus <= largest:
                    yield (("nodes", nodes), ("gpus", gpus))
        case _:
            raise AssertionError(f"{function.__module__}.{function.__name__} wants {required}: say here what it gets")


def cases(largest: int) -> Iterator[Case]:
    for name, function in _functions().items():
        for arguments in _shapes(function, largest):
            for way in itertools.product(TARGETS, (False, True), ("Simple", "LL"), range(1, 5)):
                yield Case(name, arguments, *way)


def check(case: Case) -> str | None:
    """The limit that refuses the case; None if it went out and in again. Raises if anything else happens."""
    try:
        program = case.program()
    except InvalidArgument:
        return "not for so many ranks"
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
    with ProcessPoolExecutor() as pool:
        verdicts = Counter(pool.map(judge, cases(largest), chunksize=16))
    for (target, reason), count in sorted(verdicts.items(), key=str):
        print(f"{count:6d} {target}: {reason or 're-read as proven, re-exported to the same bytes'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
