from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("alltoall", fully_connected(2), AllToAll(2, 1, inplace=True), 1):
    chunk(0, Buffer.input, 1).copy(1, Buffer.output, 0)
    chunk(1, Buffer.input, 0).copy(0, Buffer.output, 1)
    XML()
