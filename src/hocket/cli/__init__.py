"""The command line."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import hocket
from hocket.cli.check import CheckCommand, judge
from hocket.cli.compiled import Options, Pass, under_contract
from hocket.cli.console import print_diagnostic, print_error, say
from hocket.cli.files import are_files, gather, meaning
from hocket.cli.passes import Views
from hocket.cli.progress import working
from hocket.cli.reports import MACHINES, Format
from hocket.cli.result import Report, Verdict
from hocket.cli.tables import print_report
from hocket.cli.target import Case, check_processes, is_xml, one_case, parse_size
from hocket.cli.writing import check_output, writing
from hocket.errors import HocketError, MissingPackage, UsageError
from hocket.formats.drawing import FORMATS
from hocket.formats.msccl_targets import TARGETS
from hocket.formats.picture import draw
from hocket.ir.instr_dag import InstrDag
from hocket.ir.schedule import Schedule
from hocket.ir.text import Stage, print_stage
from hocket.language import MAX_INSTANCES
from hocket.program import Program
from hocket.verify import Contract

_SURROUNDINGS = {errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS}
"""Errors of the system that are not hocket's."""


class _Commands(TyperGroup):
    """Shows our errors as they render themselves; the exit code is that of the verdict, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HocketError as error:
            found = error
        except MemoryError as error:  # here, or on a rank
            found = UsageError(": ".join(filter(None, ["there is not enough memory", str(error)])))
        except BrokenPipeError:  # typer ends quietly where nobody reads on
            raise
        except OSError as error:
            if error.errno not in _SURROUNDINGS:
                raise
            about = f" of {error.filename}" if error.filename else ""
            found = UsageError(f"the system says{about}: {error.strerror or error}")
        print_error(found, Console(stderr=True))
        raise typer.Exit(Verdict.of(found).exit_code)


app = typer.Typer(
    cls=_Commands,
    help="Write, prove, look at and run collective communication.",
    no_args_is_help=True,
    rich_markup_mode=None,  # it takes what stands in brackets for markup, and leaves it out
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNC",
        help="A function that returns a Program: in a file, a module, or the library (ring:all_reduce; see list); "
        "or a file that holds the text of a schedule, or MSCCL's XML.",
        show_default=False,
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Parameters of FUNC.", show_default=False)
]
Protocol = Annotated[
    str | None, typer.Option(help="How arrival is signalled, instead of the program's.", show_default=False)
]
Machine = Annotated[str, typer.Option(help="ndv4, dgx2, dgx1, gh200, local, or a file NAME.toml.")]
Nodes = Annotated[int, typer.Option(min=1, help="Nodes of it.")]
SizesOf = Annotated[str, typer.Option(help="Bytes of a rank's larger buffer, each twice the last; K = 1024.")]
Instances = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_INSTANCES, help="Parallel instances of the program, instead of its own.", show_default=False
    ),
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
AllowDifferingSums = Annotated[
    bool,
    typer.Option(
        "--allow-differing-sums", help="Accept an AllReduce whose ranks add up in different orders, to different bits."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Chakra = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Write Chakra's execution traces of each size, for ASTRA-sim.", show_default=False
    ),
]


def main() -> None:
    """Entry point of the command ``hocket``."""
    # A terminal need not have all characters that are printed.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
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


@app.command(cls=CheckCommand)
def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE:FUNC [NAME=VALUE]... | FILE... | FILE.toml",
            help="A program and its parameters, as for the other commands; or files: MSCCL's XML, texts of schedules, "
            "folders of them, and - for standard input; or a file of schedules by size, and ranks=2..8.",
            show_default=False,
        ),
    ],
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", help="A runtime that must load the files, msccl or rccl; may be repeated."),
    ] = None,
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    storage: Storage = None,
    allow_differing_sums: AllowDifferingSums = False,
    form: Annotated[Format, typer.Option("--format", help="For people, or for machines (docs/ci.md).")] = Format.text,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Prove that programs or files do what their collectives promise.

    All of it, in any order in which the ranks may run, without race or deadlock.
    Ranges such as ranks=2..33 (both ends included) prove every case. Files of MSCCL's XML are proven for the slots of
    their protocols; that ranks end with different bits is only a warning there. Of a file of schedules by size, such as
    HOCKET_CONFIG names, every entry is proven, and which of them calls take is shown. Exits with 0 if all is proven,
    with 1 if there is a counterexample or a --target does not load a file, with 2 if something could not be judged.
    """
    wanted = Format.json if as_json else form
    try:
        options = Options(protocol, instances, slots, storage, _contract(allow_differing_sums))
        report = judge(words, options, targets or [])
    except HocketError as error:
        report = Report(error=error)
    if wanted in MACHINES:
        print(MACHINES[wanted](report))
    else:
        print_report(report, _console())
    if report.verdict.exit_code:
        raise typer.Exit(report.verdict.exit_code)


