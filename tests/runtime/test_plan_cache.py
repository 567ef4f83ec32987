"""One rank compiles for all: who does, what the others get, and what happens when it ends, stops or leaves rubbish."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import msgpack

import hocket
from hocket import Communicator, Program, Schedule, _native
from hocket.algorithms import all_pairs, ring
from hocket.errors import PeerFailed, RankFailed
from hocket.runtime import plan_cache, segments
from hocket.runtime.plan import Plan, lower, lower_all
from hocket.runtime.plan_cache import PlanCache
from hocket.tuning import NAMED, TABLE, default_program, zero_copy_program

# ---------------------------------------------------------------------------------------------------------------
# In a job


def on_compile(act: Callable[[Program], None]) -> None:
    """From now on, ``act`` first whenever this process compiles a program."""
    compiled = Program.compile

    def acts_first(self: Program, **options: object) -> Schedule:
        act(self)
        return compiled(self, **options)  # type: ignore[arg-type]

    Program.compile = acts_first  # type: ignore[assignment, method-assign]


def comes_first(directory: Path, word: str) -> bool:
    """Whether no process has come here before; the first leaves a word in the file "first"."""
    own = directory / str(os.getpid())
    own.write_text(word)
    try:
        (directory / "first").hardlink_to(own)
    except FileExistsError:
        return False
    return True


def first_calls(comm: Communicator) -> list[str]:
    """Calls each of another program, on two communicators; what this rank compiled."""
    found: list[str] = []
    on_compile(lambda program: found.append(program.name))
    p = comm.size
    for each in (comm, comm.dup()):
        for n in (1, 1 << 16):
            assert (each.all_reduce(np.full(n, float(each.rank))) == p * (p - 1) / 2).all()
        x = each.empty(1 << 16, np.float64)
        x[:] = each.rank
        assert (each.all_reduce(x, async_=True).wait() == p * (p - 1) / 2).all()
        rows = each.all_gather(np.full((each.rank, 2), each.rank), counts=range(p))
        assert rows[:, 0].tolist() == [rank for rank in range(p) for _ in range(rank)]
        for root in (0, p - 1):
            assert each.broadcast(np.array([each.rank]), root=root)[0] == root
    return found


@pytest.mark.campaign
def test_a_program_is_compiled_once_for_all_ranks_of_a_communicator() -> None:
    ranks = 8
    compiled = Counter(name for found in hocket.spawn(first_calls, ranks) for name in found)
    called = {default_program("all_reduce", ranks, small=small).name for small in (True, False)}
    lent = zero_copy_program("all_reduce", ranks, inplace=True)
    assert lent is not None
    called |= {lent.name, default_program("all_gather", ranks).name}
    broadcast = default_program("broadcast", ranks).name
    assert compiled == {**dict.fromkeys(called, 2), broadcast: 4}  # two roots


def refused(comm: Communicator) -> None:
    """What cannot be compiled is an error on every rank, and the communicator goes on."""

    def fail(program: Program) -> None:
        raise ValueError(f"{program.name} cannot be compiled")

    compiled = Program.compile
    on_compile(fail)
    with pytest.raises(ValueError, match="cannot be compiled"):
        comm.all_reduce(np.ones(1))
    Program.compile = compiled  # type: ignore[method-assign]
    assert comm.all_reduce(np.ones(1)) == comm.size


def test_a_program_that_cannot_be_compiled() -> None:
    hocket.spawn(refused, 3)


def ends_while_it_compiles(comm: Communicator, directory: Path) -> None:
    """The first rank to compile is killed there."""

    def kill_first(_: Program) -> None:
        if comes_first(directory, f"{comm.rank} {time.monotonic()}"):
            os.kill(os.getpid(), signal.SIGKILL)

    on_compile(kill_first)
    with pytest.raises(PeerFailed) as error:
        comm.all_reduce(np.ones(1))
    (directory / str(comm.rank)).write_text(f"{error.value.rank} {time.monotonic()}")
    raise error.value


def test_a_rank_that_is_killed_while_it_compiles_is_missed_by_all(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="was ended by SIGKILL"):
        hocket.spawn(ends_while_it_compiles, 4, (tmp_path,))
    victim, at = (tmp_path / "first").read_text().split()
    for rank in {0, 1, 2, 3} - {int(victim)}:
        missed, noticed = (tmp_path / str(rank)).read_text().split()
        assert missed == victim
        assert float(noticed) - float(at) < 5.0


def stops_while_it_compiles(directory: Path) -> str:
    """The first rank to compile stops, until another has waited in vain and compiles as well."""
    comm = hocket.init(timeout=4.0)
    role = "waited"

    def stop_first(_: Program) -> None:
        nonlocal role
        if comes_first(directory, str(os.getpid())):
            role = "stopped"
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            role = "alone"
            os.kill(int((directory / "first").read_text()), signal.SIGCONT)

    on_compile(stop_first)
    assert comm.all_reduce(np.ones(1)) == comm.size
    comm.close()
    return role


@pytest.mark.campaign
def test_nobody_depends_on_the_rank_that_compiles(tmp_path: Path) -> None:
    found = hocket.spawn(lambda _, directory: stops_while_it_compiles(directory), 3, (tmp_path,))
    assert found.count("stopped") == 1
    assert found.count("alone") >= 1


def interrupted(comm: Communicator, directory: Path) -> str:
    """Rank 0 compiles until rank 1, which waits for that, has been interrupted."""

    def until(name: str) -> None:
        while not (directory / name).exists():
            time.sleep(0.001)

    def interrupt(_: Program) -> None:
        (directory / "compiling").touch()
        until("calling")
        os.kill(int((directory / "calling").read_text()), signal.SIGINT)
        until("interrupted")

    if comm.rank == 0:
        on_compile(interrupt)
        with pytest.raises(PeerFailed, match="rank 1 was interrupted"):
            comm.all_reduce(np.ones(1))
        return "missed"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    until("compiling")
    try:
        (directory / "new").write_text(str(os.getpid()))
        (directory / "new").rename(directory / "calling")
        comm.all_reduce(np.ones(1))
    except KeyboardInterrupt:
        comm.abort("was interrupted")
        (directory / "interrupted").touch()
        return "interrupted"
    return "ended"


def test_ctrl_c_while_another_rank_compiles(tmp_path: Path) -> None:
    assert hocket.spawn(interrupted, 2, (tmp_path,)) == ["missed", "interrupted"]


# ---------------------------------------------------------------------------------------------------------------
# The cache alone


class Compiler:
    """Compiles one schedule, and counts how often."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.times = 0

    def __call__(self) -> Schedule:
        self.times += 1
        return self.schedule


