# ruff: noqa: A001, N802, N803, N806, PIE808
# mypy: ignore-errors
"""The paper's programs as printed. Line 12 of Figure 3a uses a leaked ``n``; here it is what it must be."""

from __future__ import annotations

from hocket import chunk


def ReduceScatter(ranks, offset, count):
    R = len(ranks)
    for r in range(0, R):
        index = offset + r * count
        c = chunk(ranks[(r + 1) % R], "in", index, count)
        for step in range(1, R):
            next = ranks[(step + r + 1) % R]
            c = chunk(next, "in", index, count).reduce(c)


def AllGather(ranks, offset, count):
    R = len(ranks)
    for r in range(0, R):
        index = offset + r * count
        c = chunk(ranks[r], "in", index, count)
        for step in range(1, R):
            next = ranks[(step + r) % R]
            c = c.copy(next, "in", index, count)


def hierarchical_all_reduce(N, G):
    # intra-node ReduceScatter
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        ReduceScatter(local_ranks, 0, N)

    # inter-node ReduceScatter + AllGather
    for g in range(G):
        cross_ranks = [g + i * G for i in range(N)]
        ReduceScatter(cross_ranks, g * N, 1)
        AllGather(cross_ranks, g * N, 1)

    # intra-node AllGather
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        AllGather(local_ranks, 0, N)


def alltoall(N, G):
    for n in range(N):
        for g in range(G):
            for m in range(N):
                for i in range(G):
                    c = chunk((m, i), "in", (n, g))
                    if n == m:
                        c.copy((n, g), "out", (m, i))
                    else:
                        c.copy((m, g), "sc", (n, i))

                # Coalesced IB send
                if n != m:
                    c = chunk((m, g), "sc", n * G, sz=G)
                    c.copy((n, g), "out", m * G)
