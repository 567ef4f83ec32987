"""Options that are told by their bytes are those that torch's bindings say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch import distributed
from torch._C import _distributed_c10d as c10d

from hocket.torch import options

PLAIN = [op for op in distributed.ReduceOp.RedOpType.__members__.values() if op != distributed.ReduceOp.PREMUL_SUM]
OPERATORS = [*PLAIN, distributed._make_nccl_premul_sum(2.0)]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_a_plain_sum_and_no_other(op: distributed.ReduceOp, later: bool) -> None:
    made = c10d.AllreduceOptions()
    made.reduceOp, made.asyncOp = op, later
    assert options.is_plain_sum(made) == (op == distributed.ReduceOp.SUM and not later)


@pytest.mark.parametrize("other", [None, c10d.ReduceOptions(), c10d.AllreduceOptions, 0, "sum"])
def test_what_is_no_options_of_an_all_reduce(other: object) -> None:
    assert not options.is_plain_sum(other)


def test_bytes_that_do_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_SEARCHED", 1)
    assert not options._recognizer()(c10d.AllreduceOptions())
