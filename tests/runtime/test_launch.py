"""The launcher: prefixed lines, the first failure's traceback last, its exit code, signals, no orphans."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections import deque
from pathlib import Path

import pytest

import hocket
from hocket import Communicator
from hocket.runtime.launch import _Stream

MAIN = "import sys; from hocket.runtime.launch import launch; sys.exit(launch(sys.argv[2:], int(sys.argv[1])))"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def start(command: Path | list[str], ranks: int) -> subprocess.Popen[str]:
    words = command if isinstance(command, list) else [str(command)]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, str(ranks), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_lines_carry_their_rank(script: Path) -> None:
    script.write_text(
        """
import sys, numpy as np, hocket
with hocket.init() as comm:
    print("sum", comm.all_reduce(np.array([comm.rank + 1]))[0])
    sys.stderr.buffer.write("warnéd \\udcff\\n".encode(errors="surrogateescape"))
print("no end of line", end="")
"""
    )
    words = [sys.executable, "-c", MAIN, "3", str(script)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}  # bytes are passed on as they are
    found = subprocess.run(words, env=environment, capture_output=True, check=True, timeout=60)
    assert sorted(found.stdout.splitlines()) == sorted(
        line for rank in range(3) for line in (b"[%d] sum 6" % rank, b"[%d] no end of line" % rank)
    )
    assert sorted(found.stderr.splitlines()) == ["[%d] warnéd ".encode() % rank + b"\xff" for rank in range(3)]


class Pipe:
    """An output of rank 7, as the launcher passes it on."""

    def __init__(self) -> None:
        source, self.end = os.pipe()
        self.sink = io.BytesIO()
        self.stream = _Stream(7, os.fdopen(source, "rb", 0), self.sink, deque())

    def write(self, text: str) -> str:
        """What is passed on of it at once."""
        before = len(self.sink.getvalue())
        os.write(self.end, text.encode())
        assert self.stream.pump()
        return self.sink.getvalue()[before:].decode()

    def close(self) -> str:
        before = len(self.sink.getvalue())
        os.close(self.end)
        assert not self.stream.pump()
        self.stream.source.close()
        return self.sink.getvalue()[before:].decode()


@pytest.mark.parametrize(
    "steps",
    [
        [("one\ntwo", "[7] one\n"), (" and\n\n", "[7] two and\n[7] \n"), ("rest", ""), (None, "[7] rest\n")],
        [("\r10%", "[7] 10%\r"), ("\r2", "[7] 2\r"), ("0%", "[7] 20%\r"), ("\n", "[7] 20%\n"), (None, "")],
        [("10%\r", "[7] 10%\r"), ("20%\r", "[7] 20%\r"), (None, "")],
        [("10%", ""), ("\r", "[7] 10%\r"), ("\r30%\r40%", "[7] 30%\r[7] 40%\r"), (None, "[7] 40%\n")],
        [("one\r\ntwo\r", "[7] one\r\n[7] two\r"), ("\nthree\n", "\n[7] three\n"), (None, "")],
        [("\r" + "." * 5000, ""), ("\r5%", "[7] " + "." * 5000 + "\r[7] 5%\r"), ("\n", "[7] 5%\n"), (None, "")],
    ],
)
def test_what_is_shown_over_and_over_is_passed_on_at_once(steps: list[tuple[str | None, str]]) -> None:
    pipe = Pipe()
    for written, passed_on in steps:
        assert (pipe.close() if written is None else pipe.write(written)) == passed_on


def test_a_very_long_line(tmp_path: Path) -> None:
    """Takes as long as it has bytes: 60 MB took 23 s when every part of it was joined to those before."""
    (tmp_path / "line").write_bytes(b"x" * 60_000_000 + b"\n")
    sink, last = io.BytesIO(), deque[bytes]()
    with (tmp_path / "line").open("rb", 0) as source:
        stream = _Stream(0, source, sink, last)
        begun = time.process_time()
        while stream.pump():
            pass
        assert time.process_time() - begun < 5
    assert sink.getbuffer().nbytes == 60_000_005
    assert sum(map(len, last)) <= 4096


def test_a_progress_bar_is_seen_while_it_goes_on(script: Path, tmp_path: Path) -> None:
    """The rank goes on once it has been seen."""
    os.mkfifo(tmp_path / "seen")
    script.write_text(f"print('\\r10%', end=''); open({str(tmp_path / 'seen')!r}).read(); print('\\r100%')")
    process = start(script, 1)
    assert process.stdout is not None
    found = os.read(process.stdout.fileno(), 100)
    assert found == b"[0] 10%\r"
    (tmp_path / "seen").write_text("")
    assert set(process.communicate(timeout=60)[0].splitlines()) == {"[0] 100%"}


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
import os, signal, subprocess, sys, hocket
def ended(*_):
    os.write(1, b"asked\\n")
    sys.exit()
if sys.argv[1] == "asked":
    signal.signal(signal.SIGTERM, ended)
elif sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
comm = hocket.init()
child = subprocess.Popen(["sleep", "1000"])
far = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True,
                       start_new_session=True)  # which is deaf if this rank is
grandchild = int(far.stdout.readline())
if comm.rank == 1:
    far.kill()  # its child is an orphan now
print("pids", os.getpid(), child.pid, grandchild)
if comm.rank == 0:
    comm.barrier()
child.wait()
"""


def begun(process: subprocess.Popen[str], ranks: int) -> list[int]:
    """Of each rank, its process, a child, and a grandchild in a session of its own."""
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < 3 * ranks:
        line = process.stdout.readline()
        assert line, "the launcher ended"
        if "pids" in line:
            pids += [int(word) for word in line.split("pids")[1].split()]
    return pids


