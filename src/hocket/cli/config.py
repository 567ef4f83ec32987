"""``hocket check hocket.toml``: every entry proven, and which of them calls take by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from hocket.cli.compiled import Facts
from hocket.cli.progress import working
from hocket.cli.result import Report, Result, Skipped, Taken
from hocket.cli.target import values
from hocket.config import Config, Item
from hocket.errors import BadConfig, Diagnostic, UsageError, counted
from hocket.tuning import Entry, Sizes
from hocket.verify import Proof, kept

_USUAL = range(2, 9)
"""Numbers of ranks for which those entries are proven that are for any."""
_SHADOWED = Diagnostic("shadowed", "entries before it are for all of its sizes")


def judge_config(name: str, words: Sequence[str]) -> Report:
    """Judge the entries of a file for the numbers of ranks that ``ranks=2..8`` says, or else for their own."""
    asked = _asked(name, words)
    results, rows, skipped, items = list[Result](), list[Taken](), list[Skipped](), list[Item]()
    for item in Config(Path(name)).items:
        try:
            _ = item.numbers
        except BadConfig as error:
            results.append(Result(item.named, item.where.file, item.written.arguments, error=error))
        else:
            items.append(item)
    with working(f"proving {name}") as update:
        for ranks in asked or _numbers(items):
            taken: list[tuple[Item, Entry]] = []
            for item in list(items):
                update(f"proving {item.named} on {counted(ranks, 'rank')}")
                start = perf_counter()
                found = Result(item.named, item.where.file, {**item.written.arguments, "ranks": ranks})
                try:
                    entry = item.entry(ranks)
                except BadConfig as error:
                    results.append(replace(found, error=error, seconds=perf_counter() - start))
                    items.remove(item)  # it would mostly say the same for every number
                    continue
                if isinstance(entry, Entry):
                    taken.append((item, entry))
                    found = _proven(found, taken)
                    results.append(replace(found, seconds=perf_counter() - start))
                elif asked or item.numbers is None:
                    why = f"{item.where}: {found.name} is skipped: {entry.diagnostic().message}"
                    skipped.append(Skipped(why, elsewhere=item.numbers is not None))
            rows += _by_size(taken)
    nothing = None if results else UsageError(_nothing(name, words, items))
    return Report(tuple(results), nothing, tuple(rows), tuple(skipped))


def _nothing(name: str, words: Sequence[str], items: Sequence[Item]) -> str:
    """Why there is nothing to judge."""
    if not items:
        return f"there is no entry in {name}"
    usual = f"ranks={_USUAL[0]}..{_USUAL[-1]}"
    return f"no entry of {name} is for {' '.join(words) or usual}"


def _asked(name: str, words: Sequence[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        key, _, text = word.partition("=")
        if key != "ranks":
            raise UsageError(f"{name} takes ranks=2..8, a number or a range, and not {word}")
        found += [number for number in values(key, text, int) if isinstance(number, int)]
    if min(found, default=1) < 1:
        raise UsageError("ranks must be positive")
    return found


def _numbers(items: Sequence[Item]) -> list[int]:
    return sorted({number for item in items for number in item.numbers or _USUAL})


def _proven(found: Result, taken: Sequence[tuple[Item, Entry]]) -> Result:
    """Of the last entry."""
    item, entry = taken[-1]
    schedule = entry.schedule
    shadowed = all(row.item is not item for row in _by_size(taken))
    return replace(
        found,
        facts=Facts.of(schedule),
        proof=Proof.of(schedule),
        sums=kept(schedule),
        warnings=(_SHADOWED,) if shadowed else (),
    )


def _by_size(entries: Sequence[tuple[Item, Entry]]) -> Iterator[Taken]:
    """What calls take that ask for no contract and have no counts, size by size, of each collective and root."""
    groups: dict[tuple[str, int | None], list[tuple[Item, Entry]]] = {}
    for item, entry in entries:
        groups.setdefault((item.collective, getattr(entry.schedule.collective, "root", None)), []).append((item, entry))
    for (collective, root), group in groups.items():
        begins = {0, *(entry.sizes.least for _, entry in group)}
        begins |= {entry.sizes.most + 1 for _, entry in group if entry.sizes.most is not None}
        row: Taken | None = None
        for begin, after in pairwise([*sorted(begins), None]):
            assert begin is not None
            taken = next((item for item, entry in group if begin in entry.sizes), None)
            most = None if after is None else after - 1
            if row is not None and row.item is taken:
                row = replace(row, sizes=Sizes(row.sizes.least, most))
                continue
            if row is not None:
                yield row
            row = Taken(collective, root, group[0][1].schedule.collective.size, Sizes(begin, most), taken)
        if row is not None:
            yield row
