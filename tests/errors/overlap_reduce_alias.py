from hocket import Program, ReduceScatter, chunk

with Program(ReduceScatter(2, inplace=True)):
    chunk(1, "in", 1).reduce(chunk(1, "out", 0))
