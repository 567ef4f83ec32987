"""Functions that return a Program, as users name them: FILE.py:FUNC, MODULE:FUNC, or NAME:FUNC of the library."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from hocket.errors import HocketError, Location, Site, Unreadable, UsageError, UserCodeFailed, Where
from hocket.program import Program

_EXAMPLE = "ring:all_reduce ranks=4"
_LIBRARY = "hocket.algorithms."

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


# ---------------------------------------------------------------------------------------------------------------
# Finding the function


def find(target: str, folder: Path = Path()) -> Callable[..., object] | Program:
    """A function, or a program that is there already. Files are named from ``folder``. Raises UsageError, also where
    the user's module raises, and what is wrong with a program that it makes."""
    name, colon, function = target.rpartition(":")
    if not colon:
        raise _no_function(target, folder)
    if name.endswith(".py") or "/" in name:
        module = _file(folder / name)
    else:
        module = _module(_full(name, function, folder), function, folder)
    found = getattr(module, function, None)
    if isinstance(found, Program) or callable(found):
        return found
    source = getattr(module, "__file__", None)  # not that of a module built in
    names = list(_functions(Path(source))) if source else []
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


def _full(name: str, function: str, folder: Path) -> str:
    """The module that a name without dots means: the library's, if that has the function or there is no other."""
    spec = None if "." in name else _find(_LIBRARY + name)
    if spec is None or spec.origin is None:
        return name
    ours = function in _functions(Path(spec.origin)) or not (_find(name) or (folder / f"{name}.py").is_file())
    return _LIBRARY + name if ours else name


def _module(name: str, function: str, folder: Path) -> types.ModuleType:
    spec = _find(name)
    if spec is None or spec.origin is None:
        from hocket.algorithms.catalogue import CATALOGUE  # all of the library, needed only here

        listed = [algorithm.name for algorithm in CATALOGUE]
        if (folder / f"{name}.py").is_file():
            hint = f"did you mean {name}.py:{function}?"
        elif close := difflib.get_close_matches(f"{name.removeprefix(_LIBRARY)}:{function}", listed, 1):
            hint = f"did you mean {close[0]}?"
        else:
            hint = f"a program is named FILE.py:FUNC, or as in {_EXAMPLE}"
        raise UsageError(f"there is no module {name!r}", hint)
    with user_code(Path(spec.origin), f"importing {name}"):
        return importlib.import_module(name)


def _missing(path: Path) -> UsageError:
    if path.is_dir():
        return UsageError(f"{path} is a folder, not a file", f"a program is named FILE.py:FUNC, or as in {_EXAMPLE}")
    around = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, around, 1)
    return UsageError(f"there is no file {path}", f"did you mean {path.parent / close[0]}?" if close else None)


def _no_function(target: str, folder: Path) -> UsageError:
    path = folder / target
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
    """Where a module is. The packages that it is in are imported, as find_spec would: their code is the user's."""
    if package := name.rpartition(".")[0]:
        spec = _find(package)
        if spec is None:
            return None
        with user_code(Path(spec.origin or ""), f"importing {package}"):
            importlib.import_module(package)
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
            where = Location(error.filename, error.lineno or 1, column, column + 1, (error.text or "").rstrip())
        while trace is not None:
            code = trace.tb_frame.f_code
            if Path(code.co_filename).resolve() == self._path:
                where = Site(code, trace.tb_lasti)
            trace = trace.tb_next
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserCodeFailed(f"{self._doing}: {type(error).__name__}: {said}", None, where) from error


def traced(target: str, function: Callable[..., object], values: Mapping[str, object]) -> Program:
    """The program that a function makes of its arguments. Raises UsageError, UserCodeFailed where the function raises,
    and what is wrong with the program."""
    with user_code(_written_in(function), f"tracing {target}"):
        made = function(**values)
    if isinstance(made, Program):
        return made
    hint = "it must end with `return p`, where `with Program(...) as p:`" if made is None else None
    raise UsageError(f"{target} returned {made!r}, which is no Program", hint)


def _written_in(function: Callable[..., object]) -> Path:
    """The file of a function, of what a partial calls, or of an object's ``__call__``; no file for what is built in."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    for code in (function, type(function).__call__):
        with suppress(TypeError):
            return Path(inspect.getsourcefile(code) or "")
    return Path()
