from hocket import AllReduce, Program, chunk

with Program(AllReduce(3, chunks=2, inplace=True)):
    a = chunk(1, "in", 0)
    b = chunk(0, "in", 0)
    b.copy(1, "in", 0)
    a.copy(2, "in", 0)
