"""Arrays that ranks lend each other: where they lie, and collectives on them, against the reference and NumPy."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import hashlib
import itertools
import mmap
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator, Handle, _native
from hocket.algorithms import all_pairs, direct, ring
from hocket.errors import (
    CallMismatch,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    RankFailed,
    WrongType,
)
from hocket.ir.messages import two_rounds
from hocket.runtime import arena, segments
from hocket.runtime.execution import VARIANTS, LoadedPlan, PreparedCall
from hocket.runtime.operands import operands_of
from hocket.runtime.plan import lower
from hocket.tuning import NAMED, choose, declined, zero_copy_program
from tests.property.programs import random_case
from tests.runtime.cases import PAIRS, Run, check, data
from tests.runtime.test_call_cache import slow_path
from tests.runtime.test_segments import refuse_memfd

Array = NDArray[np.generic]

PAGE = 4096


HUGE = 2 << 20  # bytes of a huge page
MADV_COLLAPSE = 25


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def test_an_array_is_plain_memory() -> None:
    with hocket.init() as comm:
        for shape, dtype in itertools.product(
            (0, 7, (3, 5), (2, 0, 4), np.int64(9)), ("int8", "complex128", "S3", "i1,f8")
        ):
            array = comm.empty(shape, dtype)
            like = np.empty(shape, dtype)
            assert (array.shape, array.dtype) == (like.shape, like.dtype)
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert address(array) % PAGE == 0
            assert array.size == 0 or comm._endpoint.holds(array)
        assert comm.empty(3).dtype == np.float64


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    with hocket.init() as comm:
        first = comm.empty(10_000, np.uint8)
        where, view = address(first), first[5_000:]
        del first
        other = comm.empty(10_000, np.uint8)
        assert address(other) != where
        del view
        assert address(comm.empty(10_000, np.uint8)) == where


def test_arrays_never_share_memory() -> None:
    """Whatever is allocated and given back, in whatever order."""
    rng = random.Random(1)
    with hocket.init() as comm:
        arrays: dict[int, tuple[NDArray[np.uint8], int]] = {}
        for turn in range(3000):
            if arrays and rng.random() < 0.48:
                array, value = arrays.pop(rng.choice(list(arrays)))
                assert (array == value).all()
            else:
                array = comm.empty(rng.choice((1, 4096, 5000, 40_000, 300_000)), np.uint8)
                array[:] = turn % 251
                arrays[turn] = array, turn % 251
        assert all((array == value).all() for array, value in arrays.values())


def test_an_array_outlives_its_communicator() -> None:
    comm = hocket.init()
    array = comm.empty(5)
    comm.close()
    array[:] = 3
    assert array.sum() == 15
    with pytest.raises(CommunicatorDead, match="it was closed"):
        comm.empty(5)


def test_what_cannot_be_allocated() -> None:
    with hocket.init() as comm:
        for shape in ("3", 2.5, (2, None), True):
            with pytest.raises(WrongType, match="shape must be an integer or a sequence of them"):
                comm.empty(shape)  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="shape must not be negative"):
            comm.empty((2, -1))
        with pytest.raises(WrongType, match="references mean nothing in another process"):
            comm.empty(3, object)
        with pytest.raises(WrongType, match="dtype must be a NumPy type, not 'float33'"):
            comm.empty(3, "float33")
        for shape in (1 << 50, 1 << 70):
            with pytest.raises(MemoryError):
                comm.empty(shape)


def full(comm: Communicator) -> None:
    """A file that may not grow is what full memory is: an error, and what is there goes on working."""
    refuse_memfd(setattr)
    arena.own.cache_clear()
    with hocket.init() as other:
        x = other.empty(100_000, np.uint8)
        limits, held = resource.getrlimit(resource.RLIMIT_FSIZE), os.fstat(arena.own().descriptor).st_blocks
        resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, limits[1]))
        with pytest.raises(MemoryError):
            other.empty(32 << 20, np.uint8)
        assert os.fstat(arena.own().descriptor).st_blocks == held, "what it had taken before it failed"
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        x[:] = comm.rank
        other.all_reduce(x)
        assert (x == comm.size * (comm.size - 1) / 2).all()


def test_full_memory_is_an_error() -> None:
    hocket.spawn(full, 2)


def test_a_child_has_arrays_of_its_own() -> None:
    with hocket.init() as comm:
        array = comm.empty(5_000, np.uint8)
        array[:] = 1
        child = os.fork()
        if not child:
            code = 1
            try:
                ours = bool((array == 1).all())
                array[:] = 2
                with hocket.init() as own:
                    more = own.empty(1 << 20, np.uint8)
                    more[:] = 3
                    del array
                    gc.collect()
                code = 0 if ours and (more == 3).all() else 1
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (array == 1).all()
        assert comm._endpoint.holds(comm.empty(3))


def test_what_a_child_sees_of_arrays() -> None:
    """Until it stores to a page itself, what its parent stores; a copy made before is what it was."""
    with hocket.init() as comm:
        page = 4096
        array = comm.empty(2 * page, np.uint8)
        array[:] = 1
        copy = array.copy()
        (told, tells), (answered, answers) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                array[0] = 5
                os.write(answers, b".")
                os.read(told, 1)
                seen = array[0], array[1], array[page], copy[0], copy[page]
                code = 0 if seen == (5, 1, 2, 1, 1) else 1
            finally:
                os._exit(code)
        os.read(answered, 1)
        array[:] = 2
        os.write(tells, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (array == 2).all()
        for descriptor in (told, tells, answered, answers):
            os.close(descriptor)


def test_there_is_no_memory_for_an_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(segments, "_memfd", none)
    monkeypatch.setattr(arena, "own", functools.cache(arena.own.__wrapped__))
    with pytest.raises(hocket.errors.BootstrapFailed, match="there is no shared memory"):
        arena.own()


# ---------------------------------------------------------------------------------------------------------------
# Calls


@contextmanager
def ways() -> Iterator[list[int]]:
    """At the end, the ways of calls that did not go through slots: 1 + that of VARIANTS."""
    found: list[int] = []
    with prepared_calls() as made:
        yield found
    found += [call.variant for call in made if call.variant]


@contextmanager
def prepared_calls() -> Iterator[list[PreparedCall]]:
    """That of each call made meanwhile, in order; nothing is entered in the call cache."""
    made: list[PreparedCall] = []
    call, start = PreparedCall.__call__, PreparedCall.start

    def calls(self: PreparedCall, *arguments: Any) -> Any:
        made.append(self)
        return call(self, *arguments)

    def starts(self: PreparedCall, *arguments: Any) -> Handle[Any]:
        made.append(self)
        return start(self, *arguments)

    with (
        mock.patch.object(_native.CallCache, "learn"),
        mock.patch.object(PreparedCall, "__call__", calls),
        mock.patch.object(PreparedCall, "start", starts),
    ):
        yield made


def private(size: int, dtype: str) -> NDArray[np.generic]:
    return np.empty(size, dtype)


def call(comm: Communicator, name: str, n: int, root: int, forms: str, allocate: list[Callable[..., Array]]) -> None:
    """A collective on blocks of n numbers; its form on rank r is ``forms[r % len(forms)]``: "i" in place, "a" apart."""
    p, r = comm.size, comm.rank
    own = forms[r % len(forms)] == "i"
    cuts = name in ("reduce_scatter", "all_to_all", "scatter")
    reads, writes = name not in ("broadcast", "scatter") or r == root, name not in ("reduce", "gather") or r == root
    writes = writes and (name != "exscan" or r > 0)
    inputs = [(np.arange(n * (p if cuts else 1)) * 7 + 11 * q) % 23 for q in range(p)]
    pairs = list(zip(range(p), inputs, strict=True))
    if name in ("all_reduce", "reduce"):
        result = sum(inputs)
    elif name in ("scan", "exscan"):
        result = np.sum(inputs[: r + (name == "scan")], axis=0)
    elif name in ("all_gather", "gather"):
        result = np.concatenate(inputs)
    elif name == "reduce_scatter":
        result = sum(inputs)[r * n : (r + 1) * n]
    elif name == "all_to_all":
        result = np.concatenate([x[r * n : (r + 1) * n] for _, x in pairs])
    else:
        result = inputs[root][r * n : (r + 1) * n] if cuts else inputs[root]
    new = allocate[r % len(allocate)]
    x = new(len(inputs[r]), "float32") if reads else None
    out = new(len(result), "float32") if writes else None
    if own and reads and writes:
        whole = new(max(len(inputs[r]), len(result)), "float32")
        block = whole[r * n : (r + 1) * n]
        x = block if len(inputs[r]) < len(whole) else whole
        out = block if len(result) < len(whole) else whole
    options = {"root": root} if name in ("broadcast", "reduce", "gather", "scatter") else {}
    for _ in range(3):  # the long way, then the short one
        if x is not None:
            x[:] = inputs[r]
        found = getattr(comm, name)(x, out, **options)
        assert (found is None) == (not writes)
        assert found is None or (found == result).all(), (name, n, r, p, forms)
        assert x is None or (own and writes) or (x == inputs[r]).all(), ("x was written", name, n, r)
    again = getattr(comm, name)(x, out, async_=True, **options)
    assert isinstance(again, Handle)
    again.wait()


def every_collective(comm: Communicator, sizes: list[int], file: bool) -> None:
    if file:
        refuse_memfd(setattr)
        arena.own.cache_clear()
        comm = hocket.init()
    p = comm.size
    lent, mixed = [comm.empty], [comm.empty, private]
    for number, (name, n) in enumerate(itertools.product(NAMED, sizes)):
        root = number % p
        for forms in ("i", "a", "ia"):
            with ways() as found:
                call(comm, name, n, root, forms, lent)  # type: ignore[arg-type]
            alone = name in ("broadcast", "reduce", "gather", "scatter")  # only the root has both arrays
            blocks = p if name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter") else 1
            choice = choose(replace(comm._wanted(name, "sum", root, None, None).call, size=4 * n * blocks))
            default = comm._schedule(choice.key, choice.compile)
            alone_in_one = comm._endpoint.outlook(default, n).one_round
            large = declined(choice, alone_in_one, attached=False) is None
            inplace = not (forms == "a" or (alone and forms[root % len(forms)] == "a"))
            some = forms == "ia" and not alone and p > 1
            buffered = not large or some or (name == "all_to_all" and inplace)
            expected = set() if buffered else {1 + VARIANTS.index(inplace)}
            assert set(found) == expected, (name, n, forms, found)
        for forms in ("i", "a"):
            with ways() as found:
                call(comm, name, n, root, forms, mixed)  # type: ignore[arg-type]
            assert p == 1 or not any(found), (name, n, forms, found)


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (3, 4, 5, 8))])
def test_every_collective_in_every_form(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(every_collective, ranks, ([1, 501, 2_503, 20_011] if ranks < 5 else [5_003], False))


def test_every_collective_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", "never")
    hocket.spawn(every_collective, 2, ([20_011], True))


def schedules(comm: Communicator, count: int, threads: int) -> None:
    """Direct programs with every type and size, and random ones: the bits of the reference."""
    p = comm.size
    runs: list[Run] = []
    combining = [
        program.compile(storage="peer", instances=threads)
        for inplace in (True, False)
        for program in (
            direct.all_reduce(p, inplace=inplace),
            direct.reduce_scatter(p, inplace=inplace),
            direct.reduce(p, p - 1, inplace=inplace),
        )
    ]
    combining.append(all_pairs.one_shot_all_reduce(p, inplace=False).compile(storage="peer", instances=threads))
    sizes = (0, 1, 3, 17, 1501, 40_009)
    for number, (dtype, op) in enumerate(PAIRS):
        for which, schedule in enumerate(combining):
            if (number + which) % 3 == p % 3:
                tile = (None, 64, 4096)[(number + which) % 3]
                runs.append(Run(schedule, sizes[(number + 2 * which) % len(sizes)], dtype, op, tile, "lent"))
    for name in NAMED:
        for inplace, n in itertools.product((True, False), (0, 5, 1501, 40_009)):
            program = zero_copy_program(name, p, p // 2, inplace=inplace)
            if program is not None:
                runs.append(Run(program.compile(storage="peer", instances=threads), n, "uint16", form="lent"))
    missing = Counter({False: count, True: -(-count // 4)})  # by whether it takes two rounds, as one of ten does
    for seed in itertools.count():
        if not missing.total():
            break
        rng = random.Random(seed)
        program = random_case(rng).program()
        if program.collective.size != p:
            continue
        schedule = program.compile(storage="peer", instances=rng.choice((1, 1, 2)), slots=rng.choice((1, 2)))
        stores = {span.buffer for _, _, _, step in schedule.steps() for span in step.writes()}
        if not schedule.in_place() or (not program.collective.inplace and "in" in stores):
            continue
        if missing[two_rounds(schedule)] == 0:
            continue
        missing[two_rounds(schedule)] -= 1
        runs.append(Run(schedule, rng.choice((1, 5, 64, 1000, 20_011)), "int32", "sum", rng.choice((None, 64)), "lent"))
    check(comm, runs)


@pytest.mark.parametrize(
    ("ranks", "count", "threads"),
    [
        (1, 0, 1),
        *(
            pytest.param(*given, marks=pytest.mark.campaign)
            for given in ((2, 15, 1), (3, 15, 2), (4, 15, 1), (7, 0, 1))
        ),
    ],
)
def test_schedules_have_the_bits_of_the_reference(ranks: int, count: int, threads: int) -> None:
    hocket.spawn(schedules, ranks, (count, threads), threads=threads)


def digests(comm: Communicator) -> tuple[str, dict[tuple[str, str, bool], str]]:
    """The instruction set, and hashes of sums of random bits, by collective, type, and whether the arrays are lent."""
    found = {}
    for name, dtype, lent in itertools.product(("all_reduce", "reduce_scatter"), ("float32", "float16"), (False, True)):
        x, out = ((comm.empty if lent else np.empty)(40_002, dtype) for _ in range(2))
        x[:] = data(comm.rank, len(x), dtype)
        result = getattr(comm, name)(x, out if name == "all_reduce" else out[: len(x) // comm.size])
        found[name, dtype, lent] = hashlib.sha256(np.where(np.isnan(result), 0, result).tobytes()).hexdigest()
    return _native.ISA, found


@pytest.mark.campaign
@pytest.mark.parametrize("threads", [1, 2])
def test_every_instruction_set_gives_the_same_bits(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On private and on shared arrays; NaNs apart."""
    expected = hocket.spawn(digests, 3, threads=threads)
    for isa in _native.ISAS:
        monkeypatch.setenv("HOCKET_ISA", isa)
        found = hocket.spawn(digests, 3, threads=threads)
        assert {name for name, _ in found} == {isa}
        assert [hashes for _, hashes in found] == [hashes for _, hashes in expected]


