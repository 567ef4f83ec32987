"""The tuned numbers of this process: the defaults of Python and of native code, and what HOCKET_TUNABLES says, and
whether a tuner learns: what HOCKET_TUNER says.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass

from hocket import _native
from hocket.errors import BootstrapFailed
from hocket.tunables import ROWS, VARIABLE, Row, Tunables, given

TUNER = "HOCKET_TUNER"

ALL = (*ROWS, *(Row(n.name, n.unit, n.scope, n.value, n.least, n.most, n.source, n.reason) for n in _native.TUNABLES))
"""Every tuned number, with its default on this processor."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Whether a tuner chooses among what gives the same bits, and tries what may be faster; ``table``: the file of what
    it knows, None for none.
    """

    chooses: bool
    tries: bool
    table: str | None

    @staticmethod
    def parse(text: str) -> Wish:
        """Of HOCKET_TUNER. Raises BootstrapFailed."""
        way, colon, table = text.partition(":")
        good = (way in ("", "off", "learn") and not colon) or (way in ("learn", "use") and table)
        if not good:
            raise BootstrapFailed(f"{TUNER} must be off, learn, learn:FILE or use:FILE, not {text[:40]!r}")
        return Wish(way in ("learn", "use"), way == "learn", table or None)


@dataclass(frozen=True, slots=True)
class Tuned:
    """``policy``: those of Python; ``native``: those of native code that can be set; ``common``: what must be the
    same on all ranks; ``tuner``: what is said of the tuner.
    """

    policy: Tunables
    native: Mapping[str, int]
    common: Mapping[str, int | str]
    tuner: Wish


def tuned() -> Tuned:
    """The numbers to go by. Raises BootstrapFailed for a variable that makes no sense."""
    return _tuned(os.environ.get(VARIABLE, ""), os.environ.get(TUNER, ""))


@functools.cache
def _tuned(text: str, way: str) -> Tuned:
    said = given(text, ALL)
    own = {row.name for row in ROWS}
    return Tuned(
        Tunables(**{name: value for name, value in said.items() if name in own}),
        {row.name: said.get(row.name, row.value) for row in ALL if row.name not in own and row.scope != "fixed"},
        {row.name: said.get(row.name, row.value) for row in ALL if row.scope != "local"} | {TUNER: way or "off"},
        Wish.parse(way),
    )


def difference(mine: Mapping[str, int | str], others: Mapping[str, int | str]) -> str | None:
    """The first number in which two ranks differ, as both have it."""
    for name in sorted({*mine, *others}):
        if mine.get(name) != others.get(name):
            return f"{name} is {others.get(name, 'unknown')} there, {mine.get(name, 'unknown')} here"
    return None
