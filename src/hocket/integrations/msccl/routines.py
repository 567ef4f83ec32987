"""Fragments of programs: rings over some of the ranks of an in-place collective."""

from __future__ import annotations

from hocket.integrations.msccl.chunks import Buffer
from hocket.integrations.msccl.language import chunk


def allgather_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Ranks ``gpu_offset`` to ``gpu_offset + gpus - 1`` gather each other's first chunk, from ``index_offset`` on."""
    for position in range(gpus):
        c = chunk(gpu_offset + position, Buffer.input, 0)
        for step in range(1, gpus):
            c = c.copy(gpu_offset + (position + step) % gpus, Buffer.output, index_offset + position, ch=ch)


def allreduce_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Ranks ``gpu_offset`` to ``gpu_offset + gpus - 1`` sum as many chunks, from ``index_offset`` on."""
    for position in range(gpus):
        index = index_offset + position
        c = chunk(gpu_offset + position, Buffer.input, index)
        for step in range(1, gpus):
            c = chunk(gpu_offset + (position + step) % gpus, Buffer.input, index).reduce(c, ch=ch)
        for step in range(gpus - 1):
            c = c.copy(gpu_offset + (position + step) % gpus, Buffer.input, index, ch=ch)
