"""What torch says of a call beside its tensors: its options, of which the operator is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import distributed
from torch._C import _distributed_c10d as c10d

from hocket import _native
from hocket.torch.calls import Operator

Options = Any
"""Options of torch, or what is given in their place."""
PLAIN_SUM = distributed.ReduceOp(distributed.ReduceOp.SUM)
_SUM = distributed.ReduceOp.SUM
_PREMUL_SUM = distributed.ReduceOp.PREMUL_SUM
_OPERATORS = {
    distributed.ReduceOp.SUM: "sum",
    distributed.ReduceOp.PRODUCT: "prod",
    distributed.ReduceOp.MIN: "min",
    distributed.ReduceOp.MAX: "max",
    distributed.ReduceOp.AVG: "avg",
    distributed.ReduceOp.BAND: "band",
    distributed.ReduceOp.BOR: "bor",
    distributed.ReduceOp.BXOR: "bxor",
}
_SEARCHED = 48
"""Bytes of options: they are 64 long."""
_KINDS = (
    c10d.AllreduceOptions,
    c10d.AllreduceCoalescedOptions,
    c10d.BroadcastOptions,
    c10d.ReduceOptions,
    c10d.AllgatherOptions,
    c10d.GatherOptions,
    c10d.ScatterOptions,
    c10d.ReduceScatterOptions,
    c10d.AllToAllOptions,
    c10d.BarrierOptions,
)


def operator_of(op: Any) -> Operator:
    """What hocket has for an operator of torch; "" for none."""
    if op == _SUM:
        return "sum"
    if op.op == _PREMUL_SUM:
        factor = op.__getstate__()[1]  # or a tensor of it
        return factor if isinstance(factor, float) else ""
    return _OPERATORS.get(op.op, "")


def options(kind: Any, given: Any, timeout: object = None, **fields: object) -> Any:
    """Options as torch.distributed gives them, or made of what they are called with one by one.

    What is given in the place of options is the first of these fields.
    """
    if type(given) is kind or isinstance(given, _KINDS):
        return given
    made, first = kind(), next(iter(fields), "timeout")
    for name, value in {"timeout": timeout, **fields, first: fields.get(first) if given is None else given}.items():
        if value is not None:
            setattr(made, name, value)
    return made


def _places(numbers: Iterable[tuple[object, bool, int]]) -> list[int]:
    """Where options of each operator, of a call that waits or does not, have a byte of this number."""
    found = list(range(_SEARCHED))
    for op, later, number in numbers:
        made = c10d.AllreduceOptions()
        made.reduceOp, made.asyncOp = cast("Any", op), later
        found = [at for at in found if _native.Pattern(c10d.AllreduceOptions, [(at, number)]).fits(made)]
    return found


def _recognizer() -> Callable[[Options], bool]:
    """Of options of an all_reduce that sums and waits: by their bytes, where examples show which these are."""
    given = [(op, later) for op in _OPERATORS for later in (False, True)]
    of_op = _places((op, later, op.value) for op, later in given)
    of_later = _places((op, later, later) for op, later in given)
    if len(of_op) != 1 or len(of_later) != 1:
        return lambda _: False
    return _native.Pattern(c10d.AllreduceOptions, [(of_op[0], _SUM.value), (of_later[0], 0)]).fits


is_plain_sum = _recognizer()
"""Never of others. To read ``reduceOp`` and ``asyncOp`` takes ten times as long."""
