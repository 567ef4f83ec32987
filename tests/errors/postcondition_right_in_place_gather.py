from hocket import AllGather, Program, chunk

with Program(AllGather(2)) as p:  # in place, each rank's own block would be there
    chunk(0, "in", 0).copy(1, "out", 0)
    chunk(1, "in", 0).copy(0, "out", 1)
p.compile()