# ---------------------------------------------------------------------------------------------------------------
# show


class StageName(StrEnum):
    """The three stages of a program (docs/design/language.md)."""

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
    """Print or draw a program, at any stage of the compiler.

    The stages are what the program says (Chunk DAG), instructions of single ranks (Instruction DAG), and what runs
    (Schedule).
    """
    views = Views.asked(dump_ir or [], diff or [], time, rank or [])
    if output is not None:
        _check_picture(output)
    passes: list[Pass] = []
    with working(f"compiling {target}") as update:
        made = meaning(target) if is_xml(target) and not parameters else one_case(target, parameters or []).load()
        wanted = stage or StageName.schedule
        if isinstance(made, Schedule) and (views or wanted is not StageName.schedule):
            raise UsageError(f"{target} is a schedule already: it has no other stage and no passes")
        # What a wrong program says can be seen, though it does not compile.
        if isinstance(made, Program) and wanted is StageName.chunk and not views:
            found: Stage = made.chunk_dag
        else:
            options = Options(protocol, instances, slots, storage)
            schedule = made if isinstance(made, Schedule) else options.compile(made, passes)
            found = _stage(wanted, made, passes, schedule)
        _check_ranks([*(rank or []), *(r for _, ranks in views.dumps for r in ranks)], found.collective.size)
        if output is not None:
            update(f"drawing {output}")
            with writing(output):
                draw(found, output, rank)
    text = print_stage(found, ranks=rank)
    if as_json:
        said = {"name": found.name, "stage": wanted.value, "text": text}
        print(json.dumps(said | views.as_json(passes), indent=2))
        return
    views.print(passes, _console())
    if output is not None:
        say(Console(stderr=True), f"drew {output}")
    elif stage is not None or not views:
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


def _check_picture(path: Path, *, plot: bool = False) -> None:
    """Whether a picture, or a plot, can be written there: asked before any work is done."""
    check_output(path, "a picture", FORMATS)
    if (plot or path.suffix.lower() != ".svg") and find_spec("matplotlib") is None:
        raise MissingPackage("a plot" if plot else f"a {path.suffix}, unlike an .svg,", "matplotlib", "plots")


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
    op: Annotated[
        str, typer.Option(help="sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor, minloc or maxloc.")
    ] = "sum",
    iters: Annotated[int, typer.Option(min=1, help="Calls that are timed.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before those.")] = 5,
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    allow_differing_sums: AllowDifferingSums = False,
    as_json: Json = False,
) -> None:
    """Run a program on processes, check its results and time it.

    Each iteration's time is that of its slowest rank. algbw and busbw are those of nccl-tests, in 1e9 bytes a second.
    Exits with 1 if anything was wrong.
    """
    from hocket.cli.measure import check_names, check_operator, measure

    check_names(dtype, op)
    amount = parse_size(size)
    with working(f"compiling {target}") as update:
        options = Options(protocol, instances, slots, reproducible=_contract(allow_differing_sums))
        schedule = _schedule(one_case(target, parameters or []), options)
        size_of = schedule.collective.size
        if ranks is not None and ranks != size_of:
            raise UsageError(f"the program is for {size_of} ranks, -n asks for {ranks}", "give both the same number")
        check_operator(schedule.collective, dtype, op)
        update(f"running on {size_of} processes")
        found = measure(schedule, amount, dtype, op, iters, warmup)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        say(_console(), f"{schedule.name}: {found}", "red" if found.wrong else "")
    if found.wrong:
        raise typer.Exit(1)


