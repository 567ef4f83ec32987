"""Real MPI programs without and with hocket under them: ``python benchmarks/mpi_clients.py SOURCES_DIR``.

SOURCES_DIR has the archives named in CLIENTS, none of which is part of hocket. Each is built once for each MPI in
``--cache``, where the environments of the MPIs are made too, unless ``--mpi NAME=DIR`` names one that is there.

A verdict is a text for each program: "passed", perhaps with what it printed, or why not. mpi4py: of each of its tests.
MPICH's tests: "No Errors". OSU (5.3 has no checks of the data): it ends well, and how many sizes it printed. IMB, built
with its checks: no rank reports an error. miniAMR: numbers of blocks, and sums of the mesh to nine digits. Programs
that do not pass without the library are not run with it. ``--baseline`` keeps the verdicts without it in a file.

Exits with 1 if a verdict differs, or if no call of a client was taken with ``min-bytes:0``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mpi_jobs import REPORT, Ended, Mpi, add_arguments, place, with_library

PASSED = "passed"
EVERYTHING = "min-bytes:0"

Verdicts = dict[str, str]
"""By program, or by test of a program."""


@dataclass(frozen=True)
class Program:
    """One job of a client."""

    name: str
    command: tuple[str, ...]
    judge: Callable[[str, Ended], Verdicts]
    patience: int = 1  # times --timeout


@dataclass(frozen=True)
class Client:
    """``programs`` of an MPI, a built archive and a number of ranks."""

    archive: str
    programs: Callable[[Mpi, Path, int], Iterator[Program]]


def judge_mpi4py(_: str, ended: Ended) -> Verdicts:
    """Its ranks all say which test begins, and at their ends which failed."""
    verdicts = dict.fromkeys(re.findall(r"test\w* \((test_[\w.]+)\) \.\.\.", ended.err), PASSED)
    verdicts |= {name: kind.lower() for kind, name in re.findall(r"(FAIL|ERROR): \w+ \(([\w.]+)\)", ended.err)}
    last = (list(verdicts) or ["nothing"])[-1]
    return verdicts | {"summary": f"{ended.failure} after {last}" if ended.failure else PASSED}


def programs_mpi4py(mpi: Mpi, where: Path, _: int) -> Iterator[Program]:
    yield Program("cco", (mpi.python, str(where / "mpi4py/test/main.py"), "-v", "-i", "cco"), judge_mpi4py, 5)


def judge_mpich_coll(name: str, ended: Ended) -> Verdicts:
    said = " | ".join((ended.out + ended.err).splitlines()[:2])
    return {name: ended.failure or (PASSED if "No Errors" in ended.out else f"failed: {said}")}


def programs_mpich_coll(_: Mpi, where: Path, __: int) -> Iterator[Program]:
    """With the arguments of its list of tests; neither those for MPICH's own algorithms nor those that fill memory."""
    tests = where / "mpich-tests" / "test" / "mpi" / "coll"
    listed: dict[str, dict[tuple[str, ...], None]] = {}
    for line in (tests / "testlist.in").read_text().splitlines():
        name, *words = line.split() or ["#"]
        known = listed.setdefault(name, {})
        if not any(re.match(r"env=|mem=\d\d", word) for word in words):
            known[tuple(word.removeprefix("arg=") for word in words if word.startswith("arg="))] = None
    for program in sorted(tests.glob("*.x")):
        for arguments in listed.get(program.stem, {(): None}):
            yield Program(" ".join((program.stem, *arguments)), (str(program), *arguments), judge_mpich_coll)


def judge_osu(name: str, ended: Ended) -> Verdicts:
    rows = len(re.findall(r"^ *\d[\d. ]*$", ended.out, re.MULTILINE))
    return {name: ended.failure or (f"{PASSED}, {rows} sizes" if rows else "printed nothing")}


