from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, inplace=True)):
    c = chunk(0, "in", 0)
    c.reduce(c)
