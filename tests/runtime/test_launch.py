"""The launcher: prefixed lines, the first failure's traceback last, its exit code, Ctrl-C, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket import Communicator
from hocket.runtime.launch import launch

MAIN = "import sys; from hocket.runtime.launch import launch; sys.exit(launch(sys.argv[2:], int(sys.argv[1])))"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def start(script: Path, ranks: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, str(ranks), str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_lines_carry_their_rank(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(
        """
import sys, numpy as np, hocket
with hocket.init() as comm:
    print("sum", comm.all_reduce(np.array([comm.rank + 1]))[0])
    print("warned", file=sys.stderr)
print("no end of line", end="")
"""
    )
    assert launch([str(script)], 3) == 0
    captured = capsys.readouterr()
    assert sorted(captured.out.splitlines()) == sorted(
        line for rank in range(3) for line in (f"[{rank}] sum 6", f"[{rank}] no end of line")
    )
    assert sorted(captured.err.splitlines()) == [f"[{rank}] warned" for rank in range(3)]


def test_the_rank_that_failed_first_is_shown_last(script: Path) -> None:
    script.write_text(
        """
import sys, hocket
comm = hocket.init()
if comm.rank == 2:
    raise SystemError("rank two is at fault")
comm.barrier()
"""
    )
    process = start(script, 4)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err[err.rindex("\nrank 2 failed with exit code 1\nTraceback") :]
    assert last.rstrip().endswith("SystemError: rank two is at fault")
    for rank in (0, 1, 3):
        assert f"[{rank}] hocket.errors.PeerFailed: error[peer-failed]: rank 2 raised SystemError: rank two" in err


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_its_exit_code_is_returned(script: Path, end: str, code: int) -> None:
    script.write_text(
        f"""
import os, sys, hocket
comm = hocket.init()
if comm.rank == 1:
    {end}
comm.barrier()
"""
    )
    process = start(script, 2)
    process.communicate(timeout=60)
    assert process.returncode == code


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WAITING = """
import os, subprocess, sys, hocket
comm = hocket.init()
child = subprocess.Popen(["sleep", "1000"])
print("pids", os.getpid(), child.pid)
if comm.rank == 0:
    comm.barrier()
child.wait()
"""


def begun(process: subprocess.Popen[str], ranks: int) -> list[int]:
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < 2 * ranks:
        line = process.stdout.readline()
        assert line, "the launcher ended"
        if "pids" in line:
            pids += [int(word) for word in line.split("pids")[1].split()]
    return pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_orphans(script: Path, number: signal.Signals) -> None:
    script.write_text(WAITING)
    process = start(script, 2)
    pids = begun(process, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=60) if number == signal.SIGINT else (process.wait(60), "")
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "KeyboardInterrupt" in str(err)
        assert not any(alive(pid) for pid in pids)
    else:  # nobody is left to end what ranks started, but the ranks themselves end
        while any(alive(pid) for pid in pids[::2]):
            os.sched_yield()
        for pid in pids[1::2]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def hello(comm: Communicator) -> int:
    return comm.rank


def test_a_function_of_a_main_script(script: Path) -> None:
    script.write_text(
        """
import hocket
def local(comm, offset):
    return comm.rank + offset
if __name__ == "__main__":
    print(hocket.spawn(local, ranks=3, args=(10,)))
"""
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[10, 11, 12]\n"


def test_results_come_in_rank_order() -> None:
    assert hocket.spawn(hello, 5) == [0, 1, 2, 3, 4]
