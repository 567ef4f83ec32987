"""What each pass makes of a handful of programs: one golden file a program, a section for each pass that
changed something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import AllReduce, Program, chunk, parallelize
from hocket.algorithms import all_pairs, hierarchical, ring, two_step
from hocket.compiler.pipeline import PASSES
from hocket.ir.text import Stage, print_chunk_dag, print_stage

HERE = Path(__file__).parent / "golden"


def parallel_pairs() -> Program:
    """Two instances of an operation on two chunks, and one on both that is not split."""
    with Program(AllReduce(2, chunks=2, inplace=True), name="parallel_pairs") as p:
        with parallelize(2):
            c = chunk(0, "in", 0, 2).reduce(chunk(1, "in", 0, 2))
        c.copy(1, "in")
    return p


PROGRAMS: dict[str, Callable[[], tuple[Program, int]]] = {
    "ring_3": lambda: (ring.all_reduce(3), 1),
    "ring_4_two_channels": lambda: (ring.all_reduce(4, 2), 1),
    "ring_2_two_instances": lambda: (ring.all_reduce(2), 2),
    "hierarchical_2x3": lambda: (hierarchical.all_reduce(2, 3), 1),
    "two_step_2x2": lambda: (two_step.all_to_all(2, 2), 1),
    "all_pairs_3": lambda: (all_pairs.all_reduce(3), 1),
    "parallel_pairs": lambda: (parallel_pairs(), 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes(name: str, golden: Callable[[Path, str], None]) -> None:
    program, instances = PROGRAMS[name]()
    sections = [("chunks", print_chunk_dag(program.chunk_dag, locations=False))]
    seen: list[str] = []

    def observe(step: str, before: Stage, after: Stage, seconds: float) -> None:
        seen.append(step)
        if after != before:
            sections.append((step, print_stage(after, locations=False)))

    program.compile(instances=instances, slots=2, observer=observe)
    assert seen == [step.name for step in PASSES]
    golden(HERE / f"{name}.txt", "\n".join(f"=== {step}\n{text}" for step, text in sections))


def test_locations_are_file_names_and_columns_from_one(golden: Callable[[Path, str], None]) -> None:
    source = (
        "from hocket import AllGather, Program, chunk\n"
        "\n"
        "with Program(AllGather(2)) as p:\n"
        "    for r in range(2):\n"
        '        chunk(r, "in", 0).copy(r, "out", r).copy(1 - r, "out", r)\n'
    )
    scope: dict[str, Program] = {}
    exec(compile(source, "/somewhere/gather.py", "exec"), scope)
    golden(HERE / "locations.txt", print_stage(scope["p"].compile()))


def test_there_is_no_golden_file_too_many() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == {*PROGRAMS, "locations"}