@pytest.mark.parametrize(
    ("number", "manner"),
    [
        (signal.SIGINT, "plain"),
        (signal.SIGTERM, "plain"),
        (signal.SIGTERM, "asked"),
        (signal.SIGHUP, "deaf"),
        (signal.SIGQUIT, "asked"),
    ],
)
def test_no_orphans(script: Path, number: signal.Signals, manner: str) -> None:
    """Ranks are asked to end, then made to, with all that they have started; also behind a command around them."""
    script.write_text(WAITING)
    process = start(["sh", "-c", '"$@"; true', "sh", sys.executable, str(script), manner], 2)
    pids = begun(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert sorted(out.splitlines()) == (["[0] asked", "[1] asked"] if manner == "asked" else [])
    assert not any(alive(pid) for pid in pids)


def test_a_launcher_whose_output_nobody_reads(script: Path) -> None:
    script.write_text("while True: print('.' * 1000)")
    process = start(script, 1)
    assert process.stdout is not None
    room = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
    while int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder) < room // 2:
        os.sched_yield()
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    while any(alive(int(pid)) for pid in pids):
        os.sched_yield()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_launcher_that_is_killed(script: Path) -> None:
    """Nobody is left to end what ranks started, but the ranks themselves end."""
    script.write_text(WAITING)
    process = start([str(script), "plain"], 2)
    pids = begun(process, 2)
    process.kill()
    while any(alive(pid) for pid in pids[::3]):
        os.sched_yield()
    for pid in (*pids[1::3], *pids[2::3]):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_what_a_rank_leaves_behind_ends_with_the_job(script: Path) -> None:
    script.write_text("import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)")
    process = start(script, 1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not alive(int(out.removeprefix("[0] ")))


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: print("interrupted"))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit())
print(os.getpid())
while True:
    signal.pause()
"""


def test_ctrl_c_on_a_terminal_reaches_a_rank_once(script: Path) -> None:
    script.write_text(INTERRUPTED)
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "1", str(script)],
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0) and None,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline().removeprefix("[0] "))
    os.write(keyboard, b"\x03")
    assert process.stdout.readline() == "[0] interrupted\n"  # the launcher has passed the key on by then
    os.kill(pid, signal.SIGUSR1)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 130
    os.close(keyboard)
    os.close(terminal)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_ctrl_z_stops_the_ranks_too(script: Path) -> None:
    script.write_text("import os, signal; print(os.getpid()); signal.pause()")
    process = start(script, 1)
    assert process.stdout is not None
    pids = process.pid, int(process.stdout.readline().removeprefix("[0] "))
    process.send_signal(signal.SIGTSTP)
    while [state(pid) for pid in pids] != ["T", "T"]:
        os.sched_yield()
    process.send_signal(signal.SIGCONT)
    while "T" in [state(pid) for pid in pids]:
        os.sched_yield()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


SPAWNING = """
import os, signal, subprocess, sys
import hocket
def work(comm, manner):
    def ended(*_):
        os.write(1, b"asked\\n")
        os._exit(0)
    signal.signal(signal.SIGTERM, ended if comm.rank == 0 or manner == "asked" else signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.write(1, f"pids {os.getpid()} {child.pid} {child.pid}\\n".encode())
    child.wait()
if __name__ == "__main__":
    hocket.spawn(work, 2, sys.argv[1:])
"""


@pytest.mark.parametrize(("number", "manner"), [(signal.SIGTERM, "deaf"), (signal.SIGHUP, "asked")])
def test_spawn_ends_its_ranks_before_it_is_ended(script: Path, number: signal.Signals, manner: str) -> None:
    script.write_text(SPAWNING)
    process = subprocess.Popen([sys.executable, str(script), manner], stdout=subprocess.PIPE, text=True)
    pids = begun(process, 2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -number
    assert out == "asked\n" * (2 if manner == "asked" else 1)
    assert not any(alive(pid) for pid in pids)


# Stands before the real one in the path, and holds ranks that import it.
HELD = """
import os, signal, sys
if "HOCKET_RANK" in os.environ:
    os.write(1, b"begun\\n")
    signal.pause()
here = sys.path.pop(0)
del sys.modules["cloudpickle"]
import cloudpickle
sys.path.insert(0, here)
"""


def test_an_interrupt_while_ranks_start_is_said_once(script: Path) -> None:
    script.with_name("cloudpickle.py").write_text(HELD)
    script.write_text("import hocket\nif __name__ == '__main__': hocket.spawn(print, 2)")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, script], stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.count("Traceback") == 1
    assert said.endswith("KeyboardInterrupt\n")


def test_ranks_that_cannot_be_started() -> None:
    code = "import hocket, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14)); hocket.spawn(print, 30)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert re.search(r"error\[rank-failed\]: rank \d+ could not be started: Too many open files", found.stderr)


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


def test_an_error_in_a_function_of_a_main_script_shows_its_line(script: Path) -> None:
    script.write_text(
        """
import hocket
def local(comm):
    comm.all_reduce([1, 2])
if __name__ == "__main__":
    hocket.spawn(local, ranks=2)
"""
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert f"--> {script}:4:5" in found.stderr
    assert f'File "{script}", line 4, in local' in found.stderr
    assert "4 |     comm.all_reduce([1, 2])" in found.stderr


def test_results_come_in_rank_order() -> None:
    assert hocket.spawn(hello, 5) == [0, 1, 2, 3, 4]
