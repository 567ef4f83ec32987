"""The file that HOCKET_CONFIG names: which schedules of the user's calls by name take, by size."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from hocket.errors import (
    SIZES_HELP,
    BadConfig,
    HocketError,
    InvalidArgument,
    Location,
    Unreadable,
    UsageError,
    UserCodeFailed,
    counted,
)
from hocket.formats import msccl_xml
from hocket.formats.msccl_document import Document, parse_document
from hocket.functions import find, read_text, traced
from hocket.ir.schedule import Schedule
from hocket.program import Program
from hocket.tunables import CONFIG, TILE_HELP, parse_tile
from hocket.tuning import NAMED, Entry, Sizes
from hocket.verify import Contract

_Number = Annotated[int, msgspec.Meta(ge=1)]


class _Written(msgspec.Struct, frozen=True):
    """The keys of an entry."""

    program: str | None = None
    xml: str | None = None
    arguments: dict[str, bool | int | float | str | list[object]] = {}
    ranks: _Number | Annotated[list[_Number], msgspec.Meta(min_length=1)] | None = None
    sizes: str | None = None
    protocol: str | None = None
    instances: _Number | None = None
    tile: str | None = None
    reproducible: Contract | None = None


_KEYS = _Written.__struct_fields__
_OF_PROGRAMS = ("arguments", "protocol", "instances")


@dataclass(frozen=True)
class Item:
    """An entry as it is written: a program, or a file of XML, of no certain number of ranks yet."""

    collective: str
    named: str
    where: Location
    folder: Path
    sizes: Sizes
    tile: int | None
    written: _Written

    @cached_property
    def numbers(self) -> tuple[int, ...] | None:
        """The numbers of ranks that it is for; None: two or more, as many as its function takes. Raises BadConfig."""
        ranks = self.written.ranks
        if ranks is not None:
            return (ranks,) if isinstance(ranks, int) else tuple(ranks)
        with self._refusing():
            source = self._source
            if isinstance(source, Document):
                return (len(source.gpus),)
            return (source.collective.size,) if isinstance(source, Program) else None

    def entry(self, ranks: int) -> Entry | HocketError:
        """What a communicator of so many ranks takes, proven; or why it skips this. Raises BadConfig."""
        numbers = self.numbers
        if ranks == 1 if numbers is None else ranks not in numbers:
            return InvalidArgument(f"it is for {', '.join(map(str, numbers or ['two or more']))} ranks")
        with self._refusing(f" on {counted(ranks, 'rank')}"):
            source = self._source
            try:
                made = source if isinstance(source, Program | Document) else source(ranks)
            except UserCodeFailed as error:
                if numbers is None and type(error.__cause__) is ValueError:
                    return error  # so a function says that it takes no such number
                raise
            schedule = self._proven(made)
            collective = schedule.collective
            if (collective.name, collective.size) != (self.collective.replace("_", ""), ranks):
                raise InvalidArgument(f"it is {collective.name} on {counted(collective.size, 'rank')}")
            return Entry(schedule, self.sizes, f"{CONFIG} at {self.where}", self.tile)

    @cached_property
    def _source(self) -> Program | Document | Callable[[int], Program]:
        """What it names; where that has to be told the number of ranks, a function of it."""
        if self.written.xml is not None:
            return parse_document(self.folder / self.named)
        given, found = self.written.arguments, find(self.named, self.folder)
        if isinstance(found, Program):
            if given:
                raise UsageError(f"{self.named} is a program; it takes no arguments")
            return found
        try:
            parameters = inspect.signature(found).parameters
        except (TypeError, ValueError):
            raise UsageError(f"{self.named} does not say what its parameters are") from None
        if "ranks" in given or "ranks" not in parameters:
            return traced(self.named, found, given)
        return lambda ranks: traced(self.named, found, {**given, "ranks": ranks})

    def _proven(self, made: Program | Document) -> Schedule:
        written = self.written
        if isinstance(made, Document):
            return msccl_xml.read(made, reproducible=written.reproducible)
        try:
            return made.compile(
                protocol=written.protocol, instances=written.instances, reproducible=written.reproducible
            )
        except InvalidArgument as error:  # of what is written here, not where this is called
            raise InvalidArgument(error.message, None, error.help) from error

    @contextmanager
    def _refusing(self, on: str = "") -> Iterator[None]:
        """Says of what is wrong which entry it is of."""
        try:
            yield
        except BadConfig:
            raise
        except (HocketError, OSError) as error:
            cause = Unreadable(f"cannot read it: {error.strerror}") if isinstance(error, OSError) else error
            raise BadConfig(f"{self.named}{on} is refused", None, self.where, cause) from error


class Config:
    """A file, which is read when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[int, tuple[Entry, ...]] = {}

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Its entries, in their order but by collective. Raises BadConfig."""
        return tuple(_File(self._path).items())

    def entries(self, ranks: int) -> tuple[Entry, ...]:
        """What a communicator of so many ranks takes, proven once. Raises BadConfig."""
        found = self._entries.get(ranks)
        if found is None:
            made = [item.entry(ranks) for item in self.items]
            found = self._entries[ranks] = tuple(entry for entry in made if isinstance(entry, Entry))
        return found


class _File:
    """Reads a file; raises BadConfig, with the line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = read_text(str(path if path.name != "-" else Path("./-"))).replace("\r\n", "\n")
        except Unreadable as error:
            named = os.environ.get(CONFIG)
            said = f" ({CONFIG})" if named and Path(named) == path else ""
            raise BadConfig(f"{error.message}{said}") from None
        self._lines = self._text.split("\n")

    def items(self) -> Iterator[Item]:
        try:
            tables = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r" \(at line (\d+), column \d+\)$", str(error))
            line = int(at[1]) if at else self._text.rstrip().count("\n") + 1
            raise self._mistake(line, str(error).removesuffix(at[0] if at else "")) from None
        places = _places(self._lines)
        for name, entries in tables.items():
            if name not in NAMED:
                raise self._mistake(places[name][0][0], f"there is no collective {name!r}", _closest(name, NAMED))
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise self._mistake(places[name][0][0], f"an entry of {name} begins with [[{name}]]")
            for entry, (line, keys) in zip(entries, places[name], strict=bool(entries)):
                yield self._item(name, entry, line, keys)

    def _item(self, collective: str, entry: Mapping[str, object], line: int, keys: Mapping[str, int]) -> Item:
        for key in entry:
            if key not in _KEYS:
                raise self._mistake(keys.get(key, line), f"an entry has no {key!r}", _closest(key, _KEYS))
        try:
            written = msgspec.convert(entry, _Written)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            key = re.split(r"\W", path)[0]
            raise self._mistake(keys.get(key, line), f"{key}: {reason}") from None
        named = written.program if written.xml is None else written.xml
        if named is None or None not in (written.program, written.xml):
            raise self._mistake(line, "an entry names a program or a file of xml, one of them")
        for key in _OF_PROGRAMS if written.xml is not None else ():
            if key in entry:
                raise self._mistake(keys.get(key, line), f"a file of XML is compiled already: it has no {key}")
        sizes = Sizes() if written.sizes is None else Sizes.parse(written.sizes)
        if sizes is None:
            raise self._mistake(keys.get("sizes", line), f"{written.sizes!r} is no range of sizes", SIZES_HELP)
        tile = None if written.tile is None else parse_tile(written.tile)
        if written.tile is not None and tile is None:
            raise self._mistake(keys.get("tile", line), f"{written.tile!r} is no tile", TILE_HELP)
        return Item(collective, named, self._at(line), self._path.parent.absolute(), sizes, tile, written)

    def _at(self, line: int) -> Location:
        source = self._lines[line - 1]
        begin, end = (len(part.encode(errors="replace")) for part in (source[: -len(source.lstrip()) or None], source))
        return Location(str(self._path), line, begin, end, source)

    def _mistake(self, line: int, reason: str, help_: str | None = None) -> BadConfig:
        return BadConfig(reason, help_, self._at(line))


def _closest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"it is one of {', '.join(known)}"


def _places(lines: Sequence[str]) -> dict[str, list[tuple[int, dict[str, int]]]]:
    """The line of each entry of each table, and of each of its keys; what is no entry counts as one.

    A statement ends with the first line with which it can be read by itself.
    """
    found: dict[str, list[tuple[int, dict[str, int]]]] = {}
    keys: dict[str, int] | None = None  # of the table that was begun last
    begin, statement = 1, ""
    for number, line in enumerate(lines, 1):
        statement += f"{line}\n"
        try:
            said = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        for name, value in said.items():
            if not statement.lstrip().startswith("["):
                if keys is None:
                    found[name] = [(begin, {}) for _ in (value if value and isinstance(value, list) else [value])]
                else:
                    keys.setdefault(name, begin)
            elif isinstance(value, dict) and name in found:  # [all_reduce.arguments] is a key of the last entry
                keys = {}
                found[name][-1][1].update(dict.fromkeys(value, begin))
            else:
                keys = {}
                found.setdefault(name, []).append((begin, keys))
        begin, statement = number + 1, ""
    return found
