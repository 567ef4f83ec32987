"""What the user names on the command line: FILE:FUNC name=value ..., the text of a schedule, or MSCCL's XML."""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hocket import tunables
from hocket.errors import Unreadable, UsageError
from hocket.formats import msccl_xml
from hocket.functions import find, read_text, traced
from hocket.ir.schedule import Schedule
from hocket.ir.text import parse_schedule
from hocket.program import Program


@dataclass(frozen=True)
class Case:
    """A target with a value for each parameter. ``load`` traces the program, or reads the schedule, which ``foreign``
    files may hold: those of XML, by whomever. What they promise of the bits of sums is not asked here."""

    parameters: Mapping[str, object]
    load: Callable[[], Program | Schedule]
    foreign: bool = False

    def __str__(self) -> str:
        return " ".join(f"{name}={show_value(value)}" for name, value in self.parameters.items())


def cases(target: str, words: Sequence[str]) -> list[Case]:
    """All cases that the words name: a range such as ``ranks=2..33`` (both ends included) stands for several."""
    if ":" not in target:
        path = Path(target)
        if is_xml(target):
            if words:
                raise UsageError(f"{target} is a schedule; it has no parameter {words[0]!r}")
            return [Case({}, lambda: msccl_xml.read(path, reproducible="may-differ"), foreign=True)]
        if path.is_file() and is_schedule(beginning(path)):
            if words:
                raise UsageError(f"{target} is a schedule; it has no parameter {words[0]!r}")
            text = read_text(target)
            return [Case({}, lambda: parse_schedule(text, target))]
    found = find(target)
    if isinstance(found, Program):
        if words:
            raise UsageError(f"{target} is a program; it has no parameter {words[0]!r}")
        return [Case({}, lambda: found)]
    return [Case(given, partial(traced, target, found, given)) for given in _arguments(target, found, words)]


def is_xml(target: str) -> bool:
    """Whether a target is a file that looks like XML."""
    path = Path(target)
    if not path.is_file():
        return False
    return beginning(path).removeprefix("\ufeff").lstrip().startswith("<")


def beginning(path: Path) -> str:
    """As much of a file as has to show what it is."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode(errors="replace")
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from None


def is_schedule(text: str) -> bool:
    """Whether a text begins as that of a schedule does, after comments."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "").startswith("schedule ")


def one_case(target: str, words: Sequence[str]) -> Case:
    """The only case; a range is refused."""
    found = cases(target, words)
    if len(found) != 1:
        raise UsageError(
            f"one value for each parameter is needed here, not {len(found)} cases", "only check takes ranges"
        )
    return found[0]


# ---------------------------------------------------------------------------------------------------------------
# Calling it


