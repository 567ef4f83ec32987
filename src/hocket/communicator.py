"""Communicator: the ranks of a job, and the collectives they call. The facade of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument, caller
from hocket.ir.schedule import Schedule
from hocket.runtime import launch
from hocket.runtime.bootstrap import meet
from hocket.runtime.execution import Endpoint

Scalar = TypeVar("Scalar", bound=np.generic)
Result = TypeVar("Result")


class Communicator:
    """The processes that ``hocket.init()`` brought together. All make the same calls in the same order.

    A rank whose arguments are wrong, or that calls something else, makes every rank raise before anything is written,
    and the communicator goes on working. A rank that ends, raises or leaves while it is needed makes every other
    raise PeerFailed, and the communicator is dead.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._all_reduce: Schedule | None = None

    @property
    def rank(self) -> int:
        """This process, from 0."""
        return self._endpoint.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._endpoint.size

    def run(
        self,
        schedule: Schedule,
        x: NDArray[Scalar] | None,
        out: NDArray[Scalar] | None = None,
        *,
        op: str = "sum",
        tile: int | None = None,
    ) -> NDArray[Scalar] | None:
        """Run a schedule. Returns the result, or None on a rank that has no output.

        A collective has units of n elements: ``x`` has ``schedule.collective.input_blocks(rank) * n`` elements, ``out``
        ``output_blocks(rank) * n``; either is None where it has none. They are C-contiguous arrays of float32, float64,
        int32 or int64; ``op`` is "sum", "min" or "max". Without ``out`` an in-place schedule whose input and output are
        of one size works in ``x``; otherwise ``out`` is allocated, joined along axis 0. ``x`` is never written unless
        the result lies in it. ``tile``: bytes of a chunk that move at a time, a power of two from 64 on; None: chosen.

        Raises WrongType or InvalidArgument on a rank with wrong arguments and PeerRefused on the others, CallMismatch,
        UnevenSize, PeerFailed, CallTimeout, CommunicatorDead.
        """
        return cast("NDArray[Scalar] | None", self._endpoint.run(schedule, x, out, op, tile))

    def all_reduce(self, x: NDArray[Scalar], out: NDArray[Scalar] | None = None, *, op: str = "sum") -> NDArray[Scalar]:
        """Combine ``x`` of all ranks element by element; every rank gets the same bits. Works in ``x`` without ``out``.

        Errors are those of ``run``.
        """
        if self._all_reduce is None:
            from hocket.algorithms import ring

            self._all_reduce = ring.all_reduce(self.size).compile()
        return cast("NDArray[Scalar]", self._endpoint.run(self._all_reduce, x, out, op))

    def barrier(self) -> None:
        """Return once every rank has called it. Raises CallMismatch, PeerFailed, CallTimeout, CommunicatorDead."""
        self._endpoint.barrier()

    def abort(self, reason: str = "called abort()") -> None:
        """End the communicator now, on every rank; also from another thread while this one is in a call.

        ``reason`` is a verb phrase: the others raise ``PeerFailed: rank 2 called abort()``.
        """
        self._endpoint.abort(reason)

    def close(self) -> None:
        """Leave the communicator. Does not wait; closing twice is allowed."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"raised {kind.__name__}: {value}")

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}>"


def init(timeout: float = 1800.0) -> Communicator:
    """Meet the other ranks that ``hocket launch`` or ``hocket.spawn`` started; alone without a launcher.

    ``timeout`` is in seconds: how long nothing may move, here and in any call, before it counts as an error.
    Raises BootstrapFailed.
    """
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidArgument(f"timeout must be a positive number of seconds, not {timeout!r}", caller())
    return Communicator(Endpoint(meet(timeout), timeout))


def spawn(fn: Callable[..., Result], ranks: int = 4, args: Sequence[object] = ()) -> list[Result]:
    """Call ``fn(comm, *args)`` in ``ranks`` fresh processes and return what they return, in rank order.

    ``fn``, ``args`` and results travel by cloudpickle, so that a function of a notebook cell will do. When a rank
    raises, its exception is raised here, the remote traceback as its cause, and the other ranks are ended; RankFailed
    when a rank ends without a result.
    """
    if not isinstance(ranks, int) or ranks < 1:
        raise InvalidArgument(f"ranks must be a positive number, not {ranks!r}", caller())
    return launch.call(_in_rank, ranks, (fn, tuple(args)))


def _in_rank(fn: Callable[..., Result], args: tuple[object, ...]) -> Result:
    with init() as comm:
        return fn(comm, *args)