def _schedule(case: Case, options: Options) -> Schedule:
    """What is run: a program compiled, or the schedule of a file."""
    made = case.load()

    def compile_for(reproducible: Contract | None) -> Schedule:
        return replace(options, reproducible=reproducible).compile(made)

    return under_contract(compile_for, options.reproducible, foreign=case.foreign)


def _contract(allow_differing_sums: bool) -> Contract | None:
    return "may-differ" if allow_differing_sums else None


@app.command()
def timeline(
    target: Target,
    parameters: Parameters = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="A file that HOCKET_TRACE left, with a call of this program.", show_default=False),
    ] = None,
    call: Annotated[
        int | None, typer.Option(min=1, help="The number of the call in the file.", show_default="the last")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Simulate a call on this machine, as hocket sim does.", show_default=False)
    ] = None,
    nodes: Nodes = 1,
    size: Annotated[
        str | None, typer.Option(help="Bytes of a rank's larger buffer in the simulated call.", show_default=False)
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The page to write, .html; or .json, for Perfetto.")
    ] = Path("timeline.html"),
    protocol: Protocol = None,
    instances: Instances = None,
    slots: Slots = None,
    storage: Storage = None,
) -> None:
    """Draw when each step of a call ran, or would run.

    With --trace, the call was measured in a job that ran with HOCKET_TRACE=FILE in its environment; the program, its
    parameters and options are those of the call. With --topology it is simulated; with both, one is above the other.
    The page opens in any browser, without a network. It has lanes for ranks and thread blocks, in them the steps and
    waits, and messages between them. A click on a step shows its line of the program.
    """
    from hocket.timeline import FORMATS as ENDINGS
    from hocket.timeline import Timeline, measured

    check_output(output, "a timeline", ENDINGS)
    if trace is not None and output.resolve() == trace.resolve():
        raise UsageError(f"{output} is the trace, which this would replace")
    if (topology is None) != (size is None) or (topology is None and trace is None):
        raise UsageError("a timeline is of a call in a --trace, or simulated on a --topology with a --size, or both")
    found: list[Timeline] = []
    with working(f"compiling {target}") as update:
        options = Options(protocol, instances, slots, storage, "may-differ")
        schedule = options.compile(one_case(target, parameters or []).load())
        if topology is not None and size is not None:
            update(f"simulating {target}")
            found.append(import_module("hocket.cli.sim").timeline(schedule, topology, nodes, size))
        if trace is not None:
            update(f"reading {trace}")
            found.append(measured(trace, schedule, call))
        update(f"drawing {output}")
        with writing(output):
            found[0].draw(output, *found[1:])
    errors = Console(stderr=True)
    for one in found:
        say(errors, f"{one.schedule.name}, {one.title}: {one.total:.6g} us")
    say(errors, f"drew {output}")


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
        str | None,
        typer.Option(
            help="The largest call it serves; it counts.", show_default="no limit; 128 MB for msccl with scratch"
        ),
    ] = None,
    allow_differing_sums: AllowDifferingSums = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The file to write; of files, also a folder.", show_default="standard output"
        ),
    ] = None,
) -> None:
    """Write a program as XML that MSCCL or RCCL loads.

    It is proven for the slots that it has there. A schedule can be written too.

    A file of XML can be exported again: for the other runtime, or for other sizes. Several files, or a folder, are
    written to a folder, and one file to a folder that exists; what cannot be written is reported and left out, and the
    command fails in the end.
    """
    from hocket.cli.export import Wishes, notes, outputs, write_text
    from hocket.cli.export import export as exported

    low, high = (None if size is None else parse_size(size) for size in (min_bytes, max_bytes))
    wishes = Wishes(to, protocol, instances, inplace, low, high, _contract(allow_differing_sums))
    words = [target, *(parameters or [])]
    files = gather(words) if are_files(words) else {}
    errors = Console(stderr=True)
    if len(files) > 1 or Path(target).is_dir() or (files and output is not None and output.is_dir()):
        if output is None:
            raise UsageError("several files are written to a folder", "name it with -o")
        verdicts = [Verdict.PROVEN]
        for file, place in outputs(files, output).items():
            try:
                with working(f"exporting {file}"):
                    text = exported(file, [], wishes)
                write_text(place, text)
            except HocketError as error:
                print_diagnostic(error.diagnostic(), errors, file=file)
                verdicts.append(Verdict.of(error))
            else:
                for note in notes(text, TARGETS[to]):
                    say(errors, f"note: {file}: {note}")
                say(errors, f"wrote {place}")
        raise typer.Exit(max(verdict.exit_code for verdict in verdicts))
    with working(f"exporting {target}"):
        text = exported(target, parameters or [], wishes)
    for note in notes(text, TARGETS[to]):
        say(errors, f"note: {note}")
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        say(errors, f"wrote {output}")


