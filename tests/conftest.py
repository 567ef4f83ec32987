"""Golden files: ``golden(path, text)`` compares, ``pytest --update-golden`` rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files with what comes out now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a golden file; both end in exactly one newline."""

    def compare(path: Path, text: str) -> None:
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.write_text(text)
            return
        assert path.exists(), f"there is no {path.name}; `pytest --update-golden` writes it"
        assert text == path.read_text(), f"{path.name} differs; `pytest --update-golden` rewrites it"

    return compare
