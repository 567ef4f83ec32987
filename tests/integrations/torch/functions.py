"""Every collective of torch.distributed as a function of a group, to be run on hocket and on Gloo alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

Outcome = tuple[object, list[Tensor]]
"""What a call returned, and the tensors to look at once it has ended."""
Function = Callable[[dist.ProcessGroup, bool], Outcome]

SUM = dist.ReduceOp.SUM
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OPERATORS = {
    "SUM": [*FLOATS, *INTEGERS, torch.complex64, torch.complex128],
    "PRODUCT": [*FLOATS, *INTEGERS],
    "MIN": [*FLOATS, *INTEGERS, torch.bool],
    "MAX": [*FLOATS, *INTEGERS, torch.bool],
    "AVG": FLOATS,
    "BAND": [*INTEGERS, torch.bool],
    "BOR": [*INTEGERS, torch.bool],
    "BXOR": [*INTEGERS, torch.bool],
}


def numbers(group: dist.ProcessGroup, n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Small whole numbers, different on each rank: sums of them are exact in every type."""
    values = (torch.arange(n) * 7 + 3 * group.rank() + seed) % 5
    return values.to(dtype)


def _reducing(n: int) -> Iterator[tuple[str, Function]]:
    for op, types in OPERATORS.items():
        for dtype in types:

            def all_reduce(group: dist.ProcessGroup, later: bool, op: str = op, dtype: torch.dtype = dtype) -> Outcome:
                x = numbers(group, n, dtype)
                return dist.all_reduce(x, getattr(dist.ReduceOp, op), group, later), [x]

            yield f"all_reduce {op} {dtype} {n}", all_reduce

    def reduce(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, root = numbers(group, n), group.size() - 1
        return dist.reduce(x, group_dst=root, group=group, async_op=later), [x] if group.rank() == root else []

    def reduce_scatter(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, out = [numbers(group, n, seed=r) for r in range(group.size())], torch.zeros(n)
        return dist.reduce_scatter(out, x, group=group, async_op=later), [out]

    def uneven_reduce_scatter(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, out = [numbers(group, n + r, seed=r) for r in range(group.size())], torch.zeros(n + group.rank())
        return dist.reduce_scatter(out, x, group=group, async_op=later), [out]

    def reduce_scatter_tensor(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, out = numbers(group, n * group.size()), torch.zeros(n)
        return dist.reduce_scatter_tensor(out, x, group=group, async_op=later), [out]

    def reduce_scatter_base(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, out = numbers(group, n * group.size()), torch.zeros(n)
        return dist._reduce_scatter_base(out, x, group=group, async_op=later), [out]

    yield from {
        f"reduce {n}": reduce,
        f"reduce_scatter {n}": reduce_scatter,
        f"reduce_scatter_tensor {n}": reduce_scatter_tensor,
        f"reduce_scatter_base {n}": reduce_scatter_base,
    }.items()
    if n < 10:
        yield f"uneven reduce_scatter {n}", uneven_reduce_scatter


def _moving(n: int, dtype: torch.dtype) -> Iterator[tuple[str, Function]]:
    def broadcast(group: dist.ProcessGroup, later: bool) -> Outcome:
        x = numbers(group, n, dtype)
        return dist.broadcast(x, group_src=group.size() - 1, group=group, async_op=later), [x]

    def all_gather(group: dist.ProcessGroup, later: bool) -> Outcome:
        out = [torch.zeros(n, dtype=dtype) for _ in range(group.size())]
        return dist.all_gather(out, numbers(group, n, dtype), group, later), out

    def all_gather_single(group: dist.ProcessGroup, later: bool) -> Outcome:
        out = torch.zeros(n * group.size(), dtype=dtype)
        return dist.all_gather_into_tensor(out, numbers(group, n, dtype), group, later), [out]

    def all_gather_base(group: dist.ProcessGroup, later: bool) -> Outcome:
        out = torch.zeros(n * group.size(), dtype=dtype)
        return dist._all_gather_base(out, numbers(group, n, dtype), group, later), [out]

    def all_gather_in_place(group: dist.ProcessGroup, later: bool) -> Outcome:
        out = numbers(group, n * group.size(), dtype)
        return dist.all_gather_into_tensor(out, out[n * group.rank() :][:n], group, later), [out]

    def gather(group: dist.ProcessGroup, later: bool) -> Outcome:
        kind = torch.float64 if dtype.is_complex else dtype  # Gloo does not gather complex numbers
        out = [torch.zeros(n, dtype=kind) for _ in range(group.size())] if group.rank() == 0 else []
        return dist.gather(numbers(group, n, kind), out or None, group_dst=0, group=group, async_op=later), out

    def scatter(group: dist.ProcessGroup, later: bool) -> Outcome:
        x = [numbers(group, n, dtype, seed=r) for r in range(group.size())] if group.rank() == 0 else None
        out = torch.zeros(n, dtype=dtype)
        return dist.scatter(out, x, group_src=0, group=group, async_op=later), [out]

    def all_to_all_single(group: dist.ProcessGroup, later: bool) -> Outcome:
        x, out = numbers(group, n * group.size(), dtype), torch.zeros(n * group.size(), dtype=dtype)
        return dist.all_to_all_single(out, x, group=group, async_op=later), [out]

    def all_to_all(group: dist.ProcessGroup, later: bool) -> Outcome:
        r, size = group.rank(), group.size()
        extra = 0 if dist.get_backend(group) == "gloo" else 1
        x = [numbers(group, n + extra * (r + to), dtype) for to in range(size)]
        out = [torch.zeros(n + extra * (r + sender), dtype=dtype) for sender in range(size)]
        return dist.all_to_all(out, x, group, later), [tensor[:n] for tensor in out]

    def uneven_all_to_all(group: dist.ProcessGroup, later: bool) -> Outcome:
        r, size = group.rank(), group.size()
        sent, received = [n * (to + r) for to in range(size)], [n * (r + sender) for sender in range(size)]
        x, out = numbers(group, 3 * sum(sent), dtype).view(-1, 3), torch.zeros(sum(received), 3, dtype=dtype)
        return dist.all_to_all_single(out, x, received, sent, group, later), [out]

    def half_split_all_to_all(group: dist.ProcessGroup, later: bool) -> Outcome:
        r, size = group.rank(), group.size()
        sizes = [n] * size if r else None
        x, out = numbers(group, 3 * n * size, dtype).view(-1, 3), torch.zeros(n * size, 3, dtype=dtype)
        return dist.all_to_all_single(out, x, sizes, sizes, group, later), [out]

    for function in (
        broadcast,
        all_gather,
        all_gather_single,
        all_gather_base,
        all_gather_in_place,
        gather,
        scatter,
        all_to_all_single,
        all_to_all,
        uneven_all_to_all,
        half_split_all_to_all,
    ):
        yield f"{function.__name__} {dtype} {n}", function


def _together(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = [numbers(group, n) for n in (3, 100)]
    with dist._coalescing_manager(group, async_ops=later) as manager:
        for each in x:
            dist.all_reduce(each, group=group)
    return manager if later else None, x


def _gathered_together(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = [numbers(group, n) for n in (3, 100)]
    out = [torch.zeros(len(each) * group.size()) for each in x]
    with dist._coalescing_manager(group, async_ops=later) as manager:
        for each, to in zip(x, out, strict=True):
            dist.all_gather_into_tensor(to, each, group=group)
    return manager if later else None, out


def _scattered_together(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = [numbers(group, n * group.size()) for n in (3, 100)]
    out = [torch.zeros(len(each) // group.size()) for each in x]
    with dist._coalescing_manager(group, async_ops=later) as manager:
        for each, to in zip(x, out, strict=True):
            dist.reduce_scatter_tensor(to, each, group=group)
    return manager if later else None, out


def _coalesced(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = [numbers(group, n) for n in (3, 100)]
    return dist.all_reduce_coalesced(x, group=group, async_op=later), x


def _gathered(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = [numbers(group, n) for n in (3, 100)]
    out = [[torch.zeros(len(each)) for each in x] for _ in range(group.size())]
    return dist.all_gather_coalesced(out, x, group, later), [tensor for each in out for tensor in each]


def _barrier(group: dist.ProcessGroup, later: bool) -> Outcome:
    return dist.barrier(group, later), []


def _objects(group: dist.ProcessGroup, later: bool) -> Outcome:
    said: list[object] = [None] * group.size()
    dist.all_gather_object(said, {"rank": group.rank()}, group)
    assert said == [{"rank": r} for r in range(group.size())]
    given: list[object] = [group.rank(), "x" * group.rank()]
    dist.broadcast_object_list(given, group_src=1, group=group)
    assert given == [1, "x"]
    got: list[object] = [None]
    dist.scatter_object_list(got, ["a"] * group.size(), group_src=0, group=group)
    return None, [torch.tensor([len(str(got[0]))])]


def _functional(group: dist.ProcessGroup, later: bool) -> Outcome:
    p = group.size()
    x = numbers(group, 4 * p)
    out = [
        funcol.all_reduce(x, "sum", group),
        funcol.all_reduce(x, "avg", group),
        funcol.all_gather_tensor(x, 0, group),
        funcol.reduce_scatter_tensor(x, "sum", 0, group),
        funcol.all_to_all_single(x, None, None, group),
        funcol.broadcast(x, 0, group),
        *funcol.all_reduce_coalesced([x, x + 1], "max", group),
        *funcol.all_gather_into_tensor_coalesced([x, x + 1], group),
        *funcol.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
    ]
    return None, [tensor.clone() for tensor in out]


def _strided(group: dist.ProcessGroup, later: bool) -> Outcome:
    """Gloo would reduce the neighbours: it gets copies."""
    x, whole = numbers(group, 24).view(4, 6), torch.zeros(group.size() * 4, 12)
    if dist.get_backend(group) == "gloo":
        out, column = torch.zeros(group.size() * 4, 6), x[:, 1].contiguous()
        dist.all_gather_into_tensor(out, x, group)
        dist.all_reduce(column, group=group)
        whole[:, ::2], x[:, 1] = out, column
        return None, [whole, x]
    first = dist.all_gather_into_tensor(whole[:, ::2], x, group, later)
    second = dist.all_reduce(x[:, 1], group=group, async_op=later)
    if later:
        first.wait()
    return second, [whole, x]


def _misaligned(group: dist.ProcessGroup, later: bool) -> Outcome:
    """On one rank, elements begin where no compiler would put them."""
    whole = [torch.zeros(4 * n + 1, dtype=torch.uint8) for n in (9, 9 * group.size())]
    x, out = (torch.frombuffer(each.numpy(), dtype=torch.float32, count=len(each) // 4, offset=1) for each in whole)
    if group.rank() > 0:
        x, out = x.clone(), out.clone()
    dist.all_reduce(x.copy_(numbers(group, 9)), group=group)
    return dist.all_gather_into_tensor(out, x, group, later), [x, out]


def _old_names(group: dist.ProcessGroup, later: bool) -> Outcome:
    x, out, part = numbers(group, 6 * group.size()), torch.zeros(6 * group.size() ** 2), torch.zeros(6)
    swapped = torch.zeros_like(x)
    for work in (
        group._allgather_base(out, x),
        group._reduce_scatter_base(part, x, dist.ReduceScatterOptions()),
        group.alltoall_base(swapped, x, [], []),
    ):
        if work is not None:
            work.wait()
    return None, [out, part, swapped]


def _multiplied(group: dist.ProcessGroup, later: bool) -> Outcome:
    """Sums of terms that are multiplied, exact either way. Gloo has no such operator: it gets the products."""
    is_root, gloo = group.rank() == group.size() - 1, dist.get_backend(group) == "gloo"
    op = SUM if gloo else dist._make_nccl_premul_sum(-0.75)

    def terms(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return numbers(group, n, dtype) * -0.75 if gloo else numbers(group, n, dtype)

    x, several = [terms(6, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)], [terms(5), terms(7)]
    part, rooted = torch.zeros(6), terms(9)
    for each in x:
        dist.all_reduce(each, op, group)
    dist.reduce_scatter_tensor(part, terms(6 * group.size()), op, group)
    dist.all_reduce_coalesced(several, op, group)
    work = dist.reduce(rooted, group_dst=group.size() - 1, op=op, group=group, async_op=later)
    return work, [*x, part, *several, *[rooted] * is_root]


def _nothing(group: dist.ProcessGroup, later: bool) -> Outcome:
    x = torch.zeros(0)
    return dist.all_reduce(x, group=group, async_op=later), [x]


def all_functions() -> Iterator[tuple[str, Function]]:
    for n in (1, 7, 3000):
        yield from _reducing(n)
    for n in (1, 5000):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
            yield from _moving(n, dtype)
    others = _together, _gathered_together, _scattered_together, _coalesced, _gathered, _barrier, _objects
    for function in (*others, _functional, _strided, _misaligned, _old_names, _multiplied, _nothing):
        yield function.__name__, function


def finished(outcome: Outcome) -> list[Tensor]:
    """What came out, once it is there."""
    work, out = outcome
    if work is not None:
        work.wait()  # type: ignore[attr-defined]
    return out