def refused(comm: Communicator) -> None:
    """A schedule whose messages lie in arrays takes only such, on every rank, as it is meant; else all know at once."""
    inplace = direct.all_reduce(comm.size).compile(storage="peer")
    apart = direct.all_reduce(comm.size, inplace=False).compile(storage="peer")
    x, out, plain = comm.empty(300), comm.empty(300), np.ones(300)
    bad: list[tuple[str, Callable[[], object]]] = [
        ("memory that ranks share", lambda: comm.run(inplace, plain)),
        ("memory that ranks share", lambda: comm.run(apart, x, plain)),
        ("it works in place only", lambda: comm.run(inplace, x, out)),
        ("it works with x and out apart only", lambda: comm.run(apart, x, x)),
    ]
    for number, (text, wrong) in enumerate(bad):
        x[:] = 1
        with pytest.raises(InvalidArgument if comm.rank == number % comm.size else PeerRefused, match=text):
            wrong() if comm.rank == number % comm.size else comm.run(inplace, x)
        assert (x == 1).all()
        comm.run(inplace, x)
        assert (x == comm.size).all()
    with pytest.raises(CallMismatch):
        comm.run(inplace if comm.rank else apart, x, None if comm.rank else out)
    with pytest.raises(CallMismatch, match="differs in size"):
        comm.all_reduce(comm.empty(30_000 + comm.rank))


