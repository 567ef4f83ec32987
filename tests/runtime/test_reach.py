"""Private arrays of other ranks, which calls reach into where ranks may: results, traffic, faults."""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import itertools
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator, _native
from hocket.errors import BootstrapFailed, CallTimeout, InvalidArgument, PeerFailed, PeerRefused, RankFailed
from hocket.ir.traffic import Traffic, traffic
from hocket.runtime.bootstrap import _attachable
from hocket.tunables import NEVER
from hocket.tuning import NAMED, zero_copy_program
from tests import limits
from tests.runtime.cases import PAIRS, data
from tests.runtime.test_arena import call, prepared_calls, private, ways

Array = NDArray[np.generic]
Result = TypeVar("Result")

LARGE = 140_000  # elements: more than a call begins to reach for
ANYWHERE = f"attached_small_pages_bytes=0,attached_small_pages_apart_bytes=0,near_ticks={NEVER}"
"""Wherever arrays lie: in a cache or in none, in huge pages or in others."""


def may_reach() -> bool:
    """Whether a process may read the memory of another one here."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        return _native.can_attach(child, _native.WITNESS)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


pytestmark = [
    pytest.mark.skipif(not may_reach(), reason="the kernel lets no process read the memory of another"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks that share a core seldom reach"),
]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "always")


def every_collective(comm: Communicator) -> int:
    """In place, apart, or both, in private arrays, and in some that are lent: how many were attached."""
    comm._endpoint.oversubscribed = False
    attached = 0
    for name, n, forms in itertools.product(NAMED, (5, LARGE + 7), ("i", "a", "ia")):
        for allocate in ([private], [comm.empty, private]):
            with ways() as found:
                call(comm, name, n, n % comm.size, forms, allocate)  # type: ignore[arg-type]
            assert n > 5 or not any(found)
            attached += any(found)
    return attached


@pytest.mark.parametrize(
    ("ranks", "threads", "past"),
    [
        *((2, 1, False), (2, 2, False), (3, 1, True)),
        *(pytest.param(*given, marks=pytest.mark.campaign) for given in ((3, 1, False), (5, 1, False))),
    ],
)
def test_every_collective_in_every_form(ranks: int, threads: int, past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``past``: what a rank stores itself it stores non-temporally, where it may."""
    if past:
        monkeypatch.setenv("HOCKET_CACHE_BYTES", "0")
    attached = hocket.spawn(every_collective, ranks, threads=threads)
    assert len(set(attached)) == 1
    assert min(attached) >= (30 if ranks == 2 else 15), attached


def averages(comm: Communicator) -> bool:
    """Whether arrays were attached. Operands are fetched to be combined, and the step that completes a sum divides."""
    comm._endpoint.oversubscribed = False
    x = np.arange(2 * LARGE, dtype=np.float64) + 3 * comm.rank
    mean = np.arange(2 * LARGE) + 1.5 * (comm.size - 1)
    with ways() as found:
        assert np.array_equal(comm.reduce_scatter(x, op="avg"), np.array_split(mean, comm.size)[comm.rank])
        assert np.array_equal(comm.all_reduce(x, op="avg"), mean)
    return any(found)


def test_averages() -> None:
    assert hocket.spawn(averages, 2) == [True, True]


