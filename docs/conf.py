"""Sphinx: a site of all pages, and of the API from the docstrings. ``sphinx-build -W -c docs . out/site`` builds it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))


class _Native(ModuleType):
    """What docstrings are read with instead of the native module, which there may be none of: its stub.

    It would also turn methods of Communicator into native ones.
    """

    def __init__(self) -> None:
        super().__init__("hocket._native")
        stub = (ROOT / "src" / "hocket" / "_native.pyi").read_text()
        exec("from __future__ import annotations\n" + stub, self.__dict__)
        self.brief = lambda method, *_: method
        self.TYPES = ("bool",)

    def __getattr__(self, _: str) -> MagicMock:
        return MagicMock()


sys.modules["hocket._native"] = _Native()

project = "hocket"
author = "hocket contributors"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["sphinx.ext.autodoc", "myst_parser"]
# The source is the whole repository, so that links between pages are right in the files and on the site.
include_patterns = ["*.md", "docs/**.md", "benchmarks/results/*.md"]
root_doc = "README"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"NDArray": "NDArray"}
python_maximum_signature_line_length = 100
myst_heading_anchors = 3
highlight_language = "text"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"hocket {version}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]

ORDER = {
    "docs": (
        "language",
        "coming-from",
        "algorithms",
        "runtime",
        "timelines",
        "schedules-by-size",
        "tuning-files",
        "simulator",
        "tuner",
        "pytorch",
        "machines",
        "mpi",
        "msccl",
        "msccl-programs",
        "ci",
        "traffic",
        "how-fast",
    ),
    "docs/design": ("language", "proof", "calls", "agreement", "paths", "policy", "mpi"),
}
"""Of the pages of the guide, and of those of the design; one that is not named comes last."""


def _pages(folder: str) -> list[str]:
    order = ORDER[folder]

    def rank(page: str) -> tuple[int, str]:
        return order.index(page) if page in order else len(order), page

    return [f"{folder}/{page}" for page in sorted((path.stem for path in (ROOT / folder).glob("*.md")), key=rank)]


SIDEBAR = {
    "Guide": _pages("docs"),
    "API": ["docs/api/programs", "docs/api/communicator", "docs/api/errors", "docs/api/algorithms"],
    "Design": ["Architecture <ARCHITECTURE>", *_pages("docs/design")],
    "Measurements": [f"benchmarks/results/{path.stem}" for path in sorted((ROOT / "benchmarks/results").glob("*.md"))],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}


def _with_sidebar(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        for caption, pages in SIDEBAR.items():
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _with_index(app: Sphinx, error: Exception | None) -> None:
    """A folder is opened at index.html; the first page is README.html."""
    if error is None and app.builder.format == "html":
        (app.outdir / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    app.connect("source-read", _with_sidebar)
    app.connect("build-finished", _with_index)