def caches(ranks: int) -> tuple[int, list[PlanCache]]:
    """The file of a meeting, and what each of its ranks has; all in this process, of which no lock keeps another."""
    memory = segments.create(ranks, "")
    return memory, [PlanCache(memory, rank, [-1] * ranks, 1800.0) for rank in range(ranks)]


RING = ring.all_reduce(3).compile()


def test_a_plan_is_what_the_rank_would_have_made() -> None:
    memory, ranks = caches(3)
    compiler, other = Compiler(RING), Compiler(all_pairs.all_reduce(3).compile())
    for rank, cache in enumerate(ranks):
        assert cache.get("ring", compiler) == lower(RING, rank)
        assert cache.get("all pairs", other) == lower(other.schedule, rank)
    assert (compiler.times, other.times) == (1, 1)
    os.close(memory)


@pytest.mark.campaign
def test_rubbish_is_noticed() -> None:
    """Whatever byte is another: the rank gets its plan, and if it must it compiles. Each eleventh byte."""
    memory, ranks = caches(3)
    ranks[0].get("ring", Compiler(RING))
    plan, at = lower(RING, 1), _native.PLANS
    good = os.pread(memory, 1 << 20, at).rstrip(b"\0") + bytes(64)
    noticed = 0
    positions = range(0, len(good) - 64, 11)
    for position in positions:
        os.pwrite(memory, good, at)
        os.pwrite(memory, bytes([good[position] ^ 0xFF]), at + position)
        compiler = Compiler(RING)
        assert ranks[1].get("ring", compiler) == plan
        noticed += compiler.times
    assert noticed > len(positions) / 4  # in what other ranks have, it is not
    os.close(memory)


def test_a_full_cache_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, ranks = caches(3)
    compiler = Compiler(RING)
    ranks[0].get("first", compiler)
    used = int.from_bytes(os.pread(memory, 8, _native.PLANS + 8), "little")
    monkeypatch.setattr(plan_cache, "_ROOM", 2 * used)
    for key in ("second", "third"):  # which has no room
        ranks[0].get(key, compiler)
    assert compiler.times == 3
    for key in ("third", "first", "second"):
        ranks[1].get(key, compiler)
    assert compiler.times == 5
    monkeypatch.setattr(plan_cache, "_ROOM", used - 1)
    for _ in range(2):
        assert ranks[2].get("fourth", compiler) == lower(RING, 2)
    assert compiler.times == 7  # there is no room for any
    os.close(memory)


def test_a_file_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    memory, ranks = caches(3)
    monkeypatch.setattr(fcntl, "lockf", none)
    compiler = Compiler(RING)
    for rank, cache in enumerate(ranks):
        assert cache.get("ring", compiler) == lower(RING, rank)
    assert compiler.times == 3
    os.close(memory)


def test_another_thread_does_not_wait() -> None:
    memory, ranks = caches(3)
    beside: list[Plan] = []

    def compiled() -> Schedule:
        thread = threading.Thread(target=lambda: beside.append(ranks[0].get("ring", Compiler(RING))))
        thread.start()
        thread.join()
        return RING

    assert ranks[0].get("ring", compiled) == beside[0] == lower(RING, 0)
    os.close(memory)


# ---------------------------------------------------------------------------------------------------------------
# What travels


PROGRAMS = [
    *(default_program(name, 3, 1, small=small) for name in NAMED for small in (True, False)),
    *filter(None, (zero_copy_program(name, 3, 1, inplace=inplace) for name in NAMED for inplace in (True, False))),
]


def test_a_plan_names_steps_as_its_schedule_does_wherever_it_has_been() -> None:
    for number, program in enumerate(PROGRAMS):
        schedule = program.compile(storage="peer" if number >= 2 * len(NAMED) else "fifo")
        for rank, plan in enumerate(lower_all(schedule, range(3))):
            found = msgpack.decode(msgpack.encode(plan), type=Plan)
            assert found == plan == lower(schedule, rank)
            for b, block in enumerate(schedule.ranks[rank].thread_blocks):
                for s in range(len(block.steps)):
                    name = schedule.step_name(rank, b, s)
                    assert str(found.step_name(b, s)) == str(name)
                    assert name.where is not None
                    assert found.step_name(b, s).where == name.where.resolve()


def test_a_line_of_the_table_is_known_by_its_collective_and_condition() -> None:
    """As all ranks have to mean the same."""
    assert len({(line.collective, line.when.text) for line in TABLE}) == len(TABLE)