def programs_osu(_: Mpi, where: Path, __: int) -> Iterator[Program]:
    for program in sorted((where / "osu" / "mpi" / "collective").glob("*.x")):
        yield Program(program.stem, (str(program), "-f", "-i", "20", "-x", "2", "-m", "1:262144"), judge_osu)


def judge_imb(name: str, ended: Ended) -> Verdicts:
    """A rank says "Error" where it got what it should not have; the column of defects is not to be relied on."""
    rows = len(re.findall(r"^ +\d.*", ended.out, re.MULTILINE))
    errors = re.findall(r"Error \w+,size = \d+", ended.out)
    bad = f"{len(errors)} errors, first: {errors[0]}" if errors else "" if rows else "printed nothing"
    return {name: ended.failure or bad or f"{PASSED}, {rows} rows"}


IMB = """allreduce reduce reduce_local reduce_scatter reduce_scatter_block allgather allgatherv scatter scatterv gather
gatherv alltoall alltoallv bcast barrier exchange sendrecv pingpong"""


def programs_imb(_: Mpi, where: Path, __: int) -> Iterator[Program]:
    """Each on 2, 4, ... and all ranks: those left out wait in a barrier."""
    options = ("-iter", "10", "-iter_policy", "off", "-time", "1000", "-msglog", "0:19", "-root_shift", "on")
    for name in IMB.split():
        yield Program(name, (str(where / "imb" / "IMB-MPI1"), *options, name), judge_imb)


def judge_miniamr(name: str, ended: Ended) -> Verdicts:
    printed = r"^Number of blocks.*|^\d+ var \d+ sum [\d.]+|^ *total number.*|^ *total blocks.*"
    said = re.findall(printed, ended.out, re.MULTILINE)
    rounded = [re.sub(r"(?<=sum )[\d.]+", lambda number: f"{float(number[0]):.9g}", line) for line in said]
    digest = hashlib.sha256("\n".join(rounded).encode()).hexdigest()[:12]
    return {name: ended.failure or (f"{PASSED}, {len(said)} results {digest}" if said else "printed nothing")}


REFINE = "--num_refine 4000 --num_tsteps 2 --refine_freq 1"
SPHERE = """--num_refine 3 --max_blocks 2000 --nx 6 --ny 6 --nz 6 --num_vars 8 --num_tsteps 8 --stages_per_ts 8
--checksum_freq 2 --report_diffusion --num_objects 1 --object 2 0 -1.1 -1.1 -1.1 0.06 0.06 0.06 1.5 1.5 1.5 0 0 0"""


def programs_miniamr(_: Mpi, where: Path, ranks: int) -> Iterator[Program]:
    """One that does little but small Allreduces, one whose mesh follows a sphere."""
    start = (str(where / "miniamr" / "ref" / "miniAMR.x"), "--npx", str(ranks), "--npy", "1", "--npz", "1")
    for name, options in (("refine", REFINE), ("sphere", SPHERE)):
        yield Program(name, (*start, *options.split()), judge_miniamr)


CLIENTS = {
    "mpi4py": Client("mpi4py-tests.tar.xz", programs_mpi4py),
    "mpich-coll": Client("mpich-coll-tests.tar.xz", programs_mpich_coll),
    "osu": Client("osu.tar.xz", programs_osu),
    "imb": Client("imb.tar.xz", programs_imb),
    "miniamr": Client("miniamr.tar.xz", programs_miniamr),
}


