from hocket import AllReduce, Program, chunk


def ring(ranks: int) -> Program:
    with Program(AllReduce(ranks, chunks=ranks, inplace=True), name="ring") as p:
        for i in range(ranks):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks - 1):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i)
    return p


ring(4).compile()
