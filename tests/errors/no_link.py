from hocket import AllGather, Program, chunk
from hocket.topology import dgx1

with Program(AllGather(8), topology=dgx1()) as p:
    for rank in range(8):
        c = chunk(rank, "in", 0).copy(rank, "out", rank)
        for other in range(8):
            if other != rank:
                c.copy(other, "out", rank)
