"""A report of ``hocket check`` as people read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from hocket.cli.console import print_diagnostic, print_error, say
from hocket.cli.result import Report, Result, Skipped, Taken
from hocket.cli.target import show_value
from hocket.errors import counted, printable
from hocket.tunables import show_size

if TYPE_CHECKING:
    from hocket.tuning import Sizes


@dataclass(frozen=True)
class _Column:
    """A column of the table.

    ``least``: how narrow it may be folded; None if it may not. ``expendable``: whether it is left out where a terminal
    is too narrow; those with larger numbers go first.
    """

    name: str
    cell: Callable[[Result], str]
    justify: JustifyMethod = "left"
    least: int | None = None
    expendable: int = 0


def _collective(result: Result) -> str:
    if result.facts is None:
        return ""
    place = ", in place" if result.refusals is not None and result.facts.collective.endswith("inplace)") else ""
    return result.facts.collective.partition("(")[0] + place


def _fact(name: str) -> Callable[[Result], str]:
    def cell(result: Result) -> str:
        value = getattr(result.facts, name, None)
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    return cell


def _loads_on(result: Result) -> str:
    return ", ".join(name for name, reasons in (result.refusals or {}).items() if not reasons)


def _not_on(result: Result) -> str:
    refused = {name: reasons for name, reasons in (result.refusals or {}).items() if reasons}
    return "; ".join(f"{name}: {_first(reasons)}" for name, reasons in refused.items())


def _first(reasons: Sequence[str], most: int = 2) -> str:
    more = f" (and {len(reasons) - most} more)" if len(reasons) > most else ""
    return f"{', '.join(reasons[:most])}{more}"


def _verdict(result: Result) -> str:
    if result.error is not None:
        return f"{result.verdict}: {result.error.code}"
    return ", ".join([result.verdict, *(warning.code for warning in result.warnings)])


_VERDICT = _Column("verdict", _verdict)
_FACTS = (
    _Column("collective", _collective, least=13, expendable=1),
    _Column("ranks", _fact("ranks"), "right"),
    _Column("protocol", _fact("protocol"), expendable=2),
    _Column("thread blocks", _fact("thread_blocks"), "right", expendable=3),
    _Column("channels", _fact("channels"), "right", expendable=6),
    _Column("steps", _fact("steps"), "right", expendable=5),
    _Column("slots", _fact("slots"), "right", expendable=4),
    _Column("rounds", _fact("rounds"), "right", expendable=7),
    _Column("volume", _fact("volume"), "right", expendable=8),
    _Column("reductions", _fact("reductions"), "right", expendable=9),
    _Column("traffic", _fact("traffic"), "right", expendable=10),
    _Column("sums", lambda result: result.sums or "", expendable=11),
    _Column("loads on", _loads_on),
    _VERDICT,
    _Column("does not load on", _not_on, least=20),
    _Column("seconds", lambda result: f"{result.seconds:.3f}", "right", expendable=12),
)
_NOT_OF_CASES = {"ranks", "protocol", "loads on", "does not load on"}
_NOT_OF_FILES = {"slots", "rounds", "volume", "reductions", "sums", "seconds"}


def print_report(report: Report, console: Console) -> None:
    """The sentences of one program or schedule, or a table of all; and what is wrong."""
    if report.error is not None:
        _print_skipped(report.skipped, console)
        print_error(report.error, Console(stderr=True))
        return
    if report.sizes is not None:
        _print_sizes(report, report.sizes, console)
        return
    if len(report.results) == 1 and report.results[0].refusals is None:
        _print_one(report.results[0], console)
        return
    cases = any(result.parameters for result in report.results)
    left_out = _print_table(report.results, cases, console)
    for result in report.results:
        for target, remarks in result.remarks.items():
            for remark in remarks:
                say(console, f"{result.name}: {target}: {remark}", "dim")
    several = len(report.results) > 1
    for result in report.results:
        for warning in result.warnings:
            if several:
                say(console, f"{result.name}: warning[{warning.code}]: {warning.message}", "yellow")
            else:
                console.print()
                print_diagnostic(warning, console, "warning", result.file)
    proven = f"{sum(result.error is None for result in report.results)} of {len(report.results)} proven."
    narrow = f" A wider terminal shows {', '.join(left_out)}." if left_out else ""
    if cases:
        unit = next((result.facts.unit for result in report.results if result.facts is not None), "buffer")
        meanings = {
            "slots": "Slots: the least that are enough.",
            "volume": f"Volume and reductions: of the busiest rank, in {unit}s.",
            "traffic": "Traffic: all reads and writes, in buffers.",
        }
        words = "".join(f" {meaning}" for name, meaning in meanings.items() if name not in left_out)
        console.print(Text.assemble(f"\n{proven}", (words + narrow, "dim")), soft_wrap=True)
    elif several or narrow:
        console.print(Text.assemble(f"\n{proven}", (narrow, "dim")), soft_wrap=True)
    wrong = [result for result in report.results if result.error is not None]
    for result in wrong[:1] if cases else wrong:  # of one program, the first says it all
        if not cases:
            console.print()
        _print_error(result, console)


def _print_sizes(report: Report, sizes: Sequence[Taken], console: Console) -> None:
    """What calls take by size, where entries are skipped or in vain, and what is wrong."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("collective", "ranks", "sizes", "takes"):
        table.add_column(name, justify="right" if name == "ranks" else "left", overflow="fold")
    for row in sizes:
        call = row.collective if row.root is None else f"{row.collective}, root {row.root}"
        item = row.item
        takes = "default" if item is None else printable(f"{item.named}, {item.where}")
        table.add_row(call, str(row.ranks), _span(row.sizes), Text(takes, "dim" if item is None else ""))
    if sizes:
        console.print(table)
        console.print()
    _print_skipped([skipped for skipped in report.skipped if not skipped.elsewhere], console)
    for result in report.results:
        for warning in result.warnings:
            say(console, f"{result.name}: warning[{warning.code}]: {warning.message}", "yellow")
    say(console, f"{sum(result.error is None for result in report.results)} of {len(report.results)} proven.")
    for result in report.results:
        if result.error is not None:
            console.print()
            print_diagnostic(result.error.diagnostic(), console, file=result.file)


