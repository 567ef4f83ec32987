"""Passes rule by rule: each file in the directory of a pass holds an Instruction DAG, ``---``, and what becomes of it.
The first line of a file says which rule it shows. Fusion is that of the paper's section 4.3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.compiler.accumulate import accumulate
from hocket.compiler.fuse import fuse
from hocket.compiler.merge import merge
from hocket.compiler.peer import peer
from hocket.compiler.pipeline import verify
from hocket.ir.instr_dag import InstrDag
from hocket.ir.text import parse_instr_dag, print_instr_dag

PASSES: dict[str, Callable[[InstrDag], InstrDag]] = {
    "accumulate": accumulate,
    "fuse": fuse,
    "merge": lambda dag: merge(dag, slots=2),
    "peer": peer,
}
CASES = [(name, path) for name in PASSES for path in sorted((Path(__file__).parent / name).glob("*.txt"))]


@pytest.mark.parametrize(("name", "path"), CASES, ids=[f"{name}-{path.stem}" for name, path in CASES])
def test_rule(name: str, path: Path, request: pytest.FixtureRequest) -> None:
    title, given, expected = _read(path)
    dag = parse_instr_dag(given, path.name)
    changed = PASSES[name](dag)
    verify(changed)
    found = print_instr_dag(changed)
    if request.config.getoption("--update-golden"):
        path.write_text(f"{title}\n{given.rstrip()}\n---\n{_body(found, given)}")
        return
    assert _body(found, given) == expected


def _read(path: Path) -> tuple[str, str, str]:
    title, _, rest = path.read_text().partition("\n")
    assert title.startswith("# ")
    given, _, expected = rest.partition("---\n")
    return title, given, expected


def _body(text: str, given: str) -> str:
    """The instructions, and of what comes before them what has changed."""
    before = given.splitlines()
    return "".join(f"{line}\n" for line in text.splitlines() if line[0].isdigit() or line not in before)
