from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("overlong", fully_connected(2), AllGather(2, 2, inplace=True), 1):
    chunk(0, Buffer.input, 1, 2).copy(1)
