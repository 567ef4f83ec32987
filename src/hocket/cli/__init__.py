"""The command line: check, show, run, export, bench, explain, launch, demo."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

import hocket
from hocket.cli.compiled import Options, Pass, counts
from hocket.cli.files import Finding, judge, parsed, print_findings
from hocket.cli.passes import diff_of, named, parse_dump, pass_doc, pass_name, print_diff, print_times, text_after
from hocket.cli.progress import working
from hocket.cli.target import UsageError, cases, is_xml, one_case, parse_size
from hocket.cli.verdicts import judge_case, print_counterexample, print_error, print_verdict, print_verdicts
from hocket.errors import HocketError
from hocket.formats.msccl_targets import TARGETS
from hocket.ir.instr_dag import InstrDag
from hocket.ir.schedule import Schedule
from hocket.ir.text import Stage, print_stage
from hocket.program import Program


class _Commands(TyperGroup):
    """Shows our errors as they render themselves: 1 for what a program does wrong, 2 for what the command line does."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            print_error(error, Console(stderr=True))
            raise typer.Exit(2) from None
        except HocketError as error:
            print_error(error, Console(stderr=True))
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
    help="Write, prove, look at and run collective communication.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNC",
        help="A function that returns a Program, in a file or a module such as hocket.algorithms.ring:all_reduce; "
        "or a file that holds the text of a schedule, or MSCCL's XML.",
        show_default=False,
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Parameters of FUNC.", show_default=False)
]
Protocol = Annotated[
    str | None, typer.Option(help="How arrival is signalled, instead of the program's.", show_default=False)
]
Instances = Annotated[
    int | None, typer.Option(min=1, help="Parallel instances of the program, instead of its own.", show_default=False)
]
Slots = Annotated[
    int | None, typer.Option(min=1, help="Slots of a connection: the most that may be needed.", show_default="2")
]
Storage = Annotated[
    str | None,
    typer.Option(help="Where messages lie: fifo, in slots, or peer, in place where they can.", show_default="fifo"),
]
DType = Annotated[
    str, typer.Option(help="bool, int8 to uint64, float16 to float64, bfloat16, complex64 or complex128.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Entry point of the command ``hocket``."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(hocket.__version__)
        raise typer.Exit


@app.callback()
def _of_every_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def _console() -> Console:
    """Standard output; tables are not squeezed where no one looks at them."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console


# ---------------------------------------------------------------------------------------------------------------
# check


@app.command()
def check(
    target: Target,
    parameters: Parameters = None,
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Prove that a program implements its collective, without race or deadlock.

    Ranges such as ranks=2..33 (both ends included) prove every case and print a table. So do files of MSCCL's XML, any
    number of them, for the slots of their protocols. Exits with 0 if all is proven, with 1 and a counterexample if not,
    with 2 if the command line is wrong.
    """
    if is_xml(target):
        if (protocol, instances, slots, storage) != (None, None, None, None):
            raise UsageError(
                "a file is compiled already: --protocol, --instances, --slots and --storage are for programs"
            )
        _check_files([target, *(parameters or [])], as_json)
        return
    options = Options(protocol, instances, slots, storage)
    chosen = cases(target, parameters or [])
    verdicts = []
    with working(f"proving {target}") as update:
        for number, case in enumerate(chosen):
            update(f"proving {target} {case} ({number + 1} of {len(chosen)})")
            verdicts.append(judge_case(case, options))
    refuted = [verdict for verdict in verdicts if verdict.error is not None]
    console = _console()
    if as_json:
        print(json.dumps({"target": target, "proven": not refuted, "cases": [v.as_json() for v in verdicts]}, indent=2))
    elif len(verdicts) == 1:
        print_verdict(console, target, verdicts[0])
    else:
        print_verdicts(console, verdicts)
        if refuted:
            print_counterexample(console, refuted[0])
    if refuted:
        raise typer.Exit(1)


def _check_files(files: Sequence[str], as_json: bool) -> None:
    findings: list[Finding] = []
    for file in files:
        if not is_xml(file):
            raise UsageError(f"{file} is no file of XML", "files of XML are checked together, programs one by one")
    with working("proving") as update:
        for number, file in enumerate(files):
            update(f"proving {file} ({number + 1} of {len(files)})")
            findings.append(judge(file))
    refuted = [finding for finding in findings if finding.error is not None]
    if as_json:
        print(json.dumps({"proven": not refuted, "files": [f.as_json() for f in findings]}, indent=2))
    else:
        console = _console()
        print_findings(console, findings)
        for finding in refuted:
            assert finding.error is not None
            console.print()
            print_error(finding.error, console)
    if refuted:
        raise typer.Exit(1)


# ---------------------------------------------------------------------------------------------------------------
# show


class StageName(StrEnum):
    """The three stages of a program (design section 3)."""

    chunk = "chunk"
    instr = "instr"
    schedule = "schedule"


@app.command()
def show(
    target: Target,
    parameters: Parameters = None,
    stage: Annotated[
        StageName | None,
        typer.Option(help="Chunk DAG, Instruction DAG after its last pass, or Schedule.", show_default="schedule"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw a picture: .svg, .png or .pdf.", show_default=False)
    ] = None,
    rank: Annotated[list[int] | None, typer.Option(help="Only this rank; may be repeated.", show_default=False)] = None,
    dump_ir: Annotated[
        list[str] | None,
        typer.Option(metavar="after=PASS[,rank=N]", help="The text after a pass; may be repeated.", show_default=False),
    ] = None,
    diff: Annotated[
        list[str] | None,
        typer.Option(metavar="PASS", help="What a pass changed; may be repeated.", show_default=False),
    ] = None,
    time: Annotated[bool, typer.Option("--time", help="How long each pass took, and what it made.")] = False,
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Print a stage of a program, draw it, or show what the passes of the compiler made of it."""
    dumps = [parse_dump(word, rank or []) for word in dump_ir or []]
    diffs = [pass_name(word) for word in diff or []]
    if output is not None:
        _check_picture(output)
    passes: list[Pass] = []
    with working(f"compiling {target}") as update:
        made = parsed(target) if is_xml(target) and not parameters else one_case(target, parameters or []).load()
        wanted = stage or StageName.schedule
        if isinstance(made, Schedule) and (dumps or diffs or time or wanted is not StageName.schedule):
            raise UsageError(f"{target} is a schedule already: it has no other stage and no passes")
        # What a wrong program says can be seen, though it does not compile.
        chunks_only = wanted is StageName.chunk and isinstance(made, Program) and not (dumps or diffs or time)
        if isinstance(made, Program) and chunks_only:
            found: Stage = made.chunk_dag
        else:
            options = Options(protocol, instances, slots, storage)
            schedule = made if isinstance(made, Schedule) else options.compile(made, passes)
            found = _stage(wanted, made, passes, schedule)
        _check_ranks([*(rank or []), *(r for _, ranks in dumps for r in ranks)], found.collective.size)
        if output is not None:
            update(f"drawing {output}")
            _draw(found, output)
    text = print_stage(found, ranks=rank)
    if as_json:
        listed = [
            {"name": p.name, "doc": pass_doc(p.name), "seconds": p.seconds, "made": counts(p.after)} for p in passes
        ]
        report: dict[str, object] = {"name": found.name, "stage": wanted.value, "text": text, "passes": listed}
        if dumps:
            report["dumps"] = [
                {"after": name, "ranks": ranks, "text": text_after(passes, name, ranks)} for name, ranks in dumps
            ]
        if diffs:
            report["diffs"] = [{"pass": name, "lines": diff_of(named(passes, name), rank)} for name in diffs]
        print(json.dumps(report, indent=2))
        return
    console = _console()
    if time:
        print_times(console, passes)
    for name, ranks in dumps:
        print(f"# after {name}" + "".join(f", rank {r}" for r in ranks))
        print(text_after(passes, name, ranks), end="")
    for name in diffs:
        print_diff(console, named(passes, name), rank)
    if output is not None:
        Console(stderr=True, highlight=False).print(f"drew {output}", soft_wrap=True)
    elif stage is not None or not (dumps or diffs or time):
        print(text, end="")


def _stage(wanted: StageName, made: Program | Schedule, passes: Sequence[Pass], schedule: Schedule) -> Stage:
    if wanted is StageName.chunk and isinstance(made, Program):
        return made.chunk_dag
    if wanted is StageName.instr:
        return next(p.after for p in reversed(passes) if isinstance(p.after, InstrDag))
    return schedule


def _check_ranks(ranks: Iterable[int], size: int) -> None:
    for rank in ranks:
        if not 0 <= rank < size:
            raise UsageError(f"there is no rank {rank}: the program has ranks 0 to {size - 1}")


def _check_picture(path: Path) -> None:
    if path.suffix[1:].lower() not in ("svg", "png", "pdf"):
        raise UsageError(f"a picture ends in .svg, .png or .pdf, not {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}")


def _draw(stage: Stage, path: Path) -> None:
    from hocket.formats.picture import draw  # matplotlib takes longer to load than all of the rest

    try:
        draw(stage, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# ---------------------------------------------------------------------------------------------------------------
# run, bench, launch, demo


@app.command()
def run(
    target: Target,
    parameters: Parameters = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", help="Processes; must be the program's ranks.", show_default=False)
    ] = None,
    size: Annotated[str, typer.Option(help="Bytes of a rank's larger buffer; K = 1024.")] = "64MB",
    dtype: DType = "float32",
    op: Annotated[str, typer.Option(help="sum, prod, min, max or avg.")] = "sum",
    iters: Annotated[int, typer.Option(min=1, help="Calls that are timed.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before those.")] = 5,
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    as_json: Json = False,
) -> None:
    """Run a program on processes of this machine, check what it computed, and time it.

    Each iteration's time is that of its slowest rank. algbw and busbw are those of nccl-tests, in 1e9 bytes a second.
    Exits with 1 if anything was wrong.
    """
    from hocket.cli.measure import check_names, measure

    check_names(dtype, op)
    amount = parse_size(size)
    with working(f"compiling {target}") as update:
        schedule = Options(protocol, instances, slots).compile(one_case(target, parameters or []).load())
        size_of = schedule.collective.size
        if ranks is not None and ranks != size_of:
            raise UsageError(f"the program is for {size_of} ranks, -n asks for {ranks}", "give both the same number")
        update(f"running on {size_of} processes")
        found = measure(schedule, amount, dtype, op, iters, warmup)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _console().print(Text(f"{schedule.name}: {found}", "red" if found.wrong else ""), soft_wrap=True)
    if found.wrong:
        raise typer.Exit(1)


@app.command()
def export(
    target: Target,
    parameters: Parameters = None,
    to: Annotated[str, typer.Option("--target", help="The runtime: msccl or rccl.")] = "msccl",
    protocol: Annotated[
        str | None, typer.Option(help="Simple, LL or LL128.", show_default="the program's, or Simple")
    ] = None,
    instances: Instances = None,
    inplace: Annotated[
        bool | None,
        typer.Option("--inplace/--out-of-place", help="Which calls it serves.", show_default="as the program is"),
    ] = None,
    min_bytes: Annotated[
        str | None, typer.Option(help="The smallest call it serves; K = 1024.", show_default="0")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="The largest call it serves; it counts.", show_default="no limit")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Write a program, or a schedule, as XML that MSCCL or RCCL loads, proven for the slots that it has there.

    A file of XML can be exported again: for the other runtime, or for other sizes.
    """
    from hocket.cli.export import Wishes
    from hocket.cli.export import export as exported

    low, high = (None if size is None else parse_size(size) for size in (min_bytes, max_bytes))
    wishes = Wishes(to, protocol, instances, inplace, low, high)
    with working(f"exporting {target}"):
        text = exported(target, parameters or [], wishes)
    note = TARGETS[to].note
    if note is not None:
        Console(stderr=True, highlight=False).print(f"note: {note}", soft_wrap=True)
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    Console(stderr=True, highlight=False).print(f"wrote {output}", soft_wrap=True)


@app.command()
def bench(
    collective: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather or scatter.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE:FUNC]", help="A program of this collective, instead of the default.", show_default=False
        ),
    ] = None,
    parameters: Parameters = None,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, help="Processes.", show_default="4, or the program's ranks"),
    ] = None,
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="The first size; K = 1024.")] = "8",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="The largest size; it counts.")] = "64M",
    factor: Annotated[float, typer.Option("-f", "--stepfactor", help="From one size to the next.")] = 2,
    iters: Annotated[int, typer.Option(min=1, help="Calls that are timed, of each size.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before those.")] = 5,
    dtype: DType = "float32",
    op: Annotated[
        str | None, typer.Option(help="sum, prod, min, max or avg; for what reduces.", show_default="sum")
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and busbw over size: .svg, .png or .pdf.", show_default=False)
    ] = None,
) -> None:
    """Time a collective over a range of sizes, apart and in place, and check it, in the manner of nccl-tests.

    Sizes are bytes of a rank's larger buffer, rounded down to whole elements but at least one. Times are of the slowest
    rank. Exits with 1 if anything was wrong.
    """
    if plot is not None:
        _check_picture(plot)
    from hocket.cli.bench import Sweep, draw_rows, print_rows, sizes

    amounts = sizes(begin, end, factor)
    with working(f"compiling {target or collective}") as update:
        made = None if target is None else Options(None, None, None).compile(one_case(target, parameters or []).load())
        sweep = Sweep.of(collective, made, ranks, amounts, dtype, op, iters, warmup)
        update(f"timing {len(sweep.jobs)} sizes on {sweep.collective.size} processes")
        rows = sweep.measure()
        if plot is not None:
            try:
                draw_rows(sweep, rows, plot)
            except OSError as error:
                raise UsageError(f"cannot write {plot}: {error.strerror}") from None
    if as_json:
        print(json.dumps(sweep.as_json(rows), indent=2))
    else:
        print_rows(sweep, rows, _console())
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


