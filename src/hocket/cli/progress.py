"""A sign of life on standard error for whatever takes longer than a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hocket.errors import printable


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, once a second has passed, while standard error is a terminal.

    Gives a function that changes what is shown.
    """
    console = Console(stderr=True)
    status = console.status(Text(printable(doing)))
    timer = Timer(1.0, status.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield lambda doing: status.update(Text(printable(doing)))
    finally:
        timer.cancel()
        if console.is_terminal:
            timer.join()
        status.stop()


@contextmanager
def bar(doing: str) -> Iterator[Callable[[float], None]]:
    """Show how much is done, while standard error is a terminal. Gives a function that is told the share."""
    columns = TextColumn(printable(doing)), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=1.0)
        yield lambda share: progress.update(task, completed=share)
