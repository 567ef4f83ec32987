"""What people build on torch.distributed: each trains or computes something, and returns what all of it came to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Tensors = list[Tensor]


class Net(nn.Module):
    """Has a layer that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())  # DDP makes them equal
        self.first, self.second, self.unused = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = 3) -> Tensors:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(17 + dist.get_rank())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    weights = [w.full_tensor() if isinstance(w, DTensor) else w for w in model.parameters()]
    return [*losses, *(w.detach() for w in weights)]


def ddp(**options: object) -> Callable[[], Tensors]:
    return lambda: trained(DistributedDataParallel(Net(), find_unused_parameters=True, **options))


def ddp_static() -> Tensors:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    return trained(DistributedDataParallel(model, static_graph=True, bucket_cap_mb=0.001))


def ddp_hooked(hook: Callable[..., object]) -> Callable[[], Tensors]:
    def run() -> Tensors:
        model = DistributedDataParallel(Net(), find_unused_parameters=True)
        model.register_comm_hook(None, hook)
        return trained(model)

    return run


def ddp_compiled() -> Tensors:
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
    return trained(torch.compile(model, backend="aot_eager"))


def ddp_join() -> Tensors:
    model = DistributedDataParallel(nn.Linear(16, 4))
    with model.join():
        for _ in range(2 + dist.get_rank()):
            model(torch.ones(2, 16)).sum().backward()
    return [w.detach() for w in model.parameters()]


def fsdp() -> Tensors:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return trained(fully_shard(model, mesh=mesh))


def zero() -> Tensors:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
    return trained(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def tensor_parallel() -> Tensors:
    torch.manual_seed(4)
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return trained(parallelize_module(model, mesh["tp"], plan))


def dtensor() -> Tensors:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.arange(48.0).view(8, 6), mesh, [Shard(0)])
    return [
        x.redistribute(mesh, [Replicate()]).to_local(),
        x.redistribute(mesh, [Shard(1)]).to_local(),
        (x @ x.T).full_tensor(),
        x.sum().full_tensor(),
    ]


def checkpoint() -> Tensors:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    x = distribute_tensor(torch.arange(48.0).view(8, 6), mesh, [Shard(0)])
    dcp.save({"x": x}, checkpoint_id=folder[0])
    state = {"x": distribute_tensor(torch.zeros(8, 6), mesh, [Shard(1)])}
    dcp.load(state, checkpoint_id=folder[0])
    return [state["x"].full_tensor()]


def compiled() -> Tensors:
    size = dist.get_world_size()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def both(x: Tensor) -> Tensor:
        total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return funcol.all_gather_tensor(total + x, 0, dist.group.WORLD)

    @torch.compile(backend="aot_eager")
    def plain(x: Tensor) -> Tensor:
        y, out = x * 3, torch.zeros(4 * size)
        dist.all_reduce(y)
        dist.all_gather_into_tensor(out, y)
        return out + 1

    x = torch.arange(4.0) + dist.get_rank()
    return [both(x), plain(x), both(x + 1), plain(x + 1)]


MODELS: dict[str, Callable[[], Tensors]] = {
    "ddp": ddp(),
    "ddp with views": ddp(gradient_as_bucket_view=True),
    "ddp static": ddp_static,
    "ddp hook": ddp_hooked(default_hooks.allreduce_hook),
    "ddp fp16 hook": ddp_hooked(default_hooks.fp16_compress_hook),
    "ddp compiled": ddp_compiled,
    "ddp join": ddp_join,
    "fsdp": fsdp,
    "zero": zero,
    "tensor parallel": tensor_parallel,
    "dtensor": dtensor,
    "checkpoint": checkpoint,
    "compiled": compiled,
}
