"""A sign of life on standard error for whatever takes longer than a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, once a second has passed, while standard error is a terminal.

    Gives a function that changes what is shown.
    """
    console = Console(stderr=True)
    status = console.status(doing)
    timer = Timer(1.0, status.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield status.update
    finally:
        timer.cancel()
        if console.is_terminal:
            timer.join()
        status.stop()
