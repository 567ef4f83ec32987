"""torch's own tests of collectives, on Gloo and on hocket: ``python -m tests.integrations.torch.upstream [TEST ...]``.

They are those of ``torch.testing._internal.distributed.distributed_test``. What needs no GPU runs, also what torch
leaves to MPI, which Gloo can do by now, and subgroups of fewer than eight ranks. Prints how the tests went and why, and
ends with 1 if one that passes on Gloo does not on hocket.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tests.integrations.torch.launch import ROOT

BACKENDS = {"Gloo": {"HOCKET": "0"}, "hocket": {"HOCKET": "1", "HOCKET_LOG": "info", "HOCKET_STRICT": "0"}}
OURS = "a collective of hocket's\n"


@dataclass(frozen=True)
class Outcome:
    """Of a test. ``how``: passes, fails or skipped. ``falls_back``: what, and why."""

    test: str
    how: str
    why: str
    ours: bool
    falls_back: tuple[str, ...]


def outcomes(backend: str, ranks: int, tests: Sequence[str], folder: Path) -> list[Outcome]:
    """Of tests, by default all, in a process that has the environment which they are imported in."""
    file = folder / backend
    settings = {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "INIT_METHOD": f"file://{folder}/store",
        "TEMP_DIR": str(folder),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **BACKENDS[backend],
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.integrations.torch.upstream", "--record", str(file)]
    subprocess.run([*command, *tests], cwd=ROOT, env={**os.environ, **settings}, check=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [Outcome(**{**row, "falls_back": tuple(row["falls_back"])}) for row in rows]


def record(file: Path, tests: Sequence[str]) -> None:
    """Run tests here, and write a line for each."""
    import torch
    from torch.testing._internal.distributed import distributed_test

    base = distributed_test.DistributedTest._DistTestBase

    class Collectives(distributed_test.TestDistBackend, base):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for test in vars(base).values():
        if getattr(test, "__unittest_skip_why__", "").startswith("Only MPI supports"):
            test.__unittest_skip__ = False
    os.environ["BACKEND"] = "mpi"  # what has been imported knows gloo; of MPI no eight ranks are wanted for a subgroup
    distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()  # names of torch's own records: docs/pytorch.md
    if os.environ.get("HOCKET") == "1":
        from hocket.torch.calls import Calls

        for name in ("make", "barrier"):
            setattr(Calls, name, _told(getattr(Calls, name)))
    with file.open("w") as lines:
        for name in tests or unittest.TestLoader().getTestCaseNames(Collectives):
            result = unittest.TestResult()
            with captured() as said:
                unittest.TestSuite([Collectives(name)]).run(result)
                said.seek(0)
                text = said.read()
            falls_back = set(re.findall(r"rank \d+: (\w+) goes to torch's backend: (.*)", text))
            how, why = _read(result)
            row = Outcome(
                name, how, why, OURS in text, tuple(sorted(f"`{what}`: {reason}" for what, reason in falls_back))
            )
            print(json.dumps(asdict(row)), file=lines, flush=True)


def _told(method: Callable[..., object]) -> Callable[..., object]:
    def told(*given: object, **options: object) -> object:
        os.write(2, OURS.encode())
        return method(*given, **options)

    return told


def _read(result: unittest.TestResult) -> tuple[str, str]:
    """How a test went, and why; of a failure the last line that names an exception."""
    if problems := result.errors + result.failures:
        lines = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", problems[0][1], re.MULTILINE)
        return "fails", (lines or problems[0][1].splitlines())[-1]
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passes", "")


@contextmanager
def captured() -> Iterator[IO[str]]:
    """What this process and its children write."""
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        kept = {to: os.dup(to) for to in (1, 2)}
        try:
            for to in kept:
                os.dup2(file.fileno(), to)
            yield file
        finally:
            for to, was in kept.items():
                os.dup2(was, to)
                os.close(was)


def page(found: dict[str, list[Outcome]]) -> str:
    """The outcomes on both, as Markdown."""
    pairs = list(zip(found["Gloo"], found["hocket"], strict=True))
    passed = [ours for _, ours in pairs if ours.how == "passes"]
    done = Counter(
        "something falls back" if each.falls_back else "all of it" if each.ours else "nothing: it calls no collective"
        for each in passed
    )
    kinds = Counter(kind for each in passed for kind in each.falls_back)
    others = [(a.test, _said(a), _said(b)) for a, b in pairs if {a.how, b.how} not in ({"passes"}, {"skipped"})]
    skipped = Counter(ours.why for gloo, ours in pairs if gloo.how == ours.how == "skipped")
    counts = Counter((gloo.how, ours.how) for gloo, ours in pairs)
    tables = [
        _table(("on Gloo", "on hocket", "tests"), [(*hows, n) for hows, n in counts.most_common()]),
        _table(("of those that pass, hocket does", "tests"), done.most_common()),
        _table(("what falls back", "tests"), kinds.most_common()),
        _table(("neither pass nor are skipped on both", "Gloo", "hocket"), others),
        _table(("skipped on both, as torch says", "tests"), skipped.most_common()),
    ]
    return "\n\n".join(filter(None, tables))


def _said(outcome: Outcome) -> str:
    return f"{outcome.how} {outcome.why}".strip()


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="by default all")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--record", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record is not None:
        record(given.record, given.tests)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = {backend: outcomes(backend, given.ranks, given.tests, Path(folder)) for backend in BACKENDS}
    print(page(found))
    return int(any((gloo.how, ours.how) == ("passes", "fails") for gloo, ours in zip(*found.values(), strict=True)))


if __name__ == "__main__":
    sys.exit(main())
