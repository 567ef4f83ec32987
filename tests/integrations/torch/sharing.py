"""A rank that trains small models with its gradients in shared memory, started by test_shared.py."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hocket.torch
from hocket.torch.group import Group

STEPS = 4


def train(group: dist.ProcessGroup, share: bool, overlap: bool = False, **options: bool) -> list[torch.Tensor]:
    """The weights in the end, and those of rank 1 must be the same."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 400), torch.nn.Linear(400, 10)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.3, **options)
    if share:
        hocket.torch.share_gradients(model, overlap=overlap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        if isinstance(group, Group) and step == 1:
            group._calls._prepared.clear()  # DDP makes new buckets after the first step
        model(torch.randn(20, 100)).square().mean().backward()
        if share and options.get("gradient_as_bucket_view") and isinstance(group, Group):
            lie_shared = [parameter.grad.untyped_storage().is_shared() for parameter in model.parameters()]
            assert all(lie_shared) if step else not any(lie_shared), (step, lie_shared)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@contextmanager
def paths(group: dist.ProcessGroup) -> Iterator[list[int]]:
    """At the end, how averages last went, of each size: 0 through slots, else in place."""
    found: list[int] = []
    yield found
    found += [call.variant for key, call in group._calls._prepared.items() if key[3] == "avg"]


def mapped() -> int:
    return sum("/torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())


def main() -> None:
    dist.init_process_group("hocket")
    plain, world = dist.new_group(backend="gloo"), dist.group.WORLD
    expected = train(plain, share=False)

    def check(group: dist.ProcessGroup, **options: bool) -> None:
        found = train(group, share=True, **options)
        assert all(map(torch.equal, found, expected)), options

    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"overlap": True}):
        with paths(world) as found:
            check(world, **options)
        assert len(found) > 1
        assert all(found), (options, found)
    check(plain)
    gc.collect()
    world._calls.comm.adopt()
    assert mapped() == 0, "nothing stays of models that are gone"

    no_room = mock.patch.object(torch.UntypedStorage, "_share_fd_cpu_", side_effect=RuntimeError("no room"))
    with paths(world) as found:
        if dist.get_rank() == 1:
            with no_room:
                check(world)
        else:
            check(world)
    assert not any(found), found

    x = hocket.torch.empty((400, 100), torch.float32).fill_(dist.get_rank() + 1)
    y = hocket.torch.empty((100,), torch.bfloat16)
    assert (x.shape, x.dtype, y.dtype) == ((400, 100), torch.float32, torch.bfloat16)
    world._calls._prepared.clear()
    with paths(world) as found:
        dist.all_reduce(x, dist.ReduceOp.AVG)
    assert found == [1]
    assert (x == 1.5).all()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    sys.exit(main())
