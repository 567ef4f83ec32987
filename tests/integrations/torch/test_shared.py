"""Tensors in shared memory, and the gradients of DDP: the weights are those of DDP with Gloo, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.torch.launch import run

pytest.importorskip("torch", reason="torch is not installed")


def test_gradients_are_averaged_where_they_lie() -> None:
    said = run(str(Path(__file__).with_name("sharing.py")), env={"HOCKET_REACH": "never"})
    assert all(text.endswith("done\n") for text in said)
