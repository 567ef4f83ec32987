"""The stub of the native module is what nanobind's generator says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import Golden

ROOT = Path(__file__).parents[2]
STUB = ROOT / "src/hocket/_native.pyi"


def test_the_stub_is_generated(golden: Golden, tmp_path: Path) -> None:
    patterns, raw = ROOT / "native/python/stub.pat", tmp_path / "_native.pyi"
    generate = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "hocket._native", "-p", patterns, "-o", raw]
    subprocess.run(generate, check=True)
    formatting = [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB, "-"]
    golden(STUB, subprocess.run(formatting, input=raw.read_text(), capture_output=True, text=True, check=True).stdout)


def test_what_native_code_returns_has_names() -> None:
    """No tuple whose places mean something."""
    returned = re.findall(r"\) -> (.*):", STUB.read_text())
    assert returned
    assert not [text for text in returned if "tuple[" in text]
