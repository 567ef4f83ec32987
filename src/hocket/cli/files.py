"""What hocket check finds in files of MSCCL's XML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hocket.cli.compiled import Facts
from hocket.errors import HocketError
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_targets import TARGETS
from hocket.formats.msccl_xml import prove_for, refusals
from hocket.ir.schedule import Schedule


@dataclass(frozen=True)
class Finding:
    """One file: facts as far as it could be read, the first refusal of each runtime, and an error if it is broken.

    ``open_ended``: it does not say what outputs must hold, so that only race and deadlock could be judged.
    """

    file: str
    seconds: float
    facts: Facts | None
    protocol: str
    refusals: dict[str, str]
    error: HocketError | None
    open_ended: bool = False

    @property
    def verdict(self) -> str:
        if self.error is not None:
            return self.error.code
        return "no race, no deadlock" if self.open_ended else "proven"

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"file": self.file, "verdict": self.verdict, "seconds": round(self.seconds, 6)}
        if self.facts is not None:
            found |= asdict(self.facts) | {"protocol": self.protocol, "refused": self.refusals}
        if self.error is not None:
            found["error"] = {"code": self.error.code, "text": str(self.error)}
        return found


def parsed(file: str) -> Schedule:
    """What a file means, whether or not that is right."""
    return schedules(parse_document(Path(file)))[0]


def judge(file: str) -> Finding:
    """Parse a file, prove it for the slots of its protocol, and ask each runtime's limits."""
    start = perf_counter()
    facts, error, protocol, open_ended = None, None, "", False
    refused: dict[str, str] = {}
    try:
        document = parse_document(Path(file))
        protocol = document.proto
        open_ended = document.coll == "custom" and document.promise is None
        for name, target in TARGETS.items():
            first = next(refusals(document, target), None)
            if first is not None:
                refused[name] = first.reason
        for schedule in schedules(document):
            facts = facts or Facts.of(schedule)
            prove_for(schedule, document.proto)
    except HocketError as found:
        error = found
    return Finding(file, perf_counter() - start, facts, protocol, refused, error, open_ended)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A table, and what no runtime would load for which reason."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("file", "collective"):
        table.add_column(name)
    table.add_column("ranks", justify="right")
    table.add_column("protocol")
    for name in ("thread blocks", "channels", "steps", "traffic"):
        table.add_column(name, justify="right")
    table.add_column("loads on")
    table.add_column("verdict")
    for finding in findings:
        row = [escape(finding.file)]
        if finding.facts is not None:
            f = finding.facts
            loads = ", ".join(name for name in TARGETS if name not in finding.refusals) or "neither"
            place = ", in place" if f.collective.endswith("inplace)") else ""
            row += [f.collective.partition("(")[0] + place, str(f.ranks), finding.protocol]
            row += [*map(str, (f.thread_blocks, f.channels, f.steps)), f"{f.traffic:.4g}", loads]
        else:
            row += [""] * 8
        colour = "red" if finding.error is not None else "yellow" if finding.open_ended else "green"
        table.add_row(*row, f"[{colour}]{finding.verdict}[/]")
    console.print(table)
    for finding in findings:
        if len(finding.refusals) == len(TARGETS):
            for name, reason in finding.refusals.items():
                console.print(f"{finding.file}: {name}: {reason}", style="dim", soft_wrap=True, highlight=False)
        if finding.open_ended and finding.error is None:
            console.print(f"{finding.file}: it does not say what outputs must hold", style="dim", soft_wrap=True)