class Runs:
    """Runs programs, remembers the verdicts without the library, and prints a row for each set of runs."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.wrong = 0
        self._given = given
        kept: Path | None = given.baseline
        self._baseline: dict[str, Verdicts] = json.loads(kept.read_text()) if kept and kept.exists() else {}

    def client(self, mpi: Mpi, name: str, chosen: str, ranks: int) -> None:
        """A row without the library, and one for each of --options with it."""
        client = CLIENTS[name]
        where = place(mpi, self._given.sources / client.archive, self._given.cache)
        programs = [program for program in client.programs(mpi, where, ranks) if chosen in program.name]
        known = [(program, self._without(mpi, where, program, ranks)) for program in programs]
        before = {test: verdict for _, verdicts in known for test, verdict in verdicts.items()}
        self._row(mpi, name, ranks, "without", before)
        failed = [test for test, verdict in before.items() if not verdict.startswith(PASSED)]
        print("".join(f"    fails without: {test}: {before[test]}\n" for test in failed), end="", flush=True)
        passing = [item for item in known if any(verdict.startswith(PASSED) for verdict in item[1].values())]
        for options in self._given.options if self._given.library else ():
            after, taken = self._with(mpi, name, passing, ranks, options)
            self._row(mpi, name, ranks, options or "default", after, f"{taken} calls taken")
            if options == EVERYTHING and not taken:
                self._complain("no call was taken")
            for test in {test: None for _, verdicts in passing for test in (*verdicts, *after)}:
                if before.get(test) != after.get(test):
                    self._complain(f"differs: {test}: {before.get(test)} -> {after.get(test)}")

    def _without(self, mpi: Mpi, where: Path, program: Program, ranks: int) -> Verdicts:
        key = f"{where.name} {ranks} {program.name}"
        if key not in self._baseline:
            ended = mpi.run(ranks, program.command, {}, self._given.timeout * program.patience)
            self._baseline[key] = program.judge(program.name, ended)
            if self._given.baseline:
                self._given.baseline.write_text(json.dumps(self._baseline, indent=1, sort_keys=True) + "\n")
        return self._baseline[key]

    def _with(
        self, mpi: Mpi, name: str, passing: list[tuple[Program, Verdicts]], ranks: int, options: str
    ) -> tuple[Verdicts, int]:
        """The verdicts, and the number of calls taken; what a program printed whose verdict differs is kept."""
        found: Verdicts = {}
        taken = 0
        for program, before in passing:
            variables = with_library(self._given.library, options) | REPORT
            ended = mpi.run(ranks, program.command, variables, self._given.timeout * program.patience)
            taken += ended.taken
            found |= (after := program.judge(program.name, ended))
            if after != before:
                label = f"{mpi.name}-{name}-{ranks}-{options or 'default'}-{program.name}"
                kept = self._given.cache / "differs" / re.sub(r"[^\w.=-]+", "_", label)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(f"exit {ended.status}\n--- out\n{ended.out}\n--- err\n{ended.err}")
                print(f"    kept: {kept}", flush=True)
        return found, taken

    def _row(self, mpi: Mpi, name: str, ranks: int, how: str, verdicts: Verdicts, more: str = "") -> None:
        passed = sum(verdict.startswith(PASSED) for verdict in verdicts.values())
        print(f"{name:11}{mpi.name:8}{ranks:>6}  {how:13}{passed:>5} of {len(verdicts):<6}{more}", flush=True)

    def _complain(self, text: str) -> None:
        print(f"    {text}", flush=True)
        self.wrong += 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        "--only", nargs="+", default=list(CLIENTS), metavar="CLIENT[:TEXT]", help="TEXT: in the program"
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4, 5])
    parser.add_argument("--without", dest="library", action="store_const", const=None, help="the library at all")
    parser.add_argument("--options", nargs="+", default=[EVERYTHING, ""], help="values of HOCKET_MPI; '': the default")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="of verdicts without the library, read and written"
    )
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended as after Ctrl-C
    if given.library and not given.library.exists():
        sys.exit(f"there is no {given.library}")
    runs = Runs(given)
    print(f"{'client':11}{'MPI':8}{'ranks':>6}  {'HOCKET_MPI':13} passed")
    for text in given.mpi:
        mpi = Mpi.found(text, given.cache)
        for entry in given.only:
            name, _, chosen = entry.partition(":")
            for ranks in given.ranks:
                runs.client(mpi, name, chosen, ranks)
    print(f"{runs.wrong} wrong")
    sys.exit(runs.wrong > 0)


if __name__ == "__main__":
    main()