@app.command()
def bench(
    collective: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, scan or "
            "exscan.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE:FUNC", help="A program of this collective, instead of the default.", show_default=False
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
    op: Annotated[str | None, typer.Option(help="As that of run; for what reduces.", show_default="sum")] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and busbw over size: .svg, .png or .pdf.", show_default=False)
    ] = None,
) -> None:
    """Time a collective over a range of sizes, as nccl-tests does.

    Each size is measured and checked out of place and in place.

    Sizes are bytes of a rank's larger buffer, rounded down to whole elements but at least one. Times are of the slowest
    rank. Exits with 1 if anything was wrong.
    """
    if plot is not None:
        _check_picture(plot, plot=True)
    from hocket.cli.bench import Sweep, draw_rows, print_rows, sizes

    amounts = sizes(begin, end, factor)
    with working(f"compiling {target or collective}") as update:
        made = None if target is None else _schedule(one_case(target, parameters or []), Options(None, None, None))
        sweep = Sweep.of(collective, made, ranks, amounts, dtype, op, iters, warmup)
        update(f"timing {len(sweep.jobs)} sizes on {sweep.collective.size} processes")
        rows = sweep.measure()
        if plot is not None:
            draw_rows(sweep, rows, plot)
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
    """Say which program a call by name runs, and why.

    Also what it moves, and how long it might take on this machine.
    """
    from hocket.cli.explain import explained

    found = explained(collective, ranks, parse_size(size), root)
    print(json.dumps(asdict(found), indent=2) if as_json else found)


@app.command()
def sim(
    target: Target,
    parameters: Parameters = None,
    topology: Machine = "ndv4",
    nodes: Nodes = 1,
    sizes: SizesOf = "1KB..1GB",
    vs: Annotated[
        str | None,
        typer.Option(metavar="'FILE:FUNC NAME=VALUE ...'", help="A program to compare with.", show_default=False),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Simple, LL, LL128 or Direct; on local a path.",
            show_default="the fastest for each size",
        ),
    ] = None,
    instances: Instances = None,
    storage: Storage = None,
    why: Annotated[bool, typer.Option("--why", help="Print the critical path of the largest size.")] = False,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and speedup over size: .svg, .png or .pdf.", show_default=False)
    ] = None,
    chakra: Chakra = None,
) -> None:
    """Simulate a program on a machine that need not be here.

    A table of times, beside floors that no run can be below and a closed form; and what holds it up
    (docs/simulator.md).
    """
    from hocket.cli.export import check_folder
    from hocket.sim import Simulator

    if plot is not None:
        _check_picture(plot, plot=True)
    if chakra is not None:
        check_folder(chakra)

    simulation = import_module("hocket.cli.sim")  # which has the name of this function
    amounts = simulation.sizes(sizes)
    machine, protocol = simulation.machine(topology, nodes, protocol)
    with working(f"compiling {target}") as update:
        fifo = "fifo" if storage is None else storage
        one = Simulator(simulation.compiled(target, parameters or [], instances, fifo, machine), machine)
        other = None if vs is None else Simulator(simulation.other(vs, one.schedule, fifo, machine), machine)
        update(f"simulating {target}")
        rows = simulation.predicted(one, other, amounts, protocol)
        trace = one.trace(amounts[-1], rows[-1].found.protocol) if why else None
    if plot is not None:
        simulation.draw_rows(one, rows, plot)
    if chakra is not None:
        _write_chakra(chakra, [(one.schedule, size) for size in amounts])
    if as_json:
        found = simulation.as_json(one, rows)
        print(json.dumps(found if trace is None else found | {"why": simulation.shares(trace)}, indent=2))
        return
    simulation.print_rows(one, rows, _console())
    if trace is not None:
        simulation.print_why(trace, _console())


