"""Three-Step AllToAll (a program of msccl-tools): one message between each pair of nodes."""

from __future__ import annotations

from hocket import AllToAll, Program, chunk


def all_to_all(nodes: int, gpus: int, instances: int = 1) -> Program:
    """All blocks from node m to node n are gathered on one rank of m, sent in one piece to one of n, and handed out.

    The other nodes are dealt in turn to the ranks of a node. Scratch for what a rank sends for its node and receives.
    """
    with Program(AllToAll((nodes, gpus)), name="three_step_all_to_all", instances=instances) as p:
        many = gpus * gpus
        shares = -(-(nodes - 1) // gpus)
        for m in range(nodes):
            for i in range(gpus):
                for g in range(gpus):
                    chunk((m, i), "in", (m, g)).copy((m, g), "out", (m, i))
        for m in range(nodes):
            for n in range(nodes):
                if m != n:
                    share, g = divmod(n if n < m else n - 1, gpus)
                    back, h = divmod(m if m < n else m - 1, gpus)
                    for i in range(gpus):
                        chunk((m, i), "in", n * gpus, gpus).copy((m, g), "sc", share * many + i * gpus)
                    arrival = (shares + back) * many
                    chunk((m, g), "sc", share * many, many).copy((n, h), "sc", arrival)
                    for i in range(gpus):
                        for j in range(gpus):
                            chunk((n, h), "sc", arrival + i * gpus + j).copy((n, j), "out", (m, i))
    return p
