"""How hocket comes into programs of torch.distributed, and that it stays out of all others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_an_unchanged_program_runs_on_hocket() -> None:
    assert "gloo hocket.torch.group" in run("unchanged", env={"HOCKET": "1"})[1]
    assert "hocket" not in run("unchanged")[0]


def test_a_group_of_hocket_and_one_of_gloo() -> None:
    said = run("named", env={"HOCKET_LOG": "info"})
    assert "hocket gloo torch" in said[0]
    assert said[0].count("hocket: collectives of CPU tensors are done by hocket on 2 ranks") == 1
    assert "hocket: rank 1: recv goes to torch's backend: " in said[1]
    assert "collectives of CPU tensors" not in said[1]


def test_import_of_torch_loads_nothing_of_hocket() -> None:
    program = "import sys, torch; print(sorted(n for n in sys.modules if n.partition('.')[0].startswith('hocket')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['hocket_autoload']\n"


def test_another_version_of_torch_is_refused() -> None:
    program = "import torch; torch.__version__ = '2.99.1'; import hocket.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hocket.torch works with torch 2.13, not with 2.99.1" in done.stderr
