"""Calls that have been made before (native/python/call_cache.cpp): they skip the slow path, and only they."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator, HocketError
from hocket.errors import (
    CallMismatch,
    CallTimeout,
    CommunicatorDead,
    InvalidArgument,
    PeerFailed,
    PeerRefused,
    WrongType,
)
from hocket.runtime.execution import Endpoint
from hocket.tuning import NAMED

Array = NDArray[np.generic]


@contextmanager
def slow_path() -> Iterator[mock.Mock]:
    """Counts the calls that take the slow path."""
    with mock.patch.object(Endpoint, "prepare", autospec=True, side_effect=Endpoint.prepare) as prepare:
        yield prepare


def forms(comm: Communicator) -> None:
    """Every collective, in every form whose arrays native code can find or make: short from the second call on."""
    p, r = comm.size, comm.rank
    whole, block = np.arange(6.0 * p).reshape(3 * p, 2), np.zeros((3, 2))
    own = whole[3 * r : 3 * r + 3]
    cases: list[Callable[[], object]] = [
        lambda: comm.all_reduce(whole),
        lambda: comm.all_reduce(whole, whole[:]),
        lambda: comm.all_reduce(whole, np.empty_like(whole)),
        lambda: comm.all_reduce(whole, op="max"),
        lambda: comm.all_reduce(whole, op="avg"),
        lambda: comm.all_reduce(whole, reproducible="rank-order"),
        lambda: comm.all_gather(own),
        lambda: comm.all_gather(own, whole),
        lambda: comm.all_gather(block, whole),
        lambda: comm.reduce_scatter(whole, own),
        lambda: comm.all_to_all(whole),
        lambda: comm.all_to_all(whole, np.empty_like(whole)),
        lambda: comm.broadcast(whole),
        lambda: comm.broadcast(whole if r == 1 else None, np.empty_like(whole), root=1),
        lambda: comm.reduce(whole, np.empty_like(whole) if r == 0 else None),
        lambda: comm.gather(block),
        lambda: comm.gather(own, whole, root=1),
        lambda: comm.scatter(whole),
        lambda: comm.scatter(whole, block, root=1),
    ]
    for number, case in enumerate(cases):
        start = np.arange(whole.size).reshape(whole.shape) % 7 + r
        results = []
        for again in range(3):
            whole[:], block[:] = start, r
            with slow_path() as run:
                found = case()
            assert run.call_count == (again == 0), (number, again, r)
            results.append((type(found), getattr(found, "shape", None), np.array(found).tolist(), whole.tolist()))
        assert results[0] == results[1] == results[2], (number, r)


def test_every_form() -> None:
    hocket.spawn(forms, 3)


def wrong_after_right(comm: Communicator) -> None:
    """A call that differs from a known one in anything that matters takes the slow path, to the same errors."""
    x, out = np.ones(12), np.zeros(12)
    for _ in range(2):
        comm.all_reduce(x, out)
        comm.reduce_scatter(np.ones((2, 3)))
    frozen = np.zeros(12)
    frozen.flags.writeable = False
    names = np.empty(12, object)
    bad: list[tuple[type[HocketError], Callable[[], object]]] = [
        (InvalidArgument, lambda: comm.all_reduce(x, frozen)),
        (InvalidArgument, lambda: comm.all_reduce(x[::2], out[:6])),
        (InvalidArgument, lambda: comm.all_reduce(x, out[:6])),
        (InvalidArgument, lambda: comm.all_reduce(x[:6], x[3:9])),
        (InvalidArgument, lambda: comm.all_reduce(x, out, op="xor")),
        (InvalidArgument, lambda: comm.reduce_scatter(np.ones((3, 2)))),
        (WrongType, lambda: comm.all_reduce(names, names)),
        (WrongType, lambda: comm.all_reduce(x, np.zeros(12, np.float32))),
        (WrongType, lambda: comm.all_reduce(x.astype(">f8"), out.astype(">f8"))),
        (WrongType, lambda: comm.all_reduce(list(x), out)),  # type: ignore[type-var]
        (WrongType, lambda: comm.all_reduce(np.ma.array(x), out)),
    ]
    for turn, (kind, call) in enumerate(bad):
        with pytest.raises(kind if comm.rank == turn % comm.size else PeerRefused):
            call() if comm.rank == turn % comm.size else comm.all_reduce(x, out)
        found = comm.all_reduce(np.full(12, comm.rank + 1.0), out)
        assert found is out
        assert (out == comm.size * (comm.size + 1) / 2).all(), turn


def test_wrong_calls_after_right_ones() -> None:
    hocket.spawn(wrong_after_right, 2)


def in_order(comm: Communicator) -> None:
    """A known call waits for those in the background."""
    x, y = np.ones(4), np.ones(1 << 18)
    comm.all_reduce(x)
    for turn in range(20):
        x[:], y[:] = turn, comm.rank
        handles = [comm.all_reduce(y, async_=True) for _ in range(3)]
        comm.all_reduce(x)
        assert (x == turn * comm.size).all()
        assert all(handle.done() for handle in handles)


def test_calls_have_one_order() -> None:
    hocket.spawn(in_order, 2)


def more_than_the_table_holds(comm: Communicator) -> None:
    for turn in range(3):
        for n in range(1, 200):
            x = np.full(n, turn + n)
            assert comm.all_reduce(x) is x
            assert (x == comm.size * (turn + n)).all()
    type_of_one_call = np.dtype([("one", "i4"), ("other", "i4")])
    before = sys.getrefcount(type_of_one_call)
    for _ in range(2):
        comm.broadcast(np.zeros(3, type_of_one_call))
    assert sys.getrefcount(type_of_one_call) > before, "the table owns what it compares with"
    for n in range(1, 2000):
        comm.broadcast(np.zeros(n, np.int8))
    assert sys.getrefcount(type_of_one_call) == before, "and forgets"


def test_the_table_is_bounded() -> None:
    hocket.spawn(more_than_the_table_holds, 2)


def roots(comm: Communicator) -> None:
    """An option that can change is no word of a call that is known: it may have another value next time."""
    x, root, often = np.zeros(3), np.array(0), np.int64(1)
    for turn in range(6):
        root[...] = turn % comm.size
        x[:] = 10 * comm.rank + turn
        assert comm.broadcast(x, root=cast("int", root))[0] == 10 * (turn % comm.size) + turn
        with slow_path() as run:
            comm.broadcast(x, root=cast("int", often))
        assert run.call_count == (turn == 0), "that of NumPy cannot change"


def test_a_root_that_changes() -> None:
    hocket.spawn(roots, 2)


UNLIKE = [
    ("datetime64[ns]", "timedelta64[ns]"),
    ("datetime64[ns]", "datetime64[s]"),
    ("S8", "U2"),
    ("V8", "S8"),
    (">f8", ">i8"),
    ([("a", "i4"), ("b", "i4")], [("a", "i4"), ("c", "i4")]),
    ([("a", "i4"), ("b", "i4")], "V8"),
]


def opaque(comm: Communicator) -> list[str]:
    """Types that kernels do not know, of which each fits into the other's place."""
    texts = []
    for one, other in UNLIKE:
        mine = np.dtype(one if comm.rank == 0 else other)
        alike, x = np.zeros(3, one), np.zeros(3, mine)
        alike.view("u1")[:] = 65 + comm.rank
        for _ in range(3):  # it may be known by then
            comm.broadcast(alike)
            with pytest.raises(CallMismatch) as caught:
                comm.broadcast(x)
            assert caught.value.differs == ("type",)
            assert not x.view("u1").any()
        texts.append(str(caught.value))
        with pytest.raises(WrongType, match=r"x is of .*, out of"):
            comm.all_gather(np.zeros(3, one), np.zeros(6, other))
        with pytest.raises(CallMismatch):
            comm.all_gather(x, counts=[3, 3])
        assert (comm.all_gather(alike, counts=[3, 3]).view("u1") == 65).all()
    return texts


