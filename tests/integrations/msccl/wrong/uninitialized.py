from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("uninitialized", fully_connected(2), AllReduce(2, 1, inplace=False), 1):
    chunk(0, Buffer.output, 0).copy(1, Buffer.output, 0)