@app.command()
def explain(
    collective: Annotated[str, typer.Argument(help="One that is called by name, such as all_reduce.")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Processes.")] = 4,
    size: Annotated[str, typer.Option(help="Bytes of a rank's larger buffer; K = 1024.")] = "1M",
    root: Annotated[int, typer.Option(min=0, help="The root of a rooted one.")] = 0,
    as_json: Json = False,
) -> None:
    """Say which program a call by name runs, why, what it moves and how long it might take on this machine."""
    from hocket.cli.explain import explained

    found = explained(collective, ranks, parse_size(size), root)
    print(json.dumps(asdict(found), indent=2) if as_json else found)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT.py [ARGS]...", help="A Python file, or any command after --.")
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Processes to start.")] = 4,
) -> None:
    """Run a script as several ranks that find each other with hocket.init().

    Every line they print begins with [rank]. When one fails the rest are ended, its traceback is shown last, and its
    exit code is returned.
    """
    from hocket.runtime.launch import launch as start

    if command[0].endswith(".py"):
        if not Path(command[0]).is_file():
            raise UsageError(f"there is no file {command[0]}")
    elif shutil.which(command[0]) is None:
        raise UsageError(f"there is no command {command[0]!r}")
    sys.stdout.flush()
    raise typer.Exit(start(command, ranks))


