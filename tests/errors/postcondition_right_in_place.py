from hocket import AllReduce, Program, chunk

with Program(AllReduce(3)) as p:
    total = chunk(0, "in", 0)
    for r in (1, 2):
        total = chunk(r, "in", 0).reduce(total)
    for r in (0, 1):
        total = total.copy(r, "in", 0)
p.compile()
