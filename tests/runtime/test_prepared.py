"""Prepared calls (``Communicator.prepare``): every collective, on arrays and addresses, now and in the background."""

from __future__ import annotations

import gc
import mmap
import resource
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Buffer, Communicator, HocketError, PreparedCall, wait_any
from hocket.algorithms import direct
from hocket.errors import (
    CallMismatch,
    CallTimeout,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    WrongType,
)
from hocket.tuning import NAMED
from tests.runtime.test_call_cache import slow_path

Array = NDArray[np.generic]


def buffer(array: Array, dtype: str | None = None) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, dtype or array.dtype.name)


def inputs(name: str, p: int, n: int) -> list[NDArray[np.float32]]:
    """``x`` of every rank."""
    rows = n * p if name in ("reduce_scatter", "all_to_all", "scatter") else n
    return [(np.arange(rows, dtype=np.float32) * 7 + 11 * q) % 23 for q in range(p)]


def expected(name: str, xs: list[NDArray[np.float32]], r: int, root: int) -> Array | None:
    """What rank ``r`` gets: NumPy's word for it."""
    p, n = len(xs), len(xs[0]) // len(xs)
    if (name in ("reduce", "gather") and r != root) or (name == "exscan" and r == 0):
        return None
    results: dict[str, Callable[[], Array]] = {
        "all_reduce": lambda: np.sum(xs, axis=0),
        "reduce": lambda: np.sum(xs, axis=0),
        "scan": lambda: np.sum(xs[: r + 1], axis=0),
        "exscan": lambda: np.sum(xs[:r], axis=0),
        "all_gather": lambda: np.concatenate(xs),
        "gather": lambda: np.concatenate(xs),
        "broadcast": lambda: xs[root],
        "scatter": lambda: xs[root][r * n : (r + 1) * n],
        "reduce_scatter": lambda: np.sum(xs, axis=0)[r * n : (r + 1) * n],
        "all_to_all": lambda: np.concatenate([x[r * n : (r + 1) * n] for x in xs]),
    }
    assert results.keys() == set(NAMED), p
    return results[name]()


def cases(
    comm: Communicator,
) -> Iterator[tuple[str, int, list[NDArray[np.float32]], NDArray[np.float32] | None, dict[str, Any]]]:
    """Every collective on blocks of n numbers: the inputs of all ranks, what this rank gets, and options."""
    for number, (name, n) in enumerate((name, n) for name in NAMED for n in (3, 6000)):
        root = number % comm.size
        xs = inputs(name, comm.size, n)
        options: dict[str, Any] = {"root": root} if name in ("broadcast", "reduce", "gather", "scatter") else {}
        yield name, n, xs, expected(name, xs, comm.rank, root), options


def every_collective(comm: Communicator) -> None:
    """On arrays and addresses, private and shared, with and without ``out``, now and in the background."""
    r = comm.rank
    for name, n, xs, result, options in cases(comm):
        call = comm.prepare(name, xs[r].shape, np.float32, **options)
        assert isinstance(call, PreparedCall)
        for allocate in (np.empty, comm.empty):
            x = allocate(xs[r].shape, np.float32)
            x[:] = xs[r]
            out = None if result is None else allocate(result.shape, np.float32)
            given = [(x, out), (x, None), (buffer(x), None if out is None else buffer(out))]
            given.append((x.ctypes.data, None if out is None else out.ctypes.data))
            for x_given, out_given in given * 2:
                for background in (False, True):
                    found = call.start(x_given, out_given).wait() if background else call(x_given, out=out_given)
                    assert out_given is None or found is out_given
                    seen = out if isinstance(found, Buffer | int) else found
                    if seen is None or result is None:
                        assert seen is result
                        continue
                    assert np.array_equal(seen, result), (name, n, r)  # type: ignore[arg-type]
                    seen[:] = -1  # type: ignore[index]
                found = getattr(comm, name)(x, out, **options)
                assert found is out
                assert result is None or np.array_equal(found, result), (name, n, r)
            assert np.array_equal(x, xs[r]), (name, "x was written")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective(ranks: int) -> None:
    hocket.spawn(every_collective, ranks)


