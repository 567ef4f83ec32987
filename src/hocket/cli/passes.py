"""What the passes of the compiler made of a program: by name, as text, as a difference."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hocket.cli.compiled import Pass, counts, show_counts
from hocket.compiler.pipeline import PASSES
from hocket.errors import UsageError
from hocket.ir.text import print_stage


@dataclass(frozen=True)
class Views:
    """What is shown of the passes: the texts after some, each for some ranks; what some changed; how long each took.

    No ranks are all ranks.
    """

    dumps: list[tuple[str, list[int]]]
    diffs: list[str]
    time: bool
    ranks: list[int]

    @classmethod
    def asked(cls, dumps: Sequence[str], diffs: Sequence[str], time: bool, ranks: list[int]) -> Views:
        """As the words of --dump-ir and --diff have it; raises UsageError for others."""
        return cls([_parse_dump(word, ranks) for word in dumps], [_pass_name(word) for word in diffs], time, ranks)

    def __bool__(self) -> bool:
        return bool(self.dumps or self.diffs or self.time)

    def as_json(self, passes: Sequence[Pass]) -> dict[str, object]:
        report: dict[str, object] = {
            "passes": [
                {"name": p.name, "doc": _pass_doc(p.name), "seconds": p.seconds, "made": counts(p.after)}
                for p in passes
            ]
        }
        if self.dumps:
            report["dumps"] = [
                {"after": name, "ranks": ranks, "text": _text_after(passes, name, ranks)} for name, ranks in self.dumps
            ]
        if self.diffs:
            report["diffs"] = [{"pass": name, "lines": self._diff(_named(passes, name))} for name in self.diffs]
        return report

    def print(self, passes: Sequence[Pass], console: Console) -> None:
        if self.time:
            _print_times(console, passes)
        for name, ranks in self.dumps:
            print(f"# after {name}" + "".join(f", rank {r}" for r in ranks))
            print(_text_after(passes, name, ranks), end="")
        for name in self.diffs:
            lines = self._diff(_named(passes, name))
            if not lines:
                console.print(f"{name} changed nothing")
            for line in lines:
                style = "green" if line.startswith("+") else "red" if line.startswith("-") else None
                console.print(Text(line, style=style or ""), soft_wrap=True)

    def _diff(self, changed: Pass) -> list[str]:
        ranks = self.ranks or None
        before, after = (print_stage(stage, ranks=ranks).splitlines() for stage in (changed.before, changed.after))
        return list(difflib.unified_diff(before, after, f"before {changed.name}", f"after {changed.name}", lineterm=""))


def _pass_name(name: str) -> str:
    if name not in [known.name for known in PASSES]:
        listed = "\n".join(f"  {known.name:<10} {known.doc}" for known in PASSES)
        raise UsageError(f"there is no pass {name!r}", f"the passes are\n{listed}")
    return name


def _pass_doc(name: str) -> str:
    return next(known.doc for known in PASSES if known.name == name)


def _parse_dump(text: str, ranks: Sequence[int]) -> tuple[str, list[int]]:
    """``after=PASS,rank=N``: the pass, and the ranks to show (none: all, or those of --rank)."""
    name, only = None, []
    for word in text.split(","):
        key, _, value = word.partition("=")
        if key == "after":
            name = _pass_name(value)
        elif key == "rank" and value.isdecimal():
            only.append(int(value))
        else:
            raise UsageError(f"expected after=PASS or rank=N, found {word!r}", "as in --dump-ir after=fuse,rank=2")
    if name is None:
        raise UsageError(f"{text!r} names no pass", "as in --dump-ir after=fuse,rank=2")
    return name, only or list(ranks)


def _print_times(console: Console, passes: Sequence[Pass]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("pass")
    table.add_column("ms", justify="right")
    table.add_column("made")
    table.add_column("", style="dim")
    for p in passes:
        table.add_row(p.name, f"{p.seconds * 1e3:.2f}", show_counts(p.after), _pass_doc(p.name))
    console.print(table)


def _named(passes: Sequence[Pass], name: str) -> Pass:
    return next(p for p in passes if p.name == name)


def _text_after(passes: Sequence[Pass], name: str, ranks: Sequence[int]) -> str:
    return print_stage(_named(passes, name).after, ranks=ranks or None)
