from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("forgotten", fully_connected(3), AllReduce(3, 1, True), 1):
    c = chunk(0, Buffer.input, 0)
    for r in (1, 1):
        c = chunk(r, Buffer.input, 0).reduce(c.copy(r, "box", 0))
    for r in (0, 2):
        c.copy(r, Buffer.input, 0)
    Check()
