"""Collectives on tensors: what hocket calls their types and operators, calls that were prepared, work in flight."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Concatenate, Final, ParamSpec, cast

import torch
from torch import Tensor, distributed
from torch.autograd import profiler

from hocket import _native
from hocket.communicator import Buffer, Communicator, Handle, PreparedCall
from hocket.errors import HocketError, InvalidArgument, WrongType, describe, torch_late, torch_text
from hocket.runtime.operands import Argument

TYPES: dict[torch.dtype, str] = {getattr(torch, name): name for name in _native.TYPES if hasattr(torch, name)}

Operator = str | float
"""By its name, or a sum by what it is multiplied by."""
Counts = tuple[int, ...] | tuple[tuple[int, ...], tuple[int, ...]] | None
"""Elements of each rank; of all_to_all a pair, those to each and those from each."""

_P = ParamSpec("_P")
Copies = Sequence[tuple[Tensor, Tensor]]
"""Tensors that are written once their call has ended, and the copies of them that it writes."""

_Handle = Handle[Argument] | Handle[None]
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_AMBIGUOUS = (torch.int8, torch.uint8)
"""As which DLPack describes torch's integers of fewer bits, too."""
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


def _misaligned_bits(tensor: Tensor) -> int:
    """Low bits that the address of an element has clear where it is aligned; complex128 is to 8 bytes."""
    itemsize: int = tensor.itemsize
    return itemsize - 1 & 7


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one that does not lie in one piece, or where the processor would want no element.

    So of one whose elements are not what lies there, but its conjugates or negatives.
    """
    plain = not (tensor.is_conj() or tensor.is_neg())
    if plain and tensor.is_contiguous() and not tensor.data_ptr() & _misaligned_bits(tensor):
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _copy_back(copies: Copies) -> None:
    for tensor, copy in copies:
        tensor.detach().copy_(copy)


def _overlap(x: Tensor, out: Tensor) -> int | None:
    """Bytes from the beginning of the larger one to that of the other, where they overlap."""
    a, b = int(x.data_ptr()), int(out.data_ptr())
    if a >= b + out.nbytes or b >= a + x.nbytes:
        return None
    return a - b if out.nbytes >= x.nbytes else b - a


class Work(distributed.Work):  # type: ignore[misc]
    """Calls in flight, which make progress without Python."""

    def __init__(
        self, collective: str, handles: Sequence[_Handle], result: Sequence[Tensor], copies: Copies = ()
    ) -> None:
        super().__init__()
        self._collective = collective
        self._handles = handles
        self._result = list(result)
        self._copies = copies
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
                except MemoryError as error:
                    return error
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
            _copy_back(self._copies)
            self._copies = ()


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


NEW: Final = object()
"""There was no such call before."""


def _recorded(
    method: Callable[Concatenate[Calls, str, _P], Work | None],
) -> Callable[Concatenate[Calls, str, _P], Work | None]:
    """Have torch's profiler, while it is on, record what a method does, by the name of the collective."""

    @functools.wraps(method)
    def recorded(calls: Calls, collective: str, /, *args: _P.args, **options: _P.kwargs) -> Work | None:
        if not profiler._is_profiler_enabled:
            return method(calls, collective, *args, **options)
        with profiler.record_function(f"hocket:{collective}"):
            return method(calls, collective, *args, **options)

    return recorded


