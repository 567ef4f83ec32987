"""The demonstration: one program, from Python to gradients summed on real processes."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.text import Text

import hocket
from hocket.algorithms import hierarchical
from hocket.cli.compiled import Options, Pass, counts, show_counts
from hocket.cli.measure import measure
from hocket.cli.progress import working
from hocket.cli.target import parse_size
from hocket.cli.writing import writing
from hocket.compiler.pipeline import PASSES
from hocket.formats.picture import draw
from hocket.ir.instr_dag import Instr, InstrDag, opcode
from hocket.ir.text import Stage, print_stage
from hocket.verify import Proof

_NODES, _GPUS = 2, 3  # as in Figure 1


def play(output: Path, size: str) -> int:
    """Print the demonstration, draw its picture. The number of wrong elements of the result, which should be 0."""
    amount = parse_size(size)
    console = Console(highlight=False)

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    def head(number: int, title: str, rest: str) -> None:
        console.print(Text.assemble("\n", (f"{number} {title}", "bold cyan"), f"  {rest}"), soft_wrap=True)

    what = f"hierarchical AllReduce (MSCCLang, Figures 1 and 3), {_NODES} nodes of {_GPUS} ranks"
    say(f"hocket {hocket.__version__}: {what}", "bold")

    program = hierarchical.all_reduce(_NODES, _GPUS)
    operations = [line.partition("  ")[0] for line in _of_rank_0(program.chunk_dag, "0: input")]
    head(
        1,
        "trace",
        f"hierarchical.py says where chunks go: {show_counts(program.chunk_dag)}, {len(operations)} with rank 0",
    )
    say("\n".join([f"    {line}" for line in operations[:4]] + ["    ..."]), "dim")

    passes: list[Pass] = []
    schedule = Options(None, None, None).compile(program, passes)
    head(2, "compile", f"{len(passes)} passes, {sum(p.seconds for p in passes) * 1e3:.1f} ms")
    for p, known in zip(passes, PASSES, strict=True):
        made = counts(p.after).items() - counts(p.before).items()
        news = ", ".join(f"{n} {what}" for what, n in counts(p.after).items() if (what, n) in made)
        say(f"    {p.name:<10} {known.doc:<46} {news}".rstrip())
    say("  fuse, for one: rank 0 receives, adds, keeps and sends on in one instruction, not two")
    say(_fusion(passes), "dim")
    blocks = len(schedule.ranks[0].thread_blocks)
    say(f"  and so its part of the schedule is {blocks} thread blocks that run side by side")
    say("\n".join(f"    {line}" for line in _of_rank_0(schedule, "rank 0")), "dim")

    proof = Proof.of(schedule)
    head(3, "prove", f"{proof}: no deadlock, no race,")
    say("  and every rank ends with the sum of all. Each schedule is proven, each time it is compiled.")

    head(4, "run", f"the proven schedule, through shared memory, on {len(os.sched_getaffinity(0))} cores")
    with working("running"):
        found = measure(schedule, amount, "float32", "sum", iterations=20, warmup=5)
    say(f"  {str(found).replace(chr(10), chr(10) + '  ')}", "bold red" if found.wrong else "")

    head(5, "look", f"{output} shows who sends what to whom, and who waits for whom")
    with working("drawing"), writing(output):
        draw(schedule, output)

    console.print(
        "\nNext: [bold]hocket check ring:all_reduce ranks=2..16[/], then a program of your own",
        soft_wrap=True,
    )
    return found.wrong


def _of_rank_0(stage: Stage, begin: str) -> list[str]:
    """The lines that are about rank 0, from after the line that begins so."""
    lines = print_stage(stage, locations=False, ranks=[0]).splitlines()
    return lines[1 + next(i for i, line in enumerate(lines) if line.startswith(begin)) :]


def _fusion(passes: list[Pass]) -> str:
    """The first instruction of rank 0 that fuse made of a receiving and a sending one, under the two it was made of."""
    before, after = next((p.before, p.after) for p in passes if p.name == "fuse")
    assert isinstance(before, InstrDag)
    assert isinstance(after, InstrDag)
    fused = next(i for i in after.instrs if i.rank == 0 and opcode(i.shape) == "rrcs")
    parts = [i for i in before.instrs if i.arrivals == fused.arrivals or i.departures == fused.departures]
    return "\n".join([*(f"    {_show(part)}" for part in parts), f"      = {_show(fused)}"])


def _show(instr: Instr) -> str:
    return f"{opcode(instr.shape)} {' '.join(map(str, instr.srcs))} -> {' '.join(map(str, instr.dsts))}"
