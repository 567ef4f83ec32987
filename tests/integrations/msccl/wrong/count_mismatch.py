from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("counts", fully_connected(2), AllReduce(2, 2, True), 1):
    chunk(0, Buffer.input, 0, 2).reduce(chunk(1, Buffer.input, 0))
