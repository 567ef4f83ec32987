from hocket import AllReduce, Program, chunk

with Program(AllReduce(2)):
    chunk(0, "in", 0).copy(1, "out", 0, ch=-1)
