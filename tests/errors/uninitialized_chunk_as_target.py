from hocket import AllReduce, Program, chunk

with Program(AllReduce(2)):
    chunk(0, "out", 0).reduce(chunk(0, "in", 0))
