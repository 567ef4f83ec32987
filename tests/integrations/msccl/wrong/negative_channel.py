from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("channel", fully_connected(2), AllGather(2, 1, True), 1):
    chunk(0, Buffer.output, 0).copy(1, ch=-2)
