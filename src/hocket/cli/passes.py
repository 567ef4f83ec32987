"""What the passes of the compiler made of a program: by name, as text, as a difference."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hocket.cli.compiled import Pass, show_counts
from hocket.cli.target import UsageError
from hocket.compiler.pipeline import PASSES
from hocket.ir.text import print_stage


def pass_name(name: str) -> str:
    if name not in [known.name for known in PASSES]:
        listed = "\n".join(f"  {known.name:<10} {known.doc}" for known in PASSES)
        raise UsageError(f"there is no pass {name!r}", f"the passes are\n{listed}")
    return name


def pass_doc(name: str) -> str:
    return next(known.doc for known in PASSES if known.name == name)


def parse_dump(text: str, ranks: Sequence[int]) -> tuple[str, list[int]]:
    """``after=PASS,rank=N``: the pass, and the ranks to show (none: all, or those of --rank)."""
    name, only = None, []
    for word in text.split(","):
        key, _, value = word.partition("=")
        if key == "after":
            name = pass_name(value)
        elif key == "rank" and value.isdecimal():
            only.append(int(value))
        else:
            raise UsageError(f"expected after=PASS or rank=N, found {word!r}", "as in --dump-ir after=fuse,rank=2")
    if name is None:
        raise UsageError(f"{text!r} names no pass", "as in --dump-ir after=fuse,rank=2")
    return name, only or list(ranks)


def print_times(console: Console, passes: Sequence[Pass]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("pass")
    table.add_column("ms", justify="right")
    table.add_column("made")
    table.add_column("", style="dim")
    for p in passes:
        table.add_row(p.name, f"{p.seconds * 1e3:.2f}", show_counts(p.after), pass_doc(p.name))
    console.print(table)


def named(passes: Sequence[Pass], name: str) -> Pass:
    return next(p for p in passes if p.name == name)


def text_after(passes: Sequence[Pass], name: str, ranks: Sequence[int]) -> str:
    return print_stage(named(passes, name).after, ranks=ranks or None)


def diff_of(changed: Pass, ranks: Sequence[int] | None) -> list[str]:
    before, after = (print_stage(stage, ranks=ranks).splitlines() for stage in (changed.before, changed.after))
    return list(difflib.unified_diff(before, after, f"before {changed.name}", f"after {changed.name}", lineterm=""))


def print_diff(console: Console, changed: Pass, ranks: Sequence[int] | None) -> None:
    lines = diff_of(changed, ranks)
    if not lines:
        console.print(f"{changed.name} changed nothing")
    for line in lines:
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else None
        console.print(Text(line, style=style or ""), soft_wrap=True)
