"""A rank that dies, raises, leaves or is late; Ctrl-C; nothing left behind. Tests wait for conditions, not for time."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.algorithms import ring
from hocket.errors import (
    BootstrapFailed,
    CallTimeout,
    CommunicatorDead,
    HocketError,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    RankFailed,
    WrongType,
)
from hocket.runtime import arena, bootstrap
from tests.limits import scaled
from tests.runtime.test_stores import Files

BOUND = 5.0  # seconds in which a fault must be known everywhere


def note(directory: Path, rank: int, error: BaseException) -> None:
    """Leave word of what a rank saw: its exception may come too late for ``spawn``, which reports one."""
    step = getattr(error, "step", None)
    place = None if step is None else [step.rank, step.operation, step.thread_block, step.step, str(step.where)]
    word = {
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "text": str(error),
        "step": place,
        "at": time.monotonic(),
    }
    temporary = directory / f"{rank}.new"
    temporary.write_text(json.dumps(word))
    temporary.rename(directory / f"{rank}.json")


def words(directory: Path) -> dict[int, dict[str, object]]:
    return {int(path.stem): json.loads(path.read_text()) for path in directory.glob("*.json")}


def killed_rank(comm: Communicator, directory: Path, calls: int) -> None:
    """Rank 1 is killed by a thread of its own while all are in calls, or at once for 0 calls."""
    schedule = ring.all_reduce(comm.size).compile()
    x = np.zeros(200_000, np.float32)
    if comm.rank == 1 and not calls:
        (directory / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for call in range(1 << 30):
            if comm.rank == 1 and call == calls:

                def kill() -> None:
                    (directory / "killed").write_text(str(time.monotonic()))
                    os.kill(os.getpid(), signal.SIGKILL)

                threading.Thread(target=kill).start()
            comm.run(schedule, x)
    except HocketError as error:
        note(directory, comm.rank, error)
        with pytest.raises(CommunicatorDead, match="rank 1 has ended"):
            comm.barrier()
        raise


@pytest.mark.parametrize("calls", [0, 1, 40])
def test_a_killed_rank_is_named_by_every_other(tmp_path: Path, calls: int) -> None:
    with pytest.raises(RankFailed, match="rank 1 was ended by SIGKILL"):
        hocket.spawn(killed_rank, 4, (tmp_path, calls))
    found = words(tmp_path)
    assert sorted(found) == [0, 2, 3]
    killed = float((tmp_path / "killed").read_text())
    for word in found.values():
        assert word["type"] == "PeerFailed"
        assert word["rank"] == 1
        assert float(str(word["at"])) - killed < scaled(BOUND)


def killed_inside(comm: Communicator, directory: Path) -> None:
    """Rank 2 is stopped in the middle of one call, so that the others certainly wait in it, then killed."""
    schedule = ring.all_reduce(comm.size).compile()
    # Rank 2 enters the call and then finds its part of it missing: the header goes through, the data does not.
    if comm.rank == 2:
        member = comm._endpoint.alive()
        comm.run(schedule, np.zeros(8, np.float32))
        empty = hocket.Custom(comm.size, inputs=1, outputs=1, post=lambda rank, index: None, inplace=True)
        with hocket.Program(empty, name="idle") as program:
            pass
        from hocket.runtime.execution import LoadedPlan
        from hocket.runtime.operands import operands_of
        from hocket.runtime.plan import lower

        idle = lower(program.compile(), comm.rank)
        real = lower(schedule, comm.rank)
        plan = member.plan(idle.words, real.digest, real.name)
        x = np.zeros(8, np.float32)
        call = comm._endpoint.prepare(LoadedPlan(real, plan, plan), real.layout.bind(operands_of(x, None)), "sum")
        assert call(x) is x
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.run(schedule, np.zeros(8, np.float32))
        comm.run(schedule, np.zeros(8, np.float32))
    except HocketError as error:
        note(directory, comm.rank, error)
        raise


def test_an_error_inside_a_call_names_step_and_line(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 2 was ended by SIGKILL"):
        hocket.spawn(killed_inside, 3, (tmp_path,))
    found = words(tmp_path)
    assert sorted(found) == [0, 1]
    for rank, word in found.items():
        assert word["type"] == "PeerFailed"
        assert word["rank"] == 2
        step = word["step"]
        assert isinstance(step, list)
        assert step[0] == rank
        assert "<" in step[1] or ">" in step[1]
        assert "algorithms/ring.py:" in step[4]
        assert "waiting for rank" in str(word["text"])
        assert "thread block 0 step" in str(word["text"])
        assert re.search(r"--> \S*algorithms/ring\.py:\d+:\d+\n", str(word["text"]))


class OwnError(Exception):
    pass


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


def raising(comm: Communicator, directory: Path, error: Exception) -> None:
    if comm.rank == 1:
        raise error
    try:
        comm.all_reduce(np.zeros(10))
    except HocketError as error:
        note(directory, comm.rank, error)
        raise


def test_an_exception_comes_back_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(OwnError, match="out of luck") as error:
        hocket.spawn(raising, 3, (tmp_path, OwnError("out of luck")))
    assert error.value.__notes__ == ["raised on rank 1"]
    assert "OwnError: out of luck" in str(error.value.__cause__)
    for word in words(tmp_path).values():
        assert "rank 1 raised OwnError: out of luck" in str(word["text"])
    assert sorted(words(tmp_path)) == [0, 2]


# For every place in a character, a text that is longer than what ranks keep of it.
UNCLEAN = [
    (OwnError("\ud800 and \udcff"), "OwnError: \\ud800 and \\udcff"),
    *[
        (OwnError("." * begin + "\U0001f600" * 500), "OwnError: " + "." * begin + "\U0001f600" * 150)
        for begin in range(4)
    ],
    (Speechless(), "Speechless: its text raised ValueError"),
]


@pytest.mark.parametrize(("raised", "text"), UNCLEAN[::2])
def test_an_exception_whose_text_is_not_clean(tmp_path: Path, raised: Exception, text: str) -> None:
    with pytest.raises(type(raised)):
        hocket.spawn(raising, 2, (tmp_path, raised))
    assert f"error[peer-failed]: rank 1 raised {text}" in str(words(tmp_path)[0]["text"])


def refusing(comm: Communicator, async_: bool) -> None:
    """As wrong arguments do: nobody is hurt."""
    for error, text in UNCLEAN:
        if comm.rank == 1:
            with pytest.raises(type(error)):
                comm._endpoint.refuse(error, async_)
        else:
            with pytest.raises(PeerRefused) as refused:
                comm.barrier()
            assert refused.value.reason.startswith(text)
    comm.barrier()


@pytest.mark.parametrize("async_", [False, True])
def test_a_refusal_whose_text_is_not_clean(async_: bool) -> None:
    hocket.spawn(refusing, 2, (async_,))


def test_a_reason_that_is_no_text() -> None:
    with hocket.init() as comm, pytest.raises(WrongType, match="the reason must be a text, not int"):
        comm.abort(5)  # type: ignore[arg-type]


def unpicklable(comm: Communicator) -> None:
    class Local(Exception):
        def __reduce__(self) -> str:
            raise TypeError("never")

    raise Local("held back")


def test_an_exception_that_does_not_pickle(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="held back"):
        hocket.spawn(unpicklable, 1)


def leaving(comm: Communicator) -> str:
    comm.barrier()
    if comm.rank == 0:
        comm.close()  # at once: the others may still be inside of the barrier, which it has done its part for
        return "left"
    try:
        comm.barrier()
    except PeerFailed as error:
        return str(error)
    raise AssertionError


def test_a_rank_that_leaves_is_an_error_only_once_it_is_missed() -> None:
    assert hocket.spawn(leaving, 3) == ["left"] + ["error[peer-failed]: rank 0 closed its communicator"] * 2


def in_call(thread: threading.Thread, name: str) -> bool:
    """Whether a thread's innermost Python frame is the runtime's call of that name."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code.co_name == name and frame.f_code.co_filename.endswith(("execution.py", "communicator.py"))


