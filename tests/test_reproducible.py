"""Contracts on bits, on the runtime: adversarial floats, summed by schedules that keep a contract, have its bits."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator
from hocket.algorithms.catalogue import CATALOGUE
from hocket.collectives import AllReduce
from hocket.errors import CallMismatch, InvalidArgument
from hocket.semantics import accumulator

Array = NDArray[np.generic]


def adversarial(size: int, n: int, dtype: str) -> list[Array]:
    """Values that cancel, so that the order of their sum shows; the same in every element of a rank's array."""
    values = (1000.0, -1000.0, 1 / 3, 700.7, 1 / 7, -700.6)[:size]
    return [np.full(n, value).astype(dtype) for value in values]


def in_rank_order(inputs: list[Array]) -> Array:
    total = inputs[0].astype(accumulator(inputs[0].dtype))
    for x in inputs[1:]:
        total = total + x.astype(total.dtype)
    return total.astype(inputs[0].dtype)


def sums(comm: Communicator) -> None:
    """All elements of a rank are equal, so where their sums are not, bits depend on where an element lies."""
    ring_differs = 0
    for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16):
        for n in (1, 17, 1000, 100_003, 1 << 19):  # the last one is spread over threads
            inputs = adversarial(comm.size, n, dtype)
            expected = in_rank_order(inputs)
            x = inputs[comm.rank]
            ordered = comm.all_reduce(x, np.empty_like(x), reproducible="rank-order")
            assert ordered.tobytes() == expected.tobytes(), (dtype, n)
            anywhere = comm.all_reduce(x, np.empty_like(x), reproducible="across-sizes")
            one = comm.all_reduce(x[:1], np.empty_like(x[:1]), reproducible="across-sizes")
            assert anywhere.tobytes() == np.repeat(one, n).tobytes(), (dtype, n)
            ring = comm.all_reduce(x, np.empty_like(x), reproducible="across-ranks")
            assert ring.tobytes() == comm.all_reduce(x, np.empty_like(x)).tobytes()
            everyone = comm.all_gather(ring)
            assert everyone.tobytes() == ring.tobytes() * comm.size
            ring_differs += len(np.unique(ring)) > 1
    assert ring_differs or comm.size < 3, "the inputs show nothing"


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (3, 4, 5))])
def test_named(ranks: int) -> None:
    hocket.spawn(sums, ranks, threads=2)


def library(comm: Communicator) -> int:
    """Every AllReduce of the catalogue: what it says it keeps shows in the bits, for several sizes and tiles."""
    tried = 0
    for algorithm in CATALOGUE:
        if algorithm.collective is not AllReduce:
            continue
        for parameters in algorithm.cases(comm.size)[:2]:
            for instances in (1, 2):
                schedule = algorithm.factory(**parameters).compile(instances=instances)
                run = partial(comm.run, schedule)
                for n in (1, 1000, 30_011):
                    inputs = adversarial(comm.size, n, "float32")
                    x = inputs[comm.rank]
                    total = run(x, np.empty_like(x), tile=1024)
                    assert total is not None
                    assert comm.all_gather(total).tobytes() == total.tobytes() * comm.size, algorithm.name
                    if algorithm.sums != "across-ranks":
                        one = run(x[:1].copy(), np.empty(1, np.float32))
                        assert one is not None
                        assert total.tobytes() == one.tobytes() * n, algorithm.name
                    if algorithm.sums == "rank-order":
                        assert total.tobytes() == in_rank_order(inputs).tobytes(), algorithm.name
                    tried += 1
    return tried


@pytest.mark.campaign
def test_library() -> None:
    found = hocket.spawn(library, 6)
    assert len(set(found)) == 1
    assert found[0] >= 60


def mistaken(comm: Communicator) -> float:
    x = np.ones(4)
    with pytest.raises(InvalidArgument, match="there is no contract 'always'"):
        comm.all_reduce(x, reproducible="always")  # type: ignore[call-overload]
    with pytest.raises(CallMismatch):
        comm.all_reduce(x, reproducible="across-sizes" if comm.rank else None)
    return float(comm.all_reduce(x)[0])


def test_mistakes() -> None:
    assert hocket.spawn(mistaken, 2) == [2, 2]
