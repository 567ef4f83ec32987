"""Two-Step AllToAll (paper section 7.3, Figure 9): one aggregated send between each pair of nodes and column."""

from __future__ import annotations

from hocket import AllToAll, Program, chunk


def all_to_all(nodes: int, gpus: int, instances: int = 1) -> Program:
    """Blocks for another node are gathered on the local rank of the same column, then sent in one piece."""
    with Program(AllToAll((nodes, gpus)), name="two_step_all_to_all", instances=instances) as p:
        for n in range(nodes):
            for g in range(gpus):
                for m in range(nodes):
                    for i in range(gpus):
                        c = chunk((m, i), "in", (n, g))
                        if n == m:
                            c.copy((n, g), "out", (m, i))
                        else:
                            c.copy((m, g), "sc", (n, i))
                    if n != m:
                        chunk((m, g), "sc", n * gpus, gpus).copy((n, g), "out", m * gpus)
    return p
