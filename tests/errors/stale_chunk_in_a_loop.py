from hocket import AllReduce, Program, chunk

with Program(AllReduce(4, inplace=True)):
    c = chunk(0, "in", 0)
    for rank in range(1, 4):
        chunk(0, "in", 0).reduce(chunk(rank, "in", 0))
    for rank in range(1, 4):
        c.copy(rank, "in", 0)