def test_types_of_one_size_are_not_taken_for_each_other() -> None:
    first, second = hocket.spawn(opaque, 2)
    assert first == second
    for text, (one, other) in zip(first, UNLIKE, strict=True):
        assert f"({3} x {np.dtype(one)} a unit" in text
        assert f"({3} x {np.dtype(other)} a unit" in text


def leaves(comm: Communicator) -> str:
    x = np.ones(4)
    for _ in range(3):
        comm.all_reduce(x)
    if comm.rank == 0:
        comm.close()
        with pytest.raises(CommunicatorDead, match="closed"):
            comm.all_reduce(x)
        return ""
    with pytest.raises(PeerFailed, match="rank 0 closed its communicator"):
        comm.all_reduce(x)
    with pytest.raises(CommunicatorDead, match="rank 0 closed its communicator"):
        comm.all_reduce(x)
    return "told"


def test_a_peer_that_leaves() -> None:
    assert hocket.spawn(leaves, 2) == ["", "told"]


def test_a_communicator_that_is_dropped_is_collected() -> None:
    comm = hocket.init()
    comm.all_reduce(np.ones(4))
    comm.all_reduce(np.ones(4))
    found = weakref.ref(comm)
    del comm
    gc.collect()
    assert found() is None


def waits(comm: Communicator) -> None:
    """Rank 0 is late for a known call: the other threads of rank 1 run, and so do its signal handlers."""
    x = np.ones(4)
    comm.all_reduce(x)
    here, over = comm.split(comm.rank), comm.dup()
    assert here is not None
    if comm.rank == 0:
        over.barrier()  # rank 1 waits by now, or will; its thread says so
        comm.all_reduce(x)
        over.barrier()
        return
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(True))
    lock = threading.Lock()
    lock.acquire()

    def other() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        while not caught:
            pass  # runs, and lets the main thread run its handlers
        over.barrier()
        lock.release()

    thread = threading.Thread(target=other)
    thread.start()
    comm.all_reduce(x)
    assert lock.acquire(timeout=60)
    over.barrier()
    thread.join()