def once_in_call(act: Callable[[], object], name: str) -> threading.Thread:
    """Do something in another thread, once the main thread is in a call.

    The main thread keeps the interpreter's lock until it blocks: were the lock taken from it on the way
    into the call, an interrupt would come before the call and not inside it.
    """
    sys.setswitchinterval(BOUND)

    def wait_and_act() -> None:
        while not in_call(threading.main_thread(), name):
            os.sched_yield()
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def given_up(comm: Communicator, how: str, call: str) -> str:
    """Rank 0 gives up a call that rank 1 enters only afterwards."""
    other = hocket.init()
    text = ""

    def enter() -> None:
        if call == "barrier":
            comm.barrier()
        elif call == "split":
            comm.split(0)
        else:
            comm.all_reduce(np.ones(5))

    if comm.rank == 0:
        name = {"all_reduce": "_slow_path", "split": "_said"}.get(call, call)
        if how == "abort":
            thread = once_in_call(comm.abort, name)
            with pytest.raises(CommunicatorDead):
                enter()
        else:
            thread = once_in_call(lambda: os.kill(os.getpid(), signal.SIGINT), name)
            with pytest.raises(KeyboardInterrupt):
                enter()
        thread.join()
        with pytest.raises(CommunicatorDead) as dead:
            comm.barrier()
        text = dead.value.reason
        other.barrier()
    else:
        other.barrier()
        with pytest.raises(PeerFailed) as failed:
            enter()
        assert failed.value.rank == 0
        text = failed.value.reason
    return text