def test_wrong_arrays_are_refused_on_every_rank() -> None:
    hocket.spawn(refused, 2)


def remembered(comm: Communicator) -> None:
    """A call takes the short way from the second time on; where its arrays lie makes it another."""
    found = []
    for n in (30_000, 30_100, 30_200):
        lent, other, plain = comm.empty(n), comm.empty(n), np.empty(n)
        seen = []
        for x in (lent, plain, other, plain, lent):
            x[:] = comm.rank + 1
            with slow_path() as run:
                comm.all_reduce(x, op="avg")
            seen.append(run.call_count)
            assert (x == (comm.size + 1) / 2).all()
        found.append(seen)
    assert found == [[1, 1, 0, 0, 0]] * 3


def test_calls_are_remembered() -> None:
    hocket.spawn(remembered, 2)


def several(comm: Communicator) -> None:
    """Split, duplicated and second communicators lend the same arrays."""
    half, twin = comm.split(comm.rank % 2), comm.dup()
    assert half is not None
    x, y = comm.empty(30_000, np.int64), half.empty(30_000, np.int64)
    with ways() as found:
        for turn in range(3):
            x[:], y[:] = comm.rank + turn, comm.rank
            one, other = twin.all_reduce(x, async_=True), half.all_reduce(y, async_=True)
            one.wait(), other.wait()
            assert (x == comm.size * turn + comm.size * (comm.size - 1) // 2).all()
            assert (y == sum(range(comm.rank % 2, comm.size, 2))).all()
            comm.all_gather(y[:9_000], comm.empty(9_000 * comm.size, np.int64))
    assert found.count(1) == 6
    assert found.count(2) == 3
    twin.close()
    half.close()
    with hocket.init() as other_comm:
        other_comm.all_reduce(x)


def test_several_communicators() -> None:
    hocket.spawn(several, 4)


def growing(comm: Communicator) -> None:
    """Arrays beyond what the others have mapped so far, and back."""
    for n in (10_000, 6_000_000, 20_000, 30_000_000, 10_000):
        x = comm.empty(n, np.uint8)
        x[:] = comm.rank + 1
        comm.all_reduce(x)
        assert (x == comm.size * (comm.size + 1) // 2).all()


def test_arenas_grow() -> None:
    hocket.spawn(growing, 3)


def non_temporal_stores(comm: Communicator) -> None:
    """What is stored to others non-temporally is there when they are told so."""
    x, out = comm.empty(300_007, np.int32), comm.empty(300_007, np.int32)
    for turn in range(20):
        x[:] = np.arange(len(x)) + turn * (comm.rank + 1)
        comm.all_reduce(x, out)
        assert (out == comm.size * np.arange(len(x)) + turn * comm.size * (comm.size + 1) // 2).all()
        out[:] = -1


@pytest.mark.parametrize("threads", [1, 2])
def test_non_temporal_stores(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE_BYTES", "0")
    hocket.spawn(non_temporal_stores, 2, threads=threads)


def gives_huge_pages(count: int) -> bool:
    """Whether the kernel makes so many huge pages of small ones of shared memory, asked by a way of our own."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    try:
        descriptor = os.memfd_create("probe")
    except OSError:
        return False
    for number in range(count):
        os.pwrite(descriptor, b"1", (number + 1) * HUGE - 1)
    length, aligned = ctypes.c_size_t(count * HUGE), ctypes.c_void_p(1 << 40)  # nobody has anything there
    at = libc.mmap(aligned, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    given = at == aligned.value and libc.madvise(aligned, length, MADV_COLLAPSE) == 0
    libc.munmap(ctypes.c_void_p(at), length)
    os.close(descriptor)
    return given


def in_huge_pages(comm: Communicator) -> None:
    """Both what a rank has and what it borrows. On two ranks."""

    def mapped() -> int:
        text = Path("/proc/self/smaps").read_text(encoding="utf-8")
        return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("ShmemPmdMapped"))

    x = comm.empty(4 * HUGE, np.uint8)
    assert address(x) % HUGE == 0
    x[:] = comm.rank
    assert mapped() == 4 * HUGE
    comm.all_reduce(x)
    assert mapped() == 6 * HUGE  # its half of the other array
    assert (x == comm.size * (comm.size - 1) // 2).all()


def test_huge_pages() -> None:
    if not gives_huge_pages(16):
        pytest.skip("the kernel gives no huge pages of shared memory")
    hocket.spawn(in_huge_pages, 2)


def nothing_mapped(comm: Communicator) -> None:
    """Nothing of another's arena is mapped before it is needed."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:hocket")

    before = mapped()
    x = comm.empty(30_000)
    assert mapped() <= before + 1
    comm.all_reduce(np.ones(30_000))
    after = mapped()
    comm.all_reduce(x)
    assert mapped() > after


def test_arenas_are_mapped_when_needed() -> None:
    hocket.spawn(nothing_mapped, 3)


def killed_inside(comm: Communicator, done: Path, message: bool) -> None:
    """Rank 1 agrees on a call, does nothing of it, and is killed: others wait for a message of it, or at the end."""
    schedule = (ring if message else direct).all_reduce(comm.size).compile(storage="peer")
    assert two_rounds(schedule) != message
    x = comm.empty(30_000, np.float32)
    x[:] = 1
    comm.run(schedule, x)
    if comm.rank == 1:
        empty = hocket.Custom(comm.size, inputs=1, outputs=1, post=lambda rank, index: None, inplace=True)
        with hocket.Program(empty, name="idle") as program:
            pass
        member, real = comm._endpoint.alive(), lower(schedule, comm.rank)
        plan = member.plan(lower(program.compile(), comm.rank).words, real.digest, real.name)
        loaded = LoadedPlan(real, plan, plan)
        idle = comm._endpoint.prepare(loaded, real.layout.bind(operands_of(x, None)), "sum")
        assert idle(x) is x
        assert idle.variant == 1
        os.kill(os.getpid(), signal.SIGKILL)
    where = address(x)
    with pytest.raises(PeerFailed, match="rank 1 has ended") as error:
        comm.run(schedule, x)
    assert error.value.step is not None
    del x, error
    gc.collect()
    assert address(arena.empty(30_000, np.float32)) != where, "rank 1 may still have been writing there"
    done.touch()


@pytest.mark.parametrize("message", [False, True])
def test_a_rank_that_dies_inside_a_call(message: bool, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 1 was ended by SIGKILL"):
        hocket.spawn(killed_inside, 3 if message else 2, (tmp_path / "done", message))
    assert (tmp_path / "done").exists()


def given_up(comm: Communicator) -> str:
    """Rank 0 calls, and rank 1 gives up instead."""
    other, x = comm.dup(), comm.empty(30_000)
    x[:] = 1
    comm.all_reduce(x)
    other.barrier()  # an abort would end the call that rank 0 may still be in
    if comm.rank == 1:
        comm.abort("had enough")
        return ""
    with pytest.raises(PeerFailed) as error:
        comm.all_reduce(x)
    return error.value.reason


def test_abort() -> None:
    assert hocket.spawn(given_up, 2) == ["had enough", ""]


def late(comm: Communicator) -> None:
    """Rank 1 never comes: rank 0 gives up after the timeout."""
    with hocket.init(timeout=0.3) as other:
        x = other.empty(30_000)
        x[:] = 1
        other.all_reduce(x)
        if comm.rank == 0:
            with pytest.raises(hocket.errors.CallTimeout):
                other.all_reduce(x)
        comm.barrier()


def test_a_rank_that_never_comes() -> None:
    hocket.spawn(late, 2)
