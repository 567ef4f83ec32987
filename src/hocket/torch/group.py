"""A process group of torch, with the backends that it has anyway, whose collectives of CPU tensors hocket does."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch import Tensor, distributed
from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame
from torch.autograd import profiler

from hocket import _native
from hocket.communicator import Handle, init
from hocket.errors import CannotShare, HocketError, NotAccelerated, torch_text
from hocket.torch.calls import NEW, TYPES, All, Calls, Operator, Work, backend_error
from hocket.torch.options import PLAIN_SUM, Options, is_plain_sum, operator_of, options

_CPU = torch.device("cpu")
_POINT_TO_POINT = "messages between two ranks are for the backend of torch"
_FALLS_BACK: Final = object()


class Group(distributed.ProcessGroup):  # type: ignore[misc]
    """Ranks that meet twice: the backends of torch connect, and then hocket, on one machine or over MPI.

    What falls back calls the backend of the device: torch's own methods would hold the GIL, which its threads need.
    It depends on nothing but what torch wants to be equal on all ranks, as a rank that falls back alone would hang.
    Methods are those that torch.distributed and C++ call; without ``opts.asyncOp`` they return None once all is done.
    """

    def __init__(self, store: distributed.Store, rank: int, size: int) -> None:
        super().__init__(rank, size)  # the form with a store makes a group that C++ does not call
        self._store = store
        self._calls: Calls | None = None
        self._declined = "its ranks have not met"
        self._told: set[tuple[str, str]] = set()
        self.met = False

    def get_group_store(self) -> distributed.Store:
        return self._store

    def meet(self, timeout: float, tells: bool) -> None:
        """Have the ranks meet, in seconds. ``tells``: rank 0 says what falls back. Raises DistBackendError."""
        try:
            comm = init(timeout, rank=self.rank(), size=self.size(), store=self._store)
        except CannotShare as error:  # all ranks say the same
            self._declined = error.reason
        except HocketError as error:
            raise backend_error("init", error) from error
        else:
            weakref.finalize(self, comm.close)
            self._calls = Calls(comm)
        self.met = True
        if tells and self.rank() == 0:
            _say(self._welcome())

    def _welcome(self) -> str:
        if self._calls is None:
            return f"hocket does nothing here: {self._declined}"
        others, nodes = self._accelerators(), len(self._calls.comm.nodes)
        where = f"{self.size()} ranks" if nodes == 1 else f"{self.size()} ranks of {nodes} nodes, over MPI"
        elsewhere = f", tensors on {' and '.join(device.type for device in others)}" if others else ""
        return (
            f"collectives of CPU tensors are done by hocket on {where}; send and recv{elsewhere}, and what hocket does "
            f"not know go to torch's backends (HOCKET_LOG=info says when and why)"
        )

    def _accelerators(self) -> list[torch.device]:
        return [device for device in self._device_types if device.type != "cpu" and torch.accelerator.is_available()]

    def shutdown(self) -> None:
        if self._calls is not None:
            self._calls.comm.close(drain=True)
        super().shutdown()

    def abort(self) -> None:
        if self._calls is not None:
            self._calls.comm.abort()
        super().abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self.limit(timeout)
        super().set_timeout(timeout)

    def limit(self, timeout: timedelta) -> None:
        """Of what hocket does from now on."""
        if self._calls is not None:
            self._calls.limit(timeout.total_seconds())

    def calls_for(
        self, collective: str, tensors: Sequence[Tensor], op: object = None, *, several: bool = False
    ) -> Calls | None:
        """Where hocket makes a call; None if it falls back. Raises DistBackendError where it must not.

        ``several``: tensors stand where one belongs.
        """
        why = self._declined if self._calls is None else _obstacle(tensors, op)
        if why is None and several:
            why = "it is called with several tensors for one"
        if why is None:
            return self._calls
        self._fall_back(collective, why)
        return None

    def _fall_back(self, collective: str, why: str) -> None:
        if os.environ.get("HOCKET_STRICT") == "1":
            error = NotAccelerated(collective, why)
            raise distributed.DistBackendError(torch_text(collective, error)) from error
        if os.environ.get("HOCKET_LOG") == "info" and (collective, why) not in self._told:
            self._told.add((collective, why))
            _say(f"rank {self.rank()}: {collective} goes to torch's backend: {why}")

    def _underneath(self, tensors: Sequence[Tensor]) -> Any:
        return self._get_backend(tensors[0].device if tensors else torch.device("cpu"))

    def _one(
        self,
        collective: str,
        x: Tensor | None,
        out: Sequence[Tensor],
        later: bool,
        op: Any = None,
        operator: Operator = "sum",
        root: int = 0,
    ) -> object:
        """A call from one tensor to one other, or in the memory of one. _FALLS_BACK if it is not for hocket."""
        calls = self._calls
        if calls is not None and len(out) == 1 and not profiler._is_profiler_enabled:
            first, second = (out[0], None) if x is None else (x, out[0])
            try:
                done = calls.again(collective, first, second, later, operator, root, None, None)
            except HocketError as error:
                raise backend_error(collective, error) from error
            if done is not NEW:
                return Work(collective, [cast("Handle[None]", done)], [out[0]]) if later else None
        given = [] if x is None else [x]
        if calls := self.calls_for(collective, [*given, *out], op, several=len(out) != 1):
            return calls.make(collective, [(given, out)], later, op=operator, root=root)
        return _FALLS_BACK

    # The collectives

    def allreduce(
        self, tensors: Sequence[Tensor] | Tensor, opts: Options = None, timeout: object = None, op: object = None
    ) -> object:
        if is_plain_sum(opts):
            done = self._one("all_reduce", None, tensors, False, PLAIN_SUM)
        else:
            tensors, opts = _listed(tensors), options(c10d.AllreduceOptions, opts, timeout, reduceOp=op)
            op = opts.reduceOp
            done = self._one("all_reduce", None, tensors, opts.asyncOp, op, operator_of(op))
        return self._underneath(tensors).allreduce(tensors, opts) if done is _FALLS_BACK else done

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Options = None) -> object:
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        if calls := self.calls_for("all_reduce", tensors, opts.reduceOp):
            pairs = [((), [tensor]) for tensor in tensors]
            return calls.make("all_reduce", pairs, opts.asyncOp, op=operator_of(opts.reduceOp))
        return self._underneath(tensors).allreduce_coalesced(tensors, opts)

    def broadcast(
        self, tensors: Sequence[Tensor] | Tensor, opts: Options = None, timeout: object = None, root: object = None
    ) -> object:
        tensors, opts = _listed(tensors), options(c10d.BroadcastOptions, opts, timeout, rootRank=root)
        done = self._one("broadcast", None, tensors, opts.asyncOp, root=opts.rootRank)
        return self._underneath(tensors).broadcast(tensors, opts) if done is _FALLS_BACK else done

    def reduce(
        self,
        tensors: Sequence[Tensor] | Tensor,
        opts: Options = None,
        op: object = None,
        timeout: object = None,
        root: object = None,
    ) -> object:
        tensors, opts = _listed(tensors), options(c10d.ReduceOptions, opts, timeout, rootRank=root, reduceOp=op)
        op = opts.reduceOp
        done = self._one("reduce", None, tensors, opts.asyncOp, op, operator_of(op), opts.rootRank)
        return self._underneath(tensors).reduce(tensors, opts) if done is _FALLS_BACK else done

    def allgather(self, outputs: Sequence[Any], inputs: Any, opts: Options = None, timeout: object = None) -> object:
        outputs, inputs = _nested(outputs), _listed(inputs)
        opts = options(c10d.AllgatherOptions, opts, timeout)
        if calls := self.calls_for("all_gather", [*inputs, *outputs[0]]):
            counts = _uneven(outputs[0])
            return calls.make("all_gather", [(inputs, outputs[0])], opts.asyncOp, counts=counts)
        return self._underneath(inputs).allgather(outputs, inputs, opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Options = None
    ) -> object:
        opts = options(c10d.AllgatherOptions, opts)
        if calls := self.calls_for("all_gather", [tensor for each in (inputs, *outputs) for tensor in each]):
            pairs = [([x], list(out)) for x, *out in zip(inputs, *outputs, strict=True)]
            return calls.make("all_gather", pairs, opts.asyncOp)
        return self._underneath(inputs).allgather_coalesced(outputs, inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Options = None) -> object:  # noqa: A002
        opts = options(c10d.AllgatherOptions, opts)
        done = self._one("all_gather", input, [output], opts.asyncOp)
        return self._underneath([input])._allgather_base(output, input, opts) if done is _FALLS_BACK else done

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None
    ) -> object:
        opts = options(c10d.AllgatherOptions, opts)
        if calls := self.calls_for("all_gather", [*inputs, *outputs]):
            return calls.make("all_gather", _pairs(inputs, outputs), opts.asyncOp)
        backend = self._underneath(inputs)
        return All([backend._allgather_base(out, x, opts) for x, out in zip(inputs, outputs, strict=True)])

    def gather(
        self,
        outputs: Sequence[Any],
        inputs: Any,
        opts: Options = None,
        timeout: object = None,
        root: object = None,
    ) -> object:
        outputs, inputs = _nested(outputs), _listed(inputs)
        opts = options(c10d.GatherOptions, opts, timeout, rootRank=root)
        out = outputs[0] if outputs else []
        if calls := self.calls_for("gather", [*inputs, *out]):
            return calls.make("gather", [(inputs, out)], opts.asyncOp, root=opts.rootRank)
        return self._underneath(inputs).gather(outputs, inputs, opts)

    def scatter(
        self,
        outputs: Any,
        inputs: Sequence[Any],
        opts: Options = None,
        timeout: object = None,
        root: object = None,
    ) -> object:
        outputs, inputs = _listed(outputs), _nested(inputs)
        opts = options(c10d.ScatterOptions, opts, timeout, rootRank=root)
        x = inputs[0] if inputs else []
        if calls := self.calls_for("scatter", [*outputs, *x]):
            return calls.make("scatter", [(x, outputs)], opts.asyncOp, root=opts.rootRank)
        return self._underneath(outputs).scatter(outputs, inputs, opts)

    def reduce_scatter(
        self, outputs: Any, inputs: Sequence[Any], opts: Options = None, timeout: object = None, op: object = None
    ) -> object:
        outputs, inputs = _listed(outputs), _nested(inputs)
        opts = options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=op)
        if calls := self.calls_for("reduce_scatter", [*outputs, *inputs[0]], opts.reduceOp):
            op, counts = operator_of(opts.reduceOp), _uneven(inputs[0])
            return calls.make("reduce_scatter", [(inputs[0], outputs)], opts.asyncOp, op=op, counts=counts)
        return self._underneath(outputs).reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Options = None) -> object:  # noqa: A002
        opts = options(c10d.ReduceScatterOptions, opts)
        op = opts.reduceOp
        done = self._one("reduce_scatter", input, [output], opts.asyncOp, op, operator_of(op))
        return self._underneath([input])._reduce_scatter_base(output, input, opts) if done is _FALLS_BACK else done

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None
    ) -> object:
        opts = options(c10d.ReduceScatterOptions, opts)
        if calls := self.calls_for("reduce_scatter", [*inputs, *outputs], opts.reduceOp):
            op = operator_of(opts.reduceOp)
            return calls.make("reduce_scatter", _pairs(inputs, outputs), opts.asyncOp, op=op)
        backend = self._underneath(inputs)
        return All([backend._reduce_scatter_base(out, x, opts) for x, out in zip(inputs, outputs, strict=True)])

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Options = None,
        timeout: object = None,
    ) -> object:
        opts = options(c10d.AllToAllOptions, opts, timeout)
        splits = output_split_sizes, input_split_sizes
        if not any(splits):
            done = self._one("all_to_all", input, [output], opts.asyncOp)
            if done is not _FALLS_BACK:
                return done
        elif calls := self.calls_for("all_to_all", [input, output]):
            counts = _rows(input, input_split_sizes, self.size()), _rows(output, output_split_sizes, self.size())
            return calls.make("all_to_all", [([input], [output])], opts.asyncOp, counts=counts)
        return self._underneath([input]).alltoall_base(output, input, *splits, opts)

    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None, timeout: object = None
    ) -> object:
        opts = options(c10d.AllToAllOptions, opts, timeout)
        if calls := self.calls_for("all_to_all", [*inputs, *outputs]):
            counts = tuple(map(Tensor.numel, inputs)), tuple(map(Tensor.numel, outputs))
            return calls.make("all_to_all", [(inputs, outputs)], opts.asyncOp, counts=counts)
        return self._underneath(inputs).alltoall(outputs, inputs, opts)

    def barrier(self, opts: Options = None, timeout: object = None) -> object:
        opts = options(c10d.BarrierOptions, opts, timeout)
        device = opts.device or next(iter(self._accelerators()), _CPU)
        why = _elsewhere(device)
        if self._calls is not None and why is None:
            seconds = opts.timeout.total_seconds()
            return self._calls.barrier("barrier", opts.asyncOp, seconds if seconds > 0 else None)
        self._fall_back("barrier", why or self._declined)
        return self._get_backend(device).barrier(opts)

    _allgather_base = all_gather_single  # the names that these had before
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> object:
        self._fall_back("send", _POINT_TO_POINT)
        return self._underneath(tensors).send(tensors, rank, tag)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> object:
        self._fall_back("recv", _POINT_TO_POINT)
        return self._underneath(tensors).recv(tensors, rank, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> object:
        self._fall_back("recv", _POINT_TO_POINT)
        return self._underneath(tensors).recv_anysource(tensors, tag)


def _say(text: str) -> None:
    print(f"hocket: {text}\n", end="", file=sys.stderr, flush=True)  # in one write: other ranks write, too


def _elsewhere(device: torch.device) -> str | None:
    return None if device.type == "cpu" else f"hocket works in the memory of the CPU, not on {device.type}"


def _obstacle(tensors: Sequence[Tensor], op: Any) -> str | None:
    """Why hocket does not take a call, from what must be the same on all ranks; None if it does."""
    if not tensors:
        return "it is called without a tensor"
    dtype = tensors[0].dtype
    for tensor in tensors:
        if not tensor.is_cpu:
            return _elsewhere(tensor.device)
        if tensor.layout is not torch.strided:
            return f"hocket takes dense tensors, not {tensor.layout}"
        if tensor.dtype is not dtype:
            return "its tensors are of several types"
    if op is None:
        return None
    name, operator = TYPES.get(dtype), operator_of(op)
    if isinstance(operator, float):  # a sum of float16, which is multiplied once it is there, may overflow
        operator = "" if dtype is torch.float16 else "avg"
    if name is None or operator not in _native.OPERATORS_OF[name]:
        return f"hocket does not combine {dtype} by {op.op.name}"
    return None


def _listed(tensors: Any) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _nested(tensors: Sequence[Any]) -> Sequence[Sequence[Tensor]]:
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else tensors


def _pairs(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    return [([x], [out]) for x, out in zip(inputs, outputs, strict=True)]


def _uneven(blocks: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Elements of the block of each rank, where they differ."""
    sizes = tuple(block.numel() for block in blocks)
    return None if len(set(sizes)) == 1 else sizes


def _rows(tensor: Tensor, splits: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Elements to or from each rank, of rows of a tensor."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = math.prod(tensor.shape[1:])
    return tuple(n * row for n in splits or [rows // ranks] * ranks)


def _untraced(cls: type) -> None:
    """Have torch.compile run methods as they are, and all that they call."""
    strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(method.__code__, strategy)
            method._torchdynamo_disable = True  # type: ignore[attr-defined]


for _cls in (Group, Work, All):
    _untraced(_cls)
