from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("split", fully_connected(2), AllReduce(2, 3, True), 1):
    chunk(0, Buffer.input, 0, 3).split(2)
