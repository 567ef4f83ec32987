"""Who may import whom: the tables of ARCHITECTURE.md, kept true by reading every file."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
PACKAGE = SRC / "hocket"

PUBLIC = frozenset({"hocket"})
IR = frozenset({"errors", "collectives", "ir"})
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "tunables": frozenset({"errors"}),
    "topology": frozenset({"errors"}),
    "collectives": frozenset({"errors"}),
    # The DAGs and the schedule carry the collective that they implement.
    "ir": IR,
    "language": IR | {"topology"},
    "semantics": IR,
    "compiler": IR,
    "trace_events": IR,
    "timeline": IR | {"trace_events"},
    # What goes out is proven for where it goes, and what comes in from anywhere.
    "formats": IR | {"verify", "timeline", "trace_events"},
    "verify": IR | {"semantics"},
    "sends": IR | {"language", "topology"},
    "program": IR | {"language", "sends", "compiler", "verify", "topology"},
    "cost": IR | {"verify"},
    "sim": IR | {"topology", "timeline"},
    "algorithms": PUBLIC | {"cost"},
    "functions": frozenset({"errors", "program", "algorithms"}),
    "runtime": IR | {"_native", "tunables", "trace_events"},
    "tuning": IR | {"program", "algorithms", "tunables", "verify"},
    "plan_files": IR | {"_native", "program", "runtime", "tuning", "tunables"},
    "config": IR | {"program", "tuning", "verify", "formats", "functions", "tunables"},
    "explain": IR | {"verify", "runtime", "tuning", "tunables"},
    "communicator": IR | {"program", "runtime", "tuning", "tunables", "explain"},
    "calibrate": PUBLIC | {"sim", "topology", "tuning"},
    "tuner": PUBLIC
    | IR
    | {"_native", "algorithms", "functions", "program", "runtime", "sim", "topology", "tunables", "tuning", "verify"},
    "__init__": IR | {"language", "program", "verify", "communicator"},
    "__main__": frozenset({"cli"}),
    "py.typed": frozenset(),
}
LATE: dict[str, frozenset[str]] = {
    "ir": frozenset({"formats"}),
    "program": frozenset({"formats"}),
    "timeline": frozenset({"formats"}),
    "communicator": frozenset({"config", "tuner"}),
    "explain": frozenset({"sim", "topology"}),
}
"""What may be imported besides, where a function is called: a schedule or a program draws itself, a file is read."""

ANYTHING = {"integrations", "torch", "cli", "_native"}
"""Parts that may import what they like; ``_native`` is described by a stub."""

LIGHT = [
    *("errors", "topology", "collectives", "ir", "language", "semantics", "compiler", "formats", "verify", "program"),
    *("sends", "trace_events", "timeline", "sim"),
]
"""Parts that must work where no native module was built."""


def part(path: Path) -> str:
    """The part a file belongs to: the first component below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removesuffix(".pyi")


def _is_late(node: ast.AST) -> bool:
    """Whether what is in it does not run when a module is imported."""
    types_alone = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef) or types_alone


