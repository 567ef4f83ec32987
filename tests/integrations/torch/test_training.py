"""The training example, started as it is, on Gloo and on hocket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_training_comes_to_the_same(tmp_path: Path) -> None:
    found = {}
    for name, env in ("gloo", {}), ("hocket", {"HOCKET": "1", "HOCKET_STRICT": "1"}):
        options = ["--steps", "6", "--json", str(tmp_path / name)]
        said = run("examples/train_ddp.py", env=env, options=options, only_gloo=name == "gloo")
        assert "weights of all ranks are the same: True" in said[0]
        found[name] = json.loads((tmp_path / name).read_text())
    for what in "losses", "weights":
        assert found["gloo"][what] == found["hocket"][what]
