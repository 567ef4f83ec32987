"""AllToNext (paper section 7.4, Figure 10): across nodes, all ranks of a node share the way."""

from __future__ import annotations

from hocket import AllToNext, Program, chunk


def all_to_next(nodes: int, gpus: int, instances: int = 1) -> Program:
    """Rank i sends its buffer to rank i + 1; across nodes it is scattered, sent by every rank, and gathered."""
    with Program(AllToNext((nodes, gpus), chunks=gpus), name="all_to_next", instances=instances) as p:
        for n in range(nodes):
            for g in range(gpus - 1):
                chunk((n, g), "in", 0, gpus).copy((n, g + 1), "out", 0)
        for n in range(nodes - 1):
            for g in range(gpus):
                c = chunk((n, gpus - 1), "in", g)
                if g != gpus - 1:
                    c = c.copy((n, g), "sc", 0)
                c = c.copy((n + 1, g), "out" if g == 0 else "sc", 0 if g == 0 else 1)
                if g != 0:
                    c.copy((n + 1, 0), "out", g)
    return p