def imports(path: Path, *, late: bool = True) -> set[str]:
    """The parts that a file imports, those inside of functions and for types alone only if ``late``; ``hocket`` for the
    public names."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(), str(path))
    inside = {node for f in ast.walk(tree) if _is_late(f) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if node in inside and not late:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert all(alias.name != "*" for alias in node.names), f"{path}: star import"
            base = node.module or ""
            # `from hocket import ir` names a part, `from hocket import chunk` a public name.
            names = [f"{base}.{a.name}" if base == "hocket" and _is_part(a.name) else base for a in node.names]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head == "hocket":
                found.add(rest.partition(".")[0] or "hocket")
    return found - {part(path)}


def _is_part(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists() or name == "_native"


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path) -> None:
    name = part(path)
    if name in ANYTHING:
        return
    assert name in ALLOWED, f"the table has no part {name!r}"
    late = LATE.get(name, frozenset())
    assert imports(path, late=False) <= ALLOWED[name], f"{name} may import {sorted(ALLOWED[name])}"
    assert imports(path) <= ALLOWED[name] | late, f"{name} may import {sorted(ALLOWED[name] | late)}"


def test_compiler_and_proof_do_not_know_each_other() -> None:
    for path in FILES:
        if part(path) in ("compiler", "verify"):
            assert not imports(path) & ({"compiler", "verify"} - {part(path)}), path


def test_the_walk_sees_imports() -> None:
    assert imports(PACKAGE / "program.py") >= {"compiler", "verify", "language", "ir"}
    assert imports(PACKAGE / "algorithms" / "ring.py") == {"hocket"}
    assert "formats" in imports(PACKAGE / "program.py")
    assert "formats" not in imports(PACKAGE / "program.py", late=False)


NATIVE_FOLDERS = ("core", "device", "protocol", "transport", "policy", "runtime", "mpi", "python")
"""Each may include files of itself and of those before it."""


def wrong_includes(folder: str, source: str) -> list[str]:
    """The files that a file of a folder of native/ includes, and may not."""
    allowed = NATIVE_FOLDERS[: NATIVE_FOLDERS.index(folder) + 1]
    named = re.findall(r'^ *# *include "(.*)"', source, re.MULTILINE)
    return [file for file in named if file.partition("/")[0] not in allowed]


NATIVE_FILES = sorted(path for path in (SRC.parent / "native").rglob("*") if path.suffix in (".h", ".cpp", ".def"))


@pytest.mark.parametrize("path", NATIVE_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_includes_follow_the_order_of_folders(path: Path) -> None:
    assert wrong_includes(path.parent.name, path.read_text()) == []


def test_a_wrong_include_is_found() -> None:
    source = '#include <map>\n#ifdef X\n# include "runtime/plan.h"\n#include "device/clock.h"\n'
    assert wrong_includes("policy", source) == ["runtime/plan.h"]
    assert wrong_includes("core", source) == ["runtime/plan.h", "device/clock.h"]
    assert wrong_includes("runtime", source) == []
    assert {path.parent.name for path in NATIVE_FILES} == set(NATIVE_FOLDERS)


LONGEST = 60
"""Lines of a function's body; its docstring and blank lines are not counted."""


def too_long(source: str) -> list[str]:
    """The functions of a module whose bodies are longer, with their lengths."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            if body and node.end_lineno is not None:
                length = sum(bool(line.strip()) for line in lines[body[0].lineno - 1 : node.end_lineno])
                found += [f"{node.name}: {length}"] if length > LONGEST else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_are_short(path: Path) -> None:
    assert too_long(path.read_text()) == []


def test_a_long_function_is_found() -> None:
    long = "def f():\n" + "    pass\n\n" * 61
    assert too_long(long) == ["f: 61"]
    assert too_long(long.removesuffix("    pass\n\n")) == []
    assert too_long(long.replace("    pass", '    """Why."""', 1)) == []


def run(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_writing_compiling_and_proving_load_no_native_code() -> None:
    loaded = run(
        "import sys, hocket\n"
        "from hocket.algorithms import ring\n"
        "from hocket.semantics import reference\n"
        "hocket.prove(ring.all_reduce(3).compile())\n"
        "print(*[m for m in sys.modules if m.startswith('hocket')])"
    ).split()
    assert not [m for m in loaded if m.startswith(("hocket._native", "hocket.runtime", "hocket.communicator"))]


def test_no_part_of_the_compiler_needs_the_native_module() -> None:
    run(
        "import sys, importlib, pkgutil, hocket\n"
        "sys.modules['hocket._native'] = None\n"  # an import of it fails
        f"for part in {LIGHT!r}:\n"
        "    module = importlib.import_module(f'hocket.{part}')\n"
        "    for inner in pkgutil.iter_modules(getattr(module, '__path__', [])):\n"
        "        if part != 'formats': importlib.import_module(f'hocket.{part}.{inner.name}')\n"
    )


NATIVE = ["Buffer", "Communicator", "Handle", "PreparedCall", "init", "spawn", "wait_any"]


def test_every_public_name_exists() -> None:
    run(
        "import hocket, pydoc, sys\n"
        "assert len(set(hocket.__all__)) == len(hocket.__all__)\n"
        "assert set(hocket.__all__) <= set(dir(hocket))\n"
        "assert 'hocket._native' not in sys.modules\n"
        "assert all(hasattr(hocket, name) for name in hocket.__all__)\n"
        "from importlib.util import find_spec\n"
        "built = find_spec('hocket._native') is not None\n"
        f"assert set({NATIVE!r}).isdisjoint(hocket.__all__) != built\n"
        "shown = pydoc.plain(pydoc.render_doc(hocket))\n"
        "assert all(f'class {name}(' in shown or f'    {name}(' in shown for name in hocket.__all__), shown\n"
    )
