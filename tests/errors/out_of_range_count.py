from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=4)):
    chunk(0, "in", 2, 3).copy(1, "out", 2)
