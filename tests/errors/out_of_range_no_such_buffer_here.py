from hocket import Broadcast, Program, chunk

with Program(Broadcast(2, root=1)):
    chunk(0, "in", 0).copy(1, "out", 0)
