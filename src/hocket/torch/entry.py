"""How groups of ``torch.distributed`` come to be hocket's: two functions of torch are wrapped when this is imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import distributed_c10d as c10d

from hocket.errors import TorchVersion
from hocket.torch.group import Group

SUPPORTED = ("2.13",)
"""The versions of torch whose private functions this was tested with."""

_Made = tuple[object, object]


def check_version(found: str) -> None:
    """Raises TorchVersion."""
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        raise TorchVersion(found, SUPPORTED)


def _underneath(store: distributed.Store, rank: int, size: int, timeout: timedelta) -> object:
    """The backend of torch that is registered under the name of hocket: it does what hocket does not."""
    return distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _everywhere(backend: str) -> str:
    """What the name of hocket alone means on this machine: a backend for each kind of device."""
    if backend != "hocket" or not torch.cuda.is_available():
        return backend
    return f"cpu:hocket,cuda:{'nccl' if distributed.is_nccl_available() else 'gloo'}"


def _is_ours(backend: str) -> bool:
    """Whether the collectives of CPU tensors of such a group are for hocket."""
    cpu = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map().get("cpu")
    return cpu == "hocket" or (cpu == "gloo" and os.environ.get("HOCKET") == "1")


def _making(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """torch's function that makes every group. Where hocket is asked for, it makes a ``Group``, whose ranks meet."""

    @functools.wraps(make)
    def made(
        size: int, rank: int, ranks: Sequence[int], backend: str, *args: object, timeout: timedelta, **options: object
    ) -> _Made:
        backend = _everywhere(backend)
        if not _is_ours(backend):
            return make(size, rank, ranks, backend, *args, timeout=timeout, **options)
        plain, c10d.ProcessGroup = c10d.ProcessGroup, Group
        try:
            group, store = make(size, rank, ranks, backend, *args, timeout=timeout, **options)
        finally:
            c10d.ProcessGroup = plain
        if isinstance(group, Group) and not group.met:
            try:
                group.meet(timeout.total_seconds(), tells=not ranks)
            except BaseException:
                c10d._world.pg_group_ranks.setdefault(group, {})  # what torch enters next, and takes out then
                distributed.destroy_process_group(group)
                raise
        return group, store

    return made


def _timing(set_timeout: Callable[..., None]) -> Callable[..., None]:
    """torch's function that sets the timeout of Gloo or NCCL in a group: it also sets hocket's."""

    @functools.wraps(set_timeout)
    def timed(timeout: timedelta, group: distributed.ProcessGroup | None = None) -> None:
        set_timeout(timeout, group)
        group = group or c10d._get_default_group()
        if isinstance(group, Group):
            group.limit(timeout)

    return timed


check_version(torch.__version__)
distributed.Backend.register_backend("hocket", _underneath, devices=["cpu"])
c10d._new_process_group_helper = _making(c10d._new_process_group_helper)
c10d._set_pg_timeout = _timing(c10d._set_pg_timeout)
