from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("channels", fully_connected(2), AllGather(2, 40, False), 1):
    for r in range(2):
        for i in range(40):
            chunk(r, Buffer.input, i).copy(r, Buffer.output, 40 * r + i)
            chunk(r, Buffer.input, i).copy(1 - r, Buffer.output, 40 * r + i, ch=i)
    XML()
