from hocket import Broadcast, Program

with Program(Broadcast(2)) as p:
    pass
p.compile()
