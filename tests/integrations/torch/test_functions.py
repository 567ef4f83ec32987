"""Every function of torch.distributed, and what is built on them, comes to what it comes to on Gloo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")

FOUR = pytest.param(4, marks=pytest.mark.campaign)


@pytest.mark.parametrize("ranks", [2, FOUR])
def test_functions(ranks: int) -> None:
    run("functions", ranks, env={"HOCKET_STRICT": "1"})  # none of them falls back


def _results(said: str) -> list[str]:
    return re.findall(r"^[\w ]+ [0-9a-f]{12} \S+$", said, re.MULTILINE)


def test_models() -> None:
    """On two ranks a sum has one order, so the bits are the same."""
    plain, ours = run("models", only_gloo=True), run("models", env={"HOCKET": "1", "HOCKET_STRICT": "1"})
    for a, b in zip(plain, ours, strict=True):
        assert len(_results(a)) == 13
        assert _results(a) == _results(b)


@pytest.mark.campaign
def test_models_on_four_ranks() -> None:
    """Sums of more ranks are taken in another order than Gloo's."""
    plain, ours = run("models", 4, only_gloo=True), run("models", 4, env={"HOCKET": "1", "HOCKET_STRICT": "1"})
    for a, b in zip(plain, ours, strict=True):
        totals = [[float(line.split()[-1]) for line in _results(said)] for said in (a, b)]
        assert len(totals[0]) == 13
        assert totals[0] == pytest.approx(totals[1], rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "sequences"),
    [(2, 40), pytest.param(2, 500, marks=pytest.mark.campaign), pytest.param(4, 500, marks=pytest.mark.campaign)],
)
def test_random_sequences(ranks: int, sequences: int) -> None:
    run(f"sequences:{sequences}", ranks, timeout=550)


def test_schedules_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hocket.toml"
    file.write_text("[[all_reduce]]\nprogram = 'ring:all_reduce'\nsizes = '..1MB'\n")
    for said in run("configured", env={"HOCKET": "1", "HOCKET_CONFIG": str(file)}):
        assert f"HOCKET_CONFIG at {file}:1:1, for 0 B to 1 MB\n" in said


def test_waiting() -> None:
    run("waits")


def test_outputs_that_overlap_inputs() -> None:
    run("overlapping", env={"HOCKET_STRICT": "1"})


def test_calls_that_are_known() -> None:
    run("remembered")


def test_calls_in_the_background_make_progress_without_python() -> None:
    run("progress")


def test_threads() -> None:
    run("threads", env={"HOCKET": "1"})


@pytest.mark.campaign
def test_groups_of_disjoint_ranks_in_any_order() -> None:
    run("orders", 4, env={"HOCKET": "1"})