class Calls:
    """The calls of one communicator. Threads that make calls are served one after the other."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.lock = threading.Lock()
        self._timeout: float | None = None
        self._prepared: dict[object, PreparedCall] = {}
        self._cache = comm.cached(lambda *_: NEW, Tensor, self.lock)
        self.again = self._cache.call
        """As ``make``, for one call on tensors of types and lengths that it has seen before; NEW if it has not."""

    def limit(self, seconds: float) -> None:
        """The timeout of the calls from now on."""
        with self.lock:
            self._timeout = seconds
            self._prepared.clear()
            self._cache.forget()

    @_recorded
    def barrier(self, collective: str, later: bool, timeout: float | None) -> Work | None:
        """As ``make``. ``timeout``: in seconds; None: that of all calls."""
        timeout = timeout or self._timeout
        try:
            with self.lock:
                if not later:
                    self.comm.barrier(timeout=timeout)
                    return None
                handle = self.comm.barrier(async_=True, timeout=timeout)
        except HocketError as error:
            raise backend_error(collective, error) from error
        return Work(collective, [handle], [])

    @_recorded
    def make(
        self,
        collective: str,
        pairs: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
        later: bool,
        *,
        op: Operator = "sum",
        root: int = 0,
        counts: Counts = None,
    ) -> Work | None:
        """Make calls, one for each x and out, with ``later`` in the background. Raises DistBackendError.

        Several tensors, as x or as out, stand for one. Calls of one argument work in out.
        """
        handles: list[_Handle] = []
        copies: list[tuple[Tensor, Tensor]] = []
        try:
            with self.lock:
                for x, out in pairs:
                    sources, targets = [_dense(tensor) for tensor in x], [_dense(tensor) for tensor in out]
                    call, arguments, same = self._bind(collective, sources, targets, op, root, counts)
                    copied = [pair for pair in zip(out, targets, strict=True) if pair[0] is not pair[1]]
                    if later:
                        handles.append(call.start(*arguments, (sources, targets)))
                        copies += copied
                    else:
                        call(*arguments)
                        _copy_back(copied)
                    if same is not None:  # and they have passed the checks of the call
                        self._cache.learn((collective, *same, False, op, root, None, None), call)
        except HocketError as error:
            raise backend_error(collective, error) from error
        return Work(collective, handles, [tensor for _, out in pairs for tensor in out], copies) if later else None

    def _bind(
        self, collective: str, x: list[Tensor], out: Sequence[Tensor], op: Operator, root: int, counts: Counts
    ) -> tuple[PreparedCall, tuple[Argument, Argument], tuple[Tensor, Tensor | None] | None]:
        """The prepared call, and its arguments, of dense tensors: also as ``again`` takes them, where it can.

        In x is then what the call reads, which has to outlive it: a copy of one that out partly overlaps.
        """
        in_place, own = collective in _IN_PLACE, True
        if len(x) == len(out) == 1 and (ahead := _overlap(x[0], out[0])) is not None:
            block = 0 if collective == "all_to_all" else self.comm.rank * min(x[0].nbytes, out[0].nbytes)
            in_place = own = counts is None and ahead == block
            if not own:
                x[0] = x[0].clone()
        given = x or out
        n = sum(tensor.numel() for tensor in given) * (self.comm.size if collective == "scatter" and not x else 1)
        dtype, itemsize = given[0].dtype, given[0].itemsize
        name = TYPES.get(dtype)
        if name is None:  # it is moved, whatever it is
            name, n, counts = "uint8", n * itemsize, _scaled(counts, itemsize)
        call = self._find(collective, n, name, op, root, counts, in_place)
        source, target = _memory(x, name), _memory(out, name)
        known = dtype in TYPES and dtype not in _AMBIGUOUS
        if collective in _IN_PLACE:
            return call, (target, None), (out[0], None) if known and len(out) == 1 else None
        known = known and len(x) == len(out) == 1 and counts is None and own
        return call, (source, target), (x[0], out[0]) if known else None

    def _find(
        self, collective: str, n: int, name: str, op: Operator, root: int, counts: Counts, in_place: bool
    ) -> PreparedCall:
        """The prepared call, of an x of n elements. Where it makes no sense, no rank makes it, and all raise."""
        key = collective, n, name, op, root, counts, in_place
        call = self._prepared.get(key)
        if call is None:
            by, scale = (op, None) if isinstance(op, str) else ("sum", op)
            limit = self._timeout
            try:
                call = self.comm.prepare(
                    collective, n, name, op=by, root=root, counts=counts, in_place=in_place, timeout=limit, scale=scale
                )
            except (InvalidArgument, WrongType) as error:
                with suppress(HocketError):
                    self.comm.decline(f"it raised {describe(error)}")
                raise
            if len(self._prepared) >= _MOST_CALLS:
                self._prepared.clear()
            self._prepared[key] = call
        return call
