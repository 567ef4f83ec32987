"""Stand-ins for vLLM and SGLang, in sys.modules: as much of each as decides what a collective runs on, and calls it.

vLLM's kernels are stood in for by torch.distributed.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor

VLLM = "vllm.distributed.device_communicators.cpu_communicator"
SGLANG = "sglang.srt.distributed.parallel_state"


class Kernels:
    """vLLM's ``_CPUSHMDistributed``."""

    def __init__(self, communicator: CpuCommunicator) -> None:
        self._group = communicator.device_group

    @staticmethod
    def make_group_name(communicator: CpuCommunicator) -> str:
        return f"tp-{communicator.ranks}"

    def all_reduce(self, x: Tensor, group: dist.ProcessGroup | None = None) -> None:
        dist.all_reduce(x, group=group)

    def all_gather_into_tensor(self, out: Tensor, x: Tensor, group: dist.ProcessGroup | None = None) -> None:
        dist.all_gather_into_tensor(out, x, group=group)

    def gather(
        self, x: Tensor, out: list[Tensor] | None, dst: int = -1, group: dist.ProcessGroup | None = None
    ) -> None:
        dist.gather(x, out, dst, group)

    def send_tensor_dict(self, tensors: dict[str, Tensor], dst: int) -> None:
        dist.send_object_list([tensors], group=self._group, group_dst=dst)

    def recv_tensor_dict(self, src: int) -> dict[str, Tensor]:
        found: list[dict[str, Tensor]] = [{}]
        dist.recv_object_list(found, group=self._group, group_src=src)
        return found[0]


class CpuCommunicator:
    """vLLM's, which has kernels where all ranks give them one name, and calls torch.distributed elsewhere."""

    def __init__(self, group: dist.ProcessGroup, kernels: type | None = None) -> None:
        self.device_group = group
        self.ranks = dist.get_process_group_ranks(group)
        kernels = kernels or sys.modules[VLLM]._CPUSHMDistributed
        names: list[object] = [None] * group.size()
        dist.all_gather_object(names, kernels.make_group_name(self), group)
        self.module = kernels(self) if len(set(names)) == 1 else dist

    def all_reduce(self, x: Tensor) -> Tensor:
        self.module.all_reduce(x, group=self.device_group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(self.ranks) * x.shape[0], *x.shape[1:])
        self.module.all_gather_into_tensor(out, x, group=self.device_group)
        return out

    def gather(self, x: Tensor, dst: int) -> list[Tensor]:
        root = self.device_group.rank() == dst
        out = [torch.empty_like(x) for _ in self.ranks] if root else None
        self.module.gather(x, out, dst=self.ranks[dst], group=self.device_group)
        return out or []


def vllm(kernels: type | None = Kernels) -> None:
    """``kernels``: None for a version that has none of that name."""
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm"].__version__ = "99.1"
    sys.modules["vllm.platforms"] = ModuleType("vllm.platforms")
    sys.modules["vllm.platforms"].current_platform = SimpleNamespace(is_cpu=lambda: True)
    sys.modules[VLLM] = ModuleType(VLLM)
    if kernels is not None:
        sys.modules[VLLM]._CPUSHMDistributed = kernels


def _kernels_of_sglang(x: Tensor) -> None:
    raise AssertionError("it ran SGLang's kernel")


def sglang_all_reduce(x: Tensor, group: dist.ProcessGroup) -> None:
    if sys.modules[SGLANG].is_shm_available(x.dtype, group.size(), local_size=group.size()):
        _kernels_of_sglang(x)
    else:
        dist.all_reduce(x, group=group)


class HookRegistry:
    @staticmethod
    def register(target: str, hook: object, kind: str) -> None:
        """Replaces at once, where SGLang's does when all plug-ins are loaded."""
        assert kind == "replace"
        module, _, name = target.rpartition(".")
        assert hasattr(sys.modules[module], name)
        setattr(sys.modules[module], name, hook)


def sglang() -> None:
    sys.modules["sglang"] = ModuleType("sglang")
    sys.modules["sglang"].__version__ = "99.1"
    sys.modules[SGLANG] = ModuleType(SGLANG)
    sys.modules[SGLANG].is_shm_available = lambda dtype, world_size, local_size: world_size == local_size
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry = HookRegistry
    registry.HookType = SimpleNamespace(REPLACE="replace")
    sys.modules[registry.__name__] = registry
