from hocket import AllToAll, Program, chunk

with Program(AllToAll((2, 3))):
    chunk((0, 3), "in", (0, 0))