def _arguments(target: str, function: Callable[..., object], words: Sequence[str]) -> Iterator[dict[str, object]]:
    """The product of all ranges, in the order in which the parameters are written."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # of an annotation that only type checkers understand, or for want of any signature
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise UsageError(f"{target} does not say what its parameters are") from None
    parameters = signature.parameters
    shown = f"it is {target.rpartition(':')[2]}{signature.replace(return_annotation=inspect.Signature.empty)}"
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    chosen: dict[str, list[object]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"expected name=value, found {word!r}", shown)
        if name in chosen:
            raise UsageError(f"{name} is given twice")
        if name not in parameters and not open_ended:
            close = difflib.get_close_matches(name, parameters, 1)
            raise UsageError(
                f"{target} has no parameter {name!r}" + (f"; did you mean {close[0]}?" if close else ""), shown
            )
        annotation = parameters[name].annotation if name in parameters else inspect.Parameter.empty
        chosen[name] = values(name, value, annotation)
        if math.prod(map(len, chosen.values())) > _MOST_CASES:
            raise _too_many(word)
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in chosen
    ]
    if required:
        needs = " ".join(f"{name}=..." for name in required)
        raise UsageError(f"{target} needs {' and '.join(required)}", f"add {needs}; {shown}")
    for product in itertools.product(*chosen.values()):
        yield dict(zip(chosen, product, strict=True))


_MOST_CASES = 1 << 16
_RANGE = re.compile(r"(-?\d{1,1000})\.\.(-?\d{1,1000})\Z")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def values(name: str, text: str, annotation: object) -> list[object]:
    """What a word means for a parameter: several values where it is a range. Raises UsageError."""
    wanted = _alternatives(annotation)
    match = _RANGE.match(text)
    if match is not None and int in wanted:
        low, high = int(match[1]), int(match[2])
        if high < low:
            raise UsageError(f"the range {name}={text} is empty", "a range is written LOW..HIGH, both included")
        if high - low >= _MOST_CASES:
            raise _too_many(f"{name}={text}")
        return list(range(low, high + 1))
    for kind in wanted:
        value = _convert(text, kind)
        if value is not _NO:
            return [value]
    kinds = " or ".join(getattr(kind, "__name__", str(kind)) for kind in wanted)
    raise UsageError(f"{name}={text} is no {kinds}", "a tuple is written 2,3" if tuple in wanted else None)


def _too_many(word: str) -> UsageError:
    return UsageError(f"with {word} there are more than {_MOST_CASES} cases", "give a shorter range")


_NO = object()


def _alternatives(annotation: object) -> list[object]:
    """The types that a parameter takes, the most particular first; all that can be written, if it does not say."""
    known: list[object] = [type(None), bool, int, float, tuple, list, str]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [typing.get_origin(part) or part for part in typing.get_args(annotation)]
    else:
        parts = [typing.get_origin(annotation) or annotation]
    found = [kind for kind in known if kind in parts]
    return found or [int, float, tuple, bool, str]


def _convert(text: str, kind: object) -> object:
    if kind is bool:
        return _WORDS.get(text.lower(), _NO)
    if kind is type(None):
        return None if text.lower() == "none" else _NO
    if kind in (tuple, list):
        parts = [part.strip() for part in text.strip("()[]").split(",")]
        if "," not in text:
            return _NO
        found = [_convert(part, int) for part in parts if part]
        return _NO if _NO in found else tuple(found) if kind is tuple else found
    try:
        if kind is int:
            return int(text)
        if kind is float:
            value = float(text)
            return value if math.isfinite(value) else _NO
    except ValueError:
        return _NO
    return text


def check_collective(name: str) -> None:
    """Raises UsageError for a collective that is not called by name."""
    from hocket.tuning import NAMED  # loads part of the library

    if name not in NAMED:
        close = difflib.get_close_matches(name, NAMED, 1)
        hint = f"did you mean {close[0]}?" if close else f"it is one of {', '.join(NAMED)}"
        raise UsageError(f"there is no collective {name!r}", hint)


def check_processes(ranks: int, most: int) -> None:
    """Raises UsageError for an -n of no processes, or of more than ``most``."""
    if not 1 <= ranks <= most:
        raise UsageError(f"-n must be a number from 1 to {most}, not {ranks}", "each rank is a process of its own")


def parse_size(text: str) -> int:
    """Bytes of ``64MB``, ``1.5K`` or ``8``; K is 1024. Raises UsageError."""
    size = tunables.parse_size(text)
    if size is None:
        raise UsageError(f"{text!r} is no size", "a size is written 8, 64K, 25MB or 1G, where K = 1024")
    if size > sys.maxsize:
        raise UsageError(f"no machine has so much memory: {text}")
    return size


def one_of(option: str, given: str, known: Collection[str]) -> str:
    """What an option names, as ``known`` spells it; upper and lower case are one. Raises UsageError."""
    for name in known:
        if name.lower() == given.lower():
            return name
    raise UsageError(f"{option} must be one of {', '.join(known)}, not {given!r}")


def show_value(value: object) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) + "," * (len(value) == 1)
    return str(value)
