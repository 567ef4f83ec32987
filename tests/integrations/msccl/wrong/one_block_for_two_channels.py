from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("torn", fully_connected(2), AllGather(2, 2, True), 1, threadblock_policy=ThreadblockPolicy.manual):
    for r in range(2):
        for i in range(2):
            chunk(r, Buffer.output, 2 * r + i).copy(1 - r, sendtb=0, recvtb=1, ch=i)
    XML()
