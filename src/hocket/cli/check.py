"""``hocket check``: what is proven, case by case or file by file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import typer
from typer.core import TyperCommand

from hocket.cli.compiled import Facts, Options
from hocket.cli.files import are_files, gather, read_file
from hocket.cli.progress import working
from hocket.cli.reports import MACHINES, Format
from hocket.cli.result import Report, Result
from hocket.cli.target import Case, cases
from hocket.errors import Diagnostic, HocketError, SumsDiffer, TargetLimit, Unreadable, UsageError
from hocket.formats.msccl_document import Document
from hocket.formats.msccl_loading import refusals, remarks
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_targets import TARGETS
from hocket.formats.msccl_xml import prove_for
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.schedule import Schedule
from hocket.program import Program
from hocket.verify import Contract, Proof, kept

_NO_PROMISE = Diagnostic("no-promise", "it does not say what outputs must hold: only races and deadlocks are ruled out")


_AS_COMPILED = Options(None, None, None)


def judge(words: Sequence[str], options: Options, wanted: Sequence[str]) -> Report:
    """Judge all that words name; ``wanted`` are runtimes that must load it."""
    for name in wanted:
        if name not in TARGETS:
            raise UsageError(f"--target must be one of {', '.join(TARGETS)}, not {name!r}")
    if words[0].endswith(".toml"):
        if wanted or options != _AS_COMPILED:
            raise UsageError("a file of schedules takes no options: its entries say protocol, instances, reproducible")
        from hocket.cli.config import judge_config  # loads part of the library

        return judge_config(words[0], words[1:])
    if not are_files(words):
        if wanted:
            raise UsageError("--target is for files of MSCCL's XML", "hocket export writes a program for a runtime")
        return _judge_all(words[0], cases(words[0], words[1:]), options)
    if options != replace(_AS_COMPILED, reproducible=options.reproducible):
        raise UsageError("a file is compiled already: --protocol, --instances, --slots and --storage are for programs")
    results = []
    files = gather(words)
    with working("proving") as update:
        for number, file in enumerate(files):
            update(f"proving {file} ({number + 1} of {len(files)})")
            results.append(judge_file(file, options, wanted))
    return Report(tuple(results))


def _judge_all(target: str, chosen: Sequence[Case], options: Options) -> Report:
    results = []
    with working(f"proving {target}") as update:
        for number, case in enumerate(chosen):
            update(f"proving {target} {case} ({number + 1} of {len(chosen)})")
            results.append(judge_case(target, case, options))
    return Report(tuple(results))


def judge_case(target: str, case: Case, options: Options) -> Result:
    """Trace, compile and prove a program; or prove the text of a schedule."""
    start = perf_counter()
    name, colon, _ = target.rpartition(":")
    file = name if colon else target
    found = Result(target, file if Path(file).is_file() else None, case.parameters)
    try:
        made = case.load()
        found = _with_proof(found, options.compile(made), made.chunk_dag if isinstance(made, Program) else None)
    except HocketError as error:
        found = replace(found, error=error)
    return replace(found, seconds=perf_counter() - start)


def _with_proof(found: Result, schedule: Schedule, dag: ChunkDag | None = None) -> Result:
    return replace(found, facts=Facts.of(schedule, dag), proof=Proof.of(schedule), sums=kept(schedule))


def judge_file(name: str, options: Options, wanted: Sequence[str]) -> Result:
    """Read a file, prove it for the slots of its protocol, and ask what each runtime refuses in it."""
    start = perf_counter()
    found = Result(name, None if name == "-" else name)
    try:
        said = read_file(name)
        if isinstance(said, Schedule):
            found = _with_proof(found, options.compile(said))
            refused = [TargetLimit(target, "it is no XML; hocket export writes it") for target in wanted]
        else:
            problems = {target: list(refusals(said, TARGETS[target])) for target in TARGETS}
            found = replace(found, refusals={target: _reasons(problems[target]) for target in TARGETS})
            if said.coll == "custom" and said.promise is None:
                found = replace(found, warnings=(_NO_PROMISE,))
            meant = schedules(said)
            loads = [target for name, target in TARGETS.items() if not problems[name]]
            found = replace(
                found,
                facts=replace(Facts.of(meant[0]), protocol=said.proto),
                remarks={target.name: tuple(remarks(said, meant[0].collective, target)) for target in loads},
            )
            found = replace(found, warnings=found.warnings + _proven(meant, said, options.reproducible))
            found = replace(found, sums=kept(meant[0]))
            refused = [problem for target in wanted for problem in problems[target]]
        if refused:
            raise refused[0]
    except HocketError as error:
        found = replace(found, error=error)
    except OSError as error:
        found = replace(found, error=Unreadable(f"cannot read {name}: {error.strerror}"))
    return replace(found, seconds=perf_counter() - start)


def _proven(meant: Sequence[Schedule], document: Document, reproducible: Contract | None) -> tuple[Diagnostic, ...]:
    """Prove what a file means. It promises nothing of the bits of sums: that ranks differ in them is a warning."""
    differing = None
    for schedule in meant:
        try:
            prove_for(schedule, document, reproducible)
        except SumsDiffer as error:  # all else holds
            differing = differing or error
    return () if differing is None else (differing.diagnostic(),)


def _reasons(problems: Sequence[TargetLimit]) -> tuple[str, ...]:
    """Each reason once, with the line where it is first seen."""
    lines: dict[str, str] = {}
    for problem in problems:
        line = f"line {problem.where[0].resolve().line}: " if problem.where else ""
        lines.setdefault(problem.reason, line)
    return tuple(line + reason for reason, line in lines.items())


# ---------------------------------------------------------------------------------------------------------------

_BadUsage: Any = typer.BadParameter.__mro__[1]  # which typer does not export


class CheckCommand(TyperCommand):
    """Says also what is wrong with the command line in the format that was asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except _BadUsage as error:
            wanted = _wanted_format(words)
            if wanted not in MACHINES:
                raise
            print(MACHINES[wanted](Report(error=UsageError(error.format_message()))))
            raise typer.Exit(2) from None


def _wanted_format(words: Sequence[str]) -> Format:
    """The format that a command line asks for, though it cannot be parsed."""
    if "--json" in words:
        return Format.json
    named = [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    named += [following for word, following in pairwise(words) if word == "--format"]
    return next((form for form in Format if form in named), Format.text)
