from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *


class Some(AllGather):
    def check(self, prog):
        return True


with MSCCLProgram("some", fully_connected(3), Some(3, 1, True), 1):
    chunk(0, Buffer.output, 0).copy(1)
    XML()
