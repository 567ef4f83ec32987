from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=4)):
    c = chunk(0, "in", 0, 2)
    c.copy(1, "out", 0, 3)
