"""Files on the command line: MSCCL's XML, texts of schedules, folders of both, and standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hocket.cli.target import beginning, is_schedule, is_xml
from hocket.errors import Unreadable, UsageError
from hocket.formats.msccl_document import Document, parse_document
from hocket.formats.msccl_meaning import schedules
from hocket.functions import read_text
from hocket.ir.schedule import Schedule
from hocket.ir.text import parse_schedule


def are_files(words: Sequence[str]) -> bool:
    """Whether words name files to be read, rather than a program, or one text of a schedule, with its parameters."""
    first, *rest = words
    path = Path(first)
    if first == "-" or path.suffix == ".xml":
        return True
    if not first or not path.exists() or path.suffix == ".py":
        return False
    return not path.is_file() or is_xml(first) or any("=" not in word for word in rest)


def gather(words: Sequence[str]) -> dict[str, Path]:
    """The files that words name, each with its place in an output folder. Of a folder it is all that end in ``.xml`` or
    begin as the text of a schedule; hidden ones are left out, and no Python is run."""
    found: dict[str, Path] = {}
    for word in words:
        path = Path(word)
        if word and path.is_dir():
            inside = {str(file): file.relative_to(path) for file in _inside(path)}
            if not inside:
                raise UsageError(f"there is no file of MSCCL's XML and no text of a schedule in {word}")
            found |= inside
        elif "=" in word and not path.exists():
            raise UsageError(f"files have no parameters, such as {word}")
        else:
            found[word] = Path(path.name)
    return found


def _inside(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(here, name)
            if not name.startswith(".") and path.is_file() and (path.suffix == ".xml" or _begins_schedule(path)):
                yield path


def _begins_schedule(path: Path) -> bool:
    try:
        return is_schedule(beginning(path))
    except Unreadable:
        return False


def read_file(name: str) -> Document | Schedule:
    """What a file says, or standard input for ``-``."""
    path = Path(name)
    shown = "standard input" if name == "-" else name
    neither = UsageError(f"{shown} is neither MSCCL's XML nor the text of a schedule")
    if name != "-" and path.is_file():
        if is_xml(name) or path.suffix == ".xml":
            return parse_document(path)
        if not is_schedule(beginning(path)):
            raise neither
    text, source = read_text(name), "<stdin>" if name == "-" else name
    if text.lstrip().startswith("<"):
        return parse_document(text, source)
    if is_schedule(text):
        return parse_schedule(text, source)
    raise neither


def meaning(name: str) -> Schedule:
    """The schedule that a file means, whether or not that is right; of a file for both, the one out of place."""
    said = read_file(name)
    return said if isinstance(said, Schedule) else schedules(said)[0]
