from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("far", dgx1(), AllGather(8, 1, True), 1):
    chunk(0, Buffer.output, 0).copy(5)
