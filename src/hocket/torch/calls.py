"""Collectives on tensors: what hocket calls their types and operators, calls that were prepared, work in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import cast

import torch
from torch import Tensor, distributed

from hocket import _native
from hocket.communicator import Buffer, Communicator, Handle, PreparedCall
from hocket.errors import HocketError, InvalidArgument, WrongType, describe, torch_late, torch_text
from hocket.runtime.operands import Argument

TYPES: dict[torch.dtype, str] = {getattr(torch, name): name for name in _native.TYPES}
OPERATORS = {
    distributed.ReduceOp.SUM: "sum",
    distributed.ReduceOp.PRODUCT: "prod",
    distributed.ReduceOp.MIN: "min",
    distributed.ReduceOp.MAX: "max",
    distributed.ReduceOp.AVG: "avg",
    distributed.ReduceOp.BAND: "band",
    distributed.ReduceOp.BOR: "bor",
    distributed.ReduceOp.BXOR: "bxor",
}

Counts = tuple[int, ...] | tuple[tuple[int, ...], tuple[int, ...]] | None
"""Elements of each rank; of all_to_all a pair, those to each and those from each."""

_Handle = Handle[Argument] | Handle[None]
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_MOST_CALLS = 1 << 14


def backend_error(collective: str, error: HocketError) -> Exception:
    """The error that callers of torch expect, with our text."""
    found: Exception = distributed.DistBackendError(torch_text(collective, error))
    return found


def _scaled(counts: Counts, bytes_each: int) -> Counts:
    if counts is None:
        return None
    scaled = (tuple(n * bytes_each for n in part) if isinstance(part, tuple) else part * bytes_each for part in counts)
    return cast("Counts", tuple(scaled))


def _memory(tensors: Sequence[Tensor], name: str) -> Buffer | tuple[Buffer, ...] | None:
    """Contiguous tensors as an argument of a prepared call."""
    buffers = tuple(Buffer(tensor.data_ptr(), tensor.nbytes, name) for tensor in tensors)
    return buffers[0] if len(buffers) == 1 else buffers or None


def _overlap(x: Tensor, out: Tensor) -> int | None:
    """Bytes from the beginning of the larger one to that of the other, where they overlap."""
    a, b = int(x.data_ptr()), int(out.data_ptr())
    if a >= b + out.nbytes or b >= a + x.nbytes:
        return None
    return a - b if out.nbytes >= x.nbytes else b - a


class Outputs:
    """Tensors that a call writes. Of those that do not lie in one piece, a copy is written, and copied back."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.dense = [tensor if tensor.is_contiguous() else tensor.detach().contiguous() for tensor in tensors]

    def finish(self) -> None:
        """Once the call has ended."""
        for tensor, dense in zip(self.tensors, self.dense, strict=True):
            if dense is not tensor:
                tensor.detach().copy_(dense)