@app.command()
def calibrate(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A file NAME.toml.", show_default="where the topology local is looked for"),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=1, help="At once, at most.", show_default="one for each core")
    ] = None,
) -> None:
    """Measure this machine in half a minute: the topology local.

    What a call, a step and a message cost, and how fast cores copy and add up from their caches and from memory.
    hocket sim --topology local and hocket explain predict with it. Best done while nothing else runs.
    """
    from hocket.calibrate import is_disturbed
    from hocket.cli.calibrate import measured, place, print_found
    from hocket.cli.export import write_text
    from hocket.topology import dump_cores

    path = place(output)
    figures, found = measured(ranks)
    print_found(found, figures, _console())
    write_text(path, dump_cores(found))
    _console().print(f"\nwritten to {path}", highlight=False, markup=False, soft_wrap=True)
    if is_disturbed(figures):
        say(Console(stderr=True), "others used the cores meanwhile: calibrate again when the machine is idle", "yellow")


@app.command()
def search(
    collective: Annotated[str, typer.Option(help="Such as all_reduce.")] = "all_reduce",
    topology: Machine = "ndv4",
    nodes: Nodes = 1,
    sizes: SizesOf = "1KB..1GB",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder for hocket.toml, XML and a CSV.", show_default=False),
    ] = None,
    chakra: Chakra = None,
    as_json: Json = False,
) -> None:
    """Find the fastest program for each size, by simulation.

    Of the library, with all its knobs: channels, instances, protocol; on a machine that need not be here. For each size
    the winner, the best other program, and what most of the time is spent on.
    """
    from hocket.cli.export import check_folder
    from hocket.cli.search import as_json as in_json
    from hocket.cli.search import candidates, print_choices, ranges, write
    from hocket.cli.search import search as searched
    from hocket.cli.sim import machine as described
    from hocket.cli.sim import sizes as amounts

    for folder in (output, chakra):
        if folder is not None:
            check_folder(folder)
    machine, _ = described(topology, nodes, None)
    with working(f"searching for {collective}") as update:
        choices = searched(candidates(collective, machine, update), amounts(sizes), update)
    found = ranges(choices)
    if as_json:
        print(json.dumps(in_json(choices, found), indent=2))
    else:
        print_choices(choices, found, _console())
    if output is not None:
        write(output, collective, found, machine, Console(stderr=True))
    if chakra is not None:
        _write_chakra(chakra, [(choice.winner.simulator.schedule, choice.size) for choice in choices])


def _write_chakra(folder: Path, calls: Iterable[tuple[Schedule, int]]) -> None:
    from hocket.cli.chakra import write

    for prefix in write(folder, calls):
        say(Console(stderr=True), f"wrote {prefix}.RANK.et")


# ---------------------------------------------------------------------------------------------------------------
# tune

tune_app = typer.Typer(cls=_Commands, invoke_without_command=True, rich_markup_mode=None)
app.add_typer(tune_app, name="tune")

TableFile = Annotated[Path, typer.Argument(metavar="FILE", help="A table of a tuner.", show_default=False)]


