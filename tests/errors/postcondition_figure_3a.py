# ruff: noqa: A001, N802, N803, N806, PIE808

from hocket import AllReduce, Program, chunk


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


def HierarchicalAllReduce(N, G):
    # intra-node ReduceScatter
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        ReduceScatter(local_ranks, 0, N)

    # inter-node ReduceScatter + AllGather; as printed, with the n that the loop above leaves behind
    for g in range(G):
        cross_ranks = [i + n * G for i in range(N)]
        ReduceScatter(cross_ranks, g * N, 1)
        AllGather(cross_ranks, g * N, 1)

    # intra-node AllGather
    for n in range(N):
        local_ranks = [i + n * G for i in range(G)]
        AllGather(local_ranks, 0, N)


with Program(AllReduce((2, 3), chunks=6, inplace=True), name="figure 3a") as p:
    HierarchicalAllReduce(2, 3)
p.compile()
