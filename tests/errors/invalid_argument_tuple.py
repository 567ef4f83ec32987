from hocket import AllToAll, Program, chunk

with Program(AllToAll(6)):
    chunk((0, 1), "in", (0, 0))
