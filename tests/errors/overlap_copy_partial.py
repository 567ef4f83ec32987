from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=4)):
    c = chunk(0, "in", 0, 3)
    c.copy(0, "in", 1)
