"""The table of docs/algorithms.md: ``python -m tests.algorithms.table`` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm

DOCUMENT = Path(__file__).parents[2] / "docs" / "algorithms.md"
_TABLE = re.compile(r"(?<=<!-- from the catalogue -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """All of the catalogue as Markdown, a table for each collective."""
    parts = []
    for collective in dict.fromkeys(algorithm.collective for algorithm in CATALOGUE):
        rows = [_row(algorithm) for algorithm in CATALOGUE if algorithm.collective is collective]
        title = "AllToAllV, a Custom" if collective.__name__ == "Custom" else collective.__name__
        lines = [" | ".join(row) for row in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows))]
        parts.append(f"\n### {title}\n\n" + "".join(f"| {line} |\n" for line in lines))
    return "".join(parts) + "\n"


def _row(algorithm: Algorithm) -> dict[str, str]:
    sums = {"reductions": _shown(algorithm.reductions), "sums": f"`{algorithm.sums}`"} if algorithm.sums else {}
    return {
        "program": f"`{algorithm.name}`",
        "ranks": algorithm.takes.words,
        "hops": _shown(algorithm.hops),
        "rounds": _shown(algorithm.rounds),
        "volume": _shown(algorithm.volume),
        **sums,
        "scratch": _shown(algorithm.scratch),
        "source": algorithm.source,
    }


def _shown(formula: str) -> str:
    bound = "≤ " if formula.startswith("≤ ") else ""
    return f"{bound}`{formula.removeprefix('≤ ')}`"


def shown(document: str) -> str:
    """The table as a document has it."""
    found = _TABLE.search(document)
    assert found is not None, "the document has no place for the table"
    return found[0]


if __name__ == "__main__":
    DOCUMENT.write_text(_TABLE.sub(lambda _: table(), DOCUMENT.read_text()))
