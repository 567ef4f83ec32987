"""Files that commands write: whether they can be is asked before any work is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from hocket.errors import UsageError


def check_output(path: Path, what: str, endings: Sequence[str]) -> None:
    """Raises UsageError for a name of another kind of file, and for what cannot be written."""
    if path.suffix.lower() not in endings:
        raise UsageError(f"the name of {what} ends in {', '.join(endings)}, not {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raises UsageError for what cannot be written. It leaves a file as it is, and makes none."""
    with writing(path), path.open("ab") if path.exists() else TemporaryFile(dir=path.absolute().parent):
        pass


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UsageError where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
