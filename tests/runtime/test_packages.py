"""Which ranks share a socket, from a made-up sysfs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.runtime import machine
from hocket.tuning import Call, choose, default_program


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sockets: processors 0 to 3 and 4 to 7."""
    monkeypatch.delenv("HOCKET_SOCKETS", raising=False)
    for number in range(8):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{number // 4}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("allowed", "sockets"),
    [
        pytest.param([{0}, {1}, {4}, {5}], 2, id="one after the other"),
        pytest.param([{4, 5}, {0, 1}], 2, id="in another order"),
        pytest.param([{0}, {4}, {5}], 2, id="as even as can be"),
        pytest.param([{0}, {1}, {4}], 1, id="not as the programs have it"),
        pytest.param([{0}, {4}, {1}, {5}], 1, id="in turns"),
        pytest.param([{0}, {1}, {2}, {4}], 1, id="uneven"),
        pytest.param([{0}, {1}], 1, id="one of two sockets"),
        pytest.param([set(range(8))] * 4, 1, id="anywhere"),
        pytest.param([{8}, {9}], 1, id="nothing known"),
    ],
)
def test_ranks_on_processors(allowed: list[set[int]], sockets: int, cpus: Path) -> None:
    assert machine.sockets(allowed, cpus) == sockets


def test_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, sockets in (("2", 2), ("0", 1)):
        monkeypatch.setenv("HOCKET_SOCKETS", given)
        assert machine.sockets([{0}]) == sockets


def sums(comm: Communicator) -> list[float]:
    """Of calls by name on buffers that are not small, over all and over three ranks."""
    few = comm.split(0 if comm.rank < 3 else None)
    found = [float(comm.all_reduce(np.ones(100_000))[-1]), float(comm.reduce_scatter(np.ones(400_000))[-1])]
    if few is not None:
        found.append(float(few.all_reduce(np.ones(300_000))[-1]))
    return [comm._endpoint.sockets, *found]


def test_calls_by_name_take_programs_by_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SOCKETS", "2")
    assert hocket.spawn(sums, 4, threads=1) == [[2, 4.0, 4.0, 3.0]] * 3 + [[2, 4.0, 4.0]]
    for name in ("all_reduce", "reduce_scatter", "reduce"):
        large, small = (choose(Call(name, 4, size, sockets=2)).program() for size in (None, 0))
        assert large.name == f"movement_avoiding_{name}"
        for choice in (default_program(name, 4), small):
            assert "movement" not in choice.name
