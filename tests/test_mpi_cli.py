"""hocket mpi: what a launcher is given, how it is started, and the plans that a job needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hocket import plan_files
from hocket.cli import app
from hocket.cli.mpi import library_path, nodes_of, provide, ranks_of, with_library
from hocket.errors import UsageError

HOCKET = [sys.executable, "-c", "from hocket.cli import main; main()", "mpi"]
LIBRARY = str(library_path())
OPEN_MPI = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to ...\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n"


def run(*words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "SLURM_"))}
    env = {**clean, "NO_COLOR": "1", **variables}
    return subprocess.run([*HOCKET, *words], env=env, input=stdin, capture_output=True, text=True, check=False)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def launcher(path: Path, version: str) -> str:
    """One that prints its arguments, and what its own processes preload, and runs nothing."""
    said = path.with_suffix(".version")
    said.write_text(version)
    return script(path, f'[ "$*" = --version ] && exec cat {said}\nprintf "%s\\n" "$@" "own: $LD_PRELOAD"')


# ---------------------------------------------------------------------------------------------------------------
# What a launcher is given


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (OPEN_MPI, ["-x", "HOCKET_MPI_REPORT=1", "-x", f"LD_PRELOAD={LIBRARY}"]),
        (MPICH, ["-genv", "HOCKET_MPI_REPORT", "1", "-genv", "LD_PRELOAD", LIBRARY]),
        (INTEL, ["-genv", "HOCKET_MPI_REPORT", "1", "-genv", "LD_PRELOAD", LIBRARY]),
    ],
    ids=["Open MPI", "MPICH", "Intel MPI"],
)
def test_a_launcher_preloads_in_its_ranks_alone(tmp_path: Path, version: str, options: list[str]) -> None:
    done = run("--report", launcher(tmp_path / "mpiexec", version), "-n", "2", "./program", "a b", "--version")
    assert done.stdout.splitlines() == [*options, "-n", "2", "./program", "a b", "--version", "own: "], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["srun", "mpiexec"])
def test_what_has_no_option_for_it_preloads_by_its_environment(tmp_path: Path, name: str) -> None:
    """A program that is no launcher is not asked which one it is: that would run it."""
    command = launcher(tmp_path / name, "usage: mpiexec\n" if name == "mpiexec" else MPICH)
    assert run(command, "-n", "2").stdout.splitlines() == ["-n", "2", f"own: {LIBRARY}"]


@pytest.mark.parametrize("version", [OPEN_MPI, MPICH, ""], ids=["Open MPI", "MPICH", "environment"])
def test_what_was_preloaded_before_still_is(version: str) -> None:
    words, environment = with_library(["mpiexec", "a"], version, {"LD_PRELOAD": "before.so", "PATH": "/bin"})
    both = f"{LIBRARY}:before.so"
    given = {OPEN_MPI: ["-x", f"LD_PRELOAD={both}"], MPICH: ["-genv", "LD_PRELOAD", both], "": []}[version]
    assert words == ["mpiexec", *given, "a"]
    assert environment == {"LD_PRELOAD": "before.so" if version else both, "PATH": "/bin"}


@pytest.mark.parametrize("word", ["LD_PRELOAD", "LD_PRELOAD=other.so"])
def test_a_launcher_that_is_to_preload_something_else_is_refused(word: str) -> None:
    """Open MPI takes the first of two, hydra the last."""
    with pytest.raises(UsageError, match="the command sets LD_PRELOAD itself"):
        with_library(["mpiexec", "-x", word, "./program"], OPEN_MPI, {})


def test_variables_of_hocket_reach_ranks_on_other_machines() -> None:
    environment = {"HOCKET_MPI": "min-bytes:0,min-bytes:reduce=4K", "HOCKET_REACH": "", "OTHER": "1"}
    words, _ = with_library(["mpiexec"], OPEN_MPI, environment)
    assert words == ["mpiexec", "-x", "HOCKET_MPI=min-bytes:0,min-bytes:reduce=4K", "-x", f"LD_PRELOAD={LIBRARY}"]


# ---------------------------------------------------------------------------------------------------------------
# How it is started


def test_the_command_takes_the_place_of_hocket(tmp_path: Path) -> None:
    """So signals and its exit status need nobody to pass them on; nor does it ignore what Python does."""
    ignored = "while read -r name value; do [ $name = SigIgn: ] && echo $value; done </proc/self/status"
    command = script(tmp_path / "program", f"cat; echo $$ $HOCKET_MPI_COMPARE; {ignored}; exit 7")
    with subprocess.Popen(
        [*HOCKET, "--compare", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        output, _ = job.communicate("given\n")
    given, process, compares, signals = output.split()
    assert (given, int(process), compares, job.returncode) == ("given", job.pid, "1", 7)
    assert int(signals, 16) == 0


def test_it_says_what_programs_of_mpi_do_not_go_by(tmp_path: Path) -> None:
    command = script(tmp_path / "program", "true")
    done = run(command, HOCKET_TUNABLES="spins=1", HOCKET_CONFIG="hocket.toml")
    assert done.stderr == (
        "note: MPI programs do not go by HOCKET_TUNABLES: their plans were made beforehand\n"
        "note: MPI programs do not go by HOCKET_CONFIG: their plans were made beforehand\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "hocket mpi takes a command, or else --library or --prepare"),
        (("--library", "./program"), "hocket mpi takes a command, or else --library or --prepare"),
        (("nowhere", "-n", "2"), "there is no command 'nowhere'"),
        (("--prepare", "many"), "--prepare=many is no int"),
        (("--prepare", "1..3"), "--prepare takes numbers of ranks from 2 to 4096, not 1"),
        (("--prepare", "4+0"), "--prepare=4+0 does not say how many ranks are on each node"),
    ],
)
def test_mistakes_are_errors(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["mpi", *words], env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error[usage]: {message}\n")


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(mode=0o755)
    done = run(f"{tmp_path}/empty")
    assert (done.returncode, done.stderr) == (2, f"error[usage]: cannot run {tmp_path}/empty: Exec format error\n")


def test_the_library_is_there() -> None:
    assert run("--library").stdout == f"{LIBRARY}\n"
    assert Path(LIBRARY).read_bytes().startswith(b"\x7fELF")
    assert plan_files.has(Path(LIBRARY).with_name("mpi_plans"), 16)


# ---------------------------------------------------------------------------------------------------------------
# Plans


@pytest.mark.parametrize(
    ("command", "variables", "ranks"),
    [
        ("mpiexec -n 4 ./program -n 100", {}, 4),
        ("mpirun --bind-to none -np 24 ./program", {}, 24),
        ("mpiexec -n 1 ./master : -n 6 ./worker -n 9", {}, 7),
        ("srun -n32 ./program", {}, 32),
        ("srun --ntasks=12 -N 2 ./program", {"SLURM_NTASKS": "99"}, 12),
        ("srun ./program", {"SLURM_NTASKS": "48"}, 48),
        ("mpiexec ./program -n many", {}, 0),
        ("./program", {}, 0),
    ],
)
def test_how_many_ranks_a_launcher_is_told_to_start(command: str, variables: Mapping[str, str], ranks: int) -> None:
    assert ranks_of(command.split(), variables) == ranks


@pytest.mark.parametrize(
    ("command", "variables", "nodes"),
    [
        ("mpiexec -ppn 2 -n 4 ./program", {}, (0, 0, 1, 1)),
        ("mpiexec --npernode=2 -n 3 ./program", {}, (0, 0, 1)),
        ("srun -n 4 --ntasks-per-node 1 ./program", {}, (0, 1, 2, 3)),
        ("mpiexec -ppn 4 -n 4 ./program", {}, ()),
        ("mpiexec -n 3 ./program", {"HOCKET_NODES": "1+2"}, (0, 1, 1)),
        ("mpiexec -n 3 ./program", {"HOCKET_NODES": "b,a,b"}, (0, 1, 0)),
        ("mpiexec -n 3 ./program", {"HOCKET_NODES": "1+3"}, ()),
        ("mpiexec -ppn 2 -n 3 ./program", {"HOCKET_NODES": "1+2"}, (0, 1, 1)),
        ("mpiexec -n 4 ./program -ppn", {}, ()),
        ("mpiexec -n 4 sh -ppn 2", {}, ()),
        ("mpiexec -n 2 sh -ppn 2 : -ppn 2 -n 2 sh", {}, (0, 0, 1, 1)),
        ("srun ./program", {"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, (0, 0, 1, 1, 2)),
        ("srun -n 2 ./program", {"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, ()),
        ("srun -n 4 ./program", {"SLURM_TASKS_PER_NODE": "4"}, ()),
    ],
)
def test_which_nodes_ranks_are_told_to_be_on(
    command: str, variables: Mapping[str, str], nodes: tuple[int, ...]
) -> None:
    words = command.split()
    assert nodes_of(words, variables, ranks_of(words, variables)) == nodes


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for an installation that has no plans."""
    monkeypatch.setattr("hocket.cli.mpi.library_path", lambda: tmp_path / "libhocket_mpi.so")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HOCKET_MPI_PLANS", raising=False)
    return tmp_path / "hocket" / "mpi_plans"


