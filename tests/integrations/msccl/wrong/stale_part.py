from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("stale", fully_connected(2), AllGather(2, 2, False), 1):
    first, second = chunk(0, Buffer.input, 0, 2).copy(1, "kept").split(2)
    chunk(1, Buffer.input, 0).copy(1, "kept", 1)
    first.copy(1, Buffer.output, 0)
    second.copy(1, Buffer.output, 1)
