"""The collectives of a communicator by name, on processes: every form of a call against NumPy, and wrong calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator, HocketError
from hocket.errors import CallMismatch, CommunicatorDead, InvalidArgument, PeerRefused, WrongType

Array = NDArray[np.float64]
ROOTLESS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "scan", "exscan")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
CUT = ("reduce_scatter", "all_to_all", "scatter")
SHAPES = [(), (0,), (1,), (3,), (1009,), (0, 3), (1, 3), (3, 3), (1009, 3), (3, 0)]
"""Of what a rank holds of its own: of ``x``, or of one block of it where the collective cuts ``x``."""


def given(name: str, rank: int, size: int, shape: tuple[int, ...]) -> Array:
    """The input of a rank: whole numbers, another at each place, so that sums are exact in any order."""
    if name in CUT:
        shape = (size * shape[0], *shape[1:])
    return (np.arange(np.prod(shape, dtype=int), dtype=np.float64) * 7 + rank * 10007 + 1).reshape(shape)


def wanted(name: str, xs: list[Array], rank: int, root: int) -> Array | None:
    """The result on a rank, straight from NumPy."""
    size = len(xs)
    match name:
        case "all_reduce" | "reduce":
            return np.asarray(np.sum(xs, axis=0)) if name == "all_reduce" or rank == root else None
        case "scan":
            return np.asarray(np.sum(xs[: rank + 1], axis=0))
        case "exscan":
            return np.asarray(np.sum(xs[:rank], axis=0)) if rank else None
        case "broadcast":
            return xs[root]
        case "all_gather" | "gather":
            joined = np.concatenate([np.atleast_1d(x) for x in xs])
            return joined if name == "all_gather" or rank == root else None
        case "reduce_scatter":
            return np.asarray(np.split(np.sum(xs, axis=0), size)[rank])
        case "scatter":
            return np.split(xs[root], size)[rank]
        case "all_to_all":
            return np.concatenate([np.split(x, size)[rank] for x in xs])
    raise AssertionError(name)


def cases(size: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    for name in ROOTLESS + ROOTED:
        for shape in SHAPES:
            if shape or name not in CUT:
                for root in range(size) if name in ROOTED else (0,):
                    yield name, shape, root


def same(found: Array | None, expected: Array | None, what: object) -> None:
    assert (found is None) == (expected is None), what
    if found is not None and expected is not None:
        assert found.shape == expected.shape, what
        assert (found == expected).all(), what


def family(comm: Communicator) -> int:
    """Every collective, shape and root; without ``out``, with ``out``, and in place."""
    size, rank = comm.size, comm.rank
    todo = list(cases(size))
    for name, shape, root in todo:
        xs = [given(name, r, size, shape) for r in range(size)]
        expected = wanted(name, xs, rank, root)
        call: Callable[..., Array | None] = getattr(comm, name)
        keywords = {"root": root} if name in ROOTED else {}
        what = (name, shape, root, rank)

        # Without out: in x where the result has its shape, allocated elsewhere.
        x = xs[rank].copy()
        found = call(x, **keywords)
        same(found, expected, what)
        if name in ("all_reduce", "all_to_all", "broadcast", "reduce", "scan", "exscan"):
            assert found is None or found is x, what
        else:
            assert found is not x, what
        if found is not x:
            same(x, xs[rank], ("x was written", what))

        # With out; x may be read-only. Off the root nothing more is given than needed, or as much as on the root.
        x.flags.writeable = True
        x[...] = xs[rank]
        x.flags.writeable = False
        out = None if expected is None else np.full_like(expected, -1)
        found = call(x, out, **keywords)
        assert found is out, what
        same(found, expected, what)
        if name in ("broadcast", "scatter") and out is not None:
            out[...] = -1
            found = call(x if rank == root else None, out, **keywords)
            assert found is out, what
            same(found, expected, what)
        if name in ("reduce", "gather"):
            spare = np.full_like(x if name == "reduce" else np.concatenate([np.atleast_1d(x)] * size), -1.0)
            found = call(x, spare, **keywords)
            same(found, expected, what)
            assert found is (spare if rank == root else None), what
            assert rank == root or (spare == -1).all(), what

        # In place: the same array, or one the own block of the other.
        if expected is None:
            call(x, **keywords)
        elif xs[rank].shape == expected.shape and (name not in ("all_gather", "gather") or shape):
            x = xs[rank].copy()
            assert call(x, x, **keywords) is x, what
            same(x, expected, what)
        elif name in CUT:
            whole = xs[rank].copy()
            own = whole[rank * shape[0] : (rank + 1) * shape[0]]
            assert call(whole, own, **keywords) is own, what
            same(own, expected, what)
        else:
            whole = np.full_like(expected, -1)
            rows = shape[0] if shape else 1
            own = whole[rank * rows : (rank + 1) * rows].reshape(shape)
            own[...] = xs[rank]
            assert call(own, whole, **keywords) is whole, what
            same(whole, expected, what)
    return len(todo)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_against_numpy(ranks: int) -> None:
    assert hocket.spawn(family, ranks) == [len(list(cases(ranks)))] * ranks


def operators(comm: Communicator) -> None:
    xs = [np.random.default_rng(r).integers(-100, 100, (comm.size * 2, 3)) for r in range(comm.size)]
    for op, ufunc in (("sum", np.add), ("min", np.minimum), ("max", np.maximum)):
        total = ufunc.reduce(xs)
        x = xs[comm.rank]
        np.testing.assert_array_equal(comm.all_reduce(x.copy(), op=op), total)
        np.testing.assert_array_equal(comm.reduce_scatter(x, op=op), np.split(total, comm.size)[comm.rank])
        np.testing.assert_array_equal(comm.scan(x.copy(), op=op), ufunc.reduce(xs[: comm.rank + 1]))
        before = comm.exscan(x.copy(), op=op)
        assert (before is None) == (comm.rank == 0)
        assert before is None or (before == ufunc.reduce(xs[: comm.rank])).all()
        found = comm.reduce(x.copy(), op=op, root=comm.size - 1)
        assert (found is None) == (comm.rank != comm.size - 1)
        assert found is None or (found == total).all()


def test_operators() -> None:
    hocket.spawn(operators, 3)


def back_to_back(comm: Communicator) -> None:
    """Different collectives, one after the other, without a barrier; the schedules are compiled once."""
    for turn in range(50):
        root = turn % comm.size
        x = np.full(comm.size * 5, float(comm.rank + turn))
        found = comm.scatter(comm.all_to_all(comm.broadcast(x, root=root)), root=np.int64(root))  # type: ignore[arg-type]
        assert (found == root + turn).all()
        joined = comm.gather(found, root=root)
        assert joined is None or (joined == root + turn).all()
        assert (comm.all_gather(comm.reduce_scatter(x)) == comm.size * (root + turn)).all()
    assert len(comm._endpoint._programs) == 3 + 3 * comm.size


def test_back_to_back() -> None:
    hocket.spawn(back_to_back, 3)


# ---------------------------------------------------------------------------------------------------------------
# Wrong calls: an error on every rank, nothing written, and the communicator goes on


def wrong(comm: Communicator) -> None:
    p = comm.size
    x, out, longer = np.ones((2 * p, 3)), np.zeros((2 * p, 3)), np.ones(3 * p)
    bad: list[tuple[type[HocketError], str, Callable[[], object]]] = [
        (InvalidArgument, f"does not make {p} blocks", lambda: comm.reduce_scatter(np.ones((p + 1, p)))),
        (InvalidArgument, f"does not make {p} blocks", lambda: comm.all_to_all(np.ones(2 * p + 1))),
        (InvalidArgument, f"does not make {p} blocks", lambda: comm.all_to_all(np.array(1.0))),
        (InvalidArgument, f"does not make {p} blocks", lambda: comm.scatter(np.ones(2 * p + 1), out)),
        (
            InvalidArgument,
            f"out of ({2 * p}, 3), not ({2 * p * p}, 3)",
            lambda: comm.all_reduce(x, np.zeros((2 * p * p, 3))),
        ),
        (InvalidArgument, f"out of ({2 * p}, 3), not (3, {2 * p})", lambda: comm.all_reduce(x, np.zeros((3, 2 * p)))),
        (InvalidArgument, f"out of ({2 * p * p}, 3), not", lambda: comm.all_gather(x, out)),
        (InvalidArgument, "out of (2, 3), not", lambda: comm.reduce_scatter(x, out)),
        (InvalidArgument, f"root must be in [0, {p}), not {p}", lambda: comm.broadcast(x, root=p)),
        (InvalidArgument, f"root must be in [0, {p}), not -1", lambda: comm.reduce(x, root=-1)),
        (InvalidArgument, f"root must be in [0, {p}), not 1.0", lambda: comm.gather(x, root=1.0)),  # type: ignore[arg-type]
        (InvalidArgument, f"root must be in [0, {p}), not None", lambda: comm.scatter(x, root=None)),  # type: ignore[arg-type]
        (InvalidArgument, f"root must be in [0, {p}), not [0]", lambda: comm.scatter(x, root=[0])),  # type: ignore[arg-type]
        (InvalidArgument, "op must be one of", lambda: comm.reduce(x, op="mean")),
        (InvalidArgument, "scan does not sum over all ranks, so there is no avg", lambda: comm.scan(x, op="avg")),
        (WrongType, "reproducible must be the name", lambda: comm.all_reduce(x, reproducible=[])),  # type: ignore[call-overload]
        (InvalidArgument, "overlap", lambda: comm.all_to_all(longer[: 2 * p], longer[p:])),
        (WrongType, "NumPy array, not list", lambda: comm.all_gather([1.0])),  # type: ignore[arg-type]
        (WrongType, "needs x", lambda: comm.all_to_all(None)),  # type: ignore[arg-type]
        (WrongType, "needs ", lambda: comm.broadcast(None)),
        (WrongType, "object", lambda: comm.all_gather(np.full(3, None))),
        (WrongType, "x is of float64, out of float32", lambda: comm.all_reduce(x, np.ones((2 * p, 3), np.float32))),
        (InvalidArgument, "contiguous", lambda: comm.all_to_all(np.ones((p, 4))[:, :2])),
    ]
    for number, (error, text, call) in enumerate(bad):
        one = number % p
        with pytest.raises(error if comm.rank == one else PeerRefused, match=re.escape(text)):
            # The others' call is right, and would write.
            call() if comm.rank == one else comm.all_reduce(x, out)
        assert (x == 1).all(), text
        assert not out.any(), text
    # Wrong on all: each is told its own mistake.
    with pytest.raises(InvalidArgument, match="root must be"):
        comm.broadcast(x, root=p)
    # Roots that differ are different calls.
    with pytest.raises(CallMismatch, match="differs in arguments"):
        comm.broadcast(x, out, root=1 if comm.rank == 0 else 0)
    # Off the root, where only the number of elements can be compared.
    with pytest.raises(CallMismatch, match="size"):
        comm.scatter(x, np.zeros((2 if comm.rank == 0 else 3, 3)))
    assert not out.any()
    assert (comm.all_reduce(x, out) == p).all()


def test_wrong_calls() -> None:
    hocket.spawn(wrong, 3)


def test_alone() -> None:
    with hocket.init() as comm:
        x = np.arange(6.0).reshape(2, 3)
        assert comm.exscan(x) is None
        for name in ROOTLESS[:-1] + ROOTED:
            found = getattr(comm, name)(x)
            np.testing.assert_array_equal(found, x)
            assert (found is x) == (name in ("all_reduce", "all_to_all", "broadcast", "reduce", "scan"))
        assert comm.all_gather(np.array(3.0)).shape == (1,)
    for name in ROOTLESS + ROOTED:
        with pytest.raises(CommunicatorDead, match="closed"):
            getattr(comm, name)(x)
    with pytest.raises(CommunicatorDead, match="closed"):
        comm.broadcast(x, root=5)
