"""The XML of a handful of programs, for either target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import Program
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, tree, two_step
from hocket.cli.export import Wishes, export_program
from hocket.formats.msccl_xml import read

HERE = Path(__file__).parent / "golden"
FILES: dict[str, tuple[Callable[[], Program], Wishes]] = {
    "ring_3_msccl": (lambda: ring.all_reduce(3), Wishes("msccl", "LL", max_bytes=1 << 20)),
    "ring_3_rccl": (lambda: ring.all_reduce(3), Wishes("rccl", min_bytes=1, max_bytes=1 << 20)),
    "ring_3_out_of_place": (lambda: ring.all_reduce(3), Wishes("msccl", inplace=False)),
    "all_gather_in_place": (lambda: ring.all_gather(3), Wishes("rccl", inplace=True)),
    "all_pairs_3_chained_reductions": (lambda: all_pairs.all_reduce(3), Wishes("msccl", instances=2)),
    "hierarchical_2x2": (lambda: hierarchical.all_reduce(2, 2, 2), Wishes("msccl")),
    "two_step_2x2": (lambda: two_step.all_to_all(2, 2), Wishes("rccl", "LL128")),
    "reduce_4": (lambda: tree.reduce(4), Wishes("rccl")),
    "custom": (lambda: all_to_next.all_to_next(2, 2), Wishes("msccl")),
}


@pytest.mark.parametrize("name", FILES)
def test_golden(name: str, golden: Callable[[Path, str], None]) -> None:
    make, wishes = FILES[name]
    text = export_program(make(), wishes)
    golden(HERE / f"{name}.xml", text)
    assert export_program(make(), wishes) == text
    assert read(text).collective.size == make().collective.size


def test_there_is_no_golden_file_too_many() -> None:
    assert {path.stem for path in HERE.glob("*.xml")} == set(FILES)
