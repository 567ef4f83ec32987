from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=4, inplace=True)):
    one = chunk(0, "in", 0)
    four = chunk(1, "in", 0, 4)
    four.reduce(one)
