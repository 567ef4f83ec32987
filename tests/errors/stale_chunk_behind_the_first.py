from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=3, inplace=True)):
    both = chunk(0, "in", 0, 2)
    chunk(0, "in", 1).reduce(chunk(1, "in", 1))
    chunk(1, "in", 0, 2).reduce(both)
