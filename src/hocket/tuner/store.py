"""What a tuner knows, in a file that people can read: of each key the arms, what they took, and which was chosen.

There is a file for each machine and library of programs (``local_file``). It is replaced as a whole: whoever reads it
sees the old table or the new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec

import hocket
from hocket.errors import BadTable
from hocket.program import Contract
from hocket.runtime.bootstrap import MOST_RANKS
from hocket.tuner.arms import Arm, Key
from hocket.tuner.learner import Explanation
from hocket.tuning import KINDS

FORMAT = 1
"""Of the file: what reads another refuses it."""

ReasonName = Literal["PRIOR", "EXPLORE", "EXPLOIT", "KEPT", "GUARD", "DRIFT", "PINNED", "FILE"]
"""Those of ``learner.Reason``."""

_WIDE = 1.96
"""Standard deviations of a normal variable within which it is with the probability of intervals, 95 %."""

_LARGEST = 64 << 20
"""Bytes of a file that is read: thousands of keys have a megabyte."""

_PATIENCE = 5.0
"""Seconds to wait for another who writes, chosen: it takes milliseconds, if it is not stopped."""

_MOST = 1 << 62
"""Of numbers in a file: native code keeps sizes in 64 bits."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Ranks = Annotated[int, msgspec.Meta(ge=2, le=MOST_RANKS)]
_Time = Annotated[float, msgspec.Meta(ge=1e-6, le=1e18)]
"""From a picosecond to 30000 years: so that ratios and logarithms of times are finite."""


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of an arm. Times are microseconds of the slowest rank.

    ``prior_us``: as predicted. ``mean_us``: 2 to the mean of log2 of ``samples`` times, from ``low_us`` to ``high_us``
    with a probability of 95 %. What was never predicted or measured is None.
    """

    program: str
    parameters: dict[str, int]
    tile: _Positive | None
    zero_copy: bool
    prior_us: _Time | None = None
    mean_us: _Time | None = None
    low_us: _Time | None = None
    high_us: _Time | None = None
    samples: _Count = 0

    def __post_init__(self) -> None:
        measured = (self.mean_us, self.low_us, self.high_us)
        if None in measured and measured != (None, None, None):
            raise ValueError("mean_us, low_us and high_us go together")
        if self.mean_us is not None and self.low_us is not None and self.high_us is not None:
            if not self.low_us <= self.mean_us <= self.high_us:
                raise ValueError(f"mean_us {self.mean_us} is not from {self.low_us} to {self.high_us}")
            if not self.samples:
                raise ValueError("it has a mean_us of no samples")

    @classmethod
    def of(
        cls,
        arm: Arm,
        prior_us: float | None = None,
        mean_us: float | None = None,
        interval: tuple[float, float] | None = None,
        samples: int = 0,
    ) -> Known:
        low, high = (None, None) if interval is None else interval
        about = arm.program, dict(arm.parameters), arm.tile, arm.zero_copy
        return cls(*about, prior_us, mean_us, low, high, samples)

    @property
    def arm(self) -> Arm:
        return Arm(self.program, tuple(self.parameters.items()), self.tile, self.zero_copy)

    @property
    def recalled(self) -> tuple[float, float, int] | None:
        """What ``Learner.recall`` is told: the mean in seconds, the standard deviation of its log2, the samples."""
        if self.mean_us is None or self.low_us is None or self.high_us is None:
            return None
        return self.mean_us * 1e-6, math.log2(self.high_us / self.low_us) / (2 * _WIDE), self.samples


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key, its arms, that of the static policy first, and the index of the chosen one."""

    collective: str
    ranks: _Ranks
    nodes: tuple[_Count, ...]
    type: str
    op: str
    root: _Count
    reproducible: Contract | None
    oversubscribed: bool
    least: _Positive
    most: _Positive
    arms: Annotated[tuple[Known, ...], msgspec.Meta(min_length=1)]
    chosen: _Count
    reason: ReasonName

    def __post_init__(self) -> None:
        if self.collective not in KINDS:
            raise ValueError(f"there is no collective {self.collective!r}")
        if self.root >= self.ranks:
            raise ValueError(f"there is no root {self.root} among {self.ranks} ranks")
        if self.least & (self.least - 1) or self.most != 2 * self.least - 1:
            raise ValueError("its sizes are not from a power of two to twice as many less one")
        if self.nodes and len(self.nodes) != self.ranks:
            raise ValueError("nodes has not one number for each rank")
        if self.chosen >= len(self.arms):
            raise ValueError(f"there is no arm {self.chosen}")
        if len({known.arm for known in self.arms}) != len(self.arms):
            raise ValueError("an arm is there twice")

    @classmethod
    def of(cls, key: Key, arms: Iterable[Known], chosen: int, reason: ReasonName) -> Tuned:
        place = key.collective, key.ranks, key.nodes, key.type, key.op, key.root, key.reproducible, key.oversubscribed
        return cls(*place, key.least, 2 * key.least - 1, tuple(arms), chosen, reason)

    @classmethod
    def learned(cls, key: Key, arms: Iterable[Arm], found: Explanation) -> Tuned:
        """What a learner knows, which has the arms in the same order."""
        known = []
        for arm, candidate in zip(arms, found.candidates, strict=True):
            prior = None if candidate.prior is None else _us(candidate.prior)
            if candidate.samples:
                interval = _us(candidate.low), _us(candidate.high)
                known.append(Known.of(arm, prior, _us(candidate.mean), interval, candidate.samples))
            else:
                known.append(Known.of(arm, prior))
        return cls.of(key, known, found.choice.incumbent, cast("ReasonName", found.choice.reason.name))

    @property
    def key(self) -> Key:
        place = self.collective, self.ranks, self.nodes, self.type, self.op, self.root
        return Key(*place, self.least.bit_length() - 1, self.reproducible, self.oversubscribed)

    @property
    def default(self) -> Known:
        return self.arms[0]

    @property
    def best(self) -> Known:
        """The chosen one."""
        return self.arms[self.chosen]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file. ``machine``: where it was measured; ``library``: the programs, as ``library`` says; both are compared."""

    hocket: str
    machine: str
    library: str
    keys: tuple[Tuned, ...]
    format: int = FORMAT

    def __post_init__(self) -> None:
        if len({tuned.key for tuned in self.keys}) != len(self.keys):
            raise ValueError("a key is there twice")

    @classmethod
    def of(cls, machine: str, keys: Iterable[Tuned]) -> Table:
        """Of this library, in the order of keys."""
        return cls(hocket.__version__, machine, library(), tuple(sorted(keys, key=_order)))

    def updated(self, keys: Iterable[Tuned]) -> Table:
        """With other keys besides, and in place of its own."""
        return Table.of(self.machine, {tuned.key: tuned for tuned in (*self.keys, *keys)}.values())

    def foreign(self, machine: str) -> str | None:
        """Why it says nothing of this machine with this library; None if it does."""
        if self.machine != machine:
            return f"it is of another machine: {self.machine}, and this is {machine}"
        return self.other_programs

    @property
    def other_programs(self) -> str | None:
        """Why its arms stand for other programs than this library's; None if they do not."""
        if self.library != library():
            return f"it is of other programs, those of hocket {self.hocket} with the hash {self.library}"
        return None