def test_a_known_call_that_waits_holds_nobody_up() -> None:
    hocket.spawn(waits, 2)


class Stop(Exception):
    pass


def interrupted(comm: Communicator) -> None:
    x = np.ones(4)
    comm.all_reduce(x)
    other = comm.dup()
    if comm.rank == 0:
        with pytest.raises(PeerFailed, match=r"closed|interrupted"):
            other.barrier()
        with pytest.raises(PeerFailed, match="was interrupted"):
            comm.all_reduce(x)
        return

    def stop(*_: object) -> None:
        raise Stop

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(Stop):
        comm.all_reduce(x)
    other.close()


def test_a_signal_ends_a_known_call() -> None:
    hocket.spawn(interrupted, 2)


def test_timeout_names_the_rank() -> None:
    def late(comm: Communicator) -> None:
        with hocket.init(timeout=1) as mine:
            x = np.ones(4)
            mine.all_reduce(x)
            comm.barrier()
            if mine.rank == 1:
                with pytest.raises(CallTimeout, match="rank 0"):
                    mine.all_reduce(x)
                assert mine.rank == 1
            comm.barrier()

    hocket.spawn(late, 2)


class Counting(Communicator):
    """With a method of its own, which a short way must not miss."""

    def all_reduce(self, *arguments: Any, **options: Any) -> Any:
        self.counted = getattr(self, "counted", 0) + 1
        return super().all_reduce(*arguments, **options)


def test_methods_are_as_in_python() -> None:
    """Calls with arrays alone do not pass through Python, and do the same (``_native.brief``)."""
    assert str(inspect.signature(Communicator.reduce)) == "(self, x, out=None, *, op='sum', root=0, async_=False)"
    assert Communicator.reduce.__name__ == "reduce"
    with hocket.init() as comm:
        assert str(inspect.signature(comm.scatter)) == "(x, out=None, *, root=0, counts=None, async_=False)"
        assert (inspect.getdoc(comm.broadcast) or "").startswith("Every rank gets ``x`` of the root.")
        x, out = np.ones(3), np.zeros(3)
        ways: list[Callable[[], object]] = [
            lambda: comm.all_reduce(x, out),
            lambda: comm.all_reduce(x, out=out),
            lambda: comm.all_reduce(out=out, x=x),
            lambda: comm.all_reduce(x, out, op="sum", reproducible=None, async_=False),
            lambda: Communicator.all_reduce(comm, x, out),
        ]
        for number, way in enumerate(ways):
            out[:] = 0
            with slow_path() as run:
                assert way() is out
            assert run.call_count == (number == 0), number
            assert out.tolist() == [1, 1, 1]
        with pytest.raises(TypeError, match=r"all_reduce\(\) missing 1 required positional argument: 'x'"):
            comm.all_reduce()  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"all_reduce\(\) takes from 2 to 3 positional arguments but 4 were given"):
            comm.all_reduce(x, out, "sum")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"all_reduce\(\) got multiple values for argument 'out'"):
            comm.all_reduce(x, out, out=out)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"all_reduce\(\) got an unexpected keyword argument 'root'"):
            comm.all_reduce(x, out, root=0)  # type: ignore[call-overload]
        with pytest.raises(AttributeError, match="'int' object has no attribute '_call'"):
            Communicator.all_reduce(1, x)  # type: ignore[call-overload]
        own = Counting(comm._endpoint)
        assert own.all_reduce(x).tolist() == [1, 1, 1]
        assert own.counted == 1


@pytest.mark.parametrize("name", NAMED)
def test_a_brief_call_has_the_defaults_of_the_method(name: str) -> None:
    """Both ways give ``_call`` the very same objects."""

    class Spy:
        given: tuple[object, ...] = ()
        caller = ""

        def _call(self, *arguments: object) -> None:
            self.given, self.caller = arguments, sys._getframe(1).f_code.co_name

    method, spy, x, out = getattr(Communicator, name), Spy(), np.ones(1), np.ones(1)
    for arrays in ({"x": x}, {"x": x, "out": out}):
        method(spy, **arrays)
        slow = spy.given
        assert spy.caller == name
        named = {"out": out} if "out" in arrays else {}
        for brief in (
            partial(method, spy, *arrays.values()),
            partial(method, spy, x, **named),
            partial(method, spy, x, **named, async_=False),
        ):
            brief()
            assert spy.caller == "test_a_brief_call_has_the_defaults_of_the_method"
            assert len(slow) == len(spy.given)
            assert all(one is other for one, other in zip(slow, spy.given, strict=True)), (slow, spy.given)
