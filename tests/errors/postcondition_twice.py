from hocket import AllReduce, Program, chunk

with Program(AllReduce(3, inplace=True)) as p:
    total = chunk(0, "in", 0)
    for r in range(1, 3):
        total = total.reduce(chunk(r, "in", 0))
    total = chunk(2, "in", 0).reduce(total)
    total.copy(0, "in").copy(1, "in")
p.compile()