def _us(seconds: float) -> float:
    """Four digits, for people."""
    return float(f"{seconds * 1e6:.4g}")


def _order(tuned: Tuned) -> tuple[object, ...]:
    key = tuned.key
    place = key.collective, key.ranks, key.nodes, key.type, key.op, key.root
    return *place, key.reproducible or "", key.oversubscribed, key.bits


@cache
def library() -> str:
    """A hash of what arms stand for: the sources of the library's programs, of the compiler, of the static policy."""
    package = Path(hocket.__file__).parent
    files = [*(package / "algorithms").glob("*.py"), *(package / "compiler").glob("*.py"), package / "tuning.py"]
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def local_file(machine: str) -> Path:
    """Where the table of this library on a machine is kept. Raises BadTable."""
    name = f"tuned-{hashlib.sha256(f'{machine}/{library()}'.encode()).hexdigest()[:16]}.json"
    if cache_folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_folder) / "hocket" / name
    if home := os.environ.get("HOME"):
        return Path(home) / ".cache" / "hocket" / name
    raise BadTable("neither XDG_CACHE_HOME nor HOME says where the table of this machine is")


# ---------------------------------------------------------------------------------------------------------------
# The file


def own(path: Path, machine: str, *, new: bool) -> Table:
    """The table of a file, which must be of this machine and library. ``new``: without a file an empty one. Raises
    BadTable."""
    try:
        there = path.exists()
    except OSError as error:
        raise BadTable(f"cannot read {path}: {error.strerror}") from None
    if new and not there:
        return Table.of(machine, ())
    table = read(path)
    foreign = table.foreign(machine)
    if foreign is not None:
        raise BadTable(f"{path} is refused: {foreign}")
    return table


