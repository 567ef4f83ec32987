"""What ranks of torch.distributed do in tests: ``python -m tests.integrations.torch.jobs NAME``."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def unchanged() -> None:
    """A program that knows nothing of hocket."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((5,), rank + 1.0)
    for _ in range(2):
        x.fill_(rank + 1)
        dist.all_reduce(x)
        assert x.tolist() == [size * (size + 1) / 2] * 5
    print(dist.get_backend(), type(dist.group.WORLD).__module__)
    dist.destroy_process_group()


def named() -> None:
    """A program that asks for hocket, next to a group of Gloo's."""
    import hocket.torch  # noqa: F401

    dist.init_process_group("hocket")
    rank = dist.get_rank()
    plain = dist.new_group(backend="gloo")
    print(dist.get_backend(), dist.get_backend(plain), type(plain).__module__)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BXOR):
        x, y = torch.full((3,), rank + 5), torch.full((3,), rank + 5)
        dist.all_reduce(x, op)
        dist.all_reduce(y, op, group=plain)
        assert torch.equal(x, y)
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        x = torch.zeros(2)
        dist.recv(x, 0)
        assert x.tolist() == [1, 1]
    dist.destroy_process_group()


if __name__ == "__main__":
    job, _, argument = sys.argv[1].partition(":")
    globals()[job](*filter(None, [argument]))
