"""What the user names on the command line: FILE:FUNC name=value ..., the text of a schedule, or MSCCL's XML."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import itertools
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from hocket import tunables
from hocket.errors import Diagnostic, HocketError, Label, Location, Site, Where
from hocket.formats import msccl_xml
from hocket.ir.schedule import Schedule
from hocket.ir.text import parse_schedule
from hocket.program import Program

_EXAMPLE = "ring:all_reduce ranks=4"
_LIBRARY = "hocket.algorithms."


@dataclass(eq=False)
class UsageError(HocketError, ValueError):
    """A command line that means nothing; its exit code is 2."""

    code = "usage"
    message: str
    help: str | None = None

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(self.code, self.message, help=self.help)


@dataclass(eq=False)
class UserCodeFailed(UsageError):
    """The user's file or function raised an exception that is not one of ours."""

    code = "user-code"
    where: Where | None = None

    def diagnostic(self) -> Diagnostic:
        labels = (Label(self.where, "raised here", True),) if self.where is not None else ()
        return Diagnostic(self.code, self.message, labels, help=self.help)


class Unreadable(UsageError):
    """A file that cannot be read."""

    code = "unreadable"


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
    name, colon, function = target.rpartition(":")
    if not colon:
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
        raise _no_function(target)
    found = _function(name, function)
    if isinstance(found, Program):
        if words:
            raise UsageError(f"{target} is a program; it has no parameter {words[0]!r}")
        return [Case({}, lambda: found)]
    return [Case(values, _loader(target, found, values)) for values in _arguments(target, found, words)]


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


_LARGEST = 1 << 28
"""Bytes of a text that is read as a whole: Python, or a schedule."""


def read_text(name: str) -> str:
    """The text of a file, or of standard input for ``-``."""
    if name == "-" and sys.stdin is None:
        raise Unreadable("standard input is closed")
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            large = name != "-" and os.fstat(file.fileno()).st_size > _LARGEST
            data = b"" if large else file.read(_LARGEST + 1)
    except OSError as error:
        raise Unreadable(f"cannot read {name}: {error.strerror}") from None
    if large or len(data) > _LARGEST:
        raise Unreadable(f"{name} is too large for a program or a schedule: it has more than {_LARGEST >> 20} MB")
    return data.decode("utf-8", errors="replace")


def one_case(target: str, words: Sequence[str]) -> Case:
    """The only case; a range is refused."""
    found = cases(target, words)
    if len(found) != 1:
        raise UsageError(
            f"one value for each parameter is needed here, not {len(found)} cases", "only check takes ranges"
        )
    return found[0]


# ---------------------------------------------------------------------------------------------------------------
# Finding the function


def _function(name: str, function: str) -> Callable[..., object] | Program:
    module = _file(Path(name)) if name.endswith(".py") or "/" in name else _module(_full(name, function), function)
    found = getattr(module, function, None)
    if isinstance(found, Program) or callable(found):
        return found
    source = Path(module.__file__ or name)
    names = list(_functions(source))
    close = difflib.get_close_matches(function, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names) or 'no function'}"
    raise UsageError(f"{name} has no function {function!r}", hint)


def _file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise _missing(path)
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)  # as Python itself does for a script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        with user_code(path, f"importing {path.name}"):
            spec.loader.exec_module(module)
    finally:
        if known is not None:  # a file called random.py must not replace a module that others use
            sys.modules[path.stem] = known
    return module


def _full(name: str, function: str) -> str:
    """The module that a name without dots means: the library's, if that has the function or there is no other."""
    spec = None if "." in name else _find(_LIBRARY + name)
    if spec is None or spec.origin is None:
        return name
    ours = function in _functions(Path(spec.origin)) or not (_find(name) or Path(f"{name}.py").is_file())
    return _LIBRARY + name if ours else name


def _module(name: str, function: str) -> types.ModuleType:
    spec = _find(name)
    if spec is None or spec.origin is None:
        from hocket.algorithms.catalogue import CATALOGUE  # all of the library, needed only here

        listed = [algorithm.name for algorithm in CATALOGUE]
        if Path(f"{name}.py").is_file():
            hint = f"did you mean {name}.py:{function}?"
        elif close := difflib.get_close_matches(f"{name.removeprefix(_LIBRARY)}:{function}", listed, 1):
            hint = f"did you mean {close[0]}?"
        else:
            hint = f"a program is named FILE.py:FUNC, or as in {_EXAMPLE}"
        raise UsageError(f"there is no module {name!r}", hint)
    with user_code(Path(spec.origin), f"importing {name}"):
        return importlib.import_module(name)


