"""Chakra's execution traces of calls that were simulated: files in a folder, named as ASTRA-sim does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hocket.errors import UsageError
from hocket.formats.chakra import traces
from hocket.ir.schedule import Schedule


def write(folder: Path, calls: Iterable[tuple[Schedule, int]]) -> list[Path]:
    """The traces of calls of so many bytes. What each is called in ASTRA-sim's input: its files without ``.RANK.et``.

    Raises UsageError for what cannot be written.
    """
    found = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for schedule, size in calls:
            stem = re.sub(r"[^\w.-]", "_", schedule.name)
            found.append(folder / f"{stem}_{size}")
            for rank, trace in enumerate(traces(schedule, size)):
                (folder / f"{stem}_{size}.{rank}.et").write_bytes(trace)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
    return found
