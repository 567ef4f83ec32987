from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("first", fully_connected(2), AllReduce(2, 1, False), 1):
    c = chunk(0, Buffer.input, 0)
with MSCCLProgram("second", fully_connected(2), AllReduce(2, 1, False), 1):
    c.copy(1, Buffer.output, 0)
