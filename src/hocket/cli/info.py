"""``hocket info``: what this installation is, and every tuned number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

import hocket
from hocket import tunables
from hocket.errors import NativeMissing
from hocket.tunables import VARIABLE, Row


def _all() -> tuple[Sequence[Row], str | None]:
    """The rows there are, and the instruction set of native code if there is any."""
    try:
        from hocket import _native
    except NativeMissing:
        return tunables.ROWS, None
    from hocket.runtime.tuned import ALL

    return ALL, _native.ISA


def described() -> dict[str, object]:
    """Raises BootstrapFailed for a variable that makes no sense."""
    rows, isa = _all()
    said = tunables.given(os.environ.get(VARIABLE, ""), rows)
    numbers = [{**asdict(row), "default": row.value, "value": said.get(row.name, row.value)} for row in rows]
    return {"version": hocket.__version__, "isa": isa, "tunables": numbers}


def print_info(console: Console) -> None:
    """The same as people read it."""
    rows, isa = _all()
    said = tunables.given(os.environ.get(VARIABLE, ""), rows)
    console.print(f"hocket {hocket.__version__}, " + ("no native code" if isa is None else f"native code for {isa}"))
    console.print(
        f"\nTuned numbers. {VARIABLE}=name=value,... sets those that are not fixed: the common ones alike on all ranks."
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("name", "value", "unit", "", "what it is", "source"):
        table.add_column(name, justify="right" if name == "value" else "left", no_wrap=name in ("name", "value"))
    for row in rows:
        value = said.get(row.name, row.value)
        about = row.scope if row.name not in said else f"{row.scope}, default {row.show(row.value)}"
        style = "bold" if row.name in said else None
        table.add_row(row.name, row.show(value), row.unit, about, row.reason, row.source, style=style)
    console.print(table)
