from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, inplace=True)):
    chunk(0, "in", 0).reduce((1, "in", 0))
