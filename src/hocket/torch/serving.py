"""What vLLM and SGLang run tensor parallelism on where they work on CPUs.

Both have kernels of their own for it, in shared memory. Their plug-ins of hocket (``hocket_autoload``) are loaded in
every process of theirs, and with ``HOCKET=1`` call ``take_over_vllm`` and ``take_over_sglang``. Written against vLLM
0.30.0 and SGLang 0.5.20.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import AllreduceOptions, _resolve_process_group

from hocket.errors import ServerVersion

_SUM = AllreduceOptions()
_SUM.asyncOp = False


def _all_reduce(tensor: Tensor, group: str) -> None:
    work = _resolve_process_group(group).allreduce([tensor], _SUM)
    if work is not None:  # it fell back
        work.wait()


def _all_gather(output: Tensor, tensor: Tensor, group: str) -> None:
    distributed.all_gather_single(output, tensor, group=_resolve_process_group(group))


# Operators, so that torch.compile, which both servers use, puts them into its graphs as they are.
_OPERATORS = torch.library.Library("hocket", "DEF")
_OPERATORS.define("all_reduce(Tensor(a!) tensor, str group) -> ()")
_OPERATORS.define("all_gather(Tensor(a!) output, Tensor tensor, str group) -> ()")
for _function in (_all_reduce, _all_gather):
    _OPERATORS.impl(_function.__name__[1:], _function, "CPU")
    _OPERATORS.impl(_function.__name__[1:], lambda *_: None, "Meta")


class Communicator(Protocol):
    """What is needed of vLLM's ``CpuCommunicator``."""

    device_group: distributed.ProcessGroup


class Distributed:
    """Collectives of a group of vLLM's, with the methods of ``cpu_communicator._CPUSHMDistributed``.

    Sums have the same bits on all ranks. What is not for hocket goes to the backend of torch underneath.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._group = communicator.device_group
        self._name = self.make_group_name(communicator)

    @staticmethod
    def make_group_name(communicator: Communicator) -> str:
        """vLLM has the ranks compare it, and does without this where they differ."""
        return str(communicator.device_group.group_name)

    def all_reduce(self, tensor: Tensor, group: distributed.ProcessGroup | None = None) -> None:
        """Sum, in place."""
        torch.ops.hocket.all_reduce(tensor, self._name)

    def all_gather_into_tensor(
        self, output: Tensor, tensor: Tensor, group: distributed.ProcessGroup | None = None
    ) -> None:
        torch.ops.hocket.all_gather(output, tensor, self._name)

    def gather(
        self,
        tensor: Tensor,
        outputs: list[Tensor] | None,
        dst: int = -1,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        """``dst`` counts in all ranks of the job, not in the group."""
        distributed.gather(tensor, outputs, dst=dst, group=self._group)

    def send_tensor_dict(self, tensors: Mapping[str, Tensor], dst: int) -> None:
        """``dst`` counts in the group."""
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        distributed.send_object_list([shapes], group=self._group, group_dst=dst)
        for tensor in tensors.values():
            distributed.send(tensor.contiguous(), group=self._group, group_dst=dst)

    def recv_tensor_dict(self, src: int) -> dict[str, Tensor]:
        """``src`` counts in the group."""
        received: list[dict[str, tuple[torch.Size, torch.dtype]]] = [{}]
        distributed.recv_object_list(received, group=self._group, group_src=src)
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in received[0].items()}
        for tensor in tensors.values():
            distributed.recv(tensor, group=self._group, group_src=src)
        return tensors


def take_over_vllm() -> None:
    """Put ``Distributed`` into the place of vLLM's kernels, where it works on CPUs. Raises ServerVersion."""
    if not import_module("vllm.platforms").current_platform.is_cpu():
        return
    module, name = import_module("vllm.distributed.device_communicators.cpu_communicator"), "_CPUSHMDistributed"
    theirs = getattr(module, name, None)
    if theirs is None:
        raise ServerVersion("vLLM", import_module("vllm").__version__, f"it has no {module.__name__}.{name}")
    lacking = [method for method in vars(theirs) if not method.startswith("_") and not hasattr(Distributed, method)]
    if lacking:
        raise ServerVersion("vLLM", import_module("vllm").__version__, f"its {name} has also {', '.join(lacking)}")
    setattr(module, name, Distributed)


def take_over_sglang() -> None:
    """Have SGLang call torch.distributed where it would take its kernels. Raises ServerVersion."""
    module, name = import_module("sglang.srt.distributed.parallel_state"), "is_shm_available"
    if not hasattr(module, name):
        raise ServerVersion("SGLang", import_module("sglang").__version__, f"it has no {module.__name__}.{name}")
    hooks = import_module("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry.register(f"{module.__name__}.{name}", _never, hooks.HookType.REPLACE)


def _never(*_: object, **__: object) -> bool:
    return False
