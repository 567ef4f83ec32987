from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("uninitialized", fully_connected(2), AllGather(2, 1, inplace=False), 1):
    a = chunk(0, Buffer.input, 0).copy(1, "box", 0)
    b = chunk(1, Buffer.input, 0).copy(1, "box", 2)
    a.group(b)
