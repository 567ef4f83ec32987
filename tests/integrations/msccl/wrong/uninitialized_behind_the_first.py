from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("uninitialized", fully_connected(2), AllGather(2, 1, inplace=False), 1):
    chunk(0, Buffer.input, 0).copy(1, "box", 0)
    chunk(1, Buffer.input, 0).copy(1, "box", 2)
    chunk(1, "box", 0, 3).copy(0, "box", 0)