def test_abort_from_another_thread() -> None:
    assert hocket.spawn(given_up, 2, ("abort", "barrier")) == ["rank 0 called abort()", "called abort()"]


@pytest.mark.parametrize("call", ["barrier", "all_reduce", "split"])
def test_ctrl_c_inside_a_call(call: str) -> None:
    assert hocket.spawn(given_up, 2, ("interrupt", call)) == ["rank 0 was interrupted", "was interrupted"]


def late(comm: Communicator) -> str:
    impatient = hocket.init(timeout=0.2)
    text = ""
    if comm.rank == 0:
        with pytest.raises(CallTimeout, match="for rank 1 in vain") as error:
            impatient.barrier()
        text = error.value.code
        comm.barrier()
    else:
        comm.barrier()
        with pytest.raises(PeerFailed, match="rank 1 was waited for in vain"):
            impatient.barrier()
    return text


def test_a_rank_that_is_too_late() -> None:
    assert hocket.spawn(late, 2) == ["timeout", ""]


def forked(comm: Communicator) -> int:
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
        except CommunicatorDead:
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    comm.barrier()
    return os.waitstatus_to_exitcode(status)


def test_a_child_after_fork_has_no_communicator_and_harms_none() -> None:
    assert hocket.spawn(forked, 2) == [7, 7]