def update(path: Path, machine: str, keys: Iterable[Tuned]) -> None:
    """Put keys into a file beside those of others, or make it. Who else updates it meanwhile waits. Raises BadTable,
    also for a file of another machine or library."""
    with _locked(path):
        write(path, own(path, machine, new=True).updated(keys))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps others out by a file beside it, which stays: the table's own is replaced. Raises BadTable."""
    side = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(side, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadTable(f"cannot write {path}: cannot open {side}: {error.strerror}") from None
    try:
        _wait_for(lock, side)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also that of a process that was forked meanwhile
    finally:
        os.close(lock)


def _wait_for(lock: int, side: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise BadTable(f"another process has locked {side} for more than {_PATIENCE:g} s") from None
        except OSError as error:
            raise BadTable(f"cannot lock {side}: {error.strerror}") from None
        time.sleep(0.01)


def write(path: Path, table: Table) -> None:
    """Replace a file, or make it with its folder. Raises BadTable."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(dump(table))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the name, too, is there after a crash
        finally:
            os.close(folder)
    except OSError as error:
        raise BadTable(f"cannot write {path}: {error.strerror}") from None


def dump(table: Table) -> str:
    """JSON with a line for each arm."""
    head = {name: getattr(table, name) for name in ("format", "hocket", "machine", "library")}
    lines = [f" {_json(name)}: {_json(value)}," for name, value in head.items()]
    keys = ",\n".join(_key_text(tuned) for tuned in table.keys)
    return "\n".join(["{", *lines, ' "keys": [', *[keys] * bool(keys), " ]", "}\n"])


def _key_text(tuned: Tuned) -> str:
    said = msgspec.to_builtins(tuned)
    arms = ",\n".join(f"    {_json(arm)}" for arm in said.pop("arms"))
    return f'  {_json(said).removesuffix("}")}, "arms": [\n{arms}\n  ]}}'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read(path: Path) -> Table:
    """A table, of whichever machine. Raises BadTable."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise BadTable(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise BadTable(f"{path} is too large for a table: it has more than {_LARGEST >> 20} MB")
    return parse(data.decode("utf-8", errors="replace"), str(path))


def parse(text: str, name: str) -> Table:
    """The table that a text is; ``name``: what errors call it. Raises BadTable."""
    try:
        said = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise BadTable(f"{name}:{error.lineno}:{error.colno} is no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadTable(f"{name} is no table of a tuner: {error}") from None
    found = said.get("format") if isinstance(said, dict) else None
    if found != FORMAT:
        what = "it has no format" if found is None else f"its format is {found!r}"
        raise BadTable(f"{name} is no table of a tuner: {what}, this hocket reads {FORMAT}")
    try:
        return msgspec.convert(said, Table)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = place.removesuffix("`").removeprefix(".")
        raise BadTable(f"{name} is no table of a tuner: {place and f'{place}: '}{reason}") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _constant(word: str) -> object:
    raise ValueError(f"{word} is no number")


# ---------------------------------------------------------------------------------------------------------------
# Comparing


@dataclass(frozen=True, slots=True)
class Change:
    """A key that two tables do not have alike: what each knows of it, None where it is not there."""

    key: Key
    before: Tuned | None
    after: Tuned | None

    @property
    def moved(self) -> bool:
        """Whether both have it, with different arms chosen."""
        return self.before is not None and self.after is not None and self.before.best.arm != self.after.best.arm


def changes(before: Table, after: Table) -> Iterator[Change]:
    """The keys that only one has, and those of which another arm was chosen, in the order of keys."""
    old, new = ({tuned.key: tuned for tuned in table.keys} for table in (before, after))
    for tuned in sorted({**old, **new}.values(), key=_order):
        found = Change(tuned.key, old.get(tuned.key), new.get(tuned.key))
        if found.moved or None in (found.before, found.after):
            yield found