class Work(distributed.Work):  # type: ignore[misc]
    """Calls in flight, which make progress without Python."""

    def __init__(self, collective: str, handles: Sequence[_Handle], outputs: Sequence[Outputs]) -> None:
        super().__init__()
        self._collective = collective
        self._handles = handles
        self._outputs = outputs
        self._result = [tensor for each in outputs for tensor in each.tensors]
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None and timeout.total_seconds() > 0 and self._handles:
            self._await(timeout.total_seconds())
        try:
            for handle in self._handles:
                handle.wait()
        except HocketError as error:
            raise backend_error(self._collective, error) from error
        self._finish()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(handle.done() for handle in self._handles):
            return False
        if self.exception() is None:
            self._finish()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What went wrong, of calls that have ended."""
        for handle in self._handles:
            if handle.done():
                try:
                    handle.wait()
                except HocketError as error:
                    return backend_error(self._collective, error)
        return None

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """It is completed by the thread for callbacks, or at once if the call has ended.

        C++ does not see the exception of a future, and would take it for tensors, but one that ``then`` has raised.
        """
        ended: torch.futures.Future[None] = torch.futures.Future()
        if self._handles:
            self._handles[-1].add_done_callback(lambda _: ended.set_result(None))
        else:
            ended.set_result(None)
        return ended.then(lambda _: self.result())

    def _await(self, seconds: float) -> None:
        over = threading.Event()
        self._handles[-1].add_done_callback(lambda _: over.set())
        if not over.wait(seconds):
            raise distributed.DistBackendError(torch_late(self._collective, seconds))

    def _finish(self) -> None:
        with self._lock:  # whoever comes second returns when all is copied
            for each in self._outputs:
                each.finish()
            self._outputs = ()


class All(distributed.Work):  # type: ignore[misc]
    """Several that torch's backends do."""

    def __init__(self, works: Sequence[distributed.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future[object]:
        return torch.futures.collect_all([work.get_future() for work in self._works])


class Calls:
    """The calls of one communicator. Threads that make calls are served one after the other."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.lock = threading.Lock()
        self.sums: dict[tuple[torch.dtype, int], PreparedCall] = {}
        """All_reduce with SUM, which takes the address of a contiguous tensor."""
        self._prepared: dict[object, PreparedCall] = {}

    def sum(self, call: PreparedCall, tensor: Tensor, later: bool) -> Work | None:
        """One of ``sums``, of a contiguous tensor."""
        try:
            with self.lock:
                if not later:
                    call(tensor.data_ptr())
                    return None
                handle = call.start(tensor.data_ptr(), None, tensor)
        except HocketError as error:
            raise backend_error("all_reduce", error) from error
        return Work("all_reduce", [handle], [Outputs([tensor])])

    def barrier(self, later: bool) -> Work | None:
        """As ``make``."""
        try:
            with self.lock:
                if not later:
                    self.comm.barrier()
                    return None
                handle = self.comm.barrier(async_=True)
        except HocketError as error:
            raise backend_error("barrier", error) from error
        return Work("barrier", [handle], [])

    def make(
        self,
        collective: str,
        pairs: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
        later: bool,
        *,
        op: str = "sum",
        root: int = 0,
        counts: Counts = None,
    ) -> Work | None:
        """Make calls, one for each x and out, with ``later`` in the background. Raises DistBackendError.

        Several tensors, as x or as out, stand for one. Calls of one argument work in out.
        """
        handles: list[_Handle] = []
        written = []
        try:
            with self.lock:
                for x, out in pairs:
                    outputs = Outputs(out)
                    sources = [tensor.contiguous() for tensor in x]
                    call, arguments = self._bind(collective, sources, outputs.dense, op, root, counts)
                    if later:
                        handles.append(call.start(*arguments, (sources, outputs.dense)))
                        written.append(outputs)
                    else:
                        call(*arguments)
                        outputs.finish()
        except HocketError as error:
            raise backend_error(collective, error) from error
        return Work(collective, handles, written) if later else None

    def _bind(
        self, collective: str, x: Sequence[Tensor], out: Sequence[Tensor], op: str, root: int, counts: Counts
    ) -> tuple[PreparedCall, tuple[Argument, Argument]]:
        """The prepared call, and its arguments, of contiguous tensors."""
        in_place = collective in _IN_PLACE
        if len(x) == len(out) == 1 and (ahead := _overlap(x[0], out[0])) is not None:
            own = 0 if collective == "all_to_all" else self.comm.rank * min(x[0].nbytes, out[0].nbytes)
            in_place = counts is None and ahead == own
            x = x if in_place else [x[0].clone()]
        given = x or out
        n = sum(tensor.numel() for tensor in given) * (self.comm.size if collective == "scatter" and not x else 1)
        name, itemsize = TYPES.get(given[0].dtype), given[0].itemsize
        if name is None:  # it is moved, whatever it is
            name, n, counts = "uint8", n * itemsize, _scaled(counts, itemsize)
        call = self._find(collective, n, name, op, root, counts, in_place)
        if collective == "all_reduce" and op == "sum":
            self.sums[given[0].dtype, n] = call
        source, target = _memory(x, name), _memory(out, name)
        return call, ((target, None) if collective in _IN_PLACE else (source, target))

    def _find(
        self, collective: str, n: int, name: str, op: str, root: int, counts: Counts, in_place: bool
    ) -> PreparedCall:
        """The prepared call, of an x of n elements. Where it makes no sense, no rank makes it, and all raise."""
        key = collective, n, name, op, root, counts, in_place
        call = self._prepared.get(key)
        if call is None:
            try:
                call = self.comm.prepare(collective, n, name, op=op, root=root, counts=counts, in_place=in_place)
            except (InvalidArgument, WrongType) as error:
                with suppress(HocketError):
                    self.comm.decline(f"it raised {describe(error)}")
                raise
            if len(self._prepared) >= _MOST_CALLS:
                self._prepared.clear()
                self.sums.clear()
            self._prepared[key] = call
        return call
