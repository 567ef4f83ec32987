from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("negative", fully_connected(2), AllGather(2, 1, inplace=True), 1):
    chunk(1, Buffer.input, -1).copy(0)
