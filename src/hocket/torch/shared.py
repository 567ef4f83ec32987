"""Tensors in memory that all ranks of a group read and write in place: new ones, and the gradients of DDP."""

import weakref
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, UntypedStorage, distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from hocket.communicator import Adopted
from hocket.errors import HocketError, InvalidArgument, PeerRefused
from hocket.runtime import arena
from hocket.torch.calls import Calls, backend_error
from hocket.torch.group import Group

_AVERAGE = distributed.ReduceOp(distributed.ReduceOp.AVG)
_kept: list[UntypedStorage] = []


def empty(shape: int | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A new CPU tensor, not initialised, in memory that ranks share: see ``Communicator.empty``.

    ``dtype``: by default that of ``torch.empty``. Raises WrongType, InvalidArgument, MemoryError and BootstrapFailed.
    """
    dtype = dtype or torch.get_default_dtype()
    lengths = arena.lengths(shape)
    lines = torch.from_numpy(arena.empty(torch.Size(lengths).numel() * dtype.itemsize, "uint8"))
    return lines.view(dtype).view(lengths)


def share_gradients(model: DistributedDataParallel, overlap: bool = False) -> None:
    """Have the ranks average the gradients of a model where they lie. Every rank calls it, before the first step.

    It is a communication hook of DDP. A bucket of gradients is averaged in one call, and from the second step on, when
    DDP makes no new ones, it lies in shared memory; so do the gradients where they are views of it. With ``overlap``
    the calls go on in the background of the backward pass, which pays where ranks have cores to spare. Where hocket
    does not do the collectives of the group, gradients are averaged as by DDP itself.
    """
    model.register_comm_hook(_Buckets(model.process_group, overlap), _average)


class _Buckets:
    """Those of a model. That one is adopted follows from what all ranks count alike: steps, and new buckets of DDP."""

    def __init__(self, group: distributed.ProcessGroup, overlap: bool) -> None:
        self.group = group
        self.overlap = overlap
        self._steps = 0
        self._shared: dict[int, tuple[int, weakref.finalize[[Adopted | None, UntypedStorage], object]]] = {}

    def share(self, calls: Calls, bucket: distributed.GradBucket) -> None:
        """Put a bucket into shared memory, unless it is there, or of the first step. Raises HocketError."""
        index, storage = bucket.index(), bucket.buffer().untyped_storage()
        self._steps += index == 0  # DDP has it averaged first
        if self._steps == 1:
            return
        if (known := self._shared.get(index)) is not None:
            address, release = known
            if storage.data_ptr() == address:  # it is the same, as no other memory comes there while it is held
                return
            release()
        descriptor: int | None = None
        with suppress(RuntimeError):  # there is no room: this rank has nothing to adopt then
            descriptor, _ = storage._share_fd_cpu_()  # which stays torch's
        adopted: Adopted | None = None
        with calls.lock, suppress(InvalidArgument, MemoryError, PeerRefused):  # on all ranks: then it is not shared
            adopted = calls.comm.adopt(descriptor, storage.data_ptr(), storage.nbytes())
        release = weakref.finalize(self, _release, adopted, storage)
        release.atexit = False
        self._shared[index] = storage.data_ptr(), release


def _release(adopted: Adopted | None, storage: UntypedStorage) -> None:
    """Memory stays as long as it counts as shared, also where a thread that is in a call leaves it so."""
    try:
        if adopted is not None:
            adopted.close()
    except HocketError:
        _kept.append(storage)


def _average(buckets: _Buckets, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    tensor, group = bucket.buffer(), buckets.group
    calls = group.calls_for("all_reduce", [tensor], _AVERAGE) if isinstance(group, Group) else None
    if calls is None:
        return allreduce_hook(group, bucket)
    try:
        buckets.share(calls, bucket)
    except HocketError as error:
        raise backend_error("adopt", error) from error
    work = calls.make("all_reduce", [((), [tensor])], buckets.overlap, op="avg")
    if work is not None:
        return work.get_future().then(lambda done: done.value()[0])
    averaged: torch.futures.Future[Tensor] = torch.futures.Future()
    averaged.set_result(tensor)
    return averaged