def _missing(path: Path) -> UsageError:
    around = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, around, 1)
    return UsageError(f"there is no file {path}", f"did you mean {path.parent / close[0]}?" if close else None)


def _no_function(target: str) -> UsageError:
    path = Path(target)
    if target.endswith(".py") or "/" in target or path.exists():
        if not path.is_file():
            return _missing(path)
    elif (spec := _find(target) or _find(_LIBRARY + target)) is not None and spec.origin is not None:
        path = Path(spec.origin)
    else:
        return UsageError(
            f"there is no file or module {target!r}", f"a program is named FILE.py:FUNC, or as in {_EXAMPLE}"
        )
    found = _functions(path)
    if not found:
        return UsageError(f"{target} is neither Python with a function in it nor the text of a schedule nor XML")
    ways = [" ".join([f"{target}:{name}", *(f"{word}=..." for word in needed)]) for name, needed in found.items()]
    return UsageError(f"which function of {target}?", "it is one of\n" + "\n".join(f"  {way}" for way in ways))


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _functions(path: Path) -> dict[str, list[str]]:
    """The public functions of a file and the parameters that each must be given, without running it."""
    try:
        tree = ast.parse(read_text(str(path)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            given = node.args
            required = given.args[: len(given.args) - len(given.defaults)]
            required += [a for a, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
            found[node.name] = [a.arg for a in required]
    return found


# ---------------------------------------------------------------------------------------------------------------
# Calling it


class user_code:  # noqa: N801 (reads as the statement it is used as)
    """Turns an exception that the user's code raises into an error that shows the user's line, not our frames."""

    def __init__(self, path: Path, doing: str) -> None:
        self._path = path.resolve()
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, HocketError):
            return
        where: Where | None = None
        if isinstance(error, SyntaxError) and error.filename is not None:
            column = (error.offset or 1) - 1
            where = Location(error.filename, error.lineno or 1, column, column + 1, error.text)
        while trace is not None:
            code = trace.tb_frame.f_code
            if Path(code.co_filename).resolve() == self._path:
                where = Site(code, trace.tb_lasti)
            trace = trace.tb_next
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserCodeFailed(f"{self._doing}: {type(error).__name__}: {said}", None, where) from error


def _loader(target: str, function: Callable[..., object], values: Mapping[str, object]) -> Callable[[], Program]:
    def load() -> Program:
        source = inspect.getsourcefile(inspect.unwrap(function)) or ""
        with user_code(Path(source), f"tracing {target}"):
            made = function(**values)
        if isinstance(made, Program):
            return made
        hint = "it must end with `return p`, where `with Program(...) as p:`" if made is None else None
        raise UsageError(f"{target} returned {made!r}, which is no Program", hint)

    return load


def _arguments(target: str, function: Callable[..., object], words: Sequence[str]) -> Iterator[dict[str, object]]:
    """The product of all ranges, in the order in which the parameters are written."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that exists only for type checkers
        signature = inspect.signature(function)
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
        chosen[name] = _values(name, value, annotation)
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
    for values in itertools.product(*chosen.values()):
        yield dict(zip(chosen, values, strict=True))


_MOST_CASES = 1 << 16
_RANGE = re.compile(r"(-?\d{1,1000})\.\.(-?\d{1,1000})\Z")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _values(name: str, text: str, annotation: object) -> list[object]:
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
        values = [_convert(part, int) for part in parts if part]
        return _NO if _NO in values else tuple(values) if kind is tuple else values
    try:
        if kind is int:
            return int(text)
        if kind is float:
            value = float(text)
            return value if math.isfinite(value) else _NO
    except ValueError:
        return _NO
    return text


def check_processes(ranks: int, most: int) -> None:
    """Raises UsageError for an -n of no processes, or of more than ``most``."""
    if not 1 <= ranks <= most:
        raise UsageError(f"-n must be a number from 1 to {most}, not {ranks}", "each rank is a process of its own")


def parse_size(text: str) -> int:
    """Bytes of ``64MB``, ``1.5K`` or ``8``; K is 1024. Raises UsageError."""
    size = tunables.parse_size(text)
    if size is None:
        raise UsageError(f"{text!r} is no size", "a size is written 8, 64K, 25MB or 1G, where K = 1024")
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
