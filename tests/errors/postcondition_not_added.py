from hocket import Program, Reduce, chunk

with Program(Reduce(3)) as p:
    chunk(0, "in", 0).copy(0, "out", 0)
    for r in (1, 2):
        chunk(r, "in", 0).copy(0, "sc", r)
p.compile()
