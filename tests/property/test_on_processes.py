"""A sample of the sweep over real processes."""

from __future__ import annotations

import pytest

from tests.property import on_processes
from tests.property.on_processes import Run, by_ranks, check, library_runs, random_runs, type_runs


def _groups(runs: list[Run]) -> list[object]:
    """By the number of ranks; many of them are for the campaign."""
    found = {group[0].schedule.collective.size: group for group in by_ranks(runs)}
    return [
        pytest.param(group, id=f"{ranks} ranks", marks=[pytest.mark.campaign] if ranks > 4 else [])
        for ranks, group in found.items()
    ]


@pytest.mark.parametrize("runs", _groups(type_runs((1, 101))))
def test_types(runs: list[Run]) -> None:
    check(runs)


@pytest.mark.parametrize("runs", _groups(random_runs(60)))
def test_random_programs(runs: list[Run]) -> None:
    check(runs)


@pytest.mark.parametrize("runs", _groups(library_runs((1, 3, 10007), every=11)))
def test_library_algorithms(runs: list[Run]) -> None:
    check(runs)


@pytest.mark.campaign
def test_a_large_buffer() -> None:
    """64 MB of float32, the size of a large gradient bucket."""
    schedule = on_processes.ring.all_reduce(2).compile()
    check([Run("ring", schedule, 16 << 20, "float32", "sum", 1, separate=True)])
