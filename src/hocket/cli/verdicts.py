"""What was found out about programs, and how it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hocket.cli.compiled import Facts, Options
from hocket.cli.target import Case, UsageError, show_value
from hocket.errors import HocketError, InvalidArgument
from hocket.verify import Contract, Proof, kept


def print_error(error: HocketError, console: Console) -> None:
    """An error, in colour where there is a terminal."""
    headline, newline, rest = str(error).partition("\n")
    text = Text(headline, style="bold red")
    text.append(newline + rest, style="not bold default")
    console.print(text, soft_wrap=True)


@dataclass(frozen=True)
class Verdict:
    """What was found out about one case: facts, a proof and the contract on bits that is kept, or an error."""

    case: Case
    seconds: float
    facts: Facts | None = None
    proof: Proof | None = None
    sums: Contract | None = None
    error: HocketError | None = None

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "parameters": dict(self.case.parameters),
            "verdict": "proven" if self.error is None else "refuted",
            "seconds": round(self.seconds, 6),
        }
        if self.facts is not None:
            found |= asdict(self.facts) | {"sums": self.sums}
        if self.error is not None:
            found["error"] = {"code": self.error.code, "text": str(self.error)}
        return found


def judge_case(case: Case, options: Options) -> Verdict:
    start = perf_counter()
    try:
        schedule = options.compile(case.load())
    except UsageError:
        raise
    except InvalidArgument as error:  # no program came of it, so nothing is refuted
        raise UsageError(error.message, error.help) from error
    except HocketError as error:
        return Verdict(case, perf_counter() - start, error=error)
    facts = Facts.of(schedule)
    proof = Proof.of(schedule)
    return Verdict(case, perf_counter() - start, facts, proof, kept(schedule))


def print_verdict(console: Console, target: str, verdict: Verdict) -> None:
    if verdict.facts is None:
        print_counterexample(console, verdict)
        return
    facts = verdict.facts
    console.print(f"[green]{verdict.proof}[/]: {facts.collective}")
    counts = (
        (facts.thread_blocks, "thread block"),
        (facts.channels, "channel"),
        (facts.steps, "step"),
    )
    words = [f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts]
    sums = f"; sums: {verdict.sums}" if verdict.sums is not None else ""
    text = f"{', '.join(words)}; {facts.traffic:.4g} buffers of memory traffic{sums}"
    console.print(text, style="dim", soft_wrap=True)


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in verdicts[0].case.parameters:
        table.add_column(name, justify="right")
    table.add_column("collective")
    for name in ("thread blocks", "channels", "steps", "slots", "traffic"):
        table.add_column(name, justify="right")
    table.add_column("sums")
    table.add_column("verdict")
    table.add_column("seconds", justify="right")
    for verdict in verdicts:
        row = [show_value(value) for value in verdict.case.parameters.values()]
        f = verdict.facts
        if f is not None:
            numbers = f.thread_blocks, f.channels, f.steps, f.slots
            row += [f.collective.partition("(")[0], *map(str, numbers), f"{f.traffic:.4g}", verdict.sums or ""]
            row.append("[green]proven[/]")
        else:
            assert verdict.error is not None
            row += [""] * 7 + [f"[red]{verdict.error.code}[/]"]
        table.add_row(*row, f"{verdict.seconds:.3f}")
    console.print(table)
    proven = sum(verdict.error is None for verdict in verdicts)
    console.print(
        f"\n{proven} of {len(verdicts)} proven. "
        "[dim]Slots: the least that are enough. Traffic: all reads and writes, in buffers.[/]",
        soft_wrap=True,
    )


def print_counterexample(console: Console, verdict: Verdict) -> None:
    assert verdict.error is not None
    if verdict.case.parameters:
        console.print(f"refuted for {verdict.case}", style="red")
    print_error(verdict.error, console)