def test_plans_that_are_missing_are_made_once(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ranks in (0, 1, 1 << 20):
        provide(ranks)
    assert not bare.exists()
    provide(3)
    assert capsys.readouterr().err == f"making plans for 3 ranks, this once: {bare}\n"
    assert [path.name for path in bare.iterdir()] == ["3.plans"]
    provide(3)
    assert capsys.readouterr().err == ""


def test_plans_for_nodes_are_others(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are made beside those for one: where a launcher starts ranks is a guess."""
    begin = f"making plans for 3 ranks, this once: {bare}\n"
    for placed in ((0, 1, 1), (0, 1, 0)):
        provide(3, placed)
        assert capsys.readouterr().err == f"{begin}making plans for 3 ranks on 2 nodes, this once: {bare}\n"
        begin = ""
        provide(3, placed)
        assert capsys.readouterr().err == ""
    assert {path.name for path in bare.iterdir()} == {"3.plans", "1+2.plans", "0,1,0.plans"}
    (bare / "1+2.plans").replace(bare / "2+1.plans")
    assert not plan_files.has(bare, 3, (0, 0, 1))


def test_plans_of_another_version_are_made_anew(bare: Path) -> None:
    bare.mkdir(parents=True)
    file = bare / "2.plans"
    for wrong in (b"", b"\xff" * 64):
        file.write_bytes(wrong)
        provide(2)
        assert plan_files.has(bare, 2)
        assert not plan_files.has(bare, 3)


def test_plans_of_the_users_own_are_not_made_again(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_files.write(tmp_path / "own", 2)
    monkeypatch.setenv("HOCKET_MPI_PLANS", str(tmp_path / "own"))
    provide(2)
    assert not bare.exists()


def test_a_job_runs_though_its_plans_cannot_be_kept(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare.parent.write_text("a file where the folder would be")
    provide(2)
    assert capsys.readouterr().err.splitlines()[1] == (
        f"note: no plans for 2 ranks, whose calls are left to the MPI: cannot write to {bare}: Not a directory"
    )


def test_plans_are_prepared_where_the_library_looks(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["mpi", "--prepare", "2..3"], env={"XDG_CACHE_HOME": str(tmp_path)})
    folder = tmp_path / "hocket" / "mpi_plans"
    assert (done.exit_code, done.stderr) == (0, f"wrote {folder}/2.plans\nwrote {folder}/3.plans\n")
    assert plan_files.has(folder, 2)
    assert plan_files.has(folder, 3)
    elsewhere = {"XDG_CACHE_HOME": "", "HOME": str(tmp_path)}
    done = CliRunner().invoke(app, ["mpi", "--prepare", "2"], env=elsewhere)
    assert done.stderr == f"wrote {tmp_path}/.cache/hocket/mpi_plans/2.plans\n"
    done = CliRunner().invoke(app, ["mpi", "--prepare", "b,a,b"], env=elsewhere)
    assert done.stderr == f"wrote {tmp_path}/.cache/hocket/mpi_plans/0,1,0.plans\n"