@tune_app.callback()
def tune(
    context: typer.Context,
    collective: Annotated[
        str | None, typer.Option(help="One that is called by name, such as all_reduce.", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="Processes.")] = 2,
    sizes: SizesOf = "1KB..1MB",
    dtype: DType = "float32",
    op: Annotated[str | None, typer.Option(help="As that of run; for what reduces.", show_default="sum")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", "--output", help="The table's file.", show_default="that of this machine"),
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw times and speedup over size: .svg, .png or .pdf.", show_default=False)
    ] = None,
) -> None:
    """Measure which way to make a call is fastest, size by size.

    Every program of the library with the bits of the static policy, with its tiles, in turns on this machine
    (docs/tuning-files.md). The table keeps what was measured; an arm is chosen over the static policy only where it was
    faster in the same rounds. Best done while nothing else runs.
    """
    if context.invoked_subcommand is not None:
        return
    if collective is None:
        raise UsageError("hocket tune needs a --collective, such as all_reduce, or show, diff, why or export")
    if plot is not None:
        _check_picture(plot, plot=True)
    if output is not None:
        check_output(output, "a table", (".json",))
    from hocket.cli.progress import bar
    from hocket.cli.sim import sizes as amounts
    from hocket.cli.tune import draw, measured, place, plans, print_table
    from hocket.runtime.bootstrap import MOST_RANKS
    from hocket.runtime.machine import fingerprint
    from hocket.tuner.store import Table, dump, update

    check_processes(ranks, MOST_RANKS)
    path = place(output)
    with working(f"compiling {collective}"):
        wanted = plans(collective, ranks, amounts(sizes), dtype, op)
    with bar(f"tuning {collective}") as done:
        found, wrong = measured(wanted, done)
    here, errors = fingerprint(), Console(stderr=True)
    if as_json:
        print(dump(Table.of(here, found)), end="")
    else:
        print_table(found, _console())
    for line in wrong:
        say(errors, line, "red")
    update(path, here, found)
    say(errors, f"wrote {path}")
    if plot is not None:
        draw(found, plot)
    if wrong:
        raise typer.Exit(1)


@tune_app.command(name="show")
def tune_show(file: TableFile, as_json: Json = False) -> None:
    """Print a table: for each key the chosen arm, beside the static policy."""
    from hocket.cli.tune import print_head, print_table
    from hocket.tuner.store import dump, read

    table = read(file)
    if as_json:
        print(dump(table), end="")
        return
    print_head(table, _console())
    print_table(table.keys, _console())


@tune_app.command(name="why")
def tune_why(
    file: TableFile,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="Words that name one: all_reduce 64KB ranks=2 float32.", show_default=False),
    ],
) -> None:
    """Say what is known of all arms of a key, and why one was chosen."""
    from hocket.cli.tune import one, print_why
    from hocket.tuner.store import read

    print_why(one(read(file), key), _console())


@tune_app.command(name="diff")
def tune_diff(before: TableFile, after: TableFile) -> None:
    """Print the keys of which two tables have chosen different arms. Exits with 1 if there are any."""
    from hocket.cli.tune import print_changes
    from hocket.tuner.store import read

    if print_changes(read(before), read(after), _console()):
        raise typer.Exit(1)


@tune_app.command(name="export")
def tune_export(
    file: TableFile,
    to: Annotated[str, typer.Option(help="toml, xml, nccl, openmpi, openmpi-json, mpich or ucc.", show_default=False)],
    base: Annotated[
        Path | None,
        typer.Option(help="For mpich: its libmpi.so, or its coll/mpir/generic.json.", show_default=False),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="For nccl, of all lines: Simple, LL or LL128.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", "--output", help="The file; for xml a folder.", show_default="standard output"),
    ] = None,
) -> None:
    """Write what was chosen as others read it.

    hocket.toml for HOCKET_CONFIG, XML for MSCCL, the CSV of NCCL's example tuner, rules for Open MPI (openmpi up to 5,
    openmpi-json from 6), a selection for MPICH, variables for UCC. What they cannot say is said here, with the reason,
    and the command fails in the end.
    """
    from hocket.cli.export import write_text
    from hocket.cli.target import one_of
    from hocket.cli.tune import FORMATS as TO
    from hocket.cli.tune import exportable, exported, write_xml

    to = one_of("--to", to, TO)
    if protocol is not None and to != "nccl":
        raise UsageError(f"--protocol is for --to nccl, not for {to}")
    table = exportable(file)
    errors = Console(stderr=True)
    if to == "xml":
        if output is None:
            raise UsageError("files of XML are written to a folder", "name it with -o")
        written, refused = write_xml(table, output)
        for path in written:
            say(errors, f"wrote {path}")
    else:
        made = exported(table, file.name, to, base, protocol)
        refused = list(made.refused)
        if output is None:
            print(made.text, end="")
        else:
            write_text(output, made.text)
            say(errors, f"wrote {output}")
    for refusal in refused:
        say(errors, f"not said: {refusal}")
    if refused:
        raise typer.Exit(1)


# ---------------------------------------------------------------------------------------------------------------
# info, list, launch, mpi, msccl, demo


