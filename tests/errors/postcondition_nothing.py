from hocket import AllGather, Program, chunk

with Program(AllGather(3)) as p:
    for r in range(3):
        for to in range(r + 1):
            chunk(r, "in", 0).copy(to, "out", r)
p.compile()
