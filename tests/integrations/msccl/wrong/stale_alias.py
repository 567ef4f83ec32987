from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("stale", fully_connected(2), AllGather(2, 1, inplace=True), 1):
    mine = chunk(1, Buffer.input, 0)
    chunk(0, Buffer.input, 0).copy(1, Buffer.output, 1)
    mine.copy(0, Buffer.output, 1)
