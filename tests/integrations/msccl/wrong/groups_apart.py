from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("group", fully_connected(2), AllReduce(2, 3, True), 1):
    chunk(0, Buffer.input, 0).group(chunk(1, Buffer.input, 1))