def oversubscribed(comm: Communicator) -> list[bool]:
    """Whether ranks that share cores reach in any collective, below the size from which on they may and above."""
    comm._endpoint.oversubscribed = True
    few = comm._endpoint.tuned.cma_crowded_bytes // 8 // comm.size
    found = []
    for n in (few // 2, 4 * few):
        with ways() as seen:
            for name in NAMED:
                call(comm, name, n, 0, "a", [private])
        found.append(any(seen))
    return found


def test_ranks_that_share_cores_reach_in_longer_calls() -> None:
    assert hocket.spawn(oversubscribed, 2) == [[False, True], [False, True]]


def counted(comm: Communicator, n: int) -> dict[tuple[str, bool], Traffic]:
    """What calls move with n elements a unit."""
    comm._endpoint.oversubscribed = False
    found = {}
    for name, inplace in itertools.product(NAMED, (True, False)):
        if (comm.size > 2 and name in ("all_reduce", "reduce", "reduce_scatter")) or (name == "all_to_all" and inplace):
            continue
        if name in ("scan", "exscan"):
            continue
        blocks = {"all_gather": (1, comm.size), "gather": (1, comm.size), "reduce_scatter": (comm.size, 1)}
        sizes = {**blocks, "all_to_all": (comm.size, comm.size), "scatter": (comm.size, 1)}.get(name, (1, 1))
        whole = np.ones(max(sizes) * n, np.float32)
        begin = comm.rank * n
        reads, writes = (
            name not in ("broadcast", "scatter") or comm.rank == 0,
            name not in ("reduce", "gather") or comm.rank == 0,
        )
        views = [whole if size == max(sizes) else whole[begin : begin + n] for size in sizes]
        x = views[0] if inplace else np.ones(sizes[0] * n, np.float32)
        before = comm.traffic()
        getattr(comm, name)(x if reads else None, views[1] if writes else None)
        found[name, inplace] = comm.traffic() - before
    return found


@pytest.mark.parametrize(("ranks", "n"), [(2, LARGE), (3, LARGE), (5, LARGE)])
def test_traffic_is_what_the_schedule_says(ranks: int, n: int) -> None:
    for rank, found in enumerate(hocket.spawn(counted, ranks, (n,))):
        assert len(found) >= 9
        for (name, inplace), moved in found.items():
            program = zero_copy_program(name, ranks, inplace=inplace)
            assert program is not None
            said = traffic(program.compile(storage="peer"), n, 4, path="cma", apart=not inplace)
            assert moved == said[rank], (name, inplace, rank)


def chosen(comm: Communicator) -> list[int]:
    """The ways of long calls and short ones, all of whose results are right; in between, some that one rank refuses."""
    found = []
    with prepared_calls() as made:
        for number in range(40):
            x = np.full(LARGE if number % 2 else LARGE // 4, comm.rank + number, np.float32)
            assert (comm.all_reduce(x, async_=True).wait() == 2 * number + 1).all()
            found.append(made[-1].variant)
            if number % 10 == 0:
                with pytest.raises(InvalidArgument if comm.rank else PeerRefused):
                    comm.all_reduce(x, op="median" if comm.rank else "sum")
    return found


def test_long_calls_attach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_REACH")
    monkeypatch.setenv("HOCKET_TUNABLES", f"attached_bytes={4 * LARGE},{ANYWHERE}")
    assert hocket.spawn(chosen, 2) == [[0, 1] * 20] * 2


def of_64_kilobytes(comm: Communicator) -> tuple[set[int], set[int], str]:
    """The ways of calls, and why they do not attach. Of a Gather the root alone has a longer buffer."""
    x, ways = np.zeros(16 << 10, np.float32), []
    with prepared_calls() as made:
        for _ in range(10):
            comm.all_reduce(x)
            comm.gather(x)
            ways += [call.variant for call in made[-2:]]
    return set(ways[::2]), set(ways[1::2]), comm.explain("all_reduce", x.nbytes).why_not_attached


@pytest.mark.parametrize(
    ("least", "attach", "why"),
    [
        ("64KB", True, ""),
        ("128KB", False, "less than 128 KB"),
        (str(NEVER), False, "slots are faster on this processor"),
    ],
)
def test_short_calls_take_slots(monkeypatch: pytest.MonkeyPatch, least: str, attach: bool, why: str) -> None:
    monkeypatch.delenv("HOCKET_REACH")
    monkeypatch.setenv("HOCKET_TUNABLES", f"attached_bytes={least},attached_one_way_bytes={least},{ANYWHERE}")
    for of_all_reduce, of_gather, said in hocket.spawn(of_64_kilobytes, 2):
        assert of_all_reduce == {int(attach)}
        assert (0 not in of_gather) if attach else of_gather == {0}
        assert said == why


def both_ways_and_one(comm: Communicator) -> list[bool]:
    """Whether calls attach."""
    x, found = np.zeros(16 << 10, np.float32), []
    with prepared_calls() as made:
        for call in (comm.all_gather, comm.broadcast, comm.gather, comm.scatter):
            call(np.zeros(32 << 10, np.float32) if call == comm.scatter else x)
            found.append(made[-1].variant != 0)
    return found


@pytest.mark.parametrize("crowded", [False, True])
def test_messages_one_way_attach(monkeypatch: pytest.MonkeyPatch, crowded: bool) -> None:
    monkeypatch.delenv("HOCKET_REACH")
    least = "attached_one_way_bytes=64KB,cma_crowded_bytes=64KB"
    monkeypatch.setenv("HOCKET_TUNABLES", f"attached_bytes={NEVER},{least},{ANYWHERE}")
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, set(sorted(cores)[: 1 if crowded else 2]))
        found = hocket.spawn(both_ways_and_one, 2)
    finally:
        os.sched_setaffinity(0, cores)
    assert found == [[False, True, True, True]] * 2


HUGE = 2 << 20  # bytes of a huge page
ADVICE = {"huge": mmap.MADV_HUGEPAGE, "small": mmap.MADV_NOHUGEPAGE}


def array_in(pages: str) -> Array:
    memory = mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(ADVICE[pages])
    whole = np.frombuffer(memory, np.uint8)
    found = whole[-whole.ctypes.data % HUGE :][: 2 * HUGE].view(np.float32)
    found.fill(1)
    return found


def bytes_in_huge_pages() -> int:
    """Of this process."""
    (found,) = (line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if "AnonHugePages" in line)
    return int(found.split()[1]) << 10


def pages_are_known() -> bool:
    """Whether arrays can be in huge pages here, and Linux says which are (PAGEMAP_SCAN, Linux 6.7)."""
    version = tuple(int(number) for number in os.uname().release.split(".")[:2])
    if version < (6, 7):
        return False
    try:
        before = bytes_in_huge_pages()
        array = array_in("huge")
        return bytes_in_huge_pages() >= before + array.nbytes
    except OSError:
        return False


def by_pages(comm: Communicator) -> dict[tuple[str, str], list[bool]]:
    """Whether a Broadcast and an AllToAll attach, by the pages of the arrays of both ranks."""
    found = {}
    for pages in itertools.product(ADVICE, repeat=2):
        x, out = array_in("small"), array_in(pages[comm.rank])
        with prepared_calls() as made:
            comm.broadcast(out)
            comm.all_to_all(x, out)
        found[pages] = [call.variant != 0 for call in made]
    return found


def test_arrays_in_huge_pages_are_attached_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that others access: of a Broadcast on two ranks both, of an AllToAll the outputs."""
    if not pages_are_known():
        pytest.skip("the kernel gives no huge pages, or does not say where it does")
    monkeypatch.delenv("HOCKET_REACH")
    least = f"attached_one_way_bytes=1MB,attached_exchange_bytes=1MB,attached_small_pages_bytes={NEVER}"
    monkeypatch.setenv("HOCKET_TUNABLES", f"{least},attached_small_pages_apart_bytes={NEVER},near_ticks={NEVER}")
    huge, _ = ADVICE
    expected = {pages: [pages == (huge, huge)] * 2 for pages in itertools.product(ADVICE, repeat=2)}
    assert hocket.spawn(by_pages, 2) == [expected] * 2


def bits(comm: Communicator) -> list[bytes]:
    """Hashes of sums of random bits."""
    found = []
    for (dtype, op), name, n in itertools.product(
        PAIRS, ("all_reduce", "reduce", "reduce_scatter"), (8 * LARGE, 1_050_001)
    ):
        if n % 2 == 0 or name != "reduce_scatter":
            x = data(comm.rank, n, dtype)
            result = getattr(comm, name)(x, op=op)
            for field in () if result is None else result.dtype.names or (...,):
                parts = result[field].view(f"f{result.itemsize // 2}") if result.dtype.kind == "c" else result[field]
                parts = parts.astype(np.float64) if parts.dtype.kind in "fV" else parts
                found.append(hashlib.sha256(np.where(np.isnan(parts), 0, parts).tobytes()).digest())
    return found


@pytest.mark.campaign
def test_bits_do_not_depend_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaNs apart."""
    found = hocket.spawn(bits, 2)
    monkeypatch.setenv("HOCKET_REACH", "never")
    assert hocket.spawn(bits, 2) == found


def where_reached(comm: Communicator) -> bool:
    assert comm.split(0)._endpoint.attaches == comm._endpoint.attaches  # type: ignore[union-attr]
    with ways() as found:
        call(comm, "all_reduce", LARGE, 0, "a", [private])
    return bool(found)


def test_never(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hocket.spawn(where_reached, 2) == [True, True]
    monkeypatch.setenv("HOCKET_REACH", "never")
    assert hocket.spawn(where_reached, 2) == [False, False]


def of_rank_1(comm: Communicator, given: str) -> tuple[bool, bool]:
    """Whether ranks reach each other, and always, where one alone says what is given."""
    os.environ["HOCKET_REACH"] = given if comm.rank == 1 else ""
    with hocket.init() as other:
        with ways() as found:
            call(other, "all_reduce", LARGE, 0, "a", [private])
        return other._endpoint.attaches, bool(found)


def test_all_ranks_or_none() -> None:
    """Whether ranks reach each other, and whether always, is agreed on when they meet."""
    assert hocket.spawn(of_rank_1, 2, ("never",)) == [(False, False)] * 2
    assert hocket.spawn(of_rank_1, 2, ("always",)) == [(True, True)] * 2
    with pytest.raises(BootstrapFailed, match="rank 1: HOCKET_REACH must be never or always, not 'alwais'"):
        hocket.spawn(of_rank_1, 2, ("alwais",))


def test_another_process_is_not_reached() -> None:
    lifeline, other = socket.socketpair()
    with lifeline, other:
        descriptors = [lifeline.fileno()] * 2
        assert _attachable(0, descriptors, [_native.WITNESS] * 2) == [os.getpid()] * 2
        assert _attachable(0, descriptors, [_native.WITNESS, _native.WITNESS + 8]) == []
        assert _attachable(0, descriptors, [_native.WITNESS, 8]) == []
    assert not _native.can_attach(1 << 22, _native.WITNESS)


SYSTEM_CALLS = {"x86_64": (310, 311), "aarch64": (270, 271)}  # process_vm_readv, process_vm_writev


def sandbox(*numbers: int) -> None:
    """Have the kernel refuse these system calls to this thread from now on, with EPERM."""
    load, equal, end = 0x20, 0x15, 0x06  # instructions of a BPF program, on the number of a call
    allowed, refused = 0x7FFF0000, 0x00050000 | errno.EPERM
    tests = [(equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program = [(load, 0, 0, 0), *tests, (end, 0, 0, allowed), (end, 0, 0, refused)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl, no_new_privileges, seccomp, by_filter = ctypes.CDLL(None).prctl, 38, 22, 2
    if prctl(no_new_privileges, 1, 0, 0, 0) or prctl(seccomp, by_filter, filter_, 0, 0):
        raise OSError("no sandbox")


def in_sandboxes(ranks: Callable[[Communicator], Result]) -> list[Result]:
    if os.uname().machine not in SYSTEM_CALLS:
        pytest.skip("the numbers of system calls are known for other processors only")
    try:
        return hocket.spawn(ranks, 2)
    except OSError:
        pytest.skip("there are no sandboxes here")


def sandboxed(comm: Communicator) -> list[bool]:
    """Rank 1 may not write to others from some moment on. Whether ranks may reach each other, and do."""
    found = []

    def add(on: Communicator, n: int) -> None:
        x = np.ones(n, np.float32)
        with ways() as seen:
            assert (on.all_reduce(x, np.empty_like(x)) == 2).all()
        found.append(bool(seen))

    add(comm, LARGE)
    if comm.rank == 1:
        sandbox(SYSTEM_CALLS[os.uname().machine][1])
    with hocket.init() as other:
        found.append(other._endpoint.attaches)
        add(other, LARGE)
    add(comm, LARGE + 1)
    return found


def test_a_sandbox() -> None:
    """Who may only read is found out when ranks meet, or, later, when arrays are offered that were not before."""
    assert in_sandboxes(sandboxed) == [[True, False, False, False]] * 2


def sandboxed_late(comm: Communicator) -> str:
    """Rank 1 enters a sandbox after it has worked on these arrays, which the others still count on."""
    x, out = np.ones(LARGE, np.float32), np.empty(LARGE, np.float32)
    comm.all_reduce(x, out)
    if comm.rank == 1:
        sandbox(*SYSTEM_CALLS[os.uname().machine])
    with pytest.raises(PeerFailed) as error:
        comm.all_reduce(x, out)
    with hocket.init() as other:
        assert (other.all_reduce(x, out) == 2).all()
    return f"rank {error.value.rank} {error.value.reason}"


def test_a_sandbox_between_two_calls_on_the_same_arrays() -> None:
    why = (
        "rank 1 may not access the memory of rank 0 any more: Operation not permitted (HOCKET_REACH=never does without)"
    )
    assert in_sandboxes(sandboxed_late) == [why] * 2


CLOSED = """
import ctypes, os, numpy as np, hocket.communicator
from hocket.algorithms import all_pairs
from tests.runtime.test_arena import ways
np.ma, all_pairs.all_reduce(2).compile()  # imports what another user may be unable to
if not os.geteuid():
    os.setuid(65534)  # root may reach everything
open_to_others = lambda given: ctypes.CDLL(None).prctl(4, given, 0, 0, 0)  # PR_SET_DUMPABLE
open_to_others(1)
found = []
with hocket.init() as comm:
    for number, given in enumerate((1, 0, 1, 0)):
        if comm.rank == 1:
            open_to_others(given)
        x = np.ones(140_000 + number, np.float32)
        with ways() as seen:
            assert (comm.all_reduce(x, np.empty_like(x)) == 2).all()
        found.append(bool(seen))
print(found)
"""


def test_a_process_that_closes_itself(tmp_path: Path) -> None:
    """As one does that changes its user: from then on messages take slots, until it is open again."""
    script = tmp_path / "closed.py"
    script.write_text(CLOSED)
    words = [sys.executable, "-c", "from hocket.cli import main; main()", "launch", "-n", "2", str(script)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert sorted(found.stdout.splitlines()) == [f"[{rank}] [True, False, True, False]" for rank in range(2)], found


def secret(size: int) -> mmap.mmap | None:
    """Memory to which no way leads but the loads and stores of its owner; None where the kernel has none."""
    descriptor = ctypes.CDLL(None).syscall(447, 0)  # memfd_secret
    if descriptor < 0:
        return None
    os.ftruncate(descriptor, size)
    try:
        return mmap.mmap(descriptor, size)
    except OSError:
        return None


def unreachable(comm: Communicator) -> None:
    """Where one rank has memory that the kernel lets no other read, messages take slots."""
    hidden = secret(LARGE * 4) if comm.rank == 1 else None
    x = np.empty(LARGE, np.float32) if hidden is None else np.frombuffer(hidden, np.float32)
    x[:] = comm.rank + 1
    with ways() as found:
        for _ in range(3):
            assert (comm.all_reduce(x, np.empty_like(x)) == 3).all()
    anybody = comm.all_reduce(np.array([hidden is not None]), op="max")
    assert bool(found) is not bool(anybody[0])


def test_memory_that_others_cannot_reach() -> None:
    hocket.spawn(unreachable, 2)


def timed_out(comm: Communicator, background: bool) -> None:
    """Rank 1 does not come in time: what rank 0 has told it of is never given away again."""
    with hocket.init(timeout=0.5) as other:
        x, out = np.ones(LARGE, np.float32), np.empty(LARGE, np.float32)
        for _ in range(2):
            other.all_reduce(x, out)
        held = [sys.getrefcount(x), sys.getrefcount(out)]
        if comm.rank == 0:
            call_late = partial(other.all_reduce, x, out)
            with pytest.raises(CallTimeout) as error:
                call_late(async_=True).wait() if background else call_late()
            del call_late
            del error
            gc.collect()
            other.close()
            gc.collect()
            assert sys.getrefcount(x) > held[0]
            assert sys.getrefcount(out) > held[1]
        comm.barrier()


def interrupted(comm: Communicator) -> None:
    """A call that a signal handler ends, on its short way and on its long one."""
    for short in (False, True):
        with hocket.init() as other:
            x = np.ones(LARGE, np.float32)
            if short:
                other.all_reduce(x)
            held = sys.getrefcount(x)
            if comm.rank == 0:
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, limits.scaled(0.1))
                with pytest.raises(KeyboardInterrupt) as error:
                    other.all_reduce(x)
                del error
                gc.collect()
                assert sys.getrefcount(x) > held
            comm.barrier()


def test_arrays_of_a_call_that_was_interrupted_are_kept() -> None:
    hocket.spawn(interrupted, 2)


@pytest.mark.parametrize("background", [False, True])
def test_arrays_of_a_call_that_failed_are_kept(background: bool) -> None:
    hocket.spawn(timed_out, 2, (background,))


def killed_inside(comm: Communicator, done: Path) -> None:
    """Rank 1 says where its arrays lie, waits for rank 0, and is killed; rank 0 comes when it is gone."""
    x = np.ones(LARGE, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # handled between naps of the call
    else:
        select.select([comm._endpoint._lifelines[1]], [], [])
    held = sys.getrefcount(x)
    with pytest.raises(PeerFailed, match="rank 1 has ended") as error:
        comm.all_reduce(x)
    del error
    gc.collect()
    assert sys.getrefcount(x) > held
    done.touch()


def test_a_rank_that_dies_inside_a_call(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with pytest.raises(RankFailed, match="rank 1 was ended by SIGKILL"):
        hocket.spawn(killed_inside, 2, (done,))
    assert done.exists()
