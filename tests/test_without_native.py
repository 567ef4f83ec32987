"""hocket without its native module: a wheel made without a compiler, what it can do, and what it says it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RING = "hocket.algorithms.ring:all_reduce"
MAIN = "from hocket.cli import main; main()"


def python(code: str, *arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", **env}
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def beside(*first: Path) -> str:
    """A path of modules: ``first``, then what the tests have. With -S no editable install of hocket comes before it."""
    return os.pathsep.join(map(str, [*first, *sys.path]))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, built with no program in reach: no compiler, no CMake, no git."""
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    code = (
        "import sys; from scikit_build_core.build import build_wheel, get_requires_for_build_wheel\n"
        "assert get_requires_for_build_wheel() == []\n"
        "build_wheel(sys.argv[1])"
    )
    done = python(code, str(folder), HOCKET_NATIVE="0", PATH="/nowhere", PYTHONPATH=beside())
    assert done.returncode == 0, done.stderr
    [wheel] = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder / "installed")
    return folder / "installed"


def hocket(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(MAIN, *arguments, cwd=installed, PYTHONPATH=beside(installed))


def test_it_proves(installed: Path) -> None:
    done = hocket(installed, "check", RING, "ranks=2..4")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 proven" in done.stdout


def test_it_draws_a_timeline(installed: Path, tmp_path: Path) -> None:
    """The page's script and styles are files of the wheel."""
    code = (
        "import sys; from hocket.algorithms import ring; from hocket.timeline import Span, Timeline\n"
        "schedule = ring.all_reduce(2).compile()\n"
        "spans = tuple(Span(r, b, s, 0, 2.0 * s, 2.0 * s + 1, 1.0) for r, b, s, _ in schedule.steps())\n"
        "Timeline('made up', schedule, spans, (), (), 9.0).draw(sys.argv[1])"
    )
    done = python(code, str(tmp_path / "x.html"), cwd=installed, PYTHONPATH=beside(installed))
    assert done.returncode == 0, done.stderr
    assert "<canvas" in (tmp_path / "x.html").read_text()


def test_it_exports_and_reads_what_it_wrote(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    assert hocket(installed, "export", RING, "ranks=3", "-o", str(file)).returncode == 0
    assert hocket(installed, "check", str(file)).returncode == 0


def test_it_draws(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "ring.svg"
    assert hocket(installed, "show", RING, "ranks=3", "-o", str(file)).returncode == 0
    assert "<svg" in file.read_text()


@pytest.mark.parametrize("command", ["run", "bench", "launch", "demo", "explain", "mpi", "search"])
def test_what_runs_says_what_it_lacks_and_a_way_out(installed: Path, command: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    target = {"run": (RING, "ranks=2"), "launch": (str(script),), "demo": (), "search": ("--sizes", "1KB")}.get(
        command, ("all_reduce",)
    )
    done = hocket(installed, command, *target)
    assert done.returncode == 2
    assert done.stderr.startswith("error[native-missing]: running needs hocket's native module")
    assert "help: install hocket on Linux" in done.stderr


@pytest.mark.parametrize("name", ["init", "spawn", "Communicator"])
def test_the_runtime_is_an_import_error(installed: Path, name: str) -> None:
    code = f"import hocket\ntry: hocket.{name}\nexcept ImportError as error: print(error.code, error)"
    done = python(code, PYTHONPATH=beside(installed))
    assert done.stdout.startswith("native-missing error[native-missing]"), done.stderr


def test_all_else_can_be_imported_by_star_and_is_listed(installed: Path) -> None:
    code = "from hocket import *\nimport hocket\nprint(Program.__name__, 'init' in globals(), 'init' in dir(hocket))"
    done = python(code, PYTHONPATH=beside(installed))
    assert done.stdout == "Program False False\n", done.stderr


def test_a_native_module_that_cannot_be_loaded_is_not_called_missing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "_native.py").write_text("import a_library_that_is_gone")
    code = (
        "import sys, hocket\n"
        "hocket.__path__.append(sys.argv[1])\n"
        "try: hocket.init\nexcept ModuleNotFoundError as error: print(error.name)"
    )
    done = python(code, str(tmp_path), PYTHONPATH=beside(installed))
    assert done.stdout == "a_library_that_is_gone\n", done.stderr