@app.command(context_settings={"allow_interspersed_args": False})
def msccl(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT.py [ARGS]...", help="A program for msccl-tools, and its arguments.")
    ],
    target: Annotated[str, typer.Option(help="The runtime that XML() writes for: msccl or rccl.")] = "msccl",
    min_bytes: Annotated[str, typer.Option(help="The smallest call that the XML serves.")] = "0",
    max_bytes: Annotated[
        str | None, typer.Option(help="The largest call that the XML serves.", show_default="no limit")
    ] = None,
) -> None:
    """Run a script that was written for msccl-tools, unchanged, and prove every program in it.

    Its output goes where it always went, so XML() can be redirected to a file; what was proven is said on standard
    error. Exits with 1 if a program is wrong, else as the script does.
    """
    from hocket.cli.msccl import play

    if not play(Path(command[0]), command[1:], target, min_bytes, max_bytes):
        raise typer.Exit(1)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to draw.")] = Path("hocket-demo.svg"),
    size: Annotated[
        str, typer.Option(help="Bytes of each rank's buffer; 25 MB is DDP's bucket of gradients.")
    ] = "25MB",
) -> None:
    """Follow the paper's hierarchical AllReduce from twenty lines of Python to gradients summed on real processes."""
    _check_picture(output)
    from hocket.cli.demo import play

    if play(output, size):
        raise typer.Exit(1)
