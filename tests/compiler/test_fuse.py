"""Fusion rule by rule (paper section 4.3): each file in ``fuse/`` holds an Instruction DAG, ``---``, and what becomes
of it. The first line of a file says which rule it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.compiler.fuse import fuse
from hocket.compiler.pipeline import verify
from hocket.ir.text import parse_instr_dag, print_instr_dag

CASES = sorted((Path(__file__).parent / "fuse").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rule(path: Path, request: pytest.FixtureRequest) -> None:
    title, given, expected = _read(path)
    dag = parse_instr_dag(given, path.name)
    fused = fuse(dag)
    verify(fused)
    found = print_instr_dag(fused)
    if request.config.getoption("--update-golden"):
        path.write_text(f"{title}\n{given.rstrip()}\n---\n{_body(found)}")
        return
    assert _body(found) == expected


def _read(path: Path) -> tuple[str, str, str]:
    title, _, rest = path.read_text().partition("\n")
    assert title.startswith("# ")
    given, _, expected = rest.partition("---\n")
    return title, given, expected


def _body(text: str) -> str:
    """The instructions: fusion leaves what comes before them alone."""
    return "".join(f"{line}\n" for line in text.splitlines() if line[0].isdigit())
