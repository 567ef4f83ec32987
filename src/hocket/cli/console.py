"""Where the command line prints."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hocket.errors import LINES, Diagnostic, HocketError, Severity, printable, render

_COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow"}


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text that may hold names of others: as it is, but nothing in it acts on the terminal or is markup."""
    console.print(Text(printable(text, LINES), style), soft_wrap=True, highlight=False)


def print_error(error: HocketError, console: Console) -> None:
    """An error, in colour where there is a terminal."""
    print_diagnostic(error.diagnostic(), console)


def print_diagnostic(
    diagnostic: Diagnostic, console: Console, severity: Severity = "error", file: str | None = None
) -> None:
    """A diagnostic. Where it names no place, ``file`` is said to be it."""
    headline, newline, rest = render(diagnostic, severity).partition("\n")
    if file is not None and not diagnostic.labels:
        rest, newline = f" --> {printable(file)}{newline}{rest}", "\n"
    text = Text(headline, _COLOURS[severity])
    text.append(newline + rest, "not bold default")
    console.print(text, soft_wrap=True)
