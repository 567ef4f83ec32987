"""Golden files: ``golden(path, text)`` compares, ``pytest --update-golden`` rewrites. A browser. Signals and limits."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import limits

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Golden = Callable[[Path, str], None]
CHROMIUM = ["chromium", "chromium-browser", "google-chrome"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files with what comes out now")


def pytest_configure() -> None:
    """What processes that tests start inherit: signals as at a terminal, and no threads of OpenBLAS in ranks.

    What a job runner or nohup has ignored, the tests send. NumPy's OpenBLAS would start a thread for each core as it is
    imported, which takes a third of the processor time of a short test.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def patient_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks get longer to say what they saw once another has failed, where the machine is busy."""
    if find_spec("hocket._native") is not None:
        monkeypatch.setattr("hocket.runtime.launch.GRACE", limits.scaled(2.0))


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium that the machine has; none is downloaded."""
    reason = "playwright is not installed: pip install '.[browser]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        pytest.skip(f"there is no Chromium: none of {', '.join(CHROMIUM)}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()
