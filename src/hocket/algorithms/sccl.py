"""SCCL's (1,2,2) AllGather for the DGX-1 (paper section 7.5; Cai et al., PPoPP'21, Table 4).

One chunk a rank, two steps, two rounds. GPUs 0-3 and 4-7 are each fully linked, and i with its opposite i + 4.
"""

from __future__ import annotations

from hocket import AllGather, Program, chunk


def all_gather(instances: int = 1) -> Program:
    """Step one: to the quad and the opposite. Step two: the opposite hands what it got to its own quad."""
    with Program(AllGather(8), name="sccl_122_all_gather", instances=instances) as p:
        for r in range(8):
            chunk(r, "in", 0).copy(r, "out", r)
        for r in range(8):
            quad = range(r // 4 * 4, r // 4 * 4 + 4)
            for peer in (*quad, (r + 4) % 8):
                if peer != r:
                    chunk(r, "out", r).copy(peer, "out", r)
        for r in range(8):
            opposite = (r + 4) % 8
            quad = range(opposite // 4 * 4, opposite // 4 * 4 + 4)
            for peer in quad:
                if peer != opposite:
                    chunk(opposite, "out", r).copy(peer, "out", r)
    return p
