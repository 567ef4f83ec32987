from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("torn", fully_connected(3), AllGather(3, 1, True), 1, threadblock_policy=ThreadblockPolicy.manual):
    for r in range(3):
        chunk(r, Buffer.output, r).copy((r + 1) % 3, sendtb=0, recvtb=1)
        chunk(r, Buffer.output, r).copy((r + 2) % 3, sendtb=0, recvtb=2)
    XML()
