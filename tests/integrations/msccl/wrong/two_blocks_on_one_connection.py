from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("twofold", fully_connected(2), AllGather(2, 2, True), 1, threadblock_policy=ThreadblockPolicy.manual):
    for i in range(2):
        chunk(0, Buffer.output, i).copy(1, sendtb=i, recvtb=0)
    chunk(1, Buffer.output, 2, 2).copy(0, sendtb=1, recvtb=2)
    XML()
