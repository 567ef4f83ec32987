"""The documentation site: it builds without a warning, lists every page and public name, and works in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hocket

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

ROOT = Path(__file__).parent.parent
API = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))
_TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]
PAGES = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in _TEXTS)
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 800}


def test_every_public_name_is_in_the_api() -> None:
    with_their_module = {"HocketError"}
    for name in {*hocket.__all__} - with_their_module:
        assert f":: hocket.{name}\n" in API or f":: hocket.{name}()\n" in API, name


def test_every_algorithm_is_in_the_api() -> None:
    for module in (ROOT / "src" / "hocket" / "algorithms").glob("*.py"):
        if module.stem not in ("__init__", "catalogue", "entry"):
            assert f".. automodule:: hocket.algorithms.{module.stem}\n" in API


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which is built without a warning."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_built_with_all_pages_and_an_index_to_search(site: Path) -> None:
    assert [page for page in PAGES if not (site / f"{page}.html").is_file()] == []
    assert "reduce_scatter" in (site / "searchindex.js").read_text()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server of this test offers the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the browser that is at the site's address. At its end nothing had failed, or come from elsewhere.

    A page that is left cancels what it was fetching (net::ERR_ABORTED), which is no failure.
    """
    wrong: list[str] = []

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            wrong.append(f"{request.url}: {request.failure}")

    page = browser.new_page(base_url=address, viewport=WIDE)
    page.on("request", lambda request: request.url.startswith(address) or wrong.append(request.url))
    page.on("requestfailed", failed)
    page.on("response", lambda response: response.status < 400 or wrong.append(f"{response.url}: {response.status}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto("/")
    page.wait_for_url("**/README.html")
    yield page
    page.close()
    assert not wrong


def test_the_first_page_leads_to_all_others(page: Page) -> None:
    assert page.title() == page.locator(".sidebar-brand-text").inner_text()
    links = page.locator(".sidebar-tree a")
    for number in range(links.count()):
        name, address = links.nth(number).inner_text(), links.nth(number).evaluate("link => link.href")
        links.nth(number).click()
        page.wait_for_url(address)
        assert page.locator(".sidebar-tree .current-page > a").inner_text() == name
        assert page.locator("h1").count() == 1
    assert links.count() == len(PAGES) - 1  # the first is the brand's link


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_page_is_wider_than_the_window(page: Page, viewport: dict[str, int]) -> None:
    page.set_viewport_size(viewport)
    for name in PAGES:
        page.goto(f"/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name


def test_the_search_finds_a_method_of_the_communicator(page: Page) -> None:
    box = page.get_by_role("textbox", name="Search").first
    box.fill("reduce_scatter")
    box.press("Enter")
    found = page.locator("#search-results li a").filter(has_text="Communicator.reduce_scatter")
    found.first.click()
    page.wait_for_url("**/docs/api/communicator.html*")


def test_the_api_shows_a_program_with_its_parameters(page: Page) -> None:
    page.get_by_role("link", name="Programs and proofs").click()
    page.wait_for_url("**/docs/api/programs.html")
    program = page.locator("[id='hocket.Program']")
    assert program.is_visible()
    assert "collective: Collective" in program.inner_text()
