from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=2)):
    chunk(0, "in", 0).copy(1, "sc", 0)
    chunk(1, "sc", 0, 3).copy(1, "out", 0)