def in_place(comm: Communicator) -> None:
    p, r = comm.size, comm.rank
    for name, n, xs, result, options in cases(comm):
        call = comm.prepare(name, xs[r].shape, "float32", in_place=True, **options)
        for allocate in (np.empty, comm.empty):
            whole = allocate(max(len(xs[r]), 0 if result is None else len(result)), np.float32)
            block = whole[r * n : (r + 1) * n] if len(whole) == n * p else whole
            x = whole if len(xs[r]) == len(whole) else block
            out = None if result is None else whole if len(result) == len(whole) else block
            given_each = [(x, out), (buffer(x), None if out is None else buffer(out))]
            if name in ("all_reduce", "all_to_all", "broadcast", "reduce", "scan", "exscan"):
                given_each.append((x, None))
            for given in given_each:
                x[:] = xs[r]
                call(*given)
                assert result is None or np.array_equal(out, result), (name, n, r)  # type: ignore[arg-type]
                x[:] = xs[r]
                call.start(*given).wait()
                assert result is None or np.array_equal(out, result), (name, n, r)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_in_place(ranks: int) -> None:
    hocket.spawn(in_place, ranks)


def parts(whole: Array, n: int, allocate: Callable[..., Any], gap: int) -> list[Array]:
    """The blocks of n elements of an array, or two parts of one, ``gap`` elements apart, some of them empty."""
    lengths = [0, n] * (len(whole) // n) if len(whole) > n else [1, n - 1]
    memory = allocate(len(whole) + gap * len(lengths), whole.dtype)
    ends = np.cumsum(np.add(lengths, gap))
    found = [memory[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    for part, values in zip(found, np.split(whole, np.cumsum(lengths)[:-1]), strict=True):
        part[:] = values
    return found


def lists(comm: Communicator) -> None:
    """What a call cuts or joins, as a list with a part of each rank: apart, and all but apart, in memory."""
    r = comm.rank
    for name, n, xs, result, options in cases(comm):
        call = comm.prepare(name, xs[r].shape, np.float32, **options)
        for allocate, gap in ((np.empty, 0), (np.empty, 1), (comm.empty, 0), (comm.empty, 1)):
            x = parts(xs[r], n, allocate, gap)
            out = None if result is None else parts(np.full_like(result, -1), n, allocate, gap)
            whole = np.concatenate(x)
            buffers = [buffer(part) for part in x], None if out is None else tuple(buffer(part) for part in out)
            for given in ((x, out), buffers, (whole, out), (x, None)):
                for background in (False, True):
                    found = call.start(*given).wait() if background else call(*given)
                    assert found is given[1] or given[1] is None
                    seen = found if isinstance(found, np.ndarray) else None if out is None else np.concatenate(out)
                    assert result is None or np.array_equal(seen, result), (name, n, r)  # type: ignore[arg-type]
                    for part in out or ():
                        part[:] = -1
            assert np.array_equal(np.concatenate(x), xs[r]), (name, "x was written")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("reach", ["never", "always"])
def test_lists(ranks: int, reach: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", reach)
    hocket.spawn(lists, ranks)


def overlapping_lists(comm: Communicator) -> None:
    """``x`` is a part of ``out``, or the other way round, and the parts have other lengths on each rank."""
    p, r = comm.size, comm.rank
    counts = tuple(range(1, p + 1))
    want = np.repeat(np.arange(p), counts)
    gather = comm.prepare("all_gather", r + 1, int, counts=counts)
    for gap in (0, 1):
        memory = np.full(len(want) + p, -1)
        ends = np.cumsum(np.add(counts, gap))
        out = [memory[end - count : end] for end, count in zip(ends, counts, strict=True)]
        out[r][:] = r
        assert gather(out[r], out) is out
        assert np.array_equal(np.concatenate(out), want)
        assert (memory == -1).sum() == p
    for n in (100, 60000):
        memory = np.arange(n + 1.0)
        comm.prepare("all_reduce", n, float)([memory[:50], memory[50:n]], memory[1:])
        assert np.array_equal(memory, np.append(0, p * np.arange(n)))


def test_lists_that_overlap() -> None:
    hocket.spawn(overlapping_lists, 3)


def named(comm: Communicator) -> None:
    """By name, without ml_dtypes: NumPy sees numbers, and a call their address."""
    assert "ml_dtypes" not in sys.modules
    words = np.array([0, 7, comm.rank, 5, -comm.rank], np.int32)[1:]  # C aligns a pair of ints as an int
    words[2], words[3] = (4, 1) if comm.rank == 0 else (3, 2)
    least = comm.prepare("all_reduce", 2, "int32_int32", op="minloc", in_place=True)
    for given in (Buffer(words.ctypes.data, 16, "int32_int32"), words.ctypes.data):
        least(given)
        assert words.tolist() == [7, 0, 3, 2]
    values = np.arange(8, dtype=np.float32) + comm.rank
    x, out = (values.view(np.uint32) >> 16).astype(np.uint16), np.zeros(8, np.uint16)
    for op, want in (("sum", 2 * np.arange(8) + 1), ("max", np.arange(8) + 1), ("avg", np.arange(8) + 0.5)):
        call = comm.prepare("all_reduce", 8, "bfloat16", op=op)
        for _ in range(2):
            there = buffer(out, "bfloat16")
            assert call(buffer(x, "bfloat16"), there) is there
            assert ((out.astype(np.uint32) << 16).view(np.float32) == want).all()
    with pytest.raises(WrongType if comm.rank == 0 else PeerRefused):
        call(buffer(x, "bfloat16"), None if comm.rank == 0 else buffer(out, "bfloat16"))


def test_types_by_name() -> None:
    hocket.spawn(named, 2)


def options(comm: Communicator) -> None:
    """Averages, contracts, types that kernels do not know, counts."""
    p, r = comm.size, comm.rank
    x = np.full((2, 3), float(r))
    assert (comm.prepare("all_reduce", (2, 3), float, op="avg")(x) == (p - 1) / 2).all()
    assert (comm.prepare("all_reduce", [2, 3], "f8", reproducible="rank-order")(x) == p * (p - 1) / 2).all()
    kind = np.dtype([("a", "i4"), ("b", "S3")])
    found = comm.prepare("broadcast", 4, kind, root=p - 1)(np.array([(r, b"abc")] * 4, kind))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [(p - 1, b"abc")] * 4
    counts = list(range(p))
    whole = np.repeat(np.arange(p), counts)
    gather = comm.prepare("all_gather", r, int, counts=counts)
    assert np.array_equal(gather(np.full(r, r)), whole)  # type: ignore[arg-type]
    beside = comm.prepare("all_gather", r, int, counts=counts, in_place=True)
    begin = sum(counts[:r])
    for _ in range(2):
        out = np.where((np.arange(len(whole)) >= begin) & (np.arange(len(whole)) < begin + r), r, -1)
        assert np.array_equal(beside(out[begin : begin + r], out), whole)  # type: ignore[arg-type]
    rows = [1] * p, [1] * p
    assert np.array_equal(comm.prepare("all_to_all", p, int, counts=rows)(np.arange(p) + 10 * r), np.arange(p) * 10 + r)  # type: ignore[arg-type]


def test_options() -> None:
    hocket.spawn(options, 3)


def kept(comm: Communicator) -> None:
    """What is given to be kept stays until a call in the background has ended, whoever holds its handle."""
    memory, word = np.full(1 << 16, comm.rank + 1.0), np.zeros(1)
    call, alive = comm.prepare("all_reduce", memory.shape, float, in_place=True), weakref.ref(memory)
    if comm.rank == 0:
        comm.recv(word, 1)
    handle = call.start(memory.ctypes.data, keep=memory)
    del memory
    if comm.rank == 1:  # rank 0 has not begun
        assert alive() is not None
        comm.send(word, 0)
    handle.wait()
    assert alive() is None


def test_kept() -> None:
    hocket.spawn(kept, 2)


def refused(comm: Communicator) -> None:
    """Arguments that are not as was prepared: an error on every rank, nothing written, and the next call works."""
    x, out, p = np.ones(12), np.zeros(12), comm.size
    short, aside = Buffer(x.ctypes.data, 12, "float64"), Buffer(x.ctypes.data + 1, 96, "float64")
    other, unknown = Buffer(x.ctypes.data, 96, "int64"), Buffer(x.ctypes.data, 96, "float80")
    call, same = comm.prepare("all_reduce", 12, float), comm.prepare("all_reduce", 12, float, in_place=True)
    frozen = np.zeros(12)
    frozen.flags.writeable = False
    bad: list[tuple[type[HocketError], str, tuple[Any, ...], PreparedCall]] = [
        (InvalidArgument, r"x is of shape \(11,\), and was prepared to be of \(12,\)", (x[:11], out), call),
        (InvalidArgument, r"x is of shape \(3, 4\)", (x.reshape(3, 4), out), call),
        (InvalidArgument, r"out is of shape", (x, out[:6]), call),
        (InvalidArgument, "must be contiguous", (np.ones(24)[::2], out), call),
        (InvalidArgument, "prepared for x and out that lie apart", (x, x), call),
        (InvalidArgument, "prepared for x and out that lie apart", (buffer(x), buffer(x)), call),
        (InvalidArgument, "prepared for x and out that lie in place", (x, out), same),
        (InvalidArgument, "out, which is read-only", (x, frozen), call),
        (InvalidArgument, "x has 88 bytes, and was prepared to have 96", (buffer(x[:11]), out), call),
        (
            InvalidArgument,
            "x has 12 bytes, which are no whole number",
            (short, out),
            call,
        ),
        (InvalidArgument, "an address that is aligned", (aside, out), call),
        (InvalidArgument, "an address that is aligned", (Buffer(0, 96, "float64"), out), call),
        (InvalidArgument, "an address that is aligned", (x.ctypes.data + 1, out), call),
        (WrongType, "which is none of bool, int8", (unknown, out), call),
        (
            WrongType,
            "x is of int64, and was prepared to be of float64",
            (other, out),
            call,
        ),
        (WrongType, "out is of float32", (x, np.zeros(12, np.float32)), call),
        (WrongType, "x is of >f8", (x.astype(">f8"), out), call),
        (WrongType, r"x\[0\] must be a NumPy array, not float", ([1.0] * 12, out), call),
        (WrongType, r"x\[1\] must be a NumPy array, not list", ([x, [x]], out), call),
        (WrongType, r"x\[0\] is None", ([None], out), call),
        (WrongType, r"out\[1\] is of float32", (x, [out[:11], out[11:].astype("f4")]), call),
        (InvalidArgument, r"out\[0\], which is read-only", (x, (frozen,)), call),
        (InvalidArgument, r"x\[0\] must be contiguous", ([np.ones(24)[::2]], out), call),
        (InvalidArgument, "the parts of out have 88 bytes, and were prepared to have 96", (x, [out[1:]]), call),
        (InvalidArgument, "prepared to work in place: out is no list", (x, [out]), same),
        (WrongType, "x must be a NumPy array", (np.ma.array(x), out), call),
        (WrongType, "prepared for an x, which is None", (None, out), call),
    ]
    for turn, (kind, text, arguments, which) in enumerate(bad):
        for start in (False, True):
            mine = comm.rank == turn % p
            wrong = which.start if start else which
            with pytest.raises(kind if mine else PeerRefused, match=text):
                wrong(*arguments) if mine else call(x, out)
            assert (x == 1).all()
            assert not out.any()
    assert (call(x, out) == p).all()
    with pytest.raises(TypeError, match="PreparedCall"):
        call(x, out, out)
    with pytest.raises(TypeError, match="PreparedCall"):
        call(x, op="max")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="PreparedCall"):
        call(x, x=x)  # type: ignore[call-arg]


def test_arguments_that_are_not_as_was_prepared() -> None:
    hocket.spawn(refused, 2)


def unlike(comm: Communicator) -> None:
    """What ranks have prepared need not fit together: the call says so."""
    call = comm.prepare("all_reduce", 4 + comm.rank, float)
    with pytest.raises(CallMismatch, match="4 x float64"):
        call(np.ones(4 + comm.rank))
    sums = comm.prepare("all_reduce", 4, float, op="max" if comm.rank else "sum")
    with pytest.raises(CallMismatch) as caught:
        sums.start(np.ones(4)).wait()
    assert caught.value.differs == ("operator",)
    for scales in ((2, 0.5), (2, None)):
        scaled = comm.prepare("all_reduce", 4, float, scale=scales[comm.rank])
        with pytest.raises(CallMismatch, match=r"float64 a unit, sum times 2\.0\)") as caught:
            scaled(np.ones(4))
        assert caught.value.differs == ("operator",)
    assert comm.all_reduce(np.ones(1))[0] == 2


def test_what_does_not_fit_together() -> None:
    hocket.spawn(unlike, 2)


def test_what_cannot_be_prepared() -> None:
    with hocket.init() as comm:
        bad: list[tuple[type[HocketError], str, Callable[[], object]]] = [
            (InvalidArgument, "there is no collective 'sum'", lambda: comm.prepare("sum", 3, float)),
            (InvalidArgument, "op must be one of", lambda: comm.prepare("all_reduce", 3, float, op="xor")),
            (InvalidArgument, "root must be in", lambda: comm.prepare("reduce", 3, float, root=1)),
            (InvalidArgument, "shape must not be negative", lambda: comm.prepare("reduce", -1, float)),
            (WrongType, "dtype must be a NumPy type", lambda: comm.prepare("reduce", 3, "float80")),
            (WrongType, "references mean nothing", lambda: comm.prepare("broadcast", 3, object)),
            (WrongType, "complex64 has no max", lambda: comm.prepare("reduce", 3, "complex64", op="max")),
            (WrongType, "can be combined", lambda: comm.prepare("reduce", 3, "S3")),
            (InvalidArgument, "timeout must be a positive", lambda: comm.prepare("reduce", 3, float, timeout=0)),
            (InvalidArgument, "timeout must be a positive", lambda: comm.prepare("reduce", 3, float, timeout=True)),
            (InvalidArgument, "so there is no avg", lambda: comm.prepare("all_gather", 3, float, op="avg")),
            (InvalidArgument, "so there is no avg", lambda: comm.prepare("all_gather", 3, float, scale=2)),
            (InvalidArgument, "not 2 of 'max'", lambda: comm.prepare("reduce", 3, float, op="max", scale=2)),
            (InvalidArgument, "not '2' of 'sum'", lambda: comm.prepare("reduce", 3, float, scale="2")),  # type: ignore[arg-type]
            (WrongType, "int64 has no avg", lambda: comm.prepare("reduce", 3, "int64", scale=2)),
        ]
        for kind, text, call in bad:
            with pytest.raises(kind, match=text):
                call()


def late(comm: Communicator, background: bool) -> None:
    """The timeout of a prepared call, and of a barrier, is that of this call alone."""
    x = np.ones(3)

    def make(call: PreparedCall) -> None:
        call.start(x).wait() if background else call(x)

    def barrier(line: Communicator, timeout: float) -> None:
        line.barrier(async_=True, timeout=timeout).wait() if background else line.barrier(timeout=timeout)

    patient, bound, impatient = (hocket.init(timeout=seconds) for seconds in (60, 60, 0.2))
    if comm.rank == 1:
        time.sleep(0.6)
    make(impatient.prepare("all_reduce", 3, float, timeout=60))
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.6)
    barrier(impatient, 60)
    for line, call in (
        (patient, lambda: make(patient.prepare("all_reduce", 3, float, timeout=0.2))),
        (bound, lambda: barrier(bound, 0.2)),
        (impatient, lambda: make(impatient.prepare("all_reduce", 3, float))),
    ):
        if comm.rank == 0:
            with pytest.raises(CallTimeout, match="for rank 1 in vain"):
                call()
            comm.barrier()
        else:
            comm.barrier()
            with pytest.raises(PeerFailed, match="rank 1 was waited for in vain"):
                line.barrier()


@pytest.mark.parametrize("background", [False, True])
def test_timeout_of_a_call(background: bool) -> None:
    hocket.spawn(late, 2, (background,))


def refused_barriers(comm: Communicator) -> None:
    for background in (False, True):
        timeout = -1 if comm.rank == 0 else 60
        with pytest.raises(InvalidArgument if comm.rank == 0 else PeerRefused, match="timeout must be a positive"):
            comm.barrier(async_=True, timeout=timeout).wait() if background else comm.barrier(timeout=timeout)
    comm.barrier()


def test_a_barrier_with_a_wrong_timeout_is_refused_on_all_ranks() -> None:
    hocket.spawn(refused_barriers, 2)


def subclasses(comm: Communicator) -> None:
    """Arrays of other classes than NumPy's own, and types that are equal though not the same object."""
    own = type("Own", (np.ndarray,), {})
    x, out = np.ones((2, 2)).view(own), np.zeros((2, 2)).view(own)
    pairs = np.dtype([("a", "i4"), ("b", "i4")])
    call, move = comm.prepare("all_reduce", (2, 2), float), comm.prepare("broadcast", 3, pairs, in_place=True)
    for turn in range(3):
        assert call(x, out) is out
        assert (out == comm.size).all()
        assert comm.all_reduce(x, out) is out
        y = np.full(3, comm.rank + turn, "i8").view([("a", "i4"), ("b", "i4")])
        assert y.dtype is not pairs
        assert move(y)["a"].tolist() == [turn] * 3


def test_arrays_of_other_classes() -> None:
    hocket.spawn(subclasses, 2)


def mixed(comm: Communicator) -> None:
    """Prepared calls among others, some in the background, in one order."""
    x, y, out = np.ones(4), np.ones(1 << 18), np.empty(4)
    call, large = comm.prepare("all_reduce", 4, float), comm.prepare("all_reduce", 1 << 18, float, in_place=True)
    for turn in range(20):
        x[:], y[:] = turn, comm.rank
        handles = [large.start(y), comm.all_reduce(y, async_=True)]
        assert (call(x, out) == turn * comm.size).all()
        assert all(handle.done() for handle in handles)
        assert (y == comm.size * comm.size * (comm.size - 1) / 2).all()
        comm.barrier()
        assert comm.all_reduce(x) is x


def test_one_order() -> None:
    hocket.spawn(mixed, 2)


def after_the_end(comm: Communicator) -> None:
    x = np.ones(3)
    used, unused = (comm.prepare("all_reduce", 3, float, in_place=True) for _ in range(2))
    used(x)
    comm.barrier()
    comm.close()
    for call in (used, unused):
        for _ in range(2):
            with pytest.raises(CommunicatorDead, match="closed"):
                call(x)
            with pytest.raises(CommunicatorDead, match="closed"):
                call.start(x)
    with pytest.raises(CommunicatorDead, match="closed"):
        comm.prepare("all_reduce", 3, float)


def test_after_the_end() -> None:
    hocket.spawn(after_the_end, 2)


def test_what_was_prepared_keeps_nothing_of_a_communicator_that_was_closed() -> None:
    hocket.init().close()  # opens what the process keeps
    before = len(list(Path("/proc/self/fd").iterdir()))
    with hocket.init() as comm:
        calls = [comm.prepare("all_reduce", n, float, in_place=True) for n in (3, 6000)]
        for call, n in zip(calls, (3, 6000), strict=True):
            call(np.ones(n))
            call(comm.empty(n))
            call.start(np.ones(n)).wait()
        assert len(list(Path("/proc/self/fd").iterdir())) > before
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_was_prepared_goes_with_its_communicator() -> None:
    comm = hocket.init()
    call = comm.prepare("all_reduce", 3, float)
    call(np.ones(3))
    comm.all_reduce(np.ones(3))
    found = weakref.ref(comm), weakref.ref(call)
    del comm, call
    gc.collect()
    assert [one() for one in found] == [None, None]


def many_shapes(comm: Communicator) -> None:
    """Models have hundreds: all are found again, also in the background, and with counts that cannot change."""
    arrays = [np.empty(n) for n in range(1, 501)]
    counts = (2,) * comm.size
    for turn in range(3):
        with slow_path() as prepared:
            for x in arrays:
                x[:] = turn
                comm.all_reduce(x)
                assert x[-1] == turn * comm.size
                x[:] = turn
                assert comm.all_reduce(x, async_=True).wait() is x
                assert x[-1] == turn * comm.size
            comm.all_gather(arrays[1], counts=counts)
            comm.all_gather(arrays[1], counts=list(counts))
        assert prepared.call_count == (502 if turn == 0 else 1), "a list may change"


def test_hundreds_of_shapes() -> None:
    hocket.spawn(many_shapes, 2)


def several(comm: Communicator) -> None:
    """Handles of several communicators, of which each time another ends first."""
    lines = [comm.dup() for _ in range(3)]
    xs = [np.ones(3) for _ in lines]
    for turn in range(6):
        first = turn % len(lines)
        if comm.rank == 0:
            handles = [line.all_reduce(x, async_=True) for line, x in zip(lines, xs, strict=True)]
            comm.barrier()
            assert wait_any(handles) == first
            assert handles[first].done()
            comm.barrier()
            assert wait_any([handle for handle in handles if handle is not handles[first]]) in (0, 1)
            for handle in handles:
                handle.wait()
            assert wait_any(handles) == 0
        else:
            comm.barrier()
            lines[first].all_reduce(xs[first])
            comm.barrier()
            for number, line in enumerate(lines):
                if number != first:
                    line.all_reduce(xs[number])
    with pytest.raises(InvalidArgument, match="no handle"):
        wait_any([])


def test_waiting_for_any() -> None:
    hocket.spawn(several, 2)


def failing(comm: Communicator) -> None:
    """One that fails has ended, and says why when it is waited for itself."""
    handles = [comm.all_reduce(np.ones(3 + comm.rank), async_=True), comm.all_reduce(np.ones(3), async_=True)]
    assert wait_any(handles) == 0
    with pytest.raises(CallMismatch):
        handles[0].wait()
    assert wait_any(handles[1:]) == 0
    assert handles[1].wait()[0] == 2


def test_waiting_for_one_that_fails() -> None:
    hocket.spawn(failing, 2)


def without_out(comm: Communicator) -> None:
    """The messages of a schedule with storage="peer" would lie in a result that is allocated, and private."""
    schedule = direct.all_reduce(comm.size, inplace=False).compile(storage="peer")
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="must be memory that ranks share"):
            comm.run(schedule, comm.empty(300))
    out = comm.empty(300)
    x = comm.empty(300)
    x[:] = 1
    assert (comm.run(schedule, x, out) == comm.size).all()


@pytest.mark.parametrize("reach", ["never", "always"])
def test_messages_in_arrays_need_an_out(reach: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REACH", reach)
    hocket.spawn(without_out, 2)


def too_large(comm: Communicator, background: bool) -> None:
    """Rank 1 has no memory for the result that is to be allocated."""
    x = np.ones(1 << 25, np.uint8)
    comm.all_gather(x)
    comm.barrier(async_=True).wait()  # its thread is there now
    before = resource.getrlimit(resource.RLIMIT_AS)
    if comm.rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), before[1]))
    with pytest.raises(MemoryError if comm.rank == 1 else PeerRefused):
        comm.all_gather(x, async_=True).wait() if background else comm.all_gather(x)
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert (comm.all_gather(x) == 1).all()


@pytest.mark.parametrize("background", [False, True])
def test_no_memory_for_a_result_is_known_to_all(background: bool) -> None:
    hocket.spawn(too_large, 2, (background,))


def test_only_blocks_have_counts() -> None:
    with hocket.init() as comm, pytest.raises(InvalidArgument, match="all_reduce takes no counts"):
        comm.prepare("all_reduce", 2, float, counts=(2,))


def test_a_communicator_that_is_closed_while_arguments_are_checked() -> None:
    comm = hocket.init()

    class Closing(np.ndarray[Any, Any]):
        @property
        def flags(self) -> Any:
            comm.close()
            return np.ndarray.flags.__get__(self)  # type: ignore[attr-defined]

    call = comm.prepare("all_reduce", 3, float, in_place=True)
    with pytest.raises(CommunicatorDead):
        call(np.ones(3).view(Closing))


def test_structures_that_differ_in_their_alignment_alone() -> None:
    fields = [("a", "i4"), ("b", "i4")]
    schedule = direct.all_gather(1).compile()
    with hocket.init() as comm:
        for align in (False, True, False):
            x = np.zeros(3, np.dtype(fields, align=align))
            assert comm.run(schedule, x) is not None