@app.command()
def info(as_json: Json = False) -> None:
    """List every tuned number, with its value and unit.

    Those that HOCKET_TUNABLES sets are marked.
    """
    from hocket.cli.info import described, print_info

    if as_json:
        print(json.dumps(described(), indent=2))
    else:
        print_info(_console())


@app.command(name="list")
def list_(
    collective: Annotated[
        str | None, typer.Argument(help="Only those of one, such as all_reduce.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms of the library.

    Each with its name for the other commands, its parameters, the numbers of ranks it takes, what it costs and where it
    comes from.
    """
    from hocket.cli import catalogue  # loads all of the library

    found = catalogue.listed(collective)
    if as_json:
        print(json.dumps([catalogue.as_json(algorithm) for algorithm in found], indent=2))
    else:
        catalogue.print_algorithms(_console(), found)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="SCRIPT.py and its arguments, or any command after --."),
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Processes to start.")] = 4,
) -> None:
    """Run a script as several ranks.

    They find each other with hocket.init().

    Every line they print begins with [rank]. When one fails the rest are ended, its traceback is shown last, and its
    exit code is returned.
    """
    from hocket.runtime.bootstrap import MOST_RANKS
    from hocket.runtime.launch import launch as start

    check_processes(ranks, MOST_RANKS)
    if command[0].endswith(".py"):
        if not Path(command[0]).is_file():
            raise UsageError(f"there is no file {command[0]}")
    elif shutil.which(command[0]) is None:
        raise UsageError(f"there is no command {command[0]!r}")
    sys.stdout.flush()
    raise typer.Exit(start(command, ranks))


@app.command(context_settings={"allow_interspersed_args": False})
def mpi(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="mpiexec, mpirun or srun with what they are given; or a program by itself.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print at the end which calls were hocket's, which not, and why.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Leave every second call to the MPI, and print the times of both.")
    ] = False,
    library: Annotated[bool, typer.Option("--library", help="Print the path of the library, for LD_PRELOAD.")] = False,
    prepare: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS", help="Make plans for so many ranks, 24 or 17..64, or on nodes, 4+4.", show_default=False
        ),
    ] = None,
) -> None:
    """Run a program of MPI, unchanged, with hocket's collectives.

    The command is run as it is, with a library preloaded in its ranks. What hocket does not do goes to the MPI: Open
    MPI, MPICH or Intel MPI (docs/mpi.md).
    """
    from hocket.cli.mpi import library_path, prepare_plans, start

    if (command is not None) + library + (prepare is not None) != 1:
        raise UsageError("hocket mpi takes a command, or else --library or --prepare")
    if library:
        print(library_path())
    elif prepare is not None:
        prepare_plans(prepare)
    elif command is not None:
        start(command, report=report, compare=compare)


@app.command(context_settings={"allow_interspersed_args": False})
def msccl(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="It runs unchanged.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENT", help="The script's own.")] = None,
    target: Annotated[str, typer.Option(help="The runtime that XML() writes for: msccl or rccl.")] = "msccl",
    min_bytes: Annotated[str, typer.Option(help="The smallest call that the XML serves.")] = "0",
    max_bytes: Annotated[
        str | None,
        typer.Option(
            help="The largest call that the XML serves.", show_default="no limit; 128 MB for msccl with scratch"
        ),
    ] = None,
    allow_differing_sums: AllowDifferingSums = False,
) -> None:
    """Run a script written for msccl-tools and prove its programs.

    Its output goes where it always went, so XML() can be redirected to a file; what was proven is said on standard
    error. Exits with 1 if a program is wrong, else as the script does.
    """
    from hocket.cli.msccl import play

    if not play(script, arguments or [], target, min_bytes, max_bytes, _contract(allow_differing_sums)):
        raise typer.Exit(1)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to draw.")] = Path("hocket-demo.svg"),
    size: Annotated[
        str, typer.Option(help="Bytes of each rank's buffer; 25 MB is DDP's bucket of gradients.")
    ] = "25MB",
) -> None:
    """Follow one AllReduce from Python to gradients summed.

    It is the paper's hierarchical one: twenty lines of Python, traced, compiled, proven, run on real processes, drawn.
    """
    _check_picture(output)
    from hocket.cli.demo import play

    if play(output, size):
        raise typer.Exit(1)
