from hocket import AllReduce, Program, chunk

with Program(AllReduce(3, inplace=True)) as p:
    total = chunk(0, "in", 0)
    for r in (1, 2):
        total = chunk(r, "in", 0).reduce(total)
    total.copy(0, "in")
p.compile()