def leaving_a_child(comm: Communicator, how: str, directory: Path) -> str:
    """Rank 1 forks; the child ends like a script, or outlives its parent."""
    if comm.rank != 1:
        if how == "child ends":
            comm.barrier()
            return "met"
        with pytest.raises(PeerFailed, match="rank 1 has ended") as error:
            comm.barrier()
        note(directory, comm.rank, error.value)
        return "told"
    child = os.fork()
    if child == 0:
        if how == "child ends":
            raise SystemExit
        signal.pause()
    if how == "parent ends":
        (directory / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    comm.barrier()
    return "met"


def test_a_child_that_ends_like_a_script_says_nothing_for_its_parent(tmp_path: Path) -> None:
    assert hocket.spawn(leaving_a_child, 3, ("child ends", tmp_path)) == ["met"] * 3


def test_a_child_that_outlives_its_parent_hides_nothing(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 1 was ended by SIGKILL"):
        hocket.spawn(leaving_a_child, 3, ("parent ends", tmp_path))
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert sorted(words(tmp_path)) == [0, 2]  # before the launcher ended them, seconds later


# ---------------------------------------------------------------------------------------------------------------
# Bootstrap, jobs side by side, leftovers


def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RANK", "2")
    with pytest.raises(BootstrapFailed, match="belong together"):
        hocket.init()
    monkeypatch.setenv("HOCKET_SIZE", "2")
    monkeypatch.setenv("HOCKET_RENDEZVOUS", secrets.token_hex(8))  # another copy of this test may run
    with pytest.raises(BootstrapFailed, match="no rank of"):
        hocket.init()
    monkeypatch.setenv("HOCKET_RANK", "0")
    with pytest.raises(BootstrapFailed, match="not all of the 2 ranks were here"):
        hocket.init(timeout=0.05)
    monkeypatch.setenv("HOCKET_RANK", "1")
    with pytest.raises(BootstrapFailed, match="not all of the 2 ranks were here"):
        hocket.init(timeout=0.05)


@pytest.mark.parametrize("rank", [0, 1])
def test_time_that_went_before_counts_and_the_error_has_the_timeout_asked_for(rank: int) -> None:
    here = bootstrap.Place(rank, 2, secrets.token_hex(16))
    with pytest.raises(BootstrapFailed, match="not all of the 2 ranks were here after 30 s: "):
        bootstrap.gather(here, 30, {}, spent=30)


def missing(comm: Communicator, who: int) -> str:
    """One rank never comes to a second meeting; each of the others learns it without waiting for a timeout."""
    if comm.rank == who:
        comm.barrier()
        return "absent"
    comm.barrier()
    with pytest.raises(PeerFailed) as error:
        hocket.init()
    return f"{error.value.rank} {error.value.reason}"


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_returned_is_waited_for_by_none(who: int) -> None:
    told = [f"{who} returned before the ranks had met"] * 3
    told[who] = "absent"
    assert hocket.spawn(missing, 3, (who,)) == told


UNMET = """
import os, sys, hocket
rank = int(os.environ["HOCKET_RANK"])
if rank == {who}:
    {end}
try:
    hocket.init()
except hocket.HocketError as error:
    print(error.code, error.rank, error.reason)
    sys.exit(4)
"""


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize(
    ("end", "how"), [("sys.exit()", "exited with code 0"), ("os.kill(os.getpid(), 9)", "was ended by SIGKILL")]
)
def test_a_rank_that_ends_before_all_have_met(tmp_path: Path, who: int, end: str, how: str) -> None:
    (tmp_path / "unmet.py").write_text(UNMET.format(who=who, end=end))
    words = [sys.executable, "-c", "from hocket.cli import main; main()", "launch", "-n", "3", "unmet.py"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert sorted(found.stdout.splitlines()) == [
        f"[{rank}] peer-failed {who} {how} before the ranks had met" for rank in range(3) if rank != who
    ]


def test_a_rank_that_ends_while_the_others_meet() -> None:
    """Without a launcher rank 0 tells, which holds the connections of those that have come. This test is rank 2."""
    code = "import hocket\ntry: hocket.init()\nexcept hocket.HocketError as e: print(e.rank, e.reason)"
    variables = {"HOCKET_SIZE": "4", "HOCKET_RENDEZVOUS": secrets.token_hex(8)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | variables | {"HOCKET_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    hello = {"protocol": bootstrap.PROTOCOL, "rank": 2, "size": 4, "cores": [0], "witness": 0}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        while line.connect_ex(f"\0hocket/{variables['HOCKET_RENDEZVOUS']}/0"):
            assert ranks[0].poll() is None
            time.sleep(0.01)
        lifeline, other = socket.socketpair()
        with lifeline, other:
            descriptors = [lifeline.fileno(), arena.own().descriptor]
            socket.send_fds(line, [json.dumps(hello).encode()], descriptors)
    assert ranks[0].communicate(timeout=20)[0] == "2 ended while the ranks were meeting\n"
    if ranks[1].poll() is None:  # had it come by then? one that comes later cannot know that nobody is left
        ranks[1].kill()
    ranks[1].communicate()


def connected(token: str) -> bool:
    """Whether somebody has reached rank 0 of the first meeting under this token."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return any(line[-1] == f"@hocket/{token}/0" and line[5] == "03" for line in lines)  # SS_CONNECTED


@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c_while_the_ranks_meet(who: int) -> None:
    """Rank 2 never comes."""
    code = """
import hocket
try:
    hocket.init()
except KeyboardInterrupt:
    print("interrupted")
except hocket.HocketError as error:
    print(error.rank, error.reason)
"""
    token = secrets.token_hex(8)
    variables = os.environ | {"HOCKET_SIZE": "3", "HOCKET_RENDEZVOUS": token}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=variables | {"HOCKET_RANK": str(r)}, stdout=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    while not connected(token):
        assert all(process.poll() is None for process in ranks)
        time.sleep(0.01)
    ranks[who].send_signal(signal.SIGINT)
    found = [process.communicate(timeout=scaled(BOUND))[0] for process in ranks]
    assert found[who] == "interrupted\n"
    assert found[1 - who] == f"{who} was interrupted while the ranks were meeting\n"


def test_another_user_is_no_rank() -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    code = """
import os, sys, hocket.communicator
if os.environ["HOCKET_RANK"] == "1":
    os.setuid(65534)
print("ready", flush=True)
try:
    hocket.init(timeout=float(sys.argv[1]))
except hocket.errors.BootstrapFailed as error:
    print(error.reason)
"""
    variables = os.environ | {"HOCKET_SIZE": "2", "HOCKET_RENDEZVOUS": secrets.token_hex(8)}

    def start(rank: int, timeout: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code, timeout]
        found = subprocess.Popen(words, env=variables | {"HOCKET_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        assert found.stdout is not None
        assert found.stdout.readline() == "ready\n"
        return found

    other = start(1, "30")
    host = start(0, "1")
    missing = "not all of the 2 ranks were here after 1 s: 1 not seen"
    assert host.communicate()[0] == f"{missing}; a process of another user (65534) was, and is no rank\n"
    assert other.communicate()[0] == "what listens as rank 0 is a process of another user (0) than rank 1 (65534)\n"


@pytest.mark.parametrize("listens", [True, False])
def test_another_user_has_the_name_of_the_meeting(listens: bool) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    token = secrets.token_hex(8)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.bind(f"\0hocket/{token}/0")
            if listens:
                line.listen()
            os.write(ready[1], b".")
            os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    code = "import hocket\ntry: hocket.init()\nexcept hocket.HocketError as e: print(e.reason)"
    variables = {"HOCKET_SIZE": "2", "HOCKET_RENDEZVOUS": token, "HOCKET_RANK": "0"}
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=True, timeout=60)
    os.write(done[1], b".")
    os.waitpid(child, 0)
    for descriptor in (*ready, *done):
        os.close(descriptor)
    who = "a process of another user (65534)" if listens else "another process"
    assert found.stdout == f"{who} has taken the name by which the ranks of this job would find rank 0\n"


def test_guests_that_speak_no_protocol_are_turned_away() -> None:
    """This test is those guests. The meeting goes on, and nothing of what they sent is kept."""
    code = """
import os, sys, hocket
before = len(os.listdir("/proc/self/fd"))
with hocket.init() as comm:
    print(comm.split(0).size)
    print(len(os.listdir("/proc/self/fd")) - before < 20)
"""
    variables = os.environ | {"HOCKET_SIZE": "2", "HOCKET_RENDEZVOUS": secrets.token_hex(8)}

    def start(rank: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code]
        return subprocess.Popen(words, env=variables | {"HOCKET_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)

    hello = {"protocol": bootstrap.PROTOCOL, "rank": 1, "size": 2, "cores": [0], "witness": 0}
    guests: list[tuple[bytes, str]] = [(data, "good") for data in (b"{}", b"[]", b"5", b"\xff", b"[" * 60_000)]
    odd: list[dict[str, object]] = [{"rank": 99}, {"rank": -1}, {"rank": "1"}, {"size": None}, {"protocol": 4}]
    odd += [{"cores": 5}, {"witness": -1}, {"witness": 1 << 70}, {"failed": 5}, {"failed": [None, 1, 2]}]
    guests += [(json.dumps(hello | change).encode(), "good") for change in odd]
    guests += [(json.dumps(hello).encode(), what) for what in ("none", "one", "files", "swapped")]
    host = start(0)
    lifeline, other = socket.socketpair()
    with lifeline, other:
        good = [lifeline.fileno(), arena.own().descriptor]
        descriptors = {"good": good, "none": [], "one": good[:1], "files": [good[1]] * 2, "swapped": good[::-1]}
        for data, what in guests * 3:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                while line.connect_ex(f"\0hocket/{variables['HOCKET_RENDEZVOUS']}/0"):
                    assert host.poll() is None
                    time.sleep(0.01)
                line.settimeout(scaled(BOUND))
                socket.send_fds(line, [data], descriptors[what])
                with suppress(ConnectionResetError):
                    assert line.recv(100) == b"", (data, what)  # the connection is closed without a word
    found = [process.communicate(timeout=60)[0] for process in (start(1), host)]
    assert found == ["2\nTrue\n"] * 2


def patient(comm: Communicator, directory: Path) -> None:
    for number, timeout in enumerate((math.inf, 3e6, 1e300, 10**400)):
        (directory / str(number)).mkdir(exist_ok=True)
        store = Files(directory / str(number))
        for other in (hocket.init(timeout), hocket.init(timeout, rank=comm.rank, size=2, store=store)):
            with other, other.dup() as again:
                assert again.all_reduce(np.array([1]))[0] == 2


def test_a_timeout_may_be_as_long_as_one_likes(tmp_path: Path) -> None:
    hocket.spawn(patient, 2, (tmp_path,))


def test_more_ranks_than_can_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="ranks must be a number from 1 to 4096, not 1000000000"):
        hocket.spawn(mistaken, 10**9)
    with pytest.raises(InvalidArgument, match="ranks must be a number from 1 to 4096, not True"):
        hocket.spawn(mistaken, True)
    variables = {"HOCKET_RANK": "1", "HOCKET_SIZE": str(10**9), "HOCKET_RENDEZVOUS": secrets.token_hex(8)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BootstrapFailed, match="no more than 4096"):
        hocket.init()


@pytest.mark.parametrize(("most", "seen"), [(180, "None"), (60, "BootstrapFailed PeerFailed")])
def test_many_ranks_with_few_files(most: int, seen: str) -> None:
    """40 ranks pass 3240 descriptors, and a user may have only as many on their way as may be open in a process."""
    if os.geteuid():
        pytest.skip("only root can be another user, whom the limit holds")
    code = """
import os, resource, sys, hocket.communicator
from tests.runtime.processes import run
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
def live(rank):
    with hocket.init() as comm:
        comm.barrier()
words, codes = run(40, live)
assert set(codes.values()) == {0}, codes
print(*sorted({str(word["type"]) for word in words.values()}))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(most)], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    first, *rest = found.stdout.split()
    assert first == seen.split()[0]
    assert set(rest) <= set(seen.split())


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_can_open_no_more_files_while_the_ranks_meet(who: int) -> None:
    """However few it can open, the other hears of it, and does not need its end for that."""
    code = """
import os, resource, sys, hocket.communicator
from tests.runtime.processes import run
who, free = int(sys.argv[1]), 1
while True:
    heard, hears = os.pipe()
    def live(rank):
        if rank == who:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free,) * 2)
        try:
            hocket.init(timeout=20)
        finally:
            os.read(heard, 1) if rank == who else os.write(hears, b".")
    words, codes = run(2, live)
    assert set(codes.values()) == {0}, codes
    if words[0]["type"] is words[1]["type"] is None:
        break
    for rank in range(2):
        assert words[rank]["type"] in ("BootstrapFailed", "PeerFailed"), words
        assert f"rank {who}" in words[rank]["text"], words
    free += 1
print(free)
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(who)], stdout=subprocess.PIPE, text=True, check=True, timeout=scaled(60)
    )
    assert int(found.stdout) > 5


def threadless(comm: Communicator) -> str:
    """Rank 1 has no room for the stack of a thread."""
    if comm.rank == 0:
        with pytest.raises(PeerFailed) as failed:
            comm.barrier()
        return failed.value.reason
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    with pytest.raises(CommunicatorDead) as dead:
        comm.barrier(async_=True)
    with pytest.raises(CommunicatorDead):
        comm.barrier()
    return dead.value.reason


def test_a_thread_for_the_background_that_cannot_be_made() -> None:
    why = "could not start a thread: Resource temporarily unavailable"
    assert hocket.spawn(threadless, 2) == [why, f"rank 1 {why}"]


def mistaken(comm: Communicator) -> str:
    if comm.rank == 1:
        os.environ["HOCKET_SIZE"] = "3"
    try:
        hocket.init(timeout=20)
    except BootstrapFailed as error:
        return error.reason
    raise AssertionError


def test_a_limit_on_file_sizes_is_explained() -> None:
    code = """
import resource, hocket
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
hocket.init()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "error[bootstrap]: there is no shared memory: File too large" in found.stderr
    assert "help: a limit on the size of files" in found.stderr


def test_a_limit_of_one_rank_on_file_sizes_is_told_to_all(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text("""
import os, resource, hocket
if os.environ["HOCKET_RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    hocket.init()
except hocket.HocketError as error:
    print(error.code, error.reason)
""")
    words = [sys.executable, "-c", "from hocket.cli import main; main()", "launch", "-n", "3", "limited.py"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    said = dict(line.split(" ", 1) for line in found.stdout.splitlines())
    why = "bootstrap rank 1: there is no shared memory: File too large"
    late = "peer-failed exited with code 0 before the ranks had met"  # to be told; the launcher says this
    assert said.keys() == {"[0]", "[1]", "[2]"}
    assert said["[1]"] == why
    assert {said["[0]"], said["[2]"]} <= {why, late}


def test_ranks_that_were_told_different_sizes() -> None:
    assert hocket.spawn(mistaken, 2) == ["rank 1 was told of 3 ranks, rank 0 of 2"] * 2


def job(comm: Communicator, number: int) -> int:
    total = np.zeros(1, np.int64)
    for call in range(200):
        total += comm.all_reduce(np.array([number * 1000 + call]))
    return int(total[0])


def test_two_jobs_at_once() -> None:
    found: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: hocket.spawn(job, 2, (n,))})) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [2 * (200 * n * 1000 + 199 * 100)] * 2 for n in range(2)}


def names(directory: str) -> set[str]:
    return {path.name for path in Path(directory).iterdir()}


def many(comm: Communicator) -> None:
    """Communicators come and go, calls follow calls: neither descriptors nor mappings grow."""
    schedules = [ring.all_reduce(comm.size, instances=i).compile() for i in (1, 2)]

    def calls(on: Communicator) -> None:
        for schedule in schedules:
            for n in (1, 5000, 100_000):
                on.run(schedule, np.ones(n))

    def used() -> tuple[int, int]:
        descriptors = len(names("/proc/self/fd"))
        mappings = sum("memfd:hocket" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return descriptors, mappings

    calls(comm)
    before = used()
    for _ in range(100):
        calls(comm)
    assert used() == before
    for _ in range(20):
        with hocket.init() as other:
            calls(other)
        del other
        comm.barrier()
    assert used() == before


@pytest.mark.campaign
def test_nothing_grows_and_nothing_is_left() -> None:
    def shared() -> set[str]:
        return names("/dev/shm") | {name for name in names("/tmp") if "hocket" in name.lower()}

    before = shared()
    descriptors = len(names("/proc/self/fd"))
    hocket.spawn(many, 2)
    assert shared() <= before
    assert len(names("/proc/self/fd")) == descriptors


def test_a_temporary_schedule_leaves_no_plan_behind() -> None:
    with hocket.init() as comm:
        for _ in range(5):
            comm.run(ring.all_reduce(1).compile(), np.ones(3))
        assert not comm._endpoint._loaded
