from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, chunks=4)):
    half = 4 / 2
    chunk(0, "in", half)
