from hocket import AllToAll, Program, chunk

with Program(AllToAll(2)) as p:
    for src in range(2):
        for dst in range(2):
            chunk(src, "in", src).copy(dst, "out", src)
p.compile()