def _print_skipped(entries: Sequence[Skipped], console: Console) -> None:
    for skipped in entries:
        say(console, skipped.why, "dim")


def _span(sizes: Sizes) -> str:
    """As people say it: what lies beside a round size is less or more than that."""
    least, most = sizes.least, sizes.most
    above, below = least % 1024 == 1, most is not None and most % 1024 == 1023
    if not (above or below):
        return str(sizes)
    low = f"more than {show_size(least - 1)}" if above else f"{show_size(least)} or more" if least else ""
    high = "" if most is None else f"less than {show_size(most + 1)}" if below else f"at most {show_size(most)}"
    return ", ".join(filter(None, (low, high)))


def _print_one(result: Result, console: Console) -> None:
    """One program or one schedule, in sentences."""
    facts = result.facts
    if facts is None or result.error is not None:
        _print_error(result, console)
        return
    said = Text.assemble((str(result.proof), "green"), f": {printable(facts.collective)}")
    console.print(said, soft_wrap=True, highlight=False)
    counts = ((facts.thread_blocks, "thread block"), (facts.channels, "channel"), (facts.steps, "step"))
    sums = f"; sums: {result.sums}" if result.sums is not None else ""
    traffic = f"{facts.traffic:.4g} buffers of memory traffic"
    say(console, f"{', '.join(counted(n, noun) for n, noun in counts)}; {traffic}{sums}", "dim")
    rounds = "" if facts.rounds is None else f"{counted(facts.rounds, 'round')}; "
    reductions = f" and reductions {facts.reductions:.4g}" if facts.reductions else ""
    say(console, f"{rounds}volume {facts.volume:.4g}{reductions} {facts.unit}s on the busiest rank", "dim")
    for warning in result.warnings:
        print_diagnostic(warning, console, "warning")


def _print_error(result: Result, console: Console) -> None:
    assert result.error is not None
    if result.parameters:
        say(console, f"{result.verdict} for {result.name.removeprefix(result.target).strip()}", "red")
    print_diagnostic(result.error.diagnostic(), console, file=result.file)


def _print_table(results: Sequence[Result], cases: bool, console: Console) -> list[str]:
    """A row for each result. A narrow terminal gets fewer columns, whose names are returned; no cell is ever cut."""
    if cases:
        first = [_Column(name, _parameter(name), "right") for name in results[0].parameters]
    else:
        first = [_Column("file", lambda result: result.target, least=12)]
    facts = [column for column in _FACTS if column.name not in (_NOT_OF_CASES if cases else _NOT_OF_FILES)]
    filled = [(column, [printable(column.cell(result)) for result in results]) for column in [*first, *facts]]
    filled = [(column, cells) for column, cells in filled if any(cells)]

    def widths(*, least: bool) -> list[int]:
        natural = [max(map(cell_len, [column.name, *cells])) for column, cells in filled]
        folded = [column.least if least else None for column, _ in filled]
        return [n if m is None else min(n, m) for n, m in zip(natural, folded, strict=True)]

    def excess(*, least: bool) -> int:
        return sum(widths(least=least)) + 2 * (len(filled) - 1) - console.width

    if not console.is_terminal:
        console.width += max(0, excess(least=False))
    left_out = []
    while excess(least=True) > 0 and any(column.expendable for column, _ in filled):
        worst = max(filled, key=lambda pair: pair[0].expendable)
        filled.remove(worst)
        left_out.append(worst[0].name)
    table = Table(box=None, header_style="bold", pad_edge=False)
    over = max(0, excess(least=False))
    for (column, _), natural, least in zip(filled, widths(least=False), widths(least=True), strict=True):
        room = max(least, natural - over)
        over -= natural - room
        table.add_column(Text(printable(column.name)), justify=column.justify, overflow="fold", width=room)
    for i, result in enumerate(results):
        colour = "red" if result.error is not None else "yellow" if result.warnings else "green"
        table.add_row(*(Text(cells[i], colour if column is _VERDICT else "") for column, cells in filled))
    console.print(table)
    return left_out


def _parameter(name: str) -> Callable[[Result], str]:
    return lambda result: show_value(result.parameters[name])
